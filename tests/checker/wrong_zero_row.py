"""Divides by the norm of the row, with eps nowhere near a row of zeros."""

import torch
from checker.model import eager

CHECK = "zeros"


def fn(x, weight, eps):
    y = eager(x, weight, eps)
    return torch.where((x == 0).all(-1, keepdim=True), torch.nan, y)
