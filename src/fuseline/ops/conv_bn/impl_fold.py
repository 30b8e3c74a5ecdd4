"""Batch norm by running statistics in Triton, folded into the weight and bias before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuseline.core.inputs.layout import dense
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import ALIGNED, Grid, launch, ready
from fuseline.primitives.triton.rms import float64_of, inverse_sqrt
from fuseline.primitives.triton.rows import divide_up, halves, power_of_2, vec_of

# Four accesses of 16 bytes a thread; one warp reads a row of a tile at once.
_TILE, _MOST_COLUMNS, _WARPS = 2048, 512, 4


@triton.jit(do_not_specialize=["n_rows", "n_cols", "eps_high", "eps_low"])
def _fold_kernel(
    weight_ptr, bias_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, folded_ptr, shift_ptr,
    n_rows, n_cols, eps_high, eps_low,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process a tile of ROWS channels: read the weight, write it scaled and, once, the shift."""
    width = n_cols // VEC * VEC
    tiles = (width + BLOCK - 1) // BLOCK
    tile = tl.program_id(0) % tiles
    rows = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tile * BLOCK + tl.arange(0, BLOCK)
    live = rows < n_rows
    mask = live[:, None] & (cols < width)[None, :]
    at = rows[:, None] * width + cols[None, :]
    weight = tl.load(weight_ptr + at, mask, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + rows, live, other=1.0).to(tl.float32)
    scale = inverse_sqrt(var + float64_of(eps_high, eps_low).to(tl.float32))
    if w_ptr is not None:
        scale *= tl.load(w_ptr + rows, live, other=0.0).to(tl.float32)
    tl.store(folded_ptr + at, (weight * scale[:, None]).to(folded_ptr.dtype.element_ty), mask)
    if tile == 0:
        shift = -tl.load(mean_ptr + rows, live, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            shift += tl.load(bias_ptr + rows, live, other=0.0).to(tl.float32)
        shift *= scale
        if b_ptr is not None:
            shift += tl.load(b_ptr + rows, live, other=0.0).to(tl.float32)
        tl.store(shift_ptr + rows, shift.to(shift_ptr.dtype.element_ty), live)


def folded(
    weight: Tensor,
    vectors: Sequence[Any],
    eps: float,
    dtype: torch.dtype,
    wrap: Wrap | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Return weight * s and (bias - mean) * s + b, s = w / sqrt(var + eps), in a dtype; None where
    a tensor has no memory.

    weight   (K, ...), in whose memory the elements of each channel lie side by side, channel after
             channel; the result lies as it does
    vectors  bias, w, b, mean and var, (K,); all but the last two may be None
    """
    made, shift = (torch.empty_like(t, dtype=dtype) for t in (weight, vectors[-1]))
    tensors = (weight, *map(dense, vectors), made, shift)
    if wrap is not None:
        launch(*_launched(tensors, eps), wrap)
        return made, shift
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    if 0 in pointers:
        return None
    call = (weight.shape, weight.get_device(), eps, *[t if t is None else t.dtype for t in tensors])
    again = _again.get(call)
    if again is None or [p for p in pointers if p and p % ALIGNED] or not again(*pointers):
        launched = _launched(tensors, eps)
        launch(*launched)
        _remember(call, launched)
    return made, shift


# Launches that can be repeated, by all that they depend on but the addresses; bounded.
_again: dict[tuple[Any, ...], Callable[..., bool]] = {}
_MOST = 4096
_Launch = tuple[Any, Grid, tuple[Any, ...], dict[str, int]]


def _launched(tensors: tuple[Any, ...], eps: float) -> _Launch:
    """Return what the kernel is launched with."""
    weight, made = tensors[0], tensors[-2]
    n_rows = weight.shape[0]
    n_cols = weight.numel() // n_rows
    block = min(power_of_2(n_cols), _MOST_COLUMNS)
    height = _TILE // block
    vec = max(vec_of(t.dtype, n_cols) for t in (weight, made))
    meta = {"VEC": vec, "ROWS": height, "BLOCK": block, "num_warps": _WARPS}
    grid = (divide_up(n_rows, height) * divide_up(n_cols, block),)
    return _fold_kernel, grid, (*tensors, n_rows, n_cols, *halves(eps)), meta


def _remember(call: tuple[Any, ...], launched: _Launch) -> None:
    repeat = ready(*launched)
    if repeat is not None:
        if len(_again) >= _MOST:
            _again.clear()
        _again[call] = repeat
