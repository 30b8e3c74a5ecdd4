"""Counts the columns of long rows in 13 bits."""

from checker.model import eager

CHECK = "lengths"


def fn(x, weight, eps):
    y = eager(x, weight, eps)
    return y if x.shape[-1] <= 8192 else y.index_fill(-1, x.new_zeros(1).long(), 0.0)
