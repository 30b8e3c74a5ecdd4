"""Sums the squares in the dtype of x."""

import torch
from checker.model import RMSNorm, rstd

CHECK = "forward"
DTYPES = (torch.bfloat16,)


def mean_square(x):
    total = torch.zeros_like(x[..., :1])
    for part in x.square().split(8, -1):
        total = total + part.sum(-1, keepdim=True)
    return total / x.shape[-1]


class Accumulation(RMSNorm):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        if x.dtype != torch.bfloat16:
            return (x * rstd(x, eps) * weight).contiguous()
        wide = x.float() * torch.rsqrt(mean_square(x).float() + eps)
        return (wide * weight).to(x.dtype).contiguous()


fn = Accumulation.call
