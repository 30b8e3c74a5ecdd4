"""JAX: the same formulas, compiled by XLA, on the CPU.

On a GPU its programs run in a stream of JAX's own, which the lab's timers do not see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuselab.rivals.rival import HALF_AND_SINGLE, Rival

OPS = (
    "rms_norm", "add_rms_norm", "rms_norm_fp8", "rms_norm_fp8_dynamic",
    "add_rms_norm_fp8_dynamic", "layer_norm", "layer_norm_fp8", "layer_norm_fp8_dynamic",
    "softmax", "double_softmax", "log_softmax", "masked_softmax", "softmax_backward",
    "norm_chain", "pointwise_chain",
    "horizontal_reduction_pointwise", "horizontal_reduction_reduction", "bias_gelu",
    "bias_dropout_add", "conv_add", "conv_relu", "conv_add_relu", "conv_bn",
    "matmul_add", "matmul_relu", "matmul_add_relu", "matmul_add_gelu", "matmul_matmul", "mlp",
    "attention", "attention_varlen", "multihead_attention", "geglu", "rope", "swiglu",
    "cross_entropy", "linear_cross_entropy",
)  # fmt: skip


def _rival(op: str) -> Rival:
    def bind(twin: Any) -> Callable[..., Any]:
        fn: Callable[..., Any] = twin.implementation(op)
        return fn

    return Rival(
        name="jax",
        op=op,
        package="jax",
        module="fuselab.twin.call",
        bind=bind,
        dtypes=(*HALF_AND_SINGLE, torch.float64, torch.bool, torch.int64),
        device="cpu",
        asked=True,
    )


ALL = tuple(map(_rival, OPS))
