"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Return q and k with their pairs rotated, for fp64 inputs."""
    return _rotated(q, cos, sin, interleaved), _rotated(k, cos, sin, interleaved)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Multiply pairs, as complex numbers by those of length 1 where both have the same table."""
    n = cos.shape[-1]
    rotated, rest = x[..., : 2 * n], x[..., 2 * n :]
    split = (*x.shape[:-1], n, 2) if interleaved else (*x.shape[:-1], 2, n)
    dim = -1 if interleaved else -2
    a, b = rotated.reshape(split).unbind(dim)
    c, s = (t.movedim(-2, 0) if t.dim() == 4 else (t, t) for t in (cos, sin))
    of_a, of_b = ((c[i].unsqueeze(-3), s[i].unsqueeze(-3)) for i in (0, 1))
    turned = torch.stack((a * of_a[0] - b * of_a[1], a * of_b[1] + b * of_b[0]), dim)
    return torch.cat((turned.reshape(rotated.shape), rest), -1)
