"""The formula of an operator as nodes in the place of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fuseline.core.inputs.boundary import names
from fuseline.inlining.groups import Group

# What a node's successors must take over: who recomputes it, and where it came from.
_KEPT = ("recompute", "ac_graph_id", "stack_trace", "nn_module_stack", "partitioner_tag", "seq_nr")
Made = tuple[Node, GraphModule, list[Node]]


def inline(group: Group) -> None:
    """Replace all of a group, if its formula has the shapes, dtypes and strides of what it
    replaces.
    """
    made: list[Made] = []
    for node in group.nodes:
        one = _forward(group) if node is group.forward else _backward(group, node)
        if one is None:
            return
        made.append((node, *one))
    # The backwards first: then nothing asks for what the forward saved.
    for node, graph, inputs in reversed(made):
        _insert(node, graph, inputs)


def _forward(group: Group) -> tuple[GraphModule, list[Node]] | None:
    assert group.forward is not None
    likes = _values(group.forward)[: group.contract.returns.count("Tensor")]

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return _tuple(group.formula(*args))

    return _traced(run, group.args, likes)


def _backward(group: Group, node: Node) -> tuple[GraphModule, list[Node]] | None:
    one = group.contract
    outputs = one.returns.count("Tensor")
    dys, likes = node.args[:outputs], _values(node)
    at = [names(one.args).index(name) for name in one.gradients]
    # What is not needed has no elements.
    wanted = [
        i if isinstance(group.args[i], Node) and _shape(group.args[i]) == like.shape else None
        for i, like in zip(at, likes, strict=True)
    ]

    def run(*given: Any) -> Any:
        dys, args = given[:outputs], list(given[outputs:])
        with torch.enable_grad():
            ys = _tuple(group.formula(*args))
            live = [(y, dy) for y, dy in zip(ys, dys, strict=True) if dy is not None]
            leaves = [args[i] for i in wanted if i is not None]
            ends, seeds = [y for y, _ in live], [dy for _, dy in live]
            grads = iter(torch.autograd.grad(ends, leaves, seeds, allow_unused=True))
        none = next(dy for dy in dys if dy is not None)
        return tuple(
            none.new_empty((0,)) if i is None else _or_zeros(next(grads), args[i]) for i in wanted
        )

    needs = [outputs + i for i in wanted if i is not None]
    return _traced(run, (*dys, *group.args), likes, needs)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _traced(
    function: Callable[..., Any],
    args: Sequence[Any],
    likes: Sequence[Tensor],
    needs: Sequence[int] = (),
) -> tuple[GraphModule, list[Node]] | None:
    """Return a graph of function(*args) and the nodes that are its inputs, or None if its results
    are not like `likes`; args[i] of needs are what is differentiated by.
    """
    nodes = [a for a in args if isinstance(a, Node)]
    mode = detect_fake_mode([n.meta["val"] for n in nodes])
    if mode is None:
        return None
    with mode, enable_python_dispatcher(), torch.no_grad():
        fakes = [
            a.meta["val"].detach().requires_grad_(i in needs)
            for i, a in enumerate(args)
            if isinstance(a, Node)
        ]

        def run(*tensors: Tensor) -> Any:
            rest = iter(tensors)
            given = (next(rest) if isinstance(a, Node) else a for a in args)
            results = zip(function(*given), likes, strict=True)
            return tuple(_placed(result, like) for result, like in results)

        graph = make_fx(run, decomposition_table=select_decomp_table())(*fakes)
    results = _results(graph)
    constants = any(n.op == "get_attr" for n in graph.graph.nodes)
    alike = all(_alike(n.meta["val"], like) for n, like in zip(results, likes, strict=True))
    return (graph, nodes) if alike and not constants else None


def _placed(result: Tensor, like: Tensor) -> Tensor:
    return result.contiguous() if like.is_contiguous() else result


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def _insert(node: Node, graph: GraphModule, inputs: list[Node]) -> None:
    """Put the nodes of a graph before a node and let them take its place."""
    places = iter(inputs)
    kept = {key: node.meta[key] for key in _KEPT if key in node.meta}
    at: dict[Node, Node] = {}
    with node.graph.inserting_before(node):
        for one in graph.graph.nodes:
            if one.op == "placeholder":
                at[one] = next(places)
            elif one.op != "output":
                at[one] = node.graph.node_copy(one, lambda n: at[n])
                at[one].meta.update(kept)
    results = [at[one] for one in _results(graph)]
    if isinstance(node.meta["val"], Tensor):
        node.replace_all_uses_with(results[0])
    else:
        for user in [u for u in node.users if u.args[1] < len(results)]:  # type: ignore[operator]
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
            node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)


def _results(graph: GraphModule) -> list[Node]:
    (output,) = (n for n in graph.graph.nodes if n.op == "output")
    return list(output.args[0])


def _values(node: Node) -> tuple[Tensor, ...]:
    return _tuple(node.meta["val"])


def _shape(node: Node) -> Any:
    return node.meta["val"].shape


def _tuple(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, list | tuple) else (made,)
