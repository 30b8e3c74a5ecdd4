"""Products in Triton, each with what follows it in one kernel; the operators bring the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from fuseline.core.device import triton_unavailable
from fuseline.core.inputs.layout import as_rows, dense
from fuseline.core.products.backend import Backend, flat
from fuseline.core.products.cublaslt import tf32

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# activation -> its name in the kernels, and whether what it is of is saved.
_ACTS = {
    None: ("none", False), "relu": ("relu", False),
    "tanh": ("gelu_tanh", True), "none": ("gelu_erf", True),
}  # fmt: skip
_SHARED = 227 << 10  # bytes that a program takes; Hopper's
_LARGEST = 2**31 - 2**10  # of a dimension, of which tiles are counted from the end


class Triton(Backend):
    """module() has the kernels' `product` and `act_grad`, which take `wrap`."""

    name = "triton"
    is_traced = True

    def __init__(self, module: Callable[[], Any], wrap: Any = None) -> None:
        self._module, self._wrap = module, wrap

    def tracing(self, wrap: Any) -> Backend:
        return self if wrap is None else Triton(self._module, wrap)

    def unavailable(self, device_type: str) -> str | None:
        return triton_unavailable(device_type)

    def refusal(self, direction: str, a: Tensor, b: Tensor, activation: str | None) -> str | None:
        if a.dtype not in _DTYPES:
            return f"a has dtype {a.dtype}, expected float32, float16 or bfloat16"
        if max(prod(a.shape[:-1]), a.shape[-1], b.shape[-1]) > _LARGEST:
            return f"a dimension is longer than {_LARGEST}"
        return _too_small(a.device) if a.is_cuda else None

    def gains_by(self, activation: str | None) -> bool:
        return False  # what it gains depends on the dtype and on how rows lie: rules say so

    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        act, saves = _ACTS[activation]
        shape = (*a.shape[:-1], b.shape[-1])
        if a.dim() > 3:
            a, b = (flat(a), b) if b.dim() == 2 else (a.flatten(0, -3), b.flatten(0, -3))
        given = (a.resolve_neg(), b.resolve_neg(), dense(bias), act, tf32(a.dtype), save and saves)
        y, h = self._module().product(*given, wrap=self._wrap)
        return y.view(shape), None if h is None else h.view(shape)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return self.forward(a, b, None, None, False)[0]

    def product_and_sums(self, a: Tensor, b: Tensor, of_a: bool) -> tuple[Tensor, Tensor]:
        rows = as_rows(a.mT if of_a else b)
        sums: Tensor = self._module().act_grad(rows, None, "none", True, wrap=self._wrap)[1]
        return self.product(a, b), sums

    def through(
        self, dy: Tensor, saved: Tensor, activation: str, sums: bool
    ) -> tuple[Tensor, Tensor | None]:
        act, rows = _ACTS[activation][0], (as_rows(dy), as_rows(saved))
        g, dbias = self._module().act_grad(*rows, act, sums, wrap=self._wrap)
        return g.view(dy.shape), dbias


@lru_cache(maxsize=64)
def _too_small(device: torch.device) -> str | None:
    """Return why no program of a product fits a GPU, or None, also of one that is not there."""
    if not torch.cuda.is_available():
        return None
    properties: Any = torch.cuda.get_device_properties(device)  # whose stub lacks this one
    has: int = properties.shared_memory_per_block_optin
    if has >= _SHARED:
        return None
    return f"it takes {_SHARED} bytes of shared memory, of which the GPU has {has}"
