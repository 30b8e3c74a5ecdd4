"""The contract of cross_entropy: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fuseline.core import native
from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import (
    move_batch_dim_to_front,
    move_weight_batch_to_front,
    unbatched,
)
from fuseline.core.registration import contract, operator
from fuseline.core.registration.variant import applied, guarded
from fuseline.ops.cross_entropy import impl_eager
from fuseline.primitives.rms import statistics_dtype

_NAME = "cross_entropy"
_REDUCTIONS = ("none", "mean", "sum")
_TARGETS = (torch.int64, torch.int32)
_MOST_CLASSES = 2**31 - 1
_OPS = torch.ops.fuseline
_OVER = "_cross_entropy_bwd_"
Results = tuple[Tensor, Tensor, Tensor]


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    impl: str = "auto",
    inplace_backward: bool = False,
) -> Tensor:
    """Return the cross-entropy of rows of logits and the indices of their classes.

    l = (1 - s) * w[t] * (lse - z[t]) + s / V * sum(w * (lse - z)) + z_loss * lse^2, with
    z = softcap * tanh(logits / softcap), or the logits; lse = log(sum(exp(z))); s the smoothing.

    logits           (..., V): the classes are the last dimension, not the second as in torch;
                     float64, float32, float16 or bfloat16; any layout. One copy at most, none if
                     the last stride is 1 and the leading dimensions collapse to one row stride.
    target           (...), int64 or int32: 0 to V - 1, or ignore_index. Another one raises a
                     RuntimeError on a CPU; on a GPU it makes the row's loss and gradient NaN.
    weight           (V,), w, of the logits' dtype or float32; None: 1 each.
    ignore_index     the target of rows whose loss and gradient are 0, whatever their logits.
    reduction        "mean", the sum over the sum of w[t] (all ignored: NaN); "sum"; "none".
    label_smoothing  0 to 1.
    z_loss           finite, not negative; the term is divided by what divides the mean.
    softcap          finite, positive; None: none.
    impl             "auto", or one of "cuda", "cpu", "eager" (torch's own, which makes fp32 copies
                     of half types).
    inplace_backward  permit backward to write the gradient over the logits, which saves their size
                     of memory. It does so in eager code, of contiguous logits that are the result
                     of an operation; whoever else saved them for backward is refused by autograd.

    Returns a scalar or, for "none", the target's shape; float32 (float64 for float64), in which all
    is computed: torch's result for logits.float(). The gradient of logits is contiguous and of
    their dtype, rounded once; weight has none. Saved for backward: logits, target, weight and two
    numbers a row, the largest z and the logarithm of the sum relative to it. Deterministic.
    Raises TypeError (dtype), ValueError (shape, device, numbers, reduction, impl) or RuntimeError
    (an implementation that cannot run here) before anything is launched.
    Source: torch.nn.functional.cross_entropy; z_loss: PaLM, arXiv:2204.02311; softcap: Gemma 2,
    arXiv:2408.00118.
    """
    how = (ignore_index, reduction, label_smoothing, z_loss, softcap)
    args = (logits, target, weight, *how)
    if inplace_backward and _may_write_over(logits, impl):
        return _writing_over(*operator.admitted(validate, *args))  # type: ignore[no-any-return]
    loss: Tensor = operator.call(SELECTOR, validate, cross_entropy, impl, *args)
    return loss


def validate(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, logits, "logits")
    require_classes(_NAME, "logits", logits, logits.shape[-1])
    require_target(_NAME, target, logits, "logits")
    arguments.require_weight(_NAME, weight, logits, "logits")
    require_options(_NAME, ignore_index, reduction, label_smoothing, z_loss, softcap)


def require_classes(op: str, name: str, t: Tensor, classes: int) -> None:
    """Refuse a tensor of no classes, or of more than kernels count."""
    if not 1 <= classes <= _MOST_CLASSES:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, expected 1 to 2^31 - 1 classes")


def require_target(op: str, target: Tensor, x: Tensor, name: str) -> None:
    """Refuse a target that has not a class for each row of x (called `name`)."""
    arguments.require_tensor(op, target, "target", _TARGETS)
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"{op}: target has shape {tuple(target.shape)}, expected "
            f"{tuple(x.shape[:-1])}, that of {name} without its last dimension"
        )
    if target.device != x.device:
        raise ValueError(f"{op}: target is on {target.device}, expected {x.device}, that of {name}")


def require_options(
    op: str,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> None:
    """Refuse what the formula does not take."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, torch.SymInt)):
        came = type(ignore_index).__name__
        raise TypeError(f"{op}: ignore_index is a {came}, expected an int")
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{op}: reduction is {reduction!r}, expected 'none', 'mean' or 'sum'")
    if not 0.0 <= arguments.require_number(op, "label_smoothing", smoothing) <= 1.0:
        raise ValueError(f"{op}: label_smoothing is {smoothing}, expected 0 to 1")
    if not 0.0 <= arguments.require_number(op, "z_loss", z_loss) < math.inf:
        raise ValueError(f"{op}: z_loss is {z_loss}, expected a finite number >= 0")
    if softcap is None:
        return
    if not 0.0 < arguments.require_number(op, "softcap", softcap, "a float or None") < math.inf:
        raise ValueError(f"{op}: softcap is {softcap}, expected a finite number > 0, or None")


def _sizes(logits: Tensor, reduction: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of what the forward gives: the loss, and what is saved."""
    rows, dtype = logits.shape[:-1], statistics_dtype(logits)
    return {
        "loss": (rows if reduction == "none" else torch.Size(()), dtype),
        "stats": (torch.Size((*rows, 2)), dtype),
        "total": (torch.Size((2,)), torch.float64),
    }


def _fake(logits: Tensor, target: Tensor, weight: Tensor | None, *how: Any) -> Tensor:
    return _fake_fwd(logits, target, weight, *how)[0]


def _fake_fwd(logits: Tensor, target: Tensor, weight: Tensor | None, *how: Any) -> Results:
    validate(logits, target, weight, *how)
    sizes = _sizes(logits, how[1])
    loss, stats, total = (logits.new_empty(size, dtype=dtype) for size, dtype in sizes.values())
    return loss, stats, total


def _fake_bwd(
    dloss: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    stats: Tensor,
    total: Tensor,
    *how: Any,
) -> Tensor:
    validate(logits, target, weight, *how)
    sizes = _sizes(logits, how[1])
    for given, (name, (size, dtype)) in zip((dloss, stats, total), sizes.items(), strict=True):
        called = "dloss" if name == "loss" else name
        arguments.require_exactly(_NAME, called, given, size, dtype, logits.device)
    return logits.new_empty(logits.shape)


def _losses(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row and the weight of its target, of any weight that broadcasts."""
    z = logits.to(statistics_dtype(logits))
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    kept = target != ignore_index
    z = torch.where(kept.unsqueeze(-1), z, 0.0)
    known = (target >= 0) & (target < z.shape[-1])
    at = torch.where(known, target, 0).long().unsqueeze(-1)
    costs = -torch.log_softmax(z, -1)
    loss, own = costs.gather(-1, at).squeeze(-1), torch.ones_like(z[..., 0])
    if weight is not None:
        weight = weight.to(z.dtype).expand(z.shape)
        own = weight.gather(-1, at).squeeze(-1)
        costs = costs * weight
    loss = (1.0 - smoothing) * own * loss
    if smoothing != 0.0:
        loss = loss + smoothing / z.shape[-1] * costs.sum(-1)
    if z_loss != 0.0:
        loss = loss + z_loss * torch.logsumexp(z, -1).square()
    loss = torch.where(kept, torch.where(known, loss, math.nan), 0.0)
    return loss, torch.where(kept & known, own, 0.0)


def _reduced(losses: Tensor, own: Tensor, reduction: str, first: int = 0) -> Tensor:
    """Return the losses reduced over the dimensions from `first` on."""
    dims = list(range(first, losses.dim()))
    if reduction == "none" or (first and not dims):
        return losses / own if reduction == "mean" else losses
    total = losses.sum(dims)
    return total / own.sum(dims) if reduction == "mean" else total


def decomposed(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    how = ignore_index, reduction, label_smoothing, z_loss, softcap
    validate(logits, target, weight, *how)
    losses, own = _losses(logits, target, weight, ignore_index, label_smoothing, z_loss, softcap)
    return _reduced(losses, own, reduction)


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce each element of the batch by itself."""

    def rule(
        info: Any,
        in_dims: Any,
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        reduction: str,
        *how: Any,
    ) -> Any:
        logits_dim, target_dim, weight_dim, *_ = in_dims
        if info.batch_size:
            one = None if weight is None else unbatched(weight, weight_dim)
            tensors = unbatched(logits, logits_dim), unbatched(target, target_dim), one
            validate(*tensors, ignore_index, reduction, *how)
        logits = move_batch_dim_to_front(logits, logits_dim, info.batch_size)
        target = move_batch_dim_to_front(target, target_dim, info.batch_size)
        if weight is None or weight_dim is None:
            if reduction == "none":
                return op(logits, target, weight, ignore_index, reduction, *how), 0
            losses = op(logits, target, weight, ignore_index, "none", *how)
            own = _weights_of(target, weight, ignore_index, losses)
        else:
            weight = move_weight_batch_to_front(weight, weight_dim, logits.dim())
            losses, own = _losses(logits, target, weight, ignore_index, *how)
        return _reduced(losses, own, reduction, first=1), 0

    return rule


def _weights_of(target: Tensor, weight: Tensor | None, ignore_index: int, losses: Tensor) -> Tensor:
    """Return the weight of each target, 0 of those that are ignored."""
    kept = target != ignore_index
    if weight is None:
        return kept.to(losses.dtype)
    own = weight.to(losses.dtype)[torch.where(kept, target, 0).long()]
    return torch.where(kept, own, 0.0)


def _may_write_over(logits: Tensor, impl: str) -> bool:
    """Whether the binary's backward can give its result in the place of the logits."""
    if is_compiling() or type(logits) is not Tensor or impl not in ("auto", logits.device.type):
        return False
    made = logits.requires_grad and not logits.is_leaf and logits.is_contiguous()
    return made and native.why_no_kernel(f"fuseline::{_OVER}", logits.device.type) is None


def _fwd(*args: Any) -> Results:
    made: Results = _OPS._cross_entropy_fwd(*args)
    return made


def _bwd_over(dloss: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    over = logits.detach()
    getattr(_OPS, _OVER)(dloss, over, *rest)
    torch.autograd.graph.increment_version(logits)  # below autograd nothing counts it
    return over


CONTRACT = contract.Contract(
    name=_NAME,
    args=(
        "Tensor logits, Tensor target, Tensor? weight, int ignore_index, str reduction, "
        "float label_smoothing, float z_loss, float? softcap"
    ),
    fwd_returns="(Tensor, Tensor, Tensor)",
    bwd_args=(
        "Tensor dloss, Tensor logits, Tensor target, Tensor? weight, Tensor stats, Tensor total, "
        "int ignore_index, str reduction, float label_smoothing, float z_loss, float? softcap"
    ),
    bwd_returns="Tensor",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(("loss", "stats", "total"), ("logits",)),
    vmap=_vmap,
)


def _eager(logits: Tensor, target: Tensor, weight: Tensor | None, *how: Any) -> Tensor:
    validate(logits, target, weight, *how)
    return impl_eager.cross_entropy(logits, target, weight, *how)


SELECTOR = contract.implementations(CONTRACT, None, _eager)

assert CONTRACT.function is not None
_writing_over = guarded(
    _OPS.cross_entropy, _OPS._cross_entropy, applied(CONTRACT.function(_fwd, _bwd_over))
)
