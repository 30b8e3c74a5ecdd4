"""What the tests of enable() share: where they run, what was served, results beside ATen's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fuseline
from fuseline.core import native

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
MARKS = [
    pytest.mark.usefixtures("given_back"),
    pytest.mark.skipif(
        native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
    ),
]


def calls(device: str, name: str) -> int:
    """Calls of aten::<name> that have been served."""
    kernels = (s for s in fuseline.status().served if s.device == device and name in s.calls)
    (count,) = (s.calls[name] for s in kernels)
    return count


def gradients(y: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Of a sum in which each element of y has another weight."""
    weights = torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype)
    return torch.autograd.grad((y * weights.view(y.shape)).sum(), leaves)


def assert_alike(found: Tensor, wanted: Tensor) -> None:
    """The same dtype, shape, strides and device."""
    kinds = ((t.dtype, t.shape, t.stride(), t.device) for t in (found, wanted))
    assert len(set(kinds)) == 1, (found, wanted)


def layouts(device: str, dtype: torch.dtype) -> list[Tensor]:
    """Tensors of many shapes and strides."""
    x = torch.randn(6, 4, 5, device=device).to(dtype)
    return [
        torch.randn(3, 61, device=device).to(dtype),
        torch.randn(2, 5003, device=device).to(dtype),
        torch.randn(7, device=device).to(dtype),
        x.mT,
        x.permute(2, 0, 1),
        x[:, ::2, 1:],
        x[:1].expand(6, 4, 5),
        x[..., :1].expand(6, 4, 5),
        x.new_empty(0, 5),
        x.new_empty(5, 0),
        x[:, :, None, :1],
        torch.randn(2, 3, 4, 5, device=device).to(dtype, memory_format=torch.channels_last),
        x[0, 0, 0],
    ]
