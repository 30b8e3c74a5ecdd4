"""Liger-Kernel: Triton kernels for the training of language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuselab.rivals.rival import Rival

# Multiplies by the weight in fp32 and rounds once, as we do; "llama" rounds before that, too.
CASTING_MODE = "gemma"
# The default has the backward write dx over dy, which is an input of ours.
IN_PLACE = False


def _bind_rms_norm(ops: Any) -> Callable[..., Tensor]:
    apply = ops.LigerRMSNormFunction.apply

    def rms_norm(
        x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
    ) -> Tensor:
        y: Tensor = apply(x, weight, eps, weight_offset, CASTING_MODE, IN_PLACE)
        return y

    return rms_norm


RMS_NORM = Rival("liger", "rms_norm", "liger-kernel", "liger_kernel.ops", _bind_rms_norm)
