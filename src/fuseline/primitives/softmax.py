"""Softmaxes and their gradients in torch operations that autograd, vmap and jvp can take apart."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives.rms import statistics_dtype


def softmax(x: Tensor, dim: int) -> Tensor:
    """Return exp(x) / sum(exp(x)), rounded once."""
    return torch.softmax(x, dim, dtype=statistics_dtype(x)).to(x.dtype)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """Return log(softmax(x)), rounded once."""
    return torch.log_softmax(x, dim, dtype=statistics_dtype(x)).to(x.dtype)


def gradient(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return y * (dy - sum(dy * y)), rounded once."""
    dtype = statistics_dtype(y)
    dy, p = dy.to(dtype), y.to(dtype)
    dx: Tensor = p * (dy - (dy * p).sum(dim, keepdim=True))
    return dx.to(y.dtype)


def log_gradient(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return dy - exp(y) * sum(dy), rounded once."""
    dtype = statistics_dtype(y)
    dy = dy.to(dtype)
    return (dy - y.to(dtype).exp() * dy.sum(dim, keepdim=True)).to(y.dtype)
