"""Products of matrices with what follows them: y = act(a @ b + bias).

One program on each SM (or as many as its tile says) computes one tile after the other, so that the
operands of the next are on their way while one is stored. Operands go through the tensor memory
accelerator (TMA) where a GPU has it; elsewhere Triton makes pointers of the descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch, ready
from fuseline.primitives.triton.products.activation import activate
from fuseline.primitives.triton.products.tiles import HALF, IEEE, TF32, Kind, Tile, count, tile_of
from fuseline.primitives.triton.rows import divide_up, processors

_ALIGNED = 16  # bytes, of the TMA's addresses and strides
# Rows of tiles whose columns are worked on together, so that operands stay in the L2 cache.
_GROUP = 16
# Steps whose terms are added up apart in fp32: one long chain of additions loses more digits.
_APART = tl.constexpr(8)

_Made = tuple[torch.Tensor, torch.Tensor | None]
_Launch = tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]  # grid, arguments, meta


@triton.jit
def _place(
    tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):
    """Return batch, row and column where a tile begins: down GROUP rows of tiles, then across."""
    batch = tile // (tiles_m * tiles_n)
    tile %= tiles_m * tiles_n
    first = tile // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    tile %= GROUP * tiles_n
    return batch, (first + tile % rows) * BLOCK_M, tile // rows * BLOCK_N


@triton.jit
def _operand(desc, batch, row, col, TURNED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return ROWS x COLS of a matrix, which lies in memory transposed if TURNED."""
    if TURNED:
        tile = desc.load([batch, col, row]).reshape(COLS, ROWS).T
    else:
        tile = desc.load([batch, row, col]).reshape(ROWS, COLS)
    return tile


@triton.jit
def _store(desc, value, batch, row, col):
    """Write a part of a tile, as far as it lies within the matrix."""
    desc.store([batch, row, col], value.to(desc.dtype).reshape(1, value.shape[0], value.shape[1]))


@triton.jit
def _finish(y, h, bias_ptr, acc, batch, row, col, n, ACT: tl.constexpr, IEEE: tl.constexpr):
    """Write act(acc + bias), and acc + bias where there is a place."""
    cols = col + tl.arange(0, acc.shape[1])
    bias = tl.zeros((acc.shape[1],), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + cols, cols < n, other=0.0).to(tl.float32)
    before, after = activate(acc, bias[None, :], ACT, IEEE)
    if h is not None:
        _store(h, before, batch, row, col)
    _store(y, after, batch, row, col)


@triton.jit
def _described(
    ptr, batches, rows, cols, batch_stride, stride,
    TURNED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Return the descriptor that `_descriptor` makes on the host."""
    FIRST: tl.constexpr = COLS if TURNED else ROWS
    SECOND: tl.constexpr = ROWS if TURNED else COLS
    first = cols if TURNED else rows
    second = rows if TURNED else cols
    return tl.make_tensor_descriptor(
        ptr, [batches, first, second], [batch_stride, stride, 1], [1, FIRST, SECOND]
    )


@triton.jit(do_not_specialize=[
    "batches", "m", "n", "k", "a_batch", "a_stride", "b_batch", "b_stride", "y_stride",
    "a_step", "b_step",
])  # fmt: skip
def _kernel(
    _, bias_ptr, a, b, y, h, batches, m, n, k, a_batch, a_stride, b_batch, b_stride, y_stride,
    a_step, b_step, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, ACT: tl.constexpr,
    IEEE: tl.constexpr, HOST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Process every n-th tile: read a, b and the bias, write y, and h where there is a place.

    a, b, y and h are descriptors if HOST; else pointers, of which descriptors are made here. A step
    is 0 where all batches have one matrix.
    """
    WIDTH: tl.constexpr = BLOCK_N // PARTS
    if not HOST:
        a_batches = 1 + (batches - 1) * a_step
        a = _described(a, a_batches, m, k, a_batch, a_stride, A_TURNED, BLOCK_M, BLOCK_K)
        b_batches = 1 + (batches - 1) * b_step
        b = _described(b, b_batches, k, n, b_batch, b_stride, B_TURNED, BLOCK_K, BLOCK_N)
        y_batch = tl.cast(m, tl.int64) * y_stride
        y = _described(y, batches, m, n, y_batch, y_stride, False, BLOCK_M, WIDTH)
        if h is not None:
            h = _described(h, batches, m, n, y_batch, y_stride, False, BLOCK_M, WIDTH)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    tiles = batches * tiles_m * tiles_n
    # A count of its own for what is stored: else both places would be kept in registers.
    done = tl.program_id(0) - tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        batch, row, col = _place(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if IEEE:
            for first in range(0, steps, _APART):
                part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for step in range(first, min(first + _APART, steps)):
                    at = step * BLOCK_K
                    x = _operand(a, batch * a_step, row, at, A_TURNED, BLOCK_M, BLOCK_K)
                    w = _operand(b, batch * b_step, at, col, B_TURNED, BLOCK_K, BLOCK_N)
                    part = tl.dot(x, w, part, input_precision="ieee")
                acc += part
        else:
            for step in range(steps):
                at = step * BLOCK_K
                x = _operand(a, batch * a_step, row, at, A_TURNED, BLOCK_M, BLOCK_K)
                w = _operand(b, batch * b_step, at, col, B_TURNED, BLOCK_K, BLOCK_N)
                acc = tl.dot(x, w, acc)
        done += tl.num_programs(0)
        batch, row, col = _place(done, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP)
        if PARTS == 2:
            acc = tl.permute(tl.reshape(acc, (BLOCK_M, 2, WIDTH)), (0, 2, 1))
            left, right = tl.split(acc)
            _finish(y, h, bias_ptr, left, batch, row, col, n, ACT, IEEE)
            col += WIDTH
            _finish(y, h, bias_ptr, right, batch, row, col, n, ACT, IEEE)
        else:
            _finish(y, h, bias_ptr, acc, batch, row, col, n, ACT, IEEE)


class _Operand(NamedTuple):
    """A batch of matrices as the kernel reads it: (batches, rows, cols), turned where `turned`."""

    tensor: torch.Tensor
    turned: bool
    batch_stride: Any
    stride: Any

    def descriptor(self, rows: int, cols: int) -> TensorDescriptor:
        """Return the descriptor of tiles of rows x cols of the matrix."""
        t = self.tensor.mT if self.turned else self.tensor
        block = [1, cols, rows] if self.turned else [1, rows, cols]
        strides = [self.batch_stride, self.stride, 1]
        return TensorDescriptor(t, list(t.shape), strides, block)


def _operand_of(t: torch.Tensor, orders: tuple[bool, ...], traced: bool) -> _Operand:
    """Return (batches, rows, cols) in an order that is wanted, turned or not, a copy if need be.

    The copy takes less time than reading by elements would, and no registers.
    """
    for turned in orders:
        strides = _strides(t.mT if turned else t, traced)
        if strides is not None:
            return _Operand(t, turned, *strides)
    turned = orders[0]
    batches, rows, cols = (t.mT if turned else t).shape
    step = _ALIGNED // t.element_size()
    copy = t.new_empty((batches, rows, divide_up(cols, step) * step))[:, :, :cols]
    copy.copy_(t.mT if turned else t)
    return _Operand(copy.mT if turned else copy, turned, copy.stride(0), copy.stride(1))


def _strides(t: torch.Tensor, traced: bool) -> tuple[Any, Any] | None:
    """Return the strides of batches and rows if the TMA can step by them, of one row as it may."""
    step = _ALIGNED // t.element_size()
    offset = t.storage_offset() * t.element_size() if traced else t.data_ptr()
    batches, rows, cols = t.shape
    wide = divide_up(cols, step) * step
    stride = t.stride(1) if rows > 1 else wide
    batch_stride = t.stride(0) if batches > 1 else rows * stride
    fits = (cols == 1 or t.stride(2) == 1) and stride >= cols and offset % _ALIGNED == 0
    return (batch_stride, stride) if fits and stride % step == batch_stride % step == 0 else None


def _launch_of(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    h: torch.Tensor | None,
    act: str,
    kind: Kind,
    tile: Tile,
    traced: bool,
) -> _Launch:
    """Return the launch that multiplies batches of matrices, none of which is empty."""
    # One matrix for all batches is one of an expanded tensor, too.
    a, b = (t[:1] if t.shape[0] > 1 and t.stride(0) == 0 else t for t in (a, b))
    left, right = _operand_of(a, kind.left, traced), _operand_of(b, kind.right, traced)
    described: tuple[Any, ...] = (left.tensor, right.tensor, y, h)
    if not traced:
        block = [1, tile.m, tile.n // tile.parts]
        stored = (None if t is None else TensorDescriptor.from_tensor(t, block) for t in (y, h))
        described = (left.descriptor(tile.m, tile.k), right.descriptor(tile.k, tile.n), *stored)
    batches, m, n = y.shape
    numbers = (
        batches, m, n, a.shape[2], left.batch_stride, left.stride, right.batch_stride, right.stride,
        y.stride(1), int(a.shape[0] > 1), int(b.shape[0] > 1),
    )  # fmt: skip
    meta = {
        "A_TURNED": left.turned, "B_TURNED": right.turned, "ACT": act,
        "IEEE": kind is IEEE, "HOST": not traced,
        "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k, "PARTS": tile.parts,
        "GROUP": _GROUP, "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    most = processors(y.device) * tile.programs
    grid = (torch.sym_min(count(batches, m, n, tile), most),)
    # y once more, as a tensor, for what a launch asks of its first argument.
    return grid, (None if traced else y, bias, *described, *numbers), meta


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    act: str,
    tf32: bool,
    save_h: bool,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[_Made, _Launch | None]:
    """Return what `product` does, and the launch that made it."""
    lead = a.shape[:-1]
    if a.dim() == 3 and b.dim() == 2 and a.stride(0) == a.shape[1] * a.stride(1):
        a = a.flatten(0, 1)
    a, b = (t if t.dim() == 3 else t.unsqueeze(0) for t in (a, b))
    batches, m, k = a.shape
    n = b.shape[2]
    step = _ALIGNED // a.element_size()
    y = a.new_empty((batches, m, divide_up(n, step) * step))[:, :, :n]
    h = a.new_empty_strided(y.shape, y.stride()) if save_h else None
    made = None
    if y.numel() > 0:
        if k == 0:  # which a descriptor cannot say
            a, b = a.new_zeros((1, m, 1)), b.new_zeros((1, 1, n))
        kind = HALF if a.element_size() == 2 else TF32 if tf32 else IEEE
        tile = tile or tile_of(batches, m, n, k, act, kind, processors(y.device))
        made = _launch_of(a, b, bias, y, h, act, kind, tile, wrap is not None)
        launch(_kernel, *made, wrap)
    dense = None if h is None else h.contiguous().view(*lead, n)
    return (y.contiguous().view(*lead, n), dense), made


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    act: str = "none",
    tf32: bool = False,
    save_h: bool = False,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return y = act(h) and, if `save_h`, h = a @ b + bias, else None; dense, of a's dtype.

    a: (M, K) or (B, M, K); b: (K, N) or (B, K, N), the same dtype of half types and fp32; bias:
    (N,), contiguous. What the TMA cannot step by is copied, of a, b and y, as is what the
    multiplications of fp32 do not take in its order. Sums are fp32's, of the terms in an order that
    depends on K and the dtype, so a row of y depends on its operands alone; fp32 is rounded to TF32
    if `tf32`. Without a `tile` sizes choose it.
    """
    if wrap is not None or tile is not None:
        return _product(a, b, bias, act, tf32, save_h, wrap, tile)[0]
    call = (
        a.shape, a.stride(), b.shape, b.stride(), a.dtype, a.get_device(), bias is None, act, tf32,
        save_h,
    )  # fmt: skip
    again = _again.get(call)
    made = again(a, b, bias) if again else None
    if made is None:
        made, launched = _product(a, b, bias, act, tf32, save_h)
        if launched is not None and a.is_cuda:
            _remember(call, made, launched, a, b)
    return made


# Calls that can be repeated, by all that their launch depends on but the addresses; bounded.
_again: dict[tuple[Any, ...], Callable[..., _Made | None]] = {}
_MOST = 4096


def _remember(
    call: tuple[Any, ...], made: _Made, launched: _Launch, a: torch.Tensor, b: torch.Tensor
) -> None:
    """Have `product` repeat a call that has run just now, unless it copied something."""
    y, h = made
    target, _, left, right, *_ = launched[1]
    places = ((target, y), (left.base, a), (right.base, b))
    repeat = ready(_kernel, *launched)
    if repeat is not None and all(t.data_ptr() == given.data_ptr() for t, given in places):
        if len(_again) >= _MOST:
            _again.clear()
        _again[call] = _repeating(repeat, y.shape, h is not None)


def _repeating(
    launches: Callable[..., bool], shape: torch.Size, save_h: bool
) -> Callable[..., _Made | None]:
    """Return the call on other tensors that lie alike; it gives None where it cannot be made."""

    def again(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> _Made | None:
        y = a.new_empty(shape)
        h = a.new_empty(shape) if save_h else None
        left, right, target = a.data_ptr(), b.data_ptr(), y.data_ptr()
        added = None if bias is None else bias.data_ptr()
        saved = None if h is None else h.data_ptr()
        if (left | right | target | (added or 0) | (saved or 0)) % _ALIGNED:
            return None
        return (y, h) if launches(target, added, left, right, target, saved) else None

    return again
