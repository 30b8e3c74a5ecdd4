"""Traffic, instructions and FLOPs of one call on a GPU, by Nsight Compute (ncu)."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fuselab.counters import Counts, Task, counted, uncounted
from fuselab.counters.launch import Answer, ChildError, ask

SOURCE = "ncu"
RANGE = "fuselab-{}"
PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
NO_NCU = "Nsight Compute's ncu is not in PATH; sudo apt-get install nsight-compute"
PERMISSION = "ERR_NVGPUCTRPERM"
NO_PERMISSION = (
    f"the driver keeps its counters for root ({PERMISSION}); "
    "echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 "
    "| sudo tee /etc/modprobe.d/fuselab.conf && sudo reboot "
    "(a container: start it with --cap-add=SYS_ADMIN)"
)

# What multiprocessors ask of L2; without "srcunit" Hopper adds what its two halves ask each other.
_SECTORS = "lts__t_sectors_srcunit_tex_op_{}.sum"
_HITS = "lts__t_sectors_srcunit_tex_op_{}_lookup_hit.sum"
_ACCESSES = {"load": ("read",), "store": ("write",), "reduction": ("red", "atom")}
# What threads ask of L1, the study's counters; bulk copies (TMA) and cp.async are not among them.
_L1_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
_L1_HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}_lookup_hit.sum"
_L1_ACCESSES = {"load": ("ld",), "store": ("st",), "reduction": ("red", "atom")}
_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
# count: metrics that it is the sum of, each with its weight.
SUMS: Mapping[str, Mapping[str, int]] = {
    "instructions": {"smsp__inst_executed.sum": 1},
    "dram_read_bytes": {"dram__bytes_read.sum": 1},
    "dram_write_bytes": {"dram__bytes_write.sum": 1},
    **{f"{n}_sectors": {_SECTORS.format(op): 1 for op in ops} for n, ops in _ACCESSES.items()},
    **{
        f"l1_{n}_sectors": {_L1_SECTORS.format(op): 1 for op in ops}
        for n, ops in _L1_ACCESSES.items()
    },
    "measured_flops": {
        _SASS.format(kind + op): 2 if op == "fma" else 1
        for kind in "fdh"
        for op in ("add", "mul", "fma")
    },
    "profiled_us": {"gpu__time_duration.sum": 1},
}
# count: pairs of hits and of the sectors that they are among.
RATES: Mapping[str, Mapping[str, str]] = {
    f"{n}_hit_rate": {_HITS.format(op): _SECTORS.format(op) for op in ops}
    for n, ops in _ACCESSES.items()
} | {
    f"l1_{n}_hit_rate": {_L1_HITS.format(op): _L1_SECTORS.format(op) for op in ops}
    for n, ops in _L1_ACCESSES.items()
}
NAMES = (*SUMS, *RATES)
# What a kernel executes is the same whatever the caches hold.
EXECUTED = ("instructions", "measured_flops")
_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIMES = {"n": 1e-3, "u": 1.0, "m": 1e3, "": 1e6}

Row = dict[str, float]
Kernels = list[tuple[str, Row]]


class CounterError(RuntimeError):
    """ncu's output has no numbers; the text says why."""


class Ncu:
    """One plain child under ncu for all tasks; each is called once inside a range of its own.

    replay: how ncu comes by more counters than the GPU has registers: each kernel again in place
    ("kernel"), or the whole child ("application"), where every pass finds the caches as the call
    leaves them.
    """

    batch = 16

    def __init__(self, replay: str, names: Sequence[str]) -> None:
        self._replay, self.names = replay, tuple(names)

    def obstacle(self) -> str:
        return "" if program() else NO_NCU

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        ranges = [RANGE.format(i) for i in range(len(tasks))]
        try:
            kernels, answers = profile(
                *("ranges", tasks, seconds), self._replay, metrics_of(self.names), ranges
            )
        except ChildError as error:
            return [uncounted(self.names, str(error), SOURCE)] * len(tasks)
        except CounterError as error:
            return [uncounted(self.names, str(error))] * len(tasks)
        return [
            self._counts(answer, kernels.get(index, [])) for index, answer in enumerate(answers)
        ]

    def _counts(self, answer: Answer, kernels: Kernels) -> Counts:
        if "error" in answer:
            return uncounted(self.names, answer["error"], SOURCE)
        if not kernels:
            return uncounted(self.names, "ncu saw no kernel in the call", SOURCE)
        found = totals(kernels)
        return {name: found[name] for name in self.names}


_L1 = tuple(name for name in NAMES if name.startswith("l1_"))
# L1's apart: an ncu that lacks one metric counts none of those it was asked for with it.
NCU = (
    Ncu("kernel", EXECUTED),
    Ncu("application", [name for name in NAMES if name not in (*EXECUTED, *_L1)]),
    Ncu("application", _L1),
)


def metrics_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of ncu's that counts are made of."""
    summed = [metric for name in names for metric in SUMS.get(name, ())]
    weighed = [metric for name in names for pair in RATES.get(name, {}).items() for metric in pair]
    return tuple(dict.fromkeys(summed + weighed))


def profile(
    mode: str,
    tasks: Sequence[Task],
    seconds: float,
    replay: str,
    metrics: Sequence[str],
    ranges: Sequence[str],
) -> tuple[dict[int, Kernels], list[Answer]]:
    """Run one child under ncu; return the kernels of each NVTX range, and the child's answers."""
    with tempfile.TemporaryDirectory(prefix="fuselab-ncu-") as folder:
        log = Path(folder) / "ncu.csv"
        words = command(program(), replay, metrics, ranges, log)
        failure, answers = None, [Answer()] * len(tasks)
        try:
            answers = ask(mode, tasks, seconds * len(tasks), prefix=words)
        except ChildError as error:
            failure = error
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    reason = complaint(text)
    if reason:
        raise CounterError(reason)
    if failure:
        raise failure
    return parse(text), answers


def program() -> str:
    """Return the path of ncu, or ""."""
    found = [str(p) for place in PLACES for p in sorted(Path("/").glob(place.lstrip("/")))]
    return shutil.which("ncu") or (found[-1] if found else "")


def command(
    ncu: str, replay: str, metrics: Sequence[str], ranges: Sequence[str], log: Path
) -> list[str]:
    """Return the words before the child's own."""
    return [
        *(ncu, "--clock-control", "none", "--cache-control", "none"),
        *("--replay-mode", replay, "--nvtx"),
        *(word for name in ranges for word in ("--nvtx-include", name)),
        *("--metrics", ",".join(metrics), "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log)),
    ]


def complaint(text: str) -> str:
    """Return why ncu's log has no numbers, with what would mend it, or ""."""
    if PERMISSION in text:
        return NO_PERMISSION
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    return errors[0].removeprefix("==ERROR==").strip() if errors else ""


def parse(text: str) -> dict[int, Kernels]:
    """Return the kernels of each range, in order: name and metrics in base units.

    The log is CSV after lines that begin with "==": names, units, then one row a kernel.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    if not lines:
        return {}
    header, *rows = csv.reader(lines)
    if "Kernel Name" not in header or any(len(row) != len(header) for row in rows):
        raise CounterError(f"got {lines[0][:80]!r} from ncu, expected a table with 'Kernel Name'")
    units = rows[0] if rows else []
    ranges: dict[int, Kernels] = {}
    for row in rows[1:]:
        # Which column it is in depends on ncu's version.
        marked = re.search(RANGE.format(r"(\d+)\b"), " ".join(row))
        if marked:
            found = dict(zip(header, zip(row, units, strict=True), strict=True))
            kernel = {m: _number(m, *found[m]) for m in metrics_of(NAMES) if m in found}
            ranges.setdefault(int(marked[1]), []).append((found["Kernel Name"][0], kernel))
    return ranges


def totals(kernels: Kernels) -> Counts:
    """Return the counts of one call from those of its kernels; `parts` has them by kernel."""
    found: Counts = {}
    for name, weights in SUMS.items():
        found |= _sum(name, weights, kernels)
    for name, pairs in RATES.items():
        found |= _rate(name, pairs, kernels)
    return found


def _sum(name: str, weights: Mapping[str, int], kernels: Kernels) -> Counts:
    parts: dict[str, float] = {}
    for kernel, row in kernels:
        if weights.keys() <= row.keys():
            value = sum(weight * row[metric] for metric, weight in weights.items())
            parts[kernel] = parts.get(kernel, 0.0) + value
    if not parts:
        return uncounted([name], "this ncu or GPU does not have the metric", SOURCE)
    return _in_parts(name, sum(parts.values()), parts)


def _rate(name: str, pairs: Mapping[str, str], kernels: Kernels) -> Counts:
    hits: dict[str, float] = defaultdict(float)
    asked: dict[str, float] = defaultdict(float)
    for kernel, row in kernels:
        for hit, sectors in pairs.items():
            if hit in row and row.get(sectors):
                hits[kernel] += row[hit]
                asked[kernel] += row[sectors]
    if not asked:
        return uncounted([name], "no such access, so no rate", SOURCE)
    parts = {kernel: hits[kernel] / total for kernel, total in asked.items()}
    return _in_parts(name, sum(hits.values()) / sum(asked.values()), parts)


def _in_parts(name: str, value: float, parts: Mapping[str, float]) -> Counts:
    return {name: replace(counted({name: value}, SOURCE)[name], parts=parts)}


def _number(name: str, text: str, unit: str) -> float:
    """Return a figure of the CSV in bytes, us or a plain count."""
    try:
        value = float(text.replace(",", ""))
    except ValueError as error:
        raise CounterError(f"{name}: got {text!r} from ncu, expected a number") from error
    scaled = re.fullmatch(r"([KMGT]?)(byte|sector|inst)s?", unit)
    if scaled:
        return value * _FACTORS[scaled[1]]
    time = re.fullmatch(r"([num]?)s(?:econd)?s?", unit)
    if time:
        return value * _TIMES[time[1]]
    if unit:
        raise CounterError(
            f"{name}: got unit {unit!r} from ncu, expected bytes, sectors, inst or seconds"
        )
    return value
