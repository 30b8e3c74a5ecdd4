"""Launches a block a row along y, where a grid has 65535: dweight lacks the rows beyond."""

from checker.model import RMSNorm, gradients

CHECK = "crowd"


class Crowd(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, _ = gradients(dy, x, weight, ctx.eps)
        n = x.shape[-1]
        _, dweight = gradients(dy.reshape(-1, n)[:65535], x.reshape(-1, n)[:65535], weight, ctx.eps)
        return dx, dweight, None


fn = Crowd.call
