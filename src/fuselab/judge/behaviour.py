"""Questions to a solution whose answers have names: what it keeps, returns, reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from fuselab.judge.compared import error, near, same
from fuselab.worker.operators.pairs import Problem
from fuseline.core.specs.spec import Inputs
from fuseline.testing.oracle import accuracy
from fuseline.testing.poison import poison

# Under which authors of benchmarks call get_inputs.
USUAL = (0, 1, 42, 123, 1234, 2024)
# So many calls on changing inputs, for so long.
CALLS, SECONDS = 40, 2.0
NARROW = (torch.bfloat16, torch.float16)
# An error that other orders of the same sums do not explain.
ROUGHER = 64.0
Call = Callable[..., Any]
Finding = tuple[str, str]


@dataclass(frozen=True)
class Looked:
    """A problem, two sets of its inputs, Model's results on them, those of the first in fp64."""

    problem: Problem
    given: tuple[Inputs, ...]
    wanted: tuple[tuple[Tensor, ...], ...]
    exact: tuple[Tensor, ...]


def findings(looked: Looked, call: Call, module: Any) -> Iterator[Finding]:
    """Yield (name, text) of what the solution, the module, is seen to do by calls of it."""
    before, (right_a, right_b) = looked.given[0], looked.wanted
    a = copied(before)
    output = call(*a.values())
    if kind := _odd(output):
        yield "lazy", kind
        return
    changed = [n for n, v in a.items() if isinstance(v, Tensor) and not same((v,), (before[n],))]
    if changed:
        yield "overwrites", ", ".join(changed)
    first = _results(output)
    right = near(first, right_a)
    if not right:
        yield from _explained(looked, call, first)
    elif narrow := _narrow(first, right_a):
        yield "precision", f"every value is one of {narrow}"
    elif (rougher := _rougher(looked, first)) > ROUGHER:
        yield "precision", f"its error is {rougher:.3g} times Model's"
    kept = _kept(looked, call, first) if right and not near(right_a, right_b) else ""
    if kept:
        yield kept, ""
    elif right:
        yield from _elsewhere(looked, call, module)


def _explained(looked: Looked, call: Call, first: tuple[Tensor, ...]) -> Iterator[Finding]:
    """Yield what explains results that are plainly wrong."""
    (a, b), problem = looked.given, looked.problem
    tensors = {n: v for n, v in a.items() if isinstance(v, Tensor)}
    given = [n for n, v in tensors.items() if any(same((y,), (v,)) for y in first)]
    if given:
        yield "input", ", ".join(given)
    elif same(first, _results(call(*copied(b).values()))):
        yield "constant", ""
    for seed in USUAL:
        usual = problem.drawn.under(seed, constants=True)
        right = accuracy.results(problem.model(*copied(usual).values()))
        if near(_results(call(*usual.values())), right):
            yield "seeds", f"right under seed {seed}"
            break
    poison(first)
    unwritten = [y for y in _results(call(*copied(a).values())) if y.is_floating_point()]
    if any(y.isnan().any() for y in unwritten) and not any(y.isnan().any() for y in looked.exact):
        yield "unwritten", ""


def _kept(looked: Looked, call: Call, first: tuple[Tensor, ...]) -> str:
    """Return the name of how a solution that was right keeps results, or ""."""
    a = copied(looked.given[0])
    call(*a.values())
    for name, value in a.items():
        if isinstance(value, Tensor):
            value.data.copy_(looked.given[1][name])  # neither address nor version tells of it
    if same(_results(call(*a.values())), first):
        return "address"
    begin = monotonic()
    turns = cycle(zip(looked.given, looked.wanted, strict=True))
    for given, right in islice(turns, CALLS):
        if not near(_results(call(*copied(given).values())), right):
            return "later"
        if monotonic() - begin > SECONDS:
            break
    return ""


def _elsewhere(looked: Looked, call: Call, theirs: Any) -> Iterator[Finding]:
    """Yield where a solution that was right is wrong: on other values, with other weights."""
    problem, a = looked.problem, looked.given[0]
    if not _agrees(problem.model, call, {n: _normal(v) for n, v in a.items()}):
        yield "values", ""
    ours = problem.model
    if not isinstance(theirs, torch.nn.Module) or not [*ours.parameters()]:
        return
    state = {n: _normal(v) for n, v in ours.state_dict().items()}
    try:
        theirs.load_state_dict(state)
    except RuntimeError:
        return  # of other names or shapes: nothing can be asked
    ours.load_state_dict(state)
    if not _agrees(ours, call, a):
        yield "weights", ""


def _agrees(model: Call, call: Call, given: Inputs) -> bool:
    """Say whether the solution gives what Model gives, where Model takes such values at all."""
    try:
        right = _results(model(*copied(given).values()))
    except Exception:
        return True
    try:
        return near(_results(call(*copied(given).values())), right)
    except Exception:
        return False


def _normal(value: Any) -> Any:
    """Return normal numbers in the place of floating ones, as large as these."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return value
    finite = value.isfinite()
    size = value[finite].double().square().mean().sqrt() if finite.any() else 1.0
    drawn = torch.randn(value.shape, dtype=torch.float64, device=value.device) * size
    return torch.where(finite, drawn.to(value.dtype), value)


def _odd(output: Any) -> str:
    """Return the type of a result that is no plain tensor, or ""."""
    for y in accuracy.as_tuple(output) if isinstance(output, (tuple, list, Tensor)) else (output,):
        if type(y) not in (Tensor, torch.nn.Parameter):
            return type(y).__name__
        if own := accuracy.replaced_methods(y):
            return f"a Tensor with its own {own}"
    return ""


def _narrow(results: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> str:
    """Return the narrower dtype that holds all values of a result, though not all of Model's."""
    for mine, theirs in zip(results, right, strict=True):
        for dtype in NARROW if mine.dtype in (torch.float32, torch.float64) else ():
            if _holds(dtype, mine) and not _holds(dtype, theirs):
                return str(dtype).removeprefix("torch.")
    return ""


def _holds(dtype: torch.dtype, t: Tensor) -> bool:
    return same((t.to(dtype).to(t.dtype),), (t,))


def _rougher(looked: Looked, results: tuple[Tensor, ...]) -> float:
    eps = max((torch.finfo(y.dtype).eps for y in results if y.is_floating_point()), default=1.0)
    return error(results, looked.exact) / max(error(looked.wanted[0], looked.exact), eps)


def _results(output: Any) -> tuple[Tensor, ...]:
    return tuple(y.detach().clone() for y in accuracy.results(output))


def copied(given: Inputs) -> Inputs:
    return {n: v.clone() if isinstance(v, Tensor) else v for n, v in given.items()}
