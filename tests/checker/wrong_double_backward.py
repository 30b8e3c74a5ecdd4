"""Its gradient does not depend on x, as far as autograd can see."""

from checker.model import RMSNorm, gradients

CHECK = "gradgradcheck"


class DoubleBackward(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return *gradients(dy, x.detach(), weight, ctx.eps), None


fn = DoubleBackward.call
