"""Products by cuBLASLt with what follows them in its epilogues, by operators of the binary."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core import native
from fuseline.core.products.backend import Backend, Gradients, Needs, are_aligned, flat

_HALVES = (torch.float16, torch.bfloat16)
_LARGEST = 2**31 - 1


def tf32(dtype: torch.dtype) -> bool:
    """Whether torch's switches allow TF32 in products of a dtype now."""
    return (
        dtype == torch.float32 and torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32"
    )


@cache
def _operator(name: str) -> Any:
    """Return an operator of the binary as torch.ops has it, below OpOverload.__call__."""
    return getattr(torch.ops.fuseline, name).default._op


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) == (9, 0)


class CublasLt(Backend):
    name = "cublaslt"
    checks = True

    def unavailable(self, device_type: str) -> str | None:
        if device_type != "cuda":
            return f"it needs a on cuda, got {device_type}"
        if reason := native.status().why_not("cuda"):
            return reason
        handle = native.status().handle
        has = handle is not None and handle.fuseline_has_cublaslt()
        return None if has else "torch has not loaded libcublasLt"

    def refusal(self, direction: str, a: Tensor, b: Tensor, activation: str | None) -> str | None:
        size = a.numel()
        if size == 0 or b.numel() == 0:
            return "a or b is empty"
        if size > _LARGEST and max(size // a.shape[-1], a.shape[-1]) > _LARGEST:
            return f"a dimension of a is longer than {_LARGEST}"
        if direction == "bwd" or activation is None:
            return None
        return _relu(a, b) if activation == "relu" else _gelu(a, activation)

    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        name = {None: "none", "tanh": "gelu"}.get(activation, activation)
        if save and name == "gelu":
            if b.shape[-1] % 8:  # what GELU_AUX cannot write
                h, _ = self._forward(a, b, bias, "none")
                return F.gelu(h, approximate="tanh"), h
            return self._forward(a, b, bias, "gelu_aux")
        return self._forward(a, b, bias, name)[0], None

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return self._forward(a, b, None, "none")[0]

    def gradients(
        self,
        dy: Tensor,
        a: Tensor,
        b: Tensor,
        saved: Tensor | None,
        activation: str | None,
        needs: Needs,
    ) -> Gradients:
        da, db, dbias = _operator("_product_bwd")(
            dy, a, b, saved, activation or "", *needs, tf32(a.dtype)
        )
        if needs[2] and dbias.numel() == 0:
            dbias = flat(dy).sum(0)
        return da, db, dbias

    def _forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None
    ) -> tuple[Tensor, Tensor]:
        pair: tuple[Tensor, Tensor] = _operator("_product")(a, b, bias, activation, tf32(a.dtype))
        return pair


def _relu(a: Tensor, b: Tensor) -> str | None:
    """Return why the ReLU of a product is not one that keeps NaN, or None.

    Of cuBLAS 13's kernels on an H100 those that read a and b by TMA keep it, others make it 0
    (results/h100/products-2026-11-26).
    """
    if a.dtype not in _HALVES:
        return f"its ReLU of {a.dtype} makes 0 of NaN"
    if not are_aligned(a, b):
        return "its ReLU of rows that do not begin at multiples of 16 bytes makes 0 of NaN"
    known = _is_hopper(a.device)
    return None if known else "its ReLU was seen to keep NaN on compute capability 9.0 alone"


def _gelu(a: Tensor, approximate: str) -> str | None:
    if approximate == "none":
        return "its GELU is the formula by tanh, got approximate='none'"
    # Seen on an H100, cuBLAS 13: 1e-6 of float32 and 5e-11 of float64.
    return None if a.dtype in _HALVES else f"its GELU has the digits of half types, got {a.dtype}"
