"""The runner charges the death of a worker to the culprit, and only to it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import fake_worker
import pytest

from fuselab import runner
from fuselab.model import Group, Measurement, Status
from fuselab.processes import caches
from fuselab.runner import Worker, WorkerError


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fuselab"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(fake_worker.main, "cpu", timeout=1) as worker:
        yield worker


def group(case: str, *impls: str) -> Group:
    return Group("op", case, "float32", "fwd", "contiguous", "cpu", impls or ("a", "bad", "b"))


def measure(worker: Worker, *groups: Group) -> list[dict[str, Measurement]]:
    return [{m.cell.impl: m for m in s.measurements} for s in runner.run(groups, worker)]


def test_one_worker_serves_all_groups_and_keeps_their_order(worker: Worker) -> None:
    first, second = measure(worker, group("fine", "a", "b"), group("fine", "b", "a"))
    assert list(first) == ["a", "b"]
    assert list(second) == ["b", "a"]
    assert {m.proof.version for m in (*first.values(), *second.values())} == {
        str(worker.environment["pid"])
    }


@pytest.mark.parametrize(
    ("case", "status", "reason"),
    [
        ("killed", Status.CRASHED, "killed by signal 9 (SIGKILL)"),
        ("exits", Status.CRASHED, "process ended with exit code 5 during forward"),
        ("hangs", Status.TIMEOUT, "no answer within 1 s during forward"),
        ("fatal", Status.OUT_OF_MEMORY, "too large"),
    ],
)
def test_the_culprit_pays_and_the_rest_runs_afresh(
    worker: Worker, case: str, status: Status, reason: str
) -> None:
    (found,) = measure(worker, group(case))
    assert list(found) == ["a", "bad", "b"]
    assert found["bad"].status is status
    assert reason in found["bad"].reason
    for name in ("a", "b"):
        assert found[name].status is Status.OK
        assert found[name].proof.chosen == "bad"


def test_a_yardstick_that_dies_is_skipped_and_costs_no_cell(worker: Worker) -> None:
    (found,) = measure(worker, group("bad_yardstick", "a", "b"))
    assert [m.status for m in found.values()] == [Status.OK, Status.OK]
    assert found["a"].proof.chosen == "yardstick"


def test_a_death_before_any_name_costs_the_whole_group_and_no_other(worker: Worker) -> None:
    lost, kept = measure(worker, group("no_inputs", "a", "b"), group("fine", "a", "b"))
    assert {m.status for m in lost.values()} == {Status.CRASHED}
    assert all("exit code 3 during inputs" in m.reason for m in lost.values())
    assert {m.status for m in kept.values()} == {Status.OK}


def test_a_worker_that_left_between_two_groups_is_replaced(worker: Worker) -> None:
    first, second = measure(worker, group("leaves", "a"), group("fine", "a"))
    assert first["a"].status is second["a"].status is Status.OK
    assert first["a"].proof.version != second["a"].proof.version


def test_what_a_hung_implementation_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Worker(fake_worker.main, "cpu", timeout=1, log=str(log)) as worker:
        (found,) = measure(worker, group("child_hangs"))
    assert found["bad"].status is Status.TIMEOUT
    stat = Path("/proc") / (tmp_path / "log.pid").read_text() / "stat"
    time.sleep(0.1)
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_worker_that_does_not_start_is_an_error_that_names_the_device() -> None:
    with Worker(fake_worker.main, "cuda:7") as worker, pytest.raises(WorkerError) as caught:
        worker.ask("group", group("fine"), ())
    assert "cuda:7" in str(caught.value)
    assert "exit code 9" in str(caught.value)


def test_a_late_worker_leaves_its_stacks_in_the_log_and_its_place_in_the_reason(
    tmp_path: Path,
) -> None:
    log = tmp_path / "worker.log"
    log.write_text('Current thread 0x1 (most recent call first):\n  File "old.py", line 1 in old\n')
    with Worker(fake_worker.main, "cpu", timeout=1, log=str(log)) as worker:
        (found,) = measure(worker, group("hangs"))
    assert re.fullmatch(
        r"no answer within 1 s during forward, in _misbehave \(fake_worker\.py:\d+\); "
        r"stacks in worker\.log",
        found["bad"].reason,
    )
    assert "fake_worker.py" in log.read_text()


def test_a_worker_is_retired_after_so_many_groups(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GROUPS", 2)
    found = measure(worker, *[group("fine", "a")] * 5)
    pids = [m["a"].proof.version for m in found]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def test_a_worker_sees_the_variables_of_now_before_it_imports_anything(
    worker: Worker, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    measure(worker, group("fine", "a"))
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("NO_CONCERN_OF_A_WORKER", "1")
    first = worker.environment
    worker.close()
    measure(worker, group("fine", "a"))
    second = worker.environment
    assert first["pid"] != second["pid"]
    assert first["early"] == second["early"] == []
    assert first["variables"]["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in second["variables"]
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" not in first["variables"]
    assert second["variables"]["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert "NO_CONCERN_OF_A_WORKER" not in second["variables"]
    for seen in (first, second):
        assert seen["variables"]["TORCHINDUCTOR_CACHE_DIR"] == str(base / "inductor")
        assert seen["variables"]["TRITON_CACHE_DIR"] == str(base / "triton")


def test_a_worker_may_be_given_caches_of_its_own() -> None:
    with caches.fresh() as folders, Worker(fake_worker.main, "cpu", folders=folders) as worker:
        measure(worker, group("fine", "a"))
        assert folders.items() <= worker.environment["variables"].items()


def test_caches_open_to_others_are_an_error_that_names_them(worker: Worker, base: Path) -> None:
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(WorkerError, match=rf"no worker for cpu: cache folder: {base} has mode"):
        measure(worker, group("fine", "a"))
