"""What Inductor's scheduler made of a graph: kernels, their bytes, and pairs it kept apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch._inductor.virtualized import V

from fuselab.fusion.record import COMPILED, EXTERN, Kernel, Unfused

SILENT = "the backend refused and gives no reason"
# The two causes that OuterLoopFusedSchedulerNode.check_outer_fusion_loop_level_attr knows.
SPLIT = "fused by the scheduler, split by the C++ code generator (outer loops that differ, or few)"
# The scheduler asks both ways round; this is only the answer to the second.
ORDER = "node1 must go before node2"
PLACES = 3
_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)\n\s*(.+)')


@dataclass(frozen=True)
class Refusal:
    """Two nodes that were not fused, by the scheduler's names for them then."""

    first: str
    second: str
    reason: str


@dataclass(frozen=True)
class Graph:
    """A compiled graph.

    reads   bytes of each buffer, inputs among them, that the kernel reads which reads most of it
    writes  the same of each buffer that is changed
    """

    inputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    unfused: tuple[Unfused, ...]


def examine(graph: GraphLowering, refusals: Iterable[Refusal], merged: set[int]) -> Graph:
    """Return what the code generator made of a graph; to be called when it has.

    merged: ids of the C++ backend's nodes of several loop nests that became one.
    """
    with V.set_graph_handler(graph):
        pieces = [_split(node, merged) for node in graph.scheduler.nodes if _runs(node)]
        nodes = [node for nests in pieces for node in nests]
        order = {node: place for place, node in enumerate(graph.graph.nodes)}
        kernels, reads, writes = [], Counter[str](), Counter[str]()
        for node in nodes:
            read, written = _accesses(node, graph)
            kernels.append(_kernel(node, sum(read.values()), sum(written.values()), order))
            reads |= Counter(read)
            writes |= Counter(_changed(node, written))
    inputs = tuple(graph.graph_input_names)
    places = {part.get_name(): i for i, node in enumerate(nodes) for part in node.get_nodes()}
    whole = [i for i, nests in enumerate(pieces) for _ in nests]
    unfused = sorted(_apart(refusals, places, whole), key=lambda u: (u.first, u.second))
    return Graph(inputs, tuple(kernels), reads, writes, tuple(unfused))


def _split(node: Any, merged: set[int]) -> list[Any]:
    """Return the loop nests of a node that the C++ backend could not merge after all."""
    nests = getattr(node, "get_outer_nodes", None)
    return nests() if nests is not None and id(node) not in merged else [node]


def _runs(node: Any) -> bool:
    if isinstance(node, ExternKernelSchedulerNode):
        return not isinstance(node.node, ir.MultiOutput)
    return not isinstance(node, NopKernelSchedulerNode)


def _accesses(node: Any, graph: GraphLowering) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of each buffer that a node reads, and that it writes.

    As the scheduler counts them, without buffers that were removed and without what the node
    reads of its own results.
    """
    read, written = (
        node.get_read_write_buffer_accesses(include_reads=reads, include_writes=not reads)
        for reads in (True, False)
    )
    gone = graph.removed_buffers
    return (
        {name: n for name, n in read.items() if name not in gone and name not in written},
        {name: n for name, n in written.items() if name not in gone},
    )


def _changed(node: Any, written: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each older buffer that a node overwrites."""
    return {
        name: written.get(result.get_name(), 0)
        for result in node.get_outputs()
        for name in result.get_mutations()
    }


def _kernel(node: Any, read: int, written: int, order: Mapping[Any, int]) -> Kernel:
    origins = sorted(_origins(node), key=lambda origin: order.get(origin, -1))
    names = dict.fromkeys(_operation(origin) for origin in origins)
    places = dict.fromkeys(filter(None, map(_place, origins)))
    extern = isinstance(node, ExternKernelSchedulerNode)
    return Kernel(
        ", ".join(names) or node.get_name(),
        EXTERN if extern else COMPILED,
        *(read, written),
        loops="" if extern else _loops(node),
        place="; ".join(list(places)[:PLACES]),
    )


def _origins(node: Any) -> set[Any]:
    """Return the nodes of the graph that a kernel computes; an extern kernel names its inputs."""
    inner = [part.node for part in node.get_nodes() if part.node is not None]
    if isinstance(node, ExternKernelSchedulerNode) and inner[0].get_origin_node() is not None:
        return {inner[0].get_origin_node()}
    return {origin for found in inner for origin in found.get_origins()}


def _operation(origin: Any) -> str:
    """Return the operator as the user called it, before Inductor took it apart."""
    operator = origin.meta.get("original_aten") or origin.target
    schema = getattr(operator, "_schema", None)
    return schema.name.removeprefix("aten::") if schema else str(operator)


def _place(origin: Any) -> str:
    frames = _FRAME.findall(origin.meta.get("stack_trace") or "")
    if not frames:
        return ""
    file, line, _function, code = frames[-1]
    return f"{Path(file).name}:{line}: {code.strip()}"


def _loops(node: Any) -> str:
    sizes, reduction = node.group[1]
    outer, inner = (" x ".join(map(str, _sizes(s))) for s in (sizes, reduction))
    return f"{outer or 1}" + (f", reduction {inner}" if inner not in ("", "1") else "")


def _sizes(found: Any) -> tuple[Any, ...]:
    """Return sizes as a tuple: the C++ backend has one, Triton's has their product."""
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _apart(
    refusals: Iterable[Refusal], places: Mapping[str, int], whole: Sequence[int]
) -> Iterator[Unfused]:
    """Yield each pair of kernels once, with every reason that was given.

    whole: of each kernel, which of the scheduler's nodes it is or is a piece of.
    """
    found: dict[tuple[int, int], dict[str, None]] = {}
    for refusal in refusals:
        ends = [_place_of(name, places) for name in (refusal.first, refusal.second)]
        if None not in ends and whole[ends[0]] != whole[ends[1]]:
            found.setdefault((min(ends), max(ends)), {})[refusal.reason] = None
    for (first, second), reasons in found.items():
        useful = [r for r in reasons if r != ORDER and (r != SILENT or len(reasons) == 1)]
        yield Unfused(first, second, "; ".join(useful or reasons))
    for i in range(len(whole) - 1):
        if whole[i] == whole[i + 1]:
            yield Unfused(i, i + 1, SPLIT)


def _place_of(name: str, places: Mapping[str, int]) -> Any:
    """Return the kernel that a node ended in: all of op0_op1 if any of its parts."""
    parts = [places[part] for part in re.findall(r"[a-z]+\d+", name) if part in places]
    return parts[0] if parts else None
