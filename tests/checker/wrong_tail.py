"""Works in blocks of 32 columns and forgets those behind the last whole block."""

import torch
from checker.model import eager

CHECK = "forward"


def fn(x, weight, eps):
    whole = x.shape[-1] // 32 * 32
    y = eager(x, weight, eps)
    return torch.cat((y[..., :whole], x[..., whole:]), -1)
