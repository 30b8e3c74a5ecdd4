"""Results compared roughly: to say what a solution does, not whether it is right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Of the largest value: what no precision explains is further off.
ROUGH = 0.02


def near(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Say whether results are of the same shapes and about the same values."""
    return len(ones) == len(others) and all(map(_near, ones, others))


def error(ones: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest error of floating results, relative to the largest value of each."""
    pairs = [(a, b) for a, b in zip(ones, exact, strict=True) if a.is_floating_point()]
    return max((_apart(a, b) / max(_largest(b), 1e-300) for a, b in pairs), default=0.0)


def same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Say whether results are equal, NaN for NaN."""
    return len(ones) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and _equal(a, b)
        for a, b in zip(ones, others, strict=True)
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _near(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.is_floating_point() != b.is_floating_point():
        return False
    if not a.is_floating_point() or not a.numel():
        return bool((a == b).all())
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    return _apart(a, b) <= ROUGH * _largest(b)


def _apart(a: Tensor, b: Tensor) -> float:
    return _largest(a.double().nan_to_num(0, 0, 0) - b.double().nan_to_num(0, 0, 0))


def _largest(t: Tensor) -> float:
    return t.double().nan_to_num(0, 0, 0).abs().max().item() if t.numel() else 0.0
