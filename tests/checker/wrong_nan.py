"""Hides NaN in its input."""

from checker.model import RMSNorm

CHECK = "nan"


def fn(x, weight, eps):
    return RMSNorm.call(x.nan_to_num(), weight, eps)
