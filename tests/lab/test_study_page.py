"""docs/study.md: its numbers are those of results/, and none is written by hand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import study
import study_inside
import study_results
import study_times

TEXT = study.PAGE.read_text(encoding="utf-8")
# Names, shapes that the study speaks of, definitions: what a number outside of the parts may be.
NAMES = r"[HA]100|H200|RTX 3090|fp32|bf16|L[12]|65th|8192 x 2048|65536 x 65536|section 1"
DEFINED = r"at least 32 times|64 cells at most|2048 columns"


def by_hand(text: str) -> str:
    """Return the page without its parts, code, targets of links and numbers of sections."""
    text = study.PART.sub("", text)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"^## \d+\.|\[\d+(?=[\s|]*$)|\[\d+(?= \|)", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", study.PARTS)
def test_a_part_is_what_results_give(name: str) -> None:
    assert study.written(TEXT)[name] == study.part(name), "python tools/study.py --write"


def test_the_page_has_every_part_and_stays_short() -> None:
    assert list(study.written(TEXT)) == list(study.PARTS)
    assert len(TEXT.splitlines()) < 430


def test_no_number_is_written_by_hand() -> None:
    text = " ".join(by_hand(TEXT).split())
    assert re.findall(r"\S*\d\S*", re.sub(f"{NAMES}|{DEFINED}", "", text)) == []
    assert "7.5" in by_hand(TEXT.replace("as the study supposed", "by 7.5, as the study supposed"))


def test_another_number_in_the_page_is_put_right() -> None:
    changed = re.sub(r"in \d+ of \d+ cells", "in 1 of 2 cells", TEXT, count=1)
    assert changed != TEXT
    assert study.page(changed) == TEXT


def test_another_number_in_the_results_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = study_results.fusion()
    grid = found["pointwise_chain"]
    slower = study_results.Grid(grid.op, grid.file, dict.fromkeys(grid.ratios, 0.5))
    monkeypatch.setattr(study_results, "fusion", lambda: {**found, grid.op: slower})
    assert f"pointwise_chain ({len(grid.ratios)})" in study_times.wins()


def test_a_grid_is_read_by_rows_and_columns(tmp_path: Path) -> None:
    file = tmp_path / "softmax-fwd-float32.md"
    file.write_text(
        "# softmax\n\neager / ours\n\n| M \\ N | 128 |\n|---|---|\n| 256 | 9.00 |\n\n"
        "eager / compile\n\n| M \\ N | 128 | 256 |\n|---|---|---|\n| 128 | 1.50 |  |\n"
        "| 256 | 0.25 | 2.00 |\n"
    )
    grid = study_results.grid(file)
    assert grid is not None
    assert grid.ratios == {(128, 128): 1.5, (256, 128): 0.25, (256, 256): 2.0}
    assert study_results.grid(file, "native / ours") is None


def test_ranks_of_equal_values_are_shared() -> None:
    assert study_times.rank_correlation([1, 2, 3, 4], [10, 20, 20, 30]) == pytest.approx(
        0.9487, 1e-4
    )
    assert study_times.rank_correlation([3, 2, 1], [1, 2, 30]) == pytest.approx(-1)


def test_winners_of_ten_tunings_are_counted() -> None:
    kernels = {(t.subject, t.autotune): t for t in study_results.tunings()}
    assert study_inside._winners(kernels["norm_chain", "on"]) == 3
    assert study_inside._winners(kernels["rms_norm", "on"]) == 0  # one configuration
