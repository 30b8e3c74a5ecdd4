"""RMSNorm in Triton: y = x * rsqrt(mean(x^2) + eps) * (OFFSET + weight) over the last dimension.

Rows that fit the registers of one program are read once; longer rows in blocks, twice.
A row's result depends on its own length and type only, never on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from fuseline.core.selection.tuned import Table, Tile, find
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import Grid, launch, ready
from fuseline.primitives.triton.parameters import TILES, finish, partial_rows, sum_long
from fuseline.primitives.triton.rms import (
    BLOCKS,
    divide,
    fallback,
    float64_of,
    in_range,
    inverse_sqrt,
    plus,
)
from fuseline.primitives.triton.rows import divide_up, halves, vec, whole_meta

TUNED = Path(__file__).parent / "tuned"

_FWD_COUNTS = ["n_rows", "n_cols", "x_stride", "eps_high", "eps_low"]
_BWD_COUNTS = ["n_rows", "n_cols", "x_stride", "dy_stride"]


@triton.jit(do_not_specialize=_FWD_COUNTS)
def _fwd_kernel(
    x_ptr, w_ptr, y_ptr, rstd_ptr, n_rows, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WEIGHT_FIRST: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x and the weight once, write y and rstd."""
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    eps = float64_of(eps_high, eps_low)
    width = n_cols // VEC * VEC
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    live = rows < n_rows
    mask = live[:, None] & (cols < width)[None, :]
    x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
    x = tl.load(x_ptrs, mask, other=0.0).to(acc)
    # Before the reduction its trip to memory is hidden behind that of x; its registers cost large
    # rows a third of the resident programs.
    if w_ptr is not None and WEIGHT_FIRST:
        w = tl.load(w_ptr + cols, cols < width, other=0.0, eviction_policy="evict_last").to(acc)
    # fp32 squares are added in fp64: the like terms of one thread would err in one direction.
    sums: tl.constexpr = (
        tl.float32 if x_ptr.dtype.element_ty.primitive_bitwidth < 32 else tl.float64
    )
    squares = tl.sum((x * x).to(sums), 1)
    mean = (divide(squares, tl.cast(n_cols, sums)) + eps.to(sums)).to(acc)
    good = live & in_range(mean)
    rstd = inverse_sqrt(mean)
    y = x * rstd[:, None]
    if w_ptr is not None:
        if not WEIGHT_FIRST:
            w = tl.load(w_ptr + cols, cols < width, other=0.0, eviction_policy="evict_last").to(acc)
        y *= plus(w, OFFSET)[None, :]
    y_ptrs = y_ptr + rows[:, None] * width + cols[None, :]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask & good[:, None])
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, rstd, good)
    again = live & ~good
    if tl.sum(again.to(tl.int32), 0) > 0:
        fallback(
            x_ptr, w_ptr, y_ptr, rstd_ptr, rows, again, mean, n_cols, x_stride, eps,
            VEC, ROWS, max(BLOCK // 4, 1), OFFSET,
        )  # fmt: skip


@triton.jit(do_not_specialize=_FWD_COUNTS[1:])
def _fwd_long_kernel(
    x_ptr, w_ptr, y_ptr, rstd_ptr, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Process one row: read x twice, the second time backwards from what the caches still hold."""
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    eps = float64_of(eps_high, eps_low)
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * BLOCKS):
        squares = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * BLOCKS, n_cols), BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(x_row + cols, cols < width, other=0.0).to(acc)
            squares += x * x
        total += squares
    mean = (tl.sum(total, 0) / n_cols + eps).to(acc)
    if in_range(mean):
        rstd = inverse_sqrt(mean)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd)
        blocks = (n_cols + BLOCK - 1) // BLOCK
        for i in range(blocks):
            cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
            mask = cols < width
            x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
            y = x * rstd
            if w_ptr is not None:
                w = tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
                y *= plus(w, OFFSET)
            tl.store(y_ptr + row * width + cols, y.to(y_ptr.dtype.element_ty), mask)
    else:
        rows = row + tl.arange(0, 1)
        means = mean + tl.zeros((1,), acc)
        fallback(
            x_ptr, w_ptr, y_ptr, rstd_ptr, rows, rows >= 0, means, n_cols, x_stride, eps,
            VEC, 1, BLOCK // 4, OFFSET,
        )  # fmt: skip


@triton.jit(do_not_specialize=_BWD_COUNTS)
def _bwd_kernel(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, partial_ptr, n_rows, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """Process every n-th tile of ROWS whole rows: read dy, x, rstd once, write dx.

    Keeps the weight and its part of dweight in registers, writes the part at the end.
    """
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    cols = tl.arange(0, BLOCK)
    if w_ptr is not None and dx_ptr is not None:
        w = plus(tl.load(w_ptr + cols, cols < width, other=0.0).to(acc), OFFSET)
    dw = tl.zeros((ROWS, BLOCK), acc)
    turn = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        live = rows < n_rows
        mask = live[:, None] & (cols < width)[None, :]
        dy_ptrs = dy_ptr + rows[:, None] * (dy_stride // VEC * VEC) + cols[None, :]
        x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
        dy = tl.load(dy_ptrs, mask, other=0.0).to(acc)
        x = tl.load(x_ptrs, mask, other=0.0).to(acc)
        rstd = tl.load(rstd_ptr + rows, live, other=0.0)[:, None]
        xhat = x * rstd
        if partial_ptr is not None:
            turn += dy * xhat
            flush = tile // tl.num_programs(0) % TILES == 0
            dw += tl.where(flush, turn, 0.0)
            turn = tl.where(flush, 0.0, turn)
        if dx_ptr is not None:
            if w_ptr is not None:
                dy *= w[None, :]
            c = tl.sum(dy * xhat, 1) / n_cols
            dx = (dy - xhat * c[:, None]) * rstd
            dx_ptrs = dx_ptr + rows[:, None] * width + cols[None, :]
            tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), mask)
    if partial_ptr is not None:
        part = partial_ptr + tl.program_id(0).to(tl.int64) * width + cols
        tl.store(part, tl.sum(dw + turn, 0), cols < width)


@triton.jit(do_not_specialize=_BWD_COUNTS[1:])
def _dx_long_kernel(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Process one row: read dy and x twice, the second time backwards, write dx."""
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * (dy_stride // VEC * VEC)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    rstd = tl.load(rstd_ptr + row)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * BLOCKS):
        dots = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * BLOCKS, n_cols), BLOCK):
            cols = start + tl.arange(0, BLOCK)
            mask = cols < width
            dy = tl.load(dy_row + cols, mask, other=0.0).to(acc)
            xhat = tl.load(x_row + cols, mask, other=0.0).to(acc) * rstd
            if w_ptr is not None:
                w = tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
                dy *= plus(w, OFFSET)
            dots += dy * xhat
        total += dots
    c = (tl.sum(total, 0) / n_cols).to(acc)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
        mask = cols < width
        dy = tl.load(dy_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
        x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
        if w_ptr is not None:
            w = tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
            dy *= plus(w, OFFSET)
        dx = (dy - x * rstd * c) * rstd
        tl.store(dx_ptr + row * width + cols, dx.to(dx_ptr.dtype.element_ty), mask)


@lru_cache(maxsize=64)
def table(device: torch.device) -> Table:
    """Return the launch parameters for a device; the nearest table's for one without a name."""
    name = None
    if device.type == "cuda" and torch.cuda.is_available():
        name = torch.cuda.get_device_name(device)
    return find("rms_norm", TUNED, name)


# A row in registers may be this many elements long, by direction and bytes of an element.
_WHOLE = {"fwd": {2: 32768, 4: 32768, 8: 16384}, "bwd": {2: 16384, 4: 16384, 8: 4096}}
_SHARED_BYTES = 227 << 10  # of an SM, Hopper's; on a smaller GPU what does not fit is left out
_WARPS_PER_SM = 64


def candidates(direction: str, element_size: int, row: int | None) -> tuple[Tile, ...]:
    """Return the tiles worth trying for rows up to this length
    (None: beyond all), a dozen or so.
    """
    longest = _WHOLE[direction][element_size]
    blocks = [Tile(size, warps) for size in (4096, 8192) for warps in (8, 16)]
    if row is None or row > longest:
        return (*blocks, Tile(2048, 4), Tile(2048, 8), Tile(16384, 32))
    whole = _fwd_tiles if direction == "fwd" else _bwd_tiles
    return (*whole(element_size, row, longest), *(blocks if row >= longest // 2 else ()))


def _warps(size: int, element_size: int, accesses: tuple[int, ...]) -> list[int]:
    """Return the numbers of warps whose threads make so many accesses of 16 bytes each."""
    found = [size * element_size // (16 * 32 * each) for each in accesses]
    return [warps for warps in found if 1 <= warps <= 32]


def _fwd_tiles(element_size: int, row: int, longest: int) -> list[Tile]:
    least = max(row, 512)
    return [
        Tile(size, warps, weight_first=first)
        for size in (least, 2 * least, 4 * least)
        if size <= min(longest, max(row, 16384))
        for warps in _warps(size, element_size, (1, 2, 4) if row <= 2048 else (2, 4, 8))
        for first in (False, True)
    ]


def _bwd_tiles(element_size: int, row: int, longest: int) -> list[Tile]:
    least = max(row, 512)
    return [
        Tile(size, warps, stages, programs)
        for size in ((least, 2 * least) if row <= 1024 else (least,))
        for warps in _warps(size, element_size, (1, 2) if row <= 2048 else (1, 2, 4))
        # Registers let about half of an SM's threads run.
        for programs in sorted({max(1, _WARPS_PER_SM // 4 // warps), _WARPS_PER_SM // 2 // warps})
        for stages in ((2, 4) if row <= 2048 else (1, 2, 3))
        # Of dy and x each, all stages but the one at work lie in shared memory.
        if programs * (stages - 1) * 2 * size * element_size <= _SHARED_BYTES
    ]


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    y: torch.Tensor,
    rstd: torch.Tensor | None,
    eps: float,
    weight_offset: float,
    tile: Tile | None,
) -> tuple[Any, Grid, tuple[Any, ...], dict[str, Any]]:
    """Return the forward's launch: kernel, grid, arguments, meta."""
    n_rows, n_cols = x.shape
    if tile is None:
        tile = table(x.device).tile("fwd", x.element_size(), n_cols)
    stride = x.stride(0)
    counts: tuple[int, ...] = (n_cols, stride, *halves(float(eps)))
    meta: dict[str, Any] = {"VEC": vec(x, n_cols, stride), "OFFSET": weight_offset}
    if n_cols > tile.size:
        meta |= {"BLOCK": tile.size, "num_warps": tile.warps}
        return _fwd_long_kernel, (n_rows,), (x, weight, y, rstd, *counts), meta
    meta |= whole_meta(n_cols, tile.size, tile.warps) | {"WEIGHT_FIRST": tile.weight_first}
    grid = (divide_up(n_rows, meta["ROWS"]),)
    return _fwd_kernel, grid, (x, weight, y, rstd, n_rows, *counts), meta


def fwd(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    save_rstd: bool,
    weight_offset: float = 0.0,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return y of x's shape and dtype, and rstd (rows,) in fp32 (fp64 for fp64 x) if `save_rstd`.

    x: (rows, n_cols), last stride 1, any row stride. weight: (n_cols,), contiguous;
    each `weight_offset` is a kernel of its own.
    `wrap` is applied to each kernel before its launch; without it the kernel runs at once.
    `tile` stands for the one of the device's table.
    """
    n_rows, n_cols = x.shape
    y = x.new_empty((n_rows, n_cols))
    rstd = x.new_empty((n_rows,), dtype=statistics_dtype(x)) if save_rstd else None
    if n_rows == 0:
        return y, rstd
    launch(*_forward(x, weight, y, rstd, eps, weight_offset, tile), wrap)
    return y, rstd


# Calls that ran once, by all that their launch depends on but the addresses; for each shape anew,
# so bounded.
_AGAIN: dict[tuple[Any, ...] | None, Callable[..., bool]] = {}
_MOST = 4096


def _call(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, weight_offset: float
) -> tuple[Any, ...] | None:
    """Return the key under which a call is remembered, None if it could not be repeated."""
    if not x.is_contiguous() or x.is_neg():
        return None
    index = x.get_device()
    if weight is None:
        return x.shape, x.dtype, index, eps, weight_offset
    if not weight.is_contiguous() or weight.is_neg() or weight.get_device() != index:
        return None
    return x.shape, x.dtype, index, eps, weight_offset, weight.shape, weight.dtype


def again(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, weight_offset: float = 0.0
) -> torch.Tensor | None:
    """Return y without rstd, if such a call has run before and
    can be repeated as it was; else None.

    Nothing is checked but that it is such a call: what ran was right.
    """
    repeat = _AGAIN.get(_call(x, weight, eps, weight_offset))
    if repeat is None:
        return None
    y = torch.empty_like(x)
    source, target = x.data_ptr(), y.data_ptr()
    w = None if weight is None else weight.data_ptr()
    if ((source | target | (w or 0)) & 15) or not repeat(source, w, target, None):
        return None
    return y


def remember(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    y: torch.Tensor,
    eps: float,
    weight_offset: float,
) -> None:
    """Have `again` repeat a call that has run just now, if it can."""
    call = _call(x, weight, eps, weight_offset)
    if call is None or not x.is_cuda or x.numel() == 0:
        return
    rows = x.view(-1, x.shape[-1])
    repeat = ready(*_forward(rows, weight, y, None, eps, weight_offset, None))
    if repeat is not None:
        if len(_AGAIN) >= _MOST:
            _AGAIN.clear()
        _AGAIN[call] = repeat


def bwd(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    need_dx: bool,
    need_dweight: bool,
    weight_offset: float = 0.0,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return dx of x's shape and dtype, dweight of weight's,
    each None unless needed; deterministic.

    dx = rstd * (dy * w - xhat * mean(dy * w * xhat)), dweight = sum over rows of dy * xhat,
    xhat = x * rstd, w = weight_offset + weight. dy, x: (rows, n_cols), one dtype, last
    stride 1, any row stride.
    """
    n_rows, n_cols = x.shape
    need_dweight = need_dweight and weight is not None
    if tile is None:
        tile = table(x.device).tile("bwd", x.element_size(), n_cols)
    n_partials = partial_rows(x, tile.size, tile.programs)
    dx = x.new_empty((n_rows, n_cols)) if need_dx else None
    partial = None
    if need_dweight:
        partial = x.new_empty((n_partials, n_cols), dtype=statistics_dtype(x))
    counts = (n_cols, dy.stride(0), x.stride(0))
    meta: dict[str, Any] = {"VEC": vec(x, *counts), "OFFSET": weight_offset}
    tensors = (dy, x, weight, rstd, dx)
    if n_rows > 0 and n_cols <= tile.size and (need_dx or need_dweight):
        meta |= whole_meta(n_cols, tile.size, tile.warps) | {"STAGES": tile.stages}
        launch(_bwd_kernel, (n_partials,), (*tensors, partial, n_rows, *counts), meta, wrap)
    elif n_rows > 0 and n_cols > tile.size:
        if need_dx:
            meta |= {"BLOCK": tile.size, "num_warps": tile.warps}
            launch(_dx_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
        if partial is not None:
            sum_long(dy, x, None, rstd, None, partial, True, False, wrap)
    if partial is None or weight is None:
        return dx, None
    (dweight,) = finish(partial, (weight.dtype,), wrap)
    return dx, dweight
