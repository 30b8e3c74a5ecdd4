"""The parts of docs/study.md about causes: compiling, counters, memory, the tuner, timers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import study_results as results
from study_results import H100, Mode, Tuning
from study_times import LAB, SEED, link, rank_correlation, ratio, rms_norm, table, wrap

from fuselab.study.record import names, summary

SOFTMAXES = (
    *("naive_softmax", "compiled_naive_softmax", "nn_softmax", "compiled_nn_softmax"),
    "torch_softmax",
)
COUNTERS = {
    "dram_read_bytes": "bytes read from memory",
    "dram_write_bytes": "bytes written to memory",
    "load_sectors": "load sectors (L2)",
    "store_sectors": "store sectors (L2)",
    "load_hit_rate": "hit rate of loads",
    "store_hit_rate": "hit rate of stores",
    "instructions": "instructions",
    "measured_flops": "FLOPs",
    "launches": "kernels",
    "peak_bytes": "peak of memory",
    "energy_j": "energy",
}
PERSISTENT, LOOPED = "persistent_reduction", "reduction"
SHOWN = (
    *("masked_softmax", "norm_chain", "pointwise_chain", "rms_norm", "softmax"),
    "attention_pytorch",
)
STAGES = ", 1 stages"
TEN_TUNINGS = re.compile(r"fastest in its own tuning; the fastest of 10 tunings: (.*?); the second")


def limit() -> str:
    """What happens beyond the limit of compilations today."""
    file, modes = results.explain_file("many_sizes"), results.explained("many_sizes")
    static, dynamic, eager = modes["static"], modes["dynamic"], modes["as it is"]
    again = file.read_text().partition("\nstatic\n")[2].count("  recompilation ")
    left = results.found_in(file, r"limit: .*expected \d+, actual (\d+)")
    compiled = _range(us for size, us in static.us.items() if int(size) < int(left))
    beyond = _range(us for size, us in static.us.items() if int(size) >= int(left))
    said = (
        f"torch {_torch('many_sizes')}, H200: compiled for each size, a function is compiled "
        f"{again + 1} times; from size number {again + 2} on it runs eagerly, without an error "
        f"({link(file, 'limit', results.line_of(file, '  limit: '))}). A later call takes "
        f"{compiled} us where it was compiled and {beyond} us beyond the limit, eager itself "
        f"{_range(eager.us.values())} us. Compiled for any size it has one graph and takes "
        f"{_range(dynamic.us.values())} us."
    )
    return wrap(said)


def _range(values: Iterable[float]) -> str:
    known = sorted(values)
    return f"{known[0]:.0f} to {known[-1]:.0f}"


def _torch(name: str) -> str:
    return results.found_in(results.explain_file(name), r"^  torch ([\d.]+)")


def softmaxes() -> str:
    """The five softmaxes: kernels and calls of the GPU's API of one later call."""
    rows = []
    for name in SOFTMAXES:
        mode = results.explained(name)["as it is"]
        ((kind, (number, operations)),) = mode.kernels.items()
        calls = ", ".join(f"`{call}` {count}" for call, count in mode.calls.items())
        us = " and ".join(f"{value:.0f}" for value in mode.us.values())
        file = link(results.explain_file(name), f"`{name}`", mode.line)
        rows.append([file, f"{number} {kind}: {operations}", calls, f"{_first(mode):.3f}", us])
    texts = [results.explain_file(name).read_text() for name in SOFTMAXES]
    drawn = sum("distribution" in text for text in texts)
    compiled, plain = (
        [us for n in SOFTMAXES if n.startswith("compiled") is kind
         for us in results.explained(n)["as it is"].us.values()]
        for kind in (True, False)
    )  # fmt: skip
    said = (
        f"A call of what is compiled runs one kernel and takes {min(compiled):.0f} to "
        f"{max(compiled):.0f} us from Python; naive, `nn.Softmax` and `torch.softmax` as they are "
        f"take {min(plain):.0f} to {max(plain):.0f} us. {drawn} of the five records has a kernel "
        "with `distribution` in its name: their inputs are made before the call is recorded. "
        f"{_launches()}"
    )
    headings = ["rows of 1024, 128 and 256 of them", "kernels of a call", "the GPU's API",
                "first call, s", "later call, us"]  # fmt: skip
    return f"{wrap(said)}\n\n{table(headings, rows)}"


def _launches() -> str:
    """Return which calls launch kernels, where they are of several makers."""
    modes = results.explained("attention_pytorch")
    parts = []
    for word, said in (("as it is", "eager"), ("static", "compiled")):
        mode = modes[word]
        made = ", ".join(f"{number} {kind}" for kind, (number, _) in mode.kernels.items())
        calls = ", ".join(f"`{n}` {c}" for n, c in mode.calls.items() if "Launch" in n)
        file = link(results.explain_file("attention_pytorch"), said, mode.line)
        parts.append(f"{file} ({made}): {calls}")
    return f"Of `attention_pytorch`, {'; '.join(parts)}."


def _first(mode: Mode) -> float:
    return next(iter(mode.first_s.values()))


def _counted() -> list[results.Row]:
    """Return the cells with counters: implementations of one case, both directions."""
    cells = results.records(LAB / "nine.csv")
    return [c for c in cells if c["op"] == "rms_norm" and c["status"] == "ok" and c["instructions"]]


def correlation() -> str:
    """Every counter against the time, over the implementations of one case."""
    cells = _counted()
    case, dtype = cells[0]["case"], cells[0]["dtype"]
    found = {
        (name, way): _with_time([c for c in cells if c["direction"] == way], name)
        for name in COUNTERS
        for way in ("fwd", "bwd")
    }
    both = {name: min(found[name, way] for way in ("fwd", "bwd")) for name in COUNTERS}
    best = sorted(both, key=lambda name: -both[name])[:3]
    number = sum(c["direction"] == "fwd" for c in cells)
    sizes, times = zip(*((math.prod(map(int, row["case"].split("x"))), us["compile"])
                         for row, us in rms_norm()), strict=True)  # fmt: skip
    said = (
        f"rms_norm {case}, {dtype}, {number} implementations, H200 ({link(LAB / 'nine.csv')}): the "
        "strongest in both directions are "
        + ", ".join(f"{COUNTERS[name]} ({both[name]:.2f} or more)" for name in best)
        + f". Over {len(sizes)} sizes of rms_norm, fp32, the time of torch.compile follows the "
        f"number of elements with {rank_correlation(sizes, times):.3f} ({link(SEED)})."
    )
    rows = [[words, *(f"{found[name, way]:+.2f}" for way in ("fwd", "bwd"))]
            for name, words in COUNTERS.items()]  # fmt: skip
    headings = ["rank correlation with the time", "forward", "backward"]
    return f"{wrap(said)}\n\n{table(headings, rows)}"


def _with_time(cells: Sequence[results.Row], name: str) -> float:
    times = [float(cell["median_us"]) for cell in cells]
    return rank_correlation([float(cell[name]) for cell in cells], times)


def loads() -> str:
    """Global loads and stores before and after compiling."""
    cells = {(c["impl"], c["direction"]): c for c in _counted()}
    rows, fewer = [], []
    for way, word in (("fwd", "forward"), ("bwd", "backward")):
        for impl in ("eager", "compile"):
            cell = cells[impl, way]
            millions = [f"{float(cell[f'{n}_sectors']) / 1e6:.2f}" for n in ("load", "store")]
            hits = [f"{float(cell[f'{n}_hit_rate']):.1%}" for n in ("load", "store")]
            file = link(
                LAB / "nine.csv", f"`{impl}`", results.line_of(LAB / "nine.csv", _key(cell))
            )
            us = f"{float(cell['median_us']):.1f}"
            rows.append([f"{file}, {word}", cell["launches"], *millions, *hits, us])
        eager, compiled = (float(cells[i, way]["load_sectors"]) for i in ("eager", "compile"))
        fewer.append(f"{compiled / eager:.2f} {word}")
    case = _counted()[0]["case"]
    said = (
        f"Compiling does not raise the loads: rms_norm {case}, bf16, H200, requests "
        f"{' and '.join(fewer)} of eager's load sectors from L2."
    )
    headings = ["", "kernels", "load sectors, M", "store sectors, M", "hits of loads",
                "hits of stores", "us"]  # fmt: skip
    return f"{wrap(said)}\n\n{table(headings, rows)}"


def _key(cell: results.Row) -> str:
    return f"{cell['op']},{cell['impl']},{cell['role']},{cell['direction']},"


def memory() -> str:
    """What ran out of memory, and what the fused versions hold."""
    file = H100 / "attention-2026-11-27" / "forward.txt"
    lines = results.listing(file)
    failed = {t.case: t for t in lines if t.status == "out_of_memory"}
    room = int(
        results.found_in(H100 / "week12-2026-11-25" / "wheel.txt", r"gpu_memory_bytes\s+(\d+)")
    )
    gone = {t.impl for t in lines if t.case in failed and t.status == "out_of_memory"}
    ran = dict.fromkeys(t.impl for t in lines if t.case in failed and t.us)
    cases = ", ".join(link(file, case, one.line) for case, one in failed.items())
    peaks = {(c["impl"], c["direction"]): int(c["peak_bytes"]) for c in _counted()}
    parts = " and ".join(
        f"{peaks['compile', way] / peaks['eager', way]:.2f} {word}"
        for way, word in (("fwd", "forward"), ("bwd", "backward"))
    )
    said = (
        f"Of attention (bf16, H100 of {room / 2**30:.0f} GiB) {cases} are out of memory in "
        f"{', '.join(sorted(gone))} and run in {', '.join(ran)}. Of rms_norm "
        f"{_counted()[0]['case']} torch.compile's peak of memory is {parts} of eager's "
        f"({link(LAB / 'nine.csv')})."
    )
    return wrap(said)


def tuner() -> str:
    """What the tuner of torch.compile tries and keeps."""
    found = [t for t in results.tunings() if t.heuristic in ("pointwise", PERSISTENT, LOOPED)]
    file = results.INSIDE / "candidates.md"
    unsure = [t for t in found if _winners(t) > 1]
    losses = [_loss(t) for t in found if len(t.configurations) > 1]
    single = sum(len(t.configurations) == 1 for t in found)
    said = (
        f"Of {len(found)} kernels ({link(file)}, H200) {single} have one configuration and nothing "
        f"to choose. Of the {len(losses)} others {len(unsure)} have more than one winner in ten "
        f"tunings; what is kept takes up to {max(losses):.0%} more than the fastest in the median "
        f"of the ten. Reductions over rows of {_hints(PERSISTENT)} elements are persistent, those "
        f"over {_hints(LOOPED)} are loops."
    )
    both = {(t.subject, t.kernel, t.autotune): t for t in found}
    rows = []
    for t in found:
        on = both.get((t.subject, t.kernel, "on"))
        if t.autotune == "off" and on and t.subject in SHOWN:
            hints = " ".join(f"{name}={value}" for name, value in t.hints.items())
            us = [us for _, us in on.configurations]
            kept = [f"{len(x.configurations)}: {x.kept.removesuffix(STAGES)}" for x in (t, on)]
            told = link(file, f"`{t.subject}`", anchor=_heading(t)), t.heuristic.replace("_", " ")
            rows.append([*told, hints, *kept, f"{max(us) / min(us):.1f}"])
    headings = ["H200, fp32", "heuristic", "size hints", "tried: kept", "with max-autotune",
                "slowest / fastest"]  # fmt: skip
    return f"{wrap(said)}\n\n{table(headings, rows)}"


def _hints(heuristic: str) -> str:
    """Return the size hints of what a heuristic reduces."""
    found = {t.hints["r0_"] for t in results.tunings() if t.heuristic == heuristic}
    return ", ".join(map(str, sorted(found)))


def _heading(t: Tuning) -> str:
    return f"{t.subject}, max-autotune {t.autotune}"


def _loss(t: Tuning) -> float:
    """Return how much longer the kept configuration takes than the fastest."""
    times = dict(t.configurations)
    return times[t.kept] / min(times.values()) - 1


def _winners(t: Tuning) -> int:
    """Return how many configurations were the fastest in one of ten tunings."""
    text = (results.INSIDE / "candidates.md").read_text().partition(f"\n## {_heading(t)}\n")[2]
    told = text.partition(f"`{t.kernel}`: ")[2].partition("\n")[0]
    seen = TEN_TUNINGS.search(told)
    return len(re.findall(r"stages \d+(?:,|$)|\d+ more", seen[1])) if seen else 0


def layout() -> str:
    """Bandwidth and tile of bias_dropout_add on transposed operands."""
    file = results.H200 / "fusion-2026-11-23" / "layout.md"
    parts = []
    for columns in (1024, 128):
        text = f"x: n x {columns}, fp32, GB/s; tile of Triton: {columns}'s axis x n's axis"
        parts.append(results.section(file, text))
    of_torch = {
        name: " and ".join(ratio(float(p[-1][name]) / float(p[-1]["Torch"])) for p in parts)
        for name in ("Inductor", "Triton")
    }
    said = (
        f"At {parts[0][-1]['n']} rows Inductor's bandwidth is {of_torch['Inductor']} times "
        f"torch's, that of our Triton kernel {of_torch['Triton']} times ({link(file)})."
    )
    names = ("Torch", "Inductor", "Triton", "tile")
    rows = [
        [long["n"], *(part[name] for part in (long, short) for name in names)]
        for long, short in zip(*parts, strict=True)
    ]
    headings = [f"{columns}: {name}" for columns in (1024, 128)
                for name in ("torch", "Inductor", "ours", "our tile")]  # fmt: skip
    return f"{wrap(said)}\n\n" + table(["rows; GB/s by columns", *headings], rows[::3])


def timers() -> str:
    """What the lab's timers add to work of known length, and ncu beside CUPTI."""
    file = LAB / "doctor.txt"
    told = {"cupti": "the lab's timer (CUPTI)", "graph": "CUDA graph", "events": "CUDA events"}
    shortest = results.found_in(file, r"the shortest kernel: (.*)")
    rows = []
    for name, words in told.items():
        slope = results.found_in(file, rf"timer {name}\s.*slope ([\d.]+)")
        offset = results.found_in(file, rf"timer {name}\s.*offset ([+\d.]+) us")
        least = results.found_in(file, rf"the shortest kernel: .*?{name} ([\d.]+) us")
        place = link(file, line=results.line_of(file, f"timer {name} "))
        rows.append([words, slope, offset, least, place])
    spins = LAB / "against-ncu-spins.txt"
    ncu = (
        results.found_in(spins, r"ncu reads slope ([\d.]+)"),
        results.found_in(spins, r"ncu reads slope [\d.]+ and (\S+) us"),
    )
    rows.append(["Nsight Compute", *ncu, "", link(spins, line=2)])
    past = LAB / "predecessors.txt"
    alone = results.found_in(past, r"cuda\s+nothing\s+([\d.]+)")
    after = results.found_in(past, r"cuda\s+eager\+scrub\s+([\d.]+)")
    said = (
        f"Work of known length on an H200. The shortest kernel: {shortest}. What ran before "
        f"counts, too: one kernel took {alone} us, and {after} after a kernel of eager's "
        f"({link(past, line=results.line_of(past, 'eager+scrub'))})."
    )
    headings = ["timer", "slope", "offset, us", "shortest kernel, us", "file"]
    return f"{wrap(said)}\n\n{table(headings, rows)}"


def methods() -> str:
    """Bias and scatter of each method on a GPU, and of those that exist on a CPU."""
    about, made = [], {}
    for kind, where in (("cuda", "an H100"), ("cpu", "a CPU")):
        noise, rows = results.methods(kind)
        for one in (summary(name, rows) for name in names(kind)):
            made.setdefault(one.method, []).extend(
                [f"{one.bias:+.1%}", f"{one.least:+.1%} to {one.most:+.1%}", f"{one.scatter:.1%}",
                 ratio(one.ratio)]
            )  # fmt: skip
        about.append(
            f"on {where} ({link(results.METHODS[kind].with_suffix('.md'))}, {one.cells} cells, "
            f"{len(rows[0].us)} repeats{f'; noisy: {noise}' if noise else ''})"
        )
    said = (
        f"`fuselab study methods` {' and '.join(about)}, softmax: the method's time over the "
        "lab's, less 1, and the interquartile range of the repeats over their median, medians over "
        "the cells."
    )
    what = ("bias", "least to most", "scatter", "eager / compile")
    headings = ["method", *(f"{one}, {where}" for where in ("GPU", "CPU") for one in what)]
    rows_of = [[f"`{name}`", *cells, *[""] * (8 - len(cells))] for name, cells in made.items()]
    return f"{wrap(said)}\n\n{table(headings, rows_of)}"
