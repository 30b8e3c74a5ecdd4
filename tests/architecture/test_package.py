"""What the package says of itself: one version, types, the files that tools look for."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import fuseline
from fuseline.core import native

ROOT = Path(__file__).parents[2]


def test_one_version_in_code_metadata_binary_and_citation() -> None:
    assert importlib.metadata.version("fuseline") == fuseline.__version__
    assert f"version: {fuseline.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    binary = native.status()
    if binary.state == "loaded":
        assert binary.build["version"] == fuseline.__version__


def test_the_version_is_written_once() -> None:
    assert re.search(
        r'^dynamic = \["version"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("package", ["fuseline", "fuselab"])
def test_a_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / "src" / package / "py.typed").exists()


def test_metadata_names_what_a_registry_shows() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for needed in ("Typing :: Typed", "Environment :: GPU :: NVIDIA CUDA", "keywords = "):
        assert needed in project
    assert (ROOT / "SECURITY.md").exists()
