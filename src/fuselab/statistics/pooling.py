"""One measurement from those that several processes made of the same cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuselab.model import Measurement, Status
from fuselab.precision import LEVELS, RESOLUTION_US
from fuselab.statistics import stats


def pool(found: Sequence[Measurement]) -> Measurement:
    """Return the measurement with all samples; the first that failed, if one did.

    Processes that differ by more than the cell's precision allows make it noisy.
    """
    failed = [m for m in found if not m.status.has_number]
    if failed or len(found) == 1:
        return (failed or list(found))[0]
    first, samples = found[0], tuple(us for m in found for us in m.samples_us)
    level = LEVELS[first.precision]
    width = stats.summary(samples).known_to(RESOLUTION_US.get(first.timer, 0.0))
    missed = level.missed(len(samples), sum(samples), width)
    reasons = dict.fromkeys(filter(None, (*(m.reason for m in found), missed)))
    noisy = missed or any(m.status is Status.NOISY for m in found)
    medians = tuple(stats.median(m.samples_us) for m in found)
    return replace(
        first,
        status=Status.NOISY if noisy else Status.OK,
        reason="; ".join(reasons),
        samples_us=samples,
        hot_us=tuple(us for m in found for us in m.hot_us),
        proof=replace(first.proof, processes=len(found), medians_us=medians),
    )
