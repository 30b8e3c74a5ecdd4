"""The options of one torch.compile call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEFORE_AUTOGRAD, JOINT = "pre_grad_custom_pass", "joint_custom_pre_pass"


def compile_options(options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return options for `torch.compile(model, options=...)` by which Inductor compiles the formula
    of an operator of ours in its place, where that was measured to be faster, and attention without
    masks that are constants and say what is_causal does, or nothing.

    options  the caller's own, as torch.compile takes them; None: none. They are kept, and their
             "pre_grad_custom_pass" and "joint_custom_pre_pass" or, without one, that of
             torch._inductor.config run first.
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

    from fuseline.inlining.graph_pass import Pass, inlining
    from fuseline.inlining.strides import make_masks_dense

    given = dict(options or {})
    ours = {BEFORE_AUTOGRAD: make_masks_dense, JOINT: inlining}
    return given | {
        name: Pass(one, given.get(name, getattr(config, name))) for name, one in ours.items()
    }
