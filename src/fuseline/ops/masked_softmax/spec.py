"""The row of masked_softmax: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import (
    Budget,
    Case,
    Cost,
    Direction,
    Implementation,
    Inputs,
    OpSpec,
    ours,
)
from fuseline.ops.masked_softmax import impl_eager, reference
from fuseline.ops.masked_softmax.op import SELECTOR, masked_softmax

_SCORES = tuple((1 << 24 - 2 * k, 1 << k, 1 << k) for k in range(7, 12))  # of attention


def _case(
    shape: tuple[int, ...],
    *suites: str,
    mask: str = "none",
    causal: bool = False,
    scale: float = 0.125,
    log: bool = False,
) -> Case:
    """Return a case; mask: "none", of x's shape ("same") or a "row" of it."""
    name = "x".join(map(str, shape)) + f"-{mask}" * (mask != "none")
    name += "-causal" * causal + "-log" * log
    how = {"mask": mask, "causal": causal, "scale": scale, "log": log}
    return Case(name, {"shape": shape, **how}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    args = dict(case.args)
    x = fusion_cases.normal(case, dtype, device, generator)
    shape = {"none": None, "same": x.shape, "row": x.shape[-1:]}[args["mask"]]
    mask = None
    if shape is not None:
        mask = torch.randn(shape, dtype=dtype, device=device, generator=generator)
    return {"x": x, "mask": mask, **{name: args[name] for name in ("causal", "scale", "log")}}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, mask = inputs["x"], inputs["mask"]
    size = x.numel() * x.element_size()
    masked = 0 if mask is None else mask.numel() * mask.element_size()
    if direction == "bwd":
        return Cost(2 * size, size + masked, flops=5 * x.numel())
    queries, keys = x.shape[-2] if x.dim() > 1 else 1, x.shape[-1]
    seen = queries * keys
    if inputs["causal"]:
        seen = sum(max(0, min(keys, row + 1 + keys - queries)) for row in range(queries))
    read = size * seen // max(1, queries * keys) + masked
    return Cost(read, size, flops=6 * x.numel())  # an exponential counts as one


def _added(x: Tensor, mask: Tensor | None, causal: bool, scale: float, log: bool) -> Tensor | None:
    return fusion_cases.sum_near_one(x) if log else None


_bad = partial(fusion_cases.error_case, ("x",))

SPEC = OpSpec(
    name="masked_softmax",
    formula="y = softmax(scale * x + mask), -Inf where causal hides it; or its logarithm",
    reference=reference.masked_softmax,
    longdouble=reference.longdouble,
    added=_added,
    implementations=(
        Implementation("eager", impl_eager.masked_softmax, role="eager"),
        *ours(masked_softmax, SELECTOR, "cpu", "cuda", "triton"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "mask"),
    contiguous=True,
    row_inputs=("x", "mask"),
    scores=("x",),
    cases=(
        *(
            _case(shape, "attention", *(("quick",) if shape[-1] == 1024 else ()), mask=m, causal=c)
            for shape in _SCORES
            for m, c in (("none", True), ("row", False), ("same", False))
        ),
        _case((5, 2), "check", mask="same", scale=1.0),
        _case((7, 1), "check"),
        _case((3, 61), "check", mask="row", log=True),
        _case((65, 257), "check", mask="same", log=True, scale=-1.5),
        _case((9, 40), "check", causal=True),
        _case((40, 61), "check", log=True, scale=8.0),
        _case((2, 5, 130), "check", mask="row", causal=True),
        _case((2, 7, 28), "check", mask="same", causal=True),
        _case((2, 40001), "check", mask="row"),
    ),
    dtypes=DTYPES,
    suite_dtypes={
        "attention": (torch.float32, torch.bfloat16),
        "quick": (torch.float32, torch.bfloat16),
    },
    cost=_cost,
    # Not both causal and log: what is hidden is -Inf there, which no difference is taken of.
    # The rounding of z - max(z) is a relative error of its exponential.
    budget=Budget(fp64_ratio=2.0),
    error_cases=(
        *fusion_cases.errors("x"),
        _bad("mask_shape", ValueError, "mask", "(3,)", "(3, 8)", mask=torch.ones(3)),
        _bad("mask_larger", ValueError, "mask", "(2, 3, 8)", mask=torch.ones(2, 3, 8)),
        _bad("mask_dtype", TypeError, "mask", "bool", "float32", mask=torch.ones(8).bool()),
        _bad("mask_not_a_tensor", TypeError, "mask", "list", mask=[0.0] * 8),
        _bad("scale_text", TypeError, "scale", "str", "float", scale="half"),
        _bad("scale_inf", ValueError, "scale", "inf", "finite", scale=float("inf")),
        _bad("causal_row", ValueError, "x", "1 dimension", "causal", x=torch.ones(8), causal=True),
    ),
)
