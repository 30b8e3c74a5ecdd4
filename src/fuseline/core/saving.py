"""The autograd.Function of an operator, told by the names of what its kernels take and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fuseline.core.gradients import differentiable_backward, wants_graph

Function = Callable[..., Any]


@dataclass(frozen=True)
class Parameter:
    """One argument of a schema: its name, whether it is a tensor, and its default."""

    name: str
    is_tensor: bool
    default: Any = None

    @staticmethod
    def all(arguments: str) -> tuple[Parameter, ...]:
        """Return those of a schema's text, whose defaults are numbers or None."""
        return tuple(map(Parameter._of, arguments.split(", ")))

    @staticmethod
    def _of(argument: str) -> Parameter:
        kind, _, text = argument.rpartition(" ")
        name, _, default = text.partition("=")
        value = None if default in ("", "None") else float(default)
        return Parameter(name, kind.startswith("Tensor"), value)


@dataclass(frozen=True)
class Gradient:
    """What an operator saves, and what its backward takes and gives, by name.

    results  those of the forward that saves, the outputs first; the gradient of `y` is `dy`
    grads    for each result of the backward the argument that it is the gradient of
    outputs  how many results are outputs
    formula  (what the backward takes, without `need_...`) -> its results, in differentiable torch
             operations; None: `decomposed` of all arguments is differentiated
    alike    two arguments of which the backward gives gradients of the first's dtype, so that it is
             given the first in the dtype that holds both
    shared   (argument, the result or argument that has the same gradient): autograd sums it over
             what was broadcast, and copies it where it would be kept or added to
    works    the argument without which the gradient of `grads` is that of the output: then the
             backward is not called

    The backward takes gradients of outputs, arguments of the forward and its results, each by its
    name, and `need_d<argument>`, whether that gradient is wanted.
    """

    results: tuple[str, ...]
    grads: tuple[str, ...]
    outputs: int = 1
    formula: Function | None = None
    alike: tuple[str, str] | None = None
    shared: tuple[tuple[str, str], ...] = ()
    works: str | None = None


@dataclass(frozen=True)
class Plan:
    """A gradient's names as places. `values`: dys, saved tensors, saved others, needs.

    name  of the autograd.Function
    """

    name: str
    gradient: Gradient
    args: tuple[Parameter, ...]
    bwd_args: tuple[Parameter, ...]
    decomposed: Function

    @cached_property
    def dys(self) -> tuple[str, ...]:
        return tuple(f"d{name}" for name in self.gradient.results[: self.gradient.outputs])

    @cached_property
    def pool(self) -> tuple[Parameter, ...]:
        """What can be saved: arguments, then results."""
        return (*self.args, *(Parameter(name, True) for name in self.gradient.results))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The places in `pool` of what is saved, tensors first."""
        wanted = {p.name for p in self.bwd_args} | {self.gradient.works}
        if self.gradient.formula is None:
            wanted |= {p.name for p in self.args}
        # An argument may have the name of a result, as dy of a backward's operator.
        places = {p.name: i for i, p in reversed([*enumerate(self.pool)]) if p.name in wanted}
        return tuple(sorted(places.values(), key=lambda i: (not self.pool[i].is_tensor, i)))

    @cached_property
    def tensors(self) -> int:
        """How many of those are tensors."""
        return sum(self.pool[i].is_tensor for i in self.kept)

    @cached_property
    def values(self) -> tuple[str, ...]:
        saved = (self.pool[i].name for i in self.kept)
        return (*self.dys, *saved, *(f"need_d{p.name}" for p in self.args))

    def places(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return where in `values` these are."""
        return tuple(map(self.values.index, names))

    @cached_property
    def taken(self) -> tuple[int, ...]:
        """Where in `values` the backward's arguments are."""
        return self.places(tuple(p.name for p in self.bwd_args))

    @cached_property
    def gives(self) -> tuple[int, ...]:
        """The arguments that the backward has gradients of: its results', then those shared."""
        return self._arguments(*self.gradient.grads, *dict(self.gradient.shared))

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """Where each of these gradients comes from: 0 is the output's own, then the results."""
        of = (*self.gradient.results[:1], *self.gradient.grads)
        shared = (of.index(other) for _, other in self.gradient.shared)
        return (*range(1, len(of)), *shared)

    @cached_property
    def works(self) -> int:
        """Where in `values` `Gradient.works` is, or -1."""
        return self.values.index(self.gradient.works) if self.gradient.works else -1

    def _arguments(self, *names: str) -> tuple[int, ...]:
        return tuple(map([p.name for p in self.args].index, names))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """The arguments whose dtypes must be the same for the backward."""
        return self._arguments(*(self.gradient.alike or ()))

    @cached_property
    def by_formula(self) -> Function:
        """(needs, *values without needs) -> the gradient of each argument or None."""
        dys, formula = len(self.dys), self.gradient.formula
        if formula is None:
            taken = self.places(tuple(p.name for p in self.args))

            def differentiated(needs: tuple[bool, ...], *values: Any) -> Any:
                args = [values[i] for i in taken[: len(needs)]]
                return differentiable_backward(self.decomposed, args, needs, *values[:dys])

            return differentiated
        own = self.places(tuple(p.name for p in self.bwd_args if not p.name.startswith("need_d")))

        def written(needs: tuple[bool, ...], *values: Any) -> Any:
            idle = self.works >= 0 and not values[self.works]
            made = None if idle else formula(*(values[i] for i in own))
            return self.placed(needs, values[0], made)

        return written

    @cached_property
    def beyond(self) -> tuple[int, ...]:
        """The tensors of which the backward gives no gradient: the formula does."""
        tensors = (i for i, p in enumerate(self.args) if p.is_tensor)
        return tuple(i for i in tensors if i not in self.gives)

    def called(self, needs: tuple[bool, ...], values: tuple[Any, ...]) -> bool:
        """Whether a gradient that is wanted is the backward's."""
        if self.works >= 0 and not values[self.works]:
            return False
        return not self.gradient.shared or any(
            needs[place] and source for place, source in zip(self.gives, self.sources, strict=True)
        )

    def placed(self, needs: tuple[bool, ...], dy: Tensor, made: Any) -> list[Tensor | None]:
        """Return the backward's results, None if it was not called, as gradients of all arguments;
        dy is the gradient of the first output.
        """
        results = (dy, *(made if type(made) is tuple else (made,)))
        grads: list[Tensor | None] = [None] * len(needs)
        for place, source in zip(self.gives, self.sources, strict=True):
            if needs[place]:
                grads[place] = results[0 if made is None else source]
        return grads


Maker = Callable[[Function, Function], type[torch.autograd.Function]]


def function(plan: Plan) -> Maker:
    """Return (fwd, bwd) -> the autograd.Function over them, called after the operator."""
    outputs, tensors = plan.gradient.outputs, plan.tensors
    by_formula, beyond = plan.by_formula, plan.beyond
    keep, take = _picking(plan.kept), _picking(plan.taken)
    defaults = tuple(p.default for p in plan.args)
    alike = plan.places(plan.gradient.alike or ())

    def of(fwd: Function, bwd: Function) -> type[torch.autograd.Function]:
        def forward(ctx: Any, *args: Any) -> Any:
            made = fwd(*args)
            results = made if type(made) is tuple else (made,)
            kept = keep((*args, *defaults[len(args) :], *results))
            ctx.save_for_backward(*kept[:tensors])
            ctx.rest = kept[tensors:]
            return results[:outputs] if outputs > 1 else results[0]

        def backward(ctx: Any, *dys: Any) -> Any:
            # Of the arguments that were given; those left out need none.
            saved, needs = ctx.saved_tensors, ctx.needs_input_grad
            values = (*dys, *saved, *ctx.rest)
            if any(needs[i] for i in beyond if i < len(needs)) or wants_graph((*dys, *saved)):
                return tuple(by_formula(needs, *values))
            given = (*_widened(values, *alike), *needs) if alike else (*values, *needs)
            made = bwd(*take(given)) if plan.called(needs, values) else None
            return tuple(plan.placed(needs, dys[0], made))

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(plan.name, (torch.autograd.Function,), members)

    return of


def _picking(places: tuple[int, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return what takes these elements out of a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[i] for i in places)


def _widened(values: tuple[Any, ...], first: int, second: int) -> tuple[Any, ...]:
    """Return the values with the first of two tensors in the dtype that holds both."""
    a, b = values[first], values[second]
    if a is None or b is None or a.dtype == b.dtype:
        return values
    wide = a.to(torch.promote_types(a.dtype, b.dtype))
    return (*values[:first], wide, *values[first + 1 :])
