"""What compiling one subject cost and brought; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuselab.explain.record import Mode


@dataclass(frozen=True)
class Row:
    """A subject: seconds of the first compiled call with empty caches and with full ones.

    before, after  kernels of a call; eager_us, compiled_us  a call among its like
    error          why there are no figures, or ""
    noise          why the times are not to be relied on, or ""
    """

    subject: str
    size: str = ""
    cold_s: float = 0.0
    warm_s: float | None = None
    before: int = 0
    after: int = 0
    eager_us: float = 0.0
    compiled_us: float = 0.0
    breaks: int = 0
    difference: float | None = None
    error: str = ""
    noise: str = ""


def row(
    subject: str,
    modes: tuple[Mode, Mode],
    us: tuple[float, float],
    cold_s: float,
    warm_s: float | None,
    noise: str = "",
) -> Row:
    """Return the row of a subject's two modes and the microseconds of a call of each."""
    eager, compiled = modes
    error = eager.error or compiled.error
    if error:
        return Row(subject, error=error)
    (now,) = compiled.sizes
    return Row(
        subject,
        size=now.size,
        cold_s=cold_s,
        warm_s=warm_s,
        before=eager.count,
        after=compiled.count,
        eager_us=us[0],
        compiled_us=us[1],
        breaks=len(compiled.breaks),
        difference=now.difference,
        noise=noise,
    )


def to_markdown(rows: Sequence[Row], environment: Mapping[str, Any]) -> str:
    """Return the table."""
    lines = [
        ", ".join(f"{name} {value}" for name, value in environment.items()) + "; float32, forward",
        "",
        "| subject | size | compile cold, s | warm, s | kernels before | after | eager, us "
        "| compiled, us | eager / compiled | breaks | difference |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += map(_line, rows)
    if noisy := [f"- {row.subject}: noisy: {row.noise}" for row in rows if row.noise]:
        lines += ["", *noisy]
    return "\n".join(lines) + "\n"


def _ratio(row: Row) -> str:
    ratio = f"{row.eager_us / row.compiled_us:.2f}"
    return f"{ratio} (noisy)" if row.noise else ratio


def _line(row: Row) -> str:
    if row.error:
        return f"| {row.subject} | {row.error} |" + " |" * 9
    warm = "-" if row.warm_s is None else f"{row.warm_s:.2f}"
    difference = "shapes differ" if row.difference is None else f"{row.difference:.1e}"
    return (
        f"| {row.subject} | {row.size} | {row.cold_s:.2f} | {warm} | {row.before} | {row.after} | "
        f"{row.eager_us:.1f} | {row.compiled_us:.1f} | {_ratio(row)} | "
        f"{row.breaks} | {difference} |"
    )
