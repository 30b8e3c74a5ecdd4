"""Tensors in any order of dimensions, for the operators whose results keep it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.core.spec import Direction, OpSpec
from fuseline.testing.accuracy import errors_of_each, over_budget

KEEPING = sorted(name for name, spec in table.load().items() if spec.keeps_layout)
SHAPES = ((5, 7), (70, 300), (300, 70), (2, 3, 5), (4, 33, 65), (2, 3, 1, 65), (2, 64, 3, 20))
# Every order of the dimensions of each shape in memory.
LAYOUTS = [(shape, order) for shape in SHAPES for order in permutations(range(len(shape)))]


def laid_out(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype, device: str, gap: int = 0
) -> Tensor:
    """Random numbers whose dimensions lie in memory in this order; `gap` more in the fastest."""
    sizes = [shape[d] for d in order]
    sizes[-1] += gap
    stored = torch.randn(sizes, device=device).to(dtype)
    view = stored.narrow(-1, gap // 2, sizes[-1] - gap)
    return view.permute([order.index(d) for d in range(len(order))])


def inputs_with(spec: OpSpec, x: Tensor) -> dict[str, Tensor]:
    """Return the operator's tensors with this x, which require grad."""
    names = {"x": x}
    if "bias" in spec.differentiable:
        names["bias"] = torch.randn(x.shape[-1:], device=x.device).to(x.dtype)
    return {name: t.detach().requires_grad_() for name, t in names.items()}


def as_tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def run(name: str, inputs: dict[str, Tensor], **options: str) -> tuple[Tensor, ...]:
    return as_tuple(getattr(fuseline, name)(**inputs, **options))


def keeps_the_budget(name: str, x: Tensor, impl: str = "auto") -> None:
    """Outputs and gradients, of which the last comes in the reverse order of dimensions."""
    spec = table.load()[name]
    inputs = inputs_with(spec, x)
    results = run(name, inputs, impl=impl)
    dys = [torch.randn_like(t) for t in results]
    dys[-1] = dys[-1].permute(*range(dys[-1].dim())[::-1]).contiguous()
    dys[-1] = dys[-1].permute(*range(dys[-1].dim())[::-1])
    grads = torch.autograd.grad(results, tuple(inputs.values()), dys)
    plain = {n: t.detach().clone().requires_grad_() for n, t in inputs.items()}
    yards = as_tuple(spec.eager.fn(**plain))
    yard_grads = torch.autograd.grad(yards, tuple(plain.values()), dys)
    names = tuple(f"out{i}" for i in range(len(results)))
    _within(spec, inputs, "fwd", dict(zip(names, results, strict=True)), yards, dys)
    _within(spec, inputs, "bwd", dict(zip(inputs, grads, strict=True)), yard_grads, dys)


def _within(
    spec: OpSpec,
    inputs: dict[str, Tensor],
    direction: Direction,
    results: dict[str, Tensor],
    yards: Sequence[Tensor],
    dys: Sequence[Tensor],
) -> None:
    rows = {name: t.detach() for name, t in inputs.items()}
    given = {**rows, "approximate": "tanh"} if spec.name == "bias_gelu" else rows
    mine = {name: t.detach() for name, t in results.items()}
    theirs = {name: t.detach() for name, t in zip(results, yards, strict=True)}
    figures, yard = errors_of_each(spec, given, direction, (mine, theirs), tuple(dys))
    for name in results:
        dtype = rows["x"].dtype
        wrong = over_budget(spec.budget, dtype, direction, figures[name], yard[name])
        layout = tuple(rows["x"].shape), rows["x"].stride()
        assert wrong is None, (*layout, direction, name, wrong)


def strides(t: Tensor) -> list[int]:
    """Those of the dimensions of which there are several elements."""
    return [step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1]
