"""The operators, one folder each."""

from fuseline.ops.add_rms_norm import add_rms_norm
from fuseline.ops.add_rms_norm_fp8_dynamic import add_rms_norm_fp8_dynamic
from fuseline.ops.attention import attention
from fuseline.ops.attention_varlen import attention_varlen
from fuseline.ops.bias_dropout_add import bias_dropout_add
from fuseline.ops.bias_gelu import bias_gelu
from fuseline.ops.conv_add import conv_add
from fuseline.ops.conv_add_relu import conv_add_relu
from fuseline.ops.conv_bn import conv_bn
from fuseline.ops.conv_relu import conv_relu
from fuseline.ops.cross_entropy import cross_entropy
from fuseline.ops.double_softmax import double_softmax
from fuseline.ops.geglu import geglu
from fuseline.ops.horizontal_reduction_pointwise import horizontal_reduction_pointwise
from fuseline.ops.horizontal_reduction_reduction import horizontal_reduction_reduction
from fuseline.ops.layer_norm import layer_norm
from fuseline.ops.layer_norm_fp8 import layer_norm_fp8
from fuseline.ops.layer_norm_fp8_dynamic import layer_norm_fp8_dynamic
from fuseline.ops.linear_cross_entropy import linear_cross_entropy
from fuseline.ops.log_softmax import log_softmax
from fuseline.ops.masked_softmax import masked_softmax
from fuseline.ops.matmul_add import matmul_add
from fuseline.ops.matmul_add_gelu import matmul_add_gelu
from fuseline.ops.matmul_add_relu import matmul_add_relu
from fuseline.ops.matmul_matmul import matmul_matmul
from fuseline.ops.matmul_relu import matmul_relu
from fuseline.ops.mlp import mlp
from fuseline.ops.multihead_attention import multihead_attention
from fuseline.ops.norm_chain import norm_chain
from fuseline.ops.pointwise_chain import pointwise_chain
from fuseline.ops.rms_norm import rms_norm
from fuseline.ops.rms_norm_fp8 import rms_norm_fp8
from fuseline.ops.rms_norm_fp8_dynamic import rms_norm_fp8_dynamic
from fuseline.ops.rope import rope
from fuseline.ops.softmax import softmax
from fuseline.ops.softmax_backward import softmax_backward
from fuseline.ops.swiglu import swiglu

__all__ = [
    "add_rms_norm",
    "add_rms_norm_fp8_dynamic",
    "attention",
    "attention_varlen",
    "bias_dropout_add",
    "bias_gelu",
    "conv_add",
    "conv_add_relu",
    "conv_bn",
    "conv_relu",
    "cross_entropy",
    "double_softmax",
    "geglu",
    "horizontal_reduction_pointwise",
    "horizontal_reduction_reduction",
    "layer_norm",
    "layer_norm_fp8",
    "layer_norm_fp8_dynamic",
    "linear_cross_entropy",
    "log_softmax",
    "masked_softmax",
    "matmul_add",
    "matmul_add_gelu",
    "matmul_add_relu",
    "matmul_matmul",
    "matmul_relu",
    "mlp",
    "multihead_attention",
    "norm_chain",
    "pointwise_chain",
    "rms_norm",
    "rms_norm_fp8",
    "rms_norm_fp8_dynamic",
    "rope",
    "softmax",
    "softmax_backward",
    "swiglu",
]
