"""What the specs of gated operators, y = f(a) * b, try alike: problem sizes, costs, bad inputs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Case, Cost, Direction, ErrorCase, Inputs

# Tokens, and the width of the feed-forward layers of Llama 3 8B and 70B and of Qwen 2.5 7B.
_MODELS = ((4096, 14336), (8192, 14336), (2048, 18944), (8192, 28672))
_EITHER = {"quick", "check", "gated"}  # suites that try both forms

SUITE_DTYPES = {**fusion_cases.SUITE_DTYPES, "gated": (torch.bfloat16,)}


def cases() -> tuple[Case, ...]:
    """Return the study's shapes, of which those that are tried first come packed too, and the suite
    "gated": what models have.
    """
    models = (Case("x".join(map(str, s)), {"shape": s}, ("gated",)) for s in _MODELS)
    apart = (*fusion_cases.cases(), *models)
    packed = (
        replace(c, name=f"{c.name}-packed", suites=tuple(s for s in c.suites if s in _EITHER))
        for c in apart
        if _EITHER.intersection(c.suites)
    )
    return (
        *(replace(c, args={**c.args, "packed": False}) for c in apart),
        *(replace(c, args={**c.args, "packed": True}) for c in packed),
    )


def make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    """Return a and b of the case's shape from N(0, 1), or both in one tensor."""
    *lead, n = case.args["shape"]
    packed = case.args["packed"]

    def drawn(n: int) -> Tensor:
        return torch.randn((*lead, n), dtype=dtype, device=device, generator=generator)

    return {"a": drawn(2 * n if packed else n), "b": None if packed else drawn(n)}


def cost(flops: tuple[int, int], inputs: Inputs, direction: Direction) -> Cost:
    """Return what one call takes; flops of an element, forward and backward."""
    size = inputs["a"].numel() * inputs["a"].element_size()
    both = size if inputs["b"] is None else 2 * size
    one, elements = both // 2, both // 2 // inputs["a"].element_size()
    if direction == "fwd":
        return Cost(both, one, flops=flops[0] * elements)
    return Cost(both + one, both, flops=flops[1] * elements)


def errors() -> tuple[ErrorCase, ...]:
    """Return the bad inputs of every gated operator: those of a and b."""
    ones = torch.ones(3, 8)
    bad = partial(ErrorCase.changed, {"a": ones, "b": ones})
    return (
        bad("integer_a", TypeError, "a", "int64", "float32", a=torch.arange(24).view(3, 8)),
        bad("not_a_tensor", TypeError, "a", "list", a=[1.0, 2.0]),
        bad("b_shape", ValueError, "b", "(8,)", "(3, 8)", b=torch.ones(8)),
        bad("b_dtype", TypeError, "b", "float16", "float32", b=ones.half()),
        bad("b_device", ValueError, "b", "meta", b=ones.to("meta")),
        bad("b_not_a_tensor", TypeError, "b", "float", "Tensor", b=1.0),
        bad("odd_packed", ValueError, "a", "(3, 7)", "even", a=torch.ones(3, 7), b=None),
        bad("scalar_packed", ValueError, "a", "()", "even", a=torch.ones(()), b=None),
    )
