"""What the report's script is given: every cell, its samples and where it stands, packed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from statistics import median

import pytest
from random_runs import shown

from fuselab.model import Proof
from fuselab.report.html import packed, to_html
from fuselab.report.html.payload import payload
from fuselab.report.shown import Shown

SEED = 5


def read(page: str) -> dict:
    (block,) = re.findall(r'id="data">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(block)))


@pytest.fixture(scope="module")
def run() -> Shown:
    return shown(SEED)


def test_a_page_has_every_cell_with_its_texts_and_numbers(run: Shown) -> None:
    data = read(to_html([run]))
    assert data["keys"] == [m.cell.key for m in run.measured]
    for name, key in (("op", "op"), ("impl", "impl"), ("case", "case"), ("status", "status")):
        texts, which = data["texts"][name]
        assert [texts[i] for i in which] == [row[key] for row in run.view.records]
        assert len(texts) == len(set(texts))
    for name in ("median_us", "ideal_bytes", "flops", "max_abs_error", "ceiling_share"):
        wanted = [row[name] for row in run.view.records]
        for got, number in zip(data["numbers"][name], wanted, strict=True):
            assert got is None if number is None else got == pytest.approx(number, rel=5e-5)
    assert data["places"]["op0"]["32x122"] == ["", "M", "N", "32", "122"]


def test_the_samples_are_order_statistics_to_a_thousandth(run: Shown) -> None:
    data = payload([run])
    for measured, steps in zip(run.measured, data["samples"], strict=True):
        if not measured.samples_us:
            assert steps == []
            continue
        middle, sum_, found = median(measured.samples_us), 0, []
        for step in steps:
            sum_ += step
            found.append(middle * (1 + sum_ / 1000))
        assert found == pytest.approx(sorted(measured.samples_us), abs=6e-4 * middle)


def test_of_many_cells_fewer_samples_are_kept_but_both_ends() -> None:
    run = shown(SEED, ops=8, rows=8, columns=16)
    data = payload([run])
    kept = {len(steps) for steps in data["samples"] if steps}
    assert kept == {200_000 // len(run.measured)}
    first = next(m for m in run.measured if m.samples_us)
    ends = [data["samples"][0][0], sum(data["samples"][0])]
    middle = median(first.samples_us)
    wanted = [min(first.samples_us) / middle - 1, max(first.samples_us) / middle - 1]
    assert ends == pytest.approx([1000 * part for part in wanted], abs=0.5)


def test_cells_of_several_runs_are_told_apart_by_the_runs_names(run: Shown) -> None:
    other = shown(SEED + 1, name="B")
    data = read(to_html([run, other]))
    assert len(set(data["keys"])) == len(run.measured) + len(other.measured)
    assert data["keys"][0].startswith("A:")
    assert data["run"] == [0] * len(run.measured) + [1] * len(other.measured)


def test_tables_lead_to_the_cells_that_they_show(run: Shown) -> None:
    page = to_html([run])
    data = read(page)
    cells = re.findall(r'data-c="(\d+)">([^<]*)<', page)
    assert len(cells) == sum(row["role"] != "ceiling" for row in run.view.records)
    for index, text in cells:
        time, status = data["numbers"]["median_us"][int(index)], data["texts"]["status"]
        wanted = status[0][status[1][int(index)]] if time is None else f"{time:.5g}"
        assert text == wanted or float(text) == pytest.approx(time, rel=5e-5, abs=6e-4)


def test_a_proof_is_texts_whatever_is_in_it(run: Shown) -> None:
    times = (1.0, float("nan"), float("inf"))
    odd = Proof(medians_us=times, steady=True, mix="1R1W")
    texts, which = payload([replace(run, measured=[replace(run.measured[0], proof=odd)])])["texts"][
        "proof"
    ]
    assert json.loads(texts[which[0]], parse_constant=pytest.fail) == {
        "medians_us": "[1.0, NaN, Infinity]", "steady": "true", "mix": "1R1W"
    }  # fmt: skip


def test_what_is_not_finite_is_a_text() -> None:
    assert json.loads(gzip.decompress(base64.b64decode(packed({"a": [1, None]})))) == {
        "a": [1, None]
    }
    with pytest.raises(ValueError, match="JSON"):
        packed([float("nan")])
