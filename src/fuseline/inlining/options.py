"""The options of one torch.compile call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PASS = "joint_custom_pre_pass"


def compile_options(options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return options for `torch.compile(model, options=...)` by which Inductor compiles the formula
    of an operator of ours in its place, where that was measured to be faster.

    options  the caller's own, as torch.compile takes them; None: none. They are kept, and their
             "joint_custom_pre_pass" or, without one, that of torch._inductor.config runs first.
             For what a mode stands for: torch._inductor.list_mode_options(mode).

    The tables say which calls: `ops/<op>/inlining/<machine>.json`, or the user's own,
    `$FUSELINE_TUNED/<op>/inlining/<machine>.json`, which wins. What no table names keeps our
    operator. The formula has the operator's dtypes, layouts and gradients; its digits are those
    that Inductor makes of it, which may depend on the number of rows.
    Nothing global changes. Where a pass of the caller has no `uuid()`, torch caches no such graph.
    Raises TypeError (options).
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            f"compile_options: options is a {type(options).__name__}, expected a mapping or None"
        )
    # These take two seconds, which torch.compile takes anyway.
    from torch._inductor import config

    from fuseline.inlining.graph_pass import Inlining

    given = dict(options or {})
    theirs = given.get(PASS, getattr(config, PASS))
    return given | {PASS: Inlining(theirs)}
