"""The contract of attention, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core.device import triton_unavailable
from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.registration import contract, operator
from fuseline.core.selection.rules import DTYPE, Fact
from fuseline.ops.attention import (
    impl_cudnn,
    impl_eager,
    impl_fa4,
    impl_flash,
    impl_math,
)
from fuseline.ops.attention.impl_args import HALVES, Call, Grads
from fuseline.ops.attention.impl_how import checked, how_of, require_how
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap

_NAME = "attention"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    deterministic: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Return the attention of queries to keys and values, without the matrix of scores in memory.

    out = dropout(softmax(scale * q k^T + mask)) v, with scores of -Inf where a key is hidden.

    q       (B, H, S, D), float64, float32, float16 or bfloat16; any layout.
    k, v    (B, H / n, T, D), of q's dtype and device: n heads of q share one of k and v.
    mask    any shape that broadcasts to (B, H, S, T): of bool, True where a key is seen; or added
            to the scores, of q's dtype or float32, with a gradient.
    causal  whether query i sees the keys 0 to i alone, also where S is not T.
    scale   a finite number; None: 1 / sqrt(D).
    window  (left, right): query i sees the keys i - left to i + right, a negative number is no
            bound; w is (w - 1, w - 1).
    dropout the probability to drop an element of the softmax, 0 to 1; others times 1 / (1 - it).
    seed    of dropout, 64 bits: an int, or a tensor of int64 with shape () on q's device. None
            draws one from torch's default CPU generator (from the device's while a CUDA graph is
            captured, in compiled graphs, under vmap). Which elements are dropped depends on the
            seed and their place alone, not on the implementation.
    deterministic  whether gradients must be the same each time, bit for bit; also where
            torch.use_deterministic_algorithms says so.
    impl    "auto", or one of "cudnn", "triton" (ours), "flash" (FlashAttention-2; on a CPU
            torch's), "unfused" (torch's products, our softmax between), "math" (torch's
            operations), "fa4" (an extra), "eager" (the formula). fuseline.explain_choice says what
            serves a call, and why not.

    Returns out, (B, H, S, D), of q's dtype, in the layout of torch.empty_like(q). Half types and
    float32 are computed in float32; float32 is multiplied in TF32 only where
    torch.backends.cuda.matmul.fp32_precision allows it. A query that sees nothing gives 0, and
    gradients of 0. Under autocast tensors are cast as torch's products cast them.
    Saved for backward: the arguments, out, and for each query the logarithm of the sum of its
    exponentials.
    Raises TypeError (dtype), ValueError (shape, device, scale, window, dropout, seed, impl) or
    RuntimeError (an implementation that does not serve the call) before anything is launched.
    Source: "Attention Is All You Need" (arXiv:1706.03762), FlashAttention-2 (arXiv:2307.08691).
    """
    tensors = (q, k, v, mask, seed)
    given = (q, k, v, mask, causal, scale, window, dropout, seed, deterministic)
    if has_torch_function(tensors):  # torch.fx's proxies, and subclasses
        return handle_torch_function(attention, tensors, *given, impl)  # type: ignore[no-any-return]
    out: Tensor = operator.call(SELECTOR, validate, attention, impl, *_arguments(*given))
    return out


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    window: int | tuple[int, int] | None,
    dropout: float,
    seed: int | Tensor | None,
    deterministic: bool,
) -> tuple[Any, ...]:
    """Return the operator's arguments, those of Call."""
    how = how_of(_NAME, q, causal, scale, window, dropout, seed, deterministic)
    return operator.lowered(q, k, v, mask, *how)


def validate(*args: Any) -> None:
    """Refuse what no implementation takes."""
    c = Call(*args)
    arguments.require_tensor(_NAME, c.q, "q")
    for name, t in (("k", c.k), ("v", c.v)):
        arguments.require_like(_NAME, name, t, c.q, "q")
    _require_shapes(c)
    if c.mask is not None:
        _require_mask(c, c.mask)
    require_how(_NAME, c)


def _require_shapes(c: Call) -> None:
    q, k, v = c.q.shape, c.k.shape, c.v.shape
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise ValueError(
                f"{_NAME}: {name} has shape {tuple(shape)}, "
                "expected four dimensions: batch, heads, length, head dimension"
            )
    if q[3] < 1:
        raise ValueError(f"{_NAME}: q has shape {tuple(q)}, expected a head dimension of 1 or more")
    if k[0] != q[0] or k[3] != q[3] or k[1] < 1 or q[1] % k[1]:
        raise ValueError(
            f"{_NAME}: k has shape {tuple(k)}, expected ({q[0]}, heads that divide {q[1]}, T, "
            f"{q[3]}) beside q of {tuple(q)}"
        )
    if v != k:
        raise ValueError(f"{_NAME}: v has shape {tuple(v)}, expected {tuple(k)}, that of k")


def _require_mask(c: Call, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{_NAME}: mask is a {type(mask).__name__}, expected a torch.Tensor or None"
        )
    arguments.require_strided(_NAME, "mask", mask)
    if mask.dtype not in (torch.bool, c.q.dtype, torch.float32):
        raise TypeError(
            f"{_NAME}: mask has dtype {mask.dtype}, expected torch.bool, {c.q.dtype} (as q) or "
            "torch.float32"
        )
    if mask.device != c.q.device:
        raise ValueError(
            f"{_NAME}: mask is on {mask.device}, expected {c.q.device}, the device of q"
        )
    scores = (*c.q.shape[:3], c.k.shape[2])
    pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.dim() > 4 or any(a not in (1, b) for a, b in pairs):
        raise ValueError(
            f"{_NAME}: mask has shape {tuple(mask.shape)}, expected one that broadcasts to {scores}"
        )


def _validate_bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> None:
    *of_call, need_dmask = args
    validate(*of_call)
    c = Call(*of_call)
    for name, t in (("dout", dout), ("out", out)):
        arguments.require_exactly(_NAME, name, t, c.q.shape, c.q.dtype, c.q.device)
    dtype = statistics_dtype(c.q)
    arguments.require_exactly(_NAME, "lse", lse, c.q.shape[:3], dtype, c.q.device)
    if need_dmask and (c.mask is None or c.mask.dtype == torch.bool):
        raise ValueError(f"{_NAME}: need_dmask is True, expected False without a mask of floats")


def _fake(*args: Any) -> Tensor:
    validate(*args)
    return torch.empty_like(args[0])


def _fake_fwd(*args: Any) -> tuple[Tensor, Tensor]:
    validate(*args)
    q = args[0]
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=statistics_dtype(q))


def _fake_bwd(*args: Any) -> Grads:
    _validate_bwd(*args)
    q, k, v, mask = args[3:7]
    dmask = mask.new_empty(mask.shape) if args[-1] else q.new_empty((0,))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dmask


def decomposed(*args: Any) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(*args)
    return impl_math.formula(*args)[0]


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Tensor:
            out, lse = fwd(*args)
            c = Call(*args)
            ctx.save_for_backward(out, lse, c.q, c.k, c.v, c.mask, c.seed_tensor)
            ctx.how = args[4:10], c.deterministic
            return out  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
            out, lse, *given, seed_tensor = ctx.saved_tensors
            how, deterministic = ctx.how
            args, needs = (*given, *how, seed_tensor, deterministic), ctx.needs_input_grad
            # out is an output of this node: a graph of the formula goes on through it.
            if contract.wants_graph((dout, out, *given)):
                return contract.differentiable_backward(decomposed, args, needs, dout)
            grads = bwd(dout, out, lse, *args, needs[3])
            each = zip(grads, needs[:4], strict=True)
            return (*(g if need else None for g, need in each), *(None for _ in args[4:]))

    return Attention


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        c, dims, size = Call(*args), Call(*in_dims), info.batch_size
        if size:
            pairs = zip(args, in_dims, strict=True)
            validate(*(unbatched(a, d) if isinstance(a, Tensor) else a for a, d in pairs))
        q, k, v = (move_batch_dim_to_front(args[i], in_dims[i], size) for i in range(3))
        mask = _batched(c.mask, in_dims[3], q, c.dropout > 0)
        if c.dropout > 0:
            # All of a batch draw alike, unless each has a seed of its own.
            own = c.seed_tensor
            if own is not None and dims.seed_tensor is not None:
                own = own.view(-1, 1, 1, 1)
            return impl_math.formula(q, k, v, mask, *args[4:10], own, c.deterministic)[0], 0
        flat = (t.flatten(0, 1) for t in (q, k, v))
        return op(*flat, mask, *args[4:]).unflatten(0, q.shape[:2]), 0

    return rule


def _batched(mask: Tensor | None, dim: int | None, q: Tensor, apart: bool) -> Tensor | None:
    """Return the mask of a batch of calls: `apart` from their own batches, or with them."""
    if mask is None or (dim is None and (apart or mask.dim() < 4 or mask.shape[0] == 1)):
        return mask
    mask = mask[None] if dim is None else mask.movedim(dim, 0)
    mask = mask.view(mask.shape[0], *(1,) * (5 - mask.dim()), *mask.shape[1:])
    return mask if apart else mask.expand(*q.shape[:2], *mask.shape[2:]).flatten(0, 1)


_SIZES = tuple(1 << k for k in range(7, 16, 2))
_CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, SymInt left, "
    "SymInt right, float dropout, SymInt? seed, Tensor? seed_tensor, bool deterministic"
)
CONTRACT = contract.Contract(
    name=_NAME,
    args=_CALL,
    fwd_returns="(Tensor, Tensor)",
    bwd_args=f"Tensor dout, Tensor out, Tensor lse, {_CALL}, bool need_dmask",
    bwd_returns="(Tensor, Tensor, Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    function=_function,
    vmap=_vmap,
    facts={
        DTYPE: Fact(lambda q, *rest: q.dtype),
        "head_dim": Fact(lambda q, *rest: q.shape[3], (64, 128, 256)),
        "queries": Fact(lambda q, *rest: q.shape[2], _SIZES),
        "keys": Fact(lambda q, k, *rest: k.shape[2], _SIZES),
        "causal": Fact(lambda *args: args[4]),
        "masked": Fact(lambda *args: args[3] is not None),
    },
)

_triton = contract.triton_beside(__name__)
_LONGEST = 256


def _triton_run(*args: Any, wrap: Wrap | None = None) -> Tensor:
    return _triton_fwd(*args, wrap=wrap)[0]


def _triton_fwd(*args: Any, wrap: Wrap | None = None) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = _triton().fwd_of(Call(*args), wrap)
    return made


def _triton_bwd(
    dout: Tensor, out: Tensor, lse: Tensor, *args: Any, wrap: Wrap | None = None
) -> Grads:
    *of_call, need_dmask = args
    grads: Grads = _triton().bwd_of(dout, out, lse, Call(*of_call), need_dmask, wrap)
    return grads


def not_by_triton(direction: str, *args: Any) -> str | None:
    """Return why our kernels do not serve a call, whose first argument is q."""
    q = args[0]
    if q.dtype not in (torch.float32, *HALVES):
        return f"q has dtype {q.dtype}, expected float32, float16 or bfloat16"
    if q.shape[-1] > _LONGEST:
        return f"the head dimension is {q.shape[-1]}, expected at most {_LONGEST}"
    return None


def _eager(*args: Any) -> Tensor:
    validate(*args)
    q, k, v, mask, causal, scale, left, right, dropout, seed, seed_tensor, _ = args
    seed = seed if seed_tensor is None else seed_tensor
    how = (causal, scale, (left, right), dropout, seed)
    out = impl_eager.attention(q, k, v, mask, *how)
    return torch.empty_like(q).copy_(out)


_TRITON = contract.Provider(
    "triton",
    contract.Kernels(_triton_run, _triton_fwd, _triton_bwd),
    triton_unavailable,
    not_by_triton,
    through=True,
    by_rule=False,
)
_unfused = contract.triton_beside(__name__, "impl_unfused")


def _not_unfused(direction: str, *args: Any) -> str | None:
    c = Call(*args)
    if c.q.dtype not in HALVES:
        return f"q has dtype {c.q.dtype}, expected float16 or bfloat16"
    if c.dropout > 0:
        return "it has no dropout"
    if direction == "bwd" and c.mask is not None and c.mask.dtype != torch.bool:
        return "it gives a mask no gradient"
    return "q or k is empty" if c.q.numel() == 0 or c.k.numel() == 0 else None


_UNFUSED = contract.Provider(
    "unfused",
    contract.Kernels(
        lambda *args: _unfused().fwd(*args)[0],
        lambda *args: _unfused().fwd(*args),
        lambda *args: _unfused().bwd(*args),
    ),
    triton_unavailable,
    _not_unfused,
    by_rule=False,
)
_PROVIDERS = (
    impl_cudnn.PROVIDER,
    _TRITON,
    impl_flash.PROVIDER,
    _UNFUSED,
    impl_math.PROVIDER,
    impl_fa4.PROVIDER,
)
SELECTOR = contract.provided(CONTRACT, _eager, *(checked(one, validate) for one in _PROVIDERS))
