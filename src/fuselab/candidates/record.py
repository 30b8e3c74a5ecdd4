"""What the tuner tried for one kernel; no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

SHOWN = 3  # winners, in the sentence on a choice


@dataclass(frozen=True)
class Candidate:
    """A configuration: us by tuning, registers a thread, spilled ones, bytes of shared memory."""

    config: str
    us: tuple[float, ...]
    registers: int | None
    spills: int | None
    shared: int | None


@dataclass(frozen=True)
class Kernel:
    """A generated kernel with what was tried for it.

    heuristic  persistent_reduction, reduction, pointwise, ...
    kept       the configuration that the tuner took, by its own timing
    """

    name: str
    heuristic: str
    size_hints: str
    reduction_hint: str
    candidates: tuple[Candidate, ...]
    kept: str

    @property
    def winners(self) -> dict[str, int]:
        """How many tunings each configuration is the fastest in."""
        rounds = zip(*(c.us for c in self.candidates), strict=True)
        won = Counter(self.candidates[us.index(min(us))].config for us in map(list, rounds))
        return dict(won.most_common())

    @property
    def why(self) -> str:
        """Return one sentence on the choice."""
        if len(self.candidates) == 1:
            return "nothing to choose: the heuristic gives one configuration"
        best = sorted(median(c.us) for c in self.candidates)
        won = [f"{config} {n}" for config, n in self.winners.items()]
        others = ", ".join(won[:SHOWN]) + (f", {len(won) - SHOWN} more" if won[SHOWN:] else "")
        tunings = len(self.candidates[0].us)
        return (
            f"fastest in its own tuning; the fastest of {tunings} tunings: {others}; the second is "
            f"{100 * (best[1] / best[0] - 1):.1f} % slower in the median"
        )


@dataclass(frozen=True)
class Tuned:
    """A subject's kernels with max-autotune on or off; `error` why there are none."""

    subject: str
    max_autotune: bool
    kernels: tuple[Kernel, ...] = ()
    error: str = ""


def from_record(record: Mapping[str, Any]) -> Tuned:
    """Return what a child wrote with `asdict`."""

    def kernel(k: Mapping[str, Any]) -> Kernel:
        tried = tuple(Candidate(**{**c, "us": tuple(c["us"])}) for c in k["candidates"])
        return Kernel(**{**k, "candidates": tried})

    return Tuned(**{**record, "kernels": tuple(map(kernel, record["kernels"]))})


def to_markdown(found: Sequence[Tuned], what: str) -> str:
    """Return a table a kernel."""
    parts = [f"# What the inductor's tuner tries, {what}\n"]
    for tuned in found:
        parts.append(f"## {tuned.subject}, max-autotune {'on' if tuned.max_autotune else 'off'}\n")
        parts += [f"{tuned.error}\n"] if tuned.error else map(_table, tuned.kernels)
    return "\n".join(parts)


def _table(kernel: Kernel) -> str:
    lines = [
        f"`{kernel.name}`: {kernel.heuristic}, size hints {kernel.size_hints}, reduction hint "
        f"{kernel.reduction_hint}. Kept: {kernel.kept}; {kernel.why}.",
        "",
        "| configuration | us | least | most | registers | spills | shared, B |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for c in sorted(kernel.candidates, key=lambda c: median(c.us)):
        kept = " **kept**" if c.config == kernel.kept else ""
        lines.append(
            f"| {c.config}{kept} | {median(c.us):.2f} | {min(c.us):.2f} | {max(c.us):.2f} | "
            f"{_told(c.registers)} | {_told(c.spills)} | {_told(c.shared)} |"
        )
    return "\n".join(lines) + "\n"


def _told(value: int | None) -> str:
    return "-" if value is None else str(value)
