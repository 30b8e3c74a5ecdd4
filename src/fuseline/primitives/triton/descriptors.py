"""Descriptors of tensors as arguments of Triton's C function, which are made once an address.

Triton makes them in each launch, in Python, which takes longer than a small kernel runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple

from triton.tools.tensor_descriptor import TensorDescriptor

# Addresses whose arguments are kept, of each descriptor of each kind of call.
_ADDRESSES = 16

Make = Callable[[Any], tuple[Any, ...]]


class Below(NamedTuple):
    """The C function below Triton's wrapper, and for each tensor, or descriptor of one, what makes
    its arguments of an address.
    """

    call: Callable[..., None]
    makers: list[Make]


class _Place(NamedTuple):
    """What Triton asks of a descriptor's tensor."""

    address: int

    def data_ptr(self) -> int:
        return self.address


def below_descriptors(call: Callable[..., None], tensors: Sequence[Any]) -> Below | None:
    """Return what comes below Triton's wrapper `call`; None if that is not as we know it."""
    if not inspect.isfunction(call):
        return None
    names = inspect.getclosurevars(call)
    known = {**names.globals, **names.nonlocals}
    count = sum(type(t) is TensorDescriptor for t in tensors)
    kinds = known.get("tensordesc_meta") or [None] * count
    if not known.keys() >= {"launcher", "make_tensordesc_arg"} or len(kinds) != count:
        return None
    each, make = iter(kinds), known["make_tensordesc_arg"]
    makers = [
        _maker(t, make, next(each)) if type(t) is TensorDescriptor else _alone for t in tensors
    ]
    return Below(known["launcher"], makers)


def _alone(address: int | None) -> tuple[Any, ...]:
    return (address,)


def _maker(descriptor: TensorDescriptor, make: Callable[..., Any], kind: Any) -> Make:
    """Return address -> arguments of a descriptor; kind: what the kernel was compiled for."""
    like = copy(descriptor)
    like.base = None
    # Triton 3.8 gives it the launch too, which it does not look at.
    more = (None,) * (len(inspect.signature(make).parameters) - 2)

    @lru_cache(maxsize=_ADDRESSES)
    def made(address: int) -> tuple[Any, ...]:
        one = copy(like)
        one.base = _Place(address)
        return tuple(make(one, kind, *more))

    return made
