"""Measures the same cells again and again, and counts how often the comparison errs on them.

python tools/same_again.py measure OUT [--reruns 20] [-- ARGUMENTS OF fuselab run]
python tools/same_again.py judge OUT...

`measure` runs the same cells so many times, each time in fresh processes and a folder of its own
(OUT/00, OUT/01, ...), and skips what is finished. Without arguments it takes 40 cells of RMSNorm on
a GPU, from 2 us to 2 ms: 20 reruns take ten minutes on an H200.

Several GPUs of one host can share the reruns, each with an OUT of its own.

`judge` compares every rerun of an OUT with its first and with the one before it, as `fuselab
compare` does, and counts what is called different. Then it multiplies every sample of the second
side by 1.05 and by 1.01 and compares again: the slow-down is made, the scatter between runs is
real. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from fuselab.commands import exits
from fuselab.commands.stored.compare import Result
from fuselab.model import Cell, Measurement
from fuselab.planning.plan import CEILING
from fuselab.statistics import stats
from fuselab.statistics.comparison import Comparison, Verdict, compare, pair, summary
from fuselab.storage.store import Store

CASES = ("4x128x1024", "4x512x2048", "4x2048x1024", "4x2048x2048", "4x2048x8192")
IMPLS = ("eager", "native", "triton", "cuda")
ARGUMENTS = [
    *("rms_norm", "--dtype", "bf16", "--precision", "standard"),
    *(word for case in CASES for word in ("--case", case)),
    *(word for impl in IMPLS for word in ("--impl", impl)),
]
FINISHED = "finished.json"
RERUNS, CELLS = 20, 40
# The bars: most that may be called different (as measured) or slower (by 1 %), and least that must
# be found (5 %) of the cells that take so long.
CALLED, FOUND, LARGE_US = 0.01, 0.95, 20.0
LARGE, SMALL = 1.05, 1.01

Run = list[Measurement]


def measure(out: Path, reruns: int, arguments: list[str]) -> int:
    """Run what is missing; the exit code of a run that was not finished, else 0."""
    for index in range(reruns):
        folder = out / f"{index:02}"
        marker = folder / FINISHED
        if marker.is_file():
            if json.loads(marker.read_text()) != arguments:
                sys.exit(f"{folder}: of other arguments; choose another folder")
            continue
        words = [sys.executable, "-m", "fuselab", "run", *arguments, "--out", str(folder)]
        print(f"rerun {index + 1} of {reruns}", file=sys.stderr, flush=True)
        code = subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode
        # A cell that failed is a finding; it has no verdict.
        if code not in (exits.OK, exits.FAILED):
            return code
        marker.write_text(json.dumps(arguments))
    return 0


def load(out: Path) -> list[Run]:
    """Return the cells of each finished rerun, without the ceilings."""
    runs = []
    for marker in sorted(out.glob(f"*/{FINISHED}")):
        with Store.open_readonly(marker.parent) as store:
            found = list(store.measurements())
        runs.append([m for m in found if CEILING not in (m.cell.op, m.cell.impl)])
    return runs


def comparisons(runs: Sequence[Run], factor: float) -> list[list[Comparison]]:
    """Compare each run with the first and the one before; every sample of B times the factor."""
    first = [(0, i) for i in range(1, len(runs))]
    before = list(pairwise(range(len(runs))))
    return [
        compare([both for both in pair(runs[a], slowed(runs[b], factor)) if not both.unsupported])
        for a, b in dict.fromkeys([*first, *before])
    ]


def slowed(run: Run, factor: float) -> Run:
    return [replace(m, samples_us=tuple(us * factor for us in m.samples_us)) for m in run]


@dataclass(frozen=True)
class Seen:
    """One cell over all reruns: the mean of its medians and their relative standard deviation.

    plain, large, small  its verdicts as measured, and with a slow-down of 5 % and of 1 % in B
    """

    us: float | None
    scatter: float | None
    plain: Counter[Verdict]
    large: Counter[Verdict]
    small: Counter[Verdict]


def seen(runs: Sequence[Run], *three: Sequence[Sequence[Comparison]]) -> dict[str, Seen]:
    """Return what became of each cell in the comparisons without, with 5 % and with 1 %."""
    medians: dict[str, list[float]] = {m.cell.key: [] for run in runs for m in run}
    for measurement in (m for run in runs for m in run if m.samples_us):
        medians[measurement.cell.key].append(stats.median(measurement.samples_us))
    verdicts = [_verdicts(found) for found in three]
    return {
        name: Seen(
            fmean(found) if found else None,
            stdev(found) / fmean(found) if found[1:] else None,
            *(counted[name] for counted in verdicts),
        )
        for name, found in medians.items()
        if verdicts[0][name]
    }


def _verdicts(found: Sequence[Sequence[Comparison]]) -> defaultdict[str, Counter[Verdict]]:
    counted: defaultdict[str, Counter[Verdict]] = defaultdict(Counter)
    for one in (one for each in found for one in each):
        place = (one.op, one.impl_a, one.direction, one.case, one.dtype, one.layout, one.device)
        counted[Cell(*place).key][one.verdict] += 1
    return counted


def exit_codes(found: Sequence[Sequence[Comparison]]) -> Counter[int]:
    """Return how many of the comparisons end with which exit code of `fuselab compare`."""
    nothing = summary([])
    return Counter(Result(each, summary(each), nothing, 0, ()).exit_code for each in found)


def bars(cells: Collection[Seen], reruns: int, codes: Counter[int]) -> list[tuple[str, bool]]:
    """Return each bar with its figure, and whether it is reached."""
    plain = sum((cell.plain for cell in cells), Counter[Verdict]())
    different, decided = plain[Verdict.SLOWER] + plain[Verdict.FASTER], _decided(plain)
    failed = codes.total() - codes[exits.OK]
    return [
        (
            f"{reruns} reruns of {len(cells)} cells (at least {RERUNS} of {CELLS})",
            reruns >= RERUNS and len(cells) >= CELLS,
        ),
        (
            f"called different: {_share(different, decided)} of the decided (at most {CALLED:.0%})",
            decided > 0 and different <= CALLED * decided,
        ),
        (
            f"gate failures: {failed} of {codes.total()} comparisons "
            f"(exit code 1: {codes[exits.FAILED]}, 3: {codes[exits.NO_DATA]})",
            failed == 0,
        ),
        *_slow_downs(cells),
    ]


def _slow_downs(cells: Collection[Seen]) -> list[tuple[str, bool]]:
    large = sum((c.large for c in cells if (c.us or 0) >= LARGE_US), Counter[Verdict]())
    small = sum((c.small for c in cells), Counter[Verdict]())
    found, asked = large[Verdict.SLOWER], large.total()
    called, decided = small[Verdict.SLOWER], _decided(small)
    return [
        (
            f"5 % slow-down found: {_share(found, asked)} of all from {LARGE_US:g} us on "
            f"(at least {FOUND:.0%})",
            asked > 0 and found >= FOUND * asked,
        ),
        (
            f"1 % slow-down called slower: {_share(called, decided)} of the decided "
            f"(at most {CALLED:.0%})",
            decided > 0 and called <= CALLED * decided,
        ),
    ]


def _decided(verdicts: Counter[Verdict]) -> int:
    return verdicts.total() - verdicts[Verdict.UNKNOWN]


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f", {part / whole:.2%}" if whole else "")


def unknown(found: Sequence[Sequence[Comparison]]) -> list[str]:
    """Return why cells had no verdict, with the numbers left out of the reasons."""
    reasons = [c.reason for each in found for c in each if c.verdict is Verdict.UNKNOWN]
    counted = Counter(re.sub(r"\d[\d.]*", "N", reason) for reason in reasons)
    return [f"unknown: {len(reasons)}", *(f"  {n}: {why}" for why, n in counted.most_common())]


def scatter(cells: Collection[Seen]) -> str:
    known = [cell.scatter for cell in cells if cell.scatter is not None]
    if not known:
        return "scatter between reruns: no cell has two numbers"
    middle, high = np.quantile(known, (0.5, 0.95))
    return (
        "scatter between reruns (standard deviation of a cell's medians over their mean): "
        f"median {middle:.2%}, 95th percentile {high:.2%}, worst {max(known):.2%}"
    )


def table(cells: Mapping[str, Seen]) -> list[str]:
    """Return one line a cell: its time, its scatter, and how often it was called what."""
    wide = max(map(len, cells))
    heads = ("us", "scatter", "different", "5 %", "1 %")
    lines = [f"{'cell':{wide}}  " + " ".join(f"{head:>10}" for head in heads)]
    for name, cell in sorted(cells.items(), key=lambda item: item[1].us or 0):
        different = cell.plain[Verdict.SLOWER] + cell.plain[Verdict.FASTER]
        columns = (
            "n/a" if cell.us is None else f"{cell.us:.3f}",
            "n/a" if cell.scatter is None else f"{cell.scatter:.2%}",
            f"{different}/{cell.plain.total()}",
            f"{cell.large[Verdict.SLOWER]}/{cell.large.total()}",
            f"{cell.small[Verdict.SLOWER]}/{cell.small.total()}",
        )
        lines.append(f"{name:{wide}}  " + " ".join(f"{text:>10}" for text in columns))
    return lines


def judge(*outs: Path) -> int:
    each = {out: load(out) for out in outs}
    for out, own in each.items():
        if len(own) < 2:
            sys.exit(f"{out}: {len(own)} finished reruns, expected at least 2")
    runs = list(chain(*each.values()))
    plain, large, small = (
        list(chain(*(comparisons(own, factor) for own in each.values())))
        for factor in (1.0, LARGE, SMALL)
    )
    cells = seen(runs, plain, large, small)
    arguments = json.loads(min(outs[0].glob(f"*/{FINISHED}")).read_text())
    print(f"fuselab run {' '.join(arguments)}")
    print("different: slower or faster as measured, of so many comparisons")
    print("5 %, 1 %: called slower after every sample of B was multiplied by 1.05, 1.01\n")
    print("\n".join([*table(cells), "", scatter(cells.values()), *unknown(plain)]))
    verdicts = bars(cells.values(), len(runs), exit_codes(plain))
    print("\n".join(f"{text}: {'pass' if good else 'FAIL'}" for text, good in verdicts))
    return 0 if all(good for _, good in verdicts) else 1


def main() -> int:
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["measure", "judge"])
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--reruns", type=int, default=RERUNS)
    options = parser.parse_args(words[:cut])
    if options.verb == "judge":
        return judge(*options.out)
    if len(options.out) > 1:
        parser.error(f"measure: {len(options.out)} folders, expected one")
    return measure(options.out[0], options.reruns, words[cut + 1 :] or ARGUMENTS)


if __name__ == "__main__":
    sys.exit(main())
