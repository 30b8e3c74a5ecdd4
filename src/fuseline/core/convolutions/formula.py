"""A convolution as a model writes it, of any rank."""

from typing import Optional

import torch
from torch import Tensor


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],  # noqa: UP045  TorchScript knows no other form
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return torch's convolution of one to three spatial dimensions."""
    if x.dim() == 3:
        return torch.conv1d(x, weight, bias, stride, padding, dilation, groups)
    if x.dim() == 4:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return torch.conv3d(x, weight, bias, stride, padding, dilation, groups)
