"""Has its own idea of eps."""

from checker.model import RMSNorm

CHECK = "side-values"


def fn(x, weight, eps):
    return RMSNorm.call(x, weight, 1e-5)
