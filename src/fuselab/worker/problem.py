"""One group as tensors: the case, its inputs, the output gradients, and a copy to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fuselab.model import Group
from fuselab.timers import Call
from fuselab.worker import inputs as make
from fuselab.worker import specs
from fuselab.worker.protocol import Emit
from fuseline.core.spec import Case, Cost, Direction, Inputs, OpSpec
from fuseline.testing import accuracy

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class InputSet:
    """Inputs of one call; `dys` are the output gradients (None for the forward)."""

    inputs: Inputs
    dys: tuple[Tensor, ...] | None

    @property
    def tensors(self) -> dict[str, Tensor]:
        named = make.tensors(self.inputs)
        return named | {f"dy{i}": dy for i, dy in enumerate(self.dys or ())}

    @property
    def nbytes(self) -> int:
        return make.nbytes(self.tensors.values())


@dataclass
class Problem:
    """What every implementation of a group is given."""

    spec: OpSpec
    case: Case
    group: Group
    direction: Direction
    dtype: torch.dtype
    device: torch.device
    sets: list[InputSet]
    pristine: dict[str, Tensor]
    eager_dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    @property
    def first(self) -> InputSet:
        return self.sets[0]

    @property
    def cost(self) -> Cost:
        """Least traffic of one call, from the cost model or from inputs and outputs."""
        if self.spec.cost is not None:
            return self.spec.cost(self.first.inputs, self.direction)
        read = self.first.nbytes
        if self.direction == "fwd":
            with torch.no_grad():
                outputs = self.spec.reference(**self.first.inputs)
            return Cost(read, make.nbytes(accuracy.as_tuple(outputs)))
        names = accuracy.gradient_names(self.spec, self.first.inputs)
        return Cost(read, make.nbytes(self.first.inputs[name] for name in names))

    def grow(self, count: int) -> None:
        """Have at least `count` input sets."""
        while len(self.sets) < count:
            self.sets.append(self._make_set(len(self.sets)))

    def misshapen(self, results: dict[str, Any]) -> str:
        """Return which result is no tensor, or not of the kind it should be, or ""."""
        names = (*results, *(name for name in self.expected if name not in results))
        for name in names:
            if name not in self.expected:
                return f"{name} is one result more than the reference has"
            result, wanted = results.get(name), self.expected[name]
            if not isinstance(result, Tensor):
                return f"{name} is a {type(result).__name__}, expected a Tensor"
            shape, dtype = wanted
            if dtype != result.dtype and result.dtype == self.eager_dtypes.get(name):
                dtype = result.dtype
            came = (tuple(result.shape), result.dtype, result.device.type, result.layout)
            if came != (shape, dtype, self.device.type, torch.strided):
                return (
                    f"{name} has shape {came[0]}, {came[1]}, on {came[2]}, {came[3]}, "
                    f"expected {shape}, {dtype}, on {self.device.type}"
                )
        return ""

    @cached_property
    def expected(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each output, or of each gradient."""
        if self.direction == "fwd":
            named = {f"out{i}": y for i, y in enumerate(self._outputs(self.first.inputs))}
        else:
            names = accuracy.gradient_names(self.spec, self.first.inputs)
            named = {n: self.first.inputs[n] for n in names}
        return {n: (tuple(t.shape), t.dtype) for n, t in named.items()}

    def overwritten(self) -> tuple[str, ...]:
        """Return the names of the tensors of the first set that changed, and put them right."""
        changed = []
        for name, tensor in self.first.tensors.items():
            if not _same_bits(tensor, self.pristine[name]):
                changed.append(name)
                tensor.data = self.pristine[name].clone()
        return tuple(changed)

    def calls(self, fn: Callable[..., Any], count: int) -> list[Call]:
        """Return `count` calls to time, over rotating sets, the last one on the first set.

        Backward calls hold their graph, built here: each of them can run once.
        """
        turns = [self.sets[i % len(self.sets)] for i in reversed(range(count))]
        if self.direction == "fwd":
            return [_forward(fn, turn.inputs) for turn in turns]
        return [self._backward(fn, turn) for turn in turns]

    def named(self, output: Any) -> dict[str, Tensor]:
        """Return what a call of `calls` gave under the names that the checker uses."""
        if self.direction == "fwd":
            return {f"out{i}": y for i, y in enumerate(accuracy.as_tuple(output))}
        names = accuracy.gradient_names(self.spec, self.first.inputs)
        return {n: g for n, g in zip(names, output, strict=True) if g is not None}

    def _backward(self, fn: Callable[..., Any], turn: InputSet) -> Call:
        names = accuracy.gradient_names(self.spec, turn.inputs)
        leaves = {n: turn.inputs[n].detach().requires_grad_() for n in names}
        ys = accuracy.as_tuple(fn(**{**turn.inputs, **leaves}))
        pairs = [(y, dy) for y, dy in zip(ys, turn.dys or (), strict=True) if y.requires_grad]
        outputs, seeds = [y for y, _ in pairs], [dy for _, dy in pairs]
        wanted = list(leaves.values())
        return lambda: torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)

    def _make_set(self, index: int) -> InputSet:
        inputs, generator = make.make_set(
            self.spec, self.case, self.dtype, self.device, self.group.key, index
        )
        if self.direction == "fwd":
            return InputSet(inputs, None)
        like = self.first.dys if self.sets else self._outputs(inputs)
        return InputSet(inputs, accuracy.make_dys(like or (), generator))

    def _outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        with torch.no_grad():
            outputs = accuracy.as_tuple(self.spec.reference(**inputs))
        # The oracle may compute in fp64; implementations answer in the dtype of the case.
        return tuple(y.to(self.dtype) if y.is_floating_point() else y for y in outputs)


def build(group: Group, emit: Emit) -> Problem:
    """Return the problem of a group with its first input set."""
    emit("start", "", "inputs")
    spec = specs.load(group.source)[group.op]
    case = next(c for c in spec.cases if c.name == group.case)
    direction: Direction = "bwd" if group.direction == "bwd" else "fwd"
    device = torch.device(group.device)
    dtype: torch.dtype = getattr(torch, group.dtype)
    problem = Problem(spec, case, group, direction, dtype, device, [], {})
    problem.grow(1)
    problem.pristine = {n: t.clone() for n, t in problem.first.tensors.items()}
    return problem


def rotation(problem: Problem, calls: int) -> int:
    """Return how many input sets to rotate through for blocks of so many calls."""
    return make.how_many(problem.first.nbytes, problem.device, calls)


def _forward(fn: Callable[..., Any], inputs: Inputs) -> Call:
    return lambda: fn(**inputs)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    word = _WORDS.get(a.element_size())
    return torch.equal(a, b) if word is None else torch.equal(a.view(word), b.view(word))
