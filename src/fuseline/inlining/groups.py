"""Operators of ours in a graph: each forward with the backwards that use what it saved."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from fuseline.core.inputs.boundary import names
from fuseline.core.registration import contract
from fuseline.core.registration.contract import Contract

aten = torch.ops.aten
_SAME = (aten.alias.default, aten.detach.default)
_VIEWS = (
    *_SAME,
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default),
    *(aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim, aten.t.default),
    *(aten.transpose.int, operator.getitem),
)
_CASTS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)


@dataclass
class Group:
    """A forward and the backwards of it, which are replaced together or not at all.

    formula    what impl="eager" runs
    forward    None: a backward that needs nothing but arguments of the forward
    backwards  of a graph for training, else none
    """

    contract: Contract
    formula: Callable[..., Any]
    forward: Node | None
    backwards: list[Node] = field(default_factory=list)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the forward, all of its schema's, as the graph is now."""
        if self.forward is not None:
            return _complete(self.forward)
        (node,) = self.backwards
        has = dict(zip(names(self.contract.bwd_args), _complete(node), strict=True))
        return tuple(has[name] for name in names(self.contract.args))

    @property
    def nodes(self) -> list[Node]:
        return ([self.forward] if self.forward else []) + self.backwards

    @property
    def training(self) -> bool:
        """Whether a gradient is computed."""
        alone = self.forward is not None and not _name(self.forward).endswith("_fwd")
        return bool(self.backwards) or not alone

    @property
    def neighbour(self) -> bool:
        """Whether Inductor would fuse something with what takes the nodes' place."""
        around = [n for node in self.nodes for n in (*node.all_input_nodes, *node.users)]
        return any(map(_fuses, _through_views(around)))


def groups(graph: Graph) -> list[Group]:
    """Return those that can be replaced, in the order of the graph."""
    forwards: dict[Node, Group] = {}
    alone: list[Group] = []
    for node in graph.nodes:
        found = _ours(node)
        if found is None:
            continue
        one, formula, is_backward = found
        if not is_backward:
            forwards[node] = Group(one, formula, node)
        elif (source := _forward_of(node, one, forwards)) is not None:
            forwards[source].backwards.append(node)
        elif set(names(one.args)) <= set(names(one.bwd_args)):
            alone.append(Group(one, formula, None, [node]))
    return [group for group in (*forwards.values(), *alone) if _can_go(group)]


def _ours(node: Node) -> tuple[Contract, Callable[..., Any], bool] | None:
    """Return contract and formula of an operator of the binary, and whether it is the backward."""
    name = _name(node)
    stem = name.removeprefix("_").removesuffix("_fwd").removesuffix("_bwd")
    one, formula = contract.registered.get(stem, (None, None))
    if one is None or formula is None or not one.gradients:
        return None
    return one, formula, name.endswith("_bwd")


def _name(node: Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != contract.NAMESPACE:
        return ""
    return target._schema.name.partition("::")[2]


def _complete(node: Node) -> tuple[Any, ...]:
    """Return the arguments with the schema's defaults, which graphs leave out."""
    assert isinstance(node.target, torch._ops.OpOverload)
    rest = node.target._schema.arguments[len(node.args) :]
    return (*node.args, *(a.default_value for a in rest))


def _forward_of(node: Node, one: Contract, forwards: dict[Node, Group]) -> Node | None:
    """Return the forward that saved an argument of a backward."""
    for arg in node.all_input_nodes:
        source = arg
        while source.target in (*_SAME, operator.getitem):
            source = source.all_input_nodes[0]
        if source in forwards and forwards[source].contract is one:
            return source
    return None


def _can_go(group: Group) -> bool:
    """Whether all is tensors and numbers known now, and nothing else needs what was saved."""
    given = [a for a in group.args if isinstance(a, Node)]
    if not all(isinstance(a.meta.get("val"), torch.Tensor) for a in given):
        return False
    outputs = group.contract.returns.count("Tensor")
    saved = [] if group.forward is None else [
        user
        for user in group.forward.users
        if user.target is operator.getitem and user.args[1] >= outputs  # type: ignore[operator]
    ]  # fmt: skip
    return all(user in group.backwards for user in _through(saved, _SAME))


def _through(nodes: list[Node], targets: tuple[Any, ...]) -> Iterator[Node]:
    """Return the users of nodes, past operators that are among targets."""
    for node in nodes:
        for user in node.users:
            if user.target in targets:
                yield from _through([user], targets)
            else:
                yield user


def _through_views(nodes: list[Node]) -> Iterator[Node]:
    """Return nodes and, past views, what they come from and what uses them."""
    for node in nodes:
        yield node
        if node.target in _VIEWS:
            yield from _through([node], _VIEWS)
            yield from node.all_input_nodes


def _fuses(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or target in _CASTS
