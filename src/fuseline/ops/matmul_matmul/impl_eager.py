"""matmul_matmul as a model writes it."""

from typing import Optional

import torch
from torch import Tensor


def matmul_matmul(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    activation: Optional[str] = None,  # noqa: UP045  TorchScript
) -> Tensor:
    """Return activation(x @ w1) @ w2."""
    h = torch.matmul(x, w1)
    return torch.matmul(h if activation is None else torch.relu(h), w2)
