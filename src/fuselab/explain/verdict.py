"""What follows from what was seen, in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from fuselab.explain.record import AS_IS, Explanation, Mode
from fuselab.output.plain import counted


def verdicts(found: Explanation) -> list[str]:
    """Return a sentence for each thing that a reader must know, mode by mode."""
    before = next((mode for mode in found.modes if mode.name == AS_IS and not mode.error), None)
    sentences = [
        f"{mode.name}: {sentence}"
        for mode in found.modes
        for sentence in _of(mode, before, found.tolerance)
    ]
    return [*filter(None, (found.noise, found.random)), *sentences]


def _of(mode: Mode, before: Mode | None, tolerance: float) -> Iterator[str]:
    if mode.error:
        yield f"it raises {mode.error}"
        return
    plain = mode.name == AS_IS
    for limit in mode.limits:
        yield f'"compiled" is eager: {limit}'
    if mode.breaks:
        breaks = counted(len(mode.breaks), "graph break")
        yield f"{breaks}, so {counted(mode.graphs, 'graph')} a call"
    if mode.recompiles:
        many = counted(len(mode.recompiles), "recompilation")
        yield f"{many} for {counted(len(mode.sizes), 'size')}"
    far = [size for size in mode.sizes if size.far(tolerance)]
    if far:
        yield f"differs from eager by more than {tolerance:g} at {', '.join(s.size for s in far)}"
    if not mode.compiles:
        yield f"nothing is compiled; {counted(mode.count, 'kernel')} a call"
    elif not (mode.breaks or mode.recompiles or mode.limits or far):
        was = f", {before.count} before" if before and not plain else ""
        yield f"one graph for all sizes; {counted(mode.count, 'kernel')} a call{was}"
