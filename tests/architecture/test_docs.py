"""What a stranger reads: links lead somewhere, prose fits a terminal, words are the field's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "framework-internals").glob("*.md"),
        *(ROOT / "framework-internals").glob("*/README.md"),
        *(ROOT / "results").rglob("README.md"),
        *(ROOT / "src").rglob("README.md"),
    ]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# What was said before, and what the field says.
PRIVATE_WORDS = {
    r"speed of (the|a) (memory|copy)": "memory bandwidth, the bandwidth of a copy",
    r"second look": "fallback",
    r"clusters that stay": "persistent clusters",
    r"a name asks for one": "pass a name to force an implementation",
    r"goes on where (this|it) ended": "rerun to resume",
    r"\bcold rooms?\b": "modules that do not load torch",
    r"askew": "misaligned",
    r"\bfurniture\b": "required files",
}


def _prose(text: str) -> Iterator[str]:
    """Yield the lines outside fences, tables, headings and pictures, links' targets taken away."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif (
            not fenced
            and not line.startswith("    ")
            and not line.lstrip().startswith(("|", "#", "![", "<"))
        ):
            yield re.sub(r"\]\([^)]*\)", "]()", line)


def _links(text: str) -> Iterator[str]:
    """Yield the relative targets of links and pictures outside of code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if not re.match(r"[a-z]+:|#", target):
            yield target.partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_lead_to_files(page: Path) -> None:
    missing = [link for link in _links(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_prose_fits_a_hundred_columns(page: Path) -> None:
    assert [line for line in _prose(page.read_text()) if len(line) > 100] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    text = " ".join(page.read_text().split())
    found = [f"{words}: say {better}" for words, better in PRIVATE_WORDS.items()
             if re.search(words, text, re.IGNORECASE)]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("page", DECISIONS, ids=[page.name for page in DECISIONS])
def test_a_decision_is_one_page(page: Path) -> None:
    text = page.read_text()
    assert re.match(rf"# {page.name[:4]} \S", text)
    assert re.search(r"^Date: \d{4}-\d\d-\d\d\. Status: \w+\.", text, re.MULTILINE)
    assert len(text.splitlines()) <= 60


# Names that code had for what the field has names for.
PRIVATE_NAMES = {
    r"\bArrival\b": "Mbarrier",
    r"\bAnswers\b": "PerDeviceCache",
    r"\bsecond_look\b|SecondLook": "fallback",
    r"\bin_front\b": "move_batch_dim_to_front",
    r"rows::(Plain|Alone)\b": "DefaultTraits, NoEpilogueOperands",
}
SOURCES = [
    path
    for folder in ("src", "tests/cuda_on_cpu", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".cpp", ".cu", ".cuh", ".h", ".jinja", ".html")
]


@pytest.mark.parametrize(("words", "better"), (PRIVATE_WORDS | PRIVATE_NAMES).items())
def test_code_uses_the_words_of_the_field(words: str, better: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text().splitlines()
        if re.search(words, line, re.IGNORECASE if words in PRIVATE_WORDS else 0)
    ]
    assert found == [], f"say {better}"
