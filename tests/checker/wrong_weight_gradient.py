"""Leaves rstd out of the gradient of weight."""

from checker.model import RMSNorm, gradients

CHECK = "gradient:weight"


class WeightGradient(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, dweight = gradients(dy, x, weight, ctx.eps)
        return dx, (dy * x).reshape(-1, x.shape[-1]).sum(0).to(dweight.dtype), None


fn = WeightGradient.call
