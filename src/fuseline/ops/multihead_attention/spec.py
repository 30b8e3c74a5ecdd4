"""The row of multihead_attention: how to try it, what it must cost, its baselines."""

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
from fuseline.ops.attention.op import SELECTOR
from fuseline.ops.multihead_attention import impl_eager, reference
from fuseline.ops.multihead_attention.op import multihead_attention

# The study's first version: batch and heads, embedding by sequence.
_BATCH, _HEADS = 8, 8
_EMBEDDINGS = tuple(1 << k for k in range(7, 17))
_ROWS = tuple(1 << k for k in range(4, 14))
_SEED = 20261126


def _case(
    batch: int, rows: int, columns: int, heads: int, *suites: str, shared: int = 1, **how: Any
) -> Case:
    """Return a case; shared: heads of q for each of k; how: arguments as they are."""
    name = f"{batch}x{rows}x{columns}-{heads}heads" + f"-{shared}shared" * (shared > 1)
    name += "".join(f"-{key}" if value is True else f"-{key}{value}" for key, value in how.items())
    args = {"x": (batch, rows, columns), "heads": heads, "shared": shared, "how": how}
    return Case(name.replace(".", "_"), args, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    """Return random inputs whose products have a variance near 1."""
    random = drawing(dtype, device, generator)
    (batch, rows, columns), heads = case.args["x"], case.args["heads"]
    own = heads // case.args["shared"]
    of_qkv = columns // heads * (heads + 2 * own)
    inputs: Inputs = {
        "x": random(batch, rows, columns),
        "w_qkv": random(columns, of_qkv) * columns**-0.5,
        "b_qkv": random(of_qkv),
        "w_out": random(columns, columns) * columns**-0.5,
        "b_out": random(columns),
        "heads": heads,
        "kv_heads": own,
    }
    how: Inputs = {"mask": None, "causal": False, "scale": None, "window": None, "dropout": 0.0}
    return {**inputs, **how, **case.args["how"], "seed": _SEED}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    """Return the operations of both products and attention, and what goes in and comes out."""
    x, w_qkv, w_out = inputs["x"], inputs["w_qkv"], inputs["w_out"]
    batch, rows, _ = x.shape
    pairs = rows * (rows + 1) // 2 if inputs["causal"] else rows * rows
    products = 2 * batch * rows * (w_qkv.numel() + w_out.numel())
    flops = products + 4 * batch * pairs * w_out.shape[0]
    size = x.element_size()
    weights = size * (w_qkv.numel() + w_out.numel() + w_qkv.shape[1] + w_out.shape[1])
    y = size * batch * rows * w_out.shape[1]
    if direction == "fwd":
        return Cost(size * x.numel() + weights, y, flops)
    backward = 2 * products + 10 * batch * pairs * w_out.shape[0]
    return Cost(size * x.numel() + y + weights, size * x.numel() + weights, backward)


_bad = partial(
    ErrorCase.changed,
    {
        "x": torch.randn(2, 5, 6),
        "w_qkv": torch.randn(6, 24),
        "b_qkv": torch.randn(24),
        "w_out": torch.randn(8, 6),
        "b_out": torch.randn(6),
        "heads": 2,
    },
)
_ERRORS = (
    _bad("integer_x", TypeError, "x", "int64", x=torch.ones(2, 5, 6).long()),
    _bad("two_dimensions", ValueError, "x", "(5, 6)", "batch", x=torch.ones(5, 6)),
    _bad("no_heads", ValueError, "heads", "0", heads=0),
    _bad("heads_text", ValueError, "heads", "'two'", heads="two"),
    _bad("heads_that_do_not_divide", ValueError, "kv_heads", "2", "3", heads=3, kv_heads=2),
    _bad("columns_of_w_qkv", ValueError, "w_qkv", "(6, 25)", "6", w_qkv=torch.ones(6, 25)),
    _bad("rows_of_w_qkv", ValueError, "w_qkv", "(7, 24)", "(6,", w_qkv=torch.ones(7, 24)),
    _bad("dtype_of_w_out", TypeError, "w_out", "float16", w_out=torch.ones(8, 6).half()),
    _bad("rows_of_w_out", ValueError, "w_out", "(7, 6)", "8", w_out=torch.ones(7, 6)),
    _bad("shape_of_b_qkv", ValueError, "b_qkv", "(6,)", "24", b_qkv=torch.ones(6)),
    _bad("mask_shape", ValueError, "mask", "(4, 4)", mask=torch.ones(4, 4)),
    _bad("window_zero", ValueError, "window", "0", window=0),
)

_GRID = [_case(_BATCH, rows, n, _HEADS, "mha") for n in _EMBEDDINGS for rows in _ROWS]
_ODD = (
    _case(2, 9, 12, 3, "check", causal=True),
    _case(1, 17, 16, 4, "check", shared=2, window=(3, 6)),
    _case(2, 6, 10, 2, "check", dropout=0.3),
)

SPEC = OpSpec(
    name="multihead_attention",
    formula="y = (attention of the heads of x @ w_qkv + b_qkv) @ w_out + b_out",
    reference=reference.multihead_attention,
    implementations=(
        Implementation("eager", impl_eager.multihead_attention, role="eager"),
        Implementation("auto", partial(multihead_attention, impl="auto")),
        *(
            replace(impl, role="ours", asked=False)
            for impl in provided(multihead_attention, SELECTOR, "triton")
        ),
        *provided(multihead_attention, SELECTOR, "cudnn", "flash", "unfused", "math"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "w_qkv", "b_qkv", "w_out", "b_out", "mask"),
    relayout=("x", "w_qkv", "w_out"),
    cases=(
        *_GRID,
        *(_case(2, 128, n, 8, "quick") for n in (512, 1024)),
        *_ODD,
    ),
    dtypes=DTYPES,
    suite_dtypes={
        "mha": (torch.bfloat16, torch.float16),
        "quick": (torch.bfloat16, torch.float32),
    },
    cost=_cost,
    # As attention's, with a product before and after.
    budget=Budget(gradients=True, fp32_floor=8.0),
    magnitudes=((2.0**-12, 0.0), (1.0, 1.0)),
    error_cases=_ERRORS,
)
