"""A comparison as the Markdown that a pull request shows."""

from __future__ import annotations

from collections.abc import Sequence

from fuselab.gate.verdicts import by_weight, in_short, title, told
from fuselab.report.text import escape
from fuselab.statistics.comparison import Comparison, Summary, Verdict

SHOWN = 20
Differences = Sequence[tuple[str, str, str]]


def to_markdown(
    cells: Sequence[Comparison], found: Summary, passed: bool, environment: Differences
) -> str:
    """Return the verdict, the cells that are not the same (more than 20 folded), and how the
    environments differ.
    """
    apart = [cell for cell in by_weight(cells) if cell.verdict is not Verdict.SAME]
    parts = [f"**Performance: {'passed' if passed else 'failed'}**: {escape(in_short(found))}"]
    if apart:
        parts.append(_table(apart[:SHOWN]))
    if apart[SHOWN:]:
        summary = f"<summary>{len(apart) - SHOWN} more</summary>"
        parts.append(f"<details>{summary}\n\n{_table(apart[SHOWN:])}\n\n</details>")
    parts += [f"- {escape(name)}: {escape(a)} in A, {escape(b)} in B" for name, a, b in environment]
    return "\n\n".join(parts) + "\n"


def _table(cells: Sequence[Comparison]) -> str:
    lines = ["| cell | verdict |", "|---|---|"]
    lines += [f"| {escape(title(cell))} | {escape(told(cell))} |" for cell in cells]
    return "\n".join(lines)
