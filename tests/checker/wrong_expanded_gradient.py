"""Takes an output gradient of stride 0 for the ones of y.sum().backward()."""

import torch
from checker.model import RMSNorm

CHECK = "expanded-gradient"


class ExpandedGradient(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        if dy.numel() > 1 and not any(dy.stride()):
            dy = torch.ones_like(dy)
        return RMSNorm.backward(ctx, dy)


fn = ExpandedGradient.call
