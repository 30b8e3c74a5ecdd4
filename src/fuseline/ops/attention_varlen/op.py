"""The contract of attention_varlen, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core.device import triton_unavailable
from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import unbatched
from fuseline.core.registration import contract, operator
from fuseline.core.selection.rules import DTYPE, Fact
from fuseline.ops.attention.impl_how import checked, how_of, require_how
from fuseline.ops.attention.op import not_by_triton
from fuseline.ops.attention_varlen import impl_eager, impl_flash, impl_math
from fuseline.ops.attention_varlen.impl_args import Grads, Packed, starts_of
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap

_NAME = "attention_varlen"


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    deterministic: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Return the attention of packed sequences, each to itself, without padding.

    out = dropout(softmax(scale * q k^T)) v of the rows of each sequence.

    q       (queries of all sequences, H, D), float64, float32, float16 or bfloat16; any layout.
    k, v    (keys of all sequences, H / n, D), of q's dtype and device: n heads of q share one.
    cu_seqlens_q, cu_seqlens_k
            where each sequence begins among the queries and among the keys, and after them their
            number: (sequences + 1,), int32, on q's device, from 0, never falling. A sequence may
            be empty. What they hold is looked at on a CPU alone.
    max_seqlen_q, max_seqlen_k
            no sequence is longer. None looks it up, which waits for a GPU; tracing and the capture
            of a CUDA graph need numbers.
    causal  whether query i of a sequence sees its keys 0 to i alone, also where it has other keys
            than queries, as attention (FlashAttention and torch's varlen_attn let the last query
            see all keys there).
    scale, window, dropout, seed, deterministic
            as attention's; places of `window` and `dropout` are those within a sequence.
    impl    "auto", or one of "triton" (ours), "flash" (FlashAttention-2; on a CPU torch's, a
            sequence at a time), "math" (torch's operations on padded sequences), "eager" (the
            formula, padded). fuseline.explain_choice says what serves a call, and why not.

    Returns out, of q's shape and dtype, in the layout of torch.empty_like(q). Numerics are those of
    attention.
    Saved for backward: the arguments, out, and for each query the logarithm of the sum of its
    exponentials.
    Raises TypeError (dtype), ValueError (shape, device, lengths, scale, window, dropout, seed,
    impl) or RuntimeError (an implementation that does not serve the call) before anything is
    launched.
    Source: FlashAttention-2 (arXiv:2307.08691), flash_attn_varlen_func.
    """
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, seed)
    most = (max_seqlen_q, max_seqlen_k)
    given = (*tensors[:5], *most, causal, scale, window, dropout, seed, deterministic)
    if has_torch_function(tensors):  # torch.fx's proxies, and subclasses
        return handle_torch_function(attention_varlen, tensors, *given, impl)  # type: ignore[no-any-return]
    longest = (_longest("q", cu_seqlens_q, most[0]), _longest("k", cu_seqlens_k, most[1]))
    how = how_of(_NAME, q, causal, scale, window, dropout, seed, deterministic)
    args = operator.lowered(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, *how)
    out: Tensor = operator.call(SELECTOR, validate, attention_varlen, impl, *args)
    return out


def _longest(name: str, cu: Tensor, given: int | None) -> int:
    """Return the length of the longest sequence, or what was given for it."""
    if given is not None:
        return given
    _require_starts(name, cu)
    if is_compiling() or cu.is_meta or isinstance(cu, FakeTensor):
        raise ValueError(f"{_NAME}: max_seqlen_{name} is None, expected a number in a traced call")
    return int((cu[1:] - cu[:-1]).max()) if cu.shape[0] > 1 else 0


def _require_starts(name: str, cu: Tensor) -> None:
    name = f"cu_seqlens_{name}"
    if not isinstance(cu, Tensor):
        raise TypeError(f"{_NAME}: {name} is a {type(cu).__name__}, expected a torch.Tensor")
    arguments.require_strided(_NAME, name, cu)
    if cu.dtype != torch.int32:
        raise TypeError(f"{_NAME}: {name} has dtype {cu.dtype}, expected torch.int32")
    if cu.dim() != 1 or cu.shape[0] < 1 or not cu.is_contiguous():
        raise ValueError(
            f"{_NAME}: {name} has shape {tuple(cu.shape)} and strides {cu.stride()}, expected "
            "(sequences + 1,), contiguous"
        )


def validate(*args: Any) -> None:
    """Refuse what no implementation takes."""
    c = Packed(*args)
    arguments.require_tensor(_NAME, c.q, "q")
    for name, t in (("k", c.k), ("v", c.v)):
        arguments.require_like(_NAME, name, t, c.q, "q")
    _require_shapes(c)
    for name, cu in (("q", c.cu_q), ("k", c.cu_k)):
        _require_starts(name, cu)
        if cu.device != c.q.device:
            raise ValueError(
                f"{_NAME}: cu_seqlens_{name} is on {cu.device}, expected {c.q.device}, that of q"
            )
    if c.cu_k.shape != c.cu_q.shape:
        raise ValueError(
            f"{_NAME}: cu_seqlens_k has shape {tuple(c.cu_k.shape)}, expected "
            f"{tuple(c.cu_q.shape)}, that of cu_seqlens_q"
        )
    for name, n in (("q", c.max_q), ("k", c.max_k)):
        if not isinstance(n, (int, torch.SymInt)) or isinstance(n, bool) or not 0 <= n < 1 << 30:
            raise ValueError(f"{_NAME}: max_seqlen_{name} is {n!r}, expected a length")
    require_how(_NAME, c)
    _require_lengths(c)


def _require_shapes(c: Packed) -> None:
    q, k, v = c.q.shape, c.k.shape, c.v.shape
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 3:
            raise ValueError(
                f"{_NAME}: {name} has shape {tuple(shape)}, "
                "expected three dimensions: rows of all sequences, heads, head dimension"
            )
    if q[2] < 1:
        raise ValueError(f"{_NAME}: q has shape {tuple(q)}, expected a head dimension of 1 or more")
    if k[2] != q[2] or k[1] < 1 or q[1] % k[1]:
        raise ValueError(
            f"{_NAME}: k has shape {tuple(k)}, expected (rows, heads that divide {q[1]}, {q[2]}) "
            f"beside q of {tuple(q)}"
        )
    if v != k:
        raise ValueError(f"{_NAME}: v has shape {tuple(v)}, expected {tuple(k)}, that of k")


def _require_lengths(c: Packed) -> None:
    """Refuse starts that are none, where they can be read without waiting."""
    for name, cu, rows, most in (
        ("q", c.cu_q, c.q.shape[0], c.max_q),
        ("k", c.cu_k, c.k.shape[0], c.max_k),
    ):
        traced = is_compiling() or isinstance(cu, FakeTensor) or torch._is_functional_tensor(cu)
        if traced or not cu.is_cpu:
            return
        starts = starts_of(cu)
        lengths = [b - a for a, b in pairwise(starts)]
        if starts[0] != 0 or starts[-1] != rows or min(lengths, default=0) < 0:
            raise ValueError(
                f"{_NAME}: cu_seqlens_{name} is {starts}, expected numbers that never fall, from 0 "
                f"to {rows}, the rows of {name}"
            )
        if max(lengths, default=0) > most:
            raise ValueError(
                f"{_NAME}: max_seqlen_{name} is {most}, expected at least {max(lengths)}"
            )


def _validate_bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> None:
    validate(*args)
    q = args[0]
    for name, t in (("dout", dout), ("out", out)):
        arguments.require_exactly(_NAME, name, t, q.shape, q.dtype, q.device)
    shape = torch.Size((q.shape[1], q.shape[0]))
    arguments.require_exactly(_NAME, "lse", lse, shape, statistics_dtype(q), q.device)


def _fake(*args: Any) -> Tensor:
    validate(*args)
    return torch.empty_like(args[0])


def _fake_fwd(*args: Any) -> tuple[Tensor, Tensor]:
    validate(*args)
    q = args[0]
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=statistics_dtype(q))
    return torch.empty_like(q), lse


def _fake_bwd(*args: Any) -> Grads:
    _validate_bwd(*args)
    q, k, v = args[3:6]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def decomposed(*args: Any) -> Tensor:
    """Return the operator in torch operations that autograd and jvp can take apart."""
    validate(*args)
    return impl_math.formula(*args)


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class AttentionVarlen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Tensor:
            out, lse = fwd(*args)
            c = Packed(*args)
            ctx.save_for_backward(out, lse, *c[:5], c.seed_tensor)
            ctx.how = c[5:13], c.deterministic
            return out  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
            out, lse, *given, seed_tensor = ctx.saved_tensors
            how, deterministic = ctx.how
            args, needs = (*given, *how, seed_tensor, deterministic), ctx.needs_input_grad
            # out is an output of this node: a graph of the formula goes on through it.
            if contract.wants_graph((dout, out, *given)):
                return contract.differentiable_backward(decomposed, args, needs, dout)
            grads = bwd(dout, out, lse, *args)
            each = zip(grads, needs[:3], strict=True)
            return (*(g if need else None for g, need in each), *(None for _ in args[3:]))

    return AttentionVarlen


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        def one(i: int) -> tuple[Any, ...]:
            pairs = zip(args, in_dims, strict=True)
            return tuple(a if d is None else a.select(d, i) for a, d in pairs)

        if not info.batch_size:
            pairs = zip(args, in_dims, strict=True)
            q = unbatched(*next(iter(pairs)))
            return q.new_empty((0, *q.shape)), 0
        # Sequences of each call may lie elsewhere, and all draw alike.
        return torch.stack([op(*one(i)) for i in range(info.batch_size)]), 0

    return rule


_CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, "
    "SymInt max_seqlen_k, bool causal, float? scale, SymInt left, SymInt right, float dropout, "
    "SymInt? seed, Tensor? seed_tensor, bool deterministic"
)
_SIZES = tuple(1 << k for k in range(7, 16, 2))
CONTRACT = contract.Contract(
    name=_NAME,
    args=_CALL,
    fwd_returns="(Tensor, Tensor)",
    bwd_args=f"Tensor dout, Tensor out, Tensor lse, {_CALL}",
    bwd_returns="(Tensor, Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    function=_function,
    vmap=_vmap,
    facts={
        DTYPE: Fact(lambda q, *rest: q.dtype),
        "head_dim": Fact(lambda q, *rest: q.shape[2], (64, 128, 256)),
        "longest": Fact(lambda *args: args[6], _SIZES),
        "causal": Fact(lambda *args: args[7]),
    },
)

_triton = contract.triton_beside(__name__)


def _triton_run(*args: Any, wrap: Wrap | None = None) -> Tensor:
    return _triton_fwd(*args, wrap=wrap)[0]


def _triton_fwd(*args: Any, wrap: Wrap | None = None) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = _triton().fwd(*args, wrap=wrap)
    return made


def _triton_bwd(*args: Any, wrap: Wrap | None = None) -> Grads:
    grads: Grads = _triton().bwd(*args, wrap=wrap)
    return grads


def _eager(*args: Any) -> Tensor:
    validate(*args)
    c = Packed(*args)
    seed = c.seed if c.seed_tensor is None else c.seed_tensor
    how = (c.causal, c.scale, (c.left, c.right), c.dropout, seed)
    out = impl_eager.attention_varlen(*c[:7], *how)  # type: ignore[arg-type]
    return torch.empty_like(c.q).copy_(out)


_TRITON = contract.Provider(
    "triton",
    contract.Kernels(_triton_run, _triton_fwd, _triton_bwd),
    triton_unavailable,
    not_by_triton,
    through=True,
    by_rule=False,
)
_PROVIDERS = (_TRITON, impl_flash.PROVIDER, impl_math.PROVIDER)
SELECTOR = contract.provided(CONTRACT, _eager, *(checked(one, validate) for one in _PROVIDERS))
