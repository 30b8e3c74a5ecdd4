"""The public function of multihead_attention, which calls the operators that it is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core.inputs import arguments
from fuseline.core.registration import operator
from fuseline.core.selection.select import ASK
from fuseline.ops.attention import op as attentions
from fuseline.ops.attention.impl_args import HALVES
from fuseline.ops.attention.impl_how import how_of
from fuseline.ops.matmul_add.op import matmul_add

_NAME = "multihead_attention"
# Keys up to which that error is less than those of rounding p (an H200: 2 to 3.7 eps of dw_qkv's
# largest element at 2048 and 8192, where eager's is 0.9 to 1.4).
_FEW = 512


def multihead_attention(
    x: Tensor,
    w_qkv: Tensor,
    b_qkv: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    heads: int,
    kv_heads: int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    deterministic: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Return a layer of self-attention.

    q, k, v = heads of (x @ w_qkv + b_qkv); y = (attention(q, k, v) of all heads) @ w_out + b_out

    x         (B, S, E), float64, float32, float16 or bfloat16; any layout.
    w_qkv     (E, (heads + 2 * kv_heads) * D), of x's dtype: the columns of q, then of k, then of v,
              a head after the other, as in torch's in_proj_weight, transposed.
    w_out     (heads * D, P), of x's dtype.
    b_qkv, b_out
              a number for each column, of x's dtype; None: 0.
    heads     how many q has; kv_heads how many k and v have, which divides it; None: as many.
    mask, causal, scale, window, dropout, seed, deterministic
              as attention's, of scores (B, heads, S, S).
    impl      of attention: "auto" or one of its names, while products are served by "auto"; "eager"
              is that of all. fuseline.explain_choice says what serves the attention.

    Returns y, (B, S, P), contiguous, of x's dtype. q, k and v are read where the first product
    wrote them. Numerics, and what is saved for backward, are those of matmul_add and attention.
    Under autocast tensors are cast as torch's products cast them.
    Raises TypeError (dtype), ValueError (shape, device, heads, and what attention refuses) or
    RuntimeError (an implementation that does not serve the call, after the first product) before
    anything is launched.
    Source: "Attention Is All You Need" (arXiv:1706.03762), torch.nn.MultiheadAttention.
    """
    weights = (w_qkv, b_qkv, w_out, b_out)
    how = (mask, causal, scale, window, dropout, seed, deterministic)
    if has_torch_function((x, *weights, mask, seed)):  # torch.fx's proxies, and subclasses
        given = (x, *weights, heads, kv_heads, *how, impl)
        return handle_torch_function(multihead_attention, (x, *weights, mask, seed), *given)  # type: ignore[no-any-return]
    x, w_qkv, b_qkv, w_out, b_out = operator.lowered(x, *weights)
    shape = _shape(x, w_qkv, b_qkv, w_out, b_out, heads, kv_heads)
    options = how_of(_NAME, x, *how[1:])
    # One element stands for what the first product is to write.
    three = _heads_of(x.new_empty(()).expand(*x.shape[:2], w_qkv.shape[1]), *shape)
    attentions.validate(*three, mask, *options)
    product = "eager" if impl == "eager" else "auto"
    if impl != ASK:
        if b_qkv is not None and product == "auto" and x.dtype in HALVES and shape[1] > _FEW:
            b_qkv = _without_that_of_keys(b_qkv, *shape[2:])
        three = _heads_of(_product(x, w_qkv, b_qkv, product), *shape)
    out = _attention(three, mask, options, impl)
    return _product(out.transpose(1, 2).flatten(2), w_out, b_out, product)


def _without_that_of_keys(b_qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Return the bias with 0 for k, or NaN: a softmax does not see what is added to all scores of a
    row, but the error of dq grows with it, as kernels take sum(dp * p) from out, rounded.
    """
    d = b_qkv.shape[0] // (heads + 2 * kv_heads)
    q, k, v = b_qkv.split((heads * d, kv_heads * d, kv_heads * d))
    return torch.cat((q, k * 0, v))


def _heads_of(
    columns: Tensor, batch: int, rows: int, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v, (batch, heads, rows, D), where their columns lie."""
    of_all = columns.view(batch, rows, heads + 2 * kv_heads, -1).transpose(1, 2)
    q, k, v = of_all.split((heads, kv_heads, kv_heads), 1)
    return q, k, v


def _attention(
    three: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    options: tuple[Any, ...],
    impl: str,
) -> Tensor:
    """Return attention's public function of q, k and v; options: of how_of()."""
    causal, scale, left, right, dropout, number, seed, deterministic = options
    seed = number if seed is None else seed
    rest: tuple[Any, ...] = (causal, scale, (left, right), dropout, seed, deterministic, impl)
    return attentions.attention(*three, mask, *rest)


def _product(a: Tensor, b: Tensor, bias: Tensor | None, impl: str) -> Tensor:
    """Return a @ b + bias."""
    return torch.matmul(a, b) if bias is None else matmul_add(a, b, bias, impl=impl)


def _shape(
    x: Tensor,
    w_qkv: Tensor,
    b_qkv: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    heads: int,
    kv_heads: int | None,
) -> tuple[int, int, int, int]:
    """Return batch, rows, heads and kv_heads; refuse what no implementation takes."""
    kv_heads = heads if kv_heads is None else kv_heads
    arguments.require_tensor(_NAME, x, "x")
    if x.dim() != 3:
        raise ValueError(f"{_NAME}: x has shape {tuple(x.shape)}, expected (batch, rows, columns)")
    for name, n in (("heads", heads), ("kv_heads", kv_heads)):
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{_NAME}: {name} is {n!r}, expected a number from 1")
    if heads % kv_heads:
        raise ValueError(f"{_NAME}: kv_heads is {kv_heads}, expected one that divides {heads}")
    for name, w in (("w_qkv", w_qkv), ("w_out", w_out)):
        arguments.require_like(_NAME, name, w, x, "x")
        if w.dim() != 2:
            raise ValueError(f"{_NAME}: {name} has shape {tuple(w.shape)}, expected two dimensions")
    columns, parts = w_qkv.shape[1], heads + 2 * kv_heads
    if w_qkv.shape[0] != x.shape[2] or columns % parts or not columns:
        raise ValueError(
            f"{_NAME}: w_qkv has shape {tuple(w_qkv.shape)}, expected ({x.shape[2]}, a multiple of "
            f"heads + 2 * kv_heads, {parts})"
        )
    if w_out.shape[0] != columns // parts * heads:
        raise ValueError(
            f"{_NAME}: w_out has shape {tuple(w_out.shape)}, expected "
            f"({columns // parts * heads}, P): {heads} heads of {columns // parts}"
        )
    for name, b, w in (("b_qkv", b_qkv, w_qkv), ("b_out", b_out, w_out)):
        if b is not None:
            shape = torch.Size((w.shape[1],))
            arguments.require_exactly(_NAME, name, b, shape, x.dtype, x.device)
    return x.shape[0], x.shape[1], heads, kv_heads
