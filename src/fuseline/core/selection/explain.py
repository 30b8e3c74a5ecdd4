"""explain_choice: which implementation "auto" takes for a call, and why no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseline.core.selection.rules import Rule, Rules
from fuseline.core.selection.select import Selector, asked
from fuseline.core.selection.tuned import DIRECTIONS

_WORDS = {"fwd": "forward", "bwd": "backward"}


@dataclass(frozen=True)
class Direction:
    """What runs in one direction.

    impl    the implementation
    why     what chose it: a rule with its evidence, or the order
    others  (name, why not) of the others, in order
    """

    impl: str
    why: str
    others: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Explanation:
    """What explain_choice() returns; str() of it is a text.

    machine  whose rules were asked: "sm_90", "cpu"
    rules    the files that they come from; none: the order alone decides
    """

    op: str
    machine: str
    rules: tuple[Path, ...]
    fwd: Direction
    bwd: Direction

    def __str__(self) -> str:
        source = ", ".join(map(str, self.rules)) or "none, so the order decides"
        lines = [f"{self.op} on {self.machine}; rules: {source}"]
        for name in DIRECTIONS:
            one: Direction = getattr(self, name)
            lines.append(f"{_WORDS[name]}: {one.impl}, {one.why}")
            lines += [f"  not {other}: {why}" for other, why in one.others]
        return "\n".join(lines)


def explain_choice(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Return which implementations `impl="auto"` takes for op(*args, **kwargs), and why no others.

    op  a public function of fuseline, such as fuseline.layer_norm; arguments as it takes them, but
        for impl. Nothing is computed.

    The forward and the backward of one call may be those of different implementations: what is
    saved between them belongs to the operator. Raises what the call would raise of bad arguments;
    TypeError (op) for other functions.
    """
    told = asked(op, *args, **kwargs)
    return _explained(told.selector, told.call)


def _explained(selector: Selector, args: tuple[Any, ...]) -> Explanation:
    device_type = args[0].device.type
    rules = selector.rules(device_type)
    fwd, bwd = (_direction(selector, d, device_type, rules, args) for d in DIRECTIONS)
    return Explanation(selector.op, rules.machine, rules.source, fwd, bwd)


def _direction(
    selector: Selector, direction: str, device_type: str, rules: Rules, args: tuple[Any, ...]
) -> Direction:
    pick = selector.pick(direction, device_type)
    impl = pick if isinstance(pick, str) else pick(*args)
    told = [rule for rule in rules.of(direction) if not rule.bad]
    misfits = [_misfit(selector, rule, args) for rule in told]
    fitting = next((rule for rule, why in zip(told, misfits, strict=True) if why is None), None)
    if fitting and impl in fitting.impl:
        why = f"by the rule {fitting}"
    elif impl == selector.names[-1]:
        why = "since no other can"
    else:
        why = f"the first in order that can ({', '.join(c.name for c in selector.order)})"

    def against(name: str) -> str:
        reason = selector.refusal(name, direction, device_type, *args)
        if reason is not None:
            return reason
        if not selector.choice(name).by_rule:
            return f"it comes after {impl}"
        mine = [m for rule, m in zip(told, misfits, strict=True) if name in rule.impl and m]
        return "; ".join(mine) or "no rule names it"

    others = tuple((name, against(name)) for name in selector.names if name != impl)
    return Direction(impl, why, others)


def _misfit(selector: Selector, rule: Rule, args: tuple[Any, ...]) -> str | None:
    assert selector.auto is not None
    return rule.misfit(selector.auto.facts, *args)
