"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor


def conv_bn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return (h - mean) / sqrt(var + eps) * bn_weight + bn_bias, for fp64 inputs and h, the
    convolution; with relu no less than 0.
    """
    still = [0] * len(stride)
    h = torch.convolution(x, weight, bias, stride, padding, dilation, False, still, groups)
    channels = (-1, *(1,) * len(stride))
    if training:
        var, mean = torch.var_mean(h, (0, *range(2, h.dim())), correction=0, keepdim=True)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, var = running_mean.view(channels), running_var.view(channels)
    y = (h - mean) / torch.sqrt(var + eps)
    if bn_weight is not None:
        y = y * bn_weight.view(channels)
    if bn_bias is not None:
        y = y + bn_bias.view(channels)
    return torch.relu(y) if relu else y
