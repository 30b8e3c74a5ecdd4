"""Activations behind a product: their values, and their gradients with that of a bias."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.gelu import gate, single_share
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.parameters import TILES, finish
from fuseline.primitives.triton.row_sums import block, places
from fuseline.primitives.triton.rows import divide_up, processors, vec

ACTS = ("none", "relu", "gelu_tanh", "gelu_erf")

# Columns of a program, elements of it at once, its warps, and programs on each SM.
_BLOCK, _SIZE, _WARPS, _PROGRAMS = 256, 1024, 4, 8


@triton.jit
def activate(x, bias, ACT: tl.constexpr, EXACT: tl.constexpr):
    """Return h = x + bias and act(h), in fp32; EXACT keeps all digits of a small GELU."""
    if ACT == "gelu_tanh" or ACT == "gelu_erf":
        if EXACT:
            h, share = single_share(x, bias, ACT == "gelu_tanh")
        else:
            h, share, _ = gate(x, bias, ACT == "gelu_tanh", False)
        y = h * share
    else:
        h = x + bias
        y = tl.maximum(h, 0.0, propagate_nan=tl.PropagateNan.ALL) if ACT == "relu" else h
    return h, y


@triton.jit(do_not_specialize=["n_rows", "n_cols", "dy_stride", "saved_stride"])
def _gradient_kernel(
    dy_ptr, saved_ptr, g_ptr, partial_ptr, n_rows, n_cols, dy_stride, saved_stride,
    ACT: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process BLOCK columns of every n-th tile of ROWS rows: read dy and what was saved, write g.

    And its part of the sum over rows, each where there is a place.
    """
    cols, inside = block(tl.program_id(0) * BLOCK, n_cols, VEC, BLOCK)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    turn = tl.zeros((ROWS, BLOCK), tl.float32)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & inside[None, :]
        g = tl.load(places(dy_ptr, rows, dy_stride, cols, VEC), mask, other=0.0).to(tl.float32)
        if ACT != "none":
            saved = tl.load(places(saved_ptr, rows, saved_stride, cols, VEC), mask, other=0.0)
            saved = saved.to(tl.float32)
            if ACT == "relu":
                g = tl.where(saved <= 0.0, 0.0, g)
            else:
                h, share, slope = gate(saved, tl.zeros_like(saved), ACT == "gelu_tanh", False)
                g *= share + h * slope
            tl.store(places(g_ptr, rows, n_cols, cols, VEC), g.to(g_ptr.dtype.element_ty), mask)
        if partial_ptr is not None:
            turn += g
            flush = tile // tl.num_programs(1) % TILES == 0
            sums += tl.where(flush, turn, 0.0)
            turn = tl.where(flush, 0.0, turn)
    if partial_ptr is not None:
        part = partial_ptr + tl.program_id(1).to(tl.int64) * (n_cols // VEC * VEC) + cols
        tl.store(part, tl.sum(sums + turn, 0), inside)


def act_grad(
    dy: torch.Tensor,
    saved: torch.Tensor | None,
    act: str,
    need_dbias: bool,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return g = dy * act'(.) and, if needed, its sum over rows, else None; deterministic.

    dy, saved: (rows, n_cols), last stride 1, any row stride, fp32 or half types. `saved` is y of
    "relu", h of the two GELUs and None of "none", whose g is dy itself. g is dense and has dy's
    dtype, as has the sum.
    """
    n_rows, n_cols = dy.shape
    other = dy if saved is None else saved
    strides = (dy.stride(0), other.stride(0))
    rows = _SIZE // _BLOCK
    meta = {"ACT": act, "VEC": vec(dy, n_cols, *strides), "ROWS": rows, "BLOCK": _BLOCK}
    meta["num_warps"] = _WARPS
    columns = max(1, divide_up(n_cols, _BLOCK))
    most = max(1, processors(dy.device) * _PROGRAMS // columns)
    n_partials: int = torch.sym_min(divide_up(n_rows, rows), most)
    g = dy if act == "none" else dy.new_empty(dy.shape)
    partial = dy.new_empty((n_partials, n_cols), dtype=torch.float32) if need_dbias else None
    if dy.numel() > 0 and (act != "none" or need_dbias):
        args = (dy, saved, None if act == "none" else g, partial, n_rows, n_cols, *strides)
        launch(_gradient_kernel, (columns, n_partials), args, meta, wrap)
    if partial is None:
        return g, None
    (dbias,) = finish(partial, (dy.dtype,), wrap)
    return g, dbias
