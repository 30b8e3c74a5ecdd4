"""The records that pass between the lab's stages: frozen, standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Accuracy:
    """Error of one cell's outputs against fp64 (max over outputs or gradients).

    max_abs, rms: absolute. max_ulp: in ULP of the output dtype. eager_ratio: max_abs over eager's.
    max_eps: the error over eps * the largest value of its result, which gradients are judged in.
    """

    max_abs: float
    rms: float
    max_ulp: float
    eager_ratio: float | None = None
    max_eps: float | None = None


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
class Measurement:
    """What the worker found out about one cell.

    samples_us   run time of one call each, raw (kernel time on a GPU, wall time on a CPU)
    hot_us       the same with the inputs in the cache, raw
    host_us      time the CPU spends per call without waiting for the device, median
    peak_bytes   peak memory of one call above the memory in use before it
    buffer_bytes inputs + outputs + tensors saved for backward
    ideal_bytes  least traffic: each input read once, each output written once
    proof        what shows that the named thing ran: kernels, graphs, breaks, recompiles, copies
    counts       what the slow counters found, by name
    code, precision  those of the group
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
    proof: Mapping[str, Any] = field(default_factory=dict)
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
