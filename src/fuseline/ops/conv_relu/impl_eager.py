"""conv_relu as a model writes it."""

from typing import Optional

import torch
from torch import Tensor

from fuseline.core.convolutions.formula import convolution


def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],  # noqa: UP045  TorchScript knows no other form
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return max(conv(x, weight) + bias, 0)."""
    y = convolution(x, weight, bias, stride, padding, dilation, groups)
    return torch.relu(y)
