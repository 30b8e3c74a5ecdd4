"""The notebook's backward: output gradients are random, and independent of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuselab

SHAPE = (37, 65)

Make = Callable[[Any, torch.dtype, torch.device], Any]


class TooLarge(torch.autograd.Function):
    """The identity, with a gradient 20 % too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return 1.2 * dy


def by_manual_seed(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


def by_generator(
    shape: Any, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def by_its_seed(
    shape: Any, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    own = torch.Generator(device).manual_seed(generator.initial_seed())
    return torch.randn(shape, dtype=dtype, device=device, generator=own)


def alike(a: Tensor, b: Tensor) -> float:
    """Return the correlation of two tensors' elements."""
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


class Watched(torch.autograd.Function):
    """relu, which notes what it was given."""

    pairs: ClassVar[list[tuple[Tensor, Tensor]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        Watched.pairs.append((x.clone(), dy.clone()))
        return torch.where(x > 0, dy, 0)


@pytest.mark.parametrize("make", [by_manual_seed, by_generator, by_its_seed])
def test_output_gradients_are_independent_of_the_inputs(make: Make) -> None:
    Watched.pairs.clear()
    found = fuselab.compare(
        {"relu": lambda x: Watched.apply(x)}, make, shapes=[SHAPE], device="cpu", directions="bwd"
    )
    assert found.measurements[0].status.has_number, found.measurements[0].reason
    assert len(Watched.pairs) > 20
    assert all(abs(alike(x, dy)) < 0.15 for x, dy in Watched.pairs)


def test_a_gradient_that_is_too_large_is_found() -> None:
    found = fuselab.compare(
        {
            "eager": lambda x: F.rms_norm(x, x.shape[-1:]),
            "large": lambda x: F.rms_norm(TooLarge.apply(x), x.shape[-1:]),
        },
        by_manual_seed,
        shapes=[SHAPE],
        device="cpu",
        directions="bwd",
    )
    eager, large, _ = found.measurements
    assert eager.status.has_number, eager.reason
    assert str(large.status) == "incorrect"


@pytest.mark.parametrize("attempt", range(3))
def test_the_gradients_of_torch_are_right(attempt: int) -> None:
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": lambda x: torch.softmax(x, -1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
        "gelu": F.gelu,
        "log_softmax": lambda x: torch.log_softmax(x, -1),
    }
    for name, form in forms.items():
        found = fuselab.compare(
            {"eager": form}, by_manual_seed, shapes=[SHAPE], device="cpu", directions="bwd"
        )
        assert found.measurements[0].status.has_number, (name, found.measurements[0].reason)
