"""A module that spells GELU out, as transformers' NewGELUActivation: its forward by torch's kernel.

Eight operators of a formula are eight kernels, and keep six tensors for backward; torch's is one,
and keeps x.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import gelu

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.registration.operator import PLAIN
from fuseline.patching.gates import is_activation
from fuseline.patching.probe import Unlike, autocast, near, neutral
from fuseline.patching.proof import AUTOCASTS
from fuseline.patching.serving import (
    Watched,
    fixed_attributes,
    names_read,
    own_class,
    replaced_forward,
)

SPELLINGS = ("tanh", "none")
FUNCTIONS = {"tanh", "erf"}  # one of which a formula has; no other module is called with a probe
SIZES = (1.0, 8.0)  # in fp16 the formula's x^3 has no value from 40 on

# An x's kind of device and dtype, and autocast's dtype or None -> the result's dtype.
Cells = dict[tuple[str, torch.dtype, torch.dtype | None], torch.dtype]


def compute(spelling: str, result: torch.dtype, x: Tensor) -> Tensor:
    """Return GELU of x, computed in the result's dtype."""
    return gelu(x.to(result), approximate=spelling)


class Gelu(Watched):
    """What a module that spells GELU out carries.

    spelling  torch's name of the formula
    cells     for which dtypes it was proven, and what they give
    """

    def __init__(self, impl: str, fixed: Any, spelling: str, cells: Cells) -> None:
        super().__init__(impl, fixed)
        self.spelling, self.cells = spelling, cells
        self.devices = list(dict.fromkeys(device for device, _, _ in cells))

    def is_as(self, other: Any) -> bool:
        """Whether another one serves the same."""
        return type(other) is Gelu and (self.fixed, self.spelling, self.cells) == (
            other.fixed, other.spelling, other.cells,
        )  # fmt: skip

    def run(self, module: Any, made: Any, x: Any) -> Tensor | str:
        """Return GELU of x, or why it is left to the module's own forward."""
        if type(x) not in PLAIN or x.is_nested:
            return f"x is a {type(x).__name__}"
        device = x.device.type
        if device not in self.devices:
            return f"x is on {device}, proven on {' and '.join(self.devices)}: patch again"
        to = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        result = self.cells.get((device, x.dtype, to))
        if result is None:
            cast = "" if to is None else f", autocast to {to}"
            return f"not proven: x of {x.dtype}{cast}"
        return self.changed(module, made) or compute(self.spelling, result, x)


class Gelus:
    """One call of patch: modules that are alike are proven once."""

    def __init__(self, impl: str) -> None:
        self.impl = impl
        self.proofs: dict[Any, tuple[str, Cells] | None] = {}

    def serving(self, module: Any, devices: Callable[[], dict[str, torch.device]]) -> Gelu | None:
        """Return what would serve a module; None: it is no GELU, or has one kernel already.

        devices  () -> those to prove it on, by kind
        """
        if not is_activation(module) or replaced_forward(module):
            return None
        if not FUNCTIONS & names_read(module):
            return None
        fixed = fixed_attributes(module)
        if isinstance(fixed, str):
            return None
        own = own_class(module)
        key = own, repr(fixed)
        if key not in self.proofs:
            self.proofs[key] = _prove(own, module, list(devices().values()))
        found = self.proofs[key]
        return found and Gelu(self.impl, fixed, *found)


def _prove(own: Any, module: Module, devices: list[torch.device]) -> tuple[str, Cells] | None:
    """Return which GELU a forward is, and for which dtypes; None: none, or it has one kernel."""
    twin: Any = object.__new__(own)
    state = {name: v for name, v in vars(module).items() if name != "_fuseline"}
    forward = partial(own.forward, twin)  # without hooks
    for spelling in SPELLINGS:
        found: list[Cells] = []
        for training in (True, False):
            mode = state | {"training": training}
            vars(twin).update(mode)
            found.append({})
            for device in devices:
                cards = [device] if device.type == "cuda" else []
                with neutral(device), torch.random.fork_rng(cards):  # what draws finds its numbers
                    found[-1] |= _cells(forward, spelling, device)
            if vars(twin) != mode:  # its forward has noted something
                return None
        both = {cell: result for cell, result in found[0].items() if found[1].get(cell) == result}
        if both:
            return spelling, both
    return None


def _cells(forward: Any, spelling: str, device: torch.device) -> Cells:
    """Return for which dtypes a module is a GELU on a device; none if it has one kernel."""
    found: Cells = {}
    try:
        if _is_one_kernel(forward, device):
            return found
        for dtype in (torch.float32, *(d for d in DTYPES if d != torch.float32)):
            for to in AUTOCASTS:
                try:
                    result = _compare(forward, spelling, dtype, to, device)
                except Unlike:
                    if not found:  # half types do not tell the formulas from one another
                        return found
                    continue
                found[device.type, dtype, to] = result
    except Exception:  # whatever its forward does with what a GELU takes
        return {}
    return found


def _is_one_kernel(forward: Any, device: torch.device) -> bool:
    with torch.enable_grad():
        y = forward(torch.zeros(8, device=device, requires_grad=True))
    after = y.grad_fn.next_functions
    return len(after) == 1 and type(after[0][0]).__name__ == "AccumulateGrad"


def _compare(
    forward: Any, spelling: str, dtype: torch.dtype, to: torch.dtype | None, device: torch.device
) -> torch.dtype:
    """Return the dtype of results, or raise Unlike where torch's GELU is farther from fp64 than
    theirs and rounding explain, in the value or in the gradient.
    """
    generator = torch.Generator()
    generator.seed()
    for size in SIZES:
        x = size * torch.randn((3, 5, 64), generator=generator)
        x[0, 0, 0] = torch.nan
        dy = torch.randn(x.shape, generator=generator).to(device)
        for laid, dy_of in ((x, dy), (x.transpose(0, 2), dy.transpose(0, 2))):
            laid = laid.to(device, dtype)
            theirs = _results(forward, laid, dy_of, to)
            result = theirs[0].dtype
            ours = _results(partial(compute, spelling, result), laid, dy_of, to)
            exact = _results(partial(compute, spelling, torch.float64), laid.double(), dy_of, None)
            if (ours[0].dtype, ours[0].stride()) != (result, theirs[0].stride()):
                raise Unlike("its results are laid out otherwise")
            for found, own, right in zip(ours, theirs, exact, strict=True):
                near(found, own, right)
    return result


def _results(function: Any, x: Tensor, dy: Tensor, to: torch.dtype | None) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    with torch.enable_grad(), autocast(x.device, to):
        y = function(leaf)
    (dx,) = torch.autograd.grad(y, leaf, dy.to(y.dtype))
    return y.detach(), dx
