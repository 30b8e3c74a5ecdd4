"""Refuse tensors that no kernel of ours can read, before torch looks into them: it may crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fuseline.core.inputs import arguments

# The dispatcher's keys of such tensors.
KEYS = (
    *(
        f"{kind}{device}"
        for kind in ("Quantized", "Sparse", "SparseCsr", "NestedTensor")
        for device in ("CPU", "CUDA")
    ),
    "SparseMeta",
    "SparseCsrMeta",
    "NestedTensorMeta",
    "MkldnnCPU",
    "AutogradNestedTensor",
)

Function = Callable[..., Any]
_PLAIN = Tensor.__torch_dispatch__  # of what no subclass dispatches
_DTENSOR = "torch.distributed.tensor.DTensor"  # whose module takes seconds to import
# What the first one that an operator is given runs (fuseline.sharding).
on_dtensor: list[Function] = []


def checking(name: str, op: Any) -> Function:
    """Return a function of the arguments of `op` that refuses such tensors by argument name."""
    parameters = tuple(a.name for a in op._schema.arguments)

    def check(*args: Any) -> None:
        for parameter, a in zip(parameters, args, strict=False):
            if isinstance(a, Tensor):
                if type(a).__torch_dispatch__ is not _PLAIN:
                    met(a)
                arguments.require_strided(name, parameter, a)

    return check


def met(a: Any) -> bool:
    """Return whether something is the first DTensor that is met, for which operators have rules
    from now on.
    """
    kind = type(a)
    if not on_dtensor or f"{kind.__module__}.{kind.__qualname__}" != _DTENSOR:
        return False
    on_dtensor.pop()()
    return True


def names(arguments: str) -> list[str]:
    """Return the names of a schema's arguments."""
    return [argument.split()[-1] for argument in arguments.split(", ")]


def refuse_freed(op: str, parameters: Sequence[str], args: tuple[Any, ...]) -> None:
    """Refuse tensors that have elements but no memory."""
    for parameter, t in zip(parameters, args, strict=False):  # torch leaves defaults out
        plain = isinstance(t, Tensor) and type(t).__torch_dispatch__ is _PLAIN
        held = plain and not t.is_meta
        if held and t.numel() and not t.data_ptr():
            raise RuntimeError(f"{op}: {parameter} has elements, but its memory was freed")


def after(check: Function, function: Function) -> Function:
    """Return a kernel that checks first: torch has no key for a quantized tensor beside a meta one,
    and such a call arrives here.
    """

    def kernel(*args: Any) -> Any:
        check(*args)
        return function(*args)

    return kernel


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
