"""Parts of a run on several machines, and the run that is made of them again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import UncompletedJobError

from fuselab.command_line.cli import cli, command
from fuselab.command_line.options import words
from fuselab.commands.measuring import gpus, jobs
from fuselab.machine.lock import host_lock
from fuselab.model import Group, Measurement, Status
from fuselab.planning.plan import PlanError
from fuselab.planning.shards import Shard, ShardError, parse
from fuselab.runner import WorkerError, spread
from fuselab.storage.store import FILE_NAME, Store

TASKS = {
    "torchrun": ({"RANK": "2", "WORLD_SIZE": "4"}, Shard(3, 4)),
    "slurm": ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "4",
               "SLURM_ARRAY_TASK_COUNT": "3"}, Shard(2, 3)),
}  # fmt: skip


def groups() -> list[Group]:
    names = ("norm", "softmax")
    return [
        Group(name, f"{2**i}x{n}", dtype, "fwd", "contiguous", "cpu", ("eager", "cpu"))
        for name in names
        for dtype in ("float32", "bfloat16")
        for i in range(20)
        for n in (64, 100)
    ]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_group_is_in_one_part_whatever_else_is_planned(count: int) -> None:
    parts = [Shard(i, count) for i in range(1, count + 1)]
    taken = [[part for part in parts if part.has(group)] for group in groups()]
    assert all(len(parts) == 1 for parts in taken)
    moved = [replace(group, device="cuda:1", impls=("x",), code="new") for group in groups()]
    assert taken == [[part for part in parts if part.has(group)] for group in moved]
    if count > 1:
        assert all(sum(mine == [part] for mine in taken) > 10 for part in parts)


@pytest.mark.parametrize("task", list(TASKS))
def test_a_task_knows_its_part(task: str) -> None:
    variables, wanted = TASKS[task]
    assert parse("auto", variables) == parse(f"auto/{wanted.count}", variables) == wanted
    with pytest.raises(ShardError, match=f"tells of {wanted.count} parts"):
        parse("auto/9", variables)


@pytest.mark.parametrize(
    ("text", "variables", "words"),
    [
        ("3", {}, "got '3', expected I/N"),
        ("0/4", {}, "part 0 of 4"),
        ("5/4", {}, "part 5 of 4"),
        ("1/0", {}, "part 1 of 0"),
        ("-1/4", {}, "got '-1/4'"),
        ("auto", {}, "SLURM_ARRAY_TASK_ID"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "expected auto/N"),
        ("auto", {"RANK": "x", "WORLD_SIZE": "2"}, "RANK: got 'x'"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, "part 3 of 2"),
    ],
)
def test_what_is_no_part_is_refused(text: str, variables: dict[str, str], words: str) -> None:
    with pytest.raises(ShardError, match=words):
        parse(text, variables)


def test_kubernetes_tells_the_index_alone() -> None:
    assert parse("auto/3", {"JOB_COMPLETION_INDEX": "2"}) == Shard(3, 3)


def measured(group: Group) -> list[Measurement]:
    samples = tuple(float(len(group.case) + i) for i in range(5))
    return [
        Measurement(group.cell(impl), Status.OK, timer="wall", samples_us=samples)
        for impl in group.impls
    ]


def store(folder: Path, some: list[Group], host: str) -> str:
    ceiling = Group("ceiling", "4GiB", "float32", "fwd", "contiguous", "cpu", ("copy",))
    with Store.open(folder) as run:
        run.set_environment({"cpu": host})
        for group in (ceiling, *some):
            run.write(group, measured(group))
    return str(folder)


def exported(folder: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert command(["export", folder, "--format", "jsonl", "--samples"]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_merged_run_is_the_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [[g for g in groups() if Shard(i, 3).has(g)] for i in (1, 2, 3)]
    folders = [store(tmp_path / f"part{i}", part, "one") for i, part in enumerate(parts)]
    whole, merged = store(tmp_path / "whole", groups(), "one"), str(tmp_path / "merged")
    assert command(["merge", merged, *folders]) == 0
    assert "321 cells of 3 runs" in capsys.readouterr().out
    lines = [exported(folder, capsys) for folder in (whole, merged)]
    assert sorted(lines[0]) == sorted(lines[1])
    cases = [json.loads(line)["case"] for line in lines[1] if '"bfloat16"' in line]
    assert cases[:4] == ["1x64", "1x64", "1x100", "1x100"]
    assert command(["merge", merged, *folders]) == 0  # once more changes nothing
    assert exported(merged, capsys) == lines[1]


def test_times_of_writing_and_environments_stay(tmp_path: Path) -> None:
    one, two = groups()[:1], groups()[1:2]
    folders = [store(tmp_path / name, part, name) for name, part in (("a", one), ("b", two))]
    with sqlite3.connect(tmp_path / "a" / FILE_NAME) as sql:
        sql.execute("UPDATE cell SET written_at = '2026-01-02T03:04:05+00:00'")
    assert command(["merge", str(tmp_path / "both"), *folders]) == 0
    with Store.open_readonly(tmp_path / "both") as merged:
        assert [env["cpu"] for env in merged.environment()] == ["a", "b"]
        assert merged.span()[0].startswith("2026-01-02")  # type: ignore[index]
        assert len({m.environment for m in merged.measurements()}) == 2


def test_a_cell_of_two_runs_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [store(tmp_path / name, groups()[:1], name) for name in ("a", "b")]
    assert command(["merge", str(tmp_path / "both"), *folders]) == 3
    assert "both hold norm/" in capsys.readouterr().err
    assert not (tmp_path / "both").exists()
    assert command(["merge", folders[0], folders[1]]) == 3
    with Store.open_readonly(folders[0]) as kept:
        assert [env["cpu"] for env in kept.environment()] == ["a"]
    assert command(["merge", str(tmp_path / "both"), str(tmp_path / "none")]) == 3


def test_parts_are_measured_and_merged(toy: str, tmp_path: Path) -> None:
    """Each of the two parts has one of two cases, or both are in one; none is an error."""
    folders = [str(tmp_path / f"part{i}") for i in (1, 2)]
    for i, folder in enumerate(folders, 1):
        options = ("--dtype", "fp32", "--direction", "fwd", "--impl", "eager", "--impl", "right")
        wanted = ("--precision", "quick", "--device", "cpu", "--shard", f"{i}/2", "--out", folder)
        assert command(["run", toy, "--case", "small", "--case", "large", *options, *wanted]) == 0
    assert command(["merge", str(tmp_path / "whole"), *folders]) == 0
    with Store.open_readonly(tmp_path / "whole") as merged:
        cases = {m.cell.case for m in merged.measurements() if m.cell.op == "swish"}
    assert cases == {"small", "large"}


def test_a_run_on_each_gpu_is_one_run(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two workers, as for two GPUs, that see none and measure on the CPU."""
    monkeypatch.setattr(gpus, "chosen", lambda text: gpus.numbers(text, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    out = tmp_path / "run"
    given = ("--impl", "eager", "--dtype", "fp32", "--direction", "fwd", "--precision", "quick")
    arguments = ["run", toy, "--case", "small", "--case", "large", *given, "--out", str(out)]
    for said in ("on 2 GPUs: ", "0 to measure"):
        assert command([*arguments, "--gpus", "all"]) == 0
        assert said in capfd.readouterr().err
    with Store.open_readonly(out) as stored:
        cases = [m.cell.case for m in stored.measurements() if m.cell.impl == "eager"]
        seen = {env["variables"]["CUDA_VISIBLE_DEVICES"] for env in stored.environment()}
    assert sorted(cases) == ["large", "small"]
    assert seen == {"6", "7"}
    assert command([*arguments, "--gpus", "all", "--device", "cpu"]) == 2


def test_what_one_worker_raises_ends_all_of_them() -> None:
    ended = []

    class Fake:
        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            ended.append(self)

    def serve(worker: Any) -> Iterator[int]:
        yield 1
        if begun.index(worker) == 1:
            raise WorkerError("no worker")

    begun: list[Fake] = []

    def start(cancel: Any) -> Any:
        begun.append(Fake())
        return begun[-1]

    assert list(spread([start], serve)) == [1]
    with pytest.raises(WorkerError, match="no worker"):
        list(spread([start, start], serve))
    assert len(ended) == 3


def times(run: Path) -> dict[str, tuple[float, ...]]:
    """Return eager's samples of each case."""
    with Store.open_readonly(run) as store:
        return {m.cell.case: m.samples_us for m in store.measurements() if m.cell.impl == "eager"}


def test_a_run_in_jobs_is_one_run(
    toy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two jobs of submitit on this machine; a part that was lost is measured again, alone."""
    out = tmp_path / "run"
    given = ("--impl", "eager", "--dtype", "fp32", "--direction", "fwd", "--precision", "quick")
    arguments = ["run", toy, "--case", "small", "--case", "large", *given, "--device", "cpu"]
    jobs = ["--jobs", "2", "--job-option", "cluster=local", "--out", str(out)]
    assert command([*arguments, *jobs]) == 0
    first = times(out)
    assert sorted(first) == ["large", "small"]
    kept = times(out / "job-2")
    shutil.rmtree(out / "job-1")
    assert command([*arguments, *jobs]) == 0
    assert {case for case, us in times(out).items() if us == first[case]} == set(kept)
    assert "job-1: job " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--jobs", "2", "--job-option", "partition"], "expected NAME=VALUE"),
        (["--jobs", "2", "--job-option", "cluster=abacus"], "abacus"),
        (["--jobs", "2", "--job-option", "cluster=local", "--job-option", "colour=1"], "colour"),
        (["--jobs", "2", "--shard", "1/2"], "--jobs: expected no"),
        (["--job-option", "cluster=local"], "expected --jobs"),
    ],
)
def test_what_makes_no_jobs_is_refused(
    options: list[str], words: str, toy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(["run", toy, "--out", str(tmp_path / "run"), *options]) == 2
    assert words in capfd.readouterr().err


def test_a_job_that_was_killed_is_a_failure_with_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Killed:
        def result(self) -> int:
            raise UncompletedJobError("Job 7 (task: 0) was preempted\nmore")

    assert jobs._code(Killed(), "out/job-1") == 1
    assert capsys.readouterr().err == "out/job-1: Job 7 (task: 0) was preempted\n"


@pytest.mark.parametrize("text", ["", "2", "0,0", "x", "-1", "0,"])
def test_what_names_no_gpus_is_refused(text: str) -> None:
    assert gpus.numbers("all", 2) == gpus.numbers("0,1", 2) == [0, 1]
    with pytest.raises(PlanError, match="gpus: got"):
        gpus.numbers(text, 2)
    with pytest.raises(PlanError, match="none"):
        gpus.numbers("all", 0)


def test_a_command_is_told_again_in_words() -> None:
    line = ["softmax", "my.py", "--impl", "cpu", "--impl", "eager", "--fresh", "--timeout", "60"]
    with cli.commands["run"].make_context("run", [*line, "--out", "x", "--gpus", "0"]) as context:
        again = words(context, "gpus", "out")
    with cli.commands["run"].make_context("run", again) as once_more:
        told = {k: v for k, v in context.params.items() if k not in ("gpus", "out")}
        assert {k: v for k, v in once_more.params.items() if k not in ("gpus", "out")} == told
    assert "--gpus" not in again


def test_host_times_wait_for_each_other(tmp_path: Path) -> None:
    with host_lock():
        pass
    with host_lock():  # it is free again
        pass
