"""The same operator, broken in the ways that take a GPU's context or memory with them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from toy_ops import right, spec


class _TooLong:
    """An array that claims to go on far behind the memory of its tensor."""

    def __init__(self, x: Tensor) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (x.data_ptr(), False),
            "shape": (1 << 40,),
            "typestr": "|u1",
            "strides": None,
            "version": 2,
        }


def reads_beyond(x: Tensor, scale: float) -> Tensor:
    far = torch.as_tensor(_TooLong(x), device=x.device)[1 << 39 :: 1 << 30]
    return right(x, scale) + far.sum()


def reads_beyond_unawaited(x: Tensor, scale: float) -> Tensor:
    torch.as_tensor(_TooLong(x), device=x.device)[1 << 39 :: 1 << 30].clone()
    return right(x, scale)


def asserts(x: Tensor, scale: float) -> Tensor:
    far = torch.full((1,), 1 << 40, device=x.device)
    return right(x, scale) + x.flatten()[far]


def goes_on_after_an_assert(x: Tensor, scale: float) -> Tensor:
    with suppress(RuntimeError):  # which the context does not forget
        asserts(x, scale).sum().item()
    return right(x, scale)


def allocates(x: Tensor, scale: float) -> Tensor:
    return torch.empty(1 << 50, dtype=torch.uint8, device=x.device)


def hangs(x: Tensor, scale: float) -> Tensor:
    torch.cuda._sleep(1 << 50)
    return right(x, scale)


def synchronizes(x: Tensor, scale: float) -> Tensor:
    x.sum().item()
    return right(x, scale)


UNCAPTURABLE = spec("uncapturable", right, synchronizes)
FAULTY = spec(
    "faulty", right, reads_beyond, reads_beyond_unawaited, asserts, goes_on_after_an_assert,
    allocates, hangs,
)  # fmt: skip
