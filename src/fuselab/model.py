"""The records that pass between the lab's stages: frozen, standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

# The timer of `--isolate`: from outside of the implementation's process, on any device.
ISOLATED = "isolated"


class Status(str, Enum):
    """What became of a cell; every status but `ok` and `noisy` has a reason and no number."""

    OK = "ok"
    NOISY = "noisy"
    INCORRECT = "incorrect"
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value

    @property
    def has_number(self) -> bool:
        return self in (Status.OK, Status.NOISY)


@dataclass(frozen=True)
class Group:
    """The unit of work: one case, dtype, layout and direction in all its implementations.

    `source` says where the worker finds the OpSpec: "" for ours, else the path of a user's file;
    `code` stands for the contents of what is measured, "" where that is of no interest;
    `precision` names a level of `fuselab.precision`, `timer` one of the lab's ("" for the
    device's own).
    """

    op: str
    case: str
    dtype: str
    direction: str
    layout: str
    device: str
    impls: tuple[str, ...]
    source: str = ""
    code: str = ""
    precision: str = "standard"
    timer: str = ""

    @property
    def key(self) -> str:
        return "/".join((self.op, self.direction, self.case, self.dtype, self.layout, self.device))

    def cell(self, impl: str) -> Cell:
        return Cell(self.op, impl, self.direction, self.case, self.dtype, self.layout, self.device)

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(self.cell(impl) for impl in self.impls)

    def whole(self, found: Measurement) -> Measurement:
        """Return a measurement with what it owes to the group: code, precision, isolation."""
        proof = replace(found.proof, isolated=True) if self.timer == ISOLATED else found.proof
        return replace(found, code=self.code, precision=self.precision, proof=proof)


@dataclass(frozen=True)
class Cell:
    """One number of the table: an operator, an implementation, a problem, a device."""

    op: str
    impl: str
    direction: str
    case: str
    dtype: str
    layout: str
    device: str

    @property
    def key(self) -> str:
        return "/".join(
            (self.op, self.impl, self.direction, self.case, self.dtype, self.layout, self.device)
        )


# Of outputs; it may be infinite, or not a number.
Error = float


@dataclass(frozen=True)
class Accuracy:
    """Error of one cell's outputs against fp64 (max over outputs or gradients).

    max_abs, rms: absolute. max_ulp: in ULP of the output dtype. eager_ratio: max_abs over eager's.
    max_eps: the error over eps * the largest value of its result, which gradients are judged in.
    """

    max_abs: Error
    rms: Error
    max_ulp: Error
    eager_ratio: Error | None = None
    max_eps: Error | None = None


@dataclass(frozen=True)
class Count:
    """One figure that a counter took of a call, or why there is none.

    source: what counted it. parts: the same by kernel; sums add up to the value, rates do not.
    """

    value: float | None
    unit: str
    source: str
    unavailable: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.unavailable):
            raise ValueError(
                f"value: got {self.value} with unavailable {self.unavailable!r}, "
                "expected a value or a reason"
            )
        if self.value is not None and not (self.source and 0 <= self.value < math.inf):
            raise ValueError(
                f"value: got {self.value} {self.unit} from {self.source!r}, "
                "expected a finite number from a source"
            )


@dataclass(frozen=True)
class Proof:
    """What shows that the named thing ran, and how its numbers came about; None: not known.

    role, version, chosen   who ran: its role, a rival's version, what "auto" took and why
    mix                     streams of a ceiling, as "2R1W"
    kernels, launches       what one call ran, torch's operators on a CPU; how many in all
    steady                  whether every call ran the same
    copies                  layout copies of one call
    graphs, breaks, recompiles  of `compile`: graphs made, graph breaks, compilations while timed
    calls_per_round, batch  timed calls of a round, and how many of them share a sample
    rounds                  how often they were timed
    sets, rotated_bytes     sets of inputs that calls take turns on, and their bytes
    cold                    whether calls found nothing of their inputs in the cache
    timed_calls, checked_calls  with new contents; those whose results were held against fp64
    served                  calls of ATen's operators that our kernels served, by operator
    repeatable              whether equal inputs gave equal results
    sm_mhz, temperature_c   of a GPU after each block: its clock; the highest temperature
    throttle                what held the clock back
    isolated                whether it ran in a process of its own
    processes, medians_us   over how many processes the samples are, and the median of each
    method                  of timing, by a version; of those with another no verdict is given
    """

    role: str | None = None
    version: str | None = None
    chosen: str | None = None
    mix: str | None = None
    kernels: Mapping[str, int] = field(default_factory=dict)
    launches: int | None = None
    steady: bool | None = None
    copies: int | None = None
    graphs: int | None = None
    breaks: int | None = None
    recompiles: int | None = None
    calls_per_round: int | None = None
    batch: int | None = None
    rounds: int | None = None
    sets: int | None = None
    rotated_bytes: int | None = None
    cold: bool | None = None
    timed_calls: int | None = None
    checked_calls: int | None = None
    served: Mapping[str, int] | None = None
    repeatable: bool | None = None
    sm_mhz: tuple[float, ...] = ()
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    isolated: bool | None = None
    processes: int | None = None
    medians_us: tuple[float, ...] = ()
    method: str | None = None

    def known(self) -> dict[str, Any]:
        """Return what is known, by name."""
        unknown = vars(Proof())
        return {name: value for name, value in vars(self).items() if value != unknown[name]}


@dataclass(frozen=True)
class Measurement:
    """What the worker found out about one cell.

    samples_us   run time of one call each, raw (kernel time on a GPU, wall time on a CPU)
    hot_us       the same with the inputs in the cache, raw
    host_us      time the CPU spends per call without waiting for the device, median
    peak_bytes   peak memory of one call above the memory in use before it
    buffer_bytes inputs + outputs + tensors saved for backward
    ideal_bytes  least traffic: each input read once, each output written once
    proof        what shows that the named thing ran
    counts       what the slow counters found, by name
    code, precision  those of the group (`Group.whole`)
    environment  id of the environment it was measured in; the store knows it
    """

    cell: Cell
    status: Status
    reason: str = ""
    timer: str = ""
    samples_us: tuple[float, ...] = ()
    hot_us: tuple[float, ...] = ()
    host_us: float | None = None
    accuracy: Accuracy | None = None
    peak_bytes: int | None = None
    buffer_bytes: int | None = None
    ideal_bytes: int | None = None
    flops: int | None = None
    proof: Proof = field(default_factory=Proof)
    counts: Mapping[str, Count] = field(default_factory=dict)
    code: str = ""
    precision: str = "standard"
    environment: str = ""

    def __post_init__(self) -> None:
        if self.status.has_number and not self.samples_us:
            raise ValueError(f"{self.cell.key}: status {self.status} needs samples")
        if not self.status.has_number and (self.samples_us or self.host_us is not None):
            raise ValueError(f"{self.cell.key}: status {self.status} must not carry a time")
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"{self.cell.key}: status {self.status} needs a reason")
