"""GELU of x + bias as the study writes it, in plain torch operations, and with erf."""

import torch
from torch import Tensor


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "tanh") -> Tensor:
    """Return h / 2 * (1 + tanh(sqrt(2 / pi) * (h + 0.044715 *
    h^3))) or h / 2 * (1 + erf(h / sqrt(2))).
    """
    h = x + bias
    if approximate == "tanh":
        return h * 0.5 * (1.0 + torch.tanh(0.7978845608028654 * h * (1 + 0.044715 * h * h)))
    return h * 0.5 * (1.0 + torch.erf(h * 0.7071067811865476))
