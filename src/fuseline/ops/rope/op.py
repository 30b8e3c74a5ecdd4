"""The contract of rope: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import unbatched
from fuseline.core.registration import contract, operator
from fuseline.ops.rope import impl_eager

_NAME = "rope"
Pair = tuple[Tensor, Tensor]


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    impl: str = "auto",
) -> Pair:
    """Rotate pairs of the elements of queries and keys by angles of their positions.

    y, z = a * cos - b * sin, b * cos + a * sin for each pair (a, b) of the first 2 * P elements of
    a head; the others stay.

    q            (batch, heads, tokens, d), float64, float32, float16 or bfloat16; any layout.
    k            as q, with any number of heads.
    cos, sin     (tokens, P), (batch, tokens, P) or (batch, tokens, 2, P), batch may be 1, 2 * P <=
                 d; q's dtype or float32 and q's device; any layout. Of four dimensions they have
                 numbers for a and for b: y, z = a * cos[0] - b * sin[0], b * cos[1] + a * sin[1].
                 So tables of width 2 * P as transformers' have them are cos.unflatten(-1, (2, P))
                 or, where their halves repeat, cos[..., :P].
    interleaved  whether pairs are neighbours, (0, 1), (2, 3), ..., as in GPT-J, or else a half
                 apart, (0, P), (1, P + 1), ..., as in Llama.
    impl         "auto", or one of "cuda", "cpu", "eager" (the plain formula, which rounds thrice).

    Returns q and k rotated, with their shapes, dtypes and memory layouts, as torch.empty_like has
    them; computed in float32 (float64: float64) and rounded once. By "cuda" in one kernel, which
    reads any layout; "cpu" copies what has gaps between the elements of a head.
    Saved for backward: cos and sin; the gradients of q and k are theirs rotated back, in the
    layouts in which they come. For gradients of cos and sin, which the plain formula has, q and k
    are saved too. Deterministic.
    Raises TypeError (dtype), ValueError (shape, device, impl) or RuntimeError (an implementation
    that cannot run here) before anything is launched.
    Source: RoFormer: Enhanced Transformer with Rotary Position Embedding, Su et al., 2021
    (arXiv:2104.09864).
    """
    out: Pair = operator.call(SELECTOR, validate, rope, impl, q, k, cos, sin, interleaved)
    return out


def validate(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    names: tuple[str, str] = ("q", "k"),
) -> None:
    """Refuse what no implementation takes."""
    own, other = names
    arguments.require_tensor(_NAME, q, own)
    if q.dim() != 4:
        raise ValueError(
            f"{_NAME}: {own} has shape {tuple(q.shape)}, expected (batch, heads, tokens, d)"
        )
    arguments.require_like(_NAME, other, k, q, own)
    if k.dim() != 4 or (k.shape[0], *k.shape[2:]) != (q.shape[0], *q.shape[2:]):
        raise ValueError(
            f"{_NAME}: {other} has shape {tuple(k.shape)}, "
            f"expected that of {own} but for the heads, {tuple(q.shape)}"
        )
    arguments.require_like_or_float(_NAME, "cos", cos, q, own)
    batch, _, tokens, d = q.shape
    shape = tuple(cos.shape)
    fits = len(shape) in (2, 3) or (len(shape) == 4 and shape[2] == 2)
    fits = fits and shape[-2 if len(shape) == 2 else 1] == tokens and 1 <= shape[-1] <= d // 2
    if not fits or (len(shape) > 2 and shape[0] not in (1, batch)):
        raise ValueError(
            f"{_NAME}: cos has shape {shape}, expected (tokens, pairs), (batch, tokens, pairs) or "
            f"(batch, tokens, 2, pairs) of 1 to d / 2 pairs, for {own} of shape {tuple(q.shape)}"
        )
    arguments.require_twin(_NAME, "sin", sin, cos, "cos")
    if not isinstance(interleaved, bool):
        raise TypeError(f"{_NAME}: interleaved is a {type(interleaved).__name__}, expected a bool")


def _fake(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Pair:
    validate(q, k, cos, sin, interleaved)
    return torch.empty_like(q), torch.empty_like(k)


def _fake_bwd(dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Pair:
    validate(dq, dk, cos, sin, interleaved, ("dq", "dk"))
    return torch.empty_like(dq), torch.empty_like(dk)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    n, wide = cos.shape[-1], torch.promote_types(x.dtype, torch.float32)
    turned = x[..., : 2 * n].to(wide)
    one, two = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    (c, d), (s, t) = (_of_pairs(table.to(wide)) for table in (cos, sin))
    pairs = one * c - two * s, two * d + one * t
    turned = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * n :]), -1)


def _of_pairs(table: Tensor) -> Pair:
    """Return a table for the first and the second element of pairs, with a dimension of heads."""
    first, second = table.unbind(-2) if table.dim() == 4 else (table, table)
    return first.unsqueeze(-3), second.unsqueeze(-3)


def decomposed(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Pair:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(q, k, cos, sin, interleaved)
    return _rotated(q, cos, sin, interleaved), _rotated(k, cos, sin, interleaved)


def _rotated_back(dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Pair:
    """Return the gradients of q and k."""
    return decomposed(dq, dk, cos, -(sin.flip(-2) if sin.dim() == 4 else sin), interleaved)


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class Rope(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
        ) -> Pair:
            of_tables = cos.requires_grad or sin.requires_grad
            ctx.save_for_backward(cos, sin, *((q, k) if of_tables else ()))
            ctx.interleaved = interleaved
            rotated: Pair = fwd(q, k, cos, sin, interleaved)
            return rotated

        @staticmethod
        def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
            cos, sin, *heads = ctx.saved_tensors
            needs = ctx.needs_input_grad
            if heads:
                args = (*heads, cos, sin, ctx.interleaved)
                return contract.differentiable_backward(decomposed, args, needs, dq, dk)
            if contract.wants_graph((dq, dk, cos, sin)):
                grads = _rotated_back(dq, dk, cos, sin, ctx.interleaved)
            else:
                grads = bwd(dq, dk, cos, sin, ctx.interleaved)
            own = (grad if need else None for grad, need in zip(grads, needs[:2], strict=True))
            return *own, None, None, None

    return Rope


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    """Make one batch of the two."""

    def rule(
        info: Any, in_dims: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
    ) -> Any:
        size, given = info.batch_size, (q, k, cos, sin)
        if size:
            one = [unbatched(t, dim) for t, dim in zip(given, in_dims[:4], strict=True)]
            validate(one[0], one[1], one[2], one[3], interleaved)
        front = [
            t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(given, in_dims[:4], strict=True)
        ]
        own = front[0].shape[1]
        heads = (t.flatten(0, 1) for t in front[:2])
        tables = (
            t.expand(-1, own, *t.shape[2:]).flatten(0, 1)
            for t in (t if t.dim() > 3 else t.unsqueeze(1) for t in front[2:])
        )
        out = op(*heads, *tables, interleaved)
        return tuple(t.unflatten(0, (size, own)) for t in out), (0, 0)

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved",
    returns="(Tensor, Tensor)",
    bwd_args="Tensor dq, Tensor dk, Tensor cos, Tensor sin, bool interleaved",
    bwd_returns="(Tensor, Tensor)",
    fake=_fake,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(("q", "k"), ("q", "k"), outputs=2, formula=_rotated_back),
    function=_function,
    vmap=_vmap,
)


def _eager(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Pair:
    validate(q, k, cos, sin, interleaved)
    return impl_eager.rope(q, k, cos, sin, interleaved)


SELECTOR = contract.implementations(CONTRACT, None, _eager)
