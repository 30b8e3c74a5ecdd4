"""RMSNorm as pure PyTorch: an operator at a time, most of which read and write all of x."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension; halves in fp32 between."""
    h = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * rstd * weight.to(h.dtype)).to(x.dtype)
