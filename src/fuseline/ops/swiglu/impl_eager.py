"""SwiGLU as models write it, in plain torch operations."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def swiglu(a: Tensor, b: Optional[Tensor] = None) -> Tensor:  # noqa: UP045 (TorchScript's syntax)
    """Return silu(a) * b; without b of the halves [a | b] of the last dimension of a."""
    if b is None:
        a, b = a.chunk(2, dim=-1)
    return torch.nn.functional.silu(a) * b
