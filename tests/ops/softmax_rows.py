"""Rows that a softmax must get right, and how wrong one is on them."""

from __future__ import annotations

import math

import pytest
import torch

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.testing import Judge

IMPLS = [("cpu", "cpu"), pytest.param("cuda", "cuda", marks=pytest.mark.gpu)]
WITHOUT_BINARY = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)
LENGTHS = [1, 7, 16, 61, 130, 1027, 20001]


def hard_rows(n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Large and far from 0, equal, masked in part and as a whole, with an Inf, with a NaN.

    Of each kind so many that the worst error is no accident.
    """
    x = torch.randn(8, 8192 // n + 1, n, device=device)
    x[1] += 1e4
    x[2] *= 1e4
    x[3] = -1e4
    x[4, :, 1::2] = -math.inf
    x[5] = -math.inf
    x[6, :, n // 2] = math.inf
    x[7, :, -1] = math.nan
    return x.to(dtype)


def hard_columns(n: int, inner: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The same, `inner` rows side by side, some twice."""
    rows = hard_rows(n, dtype, device).flatten(0, 1)
    outer = -(-len(rows) // inner)
    return rows.repeat(2 + inner // len(rows), 1)[: outer * inner].view(outer, inner, n)


def keeps_the_budget(
    name: str, x: torch.Tensor, impl: str, columns: torch.Tensor | None = None
) -> None:
    """Whether all of it, be it Inf or NaN, is the oracle's within the spec's budget.

    columns: the same rows along the last dimension but one, which is then the operator's.
    """
    ours = getattr(fuseline, name)
    y = ours(x, -1, impl) if columns is None else ours(columns, -2, impl).transpose(-1, -2)
    all_keep_the_budget(name, x, y)


def all_keep_the_budget(name: str, x: torch.Tensor, *found: torch.Tensor) -> None:
    """The same of several results for x."""
    judge = Judge(table.load()[name], {"x": x}, "fwd")
    for y in found:
        wrong = judge.wrong({"out0": y})
        assert wrong is None, (x.dtype, wrong)
