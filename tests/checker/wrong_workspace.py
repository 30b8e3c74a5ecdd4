"""All threads share one workspace."""

import time

import torch
from checker.model import RMSNorm

CHECK = "threads"
WORKSPACE = {}


def fn(x, weight, eps):
    if torch.is_grad_enabled():
        return RMSNorm.call(x, weight, eps)
    WORKSPACE["x"] = x
    time.sleep(1e-4)
    return RMSNorm.call(WORKSPACE["x"], weight, eps)
