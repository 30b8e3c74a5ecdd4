"""From traces of plain steps, and of one that is patched, to rows and to calls to measure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from statistics import median
from typing import Any

from fuselab.scan import costs
from fuselab.scan.costs import Rates
from fuselab.scan.record import Row, Served
from fuselab.scan.traces import calls
from fuselab.scan.traces.align import Nodes, Replaced, replaced
from fuselab.scan.traces.trace import FORWARD, Array, Event, is_compiled, operators
from fuselab.worker.operators.recorded import Recorded
from fuseline import table
from fuseline.core.specs.spec import Direction

BWD: Direction = "bwd"
FWD: Direction = "fwd"
# Our operators, called by their names: nothing applies them.
BY_NAME = "call"
EAGER, NATIVE = "eager", "native"
_NAMED = 4  # shapes of a row

Trace = Sequence[Event]


@dataclass
class Found:
    """Served calls that are alike: sums over the steps, and times of each step by direction."""

    call: Recorded | str
    way: str
    impl: str
    reference: str
    calls: float = 0.0
    host_calls: float = 0.0
    now_us: dict[str, dict[int, float]] = field(default_factory=dict)


def on_gpu(steps: Sequence[Trace]) -> bool:
    """Return whether the steps ran kernels on a GPU."""
    return any(event.kernels for step in steps for top in step for event in top.whole())


def us_of(gpu: bool) -> Callable[[Event], float]:
    """Return what an operator takes: its kernels' time, or its own on a CPU."""
    return (lambda event: event.device_us) if gpu else (lambda event: event.self_us)


class Ranking:
    """Plain steps and a patched one, as rows and as calls that are served.

    taken       calls that `enable` served in the patched step, by operator of ATen
    list_dtype  of the tensors in lists, as optimizers take them; "" if unknown
    """

    def __init__(
        self,
        steps: Sequence[Trace],
        patched: Trace | None,
        taken: Mapping[str, int],
        rates: Rates,
        list_dtype: str = "",
    ) -> None:
        self.gpu = on_gpu(steps)
        self._us, self._rates, self._list_dtype = us_of(self.gpu), rates, list_dtype
        self._steps, self._device = steps, "cuda" if self.gpu else "cpu"
        self._gone: set[int] = set()
        self._found: dict[Any, Found] = {}
        for self._step, step in enumerate(steps):
            if patched is not None:
                for one in replaced(step, patched, taken):
                    self._serve(one)
            self._by_name(step)
        self.operators = sum(1 for step in steps for _ in operators(step)) / max(1, len(steps))

    @property
    def compiled(self) -> bool:
        """Whether graphs that torch.compile made are among the operators."""
        return any(is_compiled(e) for step in self._steps for e in operators(step))

    @property
    def busy_us(self) -> float:
        """Return the time of all operators of a step."""
        events = (e for step in self._steps for top in step for e in top.whole())
        if self.gpu:
            return sum(e.device_us for e in events) / len(self._steps)
        return sum(e.self_us for e in events if e.is_operator) / max(1, len(self._steps))

    def disagreement(self, tables: Sequence[Mapping[str, Sequence[float]]]) -> float:
        """Return the largest part by which the time of an operator differs from the profiler's.

        tables  of each step, CPU and device us by operator; of operators with a hundredth of all
        """
        mine: dict[str, float] = defaultdict(float)
        for event in (e for step in self._steps for e in operators(step)):
            mine[event.name] += self._us(event)
        theirs: dict[str, float] = defaultdict(float)
        for name, times in ((n, times) for table_ in tables for n, times in table_.items()):
            theirs[name] += times[self.gpu]
        least = sum(mine.values()) / 100
        large = [(us, theirs[name]) for name, us in mine.items() if max(us, theirs[name]) > least]
        return max((abs(us - other) / max(us, other) for us, other in large), default=0.0)

    def served(self) -> tuple[Served, ...]:
        """Return what is served, the longest first."""
        n, named = len(self._steps), self._cases()
        found = [
            Served(
                *_place(one.call, named),
                one.way,
                one.impl,
                one.calls / n,
                {d: self._median(us) for d, us in one.now_us.items()},
                one.reference,
                one.host_calls / n,
                lacking=one.call if isinstance(one.call, str) else "",
            )
            for one in self._found.values()
        ]
        return tuple(sorted(found, key=lambda s: -sum(s.now_us.values())))

    def suite(self) -> tuple[Recorded, ...]:
        """Return the calls with their counts, as cases."""
        return tuple(self._cases().values())

    def rows(self) -> tuple[Row, ...]:
        """Return all rows, by time lost; those whose ceiling is unknown come behind, by time."""
        rows = [*self._served_rows(), *self._other_rows()]
        return tuple(sorted(rows, key=lambda r: (r.lost_us is None, -(r.lost_us or 0.0), -r.us)))

    def _serve(self, one: Replaced) -> None:
        weights = [_weight(event) for event in one.ours]
        for event, weight in zip(one.ours, weights, strict=True):
            share = weight / sum(weights)
            self._add(event, share, one)
        for direction in (FWD, BWD):
            self._gone.update(map(id, one.events(direction)))

    def _add(self, event: Event, share: float, one: Replaced) -> None:
        call = calls.call_of(event)
        if isinstance(call, Recorded) and one.backward:
            call = replace(call, directions=(FWD, BWD))
        impl = calls.implementation(event, self._device)
        reference = _reference(call, one.plain)
        key = one.way, impl, reference, repr(call)
        found = self._found.setdefault(key, Found(call, one.way, impl, reference))
        found.calls += 1
        for direction in (FWD, BWD):
            events = list(one.events(direction))
            if events:
                of_steps = found.now_us.setdefault(direction, defaultdict(float))
                of_steps[self._step] += share * sum(map(self._us, events))
                found.host_calls += share * len(events)

    def _by_name(self, step: Trace) -> None:
        """Add calls of ATen's that are among our operators and that nothing of ours serves."""
        nodes = Nodes(step)
        for event in _outermost_known(step):
            served = any(id(e) in self._gone for e in event.whole())
            if not served and event.phase == FORWARD and isinstance(calls.call_of(event), Recorded):
                self._add(event, 1.0, Replaced((event,), nodes.of([event]), (event,), BY_NAME))

    def _median(self, of_steps: Mapping[int, float]) -> float:
        return median(of_steps.get(i, 0.0) for i in range(len(self._steps)))

    def _cases(self) -> dict[str, Recorded]:
        """Return the calls under names of their own, by what they are."""
        n = len(self._steps)
        mine = [
            replace(one.call, count=one.calls / n)
            for one in self._found.values()
            if isinstance(one.call, Recorded)
        ]
        return {identity(call): call for call in calls.merged(mine)}

    def _served_rows(self) -> Iterator[Row]:
        n = len(self._steps)
        for one in self._found.values():
            if one.way == BY_NAME:
                continue
            least, of = self._least(one)
            name = one.call.op if isinstance(one.call, Recorded) else one.call.partition(":")[0]
            shapes = one.call.name if isinstance(one.call, Recorded) else ""
            phases = " + ".join(one.now_us)
            us = sum(sum(of_steps.values()) for of_steps in one.now_us.values()) / n
            yield Row(name, True, phases, shapes, one.calls / n, us, least and least / n, of)

    def _least(self, one: Found) -> tuple[float | None, str]:
        if isinstance(one.call, str):
            return None, one.call
        total, of = 0.0, ""
        for direction in (FWD, BWD):
            if direction in one.now_us:
                cost = costs.of_call(one.call, direction)
                found = self._rates.ceiling(cost, one.call.dtype)
                if found is None:
                    return None, "no formula" if self._rates.known else "no measured bandwidth"
                total, of = total + found.us * one.calls, found.of
        return total, of

    def _other_rows(self) -> Iterator[Row]:
        groups: dict[Any, list[Event]] = defaultdict(list)
        for step in self._steps:
            for event in operators(step):
                if id(event) not in self._gone and self._us(event) > 0:
                    groups[event.key, event.phase].append(event)
        groups_of_kernels: dict[str, list[Event]] = defaultdict(list)
        if self.gpu:
            for step in self._steps:
                for top in step:
                    for event in top.whole():
                        if event.kernels and not event.is_operator:
                            groups_of_kernels[event.kernels[0][0]].append(event)
        for events in groups.values():
            yield self._row(events)
        for name, events in groups_of_kernels.items():
            us = sum(map(self._us, events)) / len(self._steps)
            yield Row(name, False, events[0].phase, "", len(events) / len(self._steps), us)

    def _row(self, events: Sequence[Event]) -> Row:
        first, n = events[0], len(self._steps)
        us = sum(map(self._us, events)) / n
        name = "compiled graph" if is_compiled(first) else first.name
        known = costs.of_event(first, self._list_dtype)
        ceiling = None if known is None else self._rates.ceiling(*known)
        least = None if ceiling is None else ceiling.us * len(events) / n
        of = "unknown" if ceiling is None else ceiling.of
        return Row(name, False, first.phase, shapes(first), len(events) / n, us, least, of)


def shapes(event: Event) -> str:
    """Return the shapes and dtypes of an operator's tensors on one line."""
    found = [
        f"{'x'.join(map(str, a.shape)) or 'scalar'}-{calls.SHORT.get(a.dtype, a.dtype)}"
        for a in event.arguments
        if isinstance(a, Array)
    ]
    found += [f"{len(a)} tensors" for a in event.arguments if isinstance(a, list) and a]
    more = ["..."] if len(found) > _NAMED else []
    return " ".join([*found[:_NAMED], *more])


def _outermost_known(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        if event.name in calls.ATEN:
            yield event
        elif not event.evaluates:
            yield from _outermost_known(event.children)


def _reference(call: Recorded | str, plain: Sequence[Event]) -> str:
    """Return which implementation of an operator is what the script calls now."""
    roles = () if isinstance(call, str) else table.load()[call.op].implementations
    native = any(impl.name == NATIVE for impl in roles)
    return NATIVE if native and len(plain) == 1 and plain[0].name in calls.ATEN else EAGER


def _weight(event: Event) -> float:
    arrays = (a for a in event.arguments if isinstance(a, Array))
    return float(max((prod(a.shape) for a in arrays), default=1) or 1)


def identity(call: Recorded) -> str:
    """Return what calls that are alike have in common."""
    return f"{call.op} {sorted(call.inputs.items())!r}"


def _place(call: Recorded | str, named: Mapping[str, Recorded]) -> tuple[str, str]:
    if isinstance(call, str):
        return call.partition(":")[0], ""
    return call.op, named[identity(call)].name
