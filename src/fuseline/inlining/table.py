"""Where the formula was measured to be faster in a compiled graph than our operator."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from torch import Tensor
from torch.fx import Node

from fuseline.core.selection import rules
from fuseline.core.selection.rules import DTYPE, Fact, Rules
from fuseline.inlining.groups import Group

FOLDER = "inlining"
IMPL = "eager"


class Call(NamedTuple):
    """What rules may ask of a group: its first tensor, and whether something fuses with it."""

    x: Tensor
    neighbour: bool


def _columns(call: Call) -> int:
    return call.x.shape[-1] if call.x.dim() else 1


def _bytes(call: Call) -> int:
    return call.x.numel() * call.x.element_size()


FACTS = {
    DTYPE: Fact(lambda call: call.x.dtype),
    "columns": Fact(_columns, tuple(1 << k for k in range(4, 19, 2))),
    "bytes": Fact(_bytes, tuple(1 << k for k in range(12, 32, 4))),
    "neighbour": Fact(lambda call: call.neighbour),
}


def says(group: Group) -> bool:
    """Return whether a group is to be replaced: whether a rule fits."""
    x = next(a.meta["val"] for a in group.args if isinstance(a, Node))
    direction = "bwd" if group.training else "fwd"
    mine = _rules(group.contract.name, x.device.type).of(direction)
    call = Call(x, group.neighbour)
    return any(rule.misfit(FACTS, call) is None for rule in mine if not rule.bad)


@cache
def _rules(op: str, device_type: str) -> Rules:
    return rules.find(op, rules.machine(device_type), FACTS, (IMPL,), FOLDER)
