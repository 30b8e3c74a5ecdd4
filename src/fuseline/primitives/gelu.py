"""GELU in torch operations that autograd, vmap and jvp can take apart."""

from __future__ import annotations

import torch
from torch import Tensor


def gelu(h: Tensor, approximate: str) -> Tensor:
    """Return h * Phi(h) or its approximation by tanh, with all digits where that is small."""
    if approximate == "tanh":
        # The smaller of sigmoid(v) and sigmoid(-v): autograd's derivatives of a sigmoid s are
        # made of 1 - s, which for s near 1 has no digits left.
        v, positive = 1.5957691216057308 * h * (1 + 0.044715 * h * h), h > 0
        small = torch.sigmoid(torch.where(positive, -v, v))
        return h * torch.where(positive, 1 - small, small)
    tail: Tensor = torch.special.erfc(-0.7071067811865476 * h)
    return h * (tail / 2)


def require_approximate(op: str, approximate: str) -> None:
    """Refuse what is no formula of GELU."""
    if approximate not in ("tanh", "none"):
        raise ValueError(f"{op}: approximate is {approximate!r}, expected 'tanh' or 'none'")
