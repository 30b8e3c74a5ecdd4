"""Reads x as if its rows lay back to back."""

from checker.model import RMSNorm

CHECK = "layouts"


def fn(x, weight, eps):
    if x.dim() == 2 and x.stride(0) >= x.shape[1]:
        x = x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())
    return RMSNorm.call(x, weight, eps)
