"""What tests of products share: calls, their oracle, and arguments that lie anyhow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fuseline
from fuseline import table

OPS = ("matmul_add", "matmul_relu", "matmul_add_relu", "matmul_add_gelu")
SPECS = {name: spec for name, spec in table.load().items() if name in OPS}


def arguments(op: str, a: Tensor, b: Tensor, bias: Tensor, approximate: str = "tanh") -> list[Any]:
    """Return the arguments of an operator."""
    args: list[Any] = [a, b] if op == "matmul_relu" else [a, b, bias]
    return [*args, approximate] if op == "matmul_add_gelu" else args


def results(op: str, args: list[Any], dy: Tensor, **options: Any) -> list[Tensor]:
    """Return the output and the gradients of the tensors."""
    given = [t.detach().requires_grad_() if isinstance(t, Tensor) else t for t in args]
    y = getattr(fuseline, op)(*given, **options)
    leaves = [t for t in given if isinstance(t, Tensor)]
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def oracle(op: str, args: list[Any], dy: Tensor) -> list[Tensor]:
    """Return the same in fp64."""
    given = [t.detach().double().requires_grad_() if isinstance(t, Tensor) else t for t in args]
    y = SPECS[op].reference(*given)
    leaves = [t for t in given if isinstance(t, Tensor)]
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.double())]


def error(found: Tensor, wanted: Tensor) -> float:
    """Return the largest error in eps of the dtype and of the largest element."""
    if wanted.numel() == 0:
        return 0.0
    largest = wanted.abs().max().clamp_min(1e-30)
    return float((found.double() - wanted).abs().max() / largest / torch.finfo(found.dtype).eps)


def torch_reads_past_rows() -> bool:
    """Whether a NaN between rows of bfloat16 gets into torch's own product on this processor."""
    rows = torch.full((3, 9, 12), torch.nan, dtype=torch.bfloat16)
    rows[..., :11] = 1.0
    product = rows[..., :11] @ torch.ones(11, 24, dtype=torch.bfloat16)
    return bool(product.isnan().any())
