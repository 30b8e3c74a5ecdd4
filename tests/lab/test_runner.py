"""The runner charges the death of a worker to the culprit, and only to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import fake_worker
import pytest

from fuselab import runner
from fuselab.model import Group, Measurement, Status
from fuselab.runner import Worker, WorkerError


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
    assert {m.proof["pid"] for m in (*first.values(), *second.values())} == {
        worker.environment["pid"]
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
        assert found[name].proof["skip"] == ["bad"]


def test_a_yardstick_that_dies_is_skipped_and_costs_no_cell(worker: Worker) -> None:
    (found,) = measure(worker, group("bad_yardstick", "a", "b"))
    assert [m.status for m in found.values()] == [Status.OK, Status.OK]
    assert found["a"].proof["skip"] == ["yardstick"]


def test_a_death_before_any_name_costs_the_whole_group_and_no_other(worker: Worker) -> None:
    lost, kept = measure(worker, group("no_inputs", "a", "b"), group("fine", "a", "b"))
    assert {m.status for m in lost.values()} == {Status.CRASHED}
    assert all("exit code 3 during inputs" in m.reason for m in lost.values())
    assert {m.status for m in kept.values()} == {Status.OK}


def test_a_worker_that_left_between_two_groups_is_replaced(worker: Worker) -> None:
    first, second = measure(worker, group("leaves", "a"), group("fine", "a"))
    assert first["a"].status is second["a"].status is Status.OK
    assert first["a"].proof["pid"] != second["a"].proof["pid"]


def test_what_a_hung_implementation_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "child"
    with Worker(fake_worker.main, "cpu", timeout=1, log=str(file)) as worker:
        (found,) = measure(worker, group("child_hangs"))
    assert found["bad"].status is Status.TIMEOUT
    stat = Path("/proc") / file.read_text().strip() / "stat"
    time.sleep(0.1)
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_worker_that_does_not_start_is_an_error_that_names_the_device() -> None:
    with Worker(fake_worker.main, "cuda:7") as worker, pytest.raises(WorkerError) as caught:
        worker.ask("group", group("fine"), ())
    assert "cuda:7" in str(caught.value)
    assert "exit code 9" in str(caught.value)
