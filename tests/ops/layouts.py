"""Tensors in any order of dimensions, for the operators whose results keep it."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.core.specs.spec import Inputs, OpSpec
from fuseline.testing import Judge

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
    """Return the operator's tensors with this x, which require grad; another lies as results do."""
    names = {spec.keeps_layout: x}
    if "bias" in spec.differentiable:
        names["bias"] = torch.randn(x.shape[-1:], device=x.device).to(x.dtype)
    if "b" in spec.differentiable:
        names["b"] = torch.randn_like(x)
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
    given: Inputs = {n: t.detach() for n, t in inputs.items()}
    if name in ("bias_gelu", "geglu"):
        given["approximate"] = "tanh"
    outputs = {f"out{i}": y for i, y in enumerate(results)}
    gradients = dict(zip(inputs, grads, strict=True))
    wrong = Judge(spec, given, "fwd").wrong(outputs)
    wrong = wrong or Judge(spec, given, "bwd", tuple(dys)).wrong(gradients)
    assert wrong is None, (tuple(x.shape), x.stride(), x.dtype, wrong)


def strides(t: Tensor) -> list[int]:
    """Those of the dimensions of which there are several elements."""
    return [step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1]
