"""One implementation's way through one group: made, checked, timed, weighed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from fuselab.model import Accuracy, Cell, Measurement, Proof, Status
from fuselab.timers import Call, Reading
from fuselab.worker.implementations.baselines import CompileWatch
from fuselab.worker.implementations.enabled import Takeover
from fuseline.core.specs.spec import Cost


@dataclass
class Trial:
    """What is known so far; a `status` ends the trial.

    fn          the implementation; None for the lab's own copies
    around      what must be open while it is called
    make_calls  count, sets -> that many calls over so many input sets
    call_us     rough time of one call, for the planning of the rounds
    call_bytes  rough memory that one prepared call holds, with its graph and its result
    """

    cell: Cell
    make_calls: Callable[[int, int], list[Call]]
    cost: Cost
    fn: Callable[..., Any] | None = None
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
    accuracy: Accuracy | None = None
    compiling: CompileWatch = field(default_factory=CompileWatch)
    recompiling: CompileWatch = field(default_factory=CompileWatch)
    call_us: float = 0.0
    call_bytes: int = 0
    peak_bytes: int | None = None
    buffer_bytes: int | None = None
    host_us: float | None = None
    proof: Proof = field(default_factory=Proof)
    status: Status | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.cell.impl

    @property
    def alive(self) -> bool:
        return self.status is None

    def fail(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason

    def note_served(self) -> None:
        """Add to the proof the calls of ATen's operators that were served in the last opening."""
        if isinstance(self.around, Takeover):
            served = Counter(self.proof.served or {})
            served.update(self.around.served)
            self.proof = replace(self.proof, served=dict(served))

    def measurement(
        self, timer: str, reading: Reading | None, hot_us: tuple[float, ...], disturbance: str
    ) -> Measurement:
        """Return the record of the trial; its numbers are noisy if something disturbed them."""
        known: dict[str, Any] = {
            "cell": self.cell,
            "accuracy": self.accuracy,
            "ideal_bytes": self.cost.bytes,
            "flops": self.cost.flops or None,
            "proof": self.proof,
        }
        if self.status is not None or reading is None:
            status = self.status or Status.INVALID
            return Measurement(status=status, reason=self.reason or "never timed", **known)
        return Measurement(
            status=Status.NOISY if disturbance else Status.OK,
            reason="; ".join(filter(None, (self.reason, disturbance))),
            timer=timer,
            samples_us=reading.samples_us,
            hot_us=hot_us,
            # A call on a CPU returns when it is done, so the host is busy all the time.
            host_us=median(reading.samples_us) if timer == "wall" else self.host_us,
            peak_bytes=self.peak_bytes,
            buffer_bytes=self.buffer_bytes,
            **known,
        )
