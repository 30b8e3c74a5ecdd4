"""What of a step's calls our operators stood in for: two traces of a step, held side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from fuselab.scan.traces.trace import FORWARD, Event, is_compiled, operators

OURS = "fuseline::"


@dataclass(frozen=True)
class Replaced:
    """Calls of a step, and ours that came in their place.

    plain     the outermost calls of the forward
    backward  what autograd ran for these
    ours      what ran in their place, without what our operators called in their turn
    way       "patch" or "enable"
    """

    plain: tuple[Event, ...]
    backward: tuple[Event, ...]
    ours: tuple[Event, ...]
    way: str

    def events(self, direction: str) -> Iterator[Event]:
        """Yield all operators of the plain step that are gone, of a direction."""
        yield from operators(self.plain if direction == FORWARD else self.backward)


def replaced(
    plain: Sequence[Event], patched: Sequence[Event], taken: Mapping[str, int]
) -> list[Replaced]:
    """Return what is other in the forward of the patched step.

    taken  calls that `enable` has served, by the operator of ATen
    """
    mine, theirs = outermost(plain), outermost(patched)
    names = served_names(patched, taken)
    nodes = Nodes(plain)
    found: list[Replaced] = []
    gone: list[Event] = []
    for before, after, alike in _blocks(mine, theirs):
        if alike:
            for one, other in zip(before, after, strict=True):
                found += _taken(one, other, names, nodes)
        elif any(map(is_compiled, before)):
            continue  # what of a graph they stand in for cannot be told
        else:
            # What is gone before one of ours came is of it: silu, while the product follows.
            gone += before
            if ours := _called(after):
                found.append(Replaced(tuple(gone), nodes.of(gone), ours, "patch"))
                gone = []
    return found


def _called(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return our operators among the events and below, less what they called in their turn."""
    called = [e for event in events for e in event.whole() if e.name.startswith(OURS)]
    return tuple(e for e in called if not any(a in called for a in e.above()))


def outermost(events: Sequence[Event]) -> list[Event]:
    """Return the operators of the forward that no other called, in order."""
    found: list[Event] = []
    for event in events:
        if event.is_operator:
            found += [event] if event.phase == FORWARD else []
        elif not event.evaluates:
            found += outermost(event.children)
    return found


def served_names(events: Sequence[Event], taken: Mapping[str, int]) -> dict[str, float]:
    """Return which operators of ATen `enable` served, and which share of their calls."""
    called = Counter(event.name.removeprefix("aten::") for event in operators(events))
    return {n: min(1.0, k / called[n]) for n, k in taken.items() if k and called[n]}


class Nodes:
    """Autograd's nodes of a step by the calls of the forward that made them."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._made: dict[int, Event] = {}
        self._run: dict[int, list[Event]] = {}
        for top in events:
            for event in top.whole():
                if event.sequence is None:
                    continue
                if event.evaluates:
                    self._run.setdefault(event.sequence, []).append(event)
                elif event.is_operator and event.phase == FORWARD:
                    # Calls that make no node have the number of the next that does.
                    self._made[event.sequence] = event

    def of(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Return the nodes that these calls, and what they called, made."""
        whole = {id(event) for top in events for event in top.whole()}
        made = [number for number, event in self._made.items() if id(event) in whole]
        return tuple(node for number in made for node in self._run.get(number, ()))


def _taken(
    plain: Event, patched: Event, names: Mapping[str, float], nodes: Nodes
) -> Iterator[Replaced]:
    """Yield the calls of ATen's operators in one of the same name that `enable` served."""
    for ours in operators([patched]):
        name = ours.name.removeprefix("aten::")
        if name in names:
            inside = [e for e in operators([plain]) if e.name == ours.name]
            gone = (inside[0] if inside else plain,)
            yield Replaced(gone, nodes.of(gone), (ours,), "enable")


def _blocks(
    plain: Sequence[Event], patched: Sequence[Event]
) -> Iterator[tuple[Sequence[Event], Sequence[Event], bool]]:
    """Yield what comes after what in both: calls of each, and whether they are alike."""
    mine, theirs = [e.key for e in plain], [e.key for e in patched]
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        yield plain[i:j], patched[k:m], tag == "equal"
