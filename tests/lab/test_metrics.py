"""Flat records: every figure worked out by hand, and nothing where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuselab.model import Accuracy, Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING, ceiling_group
from fuselab.records.metrics import records

GROUP = Group("norm", "4x61", "float32", "fwd", "contiguous", "cuda", ("eager", "fast", "ceiling"))
TIMES = ("median_us", "ci_low_us", "ci_high_us", "samples", "host_us")
DERIVED = ("gbps", "ceiling_share", "peak_share", "speedup_vs_eager")


def ok(impl: str, us: float, group: Group = GROUP, nbytes: int | None = 3_000_000, **fields):
    samples = (us - 1, us, us + 1)
    return Measurement(
        group.cell(impl),
        Status.OK,
        "",
        "cupti",
        samples,
        None,
        ideal_bytes=nbytes,
        environment=fields.pop("environment", "e1"),
        **fields,
    )


def ceiling(us: float = 2.0, mix: str = "1R1W", **fields):
    return ok(CEILING, us, proof=Proof(mix=mix, role=CEILING), **fields)


PEAKS = [
    ok("copy", 4.0, ceiling_group("cuda"), 8_000_000),
    ok("add", 8.0, ceiling_group("cuda"), 12_000_000),
]


def by_impl(*measurements):
    return {record["impl"]: record for record in records(measurements)}


def test_figures_by_hand():
    found = by_impl(*PEAKS, ok("eager", 30.0), ok("fast", 2.5), ceiling())
    fast = found["fast"]
    assert fast["median_us"] == 2.5
    assert 1.5 <= fast["ci_low_us"] <= 2.5 <= fast["ci_high_us"] <= 3.5
    assert (fast["samples"], fast["timer"]) == (3, "cupti")
    assert fast["gbps"] == pytest.approx(3_000_000 / 2.5e-6 / 1e9)
    assert fast["ceiling_gbps"] == pytest.approx(1500.0)
    assert fast["ceiling_share"] == pytest.approx(2.0 / 2.5)
    assert fast["peak_share"] == pytest.approx(1200.0 / 2000.0)
    assert fast["speedup_vs_eager"] == pytest.approx(30.0 / 2.5)
    assert found["eager"]["speedup_vs_eager"] == 1.0
    assert found["ceiling"]["ceiling_share"] == 1.0
    assert found["ceiling"]["speedup_vs_eager"] is None


def test_two_reads_are_held_against_the_add():
    found = by_impl(*PEAKS, ok("fast", 2.5), ceiling(mix="2R1W"))
    assert found["fast"]["peak_share"] == pytest.approx(1200.0 / 1500.0)


def test_fields_pass_through():
    record = by_impl(
        ok(
            "fast",
            2.5,
            accuracy=Accuracy(1e-6, 1e-7, 0.5, 0.9),
            peak_bytes=10,
            buffer_bytes=20,
            flops=30,
            proof=Proof(
                kernels={"k1": 1, "k2": 2}, launches=3, copies=0, graphs=1, breaks=0, recompiles=0
            ),
        )
    )["fast"]
    wanted = {
        "op": "norm",
        "direction": "fwd",
        "case": "4x61",
        "dtype": "float32",
        "layout": "contiguous",
        "device": "cuda",
        "status": "ok",
        "reason": "",
        "max_abs_error": 1e-6,
        "rms_error": 1e-7,
        "max_ulp": 0.5,
        "eager_ratio": 0.9,
        "peak_bytes": 10,
        "buffer_bytes": 20,
        "ideal_bytes": 3_000_000,
        "flops": 30,
        "kernels": "k1; k2",
        "launches": 3,
        "copies": 0,
        "graphs": 1,
        "breaks": 0,
        "recompiles": 0,
        "environment": "e1",
    }
    assert {name: record[name] for name in wanted} == wanted


@pytest.mark.parametrize("status", [status for status in Status if not status.has_number])
def test_a_cell_without_a_number_has_none_anywhere(status):
    bad = Measurement(GROUP.cell("fast"), status, "why", ideal_bytes=3_000_000, environment="e1")
    record = by_impl(*PEAKS, ok("eager", 30.0), ceiling(), bad)["fast"]
    assert {record[name] for name in (*TIMES, *DERIVED)} == {None}
    assert (record["status"], record["reason"]) == (str(status), "why")


def test_a_noisy_cell_keeps_its_number():
    noisy = replace(ok("fast", 2.5), status=Status.NOISY, reason="wide")
    assert by_impl(noisy)["fast"]["median_us"] == 2.5


@pytest.mark.parametrize(
    ("missing", "measurements"),
    [
        ("speedup_vs_eager", [*PEAKS, ceiling()]),
        ("ceiling_share", [*PEAKS, ok("eager", 30.0)]),
        ("ceiling_gbps", [*PEAKS, ok("eager", 30.0)]),
        ("peak_share", [ok("eager", 30.0), ceiling()]),
        ("speedup_vs_eager", [ok("eager", 30.0, environment="e2")]),
        ("speedup_vs_eager", [ok("eager", 30.0, replace(GROUP, dtype="bfloat16"))]),
        ("ceiling_share", [ceiling(group=replace(GROUP, direction="bwd"))]),
        ("peak_share", [replace(PEAKS[0], environment="e2"), ceiling()]),
        ("peak_share", [ok("copy", 4.0, ceiling_group("cuda:1")), ceiling()]),
    ],
)
def test_no_ratio_without_its_other_half_from_the_same_place(missing, measurements):
    assert by_impl(*measurements, ok("fast", 2.5))["fast"][missing] is None


def test_unknown_bytes_give_no_bandwidth():
    record = by_impl(*PEAKS, ceiling(), ok("fast", 2.5, nbytes=None))["fast"]
    assert (record["gbps"], record["ceiling_share"], record["peak_share"]) == (None, None, None)


def test_roles_are_known_by_name_or_told_by_the_proof():
    found = by_impl(
        *(ok(impl, 3.0) for impl in ("eager", "torchscript", "compile", "native", "fast")),
        ok("liger", 3.0, proof=Proof(role="rival")),
        ceiling(),
        PEAKS[0],
    )
    assert {impl: record["role"] for impl, record in found.items()} == {
        "eager": "eager",
        "torchscript": "baseline",
        "compile": "baseline",
        "native": "native",
        "fast": "ours",
        "liger": "rival",
        "ceiling": "ceiling",
        "copy": "ceiling",
    }


def test_the_yardstick_is_whatever_has_the_role_eager():
    naive = ok("naive", 10.0, proof=Proof(role="eager"))
    assert by_impl(naive, ok("fast", 2.5))["fast"]["speedup_vs_eager"] == 4.0


def test_a_role_told_once_holds_for_the_cells_that_could_not_tell():
    other = replace(GROUP, case="8x32")
    failed = Measurement(other.cell("liger"), Status.ERROR, "no")
    told = ok("liger", 3.0, proof=Proof(role="rival"))
    for order in ([failed, told], [told, failed]):
        assert {record["role"] for record in records(order)} == {"rival"}


def test_host_time_says_nothing_of_the_memory():
    found = by_impl(*[replace(m, timer="host") for m in (*PEAKS, ok("fast", 2.5), ceiling())])
    assert [found["fast"][name] for name in ("gbps", "ceiling_share", "peak_share")] == [None] * 3
    assert found["fast"]["median_us"] == 2.5
