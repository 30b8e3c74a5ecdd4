"""The report's tables as Markdown and for the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table as Drawn

from fuselab.output.plain import plain
from fuselab.report.view import Table, Value, View

_WIDEST = 10_000


def to_markdown(view: View) -> str:
    """Return the report as Markdown: one table of times, in us, a direction and dtype."""
    parts = [f"# {escape(view.title)}"]
    parts += [f"**{escape(notice)}**" for notice in view.notices]
    parts.append("\n".join(f"- {escape(name)}: {escape(text)}" for name, text in view.facts))
    parts.append("Cells: " + ", ".join(f"{count} {name}" for name, count in view.statuses) + ".")
    if view.overview:
        parts.append(_markdown_table(view.overview))
    for section in view.sections:
        parts.append(f"## {escape(section.title)}")
        parts.append(escape(" ".join(section.summary)))
        for table in section.times:
            parts.append(f"### {escape(table.title)}")
            parts.append(_markdown_table(table))
    for table in (view.unmeasured, view.accuracy, view.costs, view.counters):
        if table.rows:
            parts += [f"## {escape(table.title)}", _markdown_table(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_terminal(view: View) -> str:
    """Return the tables of times as plain text, the fastest cell of a row marked with *."""
    parts = ["\n".join(map(plain, view.notices))] if view.notices else []
    for section in view.sections:
        parts.append("\n".join((plain(section.title), *map(plain, section.summary))))
        for table in section.times:
            notes = [f"[{index}] {plain(note)}" for index, note in enumerate(table.notes, 1)]
            parts.append("\n".join((f"{plain(table.title)}:", *grid(table), *notes)))
    if view.counters.rows:
        parts.append("\n".join((f"{view.counters.title}:", *grid(view.counters))))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    def text(value: Value) -> str:
        bold = "**" if value.kind == "best" else ""
        return f"{bold}{escape(value.text)}{bold}" + (f" [{value.note}]" if value.note else "")

    lines = _aligned(table, text, escape)
    rule = [
        "-" * (width - 1) + ":" if column.numeric else "-" * width
        for column, width in zip(table.columns, map(len, lines[0]), strict=True)
    ]
    rows = [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]
    notes = [f"{index}. {escape(note)}" for index, note in enumerate(table.notes, 1)]
    return "\n".join(rows) + ("\n\n" + "\n".join(notes) if notes else "")


def grid(table: Table) -> list[str]:
    def text(value: Value) -> str:
        mark = "*" if value.kind == "best" else ""
        return mark + plain(value.text) + (f" [{value.note}]" if value.note else "")

    head, *body = _aligned(table, text, plain)
    edges = ["-" * (len(name) + 2) for name in head]
    outer, inner = f"+{'+'.join(edges)}+", f"|{'+'.join(edges)}|"
    rows = [f"| {' | '.join(line)} |" for line in (head, *body)]
    return [outer, rows[0], inner, *rows[1:], outer]


def _aligned(
    table: Table, text: Callable[[Value], str], name: Callable[[str], str]
) -> list[list[str]]:
    lines = [[name(column.text) for column in table.columns]]
    lines += [[text(value) for value in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [_padded(line, widths, [column.numeric for column in table.columns]) for line in lines]


def _padded(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    return [
        text.rjust(width) if numeric else text.ljust(width)
        for text, width, numeric in zip(line, widths, right, strict=True)
    ]


def escape(text: str) -> str:
    """Return text that Markdown shows as it is; an underscore inside a word needs no help."""
    text = re.sub(r"[\\`*|\[\]]|(?<![a-zA-Z0-9])_|_(?![a-zA-Z0-9])", r"\\\g<0>", plain(text))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def whole(table: Drawn) -> str:
    """Return a table as wide as it is: cut to a window, or a pipe's 80 columns, none can be read.

    To be printed by the caller: at a closed pipe rich ends the process with 1.
    """
    console = Console(width=_WIDEST)
    console.width = console.measure(table).maximum
    with console.capture() as drawn:
        console.print(table)
    return drawn.get()
