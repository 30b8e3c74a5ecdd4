"""GEGLU as models write it, in plain torch operations."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def geglu(
    a: Tensor,
    b: Optional[Tensor] = None,  # noqa: UP045 (TorchScript's syntax)
    approximate: str = "tanh",
) -> Tensor:
    """Return gelu(a) * b; without b of the halves [a | b] of the last dimension of a."""
    if b is None:
        a, b = a.chunk(2, dim=-1)
    return torch.nn.functional.gelu(a, approximate=approximate) * b
