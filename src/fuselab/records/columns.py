"""The metrics, each declared once: the export's columns, the report and the documentation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from fuselab import plugins
from fuselab.metric import Item, Metric
from fuselab.model import Count, Measurement
from fuselab.plugins import Given, Unfit
from fuselab.statistics import stats


def _own(name: str, meaning: str, unit: str = "", **shown: Any) -> Metric:
    """Return a metric that is a field of the measurement."""
    return Metric(name, meaning, unit, of=attrgetter(f"measurement.{name}"), **shown)


def _named(name: str, meaning: str) -> Metric:
    """Return a metric that is a part of the cell's name."""
    return Metric(name, meaning, of=attrgetter(f"measurement.cell.{name}"), kind=str)


def _proven(name: str, meaning: str, kind: type = int, **shown: Any) -> Metric:
    """Return a metric that is a part of the proof."""
    return Metric(name, meaning, of=attrgetter(f"measurement.proof.{name}"), kind=kind, **shown)


def _error(name: str, of: str, meaning: str, unit: str, **shown: Any) -> Metric:
    """Return a metric that is a part of the accuracy."""
    value = lambda i: getattr(i.measurement.accuracy, of, None)  # noqa: E731
    return Metric(name, meaning, unit, of=value, **shown)


def _sectors(level: str, title: str, meaning: str) -> Iterable[Metric]:
    """Yield what is requested from a cache by each sort of access, and the share it had."""
    kinds = ("load", "store", "reduction")
    for kind in kinds:
        told = f"{meaning.format(kind)}, sectors of 32 bytes"
        heading = f"{title}{kind}s"
        yield Metric(f"{level}{kind}_sectors", told, "sector", title=heading, by_kernel=True)
    for kind in kinds:
        told = f"share of `{level}{kind}_sectors` that the cache had"
        heading = f"{title}{kind} hits"
        yield Metric(
            *(f"{level}{kind}_hit_rate", told, "ratio"),
            title=heading, by_kernel=True, style="percent",
        )  # fmt: skip


def _served(item: Item) -> str | None:
    """Return how many of the timed calls of ATen's operators were served; None: not asked."""
    proof = item.measurement.proof
    if proof.served is None:
        return None
    found = (f"{n} of {proof.timed_calls} {name}" for name, n in proof.served.items())
    return "; ".join(found) or "none"


def _not_counted(counts: Mapping[str, Count]) -> str:
    """Return a line for each reason: the counts that it keeps away, then the reason."""
    names: dict[str, list[str]] = {}
    for name, count in counts.items():
        if count.value is None:
            names.setdefault(count.unavailable, []).append(name)
    return "\n".join(f"{', '.join(known)}: {reason}" for reason, known in names.items())


def _median(values: Sequence[float]) -> float | None:
    return stats.median(values) if values else None


METRICS = (
    _named("op", "operator"),
    _named("impl", "implementation"),
    Metric(
        "role",
        "`ours`, `eager` (the reference for speed-ups), `baseline` (made from eager), `native` "
        "(torch's own operator), `rival`, `ceiling`",
        of=attrgetter("role"),
        kind=str,
    ),
    _named("direction", "`fwd` or `bwd`"),
    _named("case", "problem size, by its name"),
    _named("dtype", "torch's name"),
    _named("layout", "of the inputs"),
    _named("device", "`cpu` or `cuda:N`"),
    Metric(
        "status",
        "one of [these](measuring.md#when-a-number-counts)",
        of=lambda i: str(i.measurement.status),
        kind=str,
    ),
    _own("reason", "why there is no number, or what is to be said of it", kind=str),
    Metric(
        "median_us",
        "median of the samples",
        "us",
        of=attrgetter("median_us"),
        title="time",
        detail="us",
    ),
    Metric(
        "ci_low_us",
        "lower end of the median's 95 % interval",
        "us",
        of=lambda i: i.summary and i.summary.low,
    ),
    Metric("ci_high_us", "upper end of it", "us", of=lambda i: i.summary and i.summary.high),
    Metric(
        "samples", "number of raw samples", of=lambda i: i.summary and i.summary.count, kind=int
    ),
    _own("precision", "[level](measuring.md#time) that was asked for", kind=str),
    _own("timer", "`cupti`, `wall` or [another](measuring.md#time)", kind=str),
    Metric(
        "hot_us",
        "median time of calls on one set of inputs, where it fits the cache",
        "us",
        of=lambda i: _median(i.measurement.hot_us),
        title="in cache",
        detail="us",
    ),
    _own(
        "host_us",
        "CPU time per call, not waiting for the device; median",
        "us",
        title="host",
        detail="us",
    ),
    Metric(
        "sm_mhz",
        "median of the GPU's SM clock after each block",
        "MHz",
        of=lambda i: _median(i.measurement.proof.sm_mhz),
    ),
    _error(
        "max_abs_error",
        "max_abs",
        "error against fp64, worst output or gradient",
        "absolute",
        title="max error",
        detail="absolute",
    ),
    _error(
        "rms_error",
        "rms",
        "root mean square of it",
        "absolute",
        title="RMS error",
        detail="absolute",
    ),
    _error(
        "max_ulp", "max_ulp", "the same in units of the output's last place", "ULP", title="max ULP"
    ),
    _error(
        "eager_ratio",
        "eager_ratio",
        "`max_abs_error` over eager's",
        "ratio",
        title="of eager's",
        detail="max error / eager's",
    ),
    _error(
        "max_eps",
        "max_eps",
        "error over eps times the largest value of its output or gradient: what gradients are "
        "judged in",
        "eps x largest value",
        title="max error",
        detail="eps x largest value",
    ),
    _own(
        "peak_bytes",
        "highest memory in use during a call, less what was in use before it",
        "byte",
        kind=int,
        title="peak memory",
    ),
    _own(
        "buffer_bytes",
        "all that a call needs at a time: inputs, results and workspace (`peak_bytes`); for the "
        "backward also the output's gradients and what the forward saved",
        "byte",
        kind=int,
        title="buffers",
    ),
    _own(
        "ideal_bytes",
        "each input read once, each output written once: a model, not a measurement",
        "byte",
        kind=int,
        title="ideal traffic",
    ),
    _own(
        "flops", "from the operator's cost model", "flop", kind=int, title="FLOPs", detail="model"
    ),
    Metric(
        "gbps",
        "`ideal_bytes` over `median_us`; none by the timer `host`, which does not wait for the "
        "memory",
        "10^9 bytes/s",
        of=attrgetter("gbps"),
        title="bandwidth",
        detail="GB/s",
    ),
    Metric(
        "ceiling_mix",
        "streams of the group's ceiling, read and written: the nearest to the case's",
        of=lambda i: i.ceiling and i.ceiling.measurement.proof.mix,
        kind=str,
    ),
    Metric(
        "ceiling_gbps",
        "`gbps` of the group's ceiling",
        "10^9 bytes/s",
        of=lambda i: i.ceiling.gbps if i.ceiling and i.ceiling.good else None,
    ),
    Metric(
        "ceiling_share",
        "`gbps` over `ceiling_gbps`: the ceiling's time over the cell's, for equal bytes",
        "ratio",
        of=lambda i: i.over(i.ceiling, "gbps"),
        title="of ceiling",
        detail="ceiling / this",
        style="percent",
    ),
    Metric(
        "peak_share",
        "`gbps` over that of the fixed recipe with the same mix of streams",
        "ratio",
        of=lambda i: i.over(i.peak, "gbps"),
    ),
    Metric(
        "speedup_vs_eager",
        "eager's `median_us` over the cell's",
        "ratio",
        of=lambda i: i.eager and i.eager.over(i, "median_us"),
        title="speedup",
        detail="eager / this",
    ),
    Metric(
        "kernels",
        "names of what ran on the device in one call, joined by `; `; on a CPU the outermost torch "
        "operators",
        of=lambda i: "; ".join(i.measurement.proof.kernels),
        kind=str,
    ),
    _proven("launches", "how many of them a call ran", title="launches"),
    _proven("copies", "layout copies that the operator had to make", title="copies"),
    _proven("graphs", "`compile` only: graphs made"),
    _proven("breaks", "`compile` only: graph breaks"),
    _proven("recompiles", "`compile` only: compilations while timed"),
    _proven("version", "of a rival: its distribution and version", str),
    _proven("chosen", "`auto` of an operator of fuseline: what it took, and why", str),
    Metric(
        "served",
        "`enabled` only: calls of ATen's operators that our kernels served, of so many timed "
        "calls; `none`: all were ATen's",
        of=_served,
        kind=str,
    ),
    _own("environment", "id of the machine and software it was measured on", kind=str),
    Metric(
        "compile_cold_s",
        "making the implementation and its first call, with empty caches; see "
        "[counters](measuring.md#counters), as of all below",
        "s",
        title="compile cold",
        detail="s",
    ),
    Metric(
        "compile_warm_s",
        "the same with what the first left in the caches",
        "s",
        title="compile warm",
        detail="s",
    ),
    Metric(
        "instructions",
        "executed by one call: of warps on a GPU, of one thread in user space on a CPU",
        "instruction",
        title="instructions",
        by_kernel=True,
    ),
    Metric(
        "dram_read_bytes",
        "read by the memory itself in one call",
        "byte",
        title="DRAM read",
        by_kernel=True,
    ),
    Metric(
        "dram_write_bytes",
        "written by the memory itself in one call",
        "byte",
        title="DRAM write",
        by_kernel=True,
    ),
    *_sectors("", "", "requested from the L2 cache by {}s in one call"),
    *_sectors("l1_", "L1 ", "requested from L1 by {}s of global memory in one call"),
    Metric(
        "measured_flops",
        "executed by one call; `flops` is what the cost model says",
        "flop",
        title="FLOPs",
        detail="measured",
        by_kernel=True,
    ),
    Metric(
        "profiled_us",
        "`median_us` as ncu sees it: the sum of the kernels' durations",
        "us",
        title="time by ncu",
        detail="us",
        by_kernel=True,
    ),
    Metric("energy_j", "of the whole board, per call", "J", title="energy", detail="J"),
    Metric(
        "not_counted",
        "a line for each reason: the counts that are missing, a colon, the reason",
        of=lambda i: _not_counted(i.measurement.counts),
        kind=str,
    ),
)
NAMED = {metric.name: metric for metric in METRICS}
# What the slow counters find.
COUNTED = tuple(metric for metric in METRICS if metric.of is None)


@cache
def plugged() -> Mapping[Hashable, Given[Metric]]:
    """Return the metrics of plug-ins by name; those without `collect` are refused."""

    def name(metric: Metric) -> str:
        if not metric.name.isidentifier():
            raise Unfit(f"name: got {metric.name!r}, expected a word of letters, digits and _")
        if not callable(metric.collect):
            raise Unfit(f"collect: got {metric.collect!r}, expected a function")
        return metric.name

    return plugins.load(plugins.METRICS, Metric, name, NAMED)


def known(name: str, unit: str = "") -> Metric:
    """Return the metric of a name; of a plug-in that is not installed by its unit alone."""
    if name in NAMED:
        return NAMED[name]
    given = plugged().get(name)
    return given.value if given else Metric(name, "", unit, title=name, detail=unit)


def of(measurements: Iterable[Measurement]) -> tuple[Metric, ...]:
    """Return the metrics of these measurements: ours, then what else was counted in them."""
    others = {n: c.unit for m in measurements for n, c in m.counts.items() if n not in NAMED}
    return (*METRICS, *(known(name, unit) for name, unit in others.items()))
