"""The pass over Inductor's joint graphs, forward and backward, before they are cut in two."""

from __future__ import annotations

from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from fuseline.core.registration.fingerprint import fingerprint
from fuseline.inlining import table
from fuseline.inlining.causal import without_masks
from fuseline.inlining.formula import inline
from fuseline.inlining.groups import groups


class Inlining(CustomGraphPass):
    """Replace operators of ours by their formula where the tables say so, and masks by is_causal.

    before  a pass of the user, several, or None; they run first
    """

    def __init__(self, before: Any = None) -> None:
        several = isinstance(before, list | tuple)
        self._before = tuple(before) if several else () if before is None else (before,)

    def __call__(self, graph: Graph) -> None:
        """Run the user's passes, then replace."""
        for theirs in self._before:
            theirs(graph)
        for group in [group for group in groups(graph) if table.says(group)]:
            inline(group)
        without_masks(graph)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Return what caches know the passes by; None if one of the user's has nothing."""
        known = [getattr(one, "uuid", lambda: None)() for one in self._before]
        return None if None in known else (fingerprint(), *known)
