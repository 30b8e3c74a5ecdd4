"""docs/composition.md is what running every operator under every transform gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import composition

from fuseline import table


def written(transform: str) -> list[str]:
    """The cells of a transform on the page, with the words of errors."""
    text = composition.PAGE.read_text(encoding="utf-8")
    words = dict(line.split(". `", 1) for line in text.splitlines() if ". `" in line[:5])
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {transform} |"))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    return [
        f"error {words[cell.split()[1]].removesuffix('`')}" if cell.startswith("error") else cell
        for cell in cells
    ]


def computed(transform: str) -> list[str]:
    found = composition.cells({transform: None})
    return [f"{outcome} {words}".strip() for _, _, outcome, words in found]


@pytest.mark.parametrize("transform", composition.QUICK)
def test_the_page_is_what_running_gives(transform: str) -> None:
    assert written(transform) == computed(transform), "python tools/composition.py --write"


@pytest.mark.long
@pytest.mark.parametrize("transform", composition.SLOW)
def test_the_page_is_what_compiling_gives(transform: str) -> None:
    assert written(transform) == computed(transform), "python tools/composition.py --write"


def test_the_page_has_every_operator() -> None:
    (head,) = (
        line
        for line in composition.PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| | `")
    )
    assert [cell.strip(" `") for cell in head.split("|")[2:-1]] == list(table.load())


def test_an_operator_that_is_wrong_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    import fuseline

    trial = composition.trials()["softmax"]
    monkeypatch.setattr(fuseline, "softmax", lambda x, **_: x.softmax(-1) * 1.01)
    with pytest.raises(AssertionError, match="softmax, backward: not what the formula gives"):
        composition.outcome("backward", trial)


def test_an_error_that_names_nothing_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    import fuseline

    def refuse(x: object, **_: object) -> None:
        raise RuntimeError("unsupported")

    trial = composition.trials()["softmax"]
    monkeypatch.setattr(fuseline, "softmax", refuse)
    with pytest.raises(AssertionError, match="softmax, backward: RuntimeError: unsupported"):
        composition.outcome("backward", trial)
