"""Handles pairs of rows; with an odd number of rows the last is never written."""

import torch
from checker.model import RMSNorm, eager

CHECK = "stale"


class Unwritten(RMSNorm):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pairs = x.shape[0] // 2 * 2
        y[:pairs] = eager(x, weight, eps)[:pairs]
        return y


fn = Unwritten.call
