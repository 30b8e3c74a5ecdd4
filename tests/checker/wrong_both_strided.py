"""Reads the incoming gradient with the strides of x, right while one of the two is contiguous."""

from checker.model import RMSNorm, gradients

CHECK = "layouts"


class BothStrided(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        if not x.is_contiguous() and not dy.is_contiguous():
            dy = dy.flip(-1)
        return *gradients(dy, x, weight, ctx.eps), None


fn = BothStrided.call
