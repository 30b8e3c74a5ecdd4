"""Drops incoming gradients that are NaN, as a guard against bad steps would."""

from checker.model import RMSNorm, gradients

CHECK = "incoming"


class HiddenNan(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return *gradients(dy.nan_to_num(0.0), x, weight, ctx.eps), None


fn = HiddenNan.call
