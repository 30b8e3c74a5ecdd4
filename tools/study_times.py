"""The parts of docs/study.md about times: where compiling wins, steps, the boundary, the host."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import study_results as results
from study_results import H100, H200, Grid, Size

# Nearer to 1 neither side is the faster one, as in `fuselab compare`.
EQUAL = 0.03
# The 65th size that the study's loop compiles, and how near to 1 eager is to itself.
BOUNDARY, ITSELF = (8192, 2048), 0.02
GRIDS = {"H200": "", "A100": "study-a100", "RTX 3090": "study-rtx3090"}
BENCH_CASE = (1024, 4096)
LAB = H200 / "lab-2026-11-22"
SEED = LAB / "seed-rmsnorm.md"
BACKWARD = H200 / "fusion-2026-11-23" / "cells-bwd.csv"


def link(file: Path, text: str = "", line: int = 0, anchor: str = "") -> str:
    """Return a link from docs/ to a file, at a line of it or at a heading."""
    place = f"#L{line}" if line else "#" + re.sub(r"[^\w-]", "", anchor.replace(" ", "-"))
    return f"[{text or file.name}](../{file.relative_to(results.ROOT)}{place.rstrip('#')})"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return Markdown; columns of numbers are to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    sides = ["---:" if all(map(_is_number, column)) else "---" for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, sides, *cells))


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"([-+]?[\d.,]+%?( (to|of) [\d.]+)?)?", cell) is not None


def ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's coefficient, equal values having the mean of their ranks."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def grids(gpu: str) -> dict[str, Grid]:
    return results.published(GRIDS[gpu]) if GRIDS[gpu] else results.fusion()


def wins() -> str:
    """Where torch.compile wins, by operator: H200, beside the study's GPUs."""
    ours = grids("H200")
    slower = {op: [size for size, r in g.ratios.items() if r < 1 - EQUAL] for op, g in ours.items()}
    lost, total = sum(map(len, slower.values())), sum(len(g.ratios) for g in ours.values())
    losers = ", ".join(f"{op} ({len(sizes)})" for op, sizes in slower.items() if sizes)
    least, most = (pick(ours.values(), key=_median) for pick in (min, max))
    said = (
        f"On an H200 torch.compile's kernels take longer than eager's in {lost} of {total} cells: "
        f"{losers}; {_where(size for sizes in slower.values() for size in sizes)}. The median of "
        f"eager / compile is {ratio(_median(least))} for {least.op} to {ratio(_median(most))} for "
        f"{most.op}."
    )
    back = _backward()
    rows = [
        [
            link(g.file, f"`{op}`"),
            *_spread([*g.ratios.values()]),
            len(slower[op]),
            f"{ratio(median(back[op]))} ({len(back[op])})" if op in back else "",
            *(_beside(gpu, op) for gpu in ("A100", "RTX 3090")),
        ]
        for op, g in ours.items()
    ]
    headings = ["fp32 forward, H200", "cells", "median", "range", "slower in",
                link(BACKWARD, "backward"), "A100 (study)", "RTX 3090 (study)"]  # fmt: skip
    return f"{wrap(said)}\n\n{table(headings, rows)}"


LOSSES: Mapping[str, Callable[[Size], bool]] = {
    "up to 256 columns": lambda size: size[1] <= 256,
    "up to 256 rows of 4096 columns or more": lambda size: size[0] <= 256 and size[1] >= 4096,
    "2048 columns": lambda size: size[1] == 2048,
}


def _where(sizes: Iterable[Size]) -> str:
    """Return where in the grid these sizes are."""
    known = list(sizes)
    parts = [f"{sum(map(is_so, known))} of {name}" for name, is_so in LOSSES.items()]
    rest = sum(not any(is_so(size) for is_so in LOSSES.values()) for size in known)
    return f"{', '.join(parts)}, {rest} of other sizes"


def _backward() -> dict[str, list[float]]:
    """Return eager over compile of the backward cells on the H200, by operator."""
    rows = results.records(BACKWARD)
    timed = [(r["op"], r["case"], r["impl"], float(r["kernel_us"])) for r in rows]
    return _by_op(timed)


def _median(g: Grid) -> float:
    return median(g.ratios.values())


def _beside(gpu: str, op: str) -> str:
    theirs = grids(gpu).get(op)
    if theirs is None:
        return "-"
    slower = sum(r < 1 - EQUAL for r in theirs.ratios.values())
    return f"{ratio(_median(theirs))}, slower in {slower}"


def wrap(text: str) -> str:
    """Return a paragraph that fits a terminal; links are not broken."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 100:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


# Sides at most a factor of two apart, or at least one of 32.
SHAPES: Mapping[str, Callable[[Size], bool]] = {
    "near-square": lambda size: abs(_aspect(size)) <= 1,
    "wide": lambda size: _aspect(size) >= 5,
    "tall": lambda size: _aspect(size) <= -5,
}


def _aspect(size: Size) -> float:
    return math.log2(size[1] / size[0])


def shapes() -> str:
    """Whether near-square tensors gain more, and whether the gain follows the size."""
    ops = [op for op in grids("H200") if op in grids("A100")]
    part = {(gpu, op): _by_shape(grids(gpu)[op]) for gpu in GRIDS for op in ops}
    wide = {
        gpu: sum(part[gpu, op]["wide"] < part[gpu, op]["near-square"] for op in ops)
        for gpu in GRIDS
    }
    tall = {
        gpu: sum(part[gpu, op]["tall"] < part[gpu, op]["near-square"] for op in ops)
        for gpu in GRIDS
    }
    said = "; ".join(
        f"{gpu}: wide below near-square in {wide[gpu]} of {len(ops)} operators, tall in {tall[gpu]}"
        for gpu in GRIDS
    )
    follows = {op: _with_size(grids("H200")[op]) for op in ops}
    signs = f"{ratio(min(follows.values()))} to {ratio(max(follows.values()))}"
    said += (
        f". On the H200 the rank correlation of the ratio with the number of elements is {signs}."
    )
    rows = [
        [
            f"`{op}`",
            *(ratio(part[gpu, op][shape]) for gpu in ("H200", "RTX 3090") for shape in SHAPES),
            f"{follows[op]:+.2f}",
        ]
        for op in ops
    ]
    headings = [f"{gpu}, {shape}" for gpu in ("H200", "RTX 3090") for shape in SHAPES]
    made = table(["eager / compile, mean", *headings, "H200, with size"], rows)
    return f"{wrap(said)}\n\n{made}"


def _by_shape(g: Grid) -> dict[str, float]:
    return {
        name: mean(r for size, r in g.ratios.items() if is_so(size))
        for name, is_so in SHAPES.items()
    }


def _with_size(g: Grid) -> float:
    return rank_correlation([rows * columns for rows, columns in g.ratios], [*g.ratios.values()])


def others() -> str:
    """Products and convolutions on the H200, forward and backward."""
    rows: list[list[object]] = []
    ratios = []
    for folder in ("products-2026-11-27", "convolutions-2026-11-27"):
        file = H200 / folder / "times.txt"
        listed = results.listing(file)
        forward, backward = (
            _by_op((t.op, t.case, t.impl, t.us) for t in listed if t.us and t.direction == word)
            for word in ("fwd", "bwd")
        )
        for op, these in forward.items():
            rows.append([link(file, f"`{op}`"), *_spread(these), *_spread(backward[op])])
            ratios += [*these, *backward[op]]
    lost = sum(r < 1 - EQUAL for r in ratios)
    said = (
        "Of the products and convolutions that the study lists without numbers, compiled kernels "
        f"are slower in {lost} of {len(ratios)} cells."
    )
    headings = ["bf16, H200", "cells", "forward", "range", "cells", "backward", "range"]
    return f"{wrap(said)}\n\n" + table(headings, rows)


def _by_op(timed: Iterable[tuple[str, str, str, float]]) -> dict[str, list[float]]:
    """Return eager's times over compile's by operator, of the cases that have both."""
    known = {(op, case, impl): us for op, case, impl, us in timed}
    found: dict[str, list[float]] = {}
    for op, case, impl in known:
        if impl == "eager" and (op, case, "compile") in known:
            found.setdefault(op, []).append(known[op, case, impl] / known[op, case, "compile"])
    return found


def _spread(values: Sequence[float]) -> list[object]:
    return [len(values), ratio(median(values)), f"{ratio(min(values))} to {ratio(max(values))}"]


def rms_norm() -> list[tuple[results.Row, dict[str, float]]]:
    """Return each size of rms_norm, fp32 forward, H200, with the us of eager and torch.compile."""
    rows = results.section(SEED, "## rms_norm forward on cuda:0", "### float32")
    impls = ("eager", "compile")
    return [(row, {i: float(row[f"{i} (us)"].strip("*")) for i in impls}) for row in rows]


def staircase() -> str:
    """Times over size: flat, then one step for each doubling; the same along equal sizes."""
    by_size: dict[int, dict[str, list[float]]] = {}
    for row, us in rms_norm():
        size = math.prod(map(int, row["case"].split("x")))
        if size & (size - 1) == 0:
            for impl, time in us.items():
                by_size.setdefault(size, {}).setdefault(impl, []).append(time)
    sizes = sorted(by_size)[::2]
    mid = {i: [median(by_size[n][i]) for n in sizes] for i in ("eager", "compile")}
    step = {i: [b / a for a, b in pairwise(us)] for i, us in mid.items()}
    several = [n for n in by_size if len(by_size[n]["compile"]) > 1]
    apart = median(max(by_size[n]["compile"]) / min(by_size[n]["compile"]) - 1 for n in several)
    said = (
        f"rms_norm, fp32, H200 ({link(SEED, 'all sizes')}): at first {sizes[2] // sizes[0]} times "
        f"the elements take compiled code {mid['compile'][2] / mid['compile'][0]:.2f} times as "
        f"long, in the end four times the elements {step['compile'][-1]:.2f} times. Shapes of "
        f"equally many elements are within {apart:.0%} of each other in the median size: the steps "
        "are the diagonals of the grid."
    )
    made = table(
        ["elements", "shapes", "eager, us", "compiled, us", "eager, step", "compiled, step"],
        [
            [f"{n:,}", len(by_size[n]["compile"]), *(f"{us[i]:.1f}" for us in mid.values()),
             *(f"{these[i - 1]:.2f}" if i else "" for these in step.values())]
            for i, n in enumerate(sizes)
        ],
    )  # fmt: skip
    return f"{wrap(said)}\n\n{made}"


def boundary() -> str:
    """Before and after the 65th size: how often "compiled" takes as long as eager itself."""
    share = {(gpu, op): _as_eager(g) for gpu in GRIDS for op, g in grids(gpu).items()}
    ops = [op for op in grids("H200") if op in grids("A100")]

    def total(gpu: str, after: bool) -> str:
        counts = [share[gpu, op][after] for op in ops]
        return f"{sum(n for n, _ in counts) / sum(of for _, of in counts):.0%}"

    rows = "x".join(map(str, BOUNDARY))
    said = "; ".join(
        f"{gpu}: {total(gpu, False)} of the cells before {rows}, {total(gpu, True)} from it on"
        for gpu in ("A100", "RTX 3090", "H200")
    )
    said = f"Cells in which compiled and eager code differ by less than {ITSELF:.0%}: {said}."
    made = table(
        ["differ by less than 2 %", *(f"{gpu}, {w}" for gpu in GRIDS for w in ("before", "after"))],
        [[f"`{op}`", *(f"{n} of {of}" for gpu in GRIDS for n, of in share[gpu, op])] for op in ops],
    )
    return f"{wrap(said)}\n\n{made}"


def _as_eager(g: Grid) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return how many cells of how many are as fast as eager: before the boundary, from it on."""
    # The study's loop goes through the columns of a row, then to the next row.
    parts = (
        [r for size, r in g.ratios.items() if (size >= BOUNDARY) is late] for late in (False, True)
    )
    before, after = ((sum(abs(r - 1) <= ITSELF for r in part), len(part)) for part in parts)
    return before, after


def host() -> str:
    """Kernels beside whole calls: where compiling makes the kernels faster and the call slower."""
    benches = {"H200": results.INSIDE, "H100": H100 / results.INSIDE.name}
    calls = {gpu: results.compile_bench(folder) for gpu, folder in benches.items()}
    rows, turned = [], dict.fromkeys(benches, 0)
    for op, g in grids("H200").items():
        kernels = g.ratios.get(BENCH_CASE)
        if kernels is None:
            continue
        whole = {gpu: calls[gpu][op]["eager_us"] / calls[gpu][op]["compiled_us"] for gpu in benches}
        for gpu, r in whole.items():
            turned[gpu] += kernels > 1 + EQUAL and r < 1 - EQUAL
        us = [f"{calls[g][op][k]:.0f}" for g in benches for k in ("eager_us", "compiled_us")]
        rows.append([f"`{op}`", ratio(kernels), *map(ratio, whole.values()), *us])
    files = ", ".join(link(f / "compile-bench-cuda.md", gpu) for gpu, f in benches.items())
    case = "x".join(map(str, BENCH_CASE))
    said = (
        f"At {case}, fp32, compiled kernels are faster and the whole call is slower for "
        f"{turned['H200']} of {len(rows)} operators on the H200 and {turned['H100']} on the H100 "
        f"(calls: {files})."
    )
    headings = ["eager / compile", "kernels, H200", *(f"call, {gpu}" for gpu in benches)]
    headings += [f"{gpu}, {k}, us" for gpu in benches for k in ("eager", "compiled")]
    return f"{wrap(said)}\n\n{table(headings, rows)}"


def gpus() -> str:
    """One case on both GPUs: the H100 beside the H200."""
    csv = H100 / "week12-2026-11-25" / "week12.csv"
    page = H200 / "rms_norm-2026-11-22" / "week12.md"
    rows, here, there = results.records(csv), {}, {}
    for direction, word in (("fwd", "forward"), ("bwd", "backward")):
        (row,) = results.section(page, f"## rms_norm {word} on cuda:0", "### bfloat16")
        for impl in ("eager", "compile", "native", "triton", "cuda"):
            there[impl, word] = float(row[f"{impl} (us)"].strip("*"))
            here[impl, word] = float(
                next(
                    r["median_us"] for r in rows if (r["impl"], r["direction"]) == (impl, direction)
                )
            )
    quick = {key: here[key] / there[key] for key in here}
    said = (
        f"rms_norm, {rows[-1]['case']}, bf16: the H200 is {min(quick.values()):.2f} to "
        f"{max(quick.values()):.2f} times as fast as the H100 ({link(csv)}, {link(page)})."
    )
    made = [
        [f"`{impl}`", *(f"{of[impl, word]:.{digits}f}" for word in ("forward", "backward")
                        for of, digits in ((here, 1), (there, 1), (quick, 2)))]
        for impl in dict.fromkeys(impl for impl, _ in here)
    ]  # fmt: skip
    headings = [f"{word}, {what}" for word in ("forward", "backward")
                for what in ("H100, us", "H200, us", "H100 / H200")]  # fmt: skip
    return f"{wrap(said)}\n\n" + table(["", *headings], made)


def small() -> str:
    """Softmax of growing sizes on both GPUs, by the lab's timer."""
    file, timed = results.METHODS["cuda"], results.FUSION / "times.csv"
    there = {
        r["case"]: r
        for r in results.records(timed)
        if (r["op"], r["dtype"]) == ("softmax", "float32")
    }
    rows, quick = [], []
    cells = [row for row in results.methods("cuda")[1] if row.method == "lab"]
    for eager, compiled in zip(cells[::2], cells[1::2], strict=True):
        pair = [(median(r.us), float(there[r.case][r.impl])) for r in (eager, compiled)]
        ratios = [a / b for a, b in pair]
        quick += ratios
        rows.append([eager.case, *(text for (a, b), c in zip(pair, ratios, strict=True)
                                   for text in (f"{a:.2f}", f"{b:.2f}", f"{c:.2f}"))])  # fmt: skip
    said = (
        f"softmax, fp32, forward: the H200 is {min(quick):.2f} to {max(quick):.2f} times as fast "
        f"({link(file.with_suffix('.md'))}, {link(timed)})."
    )
    headings = [f"{impl}, {what}" for impl in ("eager", "compiled")
                for what in ("H100, us", "H200, us", "H100 / H200")]  # fmt: skip
    return f"{wrap(said)}\n\n" + table(["", *headings], rows)
