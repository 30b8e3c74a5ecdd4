"""What is known of a script's step when it has been scanned; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Where a forecast is off by more, it says so.
FAR = 0.10


@dataclass(frozen=True)
class Row:
    """Calls of a step that are alike, of an operator of ours or of torch.

    name        the operator
    served      whether our operators stand in for these calls where they are applied
    phase       "fwd", "bwd", "optimizer"; of served calls "fwd + bwd" where both are
    shapes      of the tensors that it is given, and dtypes
    calls       in a step
    us          in a step: of the operator itself on a CPU, of its kernels on a GPU
    ceiling_us  the least that a step needs for it, None if unknown
    of          what the ceiling is of: "bandwidth", "products", or why there is none
    """

    name: str
    served: bool
    phase: str
    shapes: str
    calls: float
    us: float
    ceiling_us: float | None = None
    of: str = ""

    @property
    def lost_us(self) -> float | None:
        """Time of a step beyond the ceiling."""
        return None if self.ceiling_us is None else max(0.0, self.us - self.ceiling_us)


@dataclass(frozen=True)
class Time:
    """Microseconds of one call: the median, its 95 % interval; GB/s; why there is no time."""

    us: float | None
    low: float = 0.0
    high: float = 0.0
    gbps: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Served:
    """Calls that our operators stand in for, measured by themselves.

    op, case   as in the suite
    way        "patch" or "enable"
    impl       the implementation that runs there
    calls      in a step
    now_us     of a step, by direction: the median of the profiled steps
    reference  the implementation that is what runs there now: "eager" or "native"
    host_calls operators of torch that are gone, in a step, with those that they called
    times      by direction and implementation, of one call
    factors    by direction: what a call takes in the step over what it takes by itself
    """

    op: str
    case: str
    way: str
    impl: str
    calls: float
    now_us: Mapping[str, float]
    reference: str
    host_calls: float = 0.0
    times: Mapping[str, Mapping[str, Time]] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    lacking: str = ""

    def step_us(self, impl: str, direction: str) -> float | None:
        """Return what a step's calls would take by an implementation, None where unknown."""
        time = self.times.get(direction, {}).get(impl)
        if time is None or time.us is None:
            return None
        return time.us * self.calls * self.factors.get(direction, 1.0)

    @property
    def ours_us(self) -> dict[str, float | None]:
        """What a step's calls would take by ours, by direction."""
        return {direction: self.step_us(self.impl, direction) for direction in self.now_us}

    def saved_us(self, impl: str) -> float:
        """Return what a step saves by an implementation, where that is known."""
        taken = ((now, self.step_us(impl, direction)) for direction, now in self.now_us.items())
        return sum(now - us for now, us in taken if us is not None)


@dataclass(frozen=True)
class Forecast:
    """What a step will take with our operators applied.

    plain_ms    a step now
    device_ms   of it its kernels on a GPU, 0 on a CPU
    host_ms     of it the time until all is launched, 0 on a CPU
    bound       what a step waits for: "kernels", "launches", "operators"
    ms          the step with our operators
    compiled_ms the step if torch.compile made just these calls; None if it was not measured
    """

    plain_ms: float
    device_ms: float
    host_ms: float
    bound: str
    ms: float
    compiled_ms: float | None = None

    @property
    def share(self) -> float:
        """The forecast step over the plain one."""
        return self.ms / self.plain_ms


@dataclass(frozen=True)
class Outcome:
    """What a step took in one process, plain and with our operators applied.

    plain_ms, patched_ms, again_ms  each step: before, with, and after it was taken back
    """

    plain_ms: tuple[float, ...]
    patched_ms: tuple[float, ...]
    again_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Compared:
    """A forecast beside its outcome: medians in ms.

    off     the forecast over the measured step, less 1; the forecast as a share of the plain step
            that was measured beside the patched one
    moved   the plain step then over the one that the forecast began from, less 1
    """

    plain_ms: float
    patched_ms: float
    off: float
    moved: float
    spread: float

    @property
    def speedup(self) -> float:
        return self.plain_ms / self.patched_ms


@dataclass(frozen=True)
class Scan:
    """A scanned script.

    steps       what a step was taken to be, in words
    rest_us     of a step on a CPU: Python, dispatch, autograd, of no operator; on a GPU: the device
                idle
    rows        by time lost, those without a ceiling behind
    disagreement  the largest part by which an operator's time, of those with a hundredth of all or
                more, differs from that of the profiler's own table
    notes       what a reader must know
    raised      how the script failed, or ""
    """

    script: str
    arguments: tuple[str, ...]
    device: str
    steps: str
    step_us: float
    rest_us: float
    rows: tuple[Row, ...] = ()
    served: tuple[Served, ...] = ()
    forecast: Forecast | None = None
    outcome: Outcome | None = None
    compared: Compared | None = None
    disagreement: float = 0.0
    notes: tuple[str, ...] = ()
    raised: str = ""
    ways: tuple[str, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the scan as JSON has it."""
        return asdict(self)
