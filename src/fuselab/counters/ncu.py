"""Traffic, instructions and FLOPs of one call on a GPU, by Nsight Compute (ncu)."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fuselab.counters import UNITS, Counts, Task, counted, uncounted
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

# count: metrics that it is the sum of, each with its weight.
_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
SUMS: Mapping[str, Mapping[str, int]] = {
    "instructions": {"smsp__inst_executed.sum": 1},
    "dram_read_bytes": {"dram__bytes_read.sum": 1},
    "dram_write_bytes": {"dram__bytes_write.sum": 1},
    "load_sectors": {"lts__t_sectors_op_read.sum": 1},
    "store_sectors": {"lts__t_sectors_op_write.sum": 1},
    "reduction_sectors": {"lts__t_sectors_op_red.sum": 1, "lts__t_sectors_op_atom.sum": 1},
    "measured_flops": {
        _SASS.format(kind + op): 2 if op == "fma" else 1
        for kind in "fdh"
        for op in ("add", "mul", "fma")
    },
    "profiled_us": {"gpu__time_duration.sum": 1},
}
# count: pairs of a hit rate and the sectors that weigh it.
RATES: Mapping[str, Mapping[str, str]] = {
    "load_hit_rate": {"lts__t_sector_op_read_hit_rate.pct": "lts__t_sectors_op_read.sum"},
    "store_hit_rate": {"lts__t_sector_op_write_hit_rate.pct": "lts__t_sectors_op_write.sum"},
    "reduction_hit_rate": {
        "lts__t_sector_op_red_hit_rate.pct": "lts__t_sectors_op_red.sum",
        "lts__t_sector_op_atom_hit_rate.pct": "lts__t_sectors_op_atom.sum",
    },
}
METRICS = tuple(
    dict.fromkeys(
        [name for weights in SUMS.values() for name in weights]
        + [name for pairs in RATES.values() for pair in pairs.items() for name in pair]
    )
)
_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIMES = {"n": 1e-3, "u": 1.0, "m": 1e3, "": 1e6}

Row = dict[str, float]
Kernels = list[tuple[str, Row]]


class CounterError(RuntimeError):
    """ncu's output has no numbers; the text says why."""


class Ncu:
    """One plain child under ncu for all tasks; each is called once inside a range of its own."""

    names = (*SUMS, *RATES)

    def obstacle(self) -> str:
        return "" if program() else NO_NCU

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        try:
            kernels, answers = self._profile(tasks, seconds)
        except ChildError as error:
            return [uncounted(self.names, str(error), SOURCE)] * len(tasks)
        except CounterError as error:
            return [uncounted(self.names, str(error))] * len(tasks)
        return [
            self._counts(answer, kernels.get(index, [])) for index, answer in enumerate(answers)
        ]

    def _profile(
        self, tasks: Sequence[Task], seconds: float
    ) -> tuple[dict[int, Kernels], list[Answer]]:
        with tempfile.TemporaryDirectory(prefix="fuselab-ncu-") as folder:
            log = Path(folder) / "ncu.csv"
            words = command(program(), len(tasks), log)
            failure, answers = None, [Answer()] * len(tasks)
            try:
                answers = ask("ranges", tasks, seconds * len(tasks), prefix=words)
            except ChildError as error:
                failure = error
            text = log.read_text(errors="replace") if log.is_file() else ""
        reason = complaint(text)
        if reason:
            raise CounterError(reason)
        if failure:
            raise failure
        return parse(text), answers

    def _counts(self, answer: Answer, kernels: Kernels) -> Counts:
        if "error" in answer:
            return uncounted(self.names, answer["error"], SOURCE)
        if not kernels:
            return uncounted(self.names, "ncu saw no kernel in the call", SOURCE)
        return totals(kernels)


def program() -> str:
    """Return the path of ncu, or ""."""
    found = [str(p) for place in PLACES for p in sorted(Path("/").glob(place.lstrip("/")))]
    return shutil.which("ncu") or (found[-1] if found else "")


def command(ncu: str, tasks: int, log: Path) -> list[str]:
    """Return the words before the child's own.

    The whole child runs again for each pass of counters: so every pass finds the caches as the
    call leaves them, which a kernel that is repeated in place would not.
    """
    ranges = [word for i in range(tasks) for word in ("--nvtx-include", RANGE.format(i))]
    return [
        *(ncu, "--clock-control", "none", "--cache-control", "none"),
        *("--replay-mode", "application", "--nvtx", *ranges),
        *("--metrics", ",".join(METRICS), "--csv", "--page", "raw", "--print-units", "base"),
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
            kernel = {name: _number(name, *found[name]) for name in METRICS if name in found}
            ranges.setdefault(int(marked[1]), []).append((found["Kernel Name"][0], kernel))
    return ranges


def totals(kernels: Kernels) -> Counts:
    """Return the counts of one call from those of its kernels; `parts` has them by kernel."""
    found: Counts = {}
    for name, weights in SUMS.items():
        parts: dict[str, float] = {}
        for kernel, row in kernels:
            if weights.keys() <= row.keys():
                value = sum(weight * row[metric] for metric, weight in weights.items())
                parts[kernel] = parts.get(kernel, 0.0) + value
        found[name] = (
            replace(counted({name: sum(parts.values())}, SOURCE)[name], parts=parts)
            if parts
            else uncounted([name], "this ncu or GPU does not have the metric", SOURCE)[name]
        )
    for name, pairs in RATES.items():
        found |= _rate(name, pairs, kernels)
    return found


def _rate(name: str, pairs: Mapping[str, str], kernels: Kernels) -> Counts:
    weighed = [
        (row[rate], row[sectors])
        for _, row in kernels
        for rate, sectors in pairs.items()
        if rate in row and row.get(sectors)
    ]
    total = sum(weight for _, weight in weighed)
    if not total:
        return uncounted([name], "no such access, so no rate", SOURCE)
    return counted({name: sum(rate * weight for rate, weight in weighed) / total}, SOURCE)


def _number(name: str, text: str, unit: str) -> float:
    """Return a figure of the CSV in bytes, us, a ratio or a plain count."""
    try:
        value = float(text.replace(",", ""))
    except ValueError as error:
        raise CounterError(f"{name}: got {text!r} from ncu, expected a number") from error
    if unit == "%":
        return value / 100
    scaled = re.fullmatch(r"([KMGT]?)(byte|sector|inst)s?", unit)
    if scaled:
        return value * _FACTORS[scaled[1]]
    time = re.fullmatch(r"([num]?)s(?:econd)?s?", unit)
    if time:
        return value * _TIMES[time[1]]
    if unit:
        raise CounterError(
            f"{name}: got unit {unit!r} from ncu, expected one of {set(UNITS.values())}"
        )
    return value
