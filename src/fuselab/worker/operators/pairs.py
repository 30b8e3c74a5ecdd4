"""A problem and a solution in KernelBench's form as an operator of the lab.

The problem's file has `class Model(nn.Module)`, `get_inputs()` and, if it takes any,
`get_init_inputs()`; the solution's has `class ModelNew`, which takes what Model takes. Model in
fp64 is the reference, as it stands the eager implementation. The solution's file is run at its
first call, so that only processes that call it run it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuselab.worker.operators.pair_inputs import Drawn, PairError, seeded
from fuselab.worker.operators.user_file import execute
from fuseline.core.specs.spec import Budget, Case, Implementation, Inputs, OpSpec
from fuseline.testing.oracle import accuracy

# Before the record of a pair, as a source of `specs.load`.
SOURCE = "pair "
NAME, CASE = "pair", "fresh"
EAGER, SOLUTION = "eager", "solution"
# Times an operator's own limits, as other projects' kernels get.
LENIENCY = 16.0
BUDGET = replace(Budget(*(LENIENCY * limit for limit in astuple(Budget()))), gradients=True)


@dataclass(frozen=True)
class Pair:
    """A problem's file, a solution's, the seed of the weights, the device."""

    problem: str
    solution: str
    seed: int
    device: str

    @property
    def source(self) -> str:
        """The pair as a text, by which processes of the lab hand it on."""
        return SOURCE + json.dumps(asdict(self))

    @classmethod
    def of(cls, source: str) -> Pair:
        """Return the pair of such a text."""
        return cls(**json.loads(source.removeprefix(SOURCE)))


class Problem:
    """What the problem's file has, its Model with the weights of the seed."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        module = _executed(pair.problem, "fuselab_problem")
        self.model_class = _has(module, "Model", pair.problem)
        with seeded(pair.seed):
            self.init_inputs = tuple(getattr(module, "get_init_inputs", tuple)())
        self.model = made(self.model_class, self)
        self.drawn = Drawn(_has(module, "get_inputs", pair.problem), torch.device(pair.device))


def made(of: Callable[..., Any], problem: Problem) -> Any:
    """Return a module of the class on the pair's device, made under the seed of the weights."""
    with seeded(problem.pair.seed):
        module = of(*deepcopy(problem.init_inputs))
    return module.to(problem.pair.device) if isinstance(module, torch.nn.Module) else module


def solution(problem: Problem) -> Any:
    """Run the solution's file and return its ModelNew with the weights of the problem's Model.

    By the seed, as they come when both make the same in the same order; where names and shapes are
    the same and values are not, Model's are loaded.
    """
    path = problem.pair.solution
    module = made(_has(_executed(path, "fuselab_solution"), "ModelNew", path), problem)
    if isinstance(module, torch.nn.Module):
        mine, theirs = module.state_dict(), problem.model.state_dict()
        alike = mine.keys() == theirs.keys() and all(
            mine[n].shape == theirs[n].shape and mine[n].dtype == theirs[n].dtype for n in mine
        )
        if alike and not all(torch.equal(mine[n], theirs[n]) for n in mine):
            module.load_state_dict(theirs)
    return module


def spec(pair: Pair) -> OpSpec:
    """Return the operator of a pair: a case of fresh inputs, eager and the solution."""
    problem = Problem(pair)
    model = problem.model

    def eager(**inputs: Any) -> Any:
        return model(*inputs.values())

    return OpSpec(
        name=NAME,
        reference=in_fp64(model),
        implementations=(
            Implementation(EAGER, eager, "eager"),
            Implementation(SOLUTION, _AtFirstCall(problem)),
        ),
        make_inputs=lambda case, dtype, device, generator: problem.drawn.inputs(generator),
        cases=(Case(CASE, {}),),
        structured=True,  # who wrote get_inputs knows; we do not
        budget=BUDGET,
    )


class _AtFirstCall:
    """The solution, whose file is run when it is first called."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._module: Any = None

    def __call__(self, **inputs: Any) -> Any:
        if self._module is None:
            self._module = solution(self._problem)
        return self._module(*inputs.values())


def in_fp64(model: Any) -> Callable[..., Any]:
    """Return a copy of the model that computes in fp64, called as implementations are."""
    exact = deepcopy(model).double()

    def reference(**inputs: Any) -> tuple[Tensor, ...]:
        with _default_fp64():
            return accuracy.as_tuple(exact(*_wide(inputs).values()))

    return reference


def _wide(inputs: Inputs) -> Inputs:
    floating = {n for n, v in inputs.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return {n: v.double() if n in floating else v for n, v in inputs.items()}


@contextmanager
def _default_fp64() -> Iterator[None]:
    """Have what the model makes inside, without a dtype, be fp64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _executed(path: str, name: str) -> Any:
    if not Path(path).is_file():
        raise PairError(f"{path}: no such file")
    return execute(Path(path), name)


def _has(module: Any, name: str, path: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        raise PairError(f"{path}: has no {name}, expected one as KernelBench has it")
    return found
