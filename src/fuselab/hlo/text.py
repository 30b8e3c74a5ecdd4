"""What XLA made of an operator, as text and as one flat record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fuselab.hlo.record import Hlo


def facts(hlo: Hlo) -> dict[str, str]:
    """Return what is said of the whole program, by what it is of."""
    steps = Counter(hlo.module.steps)
    return {
        "with": f"{hlo.software}, {hlo.platform}, compiled in {hlo.seconds:.2f} s",
        "StableHLO": f"{sum(hlo.operations.values())} operations: {counts(hlo.operations)}",
        "steps": f"{len(hlo.module.steps)} after optimisation: {counts(steps)}",
        "custom calls": ", ".join(hlo.module.custom_calls) or "none",
        "work": f"{hlo.flops:.0f} flops, {hlo.transcendentals:.0f} transcendentals",
        "bytes": f"{hlo.accessed:.0f} accessed by the steps, {hlo.ideal} at least: {ratio(hlo)}",
        "memory": ", ".join(f"{part} {size} B" for part, size in hlo.memory.items()),
    }


def ratio(hlo: Hlo) -> str:
    return f"{hlo.accessed / hlo.ideal:.2f} times" if hlo.ideal else "no bytes are needed"


def counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" if n > 1 else name for name, n in found.items())


def to_text(hlo: Hlo) -> str:
    """Return the facts and a line a fusion."""
    lines = [f"{hlo.op} {hlo.direction}, {hlo.case} {hlo.dtype}"]
    lines += [f"  {name}: {said}" for name, said in facts(hlo).items()]
    for fusion in hlo.module.fusions:
        lines.append(f"  {fusion.name} ({fusion.kind}) -> {fusion.shape}")
        lines.append(f"    {counts(Counter(fusion.members))}")
    return "\n".join(lines) + "\n"


def to_records(found: Sequence[Hlo]) -> list[dict[str, Any]]:
    """Return values that JSON has, both modules' texts among them."""
    return [asdict(hlo) for hlo in found]
