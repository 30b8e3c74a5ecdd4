"""Fresh inputs of a problem in KernelBench's form, whose author wrote `get_inputs()`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuselab.errors import LabError
from fuseline.core.specs.spec import Inputs

SEEDS = 1 << 31
# Two draws that are alike under these are constants.
ASKED = (SEEDS - 2, SEEDS - 3)
_SCALARS = (bool, int, float, str, type(None))


class PairError(LabError, ValueError):
    """A file that is not in KernelBench's form; the text says which and what it lacks."""

    code = 2


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have torch, Python and NumPy draw from this seed, and go on as before afterwards."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


class Drawn:
    """The author's inputs under other seeds; what does not depend on the seed the lab draws.

    constants  the names of these
    """

    def __init__(self, get_inputs: Callable[[], Any], device: torch.device) -> None:
        self._get, self._device = get_inputs, device
        first, second = (self._given(seed) for seed in ASKED)
        self.constants = tuple(
            name
            for name, value in first.items()
            if isinstance(value, Tensor) and value.numel() and _same(value, second.get(name))
        )

    def inputs(self, generator: torch.Generator) -> Inputs:
        """Return inputs of new contents, by names in the order of the call."""
        return self.under(
            int(torch.randint(SEEDS, (), generator=generator, device=generator.device))
        )

    def under(self, seed: int, constants: bool = False) -> Inputs:
        """Return the inputs of a seed, the author's `constants` as they are if asked."""
        given = self._given(seed)
        if not constants:
            with seeded(seed):
                given |= {name: vary(given[name]) for name in self.constants}
        return {n: v.to(self._device) if isinstance(v, Tensor) else v for n, v in given.items()}

    def _given(self, seed: int) -> Inputs:
        with seeded(seed):
            found = self._get()
        if not isinstance(found, (list, tuple)):
            raise PairError(f"get_inputs(): got a {type(found).__name__}, expected a list")
        for i, value in enumerate(found):
            if type(value) not in (Tensor, torch.nn.Parameter, *_SCALARS):
                kind = type(value).__name__
                raise PairError(f"get_inputs()[{i}]: got a {kind}, expected a tensor or a number")
        return {f"x{i}": v.detach() if isinstance(v, Tensor) else v for i, v in enumerate(found)}


def vary(value: Tensor) -> Tensor:
    """Return other contents of the same kind: floating, drawn from the same range; else permuted.

    What is not finite stays, as the -inf of a mask.
    """
    if not value.is_floating_point():
        order = torch.randperm(value.numel())
        return value.flatten()[order.to(value.device)].view(value.shape)
    finite = value.isfinite()
    known = value[finite].double()
    if not known.numel():
        return value.clone()
    low, high = known.min(), known.max()
    if low == high:  # 1 becomes 0.5 to 1.5
        half = low.abs() / 2 if low else torch.ones_like(low)
        low, high = low - half, low + half
    drawn = low + (high - low) * torch.rand(value.shape, dtype=torch.float64, device=value.device)
    return torch.where(finite, drawn.to(value.dtype), value)


def _same(one: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
