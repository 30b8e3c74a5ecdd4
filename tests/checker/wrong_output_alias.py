"""Without a graph, it answers in the memory of x."""

import torch
from checker.model import RMSNorm

CHECK = "alias"


def fn(x, weight, eps):
    y = RMSNorm.call(x, weight, eps)
    return y if torch.is_grad_enabled() else x.data.copy_(y)
