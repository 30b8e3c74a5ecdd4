"""conv_bn as a model writes it."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.convolutions.formula import convolution


def conv_bn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],  # noqa: UP045  TorchScript knows no other form
    bn_weight: Optional[Tensor],  # noqa: UP045
    bn_bias: Optional[Tensor],  # noqa: UP045
    running_mean: Optional[Tensor],  # noqa: UP045
    running_var: Optional[Tensor],  # noqa: UP045
    training: bool,
    momentum: float,
    eps: float,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return the batch norm of a convolution and, with relu, its ReLU."""
    h = convolution(x, weight, bias, stride, padding, dilation, groups)
    y = F.batch_norm(h, running_mean, running_var, bn_weight, bn_bias, training, momentum, eps)
    return torch.relu(y) if relu else y
