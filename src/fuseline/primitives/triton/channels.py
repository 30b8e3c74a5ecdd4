"""What follows a convolution, on the rows of a channels_last tensor: bias, sum and ReLU in one
pass, and in one their gradients with the sums of each channel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.parameters import finish
from fuseline.primitives.triton.rows import divide_up, power_of_2, processors, vec

_TILE, _WARPS = 4096, 8  # elements of a program's tile
_MOST_COLUMNS = 128
_PROGRAMS = 6  # on each SM, of kernels that write partial rows


@triton.jit(do_not_specialize=["n_rows", "n_cols"])
def _epilogue_kernel(
    h_ptr, bias_ptr, z_ptr, n_rows, n_cols,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Process a tile of h in place: add the bias and z, then ReLU."""
    width = n_cols // VEC * VEC
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (rows < n_rows)[:, None] & (cols < width)[None, :]
    at = rows[:, None] * width + cols[None, :]
    y = tl.load(h_ptr + at, mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, cols < width, other=0.0).to(tl.float32)[None, :]
    if z_ptr is not None:
        y += tl.load(z_ptr + at, mask, other=0.0).to(tl.float32)
    if RELU:
        y = tl.where(y < 0.0, 0.0, y)  # NaN stays
    tl.store(h_ptr + at, y.to(h_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "chunk"])
def _gradient_kernel(
    dy_ptr, y_ptr, g_ptr, partial_ptr, n_rows, n_cols, chunk,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels of `chunk` rows: read dy and y, write what ReLU lets pass, and its
    sums; without y all passes, and without partial_ptr there are no sums.
    """
    width = n_cols // VEC * VEC
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * chunk
    own = tl.minimum(n_rows - first, chunk).to(tl.int32)
    rows = tl.arange(0, ROWS)
    at = (first + rows)[:, None] * width + cols[None, :]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, own, ROWS):
        mask = (start + rows < own)[:, None] & (cols < width)[None, :]
        g = tl.load(dy_ptr + at, mask, other=0.0)
        if y_ptr is not None:
            y = tl.load(y_ptr + at, mask, other=0.0)
            g = tl.where(y <= 0.0, 0.0, g)
            tl.store(g_ptr + at, g, mask)
        if partial_ptr is not None:
            sums += g.to(tl.float32)
        at += ROWS * width
    if partial_ptr is not None:
        part = partial_ptr + tl.program_id(0).to(tl.int64) * width + cols
        tl.store(part, tl.sum(sums, 0), cols < width)


def rows_of(t: Tensor) -> Tensor:
    """Return a channels_last tensor as (rows, channels), without a copy."""
    return t.movedim(1, -1).view(-1, t.shape[1])


def tile(rows: Tensor) -> dict[str, int]:
    """Return the constants of a kernel on such rows."""
    columns = min(power_of_2(rows.shape[1]), _MOST_COLUMNS)
    size = {"ROWS": _TILE // columns, "BLOCK": columns}
    return {"VEC": vec(rows, rows.shape[1]), **size, "num_warps": _WARPS}


def most_chunks(rows: Tensor, meta: dict[str, int]) -> int:
    """Return how many partial rows there are at most."""
    columns = divide_up(rows.shape[1], meta["BLOCK"])
    return max(1, processors(rows.device) * _PROGRAMS // columns)


def chunk_of(rows: Tensor, meta: dict[str, int]) -> int:
    """Return the rows of each program that writes a partial row."""
    tiles = divide_up(rows.shape[0], meta["ROWS"])
    return divide_up(tiles, most_chunks(rows, meta)) * meta["ROWS"]


def grid(rows: Tensor, height: int, meta: dict[str, int]) -> tuple[int, int]:
    """Return that of programs of `height` rows each."""
    return divide_up(rows.shape[0], height), divide_up(rows.shape[1], meta["BLOCK"])


def epilogue(
    h: Tensor, bias: Tensor | None, z: Tensor | None, relu: bool, wrap: Wrap | None
) -> None:
    """Add a bias and z to h, which is channels_last, and with relu take its ReLU, in its place."""
    rows = rows_of(h)
    meta = tile(rows)
    other = None if z is None else rows_of(z)
    args = (rows, bias, other, *rows.shape)
    launch(_epilogue_kernel, grid(rows, meta["ROWS"], meta), args, meta | {"RELU": relu}, wrap)


def gradient(
    dy: Tensor, y: Tensor | None, sums: bool, wrap: Wrap | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of what ReLU gave as y (without y: dy itself) and, if these are wanted,
    its sums over all but the channels, in dy's dtype; dy and y are channels_last.
    """
    rows = rows_of(dy)
    meta = tile(rows)
    height = chunk_of(rows, meta)
    places = grid(rows, height, meta)
    g = dy if y is None else torch.empty_like(dy)
    partial = None
    if sums:
        partial = rows.new_empty((1, places[0], rows.shape[1]), dtype=torch.float32)
    others = (None, None) if y is None else (rows_of(y), rows_of(g))
    launch(_gradient_kernel, places, (rows, *others, partial, *rows.shape, height), meta, wrap)
    return g, None if partial is None else finish(partial, (dy.dtype,), wrap)[0]
