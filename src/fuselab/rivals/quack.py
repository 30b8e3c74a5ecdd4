"""QuACK: kernels in the CuTe DSL for Hopper and later."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuselab.rivals.rival import HALF, HALF_AND_SINGLE, Rival, of_rows

# The least that cp.async copies.
WORD_BYTES = 4
# Its names of the activations that ours have.
_GELUS = {"tanh": "gelu_tanh_approx", "none": "gelu_erf"}
_BETWEEN = {"gelu": "gelu_tanh_approx", "gelu_none": "gelu_erf", "relu": "relu"}


def _bind_rms_norm(module: Any) -> Callable[..., Tensor]:
    kernel = module.rmsnorm

    def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        y: Tensor = kernel(x, weight, eps=eps)
        return y

    return rms_norm


def _limit_of_rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> str | None:
    if weight_offset:
        return "it adds nothing to the weight"
    # It copies in vectors that divide the row: single elements where that is odd. Version 0.6.5
    # does not build then, and its compiler says so without the reason.
    if x.shape[-1] % 2 and x.element_size() < WORD_BYTES:
        return f"it copies words of {WORD_BYTES} bytes, a row of {x.shape[-1]} halves is not whole"
    return None


def _bind_cross_entropy(module: Any) -> Callable[..., Tensor]:
    kernel = module.cross_entropy

    def cross_entropy(
        logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
        **others: Any,
    ) -> Tensor:  # fmt: skip
        how: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        loss: Tensor = kernel(*of_rows(logits, target), weight=weight, **how)
        return loss.view(target.shape) if reduction == "none" else loss

    return cross_entropy


def _limit_of_cross_entropy(
    label_smoothing: float, z_loss: float, softcap: float | None, **others: Any
) -> str | None:
    if label_smoothing or z_loss or softcap is not None:
        return "it knows neither label_smoothing nor z_loss nor softcap"
    return None


def _bind_linear(module: Any) -> Callable[..., Tensor]:
    kernel = module.linear_func

    def matmul_add(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = kernel(a, b.mT, bias)
        return y

    return matmul_add


def _bind_activated(activation: str) -> Callable[[Any], Callable[..., Tensor]]:
    def bind(module: Any) -> Callable[..., Tensor]:
        kernel = module.gemm_act

        def product(
            a: Tensor, b: Tensor, bias: Tensor | None = None, approximate: str = ""
        ) -> Tensor:
            given = (t for t in (a, b, bias) if t is not None)
            if torch.is_grad_enabled() and any(t.requires_grad for t in given):
                raise RuntimeError("gemm_act has no gradient")
            name = _GELUS[approximate] if approximate else activation
            rows = a.reshape(-1, a.shape[-1])
            y: Tensor = kernel(rows, b, bias=bias, activation=name, store_preact=False)[1]
            return y.view(*a.shape[:-1], b.shape[-1])

        return product

    return bind


def _bind_chain(module: Any) -> Callable[..., Tensor]:
    two = module.mlp_func
    one = importlib.import_module("quack.linear").linear_func

    def matmul_matmul(x: Tensor, w1: Tensor, w2: Tensor, activation: str | None = None) -> Tensor:
        if activation is None:
            y: Tensor = one(one(x, w1.mT), w2.mT)
        else:
            y = two(x, w1.mT, w2.mT, activation)
        return y

    return matmul_matmul


def _bind_mlp(module: Any) -> Callable[..., Tensor]:
    kernel = module.mlp_func

    def mlp(
        x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: str = "gelu"
    ) -> Tensor:
        y: Tensor = kernel(x, w1.mT, w2.mT, _BETWEEN[activation], bias1=b1, bias2=b2)
        return y

    return mlp


def _limit_of_product(**inputs: Any) -> str | None:
    b = inputs.get("b")
    return None if b is None or b.dim() == 2 else f"it takes one matrix b, not {b.dim()} dimensions"


def _product(op: str, module: str, bind: Callable[[Any], Callable[..., Any]]) -> Rival:
    how: dict[str, Any] = {"dtypes": HALF, "limit": _limit_of_product}
    return Rival("quack", op, "quack-kernels", module, bind, **how)


PRODUCTS = (
    _product("matmul_add", "quack.linear", _bind_linear),
    _product("matmul_relu", "quack.gemm_interface", _bind_activated("relu")),
    _product("matmul_add_relu", "quack.gemm_interface", _bind_activated("relu")),
    _product("matmul_add_gelu", "quack.gemm_interface", _bind_activated("")),
    _product("matmul_matmul", "quack.mlp", _bind_chain),
    _product("mlp", "quack.mlp", _bind_mlp),
)

RMS_NORM = Rival(
    "quack",
    "rms_norm",
    "quack-kernels",
    "quack.rmsnorm",
    _bind_rms_norm,
    limit=_limit_of_rms_norm,
)
CROSS_ENTROPY = Rival(
    "quack",
    "cross_entropy",
    "quack-kernels",
    "quack.cross_entropy",
    _bind_cross_entropy,
    dtypes=(*HALF_AND_SINGLE, torch.int64),
    limit=_limit_of_cross_entropy,
)
