"""Flushes small elements of its input to zero, in place."""

import torch
from checker.model import RMSNorm

CHECK = "unchanged"


def fn(x, weight, eps):
    torch.ops.aten.hardshrink.out(x.detach(), 1e-2, out=x.data)
    return RMSNorm.call(x, weight, eps)
