"""The pointwise chain in Triton: max(x * cos(x), cos(x)) + x * cos(x), and its gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.core.inputs.layout import dense_as
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rows import divide_up, vec
from fuseline.primitives.triton.trig import cos_sin

# 16 bytes of half types a thread, or twice 16 of fp32.
_META = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def _block(numel, VEC: tl.constexpr, BLOCK: tl.constexpr):
    """Return where this program's elements begin, their places
    from there, and which of them exist.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(numel - start, BLOCK).to(tl.int32)
    places = tl.arange(0, BLOCK)
    return start, places, places < left // VEC * VEC


@triton.jit(do_not_specialize=["numel"])
def _fwd_kernel(x_ptr, y_ptr, numel, VEC: tl.constexpr, BLOCK: tl.constexpr):
    """Process BLOCK elements: read x, write y."""
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    start, places, mask = _block(numel, VEC, BLOCK)
    x = tl.load(x_ptr + start + places, mask, other=0.0).to(acc)
    cos, _ = cos_sin(x, element)
    product = x * cos
    if element.primitive_bitwidth == 16:
        y = tl.fma(x, cos, tl.maximum(product, cos))
    else:  # the other sum would lose digits near x = -1, of which half types have enough
        y = tl.where(product > cos, product + product, cos * (1 + x))
    tl.store(y_ptr + start + places, y.to(element), mask)


@triton.jit(do_not_specialize=["numel"])
def _bwd_kernel(dy_ptr, x_ptr, dx_ptr, numel, VEC: tl.constexpr, BLOCK: tl.constexpr):
    """Process BLOCK elements: read dy and x, write dx."""
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    start, places, mask = _block(numel, VEC, BLOCK)
    x = tl.load(x_ptr + start + places, mask, other=0.0).to(acc)
    dy = tl.load(dy_ptr + start + places, mask, other=0.0).to(acc)
    cos, sin = cos_sin(x, element)
    product = x * cos
    of_product = cos - x * sin
    of_max = tl.where(product > cos, of_product, -sin)
    of_max = tl.where(x == 1.0, (of_product - sin) * 0.5, of_max)  # max's tie: half to each
    tl.store(dx_ptr + start + places, (dy * (of_product + of_max)).to(element), mask)


def fwd(x: torch.Tensor, wrap: Wrap | None = None) -> torch.Tensor:
    """Return y, which lies in memory as x; `wrap` is applied to the kernel before its launch."""
    y = torch.empty_like(x)
    _run(_fwd_kernel, (dense_as(x, y), y), wrap)
    return y


def bwd(dy: torch.Tensor, x: torch.Tensor, wrap: Wrap | None = None) -> torch.Tensor:
    """Return dx, which lies in memory as x."""
    dx = torch.empty_like(x)
    _run(_bwd_kernel, (dense_as(dy, dx), dense_as(x, dx), dx), wrap)
    return dx


def _run(kernel: triton.JITFunction, tensors: tuple[torch.Tensor, ...], wrap: Wrap | None) -> None:
    numel = tensors[0].numel()
    if numel > 0:
        meta = {"VEC": vec(tensors[0], numel), **_META}
        launch(kernel, (divide_up(numel, _META["BLOCK"]),), (*tensors, numel), meta, wrap)
