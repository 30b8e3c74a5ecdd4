"""Bias, dropout and residual in Triton: y = residual + dropout(x + bias), dx = dropout(dy).

Operands that lie alike are one run of elements; others are cut in tiles, in which those that lie
across the output are transposed through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuseline.core import native
from fuseline.ops.bias_dropout_add.impl_triton_kernels import flat_kernel, tile_kernel
from fuseline.primitives import philox
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rows import divide_up, halves

Drop = tuple[float, int | Tensor]  # p, and the seed or a tensor on the device that has it
Strides = tuple[int, ...]

# Axes that a launch has: a tile's two and two around it; of more, one launch for each slice.
_MOST_AXES = 4
_ALONG_ROWS, _ALONG_COLS, _ACROSS, _NOT = 0, 1, 2, 3
_ALONG = {"ROW": _ALONG_ROWS, "COL": _ALONG_COLS}


class Tile(NamedTuple):
    """The elements of one program."""

    rows: int
    cols: int
    warps: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}, {self.warps} warps"


# Where something is transposed: up to so many elements, by bytes of one. Not tuned yet.
_FEW = 1 << 17
_TRANSPOSED_FEW = {2: Tile(16, 64, 2), 4: Tile(16, 32, 2), 8: Tile(16, 16, 2)}
_TRANSPOSED = {2: Tile(64, 64, 4), 4: Tile(64, 32, 4), 8: Tile(32, 32, 4)}
_STRAIGHT = Tile(1, 1024, 4)


class _Axis(NamedTuple):
    """One axis of the output, and what a step along it is in each operand, 0 where there is none.

    The operands: out, x, bias, residual, and the position of an element in the logical order.
    """

    size: int
    strides: Strides


_POSITION = 4
_NO_AXIS = _Axis(1, (0,) * 5)


class _Frame(NamedTuple):
    """The axes as a launch takes them: those of the tile, and two around it."""

    rows: _Axis
    cols: _Axis
    axis1: _Axis = _NO_AXIS
    axis0: _Axis = _NO_AXIS

    def unit(self, operand: int) -> int:
        """Return along which axis of the tile an operand is contiguous."""
        if self.cols.strides[operand] == 1:
            return _ALONG_COLS
        return _ALONG_ROWS if self.rows.strides[operand] == 1 else _ACROSS

    def draws(self, aligned: bool) -> int:
        """Return along which axis of the tile four elements share a counter."""
        steps = (axis.strides[_POSITION] for axis in self)
        fours = aligned and all(step == 1 or step % 4 == 0 for step in steps)
        return self.unit(_POSITION) if fours else _ACROSS

    def vec(self, along: int, itemsize: int) -> int:
        """Return the elements of one access to any operand that is contiguous along this axis."""
        own = self.cols if along == _ALONG_COLS else self.rows
        operands = [o for o in range(_POSITION) if self.unit(o) == along]
        steps = [axis.strides[o] for o in operands for axis in self if axis is not own]
        return _common(16 // itemsize, own.size, *steps)


class _Plan(NamedTuple):
    """A launch but for its tensors and what is drawn; no kernel where there are too many axes."""

    kernel: Any = None
    grid: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    meta: Any = None
    tile: Tile = _STRAIGHT


@lru_cache(maxsize=1024)
def _plan(
    shape: Strides,
    strides: tuple[Strides | None, ...],
    steps: Strides | None,
    aligned: bool,
    itemsize: int,
) -> _Plan:
    """Return the launch for operands of these strides, None where there is no such operand.

    steps: the strides of the position, None without dropout; aligned: whether it starts at a
    multiple of 4.
    """
    given = (*strides, steps)
    axes = _axes(shape, [s or (0,) * len(shape) for s in given])
    if len(axes) > _MOST_AXES:
        return _Plan()
    cols, *others = axes or [_Axis(1, (1,) * 5)]
    drop = steps is not None
    if not others and all(cols.strides[o] == 1 for o, s in enumerate(given) if s is not None):
        return _flat_plan(cols.size, drop, itemsize)
    rows = others.pop(_across(cols, others)) if others else _NO_AXIS
    frame = _Frame(rows, cols, *others)
    draws = frame.draws(aligned) if drop else _NOT
    units = [frame.unit(o) for o in range(_POSITION)]
    tile = _tile(rows.size, cols.size, itemsize, _ALONG_ROWS in (*units, draws))
    meta: dict[str, Any] = {"X": units[1], "BIAS": units[2], "RESIDUAL": units[3], "DROP": draws}
    meta |= {axis + "_VEC": frame.vec(along, itemsize) for axis, along in _ALONG.items()}
    meta |= {"ROWS": tile.rows, "COLS": tile.cols, "num_warps": tile.warps}
    around = frame.axis1.size * frame.axis0.size
    tiles = divide_up(rows.size, tile.rows) * divide_up(cols.size, tile.cols)
    steps_of = (axis.strides[o] for o in range(_POSITION + 1) for axis in frame)
    counts = (rows.size, cols.size, frame.axis1.size, *steps_of)
    return _Plan(tile_kernel, (tiles * around,), counts, meta, tile)


def _flat_plan(n: int, drop: bool, itemsize: int) -> _Plan:
    meta = {"DROP": drop, "VEC": _common(16 // itemsize, n), "COLS": _STRAIGHT.cols}
    grid = (divide_up(n, _STRAIGHT.cols),)
    return _Plan(flat_kernel, grid, (n,), meta | {"num_warps": _STRAIGHT.warps})


def _axes(shape: Sequence[int], strides: Sequence[Strides]) -> list[_Axis]:
    """Return as few axes as all operands allow, the output's fastest one first."""
    axes = [_Axis(n, tuple(s)) for n, *s in zip(shape, *strides, strict=True) if n != 1]
    merged: list[_Axis] = []
    for axis in sorted(axes, key=lambda axis: axis.strides[0]):
        inner = merged[-1] if merged else None
        if inner and axis.strides == tuple(s * inner.size for s in inner.strides):
            merged[-1] = _Axis(axis.size * inner.size, inner.strides)
        else:
            merged.append(axis)
    return merged


def _across(cols: _Axis, others: Sequence[_Axis]) -> int:
    """Return which of the other axes makes the rows: one in which an
    operand is contiguous, if any.
    """
    for o in range(_POSITION + 1):
        for i, axis in enumerate(others):
            if cols.strides[o] != 1 and axis.strides[o] == 1:
                return i
    return 0


def _tile(n_rows: int, n_cols: int, itemsize: int, transposed: bool) -> Tile:
    """Return the tile for so many rows and columns."""
    if not transposed:
        cols = _fit(n_cols, _STRAIGHT.cols)
        return Tile(_fit(n_rows, _STRAIGHT.cols // cols), cols, _STRAIGHT.warps)
    tile = (_TRANSPOSED_FEW if n_rows * n_cols <= _FEW else _TRANSPOSED)[itemsize]
    return Tile(_fit(n_rows, tile.rows), _fit(n_cols, tile.cols), tile.warps)


# Both compare and divide only, so that a compiler's symbols stay symbols.
def _fit(n: int, most: int) -> int:
    """Return the least power of 2 that holds n, from 4, which share a counter, to `most`."""
    size = min(4, most)
    while size < most and size < n:
        size *= 2
    return size


def _common(most: int, *steps: int) -> int:
    """Return the largest power of 2 up to `most`, one itself, that divides all steps."""
    while any(step % most != 0 for step in steps):
        most //= 2
    return most


def _run(
    out: Tensor,
    operands: Sequence[Tensor | None],
    drop: Drop | None,
    wrap: Wrap | None,
    steps: Strides | None,
    first: int = 0,
) -> None:
    """Launch; position `first` is that of the first element, `steps` its strides."""
    strides = (out.stride(), *[None if t is None else _strides(t, out.shape) for t in operands])
    plan = (_plan if wrap is None else _plan.__wrapped__)(
        out.shape, strides, steps, first % 4 == 0, out.element_size()
    )
    if plan.kernel is None:
        outermost = max(range(out.dim()), key=lambda d: out.stride(d) if out.shape[d] > 1 else 0)
        rest = steps and (*steps[:outermost], *steps[outermost + 1 :])
        for i in range(out.shape[outermost]):
            whole = [None if t is None else t.expand(out.shape) for t in operands]
            slices = [None if t is None else t.select(outermost, i) for t in whole]
            start = first + (i * steps[outermost] if steps else 0)
            _run(out.select(outermost, i), slices, drop, wrap, rest, start)
        return
    counts = plan.counts if plan.kernel is flat_kernel else (*plan.counts, first)
    seed = drop[1] if drop else 0
    held = seed if isinstance(seed, Tensor) else None
    args = (out, *operands, held, *counts, *_draw(drop))
    launch(plan.kernel, plan.grid, args, plan.meta, wrap)


def _draw(drop: Drop | None) -> tuple[int, ...]:
    if drop is None:
        return (0, 0, 0, 0)
    p, seed = drop
    threshold = philox.threshold(p)
    signed = threshold - (1 << 32) if threshold >= 1 << 31 else threshold
    number = 0 if isinstance(seed, Tensor) else seed
    return (number, signed, *halves(philox.scale(p)))


def _steps(t: Tensor) -> Strides:
    """Return the strides that t would have if it were contiguous."""
    steps, step = [], 1
    for n in reversed(t.shape):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))


def _strides(t: Tensor, shape: torch.Size) -> Strides:
    """Return the strides of t broadcast to a shape; Tensor.expand takes three times as long."""
    if t.shape == shape:
        return t.stride()
    own = (0 if n == 1 else step for n, step in zip(t.shape, t.stride(), strict=True))
    return (0,) * (len(shape) - t.dim()) + tuple(own)


def _plain(t: Tensor) -> Tensor:
    if not t.is_neg():
        return t
    native.count_copy()
    return t.resolve_neg()


def fwd(
    x: Tensor, bias: Tensor, residual: Tensor, drop: Drop | None, wrap: Wrap | None = None
) -> Tensor:
    """Return y in the layout of residual; drop: p and the seed, None without dropout.

    x, residual: of one shape, to which bias broadcasts; any layout. `wrap` is applied to the kernel
    before its launch.
    """
    out = torch.empty_like(residual)
    operands = [_plain(x), _plain(bias), _plain(residual)]
    if out.numel() > 0:
        _run(out, operands, drop, wrap, _steps(out) if drop else None)
    return out


def bwd(dy: Tensor, drop: Drop, wrap: Wrap | None = None) -> Tensor:
    """Return dx in the layout of dy, any; drop and wrap as for `fwd`."""
    dx = torch.empty_like(dy)
    if dx.numel() > 0:
        _run(dx, [_plain(dy), None, None], drop, wrap, _steps(dx))
    return dx


def tile_for(x: Tensor, bias: Tensor, residual: Tensor) -> Tile:
    """Return the tile that `fwd` takes for these operands."""
    out = torch.empty_like(residual, device="meta")
    strides = (out.stride(), *[_strides(t, x.shape) for t in (x, bias, residual)])
    return _plan(out.shape, strides, None, True, out.element_size()).tile
