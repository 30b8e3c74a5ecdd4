"""Refuse tensors that no kernel of ours can read, before torch looks into them: it may crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuseline.core import arguments

# The dispatcher's keys of such tensors.
KEYS = (
    *(
        f"{kind}{device}"
        for kind in ("Quantized", "Sparse", "SparseCsr", "NestedTensor")
        for device in ("CPU", "CUDA")
    ),
    "SparseMeta",
    "SparseCsrMeta",
    "MkldnnCPU",
    "AutogradNestedTensor",
)

Function = Callable[..., Any]


def checking(name: str, op: Any) -> Function:
    """Return a function of the arguments of `op` that refuses such tensors by argument name."""
    parameters = tuple(a.name for a in op._schema.arguments)

    def check(*args: Any) -> None:
        for parameter, a in zip(parameters, args, strict=False):
            if isinstance(a, Tensor):
                arguments.require_strided(name, parameter, a)

    return check


def refusing(name: str, check: Function) -> Function:
    """Return the kernel for KEYS."""

    def kernel(*args: Any) -> Any:
        check(*args)
        raise TypeError(f"{name}: a tensor has another layout, expected torch.strided")

    return kernel


def without_negative_bit(name: str, op: Any, check: Function) -> Function:
    """Return the kernel for the negative bit: torch's own crashes on quantized tensors."""
    parameters = tuple(a.name for a in op._schema.arguments)

    def resolved(parameter: str, a: Any) -> Any:
        try:
            return a.resolve_neg() if isinstance(a, Tensor) else a
        except NotImplementedError as error:
            came = f"{name}: {parameter} has dtype {a.dtype} and the negative bit"
            raise TypeError(f"{came}, expected a dtype that torch can negate") from error

    def kernel(*args: Any) -> Any:
        check(*args)
        return op(*map(resolved, parameters, args))

    return kernel


def where_it_runs(
    name: str, impl: str, unavailable: Callable[[str], str | None], function: Function
) -> Function:
    """Return an implementation in Python that says where it cannot run: what it calls does not."""

    def kernel(*args: Any) -> Any:
        device_type = next((a.device.type for a in args if isinstance(a, Tensor)), None)
        if device_type and (why := unavailable(device_type)):
            raise RuntimeError(f"{name}: impl {impl!r} cannot run here: {why}")
        return function(*args)

    return kernel
