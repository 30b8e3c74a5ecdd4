"""The data: tables of times, or of one time over another, as their source has them.

A file has `source`, `gpu`, `software`, `method`, a `note` on what its reader must know, and
`tables`. A table of ratios names what is above and below, both None where its source does not say,
which nothing can be compared with; one of times has implementations as columns, and cases as rows.
A value that is a text is a status: "out_of_memory", or "no_number" where the source has an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuselab.planning.plan import unknown

PREFIX = "published:"
_FOLDER = Path(__file__).with_name("data")
# The first of them is the yardstick of times.
YARDSTICK = "eager"


@dataclass(frozen=True)
class Value:
    """One number of a table: above's time over below's, or `us`, below's time.

    status  why there is no number, else ""
    """

    case: str
    above: str
    below: str
    ratio: float | None
    us: float | None = None
    status: str = ""


@dataclass(frozen=True)
class Table:
    """One table as its file has it; `values[row][column]`."""

    op: str
    title: str
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    values: tuple[tuple[Any, ...], ...]
    above: str | None = None
    below: str | None = None
    direction: str = "fwd"
    dtype: str = "float32"
    heads: int = 0
    head_dim: int = 0

    @property
    def of_times(self) -> bool:
        return YARDSTICK in self.columns

    def case(self, row: Any, column: Any) -> str:
        """Return what a run calls the problem of a place."""
        if self.of_times:
            return str(row)
        if self.op == "attention":
            return f"{row}x{self.heads}x{column}x{self.head_dim}"
        return f"8x{column}x{row}-8heads" if self.op == "multihead_attention" else f"{row}x{column}"

    def numbers(self) -> Iterator[Value]:
        """Yield what can be compared; nothing of a table whose source does not say what it is."""
        for row, line in zip(self.rows, self.values, strict=True):
            for column, value in zip(self.columns, line, strict=True):
                case = self.case(row, column)
                status = value if isinstance(value, str) else ""
                if self.of_times:
                    ratio = line[0] / value
                    if column != YARDSTICK:
                        yield Value(case, YARDSTICK, column, ratio, value)
                elif self.above and self.below:
                    yield Value(
                        case, self.above, self.below, None if status else value, None, status
                    )


@dataclass(frozen=True)
class Published:
    """One source's tables."""

    name: str
    source: str
    gpu: str
    software: str
    method: str
    note: str
    tables: tuple[Table, ...]

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return what a page sets beside a run: by operator, direction and dtype the ratios, by
        "CASE above/below".
        """
        found: dict[str, dict[str, float]] = {}
        for table in self.tables:
            for value in table.numbers():
                if value.ratio:
                    kind = found.setdefault(f"{table.op} {table.direction} {table.dtype}", {})
                    kind[f"{value.case} {value.above}/{value.below}"] = value.ratio
        return found


def names() -> tuple[str, ...]:
    """Return the names of all files."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load(name: str) -> Published:
    """Return one of them; PlanError, which lists all, for another name."""
    if name not in names():
        raise unknown("published", name, names())
    found = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tables = tuple(_table(one) for one in found.pop("tables"))
    return Published(name, **found, tables=tables)


def _table(found: Mapping[str, Any]) -> Table:
    halves = {"dtype": "float16"} if found["op"] in ("attention", "multihead_attention") else {}
    values = tuple(tuple(line) for line in found["values"])
    rows, columns = tuple(found["rows"]), tuple(found["columns"])
    return Table(**{**halves, **found, "values": values, "rows": rows, "columns": columns})
