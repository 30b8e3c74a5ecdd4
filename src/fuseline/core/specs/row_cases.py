"""What the specs of norms over rows try alike: problem sizes, inputs, bad inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuseline.core.specs.spec import Case, ErrorCase, Inputs

_SEED_ROWS = (128, 512, 2048)
_SEED_LENGTHS = (32, 61, 64, 128, 130, 256, 512, 1024, 1027, 2048, 4096, 8192, 16384)
_CHECK = ((7, 1), (5, 2), (3, 61), (2, 3, 130), (9, 1027), (65, 257), (3, 5000), (2, 40001))
_LONG = 2**28  # elements: more than any cache holds, whatever the length of its rows
_QUICK = {(4, 128, 32), (4, 128, 1027), (4, 512, 1024)}


def case(shape: tuple[int, ...], *suites: str, weight: str = "same", offset: float = 0.0) -> Case:
    """Return rows of one shape; weight: "same" dtype, "float32" or "none"; and its offset.

    Only inputs with an offset have a `weight_offset`.
    """
    name = "x".join(map(str, shape)) + ("" if weight == "same" else f"-weight_{weight}")
    name += f"-offset_{offset:g}" if offset else ""
    return Case(name, {"shape": shape, "weight": weight, "offset": offset}, suites)


def cases(seed_suite: str) -> tuple[Case, ...]:
    """Return the seed's shapes under their suite's name, and the suites quick, check and long."""
    seed = [
        case((4, rows, n), seed_suite, *(("quick",) if (4, rows, n) in _QUICK else ()))
        for rows in _SEED_ROWS
        for n in _SEED_LENGTHS
    ]
    return (
        *seed,
        *(case(shape, "check") for shape in _CHECK),
        case((5, 193), "check", weight="float32"),
        case((5, 193), "check", weight="none"),
        *(case((_LONG // n, n), "long") for n in (2**p for p in range(15, 21))),
    )


def make_inputs(
    *names: str,
) -> Callable[[Case, torch.dtype, torch.device, torch.Generator], Inputs]:
    """Return the inputs of an operator on rows of these names, then weight and eps."""

    def make(
        case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> Inputs:
        shape = case.args["shape"]

        def normal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.randn(shape, dtype=dtype, device=device, generator=generator)

        weight_dtype = {"same": dtype, "float32": torch.float32}.get(case.args["weight"])
        weight = None if weight_dtype is None else normal(shape[-1:], weight_dtype)
        offset = case.args["offset"]
        return {
            **{n: normal(shape, dtype) for n in names},
            "weight": weight,
            "eps": 1e-6,
            **({"weight_offset": offset} if offset else {}),
        }

    return make


def error_case(
    names: tuple[str, ...], name: str, error: type[Exception], *match: str, **change: object
) -> ErrorCase:
    """Return good rows of these names, weight and eps, but for what `change` replaces or makes."""

    def make(device: torch.device) -> Inputs:
        good: Inputs = {
            **{n: torch.randn(3, 8, device=device) for n in names},
            "weight": torch.randn(8, device=device),
            "eps": 1e-6,
        }
        return good | {key: v(device) if callable(v) else v for key, v in change.items()}

    return ErrorCase(name, make, error, match)


def errors(*names: str) -> tuple[ErrorCase, ...]:
    """Return the bad inputs of every norm over rows: those of x, weight and eps."""

    def bad(name: str, error: type[Exception], *match: str, **change: object) -> ErrorCase:
        return error_case(names, name, error, *match, **change)

    def integers(device: torch.device) -> Tensor:
        return torch.arange(24, device=device).view(3, 8)

    return (
        bad("integer_x", TypeError, "x", "int64", "float32", x=integers),
        bad("scalar_x", ValueError, "x", "scalar", x=lambda d: torch.randn((), device=d)),
        bad("not_a_tensor", TypeError, "x", "list", x=[1.0, 2.0]),
        bad("weight_dtype", TypeError, "weight", "float16", "float32",
            weight=lambda d: torch.randn(8, device=d).half()),
        bad("weight_length", ValueError, "weight", "(7,)", "(8,)",
            weight=lambda d: torch.randn(7, device=d)),
        bad("weight_matrix", ValueError, "weight", "(1, 8)", "(8,)",
            weight=lambda d: torch.randn(1, 8, device=d)),
        bad("weight_device", ValueError, "weight", "meta",
            weight=lambda d: torch.randn(8, device="meta")),
        bad("negative_eps", ValueError, "eps", "-1", ">= 0", eps=-1.0),
        bad("nan_eps", ValueError, "eps", "nan", ">= 0", eps=float("nan")),
    )  # fmt: skip
