"""Make memory that was allocated but never written visible as NaN."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

BLOCKS = 3


def poison(tensors: Iterable[Tensor]) -> None:
    """Fill blocks of the tensors' sizes with all-ones bytes (NaN in every float type), free them.

    The allocator hands them out next, so an output that was not written holds NaN.
    """
    sizes = {(t.device, t.numel() * t.element_size()) for t in tensors}
    blocks = [
        torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
        for device, size in sizes
        for _ in range(BLOCKS)
    ]
    del blocks


@contextmanager
def debug_fill() -> Iterator[None]:
    """Fill what the library's own allocation helper returns, where this build has the switch."""
    try:
        switch = getattr(importlib.import_module("fuseline.core.native"), "debug_fill", None)
    except ImportError:
        switch = None
    if switch is None:
        yield
        return
    switch(True)
    try:
        yield
    finally:
        switch(False)


@contextmanager
def filled_memory() -> Iterator[None]:
    """Let torch.empty and its kin return NaN, besides our own allocations."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # The module hides its one attribute behind a property, which type checkers do not see.
    switches: Any = torch.utils.deterministic
    fill = switches.fill_uninitialized_memory
    with warnings.catch_warnings(), debug_fill():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        switches.fill_uninitialized_memory = True
        try:
            yield
        finally:
            switches.fill_uninitialized_memory = fill
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
