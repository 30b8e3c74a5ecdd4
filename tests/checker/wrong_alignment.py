"""Rounds the pointer of x down to the vector width."""

from checker.model import eager

CHECK = "layouts"


def fn(x, weight, eps):
    if x.is_contiguous():
        aligned = x.storage_offset() // 4 * 4
        x = x.as_strided(x.shape, x.stride(), aligned)
    return eager(x, weight, eps).contiguous()
