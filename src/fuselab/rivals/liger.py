"""Liger-Kernel: Triton kernels for the training of language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuselab.rivals.rival import HALF_AND_SINGLE, Rival, of_rows

# Multiplies by the weight in fp32 and rounds once, as we do; "llama" rounds before that, too.
CASTING_MODE = "gemma"
# Else the backward of RMSNorm writes dx over dy, which is an input of ours, and that of SwiGLU's
# packed form its gradient over what is saved.
IN_PLACE = False


def _bind_rms_norm(ops: Any) -> Callable[..., Tensor]:
    apply = ops.LigerRMSNormFunction.apply

    def rms_norm(
        x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
    ) -> Tensor:
        y: Tensor = apply(x, weight, eps, weight_offset, CASTING_MODE, IN_PLACE)
        return y

    return rms_norm


def _bind_layer_norm(ops: Any) -> Callable[..., Tensor]:
    apply = ops.LigerLayerNormFunction.apply

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y: Tensor = apply(x, weight, bias, eps)
        return y

    return layer_norm


def _limit_of_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> str | None:
    return "it needs a weight and a bias" if weight is None or bias is None else None


def _bind_softmax(ops: Any) -> Callable[..., Tensor]:
    apply = ops.LigerSoftmaxFunction.apply

    def softmax(x: Tensor, dim: int = -1) -> Tensor:
        y: Tensor = apply(x)
        return y

    return softmax


def _limit_of_softmax(x: Tensor, dim: int = -1) -> str | None:
    return None if dim in (-1, x.dim() - 1) else f"it knows the last dimension only, not {dim}"


def _bind_geglu(ops: Any) -> Callable[..., Tensor]:
    apply = ops.LigerGELUMulFunction.apply  # as LigerSiLUMulFunction

    def geglu(a: Tensor, b: Tensor, approximate: str = "tanh") -> Tensor:
        y: Tensor = apply(a, b)
        return y

    return geglu


def _limit_of_geglu(a: Tensor, b: Tensor | None = None, approximate: str = "tanh") -> str | None:
    if b is None:
        return "it knows a and b apart only"
    return None if approximate == "tanh" else "it knows the formula of tanh only"


def _bind_swiglu(ops: Any) -> Callable[..., Tensor]:
    # Its backward writes da over a and db over b, which the lab finds and says.
    apart = ops.LigerSiLUMulFunction.apply
    packed = ops.LigerFusedGateUpSiLUMulFunction.apply

    def swiglu(a: Tensor, b: Tensor | None = None) -> Tensor:
        y: Tensor = packed(a, IN_PLACE) if b is None else apart(a, b)
        return y

    return swiglu


def _bind_rope(ops: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    # It rotates in place what lies by tokens, which the lab finds and says.
    apply = ops.LigerRopeFunction.apply

    def rope(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
    ) -> tuple[Tensor, Tensor]:
        width = 2 * cos.shape[-1]  # else it takes tables for those of all elements
        out: tuple[Tensor, Tensor] = apply(q, k, cos, sin, None, 1, width)
        return out

    return rope


def _limit_of_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> str | None:
    return "it knows pairs that are a half apart only" if interleaved else None


def _bind_cross_entropy(ops: Any) -> Callable[..., Tensor]:
    # Its forward writes the gradient over the logits, which the lab finds and says.
    apply = ops.LigerCrossEntropyFunction.apply

    def cross_entropy(
        logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
        label_smoothing: float, z_loss: float, softcap: float | None,
    ) -> Tensor:  # fmt: skip
        how = ignore_index, z_loss, label_smoothing, reduction, softcap
        loss: Tensor = apply(*of_rows(logits, target), weight, *how)[0]
        return loss.view(target.shape) if reduction == "none" else loss

    return cross_entropy


def _limit_of_cross_entropy(
    weight: Tensor | None, reduction: str, z_loss: float, **others: Any
) -> str | None:
    if weight is not None and reduction == "mean" and z_loss:
        return "it divides z_loss by the number of rows, not by their weights"
    return None


def _bind_linear_cross_entropy(ops: Any) -> Callable[..., Tensor]:
    # Without z-loss apart; weight's gradient is added up in fp32, as ours.
    apply, rest = ops.LigerFusedLinearCrossEntropyFunction.apply, (False, torch.float32)

    def linear_cross_entropy(
        hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int,
        reduction: str, label_smoothing: float, z_loss: float, softcap: float | None,
    ) -> Tensor:  # fmt: skip
        rows, classes = of_rows(hidden, target)
        how = ignore_index, z_loss, label_smoothing, reduction, softcap
        loss: Tensor = apply(rows, weight, classes, bias, None, *how, *rest)[0]
        return loss.view(target.shape) if reduction == "none" else loss

    return linear_cross_entropy


def _rival(op: str, bind: Any, **limit: Any) -> Rival:
    return Rival("liger", op, "liger-kernel", "liger_kernel.ops", bind, **limit)


RMS_NORM = _rival("rms_norm", _bind_rms_norm)
LAYER_NORM = _rival("layer_norm", _bind_layer_norm, limit=_limit_of_layer_norm)
GEGLU = _rival("geglu", _bind_geglu, limit=_limit_of_geglu)
SWIGLU = _rival("swiglu", _bind_swiglu)
CROSS_ENTROPY = _rival(
    "cross_entropy",
    _bind_cross_entropy,
    limit=_limit_of_cross_entropy,
    dtypes=(*HALF_AND_SINGLE, torch.int64),
)
LINEAR_CROSS_ENTROPY = _rival(
    "linear_cross_entropy", _bind_linear_cross_entropy, dtypes=(*HALF_AND_SINGLE, torch.int64)
)
ROPE = _rival("rope", _bind_rope, limit=_limit_of_rope)
SOFTMAX = _rival("softmax", _bind_softmax, limit=_limit_of_softmax)
