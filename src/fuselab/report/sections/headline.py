"""What stands above the tables: title, warnings, figures, sentences; from good numbers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from fuselab.output.plain import counted
from fuselab.records.metrics import Record
from fuselab.report.sections import tables
from fuselab.report.sections.standing import (
    ALONE,
    NO_TIME,
    NOISY,
    UNDECIDED,
    Standing,
    Standings,
    problem,
)
from fuselab.report.sections.tables import geometric_mean, label, percent
from fuselab.report.view import Tile
from fuselab.statistics.comparison import Verdict

MOST_NAMED = 3
ABOVE = "the ceiling is a copy of as many bytes, no limit of the hardware"


def title(
    rows: Sequence[Record],
    environments: Sequence[Mapping[str, Any]],
    span: tuple[str, str] | None,
) -> str:
    """Return what was measured, where and when."""
    ops = list(dict.fromkeys(row["op"] for row in rows))
    what = ", ".join(ops) if len(ops) <= MOST_NAMED else f"{len(ops)} operators"
    where = ", ".join(dict.fromkeys(map(_machine, environments)))
    days = " to ".join(dict.fromkeys(moment.partition("T")[0] for moment in span or ()))
    place = f" on {where}" if where else ""
    return f"{what or 'Nothing measured'}{place}{', ' if days else ''}{days}"


def _machine(environment: Mapping[str, Any]) -> str:
    name = environment.get("gpu") or environment.get("cpu") or ""
    kind = str(environment.get("device") or "")
    return f"{name} ({kind.upper()})" if name and kind == "cpu" else str(name or kind)


def notices(rows: Sequence[Record]) -> tuple[str, ...]:
    """Return what a reader must know before any figure."""
    timed = [row for row in rows if row["median_us"] is not None]
    noisy = [row for row in timed if row["status"] == "noisy"]
    if not noisy:
        return ()
    (reason, _), *_ = Counter(row["reason"] for row in noisy).most_common()
    if len(noisy) == len(timed):
        many = "All times are noisy"
        then = "no headline is drawn from them; measure again on a quiet machine"
    else:
        many = f"{len(noisy)} of {len(timed)} times are noisy"
        then = "they are shown with a footnote, and in no headline and no ratio"
    return (f"{many} ({reason}): {then}.",)


class Speedups:
    """The fastest own implementation of each problem beside eager, or another, by compare's
    verdicts.
    """

    def __init__(self, rows: Sequence[Record], standings: Standings, over: str = "") -> None:
        other = {
            problem(row): row["impl"]
            for row in rows
            if row["status"] == "ok" and (row["impl"] == over if over else row["role"] == "eager")
        }
        own = [row for row in tables.best_own(rows) if problem(row) in other]
        found = [standings.speedup(other[problem(row)], row) for row in own]
        decided = [one for one in found if one is not None]
        self.undecided = len(found) - len(decided)
        self.counts = Counter(verdict for verdict, _ in decided)
        self.ratios = [ratio for _, ratio in decided]

    @property
    def mean(self) -> float:
        return geometric_mean(self.ratios)


def summary(rows: Sequence[Record], standings: Standings) -> tuple[str, ...]:
    """Return the sentences of one section."""
    problems = {problem(row): row for row in rows}
    return tuple(
        filter(
            None,
            (
                *_ranking([standings.of(row) for row in problems.values()]),
                _speedup(Speedups(rows, standings), len(problems)),
                _ceiling(tables.best_own(rows), len(problems)),
            ),
        )
    )


def _ranking(found: Sequence[Standing]) -> Iterable[str]:
    total = len(found)
    singles = Counter(one.fastest[0] for one in found if len(one.fastest) == 1)
    ties = Counter(tuple(sorted(one.fastest)) for one in found if len(one.fastest) > 1)
    open_ = Counter(one.open for one in found if one.open)
    if open_[NO_TIME] == total:
        yield f"None of the {total} problems has a time."
        return
    if singles:
        (first, most), *others = singles.most_common()
        ranking = "".join(f", {label(impl)} in {count}" for impl, count in others)
        yield f"{label(first)} is fastest in {most} of {total} problems{ranking}."
    for tied, count in ties.most_common(MOST_NAMED):
        yield f"{' and '.join(map(label, tied))} are equally fast in {count} of {total}."
    if rest := sum(count for _, count in ties.most_common()[MOST_NAMED:]):
        yield f"Others are equally fast in {rest} of {total}."
    if open_[UNDECIDED]:
        names = dict.fromkeys(name for one in found if one.open == UNDECIDED for name in one.names)
        among = ", ".join(map(label, names))
        yield f"Who is fastest is undecided in {open_[UNDECIDED]} of {total} (among {among})."
    if open_[NOISY]:
        yield f"Who is fastest is open in {open_[NOISY]} of {total}: times are noisy."
    if open_[ALONE]:
        names = dict.fromkeys(name for one in found if one.open == ALONE for name in one.names)
        alone = ", ".join(map(label, names))
        yield f"In {open_[ALONE]} of {total} only {alone} has a time: nothing to compare it with."


def _speedup(found: Speedups, total: int) -> str:
    open_ = f"; {found.undecided} undecided" if found.undecided else ""
    if not found.ratios:
        return f"How fast it is beside eager is undecided in {found.undecided}." if open_ else ""
    verdicts = ", ".join(
        f"{word} in {count}"
        for word, verdict in (("faster", "faster"), ("the same", "same"), ("slower", "slower"))
        if (count := found.counts[Verdict(verdict)])
    )
    return (
        f"The best own implementation is {found.mean:.3g} times as fast as eager (geometric mean "
        f"of {len(found.ratios)} of {total} problems, {min(found.ratios):.2f} to "
        f"{max(found.ratios):.2f}: {verdicts}{open_})."
    )


def _rate(own: Sequence[Record]) -> str:
    """Return what products are held against: operations a second."""
    fastest = max(own, key=lambda row: row["flops"] / row["median_us"], default=None)
    if fastest is None:
        return ""
    rate = tables.tflops(fastest)
    return (
        f"It reaches {rate} TFLOP/s in {fastest['case']} {fastest['dtype']} "
        f"({label(fastest['impl'])})."
    )


def _ceiling(own: Sequence[Record], total: int) -> str:
    if tables.heavy(own):
        return _rate([row for row in own if row["flops"]])
    known = [row for row in own if row["ceiling_share"]]
    if not known:
        return ""
    shares = [row["ceiling_share"] for row in known]
    largest = max(known, key=lambda row: row["ideal_bytes"])
    mixes = ", ".join(dict.fromkeys(row["ceiling_mix"] for row in known if row["ceiling_mix"]))
    of = f" ({mixes} of the same bytes)" if mixes else ""
    told = (median(shares), largest["ceiling_share"])
    above = f" Over 100 % is possible: {ABOVE}." if max(told) > 1 else ""
    return (
        f"It reaches {percent(median(shares))} of the ceiling{of} in the median problem "
        f"({len(shares)} of {total}), and {percent(largest['ceiling_share'])} in the largest "
        f"({largest['case']} {largest['dtype']}, {label(largest['impl'])}).{above}"
    )


def tiles(
    rows: Sequence[Record],
    ceilings: Sequence[Record],
    sections: Sequence[tuple[str, Sequence[Record]]],
    standings: Standings,
) -> tuple[Tile, ...]:
    """Return the figures: how much has a good number, speedups, the memory's bandwidth."""
    good = sum(row["status"] == "ok" for row in rows)
    absent = sum(row["status"] == "unsupported" for row in rows)
    apart = f"{absent} unsupported here" if absent else ""
    found = [Tile("cells with a good number", f"{good} / {len(rows) - absent}", apart)]
    for name, part in sections:
        speedups = Speedups(part, standings)
        if speedups.ratios:
            many = f"eager / best own, {counted(len(speedups.ratios), 'problem')}"
            found.append(Tile(name, f"{speedups.mean:.3g}x", many))
    for row in ceilings:
        if row["gbps"] and row["status"] == "ok":
            moved = f"fixed recipe, {tables.size(row['ideal_bytes'])} moved"
            name = f"{row['impl']} on {row['device']}"
            found.append(Tile(name, f"{row['gbps']:.4g} GB/s", moved))
    return tuple(found)
