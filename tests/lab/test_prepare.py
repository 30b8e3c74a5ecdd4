"""What compiles is compiled in parallel before the measuring: cached, and without verdicts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_preparer
import pytest
from processes import gone
from torch._inductor.runtime.autotune_cache import AutotuneCache

from fuselab.commands.measuring import gpus, prepare
from fuselab.model import Group
from fuselab.runner import Worker
from fuselab.worker import process
from fuselab.worker.prepare import forgetting_choices


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(prepare, "cores", lambda: 6)
    return tmp_path / "fuselab"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the pretended workers write what they took, in place of the real ones."""
    monkeypatch.setattr(gpus, "entry", fake_preparer)
    return tmp_path / "log"


def group(case: str, *impls: str, dtype: str = "float32", **more: Any) -> Group:
    names = ("swish", case, dtype, "fwd", "contiguous", more.pop("device", "cpu"))
    return Group(*names, impls or ("eager", "compile"), **more)


def taken(log: Path) -> list[tuple[int, str]]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(int(pid), case) for pid, case in lines]


def test_several_processes_share_the_groups_and_leave(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare.run([group(f"{i}") for i in range(9)], "cpu", 5, str(log))
    found = taken(log)
    assert sorted(case for _, case in found) == [f"{i}" for i in range(9)]
    assert len({pid for pid, _ in found}) == 3
    assert all(gone(pid) for pid, _ in found)
    first, *steps, last = capsys.readouterr().err.splitlines()
    assert first == "compiling 9 implementations in parallel, 3 processes"
    assert len(steps) == 9
    assert all("  ready: compile  (" in step for step in steps)
    assert last.startswith("compiled 9 of 9 in ")


def test_what_fails_there_costs_itself_and_nothing_else(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = ["killed", "hangs", "fatal", "a", "b", "c"]
    prepare.run([group(case) for case in cases], "cpu", 1, str(log))
    counts = Counter(case for _, case in taken(log))
    assert counts == dict.fromkeys(cases, 1)
    assert all(gone(pid) for pid, _ in taken(log))
    err = capsys.readouterr().err
    assert err.count("  ready: none  (") == 3
    assert "compiled 3 of 6 in " in err


def test_processes_that_do_not_start_are_left_to_the_measuring(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare.run([group(f"{i}", device="cuda:7") for i in range(4)], "cuda:7", 5, str(log))
    assert "compiled 0 of 4 in 0 s" in capsys.readouterr().err


def test_an_interruption_ends_all_processes_at_once(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare.Steps, "step", step)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        prepare.run([group("hangs"), group("hangs"), *[group("a")] * 9], "cpu", 60, str(log))
    assert time.monotonic() - begin < 20
    assert len(taken(log)) <= 4
    assert all(gone(pid) for pid, _ in taken(log))


FOUR = [group(f"{i}") for i in range(4)]


@pytest.mark.parametrize(
    ("groups", "change"),
    [
        (FOUR[:3], {}),
        (FOUR, {"fuselab.commands.measuring.prepare.cores": lambda: 1}),
        (FOUR, {"torch._inductor.config": SimpleNamespace(max_autotune=True)}),
        ([group(f"{i}", "eager", "triton") for i in range(4)], {}),
    ],
    ids=["few groups", "few cores", "benchmarks while it compiles", "nothing compiles"],
)
def test_where_it_does_not_pay_or_would_mislead_nothing_happens(
    log: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    groups: list[Group],
    change: dict[str, Any],
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(name, value)
    prepare.run(groups, "cpu", 5, str(log))
    assert (capsys.readouterr().err, taken(log)) == ("", [])


def test_on_a_gpu_triton_compiles_too() -> None:
    impls = ("eager", "triton", "my_triton_2", "cuda", "compile", "ceiling")
    on_gpu = prepare._compiling(group("a", *impls, device="cuda:0"), prepare.Marks())
    assert on_gpu == ("triton", "my_triton_2", "compile")


def test_on_a_gpu_rivals_of_the_operator_compile_too() -> None:
    wanted = replace(group("a", "eager", "liger", "quack", device="cuda:0"), op="rms_norm")
    assert prepare._compiling(wanted, prepare.Marks()) == ("liger", "quack")
    assert prepare._compiling(replace(wanted, device="cpu"), prepare.Marks()) == ()


def test_what_was_prepared_is_not_prepared_again(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [group(f"{i}") for i in range(8)]
    prepare.run(groups[:4], "cpu", 5, str(log))
    prepare.run(groups, "cpu", 5, str(log))
    assert "compiling 4 implementations" in capsys.readouterr().err
    assert Counter(case for _, case in taken(log)) == dict.fromkeys("01234567", 1)
    prepare.run(groups, "cpu", 5, str(log))
    assert capsys.readouterr().err == ""
    prepare.run([replace(g, code="changed") for g in groups], "cpu", 5, str(log))
    assert "compiling 8 implementations" in capsys.readouterr().err


def test_a_choice_among_variants_is_not_stored_but_will_be(tmp_path: Path) -> None:
    config = SimpleNamespace(kwargs={"XBLOCK": 64}, num_warps=4, num_stages=1)

    def choices() -> list[Path]:
        return list(tmp_path.glob("kernel/*.best_config"))

    with forgetting_choices():
        file = str(tmp_path / "kernel" / "k.py")
        cache = AutotuneCache.create({"autotune_local_cache": True}, file, "hash")
        assert cache is not None
        cache.save(config, 1000)
        loaded, how = cache.save.__reduce__()  # a kernel is pickled with it
    assert not choices()
    loaded(*how)(config, 1000)
    assert len(choices()) == 1


LARGE = """
import sys
sys.path.insert(0, {here!r})
import torch, toy_ops
def allocate(x, scale):
    return torch.ones(1 << 30, dtype=torch.uint8)
SPEC = toy_ops.spec("swish", toy_ops.right, allocate)
"""


def test_what_needs_more_than_its_share_of_the_memory_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "large_ops.py"
    file.write_text(LARGE.format(here=str(Path(__file__).parent)))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with Worker(process.main, "cpu", 60) as worker:
        wanted = group("small", "right", "allocate", source=str(file))
        reply = worker.ask("prepare", wanted, (3 << 28) / memory)
        assert (reply.results, reply.death) == (("right",), None)
        reply = worker.ask("prepare", wanted, (3 << 30) / memory)
        assert reply.results == ("right", "allocate")


def compiled(base: Path) -> set[str]:
    """The libraries and graphs in Inductor's cache."""
    folder = base / "inductor"
    graphs = (file for kind in ("fxgraph", "aotautograd") for file in folder.glob(f"{kind}/**/*"))
    return {str(file) for file in (*folder.rglob("*.so"), *graphs) if file.is_file()}


@pytest.mark.slow
@pytest.mark.usefixtures("plain_compiler")
def test_the_worker_that_measures_compiles_nothing_that_was_prepared(
    base: Path, toy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "FEWEST_GROUPS", 2)
    several = [
        Group("swish", "small", "float32", direction, "contiguous", "cpu", ("compile",), toy)
        for direction in ("fwd", "bwd")
    ]
    prepare.run(several, "cpu", 100, str(tmp_path / "log"))
    before = compiled(base)
    with Worker(process.main, "cpu", 100) as worker:
        for wanted in several:
            (measured,) = worker.ask("group", wanted, ()).results
            assert measured.status.has_number, measured.reason
            assert measured.proof.graphs == 1
        assert compiled(base) == before
        other = Group(*("swish", "large", "float32", "fwd", "contiguous", "cpu"), ("compile",), toy)
        worker.ask("group", other, ())
        assert compiled(base) > before


@pytest.mark.gpu
def test_on_a_gpu_the_worker_that_measures_only_chooses(
    base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "FEWEST_GROUPS", 2)
    case = ("4x512x1024", "float32")
    several = [
        Group("rms_norm", *case, direction, "contiguous", "cuda:0", ("triton", "compile"))
        for direction in ("fwd", "bwd")
    ]
    prepare.run(several, "cuda:0", 100, str(tmp_path / "log"))

    def binaries() -> set[str]:
        return {str(file) for file in (base / "triton").rglob("*.cubin")}

    before, graphs = binaries(), compiled(base)
    assert before
    assert graphs
    assert not list((base / "inductor").rglob("*.best_config"))
    with Worker(process.main, "cuda:0", 100) as worker:
        for wanted in several:
            for measured in worker.ask("group", wanted, ()).results:
                assert measured.status.has_number, measured.reason
    assert (binaries(), compiled(base)) == (before, graphs)


HANGING = """
import os, sys, time
sys.path.insert(0, {here!r})
import toy_ops
from dataclasses import replace
def make_inputs(case, dtype, device, generator):
    open({pids!r} + str(os.getpid()), "w").close()
    time.sleep(600)
SPEC = replace(toy_ops.spec("hanging"), make_inputs=make_inputs)
"""
START = (
    "import runpy, fuselab.commands.measuring.prepare as prepare; prepare.cores = lambda: 4; "
    "runpy.run_module('fuselab', run_name='__main__')"
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_ends_while_it_compiles_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    file = tmp_path / "hanging_ops.py"
    file.write_text(HANGING.format(here=str(Path(__file__).parent), pids=f"{pids}/"))
    run = subprocess.Popen(
        [sys.executable, "-c", START, "run", str(file), "--out", str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list(pids.iterdir())) < 2:
        assert time.monotonic() < deadline
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
    if number == signal.SIGKILL:
        run.kill()
    else:
        os.killpg(run.pid, number)  # a terminal sends Ctrl-C to all of them
    _, stderr = run.communicate(timeout=30)
    assert run.returncode == (-9 if number == signal.SIGKILL else 130)
    assert "compiling 4 implementations in parallel, 2 processes" in stderr
    assert "Traceback" not in stderr
    assert all(gone(int(pid.name)) for pid in pids.iterdir())
