"""conv_add as a model writes it."""

from torch import Tensor

from fuseline.core.convolutions.formula import convolution


def conv_add(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return conv(x, weight) + bias."""
    return convolution(x, weight, bias, stride, padding, dilation, groups)
