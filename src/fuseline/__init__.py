"""Fused PyTorch operators that run at memory bandwidth."""

from fuseline import nn
from fuseline.core.explain import explain_choice
from fuseline.ops import (
    add_rms_norm,
    bias_dropout_add,
    bias_gelu,
    double_softmax,
    horizontal_reduction_pointwise,
    horizontal_reduction_reduction,
    layer_norm,
    log_softmax,
    masked_softmax,
    matmul_add,
    matmul_add_gelu,
    matmul_add_relu,
    matmul_matmul,
    matmul_relu,
    mlp,
    norm_chain,
    pointwise_chain,
    rms_norm,
    rms_norm_fp8,
    softmax,
    softmax_backward,
)
from fuseline.patching import patch, patch_status, unpatch
from fuseline.takeover import disable, enable, enabled, status

__version__ = "0.1.0"
__all__ = [
    "add_rms_norm",
    "bias_dropout_add",
    "bias_gelu",
    "disable",
    "double_softmax",
    "enable",
    "enabled",
    "explain_choice",
    "horizontal_reduction_pointwise",
    "horizontal_reduction_reduction",
    "layer_norm",
    "log_softmax",
    "masked_softmax",
    "matmul_add",
    "matmul_add_gelu",
    "matmul_add_relu",
    "matmul_matmul",
    "matmul_relu",
    "mlp",
    "nn",
    "norm_chain",
    "patch",
    "patch_status",
    "pointwise_chain",
    "rms_norm",
    "rms_norm_fp8",
    "softmax",
    "softmax_backward",
    "status",
    "unpatch",
]
