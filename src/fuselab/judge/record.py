"""What is known of a pair when it has been judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from fuselab.model import Measurement
from fuselab.statistics import stats

EAGER, COMPILE, SOLUTION = "eager", "compile", "solution"
# What a solution is seen to do, by name.
MEANING = {
    "input": "returns its input",
    "constant": "gives the same result for other inputs",
    "seeds": "is wrong, but for what get_inputs() draws under a usual seed",
    "address": "gives the old result for new contents at an address that it knows",
    "later": "is right at first and wrong later",
    "unwritten": "returns memory that it did not write",
    "precision": "computes in a lower precision than its dtype",
    "overwrites": "writes to its input",
    "lazy": "returns no plain tensor: that may compute when it is read",
    "replaced": "replaces functions of Python or torch",
    "model": "calls Model of the problem's file",
    "native": "runs the same operators of torch as Model, as often",
    "catches": "catches exceptions where it computes: what fails there would not be noticed",
    "rewritten": "writes to the files that are judged",
    "writes": "writes to files",
    "looks": "looks at the interpreter's frames or objects",
    "threads": "leaves threads running",
    "processes": "leaves processes running",
    "configures": "changes how torch.compile compiles, Model's baseline too",
    "values": "is right on values of get_inputs(), wrong on normal numbers",
    "weights": "does not follow when the weights change",
    "clocks": "is faster by the clock in its process than by one outside",
    "noisy": "its times are doubtful",
    "untimed": "could not be timed from outside of its process",
    "constants": "get_inputs() returns constants: the lab drew other values",
    "weak": "Model's results hardly depend on its inputs: a constant would pass",
}
# A solution that does one of these gets no time, whatever its results.
REFUSED = ("address", "later", "overwrites", "lazy", "replaced", "rewritten")


class Outcome(str, Enum):
    """right: timed; refused: no time, reasons say why; unjudged: the problem is at fault."""

    RIGHT = "right"
    REFUSED = "refused"
    UNJUDGED = "unjudged"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """What was seen of a pair: a name of MEANING, and what more there is to say."""

    name: str
    text: str = ""

    def __str__(self) -> str:
        return f"{MEANING[self.name]}: {self.text}" if self.text else MEANING[self.name]


@dataclass(frozen=True)
class Time:
    """Microseconds of one call: the median, its 95 % interval; how many samples."""

    us: float
    low: float
    high: float
    samples: int
    timer: str

    @classmethod
    def of(cls, measured: Measurement) -> Time:
        """Return the time of a measurement that has one."""
        low, high = stats.interval(measured.samples_us)
        middle = stats.median(measured.samples_us)
        return cls(middle, low, high, len(measured.samples_us), measured.timer)


@dataclass(frozen=True)
class Speedup:
    """How many times faster than a baseline: the ratio of medians, its 95 % interval."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, solution: Measurement, baseline: Measurement) -> Speedup:
        """Return the baseline's time over the solution's."""
        mine, theirs = solution.samples_us, baseline.samples_us
        low, high = stats.ratio_interval(mine, theirs)
        return cls(stats.median(theirs) / stats.median(mine), low, high)


@dataclass(frozen=True)
class Verdict:
    """What became of a pair.

    reasons   why it was refused or could not be judged
    warnings  what a reader must know of it beside that
    runs      what a call of the solution runs: "native", "compiled" or "own"
    times     of the baselines and the solution, in one process, interleaved, by the device's timer
    alone     of Model and the solution, each in a process of its own, from outside
    speedups  over the baselines, of `times`
    lacking   baselines without a time, and why
    error     of the solution against fp64, in eps of the largest value of its result
    """

    name: str
    problem: str
    solution: str
    device: str
    outcome: Outcome
    dtype: str = ""
    reasons: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()
    runs: str = ""
    operators: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, Time] = field(default_factory=dict)
    alone: Mapping[str, Time] = field(default_factory=dict)
    speedups: Mapping[str, Speedup] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    error: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the warnings."""
        return tuple(finding.name for finding in self.warnings)

    def to_record(self) -> dict[str, Any]:
        """Return the verdict as JSON has it, each warning with its sentence."""
        said = [{"name": f.name, "text": str(f)} for f in self.warnings]
        return asdict(self) | {"outcome": str(self.outcome), "warnings": said}
