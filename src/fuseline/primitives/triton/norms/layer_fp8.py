"""Layer norm to e4m3: rows that fit the registers of one program are read once; longer rows in
blocks, twice, or three times where a row has one scale.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.norms.e4m3 import (
    GIVEN,
    ROW,
    bits_of,
    float32_of,
    group_of,
    magnitude,
    scale_of,
    store,
    store_blocks,
    store_by,
)
from fuseline.primitives.triton.norms.layer import (
    add_two,
    apply,
    both_sums,
    centred,
    holds,
    moments,
    parameter,
)
from fuseline.primitives.triton.rms import float64_of, inverse_sqrt
from fuseline.primitives.triton.row_sums import block, places, tile
from fuseline.primitives.triton.rows import divide_up, halves, power_of_2, vec, whole_meta

_COUNTS = ["n_rows", "n_cols", "x_stride", "eps_high", "eps_low", "ub_bits"]
# So that nothing spills as compiled for Hopper; not tuned on a GPU yet: elements, and warps.
_WHOLE = ((2048, 4), (4096, 8), (8192, 16), (16384, 32))  # the last of half types alone
_SIZE, _WARPS = 4096, 8


@triton.jit
def _wide(x, mean, rstd, w, b):
    """Return (x - mean) * rstd * w + b in fp64, rounded once."""
    v = (x.to(tl.float64) - mean) * rstd * w.to(tl.float64) + b.to(tl.float64)
    return v.to(tl.float32)


@triton.jit(do_not_specialize=_COUNTS)
def _whole_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, scale_ptr, n_rows, n_cols, x_stride, eps_high, eps_low, ub_bits,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x, weight and bias once, write y and the scales."""
    HALF: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16
    eps = float64_of(eps_high, eps_low)
    rows, live, cols, mask = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(tl.float32)
    first_ptrs = x_ptr + rows * (x_stride // VEC * VEC)
    first = tl.load(first_ptrs, live & (n_cols > 0), other=0.0).to(tl.float32)
    deviation, lost = centred(x, first[:, None], mask)
    a, a_lost, b, b_lost = both_sums(deviation, lost, 1, False)
    mean, mean_rest, rstd, rstd_rest, variance = moments(
        first, a, a_lost, b, b_lost, n_cols, eps, tl.float32
    )
    inside = cols < n_cols // VEC * VEC
    w = parameter(w_ptr, cols, inside, 1.0, tl.float32)[None, :]
    bias = parameter(b_ptr, cols, inside, 0.0, tl.float32)[None, :]
    v = apply(
        x, mean[:, None], mean_rest[:, None], rstd[:, None], rstd_rest[:, None], w, bias, HALF
    )
    again = live & ~holds(variance, tl.float32)
    if tl.sum(again.to(tl.int32), 0) > 0:
        exact = first.to(tl.float64) + a / n_cols
        wide = _wide(x, exact[:, None], inverse_sqrt(variance)[:, None], w, bias)
        v = tl.where(again[:, None], wide, v)
    y_ptrs = places(y_ptr, rows, n_cols, cols, VEC)
    ub = float32_of(ub_bits)
    store(v, y_ptrs, scale_ptr, rows, live, mask, n_cols, ub, ROWS, BLOCK, GROUP)


@triton.jit
def _long_values(
    x_row, w_ptr, b_ptr, start, n_cols, mean, rstd, VEC: tl.constexpr, BLOCK: tl.constexpr
):
    """Return a block of one row's norm, its columns, and which of them exist."""
    cols, inside = block(start, n_cols, VEC, BLOCK)
    x = tl.load(x_row + cols, inside, other=0.0)
    w = parameter(w_ptr, cols, inside, 1.0, tl.float32)
    b = parameter(b_ptr, cols, inside, 0.0, tl.float32)
    return tl.where(inside, _wide(x, mean, rstd, w, b), 0.0)[None, :], cols, inside


@triton.jit(do_not_specialize=_COUNTS[1:])
def _long_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, scale_ptr, n_cols, x_stride, eps_high, eps_low, ub_bits,
    VEC: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Process one row: read x for its sums; then read it from what the caches still hold, and write
    y and the scales.
    """
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    rows = row + tl.arange(0, 1)
    live = rows >= 0
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    first = tl.load(x_row).to(tl.float32)
    a = tl.zeros((BLOCK,), tl.float64)
    b = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols, inside = block(start, n_cols, VEC, BLOCK)
        x = tl.load(x_row + cols, inside, other=0.0).to(tl.float32)
        v, _ = centred(x, first, inside)
        a += v
        b += v * v
    a, b = tl.reduce((a, b), 0, add_two)
    off = a / n_cols
    variance = b / n_cols - off * off + float64_of(eps_high, eps_low)
    mean = first.to(tl.float64) + off
    rstd = inverse_sqrt(variance)
    ub = float32_of(ub_bits)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    if GROUP == ROW:
        most = tl.zeros((1, BLOCK), tl.int32)
        for start in range(0, n_cols, BLOCK):
            v, _, _ = _long_values(x_row, w_ptr, b_ptr, start, n_cols, mean, rstd, VEC, BLOCK)
            most = tl.maximum(most, magnitude(v))
        scale = scale_of(tl.max(most, 1), ub)
        tl.store(scale_ptr + rows, scale, live)
    elif GROUP == GIVEN:
        scale = tl.load(scale_ptr + tl.arange(0, 1))
    for i in range(blocks):
        start = (blocks - 1 - i) * BLOCK
        v, cols, inside = _long_values(x_row, w_ptr, b_ptr, start, n_cols, mean, rstd, VEC, BLOCK)
        y_ptrs = (y_ptr + row * width + cols)[None, :]
        if GROUP > 0:
            store_blocks(
                v, y_ptrs, scale_ptr, rows, live, inside[None, :], start, n_cols, ub,
                1, BLOCK, GROUP,
            )  # fmt: skip
        else:
            store_by(v, scale[:, None], y_ptrs, inside[None, :])


def fwd(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    scale: torch.Tensor | None,
    block: int | None = None,
    scale_ub: float | None = None,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y in float8_e4m3fn, and the scales.

    x: (rows, n_cols), last stride 1, any row stride. weight, bias: (n_cols,), contiguous. scale:
    one element, by which y is divided; None: scales are made, one of each row or of each `block` of
    it. `wrap` is applied to the kernel before its launch.
    """
    n_rows, n_cols = x.shape
    group = GIVEN.value if scale is not None else group_of(block)
    if scale is None:
        count = divide_up(n_cols, block) if block else 1
        scale = x.new_empty((n_rows, count), dtype=torch.float32)
    y = x.new_empty((n_rows, n_cols), dtype=torch.uint8)
    counts = (n_cols, x.stride(0), *halves(float(eps)), bits_of(scale_ub))
    meta = {"VEC": vec(x, n_cols, x.stride(0))}
    tensors = (x, weight, bias, y, scale)
    tiles = _WHOLE if x.element_size() == 2 else _WHOLE[:-1]
    fitting = next((e for e in tiles if n_cols <= e[0]), None)
    if n_rows > 0 and fitting is not None:
        least, warps = fitting
        size = max(power_of_2(max(n_cols, 1)), group)
        meta |= whole_meta(size, max(least, size), warps) | {"GROUP": group}
        args = (*tensors, n_rows, *counts)
        launch(_whole_kernel, (divide_up(n_rows, meta["ROWS"]),), args, meta, wrap)
    elif n_rows > 0:
        meta |= {"BLOCK": _SIZE, "num_warps": _WARPS, "GROUP": group}
        launch(_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
    return y.view(torch.float8_e4m3fn), scale
