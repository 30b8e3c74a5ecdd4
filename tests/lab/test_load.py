"""What other processes take while we time: theirs alone, and only beyond what we leave idle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuselab.machine import load


def opened(monkeypatch: pytest.MonkeyPatch, busy_s: float, threads: int | None) -> load.OtherLoad:
    """Return a window of two seconds on four cores in which others used so many seconds."""
    clock, others = iter([0.0, 2.0]), iter([100.0, 100.0 + busy_s])
    monkeypatch.setattr(load, "monotonic", lambda: next(clock))
    monkeypatch.setattr(load, "_others_seconds", lambda: next(others))
    monkeypatch.setattr(load.os, "cpu_count", lambda: 4)
    with load.OtherLoad(threads) as other:
        pass
    return other


@pytest.mark.parametrize(
    ("busy_s", "threads", "told"),
    [
        *((3.0, 4, True), (3.0, 2, False), (3.0, None, True), (0.8, 4, False)),
        *((0.9, 4, True), (4.7, 2, False), (4.9, 2, True)),
    ],
)
def test_a_disturbance_is_what_goes_beyond_the_cores_that_we_leave_idle(
    busy_s: float, threads: int | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(monkeypatch, busy_s, threads).disturbance
    wanted = f"other processes kept {busy_s / 2:.1f} of 4 cores busy while it was timed"
    assert found == (wanted if told else "")


def proc(folder: Path, total: int, tree: dict[int, tuple[int, tuple[int, ...]]]) -> None:
    """Write /proc of processes: pid -> (ticks, its living children)."""
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu {total - 6} 1 2 700 800 1 1 1 5 5\ncpu0 1 2\n")
    for pid, (ticks, children) in tree.items():
        task = folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        times = f"{ticks - 3} 1 1 1 20 0"  # its own and those of children that ended
        text = f"{pid} (a ) name (x) S 1" + " 0" * 9 + f" {times}\n"
        (folder / str(pid) / "stat").write_text(text)
        (task / "children").write_text("".join(f"{child} " for child in children))


def test_our_children_and_theirs_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    us = os.getpid()
    monkeypatch.setattr(load, "PROC", tmp_path)
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)
    # Child 8 has ended meanwhile and left no folder.
    proc(tmp_path, 1000, {us: (100, (7, 8)), 7: (30, (9,)), 9: (20, ())})
    assert load._others_seconds() == 8.5
    proc(tmp_path, 1000, {us: (100, ())})
    assert load._others_seconds() == 9.0


def test_the_real_proc_has_us_and_our_children() -> None:
    if not load.PROC.joinpath("stat").is_file():
        pytest.skip("no /proc")
    (own, *_) = load._ticks(os.getpid())
    assert own > 0
    assert isinstance(load._ticks(os.getpid()), Iterator)
    assert load._others_seconds() > 0


def test_reasons_are_told_once() -> None:
    assert load.told("", "a", "b", "a", "") == "a; b"
