"""Keeps one output buffer per shape and hands it out again and again."""

from checker.model import RMSNorm

CHECK = "alias"
BUFFERS = {}


def fn(x, weight, eps):
    y = RMSNorm.call(x, weight, eps)
    if y.requires_grad:
        return y
    key = y.shape, y.dtype
    return BUFFERS.setdefault(key, y.clone()).copy_(y)
