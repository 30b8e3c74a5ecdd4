"""One implementation on one case, dtype and device: its inputs, its calls, its verdicts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Case, Direction, Implementation, Inputs, OpSpec
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.accuracy import ErrorFigures
from fuseline.testing.oracle.chunks import ndim_of_row
from fuseline.testing.oracle.judge import Judge
from fuseline.testing.poison import poison
from fuseline.testing.report import Finding
from fuseline.testing.settings import Settings

CONTIGUOUS = "contiguous"
Results = dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """What every check is handed; `settings` are those before the implementation's first call."""

    spec: OpSpec
    impl: Implementation
    case: Case
    dtype: torch.dtype
    device: torch.device
    thorough: bool = True
    settings: Settings = field(default_factory=dict)

    def generator(self, salt: str) -> torch.Generator:
        """Return a generator seeded by the cell's text key, the same for all implementations."""
        key = "/".join((self.spec.name, self.case.name, dtype_name(self.dtype), salt))
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        return torch.Generator(self.device).manual_seed(seed)

    def inputs(self, salt: str = "inputs") -> Inputs:
        return self.spec.inputs(self.case, self.dtype, self.device, self.generator(salt))

    def row_names(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the row inputs that are present and have at least one leading dimension."""
        present = (n for n in self.spec.row_inputs if isinstance(inputs.get(n), Tensor))
        return tuple(n for n in present if inputs[n].dim() > ndim_of_row(self.spec, n))

    def relayout_names(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the inputs that are also tried in odd memory layouts."""
        names = floating(inputs) if self.spec.relayout is None else self.spec.relayout
        return tuple(n for n in names if isinstance(inputs.get(n), Tensor))

    @property
    def eager(self) -> Callable[..., Any]:
        """The yardstick: the spec's eager, else the reference in fp32 (fp64 for fp64)."""
        return self._reference_in_fp32 if self.spec.eager is None else self.spec.eager.fn

    def _fn(self, **inputs: Any) -> tuple[Tensor, ...]:
        return accuracy.results(self.impl.fn(**inputs))

    def call(
        self, inputs: Inputs, direction: Direction = "fwd", dys: tuple[Tensor, ...] | None = None
    ) -> Results:
        """Run the implementation once, on poisoned memory."""
        poison(tensors(inputs).values())
        return accuracy.run(self._fn, self.spec, inputs, direction, dys)

    def call_with_grad(self, inputs: Inputs, names: tuple[str, ...]) -> tuple[Results, Inputs]:
        """Return the outputs with their graph, and the leaves made of the inputs `names`."""
        leaves = {n: inputs[n].detach().requires_grad_() for n in names}
        return self.call_differentiable({**inputs, **leaves}), leaves

    def call_differentiable(self, inputs: Inputs) -> Results:
        """Return the outputs with their graph, for inputs that may require gradients."""
        poison(tensors(inputs).values())
        with torch.enable_grad():
            outputs = self._fn(**inputs)
        return {f"out{i}": y for i, y in enumerate(outputs)}

    def dys(self, inputs: Inputs, salt: str = "dys") -> tuple[Tensor, ...]:
        return self._draw_dys(inputs, self.call(inputs), salt)

    def _draw_dys(self, inputs: Inputs, results: Results, salt: str) -> tuple[Tensor, ...]:
        outputs = tuple(results.values())
        return accuracy.draw_dys(self.spec, inputs, outputs, self.generator(salt))

    def judge(
        self,
        results: Mapping[str, Tensor],
        inputs: Inputs,
        direction: Direction,
        dys: tuple[Tensor, ...] | None = None,
    ) -> dict[str, tuple[str | None, ErrorFigures]]:
        """Yield every expected result with why it is over budget (or None) and its error."""
        judge = self._judge(inputs, direction, dys)
        mine, eager = judge.errors(results)
        verdicts = {}
        for name, reason in judge.reasons(results, mine, eager).items():
            figures, yardstick = mine[name], eager and eager.get(name)
            if name not in results:
                reason = f"no {'output' if direction == 'fwd' else 'gradient'} came for {name}"
            elif reason and figures == accuracy.NOTHING_RIGHT:
                reason += f"; it came as {_summary(results[name])}"
            elif yardstick and yardstick.max_abs > 0:
                figures = replace(figures, eager_ratio=figures.max_abs / yardstick.max_abs)
            verdicts[name] = reason, figures
        return verdicts

    def wrong(
        self, inputs: Inputs, direction: Direction, dys: tuple[Tensor, ...] | None = None
    ) -> str | None:
        """Call, judge all results, and return the first reason."""
        return self.why_wrong(self.call(inputs, direction, dys), inputs, direction, dys)

    def why_wrong(
        self,
        results: Mapping[str, Tensor],
        inputs: Inputs,
        direction: Direction,
        dys: tuple[Tensor, ...] | None = None,
    ) -> str | None:
        """Judge all results, and return the first reason, led by the name of the result."""
        if self._judge(inputs, direction, dys).right_without_eager(results):
            return None
        verdicts = self.judge(results, inputs, direction, dys)
        return next((f"{n}: {reason}" for n, (reason, _) in verdicts.items() if reason), None)

    def wrong_anywhere(self, inputs: Inputs, salt: str = "dys") -> str | None:
        """Return the first reason of the forward or, where there are gradients, the backward."""
        results = self.call(inputs)
        reason = self.why_wrong(results, inputs, "fwd")
        if reason or not accuracy.gradient_names(self.spec, inputs):
            return reason
        return self.wrong(inputs, "bwd", self._draw_dys(inputs, results, salt))

    def is_defined(self, inputs: Inputs) -> bool:
        """Return whether it takes these inputs and gives finite numbers somewhere."""
        return is_defined(self.spec.reference, inputs)

    def finding(
        self,
        check: str,
        reason: str | None,
        layout: str = CONTIGUOUS,
        figures: Mapping[str, ErrorFigures] | None = None,
    ) -> Finding:
        return Finding(
            self.impl.name,
            check,
            self.case.name,
            dtype_name(self.dtype),
            layout,
            reason is None,
            reason or "",
            figures or {},
        )

    def _judge(self, inputs: Inputs, direction: Direction, dys: tuple[Tensor, ...] | None) -> Judge:
        budget = self.spec.budget.held_by(self.impl.role)
        return Judge(self.spec, inputs, direction, dys, self.eager, budget)

    def _reference_in_fp32(self, **inputs: Any) -> tuple[Tensor, ...]:
        narrow = (torch.float16, torch.bfloat16)
        wide = {
            n: v.to(torch.float32) if isinstance(v, Tensor) and v.dtype in narrow else v
            for n, v in inputs.items()
        }
        outputs = accuracy.as_tuple(self.spec.reference(**wide))
        return tuple(y.to(self.dtype) if y.is_floating_point() else y for y in outputs)


def is_defined(fn: Callable[..., Any], inputs: Inputs) -> bool:
    """Return whether it takes these inputs and gives finite numbers somewhere."""
    try:
        with torch.no_grad():
            outputs = accuracy.as_tuple(fn(**inputs))
        return all(bool(y.to(torch.float64).isfinite().any()) or not y.numel() for y in outputs)
    except Exception:
        return False


def _summary(tensor: Tensor) -> str:
    strange = tensor.numel() - int(tensor.to(torch.float64).isfinite().sum())
    return f"shape {tuple(tensor.shape)} with {strange} elements NaN or Inf"


def tensors(inputs: Inputs) -> dict[str, Tensor]:
    return {n: v for n, v in inputs.items() if isinstance(v, Tensor)}


def floating(inputs: Inputs) -> dict[str, Tensor]:
    return {n: t for n, t in tensors(inputs).items() if t.is_floating_point()}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether shape, dtype and bytes are equal: NaN equals itself, 0 differs from -0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    flat = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(*flat)


def storage_bytes(tensor: Tensor) -> Tensor:
    """Return a copy of the whole allocation behind the tensor, gaps included."""
    bare = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return bare.set_(tensor.untyped_storage()).clone()
