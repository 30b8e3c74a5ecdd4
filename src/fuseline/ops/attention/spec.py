"""The row of attention: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs.spec import (
    Budget,
    Case,
    Cost,
    Direction,
    ErrorCase,
    Implementation,
    Inputs,
    OpSpec,
    drawing,
    provided,
)
from fuseline.ops.attention import impl_eager, reference
from fuseline.ops.attention.impl_args import HALVES
from fuseline.ops.attention.op import SELECTOR, attention

# The study's: heads by head dimension.
_HEADS = {64: 32, 128: 16}
_BATCHES = tuple(1 << k for k in range(6))
_LENGTHS = tuple(1 << k for k in range(7, 14))
# Its first version, of torch's MultiheadAttention: batch and heads, embedding, lengths.
_FIRST = 8
_EMBEDDINGS = tuple(1 << k for k in range(7, 17))
_ALL_LENGTHS = tuple(1 << k for k in range(4, 14))
_SEED = 20261126
_CAUSAL: tuple[dict[str, Any], ...] = ({}, {"causal": True})


def _case(
    batch: int,
    heads: int,
    queries: int,
    d: int,
    *suites: str,
    keys: int | None = None,
    shared: int = 1,
    mask: str = "none",
    **how: Any,
) -> Case:
    """Return a case; shared: heads of q for each of k; mask: "none", "bool", or the dimensions that
    a float one has, of "bhst"; how: arguments as they are.
    """
    name = f"{batch}x{heads}x{queries}x{d}" + (f"-{keys}keys" if keys else "")
    name += f"-{shared}shared" * (shared > 1) + f"-{mask}" * (mask != "none")
    name += "".join(f"-{key}" if value is True else f"-{key}{value}" for key, value in how.items())
    q = (batch, heads, queries, d)
    k = (batch, heads // shared, keys or queries, d)
    name = name.replace(" ", "").replace("(", "").replace(")", "").replace(",", "_")
    return Case(name, {"q": q, "k": k, "mask": mask, "how": how}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    random = drawing(dtype, device, generator)
    q, k, kind = case.args["q"], case.args["k"], case.args["mask"]
    inputs: Inputs = {"q": random(*q), "k": random(*k), "v": random(*k), "mask": None}
    sizes = dict(zip("bhst", (*q[:3], k[2]), strict=True))
    if kind == "bool":
        mask = random(*sizes.values()) > -0.5
        mask[:, :, 1::3] = False  # queries that see nothing
        inputs["mask"] = mask
    elif kind != "none":
        inputs["mask"] = random(*(n if name in kind else 1 for name, n in sizes.items()))
    how = {"causal": False, "scale": None, "window": None, "dropout": 0.0, **case.args["how"]}
    return inputs | how | {"seed": _SEED}


def _pairs(queries: int, keys: int, causal: bool, window: tuple[int, int] | None) -> int:
    """Return how many keys all queries of a head see together."""
    left, right = window or (-1, -1)
    if causal:
        right = 0 if right < 0 else min(right, 0)
    last = [keys - 1 if right < 0 else min(keys - 1, i + right) for i in range(queries)]
    first = [0 if left < 0 else max(0, i - left) for i in range(queries)]
    return sum(max(0, b - a + 1) for a, b in zip(first, last, strict=True))


def _separate(inputs: Inputs) -> tuple[str, ...]:
    """Return the tensors, each entry of the batch by itself; what a place drops is not, nor is a
    mask that entries share.
    """
    return ("q", "k", "v") if inputs["mask"] is None and inputs["dropout"] == 0 else ()


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    q, k, mask = inputs["q"], inputs["k"], inputs["mask"]
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    size, both = q.element_size(), q.numel() + 2 * k.numel()
    masked = 0 if mask is None else mask.numel() * mask.element_size()
    pairs = batch * heads * _pairs(queries, keys, inputs["causal"], inputs["window"])
    statistics = 4 * batch * heads * queries
    if direction == "fwd":  # two products
        return Cost(size * both + masked, size * q.numel(), 4 * pairs * d)
    read = size * (both + 2 * q.numel()) + masked + statistics
    return Cost(read, size * both + masked, 10 * pairs * d)


_bad = partial(
    ErrorCase.changed,
    {"q": torch.randn(2, 4, 5, 8), **{name: torch.randn(2, 2, 6, 8) for name in ("k", "v")}},
)
_ERRORS = (
    _bad("integer_q", TypeError, "q", "int64", "float32", q=torch.ones(2, 4, 5, 8).long()),
    _bad("not_a_tensor", TypeError, "q", "list", q=[1.0]),
    _bad("three_dimensions", ValueError, "q", "(4, 5, 8)", "four", q=torch.ones(4, 5, 8)),
    _bad("no_head_dimension", ValueError, "q", "(2, 4, 5, 0)", q=torch.ones(2, 4, 5, 0)),
    _bad("dtype_of_k", TypeError, "k", "float16", "float32", k=torch.ones(2, 2, 6, 8).half()),
    _bad("heads_of_k", ValueError, "k", "(2, 3, 6, 8)", "4", k=torch.ones(2, 3, 6, 8)),
    _bad("batch_of_k", ValueError, "k", "(1, 2, 6, 8)", k=torch.ones(1, 2, 6, 8)),
    _bad("shape_of_v", ValueError, "v", "(2, 2, 7, 8)", v=torch.ones(2, 2, 7, 8)),
    _bad("device_of_v", ValueError, "v", "meta", v=torch.ones(2, 2, 6, 8, device="meta")),
    _bad("mask_shape", ValueError, "mask", "(5, 5)", "(2, 4, 5, 6)", mask=torch.ones(5, 5)),
    _bad("mask_dtype", TypeError, "mask", "int64", "bool", mask=torch.ones(5, 6).long()),
    _bad("mask_not_a_tensor", TypeError, "mask", "list", mask=[0.0]),
    _bad("causal_text", TypeError, "causal", "str", "bool", causal="yes"),
    _bad("scale_inf", ValueError, "scale", "inf", "finite", scale=float("inf")),
    _bad("scale_text", TypeError, "scale", "str", "float", scale="half"),
    _bad("window_text", TypeError, "window", "'wide'", "int", window="wide"),
    _bad("window_of_three", TypeError, "window", "(1, 2, 3)", "two", window=(1, 2, 3)),
    _bad("window_zero", ValueError, "window", "0", "at least 1", window=0),
    _bad("dropout_above_1", ValueError, "dropout", "1.5", "0 to 1", dropout=1.5, seed=1),
    _bad("seed_text", TypeError, "seed", "str", "int", dropout=0.5, seed="one"),
    _bad("seed_of_int32", ValueError, "seed", "int32", "int64", dropout=0.5,
         seed=torch.ones((), dtype=torch.int32)),
    _bad("deterministic_text", TypeError, "deterministic", "str", "bool", deterministic="no"),
)  # fmt: skip

_GRID = [
    _case(batch, heads, n, d, "attention", **how)
    for d, heads in _HEADS.items()
    for n in _LENGTHS
    for batch in _BATCHES
    for how in _CAUSAL
]
_FIRST_GRID = [
    _case(_FIRST, _FIRST, n, embedding // _FIRST, "mha")
    for embedding in _EMBEDDINGS
    for n in _ALL_LENGTHS
]
_ODD = (
    _case(1, 1, 1, 1, "check", keys=2),
    _case(1, 2, 1, 8, "check", keys=19),
    _case(1, 2, 23, 40, "check", keys=17, causal=True),
    _case(2, 4, 9, 24, "check", keys=21, shared=2),
    _case(1, 3, 17, 7, "check", keys=29, window=(3, 6), scale=-0.4),
    _case(2, 2, 12, 8, "check", keys=18, mask="bool"),
    _case(2, 2, 10, 8, "check", keys=18, mask="bt", causal=True),
    _case(1, 2, 14, 16, "check", dropout=0.3),
)

_TRITON = [
    replace(impl, role="ours", asked=False) for impl in provided(attention, SELECTOR, "triton")
]

SPEC = OpSpec(
    name="attention",
    formula="out = softmax(scale * q k^T + mask) v",
    reference=reference.attention,
    implementations=(
        Implementation("eager", impl_eager.attention, role="eager"),
        Implementation("auto", partial(attention, impl="auto")),
        *_TRITON,
        *provided(attention, SELECTOR, "cudnn", "flash", "unfused", "math", "fa4"),
    ),
    make_inputs=_make_inputs,
    differentiable=("q", "k", "v", "mask"),
    relayout=("q", "v", "mask"),  # k is read as v is
    cases=(
        *_GRID,
        *_FIRST_GRID,
        *(_case(2, 4, 256, d, "quick", **how) for d in (64, 128) for how in _CAUSAL),
        *_ODD,
    ),
    dtypes=DTYPES,
    suite_dtypes={
        "attention": HALVES,
        "mha": HALVES,
        "quick": (torch.bfloat16, torch.float32),
    },
    separate=_separate,
    cost=_cost,
    # Terms cancel in every element, so that errors count beside the largest, as in gradients, and
    # come in another order than eager's, in two sums and one of exponentials.
    budget=Budget(gradients=True, fp32_floor=8.0),
    # Of scores of 1e8 the saved logarithm has no digit before the point.
    magnitudes=((2.0**-12, 0.0), (4.0, 0.0), (1.0, 1.0)),
    error_cases=_ERRORS,
)
