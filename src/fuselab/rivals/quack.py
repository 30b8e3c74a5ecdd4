"""QuACK: kernels in the CuTe DSL for Hopper and later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuselab.rivals.rival import Rival

# The least that cp.async copies.
WORD_BYTES = 4


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


RMS_NORM = Rival(
    "quack",
    "rms_norm",
    "quack-kernels",
    "quack.rmsnorm",
    _bind_rms_norm,
    limit=_limit_of_rms_norm,
)
