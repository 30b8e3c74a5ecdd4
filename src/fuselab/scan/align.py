"""What of a step's calls our operators stood in for: two traces of a step, held side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuselab.scan.trace import FORWARD, Event, is_compiled, operators

OURS = "fuseline::"
# So many calls alike say that both traces are at the same place again.
ALIKE = 3
# How far that is looked for.
WINDOW = 400


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
    for ours, pairs in _blocks(mine, theirs):
        if isinstance(pairs, Event):
            found += _taken(pairs, ours[0], names, nodes)
        elif any(is_compiled(event) for event in pairs):
            continue  # what of a graph they stand in for cannot be told
        elif called := [e for event in ours for e in event.whole() if e.name.startswith(OURS)]:
            outer = tuple(e for e in called if not any(a in called for a in e.above()))
            found.append(Replaced(tuple(pairs), nodes.of(pairs), outer, "patch"))
    return found


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
) -> Iterator[tuple[Sequence[Event], Event | Sequence[Event]]]:
    """Yield calls that both have ([patched], plain), and what comes between ([...], [...])."""
    mine, theirs = [e.key for e in plain], [e.key for e in patched]
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if mine[i] == theirs[j]:
            yield [patched[j]], plain[i]
            i, j = i + 1, j + 1
            continue
        skip, skipped = _meet(mine[i : i + WINDOW], theirs[j : j + WINDOW])
        yield patched[j : j + skipped], plain[i : i + skip]
        i, j = i + skip, j + skipped
    if i < len(mine) or j < len(theirs):
        yield patched[j:], plain[i:]


def _meet(mine: Sequence[object], theirs: Sequence[object]) -> tuple[int, int]:
    """Return how many of each come before both are alike again, the fewest in all."""
    for total in range(1, len(mine) + len(theirs)):
        for skip in range(max(0, total - len(theirs)), min(total, len(mine)) + 1):
            a, b = mine[skip : skip + ALIKE], theirs[total - skip : total - skip + ALIKE]
            if a and a == b:
                return skip, total - skip
    return len(mine), len(theirs)
