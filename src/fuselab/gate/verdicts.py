"""What every form says of a comparison: its cells in words, the worst first."""

from __future__ import annotations

from collections.abc import Sequence

from fuselab.statistics.comparison import Comparison, Summary, Verdict

_ORDER = list(Verdict)


def by_weight(cells: Sequence[Comparison]) -> list[Comparison]:
    """Return the cells: slower, faster, unknown, then the same, each by how far it is from 1."""
    return sorted(cells, key=lambda c: (_ORDER.index(c.verdict), -abs((c.ratio or 1) - 1)))


def title(cell: Comparison) -> str:
    """Return which cell it is, as text."""
    impl = cell.impl_a if cell.impl_a == cell.impl_b else f"{cell.impl_a} -> {cell.impl_b}"
    return f"{cell.op} {cell.direction} {cell.case} {cell.dtype} {cell.layout} {impl}"


def told(cell: Comparison) -> str:
    """Return the verdict with its figures, or with why there is none."""
    if cell.ratio is None or cell.a_us is None or cell.b_us is None:
        return f"{cell.verdict}: {cell.reason}"
    figures = f"{_time(cell.a_us)} -> {_time(cell.b_us)}, {cell.ratio:.3f} times as long"
    if cell.low is not None and cell.high is not None:
        figures += f" ({cell.low:.3f} to {cell.high:.3f})"
    return f"{cell.verdict}: {figures}" + (f"; {cell.reason}" if cell.reason else "")


def _time(us: float) -> str:
    return f"{us:.4g} us" if us < 1000 else f"{us / 1e3:.4g} ms"


def in_short(found: Summary) -> str:
    """Return how many cells have which verdict, and the mean."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    if found.ratio is None:
        return f"{counts}; no cell is decided"
    return f"{counts}; B takes {found.ratio:.3f} of A's time (geometric mean of {found.n} cells)"
