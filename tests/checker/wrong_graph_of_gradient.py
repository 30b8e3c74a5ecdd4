"""Takes another path, with a slip, where the gradient is to have a graph."""

import torch
from checker.model import RMSNorm

CHECK = "second-order"


class GraphOfGradient(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        dx, dweight, _ = RMSNorm.backward(ctx, dy)
        return dx * 1.01 if torch.is_grad_enabled() else dx, dweight, None


fn = GraphOfGradient.call
