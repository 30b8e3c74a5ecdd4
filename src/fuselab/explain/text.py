"""An explanation as text."""

from __future__ import annotations

from collections.abc import Iterator

from fuselab.explain.record import MEANING, Explanation, Mode
from fuselab.explain.verdict import verdicts


def to_text(found: Explanation) -> str:
    """Return verdicts first, then each mode."""
    lines = [f"{found.function}  {found.place}", f"  torch {found.torch}, {found.device}", ""]
    lines += verdicts(found)
    for mode in found.modes:
        meaning = f" ({MEANING[mode.name]})" if mode.name in MEANING else ""
        lines += ["", f"{mode.name}{meaning}", *(f"  {line}" for line in _mode(mode))]
    return "\n".join(lines)


def _mode(mode: Mode) -> Iterator[str]:
    for size in mode.sizes:
        off = f"differs by {size.told}" if size.compared else size.told
        noise = f"; noisy: {size.noise}" if size.noise else ""
        yield (
            f"size {size.size}: first call {size.first_s:.3f} s, later {size.later_us:.0f} us,"
            f" {off}{noise}"
        )
    if mode.error:
        yield f"raised {mode.error}"
    if mode.compiles:
        yield f"compiling: {phases(mode)}"
    for number, found in enumerate(mode.breaks, 1):
        yield f"break {number}: {found.reason}"
        if found.place:
            yield f"    {found.place}"
        if found.hint:
            yield f"    hint: {found.hint}"
    for number, text in enumerate(mode.recompiles, 1):
        yield f"recompilation {number}: {text}"
    for text in mode.limits:
        yield f"limit: {text}"
    for maker, names in mode.kernels.items():
        yield f"{maker} ({len(names)}): {', '.join(names)}"
    for text in mode.unfused:
        yield f"kept apart: {text}"
    if mode.launches:
        yield "GPU API: " + ", ".join(f"{name} {count}" for name, count in mode.launches.items())
    if not mode.error:
        yield f"peak: {mode.peak} B"


def phases(mode: Mode) -> str:
    """Return the seconds by phase."""
    return ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in mode.phases.items())
