"""Batch norm in training and ReLU in Triton, on the rows of a channels_last tensor.

Forward: h once for the statistics of each channel, once for y. Backward: dy and h once for the sums
of each channel, once for dh; what ReLU lets pass is computed again. Sums are added in an order of
their own, whatever runs first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuseline.core.convolutions import geometry
from fuseline.core.convolutions.convolution import Call
from fuseline.core.inputs.layout import dense
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.channels import chunk_of, grid, most_chunks, rows_of, tile
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.parameters import finish
from fuseline.primitives.triton.rms import float64_of
from fuseline.primitives.triton.rows import divide_up, halves, power_of_2

_COMBINED, _WARPS = 4096, 8  # moments that a program combines, all at once


@triton.jit
def _affine(h, cols, width, mean_ptr, rstd_ptr, w_ptr, b_ptr):
    """Return xhat, the norm of h and what rstd is multiplied by."""
    live = cols < width
    rstd = tl.load(rstd_ptr + cols, live, other=0.0)
    xhat = (h - tl.load(mean_ptr + cols, live, other=0.0)[None, :]) * rstd[None, :]
    y = xhat
    scale = rstd
    if w_ptr is not None:
        w = tl.load(w_ptr + cols, live, other=0.0).to(rstd.dtype)
        y = xhat * w[None, :]
        scale = rstd * w
    if b_ptr is not None:
        y += tl.load(b_ptr + cols, live, other=0.0).to(rstd.dtype)[None, :]
    return xhat, y, scale


@triton.jit(do_not_specialize=["n_rows", "n_cols", "chunk"])
def _moments_kernel(
    h_ptr, mean_ptr, square_ptr, n_rows, n_cols, chunk,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels of `chunk` rows: read h, write their mean and squares about it."""
    width = n_cols // VEC * VEC
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * chunk
    own = tl.minimum(n_rows - first, chunk).to(tl.int32)
    rows = tl.arange(0, ROWS)
    tile = h_ptr + (first + rows)[:, None] * width + cols[None, :]
    mean = tl.zeros((ROWS, BLOCK), tl.float32)
    square = tl.zeros((ROWS, BLOCK), tl.float32)
    count = 0.0
    for start in range(0, own, ROWS):
        live = (start + rows < own)[:, None]
        h = tl.load(tile, live & (cols < width)[None, :], other=0.0).to(tl.float32)
        count += 1.0
        moved = mean + (h - mean) * (1.0 / count)
        square += tl.where(live, (h - mean) * (h - moved), 0.0)
        mean = tl.where(live, moved, mean)
        tile += ROWS * width
    counts = ((own - rows + ROWS - 1) // ROWS).to(tl.float32)[:, None]
    whole = tl.sum(mean * counts, 0) / own.to(tl.float32)
    apart = mean - whole[None, :]
    square += apart * apart * counts
    part = tl.program_id(0).to(tl.int64) * width + cols
    tl.store(mean_ptr + part, whole, cols < width)
    tl.store(square_ptr + part, tl.sum(square, 0), cols < width)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "chunk", "eps_high", "eps_low"])
def _statistics_kernel(
    means_ptr, squares_ptr, mean_ptr, var_ptr, rstd_ptr, n_rows, n_cols, chunk, eps_high, eps_low,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels: read the moments of all chunks, ROWS at most, write the batch's."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)
    mask = (rows.to(tl.int64) * chunk < n_rows)[:, None] & (cols < n_cols)[None, :]
    own = tl.minimum(n_rows - rows.to(tl.int64) * chunk, chunk).to(tl.float64)[:, None]
    at = rows.to(tl.int64)[:, None] * n_cols + cols[None, :]
    means = tl.load(means_ptr + at, mask, other=0.0).to(tl.float64)
    squares = tl.load(squares_ptr + at, mask, other=0.0)
    mean = tl.sum(tl.where(mask, means * own, 0.0), 0) / n_rows
    apart = means - mean[None, :]
    square = tl.sum(tl.where(mask, squares + apart * apart * own, 0.0), 0)
    eps = float64_of(eps_high, eps_low)
    live = cols < n_cols
    tl.store(mean_ptr + cols, mean.to(tl.float32), live)
    tl.store(var_ptr + cols, (square / (n_rows - 1)).to(tl.float32), live)
    tl.store(rstd_ptr + cols, (1.0 / tl.sqrt(square / n_rows + eps)).to(tl.float32), live)


@triton.jit(do_not_specialize=["n_rows", "n_cols"])
def _normalise_kernel(
    h_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, y_ptr, n_rows, n_cols,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Process a tile: read h, write y."""
    width = n_cols // VEC * VEC
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (rows < n_rows)[:, None] & (cols < width)[None, :]
    at = rows[:, None] * width + cols[None, :]
    h = tl.load(h_ptr + at, mask, other=0.0).to(tl.float32)
    _, y, _ = _affine(h, cols, width, mean_ptr, rstd_ptr, w_ptr, b_ptr)
    if RELU:
        y = tl.where(y < 0.0, 0.0, y)  # NaN stays
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "chunk"])
def _sums_kernel(
    dy_ptr, h_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, partial_ptr, n_rows, n_cols, chunk,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels of `chunk` rows: read dy and h, write the sums of g * xhat and g."""
    width = n_cols // VEC * VEC
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * chunk
    own = tl.minimum(n_rows - first, chunk).to(tl.int32)
    rows = tl.arange(0, ROWS)
    at = (first + rows)[:, None] * width + cols[None, :]
    products = tl.zeros((ROWS, BLOCK), tl.float32)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, own, ROWS):
        mask = (start + rows < own)[:, None] & (cols < width)[None, :]
        g = tl.load(dy_ptr + at, mask, other=0.0).to(tl.float32)
        h = tl.load(h_ptr + at, mask, other=0.0).to(tl.float32)
        xhat, y, _ = _affine(h, cols, width, mean_ptr, rstd_ptr, w_ptr, b_ptr)
        if RELU:
            g = tl.where(y <= 0.0, 0.0, g)
        products += tl.where(mask, g * xhat, 0.0)
        sums += g
        at += ROWS * width
    part = partial_ptr + tl.program_id(0).to(tl.int64) * width + cols
    tl.store(part, tl.sum(products, 0), cols < width)
    tl.store(part + tl.num_programs(0).to(tl.int64) * width, tl.sum(sums, 0), cols < width)


@triton.jit(do_not_specialize=["n_rows", "n_cols"])
def _gradient_kernel(
    dy_ptr, h_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, products_ptr, sums_ptr, dh_ptr,
    n_rows, n_cols,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Process a tile: read dy and h, write dh."""
    width = n_cols // VEC * VEC
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (rows < n_rows)[:, None] & (cols < width)[None, :]
    at = rows[:, None] * width + cols[None, :]
    g = tl.load(dy_ptr + at, mask, other=0.0).to(tl.float32)
    h = tl.load(h_ptr + at, mask, other=0.0).to(tl.float32)
    xhat, y, scale = _affine(h, cols, width, mean_ptr, rstd_ptr, w_ptr, b_ptr)
    if RELU:
        g = tl.where(y <= 0.0, 0.0, g)
    each = 1.0 / tl.cast(n_rows, tl.float32)
    product = tl.load(products_ptr + cols, cols < width, other=0.0) * each
    mean = tl.load(sums_ptr + cols, cols < width, other=0.0) * each
    dh = (g - mean[None, :] - xhat * product[None, :]) * scale[None, :]
    tl.store(dh_ptr + at, dh.to(dh_ptr.dtype.element_ty), mask)


def fwd(
    call: Call,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    eps: float,
    relu: bool,
    wrap: Wrap | None = None,
) -> tuple[Tensor, ...]:
    """Return y, mean, var, h and rstd."""
    h = geometry.placed(call.convolved(), call.form)
    y = torch.empty_like(h)
    norm = (dense(bn_weight), dense(bn_bias))
    mean, var, rstd = _normalised(rows_of(h), *norm, relu, rows_of(y), eps, wrap)
    return y, mean, var, h, rstd


def bwd(
    call: Call,
    dy: Tensor,
    y: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    h: Tensor,
    mean: Tensor,
    rstd: Tensor,
    relu: bool,
    needs: tuple[bool, ...],
    wrap: Wrap | None = None,
) -> tuple[Tensor | None, tuple[Tensor, Tensor]]:
    """Return the gradients of h, if weight or x needs one, and of bn_weight and bn_bias."""
    images = [t.contiguous(memory_format=call.form) for t in (dy, h)]
    dh = torch.empty_like(images[1]) if any(needs[:2]) else None
    vectors = [dense(t) for t in (mean, rstd, bn_weight, bn_bias)]
    to = None if dh is None else rows_of(dh)
    return dh, _gradient([*map(rows_of, images), *vectors], relu, to, wrap)


def _statistics(rows: Tensor, eps: float, wrap: Wrap | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, unbiased variance and 1 / sqrt(biased variance + eps) of each column."""
    meta = tile(rows)
    chunk = chunk_of(rows, meta)
    places = grid(rows, chunk, meta)
    n_rows, n_cols = rows.shape
    parts = [rows.new_empty((places[0], n_cols), dtype=torch.float32) for _ in range(2)]
    launch(_moments_kernel, places, (rows, *parts, n_rows, n_cols, chunk), meta, wrap)
    found = tuple(rows.new_empty((n_cols,), dtype=torch.float32) for _ in range(3))
    args = (*parts, *found, n_rows, n_cols, chunk, *halves(eps))
    combine = {"ROWS": power_of_2(most_chunks(rows, meta)), "num_warps": _WARPS}
    combine["BLOCK"] = max(1, min(32, _COMBINED // combine["ROWS"]))
    launch(_statistics_kernel, (divide_up(n_cols, combine["BLOCK"]),), args, combine, wrap)
    mean, var, rstd = found
    return mean, var, rstd


def _normalised(
    rows: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    relu: bool,
    y: Tensor,
    eps: float,
    wrap: Wrap | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the norm of rows, or its ReLU, to y; return their statistics."""
    found = mean, _, rstd = _statistics(rows, eps, wrap)
    meta = tile(rows) | {"RELU": relu}
    args = (rows, mean, rstd, weight, bias, y, *rows.shape)
    launch(_normalise_kernel, grid(rows, meta["ROWS"], meta), args, meta, wrap)
    return found


def _gradient(
    given: list[Tensor | None], relu: bool, dh: Tensor | None, wrap: Wrap | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias in float32; write that of rows to dh, if any.

    given  dy, rows, mean, rstd, weight, bias
    """
    rows: Any = given[1]
    meta = tile(rows) | {"RELU": relu}
    chunk = chunk_of(rows, meta)
    places = grid(rows, chunk, meta)
    partial = rows.new_empty((2, places[0], rows.shape[1]), dtype=torch.float32)
    launch(_sums_kernel, places, (*given, partial, *rows.shape, chunk), meta, wrap)
    dweight, dbias = finish(partial, (torch.float32, torch.float32), wrap)
    if dh is not None:
        args = (*given, dweight, dbias, dh, *rows.shape)
        launch(_gradient_kernel, grid(rows, meta["ROWS"], meta), args, meta, wrap)
    return dweight, dbias
