"""Kernels that somebody registered over ATen's: a library, or torch itself.

torch has a registry of such kernels since 2.13, `torch.backends.python_native`: with some packages
installed it puts QuACK's RMSNorm, which it brings along, in the place of ATen's on sm_90 and
sm_100.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

KEYS = {"cpu": "CPU", "cuda": "CUDA"}
_OURS = "core/cpp/takeover.cpp"
_ATENS = "/ATen/"
_REGISTRY = "torch/_native/registry.py"
_TORCHS = "torch's"
_LINE = re.compile(r"(\w+)(?: \(inactive\))?: registered at (.+?):\d+ ::")


@dataclass(frozen=True)
class Override:
    """A kernel of somebody else for aten::<name> on a kind of device.

    by     who registered it: a language of `torch.backends.python_native`, or a file
    above  whether it was registered after fuseline's own and serves its calls
    """

    name: str
    device: str
    by: str
    above: bool


def find(name: str, device: str) -> Override | None:
    """Return the override of aten::<name> that was registered last; None if there is none."""
    files = _files(name, KEYS[device])
    ours = next((i for i, file in enumerate(files) if file.endswith(_OURS)), None)
    for i, file in enumerate(files):
        if not file.endswith(_OURS) and _ATENS not in file:
            return Override(name, device, _who(name, file), ours is not None and i < ours)
    return None


def is_ours(name: str, device: str) -> bool:
    """Return whether a kernel of fuseline's serves the calls of aten::<name>."""
    return any(file.endswith(_OURS) for file in _files(name, KEYS[device])[:1])


def register_again(given: Iterable[Override]) -> None:
    """Have torch's registry make its kernels again, which call the one that was there before them.

    That is fuseline's, where it was, and no longer callable once it is taken back.
    """
    for override in given:
        if override.by.startswith(_TORCHS):
            _registry().enable_operations(override.name)


def _registry() -> Any:
    return importlib.import_module("torch.backends.python_native")


def _files(name: str, key: str) -> list[str]:
    """Return the files that registered a kernel of aten::<name> at a dispatch key, last first."""
    lines = torch._C._dispatch_dump(f"aten::{name}").splitlines()
    return [found[2] for line in lines if (found := _LINE.match(line)) and found[1] == key]


def _who(name: str, file: str) -> str:
    if not file.endswith(_REGISTRY):
        # Environments of measurements have it: no folder that a user's name may be in.
        _, installed, inside = file.rpartition("/site-packages/")
        return inside if installed else Path(file).name
    registry = _registry()
    dsls = [dsl for dsl in registry.all_dsls if name in registry.get_dsl_operations(dsl)]
    versions = [f"{dsl} {getattr(registry, dsl).version or ''}".strip() for dsl in dsls]
    return f"{_TORCHS} {', '.join(versions) or 'registry of Python kernels'}"
