"""Layer norm in Triton: y = (x - mean) * rstd * weight + bias over the last dimension.

Rows that fit the registers of one program are read once; longer rows in blocks, twice. A row's
result depends on its own length and type only, never on how many rows there are. Not tuned on
a GPU yet.
"""

from __future__ import annotations

from typing import Any

import torch

from fuseline.core.selection.tuned import Entry, Table, Tile
from fuseline.ops.layer_norm.impl_triton_bwd import bwd_kernel, dx_long_kernel
from fuseline.ops.layer_norm.impl_triton_fwd import fwd_kernel, fwd_long_kernel
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.parameters import finish, partial_rows, sum_long
from fuseline.primitives.triton.rows import divide_up, halves, vec, whole_meta

# So that nothing spills as compiled for Hopper; not tuned on a GPU yet.
_FWD = (Entry(2048, Tile(2048, 4)), Entry(4096, Tile(4096, 8)), Entry(8192, Tile(8192, 16)),
        Entry(16384, Tile(16384, 32)), Entry(None, Tile(4096, 8)))  # fmt: skip
_FEW = Entry(None, Tile(2048, 8))
_TABLE = Table("", {
    ("fwd", 2): _FWD,
    ("fwd", 4): _FWD,
    ("fwd", 8): (Entry(1024, Tile(1024, 4)), Entry(2048, Tile(2048, 8)),
                 Entry(4096, Tile(4096, 16)), _FEW),
    ("bwd", 2): (Entry(1024, Tile(1024, 4, 4, 4)), Entry(2048, Tile(2048, 8, 4, 2)),
                 Entry(4096, Tile(4096, 16, 3)), Entry(8192, Tile(8192, 32, 2)), _FEW),
    ("bwd", 4): (Entry(1024, Tile(1024, 8, 4, 2)), Entry(2048, Tile(2048, 8, 4, 2)),
                 Entry(4096, Tile(4096, 32, 3)), Entry(8192, Tile(8192, 32)), _FEW),
    ("bwd", 8): (Entry(1024, Tile(1024, 8, 2, 2)), Entry(2048, Tile(2048, 16, 2)), _FEW),
})  # fmt: skip


def fwd(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    save: bool,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return y of x's shape and dtype; mean and rstd (rows,) in fp32 (fp64 for fp64 x) if `save`.

    x: (rows, n_cols), last stride 1, any row stride. weight, bias: (n_cols,), contiguous. `wrap` is
    applied to each kernel before its launch; without it the kernel runs at once.
    """
    n_rows, n_cols = x.shape
    y = x.new_empty((n_rows, n_cols))
    mean, rstd = (
        x.new_empty((n_rows,), dtype=statistics_dtype(x)) if save else None for _ in range(2)
    )
    if n_rows == 0:
        return y, mean, rstd
    chosen = _TABLE.tile("fwd", x.element_size(), n_cols)
    tensors = (x, weight, bias, y, mean, rstd)
    counts = (n_cols, x.stride(0), *halves(float(eps)))
    meta = {"VEC": vec(x, n_cols, x.stride(0))}
    if n_cols <= chosen.size:
        meta |= whole_meta(n_cols, chosen.size, chosen.warps)
        grid = (divide_up(n_rows, meta["ROWS"]),)
        launch(fwd_kernel, grid, (*tensors, n_rows, *counts), meta, wrap)
    else:
        meta |= {"BLOCK": chosen.size, "num_warps": chosen.warps}
        launch(fwd_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
    return y, mean, rstd


def bwd(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return dx of x's shape and dtype, dweight and dbias, each None unless needed; deterministic.

    With g = dy * w: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), dweight = sum over rows of
    dy * xhat, dbias = sum over rows of dy, both of weight's dtype, without one dbias of the
    statistics'. dy, x: (rows, n_cols), one dtype, last stride 1, any row stride.
    """
    n_rows, n_cols = x.shape
    need_dweight = need_dweight and weight is not None
    chosen = _TABLE.tile("bwd", x.element_size(), n_cols)
    n_partials = partial_rows(x, chosen.size, chosen.programs, at_most_tiles=True)
    planes = need_dweight + need_dbias
    dx = x.new_empty((n_rows, n_cols)) if need_dx else None
    partial = x.new_empty((planes, n_partials, n_cols), dtype=rstd.dtype) if planes else None
    counts = (n_cols, dy.stride(0), x.stride(0))
    meta: dict[str, Any] = {"VEC": vec(x, *counts)}
    tensors = (dy, x, weight, mean, rstd)
    if n_rows > 0 and n_cols <= chosen.size and (need_dx or planes):
        meta |= {"DWEIGHT": need_dweight, "DBIAS": need_dbias, "STAGES": chosen.stages}
        meta |= whole_meta(n_cols, chosen.size, chosen.warps)
        args = (*tensors, dx, partial, n_rows, *counts)
        launch(bwd_kernel, (n_partials,), args, meta, wrap)
    elif n_rows > 0 and n_cols > chosen.size:
        shift = torch.empty_like(mean) if need_dweight else None
        if need_dx or need_dweight:
            meta |= {"BLOCK": chosen.size, "num_warps": chosen.warps}
            launch(dx_long_kernel, (n_rows,), (*tensors, shift, dx, *counts), meta, wrap)
        if partial is not None:
            sum_long(dy, x, mean, rstd, shift, partial, need_dweight, need_dbias, wrap)
    if partial is None:
        return dx, None, None
    dtype = rstd.dtype if weight is None else weight.dtype
    sums = iter(finish(partial, [dtype] * planes, wrap))
    return dx, next(sums) if need_dweight else None, next(sums) if need_dbias else None
