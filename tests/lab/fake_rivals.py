"""Modules that stand in the place of rivals', and distributions that seem to be installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fuselab import environment


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Pretend that of all distributions these are installed."""
    monkeypatch.setattr(environment, "version", lambda name: "9.1" if name in packages else None)


def fake(monkeypatch: pytest.MonkeyPatch, module: str, **contents: Any) -> None:
    """Put a module of these contents in the place of a rival's."""
    parent, _, _ = module.partition(".")
    monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**contents))  # type: ignore[arg-type]
