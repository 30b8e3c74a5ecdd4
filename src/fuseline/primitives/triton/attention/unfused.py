"""Rows of a matrix of scores in memory: their softmax, and the gradient of it, in place.

A program has a row, which it reads twice: of most lengths from L2 the second time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.attention.kernels import BOOL_MASK, NO_MASK

_COUNTS = ["heads", "n_queries", "n_keys", "left", "right", "mask_b", "mask_h", "mask_m", "mask_n"]


@triton.jit
def _place(heads, n_queries, n_keys, VEC: tl.constexpr):
    """Return (batch, head, query) of this program's row, where it begins, and its length."""
    row = tl.program_id(0)
    n = n_keys // VEC * VEC
    head = row // n_queries
    return head // heads, head % heads, row % n_queries, tl.cast(row, tl.int64) * n, n


@triton.jit
def _scores(
    scores_ptr, mask_ptr, i, start, n, left, right, mask_n,
    MASK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return BLOCK scores of query i from key `start` on, -Inf where a key is not visible."""
    j = start + tl.arange(0, BLOCK)
    z = tl.load(scores_ptr + j, j < n, other=float("-inf")).to(tl.float32)
    if MASK != NO_MASK:
        at = mask_ptr + tl.cast(j, tl.int64) * mask_n
        if MASK == BOOL_MASK:
            z = tl.where(tl.load(at, j < n, other=0) != 0, z, float("-inf"))
        else:
            z += tl.load(at, j < n, other=0.0).to(tl.float32)
    if RIGHT:
        z = tl.where(j <= i + right, z, float("-inf"))
    if LEFT:
        z = tl.where(j >= i - left, z, float("-inf"))
    return z


@triton.jit
def _base(top):
    """Return what is taken from scores before their powers: the largest, if any is visible."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit(do_not_specialize=_COUNTS)
def softmax_kernel(
    scores_ptr, mask_ptr, lse_ptr, heads, n_queries, n_keys, left, right,
    mask_b, mask_h, mask_m, mask_n,
    MASK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, VEC: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Process a row: write its softmax in its place, 0 where nothing is visible, and lse."""
    b, h, i, first, n = _place(heads, n_queries, n_keys, VEC)
    scores_ptr += first
    if MASK != NO_MASK:
        mask_ptr += tl.cast(b, tl.int64) * mask_b + tl.cast(h, tl.int64) * mask_h
        mask_ptr += tl.cast(i, tl.int64) * mask_m
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        z = _scores(scores_ptr, mask_ptr, i, start, n, left, right, mask_n,
                    MASK, LEFT, RIGHT, BLOCK)  # fmt: skip
        before, top = top, tl.maximum(top, tl.max(z, 0))
        base = _base(top)
        total = total * tl.exp(before - base) + tl.sum(tl.exp(z - base), 0)
    base = _base(top)
    tl.store(lse_ptr + tl.program_id(0), base + tl.log(total))
    total = tl.where(total == 0.0, 1.0, total)
    for start in range(0, n, BLOCK):
        z = _scores(scores_ptr, mask_ptr, i, start, n, left, right, mask_n,
                    MASK, LEFT, RIGHT, BLOCK)  # fmt: skip
        j = start + tl.arange(0, BLOCK)
        p = tl.exp(z - base) / total
        tl.store(scores_ptr + j, p.to(scores_ptr.dtype.element_ty), j < n)


@triton.jit(do_not_specialize=_COUNTS)
def gradient_kernel(
    scores_ptr, dp_ptr, mask_ptr, heads, n_queries, n_keys, left, right,
    mask_b, mask_h, mask_m, mask_n,
    MASK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, VEC: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Process a row of scores and of the gradient of p, their softmax: write p in the place of the
    scores, and p * (dp - sum(p * dp)) in that of dp.
    """
    b, h, i, first, n = _place(heads, n_queries, n_keys, VEC)
    scores_ptr += first
    dp_ptr += first
    if MASK != NO_MASK:
        mask_ptr += tl.cast(b, tl.int64) * mask_b + tl.cast(h, tl.int64) * mask_h
        mask_ptr += tl.cast(i, tl.int64) * mask_m
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    delta = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        z = _scores(scores_ptr, mask_ptr, i, start, n, left, right, mask_n,
                    MASK, LEFT, RIGHT, BLOCK)  # fmt: skip
        j = start + tl.arange(0, BLOCK)
        dp = tl.load(dp_ptr + j, j < n, other=0.0).to(tl.float32)
        before, top = top, tl.maximum(top, tl.max(z, 0))
        base = _base(top)
        shrunk = tl.exp(before - base)
        e = tl.exp(z - base)
        total = total * shrunk + tl.sum(e, 0)
        delta = delta * shrunk + tl.sum(tl.where(z == float("-inf"), 0.0, e * dp), 0)
    base = _base(top)
    total = tl.where(total == 0.0, 1.0, total)
    delta = delta / total
    for start in range(0, n, BLOCK):
        z = _scores(scores_ptr, mask_ptr, i, start, n, left, right, mask_n,
                    MASK, LEFT, RIGHT, BLOCK)  # fmt: skip
        j = start + tl.arange(0, BLOCK)
        dp = tl.load(dp_ptr + j, j < n, other=0.0).to(tl.float32)
        p = tl.exp(z - base) / total
        ds = tl.where(z == float("-inf"), 0.0, p * (dp - delta))
        tl.store(scores_ptr + j, p.to(scores_ptr.dtype.element_ty), j < n)
        tl.store(dp_ptr + j, ds.to(dp_ptr.dtype.element_ty), j < n)
