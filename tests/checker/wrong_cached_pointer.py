"""Remembers its results by the address of x."""

import torch
from checker.model import RMSNorm

CHECK = "cached"
RESULTS = {}


def fn(x, weight, eps):
    if torch.is_grad_enabled():
        return RMSNorm.call(x, weight, eps)
    key = x.data_ptr(), weight.data_ptr(), x.shape, x.stride(), x.dtype, eps
    if key not in RESULTS:
        RESULTS[key] = RMSNorm.call(x, weight, eps)
    return RESULTS[key].clone()
