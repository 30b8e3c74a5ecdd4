"""Seeds torch's generator, which the rest of the program draws from."""

import torch
from checker.model import eager

CHECK = "global-state"


def fn(x, weight, eps):
    torch.manual_seed(0)
    return eager(x, weight, eps)
