"""What a step will take with our operators applied, and how far off that was."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fuselab.scan.rank import BY_NAME
from fuselab.scan.record import Compared, Forecast, Outcome, Served
from fuselab.statistics import stats

COMPILE = "compile"
# A host that is done this much before its GPU does not keep it waiting; a GPU that works so much
# of a step is not kept waiting either.
AHEAD, BUSY = 0.95, 0.93


def forecast(
    plain_s: Sequence[float],
    host_s: Sequence[float],
    profiled_s: Sequence[float],
    busy_us: float,
    operators: float,
    served: Sequence[Served],
    *,
    gpu: bool,
) -> Forecast:
    """Return the forecast of a step.

    plain_s    seconds of each plain step
    host_s     of these until everything was launched
    profiled_s of each step that was profiled
    busy_us    of all operators of a step on a CPU, of all kernels on a GPU
    operators  how many a step calls
    """
    applied = [one for one in served if one.way != BY_NAME]
    step_us, host_us = 1e6 * median(plain_s), 1e6 * median(host_s or plain_s)
    # On a CPU an operator's time has the profiler's in it: its share of the step is taken.
    scale = 1.0 if gpu else step_us / 1e6 / median(profiled_s)
    busy_us *= scale
    each_us = max(0.0, (host_us if gpu else step_us - busy_us) / max(1.0, operators))
    # What torch's dispatcher, autograd and Python take for calls that are gone.
    calls_us = each_us * sum(_gone(one, gpu) for one in applied)
    compiled = any(COMPILE in times for one in applied for times in one.times.values())

    def with_saving(impl: str = "") -> float:
        saved = scale * sum(one.saved_us(impl or one.impl) for one in applied)
        if not gpu:
            return step_us - saved - calls_us
        if waits_for_kernels(step_us, host_us, busy_us):
            launched = host_us - calls_us if host_us < AHEAD * step_us else 0.0
            return max(step_us - saved, launched)
        return max(step_us - calls_us, busy_us - saved)

    bound = "operators"
    if gpu:
        bound = "kernels" if waits_for_kernels(step_us, host_us, busy_us) else "launches"
    return Forecast(
        step_us / 1e3,
        busy_us / 1e3 if gpu else 0.0,
        host_us / 1e3 if gpu else 0.0,
        bound,
        with_saving() / 1e3,
        with_saving(COMPILE) / 1e3 if compiled else None,
    )


def waits_for_kernels(step_us: float, host_us: float, busy_us: float) -> bool:
    """Return whether a step on a GPU lasts as long as its kernels."""
    return host_us < AHEAD * step_us or busy_us > BUSY * step_us


def compare(said: Forecast, outcome: Outcome) -> Compared:
    """Return how far the forecast was off."""
    plain = median((*outcome.plain_ms, *outcome.again_ms))
    patched = median(outcome.patched_ms)
    off = said.share * plain / patched - 1
    spread = max(stats.spread(outcome.plain_ms), stats.spread(outcome.patched_ms))
    return Compared(plain, patched, off, plain / said.plain_ms - 1, spread)


def _gone(one: Served, gpu: bool) -> float:
    """Return the calls that are gone where ours are known to come in their place.

    On a CPU the time of ours has the dispatcher's in it.
    """
    if all(us is None for us in one.ours_us.values()):
        return 0.0
    return one.host_calls - (one.calls * len(one.now_us) if gpu else 0.0)
