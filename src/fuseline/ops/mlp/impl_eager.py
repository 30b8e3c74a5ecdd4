"""mlp as a model writes it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def mlp(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: str = "gelu"
) -> Tensor:
    """Return activation(x @ w1 + b1) @ w2 + b2."""
    h = torch.matmul(x, w1)
    h = h + b1.to(h.dtype)  # under autocast, as torch.addmm
    if activation == "relu":
        h = torch.relu(h)
    else:
        h = F.gelu(h, approximate="tanh" if activation == "gelu" else "none")
    y = torch.matmul(h, w2)
    return y + b2.to(y.dtype)
