"""Plain functions as an OpSpec: arguments get names, the first function becomes the reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, ValuesView
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from fuselab.notebook.arguments import Functions, yardstick
from fuselab.worker.checks.check import LENIENCY
from fuselab.worker.protocol import describe
from fuselab.worker.tensors.inputs import seed, tensors
from fuseline.core.specs.spec import Budget, Case, Implementation, Inputs, OpSpec
from fuseline.testing import settings

OP = "notebook"
# What the pipeline calls output gradients.
_GRADIENT = re.compile(r"dy\d+")
_TAKEN = re.compile(r"(dy|arg)\d+")


class ReferenceFailed(RuntimeError):
    """The reference gives nothing to check against; the text says why."""


class Maker:
    """The user's make_inputs as that of a spec: seeded, its results named, checked, detached.

    names: parameters of a function that takes them by position. After the first draw: `by_name`
    says whether functions take their arguments by name, `differentiable` which have gradients.
    """

    def __init__(self, make: Callable[..., Any], names: tuple[str, ...]) -> None:
        self._make, self._names = make, names
        self._seeded = "generator" in _parameters(make)
        self.by_name = False
        self.differentiable: tuple[str, ...] = ()

    def __call__(
        self, case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> Inputs:
        named = self._named(self._ask(case, dtype, device, generator))
        _check_inputs(named, dtype, device)
        return {n: v.detach() if isinstance(v, Tensor) else v for n, v in named.items()}

    def learn(self, case: Case, dtype: torch.dtype, device: torch.device) -> None:
        """Draw once and note how arguments are passed and which of them have gradients."""
        generator = torch.Generator(device).manual_seed(seed(OP, 0))
        try:
            came = self._ask(case, dtype, device, generator)
        except Exception as error:
            raise ValueError(f"make_inputs: raised {describe(error)} (for {case.name})") from error
        named = self._named(came)
        _check_inputs(named, dtype, device)
        floating = {n: t for n, t in tensors(named).items() if t.is_floating_point()}
        marked = tuple(n for n, t in floating.items() if t.requires_grad)
        self.by_name = isinstance(came, Mapping)
        self.differentiable = marked or tuple(floating)

    def _ask(
        self, case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> Any:
        # Another seed than the generator's own, from which other numbers may be drawn.
        own = seed(f"{OP} {generator.initial_seed()}", 0)
        torch.default_generator.manual_seed(own)
        if device.type == "cuda":
            torch.cuda.manual_seed(own)
        more = {"generator": generator} if self._seeded else {}
        return self._make(case.args["shape"], dtype, device, **more)

    def _named(self, came: Any) -> Inputs:
        if isinstance(came, Mapping):
            return dict(came)
        if not isinstance(came, (tuple, list, Tensor)):
            raise ValueError(
                f"make_inputs: returned a {type(came).__name__}, expected a tuple of arguments, "
                "or a dict of them by name"
            )
        values = (came,) if isinstance(came, Tensor) else came
        spare = (f"arg{i}" for i in range(len(self._names), len(values)))
        return dict(zip((*self._names, *spare), values, strict=False))


def build(
    impls: Functions,
    make_inputs: Callable[..., Any],
    reference: Callable[..., Any] | None,
    cases: tuple[Case, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    budget: Budget | None,
) -> OpSpec:
    """Return the spec of the functions; ValueError if make_inputs does not do for it."""
    first = yardstick(impls)
    maker = Maker(make_inputs, _positional(impls[first]))
    for dtype in dtypes:
        maker.learn(cases[0], dtype, device)
    call = _unchanged if maker.by_name else _by_position
    who = "the reference" if reference else f"the reference ({first!r})"
    return OpSpec(
        name=OP,
        reference=_guarded(call(reference or impls[first]), who, device),
        implementations=tuple(
            Implementation(name, call(fn), "eager" if name == first else "ours")
            for name, fn in impls.items()
        ),
        make_inputs=maker,
        cases=cases,
        dtypes=dtypes,
        differentiable=maker.differentiable,
        budget=budget or Budget(*(LENIENCY * limit for limit in astuple(Budget()))),
    )


def _check_inputs(inputs: Inputs, dtype: torch.dtype, device: torch.device) -> None:
    found = tensors(inputs)
    if not found:
        raise ValueError("make_inputs: returned no tensor, expected at least one")
    for name, value in inputs.items():
        if not isinstance(name, str) or _GRADIENT.fullmatch(name):
            raise ValueError(
                f"make_inputs: got the name {name!r}, expected a string other than dy0"
            )
        if _holds_tensors(value):
            raise ValueError(
                f"make_inputs: {name} is a {type(value).__name__} of tensors, expected each "
                "tensor as an argument of its own"
            )
    for name, tensor in found.items():
        if tensor.device != device:
            raise ValueError(f"make_inputs: {name} is on {tensor.device}, expected {device}")
    floating = {tensor.dtype for tensor in found.values() if tensor.is_floating_point()}
    if floating and dtype not in floating:
        came = ", ".join(map(str, floating))
        raise ValueError(f"make_inputs: returned {came}, expected the dtype given, {dtype}")


def _holds_tensors(value: object) -> bool:
    held = value.values() if isinstance(value, dict) else value
    return isinstance(held, (list, tuple, ValuesView)) and any(
        isinstance(item, Tensor) for item in held
    )


def _guarded(fn: Callable[..., Any], who: str, device: torch.device) -> Callable[..., Any]:
    """Return the reference on copies of its inputs, with errors that name it."""

    def reference(**inputs: Any) -> Any:
        before = settings.snapshot(device)
        try:
            outputs = fn(
                **{n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}
            )
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise ReferenceFailed(f"{who} raised {describe(error)}") from error
        changed = settings.changes(before, settings.snapshot(device))
        if changed:
            raise ReferenceFailed(f"{who} changed the settings of the process: {changed}")
        return outputs

    return reference


def _unchanged(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def _by_position(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(**inputs: Any) -> Any:
        return fn(*inputs.values())

    return call


def _positional(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that `fn` takes by position, for messages alone."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = _parameters(getattr(fn, "forward", fn))
    names = (name for name, parameter in known.items() if parameter.kind in kinds)
    return tuple(f"arg{i}" if _TAKEN.fullmatch(n) else n for i, n in enumerate(names))


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin may have none
        return {}
