"""Matrix views of tensors for the operators that work on rows."""

from __future__ import annotations

from math import prod
from typing import TypeVar

import torch

from fuseline.core import native

_Given = TypeVar("_Given", torch.Tensor, torch.Tensor | None)


def dense(t: _Given) -> _Given:
    """Return the tensor itself if it is contiguous, else a copy."""
    if t is None or (t.is_contiguous() and not t.is_neg()):
        return t
    native.count_copy()
    return t.resolve_neg().contiguous()


def dense_as(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if it lies in memory as `like`, of its shape, else a copy that does.

    like: without gaps, as torch.empty_like makes it.
    """
    alike = t.stride() == like.stride() or (t.is_contiguous() and like.is_contiguous())
    if alike and not t.is_neg():
        return t
    native.count_copy()
    return torch.empty_like(like).copy_(t)


def memory_order(t: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor without gaps as they lie in memory, the fastest last."""
    return tuple(sorted(range(t.dim()), key=lambda d: t.stride(d), reverse=True))


def flat(t: torch.Tensor) -> torch.Tensor:
    """Return the elements in one dimension, contiguous;
    reshape(-1) leaves an expanded one as is.
    """
    return dense(t).view(-1)


def as_rows(t: torch.Tensor) -> torch.Tensor:
    """Return (..., N) as (rows, N) with last stride 1: a view
    if one row stride allows, or a copy.
    """
    n = t.shape[-1]
    rows = prod(t.shape[:-1])
    if (t.stride(-1) == 1 or n <= 1) and not t.is_neg():
        try:
            view = t.view(rows, n)
            if view.stride(-1) == 1:
                return view
            return view.as_strided((rows, n), (view.stride(0), 1))
        except RuntimeError:
            pass  # the leading dimensions have no common stride
    native.count_copy()
    return t.resolve_neg().contiguous().view(rows, n)
