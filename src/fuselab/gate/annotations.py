"""A comparison as lines that a CI service turns into annotations of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuselab.gate.verdicts import by_weight, in_short, title, told
from fuselab.statistics.comparison import Comparison, Summary, Verdict

# GitHub shows ten of a kind and step.
SHOWN = 10
_KINDS = {Verdict.SLOWER: "error", Verdict.UNKNOWN: "warning"}


def _github(kind: str, title: str, text: str) -> str:
    return f"::{kind} title={_quoted(title, ':,')}::{_quoted(text)}"


def _azure(kind: str, title: str, text: str) -> str:
    if kind == "notice":
        return f"##[section]{_quoted(f'{title}: {text}')}"
    return f"##vso[task.logissue type={kind}]{_quoted(f'{title}: {text}')}"


def _quoted(text: str, more: str = "") -> str:
    """Return text without what ends a command: both services take % and two hexadecimal digits."""
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + more else c for c in text)


SERVICES: dict[str, Callable[[str, str, str], str]] = {"github": _github, "azure": _azure}


def lines(service: str, cells: Sequence[Comparison], found: Summary) -> list[str]:
    """Return a line for each of the worst cells that are slower or unknown, and one for all."""
    write = SERVICES[service]
    made = []
    for verdict, kind in _KINDS.items():
        worst = [cell for cell in by_weight(cells) if cell.verdict is verdict][:SHOWN]
        made += [write(kind, title(cell), told(cell)) for cell in worst]
    return [*made, write("notice", "fuselab compare", in_short(found))]
