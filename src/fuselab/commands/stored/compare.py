"""fuselab compare: is B faster or slower than A, cell by cell and on the whole?"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fuselab.commands import exits
from fuselab.commands.stored import published
from fuselab.gate.annotations import lines
from fuselab.gate.junit import to_xml
from fuselab.gate.markdown import to_markdown
from fuselab.gate.verdicts import by_weight
from fuselab.model import Measurement
from fuselab.output.files import replace as replace_file
from fuselab.output.plain import plain
from fuselab.planning.plan import CEILING, DTYPE_ALIASES, PlanError, unknown
from fuselab.published.tables import PREFIX
from fuselab.records import metrics
from fuselab.report.sections.tables import UNKNOWN, Notes
from fuselab.report.text import whole
from fuselab.statistics.comparison import (
    COMPLETE,
    Comparison,
    Pair,
    Summary,
    Verdict,
    compare,
    differences,
    pair,
    summary,
)
from fuselab.storage.store import FILE_NAME, SUFFIX, Store, StoreError

Wanted = Mapping[str, Sequence[str]]
WORST = 10


@dataclass(frozen=True)
class Side:
    """One side of a comparison; a file does not hold its environments, which is None."""

    name: str
    measured: tuple[Measurement, ...]
    environments: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class Gate:
    """What makes a comparison fail, and what it leaves for a CI service.

    allow     the share of the decided cells that may be slower
    fail_on   "slower", "undecided" (too few cells have a verdict), both if empty, or "nothing"
    junit, markdown  files to write
    annotate  the service whose annotations are printed
    """

    allow: float = 0.0
    fail_on: tuple[str, ...] = ()
    junit: str | None = None
    markdown: str | None = None
    annotate: str | None = None

    def asks(self, what: str) -> bool:
        return what in (self.fail_on or ("slower", "undecided"))


@dataclass(frozen=True)
class Result:
    """What is printed: the cells, their summary, and the ceilings', which tells of the machine."""

    cells: Sequence[Comparison]
    summary: Summary
    ceilings: Summary
    unsupported: int
    environment: Sequence[tuple[str, str, str]]
    gate: Gate = field(default_factory=Gate)

    @property
    def exit_code(self) -> int:
        if self.gate.asks("slower") and self.summary.slower > self.gate.allow:
            return exits.FAILED
        if self.gate.asks("undecided") and not self.summary.complete:
            return exits.NO_DATA
        return exits.OK


def run(
    a: str,
    others: Sequence[str],
    wanted: Wanted,
    *,
    impl_a: str | None = None,
    impl_b: str | None = None,
    baseline: str | None = None,
    gate: Gate | None = None,
    as_json: bool = False,
) -> int:
    """Compare B with A, or A with a baseline; the exit code is the gate's."""
    if a.startswith(PREFIX):
        _check_plain(wanted, impl_a or impl_b, baseline, gate)
        return published.run(a, [(one, _read(one).measured) for one in others], wanted, as_json)
    if len(others) > 1:
        raise PlanError(f"B: got {len(others)} runs, expected one, or {PREFIX}NAME before them")
    b = others[0] if others else None
    if baseline is not None:
        if b is not None:
            raise PlanError(f"B: got {b!r}, expected one run beside --baseline")
        a, b = baseline, a
    _check_usage(b, wanted, impl_a, impl_b)
    sides = [_read(a)]
    sides.append(_read(b) if b is not None else sides[0])
    wanted = {**wanted, "dtype": [DTYPE_ALIASES.get(name, name) for name in wanted["dtype"]]}
    _check_names(wanted, [m for side in sides for m in side.measured])
    chosen = [_chosen(side, wanted) for side in sides]
    if impl_a is not None and impl_b is not None:
        chosen = [_of(side, impl) for side, impl in zip(chosen, (impl_a, impl_b), strict=True)]
    elif CEILING not in (*wanted["op"], *wanted["impl"]):
        chosen = [_without_ceilings(side) for side in chosen]
    found = _compared(sides, chosen, together=b is None, across=impl_a is not None)
    found = replace(found, gate=gate or Gate())
    if as_json:
        names = zip("ab", sides, (impl_a, impl_b), strict=True)
        asked = {key: {"name": side.name, "impl": impl} for key, side, impl in names}
        print(json.dumps({**asked, **_as_dict(found)}))
    else:
        _print(found)
    _write(found, as_json)
    return found.exit_code


def _write(found: Result, as_json: bool) -> None:
    """Write the files that were asked for, and print annotations: beside JSON, to stderr."""
    gate, passed = found.gate, found.exit_code == exits.OK
    if gate.junit:
        replace_file(gate.junit, to_xml(found.cells, "fuselab compare"))
    if gate.markdown:
        text = to_markdown(found.cells, found.summary, passed, found.environment)
        replace_file(gate.markdown, text)
    if gate.annotate:
        said = "\n".join(lines(gate.annotate, found.cells, found.summary))
        print(said, file=sys.stderr if as_json else sys.stdout)


def _check_plain(wanted: Wanted, impl: str | None, baseline: str | None, gate: Gate | None) -> None:
    """Refuse what published numbers, which are no samples, cannot have."""
    given = [f"--{name}" for name in ("impl", "case") if wanted[name]]
    given += ["--impl-a"] * bool(impl) + ["--baseline"] * bool(baseline)
    given += ["the options of a gate"] * (gate not in (None, Gate()))
    if given:
        raise PlanError(f"{given[0]}: expected none beside {PREFIX}NAME")


def _check_usage(b: str | None, wanted: Wanted, impl_a: str | None, impl_b: str | None) -> None:
    if (impl_a is None) != (impl_b is None):
        given, absent = ("a", "b") if impl_b is None else ("b", "a")
        raise PlanError(f"--impl-{absent}: got nothing, expected a name beside --impl-{given}")
    if impl_a is not None and wanted["impl"]:
        raise PlanError(f"--impl: got {wanted['impl'][0]!r}, expected none beside --impl-a")
    if b is None and impl_a is None:
        raise PlanError("B: got nothing, expected a second run, or --impl-a and --impl-b")


def _read(name: str) -> Side:
    """Return what a run's folder, its file or an export with samples holds."""
    path = Path(name)
    if path.is_dir() or path.suffix == SUFFIX:
        with Store.open_readonly(path) as store:
            return Side(name, tuple(store.measurements()), tuple(store.environment()))
    if not path.is_file():
        raise StoreError(
            f"{name}: no such file or folder, expected a run's folder, its {FILE_NAME}, what "
            "`fuselab share` wrote, or a .jsonl"
        )
    try:
        measured = metrics.from_jsonl(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise StoreError(f"{name}: {error}") from error
    seen: set[str] = set()
    for m in measured:
        if m.cell.key in seen:
            raise StoreError(f"{name}: got {m.cell.key} twice, expected the export of one run")
        seen.add(m.cell.key)
    return Side(name, tuple(measured))


def _check_names(wanted: Wanted, measured: Sequence[Measurement]) -> None:
    for column, names in wanted.items():
        have = list(dict.fromkeys(getattr(m.cell, column) for m in measured))
        for name in names:
            if name not in have:
                raise unknown(column, name, have)


def _chosen(side: Side, wanted: Wanted) -> Side:
    kept = (
        m
        for m in side.measured
        if all(not names or getattr(m.cell, column) in names for column, names in wanted.items())
    )
    return replace(side, measured=tuple(kept))


def _of(side: Side, impl: str) -> Side:
    _check_names({"impl": [impl]}, side.measured)
    return replace(side, measured=tuple(m for m in side.measured if m.cell.impl == impl))


def _is_ceiling(measurement: Measurement) -> bool:
    return CEILING in (measurement.cell.op, measurement.cell.impl)


def _without_ceilings(side: Side) -> Side:
    return replace(side, measured=tuple(m for m in side.measured if not _is_ceiling(m)))


def _compared(
    sides: Sequence[Side], chosen: Sequence[Side], *, together: bool, across: bool
) -> Result:
    a, b = chosen
    pairs = pair(a.measured, b.measured, across=across)
    asked = [both for both in pairs if not both.unsupported]
    cells = compare(asked, together=together)
    return Result(
        cells,
        summary(cells),
        summary(compare(_ceilings(sides))),
        len(pairs) - len(asked),
        () if together else _environment(a, b),
    )


def _ceilings(sides: Sequence[Side]) -> list[Pair]:
    if sides[0] is sides[1]:
        return []
    a, b = ([m for m in side.measured if _is_ceiling(m)] for side in sides)
    return pair(a, b)


def _environment(a: Side, b: Side) -> list[tuple[str, str, str]]:
    """Return how the environments of the compared cells differ; of a file only the id is known."""
    ids = [{m.environment for m in side.measured} for side in (a, b)]
    if ids[0] == ids[1]:
        return []
    if a.environments is None or b.environments is None:
        left, right = (" or ".join(sorted(filter(None, those))) or "none" for those in ids)
        return [("id", left, right)]
    facts = [
        [env for env in side.environments or () if env["id"] in those]
        for side, those in zip((a, b), ids, strict=True)
    ]
    return differences(*facts)


def _as_dict(found: Result) -> dict[str, Any]:
    return {
        "cells": [
            {name: metrics.finite(value) for name, value in asdict(cell).items()}
            for cell in found.cells
        ],
        "summary": {
            **asdict(found.summary),
            "slower": found.summary.slower,
            "complete": found.summary.complete,
        },
        "ceilings": asdict(found.ceilings),
        "unsupported": found.unsupported,
        "environment": [{"name": name, "a": a, "b": b} for name, a, b in found.environment],
    }


def _print(found: Result) -> None:
    apart = [cell for cell in by_weight(found.cells) if cell.verdict is not Verdict.SAME]
    if apart:
        _print_table(apart)
    for name, a, b in found.environment:
        print(plain(f"environment: {name} is {a} in A, {b} in B"))
    again = [_command(cell) for cell in apart if cell.verdict is Verdict.SLOWER][:WORST]
    if again:
        print("\n".join((f"to measure the {len(again)} slowest again:", *again)))
    print("\n".join(_lines(found)))


def _command(cell: Comparison) -> str:
    """Return the command that measures a cell on both sides."""
    impls = dict.fromkeys((cell.impl_a, cell.impl_b))
    chosen = {"case": cell.case, "dtype": cell.dtype, "direction": cell.direction}
    options = [*chosen.items(), *(("impl", impl) for impl in impls)]
    words = (word for name, value in options for word in (f"--{name}", value))
    return "  " + plain(shlex.join(("fuselab", "run", cell.op, *words)))


def _print_table(cells: Sequence[Comparison]) -> None:
    table, notes = Table(box=box.ASCII, header_style=""), Notes()
    for name in ("op", "impl", "direction", "case", "dtype", "layout", "device"):
        table.add_column(name, no_wrap=True)
    for name in ("A (us)", "B (us)", "B / A", "95 % interval", "p"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("verdict", no_wrap=True)
    for cell in cells:
        table.add_row(*(Text(plain(text)) for text in _row(cell, notes)))
    print(whole(table), end="")
    for index, note in enumerate(notes.texts, 1):
        print(f"[{index}] {plain(note)}")


def _row(cell: Comparison, notes: Notes) -> tuple[str, ...]:
    impl = cell.impl_a if cell.impl_a == cell.impl_b else f"{cell.impl_a} -> {cell.impl_b}"
    known = cell.ratio is not None
    return (
        *(cell.op, impl, cell.direction, cell.case, cell.dtype, cell.layout, cell.device),
        *(UNKNOWN if us is None else f"{us:.3f}" for us in (cell.a_us, cell.b_us)),
        f"{cell.ratio:.3f}" if known else UNKNOWN,
        f"{cell.low:.3f} to {cell.high:.3f}" if known else UNKNOWN,
        f"{cell.p:.2g}" if known else UNKNOWN,
        str(cell.verdict) + (f" [{notes.number(cell.reason)}]" if cell.reason else ""),
    )


def _lines(found: Result) -> list[str]:
    total = found.summary
    lines = [", ".join(f"{n} {verdict}" for verdict, n in total.counts.items())]
    if found.unsupported:
        lines[0] += f"; {found.unsupported} unsupported on both sides left out"
    if total.n:
        lines.append(f"B is slower in {total.slower:.1%} of the {total.n} decided cells")
    lines.append(f"B / A: {_mean(total)}")
    if found.ceilings.total:
        lines.append(f"the ceilings, which tell of the machine: {_mean(found.ceilings)}")
    if not total.complete:
        lines.append(f"too few: a gate needs a verdict on {COMPLETE:.0%} of the cells")
    return lines


def _mean(of: Summary) -> str:
    ratio = UNKNOWN if of.ratio is None else f"{of.ratio:.3f}"
    return f"{ratio} (geometric mean of {of.n}/{of.total} cells)"
