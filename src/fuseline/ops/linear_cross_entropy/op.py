"""The contract of linear_cross_entropy: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core.inputs import arguments
from fuseline.core.products.backend import flat
from fuseline.core.registration import contract, operator
from fuseline.core.selection.rules import DTYPE, Fact
from fuseline.core.selection.select import ASK
from fuseline.ops.cross_entropy import op as losses
from fuseline.ops.linear_cross_entropy import impl_chunks, impl_eager
from fuseline.primitives.rms import statistics_dtype

_NAME = "linear_cross_entropy"
_MADE = 5  # what the forward gives beside the loss
_NEEDS = "bool need_dhidden, bool need_dweight, bool need_dbias"
_HOW = (
    "int ignore_index, str reduction, float label_smoothing, float z_loss, float? softcap, "
) + _NEEDS
_GIVEN = "Tensor hidden, Tensor weight, Tensor target, Tensor? bias, "
_NOTHING = (False, False, False)
# Logits on a CPU that chunks save no memory worth their calls of: 20 x 256 x 64 fp32, forward and
# backward, 93 us of all at once and 352 by chunks. More go by chunks for the memory.
_FEW = 1 << 20


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """Return the cross-entropy of a linear layer's logits without memory for all of them.

    l = cross_entropy(hidden @ weight.mT + bias, target, ...), by chunks of rows

    hidden    (..., H), float64, float32, float16 or bfloat16; any layout.
    weight    (V, H), of hidden's dtype, as torch.nn.Linear's: V classes.
    target    (...), int64 or int32, as cross_entropy's.
    bias      (V,), of hidden's dtype; None: 0.
    ignore_index, reduction, label_smoothing, z_loss, softcap
              as cross_entropy's.
    impl      "auto", or one of "chunks" (torch's products and cross_entropy's kernels), "eager"
              (torch's own, with all logits and fp32 copies of half types).

    Returns a scalar or, for "none", the target's shape; float32 (float64 for float64). Logits are
    rounded to hidden's dtype, as those of a linear layer. For "mean" and "sum" the forward makes
    the gradients that are wanted, those of the sum of losses, and backward multiplies them; for
    "none" backward computes the logits again. dweight and dbias are added up in float32 for half
    types, kept so until backward, and rounded once; of bfloat16 on a GPU, where one chunk has all
    rows, they are rounded twice. Memory is taken for a chunk of logits, over which their gradient
    is written: as much as float32 sums of dweight take, or 1 GiB, on a GPU; half of weight's, or
    1 MiB, on a CPU; 1024 and 256 rows at least. On a CPU "auto" computes up to 2^20 logits, but of
    float16, at once, by cross_entropy. A gradient of a gradient, forward mode and torch.func's
    transforms take the formula, with all logits. Under autocast tensors are cast as F.linear casts
    them.
    Raises TypeError (dtype), ValueError (shape, device, numbers, reduction, impl) or RuntimeError
    (an implementation that cannot run here) before anything is launched.
    Source: torch.nn.functional.linear_cross_entropy (torch >= 2.13); Liger-Kernel,
    arXiv:2410.10989.
    """
    how = (ignore_index, reduction, label_smoothing, z_loss, softcap)
    given = (hidden, weight, target, bias)
    if has_torch_function(given):  # torch.fx's proxies, and subclasses
        every: tuple[Any, ...] = (*given, *how, impl)
        return handle_torch_function(linear_cross_entropy, given, *every)  # type: ignore[no-any-return]
    given = operator.lowered(*given)
    # A graph asks first: a look at symbolic sizes would be a guard.
    if not torch.compiler.is_compiling() and impl in ("auto", ASK) and _are_few(*given):
        return _at_once(impl, given, how)
    args = (*given, *how, *_NOTHING)
    loss: Tensor = operator.call(SELECTOR, validate, linear_cross_entropy, impl, *args)
    return loss


def _are_few(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> bool:
    """Whether a CPU computes all logits at once: of tensors that F.linear takes as `validate` does.

    Not of fp16: the gradient of a mean, divided by the number of rows, would lose its least.
    """
    try:
        return (
            hidden.is_cpu
            and hidden.dtype != torch.float16
            and hidden.dim() > 0
            and weight.dim() == 2
            and hidden.numel() * weight.shape[0] <= _FEW * hidden.shape[-1]
            and (bias is None or bias.shape == weight.shape[:1])
        )
    except AttributeError:  # of what is no tensor
        return False


def _at_once(impl: str, given: tuple[Any, ...], how: tuple[Any, ...]) -> Tensor:
    """Return the loss by two operators, each of which saves what it needs."""
    hidden, weight, target, bias = given
    try:
        return losses.cross_entropy(F.linear(hidden, weight, bias), target, None, *(*how, impl))
    except (IndexError, RuntimeError, TypeError, ValueError):
        validate(*given, *how)
        impl_chunks.require_classes(target, weight.shape[0], how[0])
        raise


def validate(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *how: Any
) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, hidden, "hidden")
    arguments.require_like(_NAME, "weight", weight, hidden, "hidden")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{_NAME}: weight has shape {tuple(weight.shape)}, expected "
            f"(classes, {hidden.shape[-1]}), the columns of hidden"
        )
    losses.require_classes(_NAME, "weight", weight, weight.shape[0])
    losses.require_target(_NAME, target, hidden, "hidden")
    if bias is not None:
        arguments.require_like(_NAME, "bias", bias, hidden, "hidden")
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"{_NAME}: bias has shape {tuple(bias.shape)}, expected {tuple(weight.shape[:1])}, "
                "a number for each row of weight"
            )
    losses.require_options(_NAME, *how[:5])


def _sizes(
    hidden: Tensor, weight: Tensor, reduction: str, needs: tuple[bool, ...]
) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of what the forward gives: the loss, and what is saved."""
    rows, wide, none = hidden.shape[:-1], statistics_dtype(hidden), torch.Size((0,))
    kept = impl_chunks.sums_dtype(flat(hidden), weight)
    apart = reduction == "none"
    dhidden, dweight, dbias = (need and not apart for need in needs)
    return {
        "loss": (rows if apart else torch.Size(()), wide),
        "stats": (torch.Size((*rows, 2)) if apart else torch.Size((0, 2)), wide),
        "total": (torch.Size((2,)), torch.float64),
        "dhidden": (hidden.shape if dhidden else none, hidden.dtype),
        "dweight": (weight.shape, kept) if dweight else (none, hidden.dtype),
        "dbias": (weight.shape[:1], kept) if dbias else (none, hidden.dtype),
    }


def _fake(*args: Any) -> Tensor:
    return _fake_fwd(*args)[0]


def _fake_fwd(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *how: Any
) -> tuple[Tensor, ...]:
    validate(hidden, weight, target, bias, *how)
    sizes = _sizes(hidden, weight, how[1], how[5:])
    return tuple(hidden.new_empty(size, dtype=dtype) for size, dtype in sizes.values())


def _fake_bwd(
    dloss: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    saved, how = rest[:_MADE], rest[_MADE:]
    validate(hidden, weight, target, bias, *how)
    sizes = _sizes(hidden, weight, how[1], how[5:])
    for given, (name, (size, dtype)) in zip((dloss, *saved), sizes.items(), strict=True):
        called = "dloss" if name == "loss" else name
        arguments.require_exactly(_NAME, called, given, size, dtype, hidden.device)
    shapes = (hidden.shape, weight.shape, weight.shape[:1])
    found = zip(shapes, how[5:], strict=True)
    return tuple(hidden.new_empty(shape if need else (0,)) for shape, need in found)


def decomposed(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *how: Any
) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(hidden, weight, target, bias, *how)
    return losses.decomposed(F.linear(hidden, weight, bias), target, None, *how[:5])


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class LinearCrossEntropy(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *how: Any
        ) -> Tensor:
            given = (hidden, weight, target, bias)
            ctx.how = (*how[:5], *(ctx.needs_input_grad[i] for i in (0, 1, 3)))
            loss: Tensor
            loss, *saved = fwd(*given, *ctx.how)
            ctx.save_for_backward(*given, *saved)
            return loss

        @staticmethod
        def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
            hidden, weight, target, bias, *saved = ctx.saved_tensors
            given, needs = (hidden, weight, target, bias), ctx.needs_input_grad
            if contract.wants_graph((dloss, hidden, weight, bias)):
                args = (*given, *ctx.how)
                return contract.differentiable_backward(decomposed, args, needs, dloss)
            dhidden, dweight, dbias = bwd(dloss, *given, *saved, *ctx.how)
            found = (dhidden, dweight, None, dbias)
            grads = (d if need else None for d, need in zip(found, needs, strict=False))
            return *grads, *(None for _ in ctx.how)

    return LinearCrossEntropy


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    """Call the operator for each element of the batch, so that memory is for chunks there too."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        pairs = list(zip(args, in_dims, strict=True))

        def one(i: int) -> list[Any]:
            return [a if dim is None else a.select(dim, i) for a, dim in pairs]

        if info.batch_size:
            return torch.stack([op(*one(i)) for i in range(info.batch_size)]), 0
        rows = [n for i, n in enumerate(args[2].shape) if i != in_dims[2]]
        shape = (0, *rows) if args[5] == "none" else (0,)
        return args[0].new_empty(shape, dtype=statistics_dtype(args[0])), 0

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args=_GIVEN + _HOW,
    fwd_returns=f"({', '.join(['Tensor'] * (1 + _MADE))})",
    bwd_args=f"Tensor dloss, {_GIVEN}Tensor stats, Tensor total, Tensor dhidden, Tensor dweight, "
    f"Tensor dbias, {_HOW}",
    bwd_returns="(Tensor, Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    function=_function,
    vmap=_vmap,
    facts={DTYPE: Fact(lambda hidden, *rest: hidden.dtype)},
)


def _eager(*args: Any) -> Tensor:
    validate(*args)
    return impl_eager.linear_cross_entropy(*args[:-3])


def _run(*args: Any) -> Tensor:
    return _fwd(*args[:-3], *_NOTHING)[0]


def _fwd(*args: Any) -> tuple[Tensor, ...]:
    validate(*args)
    return impl_chunks.forward(*args)


SELECTOR = contract.provided(
    CONTRACT,
    _eager,
    contract.Provider(
        "chunks",
        contract.Kernels(_run, _fwd, impl_chunks.backward),
        impl_chunks.unavailable,
        by_rule=False,
    ),
)
