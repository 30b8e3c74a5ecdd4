"""Keeps what the backward needs in one place for all calls."""

from checker.model import RMSNorm, eager, gradients

CHECK = "graphs"
LAST = {}


class GlobalContext(RMSNorm):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        LAST["call"] = x, weight, eps
        return eager(x, weight, eps).contiguous()

    @staticmethod
    def backward(ctx, dy):
        _ = ctx.saved_tensors
        return *gradients(dy, *LAST["call"]), None


fn = GlobalContext.call
