"""The same call again and again, each time with every input moved by a rounding or a few.

How far the exact result moves by one rounding, no formula can know better; and of eager's errors,
one of which may be luck, there are as many draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Inputs

DRAWS = 16


def nearby(
    inputs: Inputs, dys: tuple[Tensor, ...], dtype: torch.dtype, roundings: int = 1
) -> Iterator[tuple[Inputs, tuple[Tensor, ...]]]:
    """Yield the inputs and gradients `DRAWS` times, every element moved by so many roundings.

    One is half a ULP of dtype up or down, so that the element moves by about one or stays; of
    several, each element draws how many. Tensors of a narrower dtype stay as they are. The draws
    are the same for equal shapes.
    """
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        moved = {n: _moved(v, dtype, roundings, generator) for n, v in inputs.items()}
        yield moved, tuple(_moved(dy, dtype, roundings, generator) for dy in dys)


def _moved(value: Any, dtype: torch.dtype, roundings: int, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    eps = torch.finfo(dtype).eps
    if torch.finfo(value.dtype).eps > eps:
        return value
    exact = value.to(torch.float64)
    steps = torch.randint(1 - roundings, roundings + 1, value.shape, generator=generator) - 0.5
    ulp = exact.abs().nan_to_num(0.0, 0.0) * eps  # an Inf stays where it is
    return (exact + steps.to(ulp) * ulp).to(value.dtype)
