"""The passes over Inductor's graphs: before autograd, and forward and backward in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from fuseline.core.registration.fingerprint import fingerprint
from fuseline.inlining import table
from fuseline.inlining.causal import without_masks
from fuseline.inlining.formula import inline
from fuseline.inlining.groups import groups


class Pass(CustomGraphPass):
    """A pass of ours behind the user's.

    ours    what is done to a graph
    before  a pass of the user, several, or None
    """

    def __init__(self, ours: Callable[[Graph], None], before: Any = None) -> None:
        several = isinstance(before, list | tuple)
        self._before = tuple(before) if several else () if before is None else (before,)
        self._ours = ours

    def __call__(self, graph: Graph) -> None:
        """Run the user's passes, then ours."""
        for one in (*self._before, self._ours):
            one(graph)

    def uuid(self) -> Any:
        """Return what caches know the passes by; None if one of the user's has nothing."""
        known = [getattr(one, "uuid", lambda: None)() for one in self._before]
        return None if None in known else (fingerprint(), *known)


def inlining(graph: Graph) -> None:
    """Put formulas in the place of operators where tables say so, is_causal in that of masks."""
    for group in [group for group in groups(graph) if table.says(group)]:
        inline(group)
    without_masks(graph)
    graph.eliminate_dead_code()
