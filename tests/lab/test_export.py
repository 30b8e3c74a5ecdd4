"""The export: columns that stay, strict JSON, and CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from fuselab.metrics import records, to_csv, to_jsonl
from fuselab.model import Accuracy, Group, Measurement, Status

COLUMNS = [
    *("op", "impl", "role", "direction", "case", "dtype", "layout", "device", "status", "reason"),
    *("median_us", "ci_low_us", "ci_high_us", "samples", "timer", "host_us"),
    *("max_abs_error", "rms_error", "max_ulp", "eager_ratio"),
    *("peak_bytes", "buffer_bytes", "ideal_bytes", "flops"),
    *("gbps", "ceiling_gbps", "ceiling_share", "peak_share", "speedup_vs_eager"),
    *("kernels", "launches", "copies", "graphs", "breaks", "recompiles", "environment"),
]


def rows(reason: str = "no compiler", op: str = "norm"):
    group = Group(op, "4x61", "float32", "fwd", "contiguous", "cpu", ("eager", "fast"))
    return records(
        [
            Measurement(
                group.cell("eager"),
                Status.OK,
                timer="wall",
                samples_us=(1 / 3, 1 / 3, 2 / 3),
                accuracy=Accuracy(-1.5, math.nan, math.inf),
            ),
            Measurement(group.cell("fast"), Status.UNSUPPORTED, reason),
        ]
    )


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


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\n"])
def test_a_spreadsheet_runs_nothing(start):
    payload = f"{start}cmd|' /C calc'!A0"
    cells = read_csv(to_csv(rows(payload, op=payload)))[1]
    assert cells["reason"] == cells["op"] == f"'{payload}"
    assert json.loads(to_jsonl(rows(payload)).splitlines()[1])["reason"] == payload
