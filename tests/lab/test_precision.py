"""Precision: when a cell is known well enough, and what several processes make of one cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuselab.model import Cell, Group, Measurement, Status
from fuselab.precision import LEVELS, estimate_s, serves
from fuselab.statistics import stats
from fuselab.statistics.pooling import pool
from fuselab.timers import Reading
from fuselab.worker import group
from fuselab.worker.measuring import timing

CELL = Cell("swish", "right", "fwd", "small", "float32", "contiguous", "cpu")
STANDARD, PUBLISH = LEVELS["standard"], LEVELS["publish"]


def measured(*samples: float, **more: Any) -> Measurement:
    return Measurement(CELL, Status.OK, samples_us=samples, precision="publish", **more)


@pytest.mark.parametrize(
    ("samples", "total_us", "width", "words"),
    [
        (29, 1e6, 0.0, "29 samples, standard wants 30"),
        (30, 1e6, 0.02, "median known to 2.0%, standard wants 1.0%"),
        (30, 1.0, 0.01, ""),
    ],
)
def test_what_a_level_misses(samples: int, total_us: float, width: float, words: str) -> None:
    assert STANDARD.missed(samples, total_us, width) == words


def test_publish_wants_time_as_well() -> None:
    assert PUBLISH.missed(1000, 99_000, 0.0) == "99 ms measured, publish wants 100"
    assert PUBLISH.processes == 2


def test_a_better_level_serves_a_lesser_one() -> None:
    assert serves("publish", "standard")
    assert serves("quick", "quick")
    assert not serves("quick", "standard")
    assert not serves("", "quick")
    assert estimate_s(10, "cuda", "publish") > estimate_s(10, "cuda", "quick")


def test_two_processes_pool_their_samples() -> None:
    found = pool([measured(*[1000.0] * 60, hot_us=(9.0,)), measured(*[1001.0] * 60)])
    assert found.status is Status.OK
    assert len(found.samples_us) == 120
    assert found.hot_us == (9.0,)
    assert found.proof.medians_us == (1000.0, 1001.0)


def test_processes_that_differ_are_noisy_and_one_that_fails_fails() -> None:
    apart = pool([measured(*[1000.0] * 60), measured(*[1100.0] * 60)])
    assert apart.status is Status.NOISY
    assert "publish wants 0.5%" in apart.reason
    failed = Measurement(CELL, Status.CRASHED, "signal 11", precision="publish")
    assert pool([measured(1.0), failed]) is failed


def test_an_interval_as_narrow_as_the_clock_is_narrow_enough() -> None:
    steps = (1.344, 1.376, 1.408) * 10
    wide = stats.summary((1.344, 1.376) * 5)
    assert wide.relative_half_width > STANDARD.half_width
    assert wide.known_to(0.032) == 0.0
    assert wide.known_to(0.001) == wide.relative_half_width
    pair = [replace(measured(1.0), timer="cupti", samples_us=steps) for _ in range(2)]
    assert "median known" not in pool(pair).reason


def test_sweeps_add_up() -> None:
    found = timing.Timing("cupti")
    found.add({"a": Reading((1.0,), {"k": 1}), "a (hot)": Reading((0.5,), {})})
    found.add({"a": Reading((2.0,), {"k": 2}), "a (hot)": Reading((0.6,), {})})
    assert found.readings["a"].samples_us == (1.0, 2.0)
    assert not found.readings["a"].steady
    assert found.hot_us == {"a": (0.5, 0.6)}


def test_standard_goes_on_until_the_median_is_known_or_the_time_is_up(toy: str) -> None:
    wanted = Group("swish", "small", "float32", "fwd", "contiguous", "cpu", ("right",), toy)
    events: list[Any] = []
    group.run(replace(wanted, precision="standard"), frozenset(), lambda *e: events.append(e))
    (found,) = [e[1] for e in events if e[0] == "result"]
    assert found.status.has_number
    assert found.proof.rounds % STANDARD.rounds == 0
    if found.status is Status.OK:
        assert len(found.samples_us) >= STANDARD.samples
    else:
        assert "standard wants" in found.reason or "cores" in found.reason


def test_the_arena_of_a_lone_copy_needs_no_contents() -> None:
    arena = timing.Arena(torch.device("cpu"), 1, 64)
    assert arena.written() == ()
    assert arena.refresh() is None
    assert arena.renew(3, True) is None
    assert arena.renew_gradients(3) is None
