"""What the specs of the study's patterns on rows have alike: problem sizes, bad inputs, a cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from fuseline.core.specs.spec import Case, Cost, Direction, ErrorCase, Inputs

_GRID = tuple(1 << k for k in range(7, 17))  # the study's
_BOTH = ("fusion-quick", "quick")
# A CPU takes twice as long for the largest of these as for the others together.
_QUICK = {(128, 128): _BOTH, (512, 1024): _BOTH, (1024, 4096): _BOTH, (4096, 4096): ("quick",)}
_CHECK = ((7, 1), (5, 2), (3, 61), (2, 3, 130), (65, 257), (9, 1027), (3, 5000), (2, 40001))

SUITE_DTYPES = {
    "fusion": (torch.float32, torch.bfloat16),
    "fusion-quick": (torch.float32,),
    "quick": (torch.float32, torch.bfloat16),
}


def grid() -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """Return the study's problem sizes, each with its suites."""
    for shape in product(_GRID, _GRID):
        yield shape, ("fusion", *_QUICK.get(shape, ()))


def _case(shape: tuple[int, ...], *suites: str) -> Case:
    return Case("x".join(map(str, shape)), {"shape": shape}, suites)


def cases() -> tuple[Case, ...]:
    """Return the suites fusion, fusion-quick, quick and check."""
    return (
        *(_case(shape, *suites) for shape, suites in grid()),
        *(_case(shape, "check") for shape in _CHECK),
    )


def normal(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Return the case's tensor from N(0, 1)."""
    return torch.randn(case.args["shape"], dtype=dtype, device=device, generator=generator)


def make_x(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    """Return the inputs of an operator whose only input is such an x."""
    return {"x": normal(case, dtype, device, generator)}


def error_case(
    names: tuple[str, ...], name: str, error: type[Exception], *match: str, **change: object
) -> ErrorCase:
    """Return good rows of these names, but for what `change` replaces or adds."""

    def make(device: torch.device) -> Inputs:
        good: Inputs = {n: torch.randn(3, 8, device=device) for n in names}
        return good | {k: v.to(device) if isinstance(v, Tensor) else v for k, v in change.items()}

    return ErrorCase(name, make, error, match)


def errors(first: str, *others: str) -> tuple[ErrorCase, ...]:
    """Return the bad inputs of every operator on rows of these names: those of the first."""

    def bad(name: str, error: type[Exception], *match: str, x: object) -> ErrorCase:
        return error_case((first, *others), name, error, first, *match, **{first: x})

    return (
        bad(f"integer_{first}", TypeError, "int64", "float32", x=torch.arange(24).view(3, 8)),
        bad("not_a_tensor", TypeError, "list", x=[1.0, 2.0]),
        bad(f"scalar_{first}", ValueError, "scalar", x=torch.ones(())),
    )


def dim_errors(*names: str) -> tuple[ErrorCase, ...]:
    """Return the bad dims of an operator on tensors of these names."""
    return (
        error_case(names, "dim_too_large", ValueError, "dim", "2", "-2 to 1", dim=2),
        error_case(names, "dim_too_small", ValueError, "dim", "-3", "-2 to 1", dim=-3),
        error_case(names, "dim_not_an_int", TypeError, "dim", "str", "int", dim="rows"),
    )


def sum_near_one(x: Tensor, dim: int = -1) -> Tensor:
    """Return what the logarithm of a softmax adds last, as `added` of its spec.

    Where one element is far above all others, the logarithm is of a sum that rounds to 1: its
    digits are those of a 1 in the type of the computation. A half's ULP, of which its own rounding
    takes one half, must hold the two that the budget of that type has.
    """
    computed = torch.promote_types(x.dtype, torch.float32)
    held = 1 if x.dtype == computed else 4
    return torch.full_like(x, held * torch.finfo(computed).eps / torch.finfo(x.dtype).eps)


def softmax_cost(inputs: Inputs, direction: Direction) -> Cost:
    """Return what a softmax of x or its logarithm costs; the backward reads dy and the result."""
    x = inputs["x"]
    size = x.numel() * x.element_size()
    read = size if direction == "fwd" else 2 * size
    return Cost(read, size, flops=4 * x.numel())  # an exponential counts as one
