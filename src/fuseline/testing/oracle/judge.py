"""Why a result is over its budget, or None: the one answer, of the checker, the lab and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Budget, Direction, Inputs, OpSpec
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.accuracy import ErrorFigures
from fuseline.testing.oracle.conditioning import nearby

Figures = Mapping[str, ErrorFigures]

# The largest gradient of however many may be what cancellation left; of more it takes seconds.
MOST_ELEMENTS = 1 << 20
# Of a few elements one rounding each makes few draws of eager's error that differ.
FAR = 8
# In one draw, or two, the roundings themselves may cancel.
FEWEST_DRAWS = 4
# Rounding the inputs moves an ordinary gradient by one or two eps of its maximum.
ORDINARY = 2.0
# Beyond this many eps eager's terms cancel, and then equally good formulas differ by a factor.
CANCELLED = 4.0
FORMULAS = 4.0
# Luck does not explain an error this many times what the first draws show.
BEYOND_LUCK = 256.0


@dataclass(frozen=True)
class Judge:
    """Holds results of one call against the budget; eager's error there is the yardstick.

    spec       whose formula is the oracle
    inputs     the keyword inputs of the call
    direction  "fwd" (outputs, "out0", ...) or "bwd" (gradients, by the inputs' names)
    dys        the gradients of the outputs; required for "bwd"
    eager      called as eager(**inputs); by default the spec's, if it has one
    budget     the limits; by default the spec's

    A result that is over the budget is looked at again, for one draw of eager's error may be luck:
    the yardstick is then eager's worst of several draws, in each of which the inputs are moved by a
    few roundings. Where one rounding moves gradients by more than it is fair to judge by, that
    movement takes the place of eps * max|gradient|. Outputs must have their digits where terms
    cancel, too.
    """

    spec: OpSpec
    inputs: Inputs
    direction: Direction
    dys: tuple[Tensor, ...] | None = None
    eager: Callable[..., Any] | None = None
    budget: Budget | None = None

    def wrong(self, results: Mapping[str, Tensor]) -> str | None:
        """Return the first result that is over the budget, and why, or None."""
        mine, eager = self.errors(results)
        return self.first_reason(results, mine, eager)

    def right_without_eager(self, results: Mapping[str, Tensor]) -> bool:
        """Return whether no result is over what the budget is where eager has no error.

        False where that takes eager: its results of fp64 say where the reference has to be asked.
        """
        if any(t.dtype == torch.float64 for t in results.values()):
            return False
        (mine,) = accuracy.errors_of_each(
            self.spec, self.inputs, self.direction, (results,), self.dys
        )
        return not self.first_reason(results, mine, None)

    def errors(self, results: Mapping[str, Tensor]) -> tuple[Figures, Figures | None]:
        """Return the errors of the results and of eager's in their dtypes; None: it cannot run."""
        yardstick = self._eagers(results)
        both = (results,) if yardstick is None else (results, yardstick)
        mine, *eager = accuracy.errors_of_each(
            self.spec, self.inputs, self.direction, both, self.dys
        )
        return mine, eager[0] if eager else None

    def first_reason(
        self, results: Mapping[str, Tensor], mine: Figures, eager: Figures | None
    ) -> str | None:
        """Return as `wrong`, of errors that are known."""
        whys = self.reasons(results, mine, eager).items()
        return next((f"{name}: {why}" for name, why in whys if why), None)

    def reasons(
        self, results: Mapping[str, Tensor], mine: Figures, eager: Figures | None
    ) -> dict[str, str | None]:
        """Return why each result is over the budget, or None, of errors that are known."""
        found = {}
        for name, figures in mine.items():
            result, yardstick = results.get(name), None if eager is None else eager.get(name)
            # Of other results an error is 0 or infinite.
            dtype = torch.float64
            if result is not None and result.is_floating_point():
                dtype = result.dtype
            found[name] = self.reason(name, dtype, figures, yardstick)
        return found

    def reason(
        self, name: str, dtype: torch.dtype, mine: ErrorFigures, eager: ErrorFigures | None
    ) -> str | None:
        """Return why one result is over the budget, or None, of errors that are known."""
        reason = self._over_budget(dtype, mine, eager)
        floating = (v for v in self.inputs.values() if isinstance(v, Tensor))
        if reason is None or eager is None or not math.isfinite(mine.scaled):
            return reason
        if sum(t.numel() for t in floating) > MOST_ELEMENTS:
            return reason
        return self._over_budget(dtype, *self._seen_again(name, dtype, mine, eager))

    def _over_budget(
        self, dtype: torch.dtype, mine: ErrorFigures, eager: ErrorFigures | None
    ) -> str | None:
        return accuracy.over_budget(self._budget, dtype, self.direction, mine, eager)

    def _seen_again(
        self, name: str, dtype: torch.dtype, mine: ErrorFigures, eager: ErrorFigures
    ) -> tuple[ErrorFigures, ErrorFigures]:
        """Return the error and eager's worst, in units of the movement where that is larger."""
        in_ulp = accuracy.in_ulp(self._budget, self.direction)
        field = "max_ulp" if in_ulp else "scaled"
        exact = self._exact(name, self.inputs, self.dys)
        unit, size = mine.max_abs / mine.scaled, getattr(mine, field)
        moved, worst = 0.0, getattr(eager, field)
        hopeless = accuracy.HOPELESS / torch.finfo(dtype).eps
        near = nearby(self.inputs, self.dys or (), dtype)
        far = nearby(self.inputs, self.dys or (), dtype, roundings=FAR)
        for drawn, ((inputs, dys), beyond) in enumerate(zip(near, far, strict=True), 1):
            if not in_ulp:
                moved = max(moved, _apart(self._exact(name, inputs, dys), exact) / unit)
            there = getattr(self._eagers_error(name, dtype, *beyond), field)
            worst = max(worst, there) if there <= hopeless else worst
            if drawn >= FEWEST_DRAWS and size > BEYOND_LUCK * max(worst, moved, 1.0):
                break
        if not in_ulp and CANCELLED < worst <= hopeless:
            worst = min(FORMULAS * worst, hopeless)
        coarser = moved if moved > ORDINARY else 1.0
        return (
            replace(mine, **{field: size / coarser}),
            replace(eager, **{field: worst / coarser}),
        )

    @property
    def _budget(self) -> Budget:
        return self.spec.budget if self.budget is None else self.budget

    @property
    def _eager(self) -> Callable[..., Any] | None:
        if self.eager is not None or self.spec.eager is None:
            return self.eager
        return self.spec.eager.fn

    def _eagers(self, results: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return eager's results in the dtypes of `results`, None where it cannot run."""
        if self._eager is None:
            return None
        try:
            found = accuracy.run(self._eager, self.spec, self.inputs, self.direction, self.dys)
        except Exception:
            return None
        return {n: y.to(results[n].dtype) for n, y in found.items() if n in results}

    def _eagers_error(
        self, name: str, dtype: torch.dtype, inputs: Inputs, dys: tuple[Tensor, ...] | None
    ) -> ErrorFigures:
        assert self._eager is not None
        found = accuracy.run(self._eager, self.spec, inputs, self.direction, dys)[name].to(dtype)
        return accuracy.errors(self.spec, inputs, self.direction, {name: found}, dys)[name]

    def _exact(self, name: str, inputs: Inputs, dys: tuple[Tensor, ...] | None) -> Tensor:
        return accuracy.oracle(self.spec, inputs, self.direction, dys)[name]


def _apart(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().nan_to_num(0.0, 0.0).max().item()
