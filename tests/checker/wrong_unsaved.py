"""Keeps x for the backward behind autograd's back."""

from checker.model import RMSNorm, eager, gradients

CHECK = "saved"


class Unsaved(RMSNorm):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.kept = x, weight, eps
        return eager(x, weight, eps).contiguous()

    @staticmethod
    def backward(ctx, dy):
        return *gradients(dy, *ctx.kept), None


fn = Unsaved.call
