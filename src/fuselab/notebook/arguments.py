"""The arguments of a comparison, looked at before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fuselab.planning.plan import CEILING, DTYPE_ALIASES
from fuselab.precision import LEVELS
from fuselab.worker.implementations.baselines import MADE
from fuseline.core.specs.spec import Case

DTYPES = ("float64", "float32", "float16", "bfloat16")
DIRECTIONS = ("fwd", "bwd")
# A level that pools several processes is no level of one.
PRECISIONS = tuple(level.name for level in LEVELS.values() if level.processes == 1)
RESERVED = (CEILING, *MADE)

Functions = Mapping[str, Callable[..., Any]]


def check_functions(impls: object, make_inputs: object, reference: object) -> None:
    """Raise TypeError or ValueError for what cannot be called or has no usable name."""
    if not isinstance(impls, Mapping):
        raise TypeError(f"impls: got {type(impls).__name__}, expected a dict of functions by name")
    if not impls:
        raise ValueError("impls: got no function, expected at least one by name")
    for name, fn in impls.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"impls: got the name {name!r}, expected a string")
        if name in RESERVED:
            raise ValueError(
                f"impls: got the name {name!r}, which the lab gives a row of its own "
                "(compile=True adds torch.compile); choose another"
            )
        if not callable(fn):
            raise TypeError(f"impls: {name!r} is {type(fn).__name__}, expected a function")
    if not callable(make_inputs):
        raise TypeError(f"make_inputs: got {type(make_inputs).__name__}, expected a function")
    if reference is not None and not callable(reference):
        raise TypeError(f"reference: got {type(reference).__name__}, expected a function or None")


def yardstick(impls: Functions) -> str:
    """Return the implementation that the others are held against: "eager", else the first."""
    return "eager" if "eager" in impls else next(iter(impls))


def cases_of(shapes: Iterable[Any]) -> tuple[Case, ...]:
    """Return a case for each shape, named as the table shows it."""
    if isinstance(shapes, str) or not isinstance(shapes, Iterable):
        raise TypeError(f"shapes: got {shapes!r}, expected a list of shapes, as [(4, 128)]")
    named: dict[str, Case] = {}
    for shape in shapes:
        name = str(tuple(shape) if isinstance(shape, torch.Size) else shape)
        if name in named:
            raise ValueError(f"shapes: got {name} twice, expected different ones")
        named[name] = Case(name, {"shape": shape})
    if not named:
        raise ValueError("shapes: got none, expected at least one, as [(4, 128)]")
    return tuple(named.values())


def dtypes_of(dtypes: object) -> tuple[torch.dtype, ...]:
    """Return the dtypes given as such, by names or short names, one or several."""
    names = (str(dtype).removeprefix("torch.") for dtype in _several(dtypes))
    known = _known("dtypes", (DTYPE_ALIASES.get(name, name) for name in names), DTYPES)
    return tuple(getattr(torch, name) for name in known)


def directions_of(directions: object) -> tuple[str, ...]:
    """Return the directions, one or several of "fwd" and "bwd"."""
    return _known("directions", _several(directions), DIRECTIONS)


def check_precision(precision: object) -> None:
    """Raise ValueError for what is no level of precision, or none of a single process."""
    if precision == "publish":
        raise ValueError("precision: got 'publish', which takes two processes: `fuselab run FILE`")
    _known("precision", (precision,), PRECISIONS)


def _several(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _known(argument: str, came: Iterable[object], expected: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(map(str, came)))
    for name in found or ("none",):
        if name not in expected:
            raise ValueError(f"{argument}: got {name!r}, expected one of: {', '.join(expected)}")
    return found
