"""In which calls our operator gives what the modules of a chain give: beside fp64, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from fuseline.patching.pairs.chain import Members, of_plain_tensors
from fuseline.patching.probe import Unlike, autocast, channels_last, transposed

# To which dtype autocast goes, training, whether a gradient is wanted.
Cell = tuple[torch.dtype | None, bool, bool]

AUTOCASTS = (None, torch.bfloat16, torch.float16)
# Most of our error: times the modules' own; beside the largest element, eps of the dtype, and the
# square root of the number of products in a sum, whose order may be another, times eps of the type
# that they are added in.
TIMES_OWN, OF_LARGEST = 2.0, 4.0
# Results closer to 0 than this part of the largest have no gradient here: rounding decides whether
# ReLU lets it pass.
NEAR_ZERO = 0.05


@dataclass(frozen=True)
class Proof:
    """The cells in which a chain was shown to give what its modules give, and why no others."""

    cells: frozenset[Cell]
    missing: tuple[str, ...]


def prove(chain: Any, members: Members, device: torch.device) -> Proof:
    """Compare a chain with its modules, on parameters of its own."""
    cells: set[Cell] = set()
    missing: dict[str, str] = {}
    dtype = chain.tensors(members)[0].dtype
    drawn, wide = (_Drawn(chain, members, device, to) for to in (None, torch.float32))
    for training in (True, False):
        mode = "training" if training else "eval"
        # Half types cannot tell all functions from one another.
        if why := _differs(wide, training, False, None):
            missing[f"in {mode}"] = why
            continue
        for to, graph in product(AUTOCASTS, (True, False)):
            if why := _differs(drawn, training, graph, to):
                cast = "" if to is None else f" under autocast to {to}"
                missing.setdefault(f"in {mode}{cast}, {dtype}", why)
            else:
                cells.add((to, training, graph))
    return Proof(frozenset(cells), tuple(f"{where}: {why}" for where, why in missing.items()))


def _differs(drawn: _Drawn, training: bool, graph: bool, to: torch.dtype | None) -> str | None:
    """Return why a chain does not give what its modules give in one cell, or None."""
    try:
        with autocast(drawn.device, to):
            for shape, layout in _inputs(drawn.chain, drawn.members, few=to is not None):
                _Trial(drawn, training, shape, layout).check(graph)
    except Exception as error:  # whatever refuses it
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


def _inputs(chain: Any, members: Members, few: bool) -> Iterator[tuple[Any, Any]]:
    """Give shapes and layouts of x."""
    for shape in chain.probes(members):
        yield shape, channels_last if len(shape) == 4 else transposed
        if few:
            return
        yield shape, None


class _Trial:
    """One comparison of a chain with its modules, for a random x."""

    def __init__(self, drawn: _Drawn, training: bool, shape: Any, layout: Any) -> None:
        self.chain, self.randn = drawn.chain, drawn.randn
        self.ours, self.theirs = (_clones(drawn.members, training) for _ in range(2))
        self.exact = _clones(drawn.exact, training)
        weight = drawn.chain.tensors(drawn.members)[0]
        x = self.randn(shape).to(weight.device, weight.dtype)
        self.x = x if layout is None else layout(x)

    def check(self, graph: bool) -> None:
        """Raise Unlike if our error is larger than the modules' own explains."""
        if why := of_plain_tensors(self.chain.tensors(self.ours), self.x):
            raise Unlike(why)
        for _ in range(2 if self.chain.training(self.ours) else 1):
            with torch.set_grad_enabled(graph):
                self._step(graph)
        with torch.no_grad():
            x = self.x.clone(memory_format=torch.preserve_format)
            x[(0,) * x.dim()] = float("nan")
            ours, theirs = self.chain.compute(x, self.ours), self.chain.own(x, self.theirs)
        if not torch.equal(ours.isnan(), theirs.isnan()):
            raise Unlike("its results differ where x is NaN")

    def _step(self, graph: bool) -> None:
        inputs = [self.x.clone(memory_format=torch.preserve_format) for _ in range(2)]
        inputs.append(self.x.double())
        for x in inputs:
            x.requires_grad_(graph)
        ours = self.chain.compute(inputs[0], self.ours)
        theirs = self.chain.own(inputs[1], self.theirs)
        with autocast(self.x.device, None):
            exact = self.chain.own(inputs[2], self.exact)
        if (ours.dtype, ours.shape, ours.stride()) != (theirs.dtype, theirs.shape, theirs.stride()):
            raise Unlike(f"its result is {_form(theirs)}, ours {_form(ours)}")
        size = float(exact.detach().abs().max())
        _compare("result", ours, theirs, exact, self._unit(ours.dtype) * size)
        if graph:
            self._gradients((ours, theirs, exact), inputs)
        for (name, a), (_, b), (_, c) in zip(*map(_buffers, self._all()), strict=True):
            _compare(name, a, b, c, self._unit(ours.dtype) * float(c.abs().max()))

    def _gradients(self, results: tuple[Tensor, ...], inputs: list[Tensor]) -> None:
        exact = results[2].detach()
        dy = self.randn(exact.shape).to(exact)
        dy = dy.to(results[0].dtype).masked_fill(self._near_zero(exact), 0)
        found = []
        for y, x, members in zip(results, inputs, self._all(), strict=True):
            leaves = [x, *(p for m in members for p in m._parameters.values() if p is not None)]
            found.append(torch.autograd.grad(y, leaves, dy.to(y.dtype)))
        # Some are 0 but for rounding, as of a bias before a norm: the largest says what that is.
        largest = max(float(t.abs().max()) for t in found[2])
        names = ["x", *(n for m in self.ours for n, p in m._parameters.items() if p is not None)]
        for name, a, b, c in zip(names, *found, strict=True):
            _compare(f"gradient of {name}", a, b, c, self._unit(results[0].dtype) * largest)

    def _unit(self, dtype: torch.dtype) -> float:
        """Return what rounding explains in elements of size 1."""
        products = self.chain.tensors(self.ours)[0][0].numel()
        added_in = torch.promote_types(dtype, torch.float32)
        order = products**0.5 * torch.finfo(added_in).eps
        return float(OF_LARGEST * torch.finfo(dtype).eps + order)

    def _near_zero(self, exact: Tensor) -> Tensor:
        return exact.abs() <= NEAR_ZERO * exact.abs().max()

    def _all(self) -> tuple[Members, ...]:
        return self.ours, self.theirs, self.exact


class _Drawn:
    """The modules of a chain with random parameters, and statistics away from zero."""

    def __init__(
        self, chain: Any, members: Members, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        self.chain, self.device, self.generator = chain, device, torch.Generator()
        self.generator.seed()
        self.members = _clones([self._copy(m) for m in members], False, dtype)
        self.exact = _clones(self.members, False, torch.float64)

    def randn(self, shape: Any) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def _copy(self, module: Module) -> Any:
        made: Any = object.__new__(type(module))
        vars(made).update(vars(module))
        for kind, draw in (("_parameters", self._parameter), ("_buffers", self._statistic)):
            vars(made)[kind] = {
                n: None if t is None else draw(n, t) for n, t in vars(module)[kind].items()
            }
        return made

    def _parameter(self, name: str, p: Tensor) -> Parameter:
        drawn = self.randn(p.shape) / (p[0].numel() ** 0.5 if p.dim() > 1 else 1.0)
        return Parameter(torch.empty_like(p, device=self.device).copy_(drawn))

    def _statistic(self, name: str, t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return torch.full_like(t, 3, device=self.device)
        drawn = self.randn(t.shape)
        drawn = drawn.clamp(-3, 3).exp() if name == "running_var" else drawn
        return drawn.to(self.device, t.dtype)


def _clones(members: Sequence[Any], training: bool, dtype: torch.dtype | None = None) -> Members:
    return tuple(_clone(m, training, dtype) for m in members)


def _clone(module: Any, training: bool, dtype: torch.dtype | None) -> Any:
    made: Any = object.__new__(type(module))
    vars(made).update(vars(module), training=training)
    for kind in ("_parameters", "_buffers"):
        tensors = {n: t if t is None else _cast(t, dtype) for n, t in vars(module)[kind].items()}
        vars(made)[kind] = tensors
    return made


def _cast(t: Tensor, dtype: torch.dtype | None) -> Tensor:
    to = dtype if dtype is not None and t.is_floating_point() else t.dtype
    made = t.detach().clone(memory_format=torch.preserve_format).to(to)
    return Parameter(made) if isinstance(t, Parameter) else made


def _buffers(members: Members) -> list[tuple[str, Tensor]]:
    return [(n, t) for m in members for n, t in m._buffers.items() if t is not None]


def _compare(name: str, ours: Tensor, theirs: Tensor, exact: Tensor, rounding: float) -> None:
    """Raise Unlike where ours is farther from the exact value than rounding explains."""
    if not ours.is_floating_point():
        if not torch.equal(ours, theirs):
            raise Unlike(f"its {name} is {theirs.tolist()}, ours {ours.tolist()}")
        return
    with torch.no_grad():
        errors = [float((t.double() - exact).abs().max()) for t in (ours, theirs)]
    if not errors[0] <= TIMES_OWN * errors[1] + rounding:
        raise Unlike(f"the error of its {name} is {errors[0]:.2g}, its own {errors[1]:.2g}")


def _form(y: Tensor) -> str:
    return f"{y.dtype} of shape {tuple(y.shape)} and strides {y.stride()}"
