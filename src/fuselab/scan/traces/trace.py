"""A Chrome trace of torch.profiler as a tree of events with their shapes and times."""

from __future__ import annotations

import gzip
import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselab.planning.plan import PlanError
from fuselab.scan.script.steps import OPTIMIZING

FORWARD, BACKWARD, OPTIMIZER = "fwd", "bwd", "optimizer"
_CPU = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
COMPILED = "## Call CompiledFxGraph"
_EVALUATE = "autograd::engine::evaluate_function"
# Times of a trace are rounded to a nanosecond.
_ROUNDED = 0.002
# Names of a trace for those of torch.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}


@dataclass(frozen=True)
class Array:
    """A tensor of a call: its shape, strides in elements, and torch's name of its dtype."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(eq=False)
class Event:
    """Something that ran on a thread of the CPU, with what it launched on a GPU.

    us        from its begin to its end
    self_us   of these none of its children ran
    device_us of the kernels that it launched itself
    kernels   names and us of these
    """

    name: str
    category: str
    begin: float
    us: float
    thread: Any
    args: Mapping[str, Any]
    parent: Event | None = None
    children: list[Event] = field(default_factory=list)
    kernels: list[tuple[str, float]] = field(default_factory=list)

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator of torch's dispatcher, or a graph that a compiler made."""
        if is_compiled(self):
            return True
        named = "::" in self.name and not self.name.startswith(("autograd::", "torch::"))
        return named and self.category == "cpu_op"

    @property
    def self_us(self) -> float:
        return max(0.0, self.us - sum(child.us for child in self.children))

    @property
    def device_us(self) -> float:
        return sum(us for _, us in self.kernels)

    @property
    def sequence(self) -> int | None:
        """The number by which autograd's node of a backward knows its forward."""
        found = self.args.get("Sequence number")
        return None if found is None or found < 0 else int(found)

    @property
    def phase(self) -> str:
        """FORWARD, BACKWARD or OPTIMIZER."""
        for event in (self, *self.above()):
            if event.name.startswith(_EVALUATE):
                return BACKWARD
            if event.name == OPTIMIZING or event.name.startswith("Optimizer.step#"):
                return OPTIMIZER
        return FORWARD

    @property
    def evaluates(self) -> bool:
        """Whether it is a node of a backward."""
        return self.name.startswith(_EVALUATE)

    def above(self) -> Iterator[Event]:
        """Yield what it ran in, from the inside out."""
        event = self.parent
        while event is not None:
            yield event
            event = event.parent

    def whole(self) -> Iterator[Event]:
        """Yield it and all that ran in it, in order."""
        yield self
        for child in self.children:
            yield from child.whole()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Its arguments in order: Array, a list of these, a Python value, or None."""
        names = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
        lists = [self.args.get(name, ()) for name in names]
        return tuple(map(_argument, *_filled(lists)))

    @property
    def key(self) -> tuple[Any, ...]:
        """Its name and the shapes and types of its inputs."""
        name = COMPILED if is_compiled(self) else self.name
        return name, _frozen(self.args.get("Input Dims")), _frozen(self.args.get("Input type"))


def load(path: str | Path) -> list[Event]:
    """Return the outermost events of a trace, in order; a file may be compressed.

    Raises PlanError for a file that is no Chrome trace.
    """
    raw = Path(path).read_bytes()
    try:
        whole = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        listed = whole["traceEvents"] if isinstance(whole, dict) else whole
        return _tree([e for e in listed if e.get("ph") == "X"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"{path}: expected a Chrome trace of torch.profiler, {error}") from error


def is_compiled(event: Event) -> bool:
    """Return whether it is a graph that torch.compile made."""
    return event.name.startswith(COMPILED)


def operators(events: Sequence[Event]) -> Iterator[Event]:
    """Yield all operators among the events and below, in order."""
    for top in events:
        yield from (event for event in top.whole() if event.is_operator)


def _tree(listed: Sequence[Mapping[str, Any]]) -> list[Event]:
    mine = [e for e in listed if e.get("cat") in _CPU]
    mine.sort(key=lambda e: (str(e.get("tid")), e["ts"], -e["dur"]))
    tops: list[Event] = []
    launches: dict[Any, Event] = {}  # by the number of the launch, and of the event around it
    within: list[Event] = []
    for e in mine:
        event = Event(
            *(e["name"], e["cat"], float(e["ts"]), float(e["dur"]), e.get("tid")), e.get("args", {})
        )
        while within and not _in(event, within[-1]):
            within.pop()
        holder = within[-1] if within else None
        if e["cat"].startswith("cuda_"):
            # What launches, of which the time is its operator's.
            launches[event.args.get("correlation")] = holder or event
            if holder is None:
                tops.append(event)
            continue
        if "External id" in event.args:
            launches["within", event.args["External id"]] = event
        event.parent = holder
        (holder.children if holder else tops).append(event)
        within.append(event)
    for e in listed:
        if e.get("cat") in _DEVICE:
            _give(e, launches, tops)
    return sorted(tops, key=lambda event: event.begin)


def _in(event: Event, outer: Event) -> bool:
    ends = outer.begin + outer.us + _ROUNDED
    return event.thread == outer.thread and event.begin + event.us <= ends


def _give(e: Mapping[str, Any], launches: Mapping[Any, Event], tops: list[Event]) -> None:
    """Give what ran on a GPU to the event that launched it."""
    args = e.get("args", {})
    launched = launches.get(args.get("correlation"))
    if launched is None or launched.category.startswith("cuda_"):
        launched = launches.get(("within", args.get("External id")), launched)
    if launched is None:
        launched = Event(e["name"], "launch", float(e["ts"]), 0.0, None, {})
        tops.append(launched)
    launched.kernels.append((e["name"], float(e["dur"])))


def _filled(lists: Sequence[Sequence[Any]]) -> list[list[Any]]:
    most = max(map(len, lists))
    return [[*one, *[""] * (most - len(one))] for one in lists]


def _argument(dims: Any, strides: Any, kind: str, concrete: str) -> Any:
    if kind in DTYPES:
        return Array(tuple(dims), tuple(strides or dense(dims)), DTYPES[kind])
    if kind == "TensorList":
        return [Array(tuple(d), tuple(s), "") for d, s in zip(dims, strides, strict=False)]
    return value_of(concrete)


def value_of(text: str) -> Any:
    """Return the value that a trace has as text; None for none, or one that it leaves out."""
    if text in ("", "None"):
        return None
    try:
        return literal_eval({"inf": "1e999", "-inf": "-1e999"}.get(text, text))
    except (ValueError, SyntaxError):
        return text


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return tuple(reversed(strides))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value
