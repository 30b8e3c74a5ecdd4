"""Look again at a gradient over its budget: is it wrong, or is the case too small to tell?

With few elements the largest gradient may be what is left after its terms cancel (a row of
length 1), and one draw of eager's error may be luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuseline.core.spec import Inputs, OpSpec
from fuseline.testing import accuracy
from fuseline.testing.accuracy import ErrorFigures

FEW_ELEMENTS = 1 << 17
DRAWS = 8
# In one draw, or two, the roundings themselves may cancel.
FEWEST_DRAWS = 4
# Rounding the inputs moves an ordinary gradient by one or two eps of its maximum.
ORDINARY = 2.0
# Beyond this many eps eager's terms cancel, and then equally good formulas differ by a factor.
CANCELLED = 4.0
FORMULAS = 4.0
# Luck does not explain an error this many times what the first draw shows.
BEYOND_LUCK = 256.0


@dataclass(frozen=True)
class Recheck:
    """The case again, each time with every input moved by one rounding of the judged dtype."""

    spec: OpSpec
    eager: Callable[..., Any]
    inputs: Inputs
    dys: tuple[Tensor, ...]
    generator: torch.Generator

    def over_budget(
        self, name: str, dtype: torch.dtype, mine: ErrorFigures, eager: ErrorFigures | None
    ) -> str | None:
        """Return as `accuracy.over_budget`, but with eager's worst of several draws as yardstick.

        Where the roundings alone move the gradient by more than it is fair to judge by, that
        movement takes the place of eps * max|gradient|.
        """
        floating = (v for v in self.inputs.values() if isinstance(v, Tensor))
        if eager is None or sum(t.numel() for t in floating) > FEW_ELEMENTS or not mine.max_abs:
            return accuracy.over_budget(self.spec.budget, dtype, "bwd", mine, eager)
        exact = accuracy.oracle(self.spec, self.inputs, "bwd", self.dys)[name]
        unit = mine.max_abs / mine.scaled
        moved, worst = 0.0, eager.scaled
        for drawn, (inputs, dys) in enumerate(self.draws(dtype), 1):
            nearby = accuracy.oracle(self.spec, inputs, "bwd", dys)[name]
            moved = max(moved, (nearby - exact).abs().max().item())
            result = accuracy.run(self.eager, self.spec, inputs, "bwd", dys)[name].to(dtype)
            figures = accuracy.errors(self.spec, inputs, "bwd", {name: result}, dys)[name]
            worst = max(worst, figures.scaled)
            hopeless = mine.scaled > BEYOND_LUCK * max(worst, moved / unit, 1.0)
            if hopeless and drawn >= FEWEST_DRAWS:
                break
        if worst > CANCELLED:
            worst = max(worst, min(FORMULAS * worst, accuracy.HOPELESS / torch.finfo(dtype).eps))
        coarser = moved / unit if moved > ORDINARY * unit else 1.0
        judged, yardstick = (
            replace(figures, scaled=scaled / coarser)
            for figures, scaled in ((mine, mine.scaled), (eager, worst))
        )
        return accuracy.over_budget(self.spec.budget, dtype, "bwd", judged, yardstick)

    def draws(self, dtype: torch.dtype) -> Iterator[tuple[Inputs, tuple[Tensor, ...]]]:
        """Return the inputs and gradients with every element moved by about one ULP, each time."""
        for _ in range(DRAWS):
            inputs = {n: self._nudged(v, dtype) for n, v in self.inputs.items()}
            yield inputs, tuple(self._nudged(dy, dtype) for dy in self.dys)

    def _nudged(self, value: Any, dtype: torch.dtype) -> Any:
        """Return the value with every element moved by about one ULP; narrower inputs unchanged."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        eps = torch.finfo(dtype).eps
        if torch.finfo(value.dtype).eps > eps:
            return value
        exact = value.to(torch.float64)
        heads = torch.rand(value.shape, generator=self.generator, device=value.device) < 0.5
        step = exact.abs() * (eps / 2)
        return (exact + torch.where(heads, step, -step)).to(value.dtype)
