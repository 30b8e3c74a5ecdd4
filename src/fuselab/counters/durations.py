"""How long a call's kernels take by Nsight Compute (ncu), in blocks of calls like the lab's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuselab.counters import Task, ncu
from fuselab.counters.launch import Answer, ChildError

METRIC = "gpu__time_duration.sum"
# More calls of one cell than ncu is ever given, so that a range's number tells cell and call.
STRIDE = 1000


@dataclass(frozen=True)
class Block(Task):
    """One cell as a round of the lab times it.

    calls    calls of the block, over `sets` rotating input sets
    watched  how many of them ncu times
    """

    calls: int
    sets: int
    watched: int


@dataclass(frozen=True)
class Durations:
    """The sum of the kernels' durations of each watched call, and their number; or why not."""

    us: tuple[float, ...] = ()
    kernels: tuple[int, ...] = ()
    reason: str = ""


def measure(blocks: Sequence[Block], seconds: float) -> list[Durations]:
    """Return the durations of each block, from one child under ncu that may take `seconds` a block.

    Raises CounterError where ncu itself cannot work.
    """
    names = [ncu.RANGE.format(number) for numbers in _numbers(blocks) for number in numbers]
    try:
        # One metric takes one pass; this mode never saves and restores memory through the caches.
        kernels, answers = ncu.profile(
            *("durations", blocks, seconds), "application", [METRIC], names
        )
    except ChildError as error:
        return [Durations(reason=str(error))] * len(blocks)
    return [
        _durations([kernels.get(number, []) for number in numbers], answer)
        for numbers, answer in zip(_numbers(blocks), answers, strict=True)
    ]


def ranges(index: int, calls: int, watched: int) -> dict[int, int]:
    """Return the number of the NVTX range of each watched call, by the call's place in its block.

    They are spread evenly, because each call leaves its results in the cache of the next.
    """
    return {(2 * i + 1) * calls // (2 * watched): index * STRIDE + i for i in range(watched)}


def _numbers(blocks: Sequence[Block]) -> list[list[int]]:
    return [[*ranges(i, b.calls, b.watched).values()] for i, b in enumerate(blocks)]


def _durations(calls: Sequence[ncu.Kernels], answer: Answer) -> Durations:
    if "error" in answer:
        return Durations(reason=str(answer["error"]))
    seen = [kernels for kernels in calls if kernels]
    if len(seen) < len(calls):
        return Durations(reason=f"ncu saw kernels in {len(seen)} of {len(calls)} calls")
    if any(METRIC not in row for kernels in seen for _, row in kernels):
        return Durations(reason=f"ncu gave no {METRIC}")
    return Durations(
        tuple(sum(row[METRIC] for _, row in kernels) for kernels in seen),
        tuple(len(kernels) for kernels in seen),
    )
