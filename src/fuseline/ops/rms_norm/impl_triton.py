"""RMSNorm in Triton: y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension.

Rows that fit the registers of one program are read once; longer rows in blocks, twice.
A row's result depends on its own length and type only, never on how many rows there are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from fuseline.core.tuned import Table, Tile, find
from fuseline.primitives.triton.launch import Grid, launch, ready

Wrap = Callable[[Any], Any]
TUNED = Path(__file__).parent / "tuned"

# Below _TINY32 the squares of fp32 lose bits to underflow, below _TINY64 those of fp64.
_TINY32 = tl.constexpr(1e-30)
_TINY64 = tl.constexpr(1e-280)
# A long row is summed in fp32 over so many blocks, then in fp64: long sums of like terms err in
# one direction.
_BLOCKS = tl.constexpr(8)
_TILES = tl.constexpr(64)  # and dweight's terms over so many tiles of rows, then over those sums
_UP = tl.constexpr(2.0**600)
_DOWN = tl.constexpr(2.0**-600)

# Counts and strides reach the kernels unspecialised: a new batch size compiles nothing. What a
# wide memory access needs to know of them is VEC, which divides the row length and row strides.
_FWD_COUNTS = ["n_rows", "n_cols", "x_stride", "eps_high", "eps_low"]
_BWD_COUNTS = ["n_rows", "n_cols", "x_stride", "dy_stride"]


@triton.jit
def _float64(high, low):
    """A double from the two halves of its bits: Triton would round a Python float to fp32."""
    bits = (tl.cast(high, tl.int64) << 32) | (tl.cast(low, tl.int64) & 0xFFFFFFFF)
    return tl.cast(bits, tl.float64, bitcast=True)


@triton.jit
def _divide(a, b):
    """a / b correctly rounded, as fp64 always is; the plain fp32 division is 2 ULP off."""
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def _inverse_sqrt(a):
    """1 / sqrt(a), both steps correctly rounded; the hardware's rsqrt is 2 ULP off."""
    return 1.0 / tl.sqrt(a) if a.dtype == tl.float64 else tl.div_rn(1.0, tl.sqrt_rn(a))


@triton.jit
def _in_range(a):
    """Whether a mean square is finite, not NaN, and large enough to be exact."""
    tiny: tl.constexpr = _TINY64 if a.dtype == tl.float64 else _TINY32
    return (a >= tiny) & (a < float("inf"))


@triton.jit
def _second_look(
    x_ptr, w_ptr, y_ptr, rstd_ptr, rows, again, mean, n_cols, x_stride, eps,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns the rows marked `again`: reads x twice, writes y and rstd.

    fp64 holds the square of every fp32; fp64 rows are first scaled by a power of two.
    """
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    width = n_cols // VEC * VEC
    x_rows = x_ptr + rows[:, None] * (x_stride // VEC * VEC)
    scale = tl.full((ROWS,), 1.0, tl.float64)
    if acc == tl.float64:
        scale = tl.where(mean < 1.0, _UP, _DOWN)
    squares = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = again[:, None] & (cols < width)[None, :]
        x = tl.load(x_rows + cols[None, :], mask, other=0.0).to(tl.float64) * scale[:, None]
        squares += x * x
    r = _inverse_sqrt(tl.sum(squares, 1) / n_cols + eps * scale * scale)
    # Scaled up first, or down last: the small elements of a large row would lose bits scaled.
    first = tl.where(scale > 1.0, scale, r)
    second = tl.where(scale > 1.0, r, scale)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = again[:, None] & (cols < width)[None, :]
        x = tl.load(x_rows + cols[None, :], mask, other=0.0).to(tl.float64)
        y = x * first[:, None] * second[:, None]
        if w_ptr is not None:
            y *= tl.load(w_ptr + cols, cols < width, other=0.0).to(tl.float64)[None, :]
        y_ptrs = y_ptr + rows[:, None] * width + cols[None, :]
        tl.store(y_ptrs, y.to(acc).to(y_ptr.dtype.element_ty), mask)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, (r * scale).to(acc), again)


@triton.jit(do_not_specialize=_FWD_COUNTS)
def _fwd_kernel(
    x_ptr, w_ptr, y_ptr, rstd_ptr, n_rows, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WEIGHT_FIRST: tl.constexpr,
):  # fmt: skip
    """Owns ROWS whole rows: reads x and the weight once, writes y and rstd."""
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    eps = _float64(eps_high, eps_low)
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
    mean = (_divide(squares, tl.cast(n_cols, sums)) + eps.to(sums)).to(acc)
    good = live & _in_range(mean)
    rstd = _inverse_sqrt(mean)
    y = x * rstd[:, None]
    if w_ptr is not None:
        if not WEIGHT_FIRST:
            w = tl.load(w_ptr + cols, cols < width, other=0.0, eviction_policy="evict_last").to(acc)
        y *= w[None, :]
    y_ptrs = y_ptr + rows[:, None] * width + cols[None, :]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask & good[:, None])
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, rstd, good)
    again = live & ~good
    if tl.sum(again.to(tl.int32), 0) > 0:
        _second_look(
            x_ptr, w_ptr, y_ptr, rstd_ptr, rows, again, mean, n_cols, x_stride, eps,
            VEC, ROWS, max(BLOCK // 4, 1),
        )  # fmt: skip


@triton.jit(do_not_specialize=_FWD_COUNTS[1:])
def _fwd_long_kernel(
    x_ptr, w_ptr, y_ptr, rstd_ptr, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns one row: reads x twice, the second time backwards from what the caches still hold."""
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    eps = _float64(eps_high, eps_low)
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * _BLOCKS):
        squares = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * _BLOCKS, n_cols), BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(x_row + cols, cols < width, other=0.0).to(acc)
            squares += x * x
        total += squares
    mean = (tl.sum(total, 0) / n_cols + eps).to(acc)
    if _in_range(mean):
        rstd = _inverse_sqrt(mean)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd)
        blocks = (n_cols + BLOCK - 1) // BLOCK
        for i in range(blocks):
            cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
            mask = cols < width
            x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
            y = x * rstd
            if w_ptr is not None:
                y *= tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
            tl.store(y_ptr + row * width + cols, y.to(y_ptr.dtype.element_ty), mask)
    else:
        rows = row + tl.arange(0, 1)
        means = mean + tl.zeros((1,), acc)
        _second_look(
            x_ptr, w_ptr, y_ptr, rstd_ptr, rows, rows >= 0, means, n_cols, x_stride, eps,
            VEC, 1, BLOCK // 4,
        )  # fmt: skip


@triton.jit(do_not_specialize=_BWD_COUNTS)
def _bwd_kernel(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, partial_ptr, n_rows, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Owns every n-th tile of ROWS whole rows: reads dy, x, rstd once, writes dx.

    Keeps the weight and its part of dweight in registers, writes the part at the end.
    """
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    cols = tl.arange(0, BLOCK)
    if w_ptr is not None and dx_ptr is not None:
        w = tl.load(w_ptr + cols, cols < width, other=0.0).to(acc)
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
            flush = tile // tl.num_programs(0) % _TILES == 0
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
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns one row: reads dy and x twice, the second time backwards, writes dx."""
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * (dy_stride // VEC * VEC)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    rstd = tl.load(rstd_ptr + row)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * _BLOCKS):
        dots = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * _BLOCKS, n_cols), BLOCK):
            cols = start + tl.arange(0, BLOCK)
            mask = cols < width
            dy = tl.load(dy_row + cols, mask, other=0.0).to(acc)
            xhat = tl.load(x_row + cols, mask, other=0.0).to(acc) * rstd
            if w_ptr is not None:
                dy *= tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
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
            dy *= tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
        dx = (dy - x * rstd * c) * rstd
        tl.store(dx_ptr + row * width + cols, dx.to(dx_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=_BWD_COUNTS)
def _dweight_long_kernel(
    dy_ptr, x_ptr, rstd_ptr, partial_ptr, n_rows, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns BLOCK columns of every n-th tile of ROWS rows: reads dy, x, rstd, writes a partial."""
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((ROWS, BLOCK), acc)
    turn = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        live = rows < n_rows
        mask = live[:, None] & (cols < width)[None, :]
        dy_ptrs = dy_ptr + rows[:, None] * (dy_stride // VEC * VEC) + cols[None, :]
        x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
        dy = tl.load(dy_ptrs, mask, other=0.0).to(acc)
        x = tl.load(x_ptrs, mask, other=0.0).to(acc)
        turn += dy * (x * tl.load(rstd_ptr + rows, live, other=0.0)[:, None])
        if tile // tl.num_programs(1) % _TILES == 0:
            dw += turn
            turn = tl.zeros((ROWS, BLOCK), acc)
    part = partial_ptr + tl.program_id(1).to(tl.int64) * width + cols
    tl.store(part, tl.sum(dw + turn, 0), cols < width)


@triton.jit(do_not_specialize=["n_partials", "n_cols"])
def _finish_kernel(
    partial_ptr, dweight_ptr, n_partials, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Owns BLOCK columns: reads the partial rows in a fixed order, writes dweight."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_partials, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < n_partials)[:, None] & (cols < n_cols)[None, :]
        parts = partial_ptr + rows.to(tl.int64)[:, None] * n_cols + cols[None, :]
        dw += tl.load(parts, mask, other=0.0)
    total = tl.sum(dw, 0).to(partial_ptr.dtype.element_ty)
    tl.store(dweight_ptr + cols, total.to(dweight_ptr.dtype.element_ty), cols < n_cols)


# Not by row length, so not in the table; measured on an H200, 2026-11-20.
_DWEIGHT_LONG = {"ROWS": 16, "BLOCK": 256, "num_warps": 8}
_FINISH = {"ROWS": 256, "BLOCK": 16, "num_warps": 8}
_DWEIGHT_LONG_PROGRAMS = 4  # on each SM


@lru_cache(maxsize=64)
def table(device: torch.device) -> Table:
    """The launch parameters for a device; the nearest table's for one without a name."""
    name = None
    if device.type == "cuda" and torch.cuda.is_available():
        name = torch.cuda.get_device_name(device)
    return find("rms_norm", TUNED, name)


# A row in registers may be this many elements long, by direction and bytes of an element.
_WHOLE = {"fwd": {2: 32768, 4: 32768, 8: 16384}, "bwd": {2: 16384, 4: 16384, 8: 4096}}
_SHARED_BYTES = 227 << 10  # of an SM, Hopper's; on a smaller GPU what does not fit is left out
_WARPS_PER_SM = 64


def candidates(direction: str, element_size: int, row: int | None) -> tuple[Tile, ...]:
    """Tiles worth trying for rows up to this length (None: beyond all), a dozen or so."""
    longest = _WHOLE[direction][element_size]
    blocks = [Tile(size, warps) for size in (4096, 8192) for warps in (8, 16)]
    if row is None or row > longest:
        return (*blocks, Tile(2048, 4), Tile(2048, 8), Tile(16384, 32))
    whole = _fwd_tiles if direction == "fwd" else _bwd_tiles
    return (*whole(element_size, row, longest), *(blocks if row >= longest // 2 else ()))


def _warps(size: int, element_size: int, accesses: tuple[int, ...]) -> list[int]:
    """Numbers of warps whose threads make so many accesses of 16 bytes each."""
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


def _meta(n_cols: int, tile: Tile) -> dict[str, int]:
    """What whole rows and both directions have in common."""
    block = _power_of_2(max(n_cols, 1))
    return {"ROWS": tile.size // block, "BLOCK": block, "num_warps": tile.warps}


def _power_of_2(n: int) -> int:
    # Triton's own takes ten times as long, but also the symbols of a compiler.
    power: int = 1 << (n - 1).bit_length() if type(n) is int else triton.next_power_of_2(n)
    return power


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=1024)
def _halves(eps: float) -> tuple[int, int]:
    """The bits of a double as two signed 32-bit numbers; Inductor takes no larger constants."""
    low, high = struct.unpack("<ii", struct.pack("<d", eps))
    return high, low


@lru_cache(maxsize=64)
def _processors(device: torch.device) -> int:
    """SM count; 2 for the interpreter, which has none."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def _vec(x: torch.Tensor, *steps: int) -> int:
    """Elements of one memory access: at most 16 bytes, dividing every step between rows."""
    return math.gcd(16 // x.element_size(), *steps)


def _statistics_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _partials(x: torch.Tensor, rows: int, programs: float) -> int:
    """Partial rows of dweight: as many as the device works on at once, or as there are tiles."""
    most = max(1, int(_processors(x.device) * programs))
    tiles: int = torch.sym_min(_divide_up(x.shape[0], rows), most)
    return tiles


def _launch(wrap: Wrap | None, kernel: Any, grid: Grid, *args: Any, **meta: int) -> None:
    """Runs kernel[grid](*args, **meta) on the device of the first argument."""
    if wrap is not None:
        wrap(kernel)[grid](*args, **meta)
    else:
        launch(kernel, grid, args, meta)


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    y: torch.Tensor,
    rstd: torch.Tensor | None,
    eps: float,
    tile: Tile | None,
) -> tuple[Any, Grid, tuple[Any, ...], dict[str, int]]:
    """The forward's launch: kernel, grid, arguments, meta."""
    n_rows, n_cols = x.shape
    if tile is None:
        tile = table(x.device).tile("fwd", x.element_size(), n_cols)
    stride = x.stride(0)
    counts: tuple[int, ...] = (n_cols, stride, *_halves(float(eps)))
    vec = {"VEC": _vec(x, n_cols, stride)}
    if n_cols > tile.size:
        blocks = {"BLOCK": tile.size, "num_warps": tile.warps}
        return _fwd_long_kernel, (n_rows,), (x, weight, y, rstd, *counts), vec | blocks
    meta = vec | _meta(n_cols, tile) | {"WEIGHT_FIRST": tile.weight_first}
    grid = (_divide_up(n_rows, meta["ROWS"]),)
    return _fwd_kernel, grid, (x, weight, y, rstd, n_rows, *counts), meta


def fwd(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    save_rstd: bool,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """y of x's shape and dtype, and rstd (rows,) in fp32 (fp64 for fp64 x) if `save_rstd`.

    x: (rows, n_cols), last stride 1, any row stride. weight: (n_cols,), contiguous.
    `wrap` is applied to each kernel before its launch; without it the kernel runs at once.
    `tile` stands for the one of the device's table.
    """
    n_rows, n_cols = x.shape
    y = x.new_empty((n_rows, n_cols))
    rstd = x.new_empty((n_rows,), dtype=_statistics_dtype(x)) if save_rstd else None
    if n_rows == 0:
        return y, rstd
    kernel, grid, args, meta = _forward(x, weight, y, rstd, eps, tile)
    _launch(wrap, kernel, grid, *args, **meta)
    return y, rstd


# Calls that ran once, by all that their launch depends on but the addresses; for each shape anew,
# so bounded.
_AGAIN: dict[tuple[Any, ...], Callable[..., bool]] = {}
_MOST = 4096


def _call(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> tuple[Any, ...]:
    if weight is None:
        return x.shape, x.dtype, x.get_device(), eps
    device = weight.get_device()
    return x.shape, x.dtype, x.get_device(), eps, weight.shape, weight.dtype, device


def _plain(t: torch.Tensor) -> bool:
    return t.is_contiguous() and not t.is_neg()


def again(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor | None:
    """y without rstd, if such a call has run before and can be repeated as it was; else None.

    Nothing is checked but that it is such a call: what ran was right.
    """
    repeat = _AGAIN.get(_call(x, weight, eps))
    if repeat is None or not _plain(x):
        return None
    y = torch.empty_like(x)
    source, target, w = x.data_ptr(), y.data_ptr(), None
    if weight is not None:
        if not _plain(weight):
            return None
        w = weight.data_ptr()
    if ((source | target | (w or 0)) & 15) or not repeat(source, w, target, None):
        return None
    return y


def remember(x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor, eps: float) -> None:
    """Have `again` repeat a call that has run just now, if it can."""
    if not x.is_cuda or x.numel() == 0 or not _plain(x) or not (weight is None or _plain(weight)):
        return
    rows = x.view(-1, x.shape[-1])
    repeat = ready(*_forward(rows, weight, y, None, eps, None))
    if repeat is not None:
        if len(_AGAIN) >= _MOST:
            _AGAIN.clear()
        _AGAIN[_call(x, weight, eps)] = repeat


def bwd(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    need_dx: bool,
    need_dweight: bool,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """dx of x's shape and dtype, dweight of weight's, each None unless needed; deterministic.

    dx = rstd * (dy * w - xhat * mean(dy * w * xhat)), dweight = sum over rows of dy * xhat,
    xhat = x * rstd. dy, x: (rows, n_cols), one dtype, last stride 1, any row stride.
    """
    n_rows, n_cols = x.shape
    need_dweight = need_dweight and weight is not None
    if tile is None:
        tile = table(x.device).tile("bwd", x.element_size(), n_cols)
    whole = n_cols <= tile.size
    meta = _meta(n_cols, tile) if whole else _DWEIGHT_LONG
    columns = _divide_up(max(n_cols, 1), meta["BLOCK"])
    programs = tile.programs if whole else _DWEIGHT_LONG_PROGRAMS / columns
    n_partials = _partials(x, meta["ROWS"], programs)
    dx = x.new_empty((n_rows, n_cols)) if need_dx else None
    partial = None
    if need_dweight:
        partial = x.new_empty((n_partials, n_cols), dtype=_statistics_dtype(x))
    counts = (n_cols, dy.stride(0), x.stride(0))
    vec = _vec(x, *counts)
    if n_rows > 0 and whole and (need_dx or need_dweight):
        args = (dy, x, weight, rstd, dx, partial, n_rows)
        meta = {**meta, "STAGES": tile.stages}
        _launch(wrap, _bwd_kernel, (n_partials,), *args, *counts, VEC=vec, **meta)
    if n_rows > 0 and not whole and need_dx:
        blocks = {"BLOCK": tile.size, "num_warps": tile.warps}
        _launch(
            wrap, _dx_long_kernel, (n_rows,), dy, x, weight, rstd, dx, *counts, VEC=vec, **blocks
        )
    if n_rows > 0 and not whole and need_dweight:
        grid = (columns, n_partials)
        _launch(
            wrap, _dweight_long_kernel, grid, dy, x, rstd, partial, n_rows, *counts, VEC=vec, **meta
        )
    if partial is None or weight is None:
        return dx, None
    dweight = weight.new_empty((n_cols,))
    if n_cols > 0:
        columns = _divide_up(n_cols, _FINISH["BLOCK"])
        _launch(wrap, _finish_kernel, (columns,), partial, dweight, n_partials, n_cols, **_FINISH)
    return dx, dweight
