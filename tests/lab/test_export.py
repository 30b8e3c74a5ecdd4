"""The export: columns that stay, strict JSON, and CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Accuracy, Count, Group, Measurement, Proof, Status
from fuselab.records.metrics import from_jsonl, raw, records, to_csv, to_jsonl
from fuselab.storage.store import Store

COLUMNS = [
    *("op", "impl", "role", "direction", "case", "dtype", "layout", "device", "status", "reason"),
    *("median_us", "ci_low_us", "ci_high_us", "samples", "precision", "timer"),
    *("hot_us", "host_us", "sm_mhz"),
    *("max_abs_error", "rms_error", "max_ulp", "eager_ratio", "max_eps"),
    *("peak_bytes", "buffer_bytes", "ideal_bytes", "flops"),
    *("gbps", "ceiling_mix", "ceiling_gbps", "ceiling_share", "peak_share", "speedup_vs_eager"),
    *("kernels", "launches", "copies", "graphs", "breaks", "recompiles", "version", "chosen"),
    *("served", "environment"),
    *("compile_cold_s", "compile_warm_s", "instructions", "dram_read_bytes", "dram_write_bytes"),
    *("load_sectors", "store_sectors", "reduction_sectors"),
    *("load_hit_rate", "store_hit_rate", "reduction_hit_rate"),
    *("l1_load_sectors", "l1_store_sectors", "l1_reduction_sectors"),
    *("l1_load_hit_rate", "l1_store_hit_rate", "l1_reduction_hit_rate"),
    *("measured_flops", "profiled_us", "energy_j", "not_counted"),
]


def measured(reason: str = "no compiler", op: str = "norm"):
    group = Group(op, "4x61", "float32", "fwd", "contiguous", "cpu", ("eager", "fast"))
    return [
        Measurement(
            group.cell("eager"),
            Status.OK,
            timer="wall",
            samples_us=(1 / 3, 1 / 3, 2 / 3),
            accuracy=Accuracy(-1.5, math.nan, math.inf),
            proof=Proof(method="m1", sm_mhz=(1980, 1965), graphs=2),
        ),
        Measurement(group.cell("fast"), Status.UNSUPPORTED, reason),
    ]


def rows(reason: str = "no compiler", op: str = "norm"):
    return records(measured(reason, op))


def with_samples(reason: str = "no compiler"):
    found = measured(reason)
    pairs = zip(records(found), found, strict=True)
    return to_jsonl([{**record, **raw(measurement)} for record, measurement in pairs])


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_a_promise():
    assert all(list(row) == COLUMNS for row in rows())
    assert to_csv([]).splitlines() == [",".join(COLUMNS)]
    assert [list(json.loads(line)) for line in to_jsonl(rows()).splitlines()] == [COLUMNS] * 2


def test_numbers_survive_both_formats():
    (line, _), (cells, _) = to_jsonl(rows()).splitlines(), read_csv(to_csv(rows()))
    assert json.loads(line)["median_us"] == float(cells["median_us"]) == 1 / 3
    assert float(cells["max_abs_error"]) == -1.5


def test_unknown_is_null_or_empty_and_never_zero():
    _, line = map(json.loads, to_jsonl(rows()).splitlines())
    _, cells = read_csv(to_csv(rows()))
    for name in ("median_us", "ci_low_us", "gbps", "speedup_vs_eager", "launches", "flops"):
        assert line[name] is None
        assert cells[name] == ""


def test_json_lines_are_strict():
    def refuse(constant: str):
        raise AssertionError(constant)

    line = json.loads(to_jsonl(rows()).splitlines()[0], parse_constant=refuse)
    assert (line["rms_error"], line["max_ulp"]) == ("nan", "inf")


def test_text_with_separators_stays_one_cell():
    reason = 'a, "b"\nc — d'
    assert read_csv(to_csv(rows(reason)))[1]["reason"] == reason
    assert len(to_jsonl(rows(reason)).splitlines()) == 2
    assert json.loads(to_jsonl(rows(reason)).splitlines()[1])["reason"] == reason


def test_a_carriage_return_becomes_a_line_end_in_csv():
    assert read_csv(to_csv(rows("a\r\nb\rc")))[1]["reason"] == "a\nb\nc"


def test_what_else_was_counted_is_a_column_too_and_no_formula():
    ok, absent = measured()
    counts = {"=cmd()": Count(2.5, "furlong", "a plug-in"), "energy_j": Count(1.0, "J", "nvml")}
    found = records([replace(ok, counts=counts), absent])
    assert list(found[0]) == [*COLUMNS, "=cmd()"]
    first, second = read_csv(to_csv(found))
    assert (first["'=cmd()"], second["'=cmd()"], first["energy_j"]) == ("2.5", "", "1.0")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠"])
def test_a_spreadsheet_runs_nothing(start):
    payload = f"{start}cmd|' /C calc'!A0"
    cells = read_csv(to_csv(rows(payload, op=payload)))[1]
    assert cells["reason"] == cells["op"] == f"'{payload}"
    assert json.loads(to_jsonl(rows(payload)).splitlines()[1])["reason"] == payload


def test_what_a_comparison_needs_survives_the_lines():
    reason = "line\u2028end\x85 — d"
    ok, absent = from_jsonl(with_samples(reason))
    assert ok.samples_us == (1 / 3, 1 / 3, 2 / 3)
    assert (ok.cell, ok.timer) == (measured()[0].cell, "wall")
    assert ok.proof == Proof(method="m1", sm_mhz=(1980, 1965))
    assert (absent.status, absent.reason, absent.samples_us) == (Status.UNSUPPORTED, reason, ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: to_jsonl(rows()), r"line 1: got no 'samples_us', expected .*--samples"),
        (lambda text: text.replace('"ok"', '"good"'), "line 1: 'good' is not a valid Status"),
        (lambda text: text.replace("[0.3333333333333333,", "[1e999,"), "line 1: samples_us: got"),
        (lambda text: text.replace("[0.3333333333333333,", "[null,"), "line 1: float"),
        (lambda text: text.replace("[1980,", '["fast",'), "line 1: could not convert"),
        (lambda text: text[:-9], "line 2: "),
        (lambda text: text + "[1]\n", "line 3: "),
    ],
)
def test_a_line_that_is_no_record_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        from_jsonl(change(with_samples()))


def test_samples_come_with_json_lines_only(tmp_path, capsys):
    group = Group("norm", "4x61", "float32", "fwd", "contiguous", "cpu", ("eager", "fast"))
    with Store.open(tmp_path) as store:
        store.write(group, measured())
    assert command(["export", str(tmp_path), "--samples"]) == 0
    assert capsys.readouterr().out == with_samples()
    assert command(["export", str(tmp_path), "--samples", "--format", "csv"]) == 2
    assert "--samples: got --format csv, expected --format jsonl" in capsys.readouterr().err
