"""Calls of the convolutions and their oracle, for tests on a CPU and on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fuseline
from fuseline import table

OPS = ("conv_add", "conv_relu", "conv_add_relu")
LAST = torch.channels_last
PLACES = ("stride", "padding", "dilation")


def tensors(
    op: str,
    shape: tuple[int, ...] = (2, 8, 9, 7),
    filters: int = 16,
    kernel: tuple[int, ...] = (3, 3),
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    form: torch.memory_format = torch.contiguous_format,
    **numbers: Any,
) -> dict[str, Tensor]:
    """Random x, weight and bias and, where the operator has it, z, by name."""

    def random(*sizes: int) -> Tensor:
        t = torch.randn(sizes, device=device).to(dtype)
        return t.contiguous(memory_format=form) if t.dim() == 4 else t

    groups = numbers.get("groups", 1)
    weight = random(filters, shape[1] // groups, *kernel)
    found = {"x": random(*shape), "weight": weight, "bias": random(filters)}
    if op == "conv_add_relu":
        found["z"] = random(*exact("conv_add", found, numbers)[0].shape)
    return found


def exact(
    op: str, given: dict[str, Tensor], numbers: dict[str, Any], dy: Tensor | None = None
) -> list[Tensor]:
    """The reference's result in fp64 and, for dy, the gradients of all tensors."""
    dims = given["x"].dim() - 2
    places = {name: numbers.get(name, int(name != "padding")) for name in PLACES}
    whole = {n: [v] * dims if isinstance(v, int) else list(v) for n, v in places.items()}
    wide = {n: t.detach().double().requires_grad_() for n, t in given.items()}
    y = table.load()[op].reference(**wide, **whole, groups=numbers.get("groups", 1))
    return [
        y.detach(),
        *(() if dy is None else torch.autograd.grad(y, [*wide.values()], dy.double())),
    ]


def seeds(op: str, given: dict[str, Tensor], numbers: dict[str, Any]) -> Tensor:
    """A random gradient of the result, 0 where rounding decides what ReLU lets pass."""
    plain = {n: t for n, t in given.items() if n != "z"}
    before = exact("conv_add", plain, numbers)[0] + given.get("z", 0.0)
    near = before.abs() < 8 * torch.finfo(given["x"].dtype).eps * before.abs().max()
    dy = torch.randn_like(before).to(given["x"].dtype)
    return dy.masked_fill(near, 0.0) if "relu" in op else dy


def computed(
    op: str,
    given: dict[str, Tensor],
    numbers: dict[str, Any],
    dy: Tensor | None = None,
    impl: str = "auto",
) -> list[Tensor]:
    """The operator's result and, for dy, the gradients of all tensors."""
    leaves = {n: t.detach().requires_grad_(dy is not None) for n, t in given.items()}
    y = getattr(fuseline, op)(**leaves, **numbers, impl=impl)
    return [y.detach(), *(() if dy is None else torch.autograd.grad(y, [*leaves.values()], dy))]


def error(found: Tensor, wanted: Tensor, dy: Tensor | None = None) -> float:
    """The largest error in eps of the largest element.

    dy: the gradient of the result. A bias's is a sum of it, of which random signs may leave little:
    its errors count beside what they leave in the mean.
    """
    worst = (found.double() - wanted).abs().max().item()
    largest = wanted.abs().max().item()
    if dy is not None and wanted.dim() == 1:
        largest = max(largest, (dy.numel() / dy.shape[1]) ** 0.5)
    # A ReLU may leave nothing but zeros.
    return worst and worst / largest / torch.finfo(found.dtype).eps
