"""Rotary position embedding as models write it, in plain torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Return q and k with their pairs rotated: x * cos + rotate_half(x) * sin."""
    if cos.dim() == 4:
        cos, sin = ((t.mT if interleaved else t).flatten(-2) for t in (cos, sin))
    elif interleaved:
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    else:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = cos.size(-1)
    pairs = x[..., :width]
    if interleaved:
        other = torch.stack((-pairs[..., 1::2], pairs[..., ::2]), dim=-1).flatten(-2)
    else:
        other = torch.cat((-pairs[..., width // 2 :], pairs[..., : width // 2]), dim=-1)
    turned = (pairs * cos + other * sin).to(x.dtype)
    return turned if width == x.size(-1) else torch.cat((turned, x[..., width:]), dim=-1)
