"""Never clears the gradient of weight where there are no rows to sum."""

import torch
from checker.model import RMSNorm

CHECK = "empty"


class Empty(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        dx, dweight, _ = RMSNorm.backward(ctx, dy)
        return dx, dweight if dy.numel() else torch.full_like(dweight, torch.nan), None


fn = Empty.call
