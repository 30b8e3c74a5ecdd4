"""The same call again and again, each time with every input moved by one rounding.

How far the exact result moves by it, no formula can know better; and of eager's errors it makes as
many draws, where one may be luck.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fuseline.core.spec import Inputs

DRAWS = 8


def nearby(
    inputs: Inputs, dys: tuple[Tensor, ...], dtype: torch.dtype
) -> Iterator[tuple[Inputs, tuple[Tensor, ...]]]:
    """Yield the inputs and gradients `DRAWS` times, every element moved by about one ULP of dtype.

    Tensors of a narrower dtype stay as they are. The draws are the same for equal shapes.
    """
    coin = torch.Generator().manual_seed(DRAWS)
    for _ in range(DRAWS):
        moved = {n: _moved(v, dtype, coin) for n, v in inputs.items()}
        yield moved, tuple(_moved(dy, dtype, coin) for dy in dys)


def _moved(value: Any, dtype: torch.dtype, coin: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    eps = torch.finfo(dtype).eps
    if torch.finfo(value.dtype).eps > eps:
        return value
    exact = value.to(torch.float64)
    heads = (torch.rand(value.shape, generator=coin) < 0.5).to(value.device)
    step = exact.abs().nan_to_num(0.0, 0.0) * (eps / 2)  # an Inf stays where it is
    return (exact + torch.where(heads, step, -step)).to(value.dtype)
