"""Reads what docs/study.md is made of: tables under results/, each in its own form."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuselab.published import tables
from fuselab.study.record import Row as MethodRow

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
H200, H100 = RESULTS / "h200", RESULTS / "h100"
FUSION = H200 / "fusion-2026-11-27"
METHODS = {
    "cuda": H100 / "methods-2026-11-27" / "methods-softmax-cuda.jsonl",
    "cpu": RESULTS / "cpu" / "methods-2026-11-27" / "methods-softmax-cpu.jsonl",
}
INSIDE = H200 / "internals-2026-11-24"
Size = tuple[int, int]
Row = dict[str, str]


@dataclass(frozen=True)
class Grid:
    """Times of eager over those of torch.compile by rows and columns, and their file."""

    op: str
    file: Path
    ratios: Mapping[Size, float]


@dataclass(frozen=True)
class Mode:
    """What `fuselab explain` saw of a function in one mode.

    kernels  of one call by kind (eager, compiled, extern): their number, their operations
    calls    of the GPU's API, by name
    us       of a later call, by size
    first_s  of the first call, by size
    """

    kernels: Mapping[str, tuple[int, str]]
    calls: Mapping[str, int]
    us: Mapping[str, float]
    first_s: Mapping[str, float]
    limit: bool
    line: int

    @property
    def count(self) -> int:
        return sum(number for number, _ in self.kernels.values())


@dataclass(frozen=True)
class Tuning:
    """One kernel of `fuselab candidates`: its heuristic, and (name, us) by configuration."""

    subject: str
    autotune: str
    kernel: str
    heuristic: str
    hints: Mapping[str, int]
    configurations: tuple[tuple[str, float], ...]
    kept: str


def grid(file: Path, heading: str = "eager / compile") -> Grid | None:
    """Return the table of a page of ratios by size, None where the page has none of that name."""
    part = file.read_text().partition(f"\n{heading}\n")[2].strip()
    rows = _markdown(part.splitlines())
    ratios = {
        (int(row["M \\ N"]), int(column)): float(value)
        for row in rows
        for column, value in row.items()
        if column != "M \\ N" and value
    }
    return Grid(file.name.partition("-")[0], file, ratios) if ratios else None


@cache
def fusion() -> dict[str, Grid]:
    """Return the grid of every operator, fp32 forward, on the H200."""
    pages = sorted(FUSION.glob("*-fwd-float32.md"))
    return {made.op: made for page in pages if (made := grid(page))}


@cache
def published(name: str) -> dict[str, Grid]:
    """Return the study's grids of eager over torch.compile, by operator."""
    return {
        table.op: Grid(
            table.op,
            ROOT / "src" / "fuselab" / "published" / "data" / f"{name}.json",
            {_size(v.case): v.ratio for v in table.numbers() if v.ratio},
        )
        for table in tables.load(name).tables
        if (table.above, table.below) == ("eager", "compile") and table.op != "attention"
    }


def section(file: Path, *headings: str) -> list[Row]:
    """Return the first table below the headings, each looked for below the one before."""
    text = f"\n{file.read_text()}"
    for heading in headings:
        text = text.partition(f"\n{heading}\n")[2]
    return _markdown(text.strip().splitlines())


def records(file: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def compile_bench(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of `fuselab compile-bench` by subject."""
    rows = json.loads((folder / "compile-bench-cuda.json").read_text())["rows"]
    return {row["subject"]: row for row in rows}


@dataclass(frozen=True)
class Timed:
    """A line of a listing of kernel times; `us` is None where the cell has a status instead."""

    direction: str
    op: str
    case: str
    impl: str
    us: float | None
    status: str
    line: int


def listing(file: Path) -> list[Timed]:
    """Return the lines of times.txt, forward.txt or backward.txt."""
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if line.startswith(("fwd", "bwd")):
            op, case = line[4:26].strip(), line[26:68].strip()
            impl, value = line[68:].split()[:2]
            timed = re.fullmatch(r"[\d.]+", value) is not None
            us, status = (float(value), "") if timed else (None, value)
            found.append(Timed(line[:3], op, case, impl, us, status, number))
    return found


def explained(name: str) -> dict[str, Mode]:
    """Return what `fuselab explain` saw of a shipped example, by mode."""
    lines = explain_file(name).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line in ("as it is", "static", "dynamic")]
    ends = [*starts[1:], len(lines)]
    return {lines[a]: _mode(lines[a:b], a + 1) for a, b in zip(starts, ends, strict=True)}


def explain_file(name: str) -> Path:
    return INSIDE / f"explain-{name}.txt"


def _mode(lines: Sequence[str], number: int) -> Mode:
    kernels: dict[str, tuple[int, str]] = {}
    calls: dict[str, int] = {}
    us: dict[str, float] = {}
    first: dict[str, float] = {}
    for line in lines:
        if timed := re.match(r"  size (\w+): first call ([\d.]+) s, later (\d+) us", line):
            first[timed[1]], us[timed[1]] = float(timed[2]), float(timed[3])
        elif seen := re.match(r"  (eager|compiled|extern) \((\d+)\): (.*)", line):
            kernels[seen[1]] = (int(seen[2]), seen[3])
        elif line.startswith("  GPU API: "):
            calls = {n: int(c) for n, c in re.findall(r"(\w+) (\d+)", line.partition(": ")[2])}
    return Mode(kernels, calls, us, first, any(s.startswith("  limit: ") for s in lines), number)


@cache
def tunings(file: Path = INSIDE / "candidates.md") -> tuple[Tuning, ...]:
    """Return every kernel that Inductor's heuristics tune, without choices of algorithms."""
    found: list[Tuning] = []
    for part in file.read_text().split("\n## ")[1:]:
        subject, _, autotune = part.partition("\n")[0].partition(", max-autotune ")
        for kernel in re.split(r"\n(?=`)", part)[1:]:
            told, _, table = kernel.partition("\n\n")
            if made := _tuning(subject, autotune, told, table):
                found.append(made)
    return tuple(found)


def _tuning(subject: str, autotune: str, told: str, table: str) -> Tuning | None:
    seen = re.match(r"`(\w+)`: (\w+), size hints (\{.*?\}), reduction hint \w+", told)
    if not seen:
        return None
    rows = _markdown(table.splitlines())
    timed = tuple((r["configuration"].removesuffix(" **kept**"), float(r["us"])) for r in rows)
    kept = next(r["configuration"] for r in rows if r["configuration"].endswith("**kept**"))
    hints = {name: int(value) for name, value in re.findall(r"'(\w+)': (\d+)", seen[3])}
    return Tuning(subject, autotune, seen[1], seen[2], hints, timed, kept.removesuffix(" **kept**"))


def methods(kind: str) -> tuple[str, list[MethodRow]]:
    """Return what kept the CPU busy meanwhile, and what `fuselab study methods` measured."""
    lines = [json.loads(line) for line in METHODS[kind].read_text().splitlines()]
    kept = ("case", "impl", "method", "us", "error")
    return lines[0]["noise"], [MethodRow(*(line[name] for name in kept)) for line in lines]


def line_of(file: Path, text: str) -> int:
    """Return the number of the first line that has the text; ValueError where none has."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if text in line:
            return number
    raise ValueError(f"{file}: got no line with {text!r}")


def found_in(file: Path, pattern: str) -> str:
    """Return the first group of the pattern; ValueError where the file does not have it."""
    seen = re.search(pattern, file.read_text(), re.MULTILINE)
    if seen is None:
        raise ValueError(f"{file}: got nothing that matches {pattern!r}")
    return seen[1]


def _markdown(lines: Sequence[str]) -> list[Row]:
    """Return the rows of the table at the beginning of these lines, by column."""
    rows = list(_table(lines))
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]] if rows else []


def _table(lines: Sequence[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def _size(case: str) -> Size:
    rows, columns = case.split("x")
    return int(rows), int(columns)
