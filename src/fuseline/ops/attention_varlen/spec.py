"""The row of attention_varlen: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

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
from fuseline.ops.attention_varlen import impl_eager, reference
from fuseline.ops.attention_varlen.op import SELECTOR, attention_varlen

_CAUSAL: tuple[dict[str, Any], ...] = ({}, {"causal": True})
# Heads by head dimension, as the study's.
_HEADS = {64: 32, 128: 16}
_SEED = 20261126
# Lengths of one batch of 16384 tokens: equal, as a loader packs them, and one that is long.
_BATCHES = {
    "16x1024": (1024,) * 16,
    "packed": (4096, 2900, 2311, 1777, 1500, 1200, 900, 640, 512, 300, 180, 64, 4),
    "long": (8192, *(256,) * 32),
}


def _case(
    name: str,
    heads: int,
    d: int,
    lengths: tuple[int, ...],
    *suites: str,
    keys: tuple[int, ...] | None = None,
    shared: int = 1,
    **how: Any,
) -> Case:
    """Return a case; keys: where a sequence has others than queries; shared: heads of q for each of
    k; how: arguments as they are.
    """
    name = f"{name}-{heads}x{d}" + f"-{shared}shared" * (shared > 1)
    name += "".join(f"-{key}" if value is True else f"-{key}{value}" for key, value in how.items())
    sizes = {"queries": lengths, "keys": keys or lengths, "heads": (heads, heads // shared), "d": d}
    return Case(name.replace(".", "_"), {**sizes, "how": how}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    args, random = case.args, drawing(dtype, device, generator)

    def starts(lengths: tuple[int, ...]) -> Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

    queries, keys, (heads, own) = args["queries"], args["keys"], args["heads"]
    cu_q = starts(queries)
    how = {"causal": False, "scale": None, "window": None, "dropout": 0.0, **args["how"]}
    return {
        "q": random(sum(queries), heads, args["d"]),
        "k": random(sum(keys), own, args["d"]),
        "v": random(sum(keys), own, args["d"]),
        "cu_seqlens_q": cu_q,
        "cu_seqlens_k": cu_q if keys == queries else starts(keys),
        "max_seqlen_q": max(queries),
        "max_seqlen_k": max(keys),
        **how,
        "seed": _SEED,
    }


def _pairs(inputs: Inputs) -> int:
    """Return how many keys the queries of all sequences see together, of one head."""
    starts = (inputs[f"cu_seqlens_{name}"].tolist() for name in "qk")
    lengths = ([b - a for a, b in pairwise(s)] for s in starts)
    total = 0
    for queries, keys in zip(*lengths, strict=True):
        left, right = inputs["window"] or (-1, -1)
        right = 0 if inputs["causal"] else right
        for i in range(queries):
            last = keys - 1 if right < 0 else min(keys - 1, i + right)
            total += max(0, last - (0 if left < 0 else max(0, i - left)) + 1)
    return total


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    q, k = inputs["q"], inputs["k"]
    rows, heads, d = q.shape
    size, both = q.element_size(), q.numel() + 2 * k.numel()
    pairs = heads * _pairs(inputs)
    if direction == "fwd":  # two products
        return Cost(size * both, size * q.numel(), 4 * pairs * d)
    return Cost(size * (both + 2 * q.numel()) + 4 * heads * rows, size * both, 10 * pairs * d)


def _starts(*numbers: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


_bad = partial(
    ErrorCase.changed,
    {
        "q": torch.randn(7, 4, 8),
        **{name: torch.randn(9, 2, 8) for name in ("k", "v")},
        "cu_seqlens_q": _starts(0, 3, 7),
        "cu_seqlens_k": _starts(0, 4, 9),
    },
)
_ERRORS = (
    _bad("integer_q", TypeError, "q", "int64", "float32", q=torch.ones(7, 4, 8).long()),
    _bad("four_dimensions", ValueError, "q", "(1, 7, 4, 8)", "three", q=torch.ones(1, 7, 4, 8)),
    _bad("dtype_of_k", TypeError, "k", "float16", "float32", k=torch.ones(9, 2, 8).half()),
    _bad("heads_of_k", ValueError, "k", "(9, 3, 8)", "4", k=torch.ones(9, 3, 8)),
    _bad("shape_of_v", ValueError, "v", "(8, 2, 8)", v=torch.ones(8, 2, 8)),
    _bad("starts_a_list", TypeError, "cu_seqlens_q", "list", cu_seqlens_q=[0, 3, 7]),
    _bad("starts_of_int64", TypeError, "cu_seqlens_q", "int64", "int32",
         cu_seqlens_q=_starts(0, 3, 7, dtype=torch.int64)),
    _bad("starts_of_two_dimensions", ValueError, "cu_seqlens_k", "(1, 3)",
         cu_seqlens_k=_starts(0, 4, 9)[None]),
    _bad("other_sequences", ValueError, "cu_seqlens_k", "(2,)", "(3,)", cu_seqlens_k=_starts(0, 9)),
    _bad("length_text", ValueError, "max_seqlen_q", "'4'", max_seqlen_q="4"),
    _bad("length_negative", ValueError, "max_seqlen_k", "-1", max_seqlen_k=-1),
    _bad("scale_inf", ValueError, "scale", "inf", "finite", scale=float("inf")),
    _bad("window_zero", ValueError, "window", "0", "at least 1", window=0),
    _bad("dropout_above_1", ValueError, "dropout", "1.5", "0 to 1", dropout=1.5, seed=1),
)  # fmt: skip

_GRID = [
    _case(name, heads, d, lengths, "attention", **how)
    for d, heads in _HEADS.items()
    for name, lengths in _BATCHES.items()
    for how in _CAUSAL
]
_ODD = (
    _case("with_empty", 3, 7, (5, 0, 17, 1), "check", keys=(19, 3, 0, 2),
          window=(3, 6), scale=-0.4),
    _case("other_keys", 4, 24, (9, 21), "check", keys=(30, 17), shared=2, causal=True),
    _case("dropout", 2, 16, (14, 20), "check", dropout=0.3),
)  # fmt: skip

SPEC = OpSpec(
    name="attention_varlen",
    formula="out[s] = softmax(scale * q[s] k[s]^T) v[s] of each sequence s",
    reference=reference.attention_varlen,
    implementations=(
        Implementation("eager", impl_eager.attention_varlen, role="eager"),
        Implementation("auto", partial(attention_varlen, impl="auto")),
        *(
            replace(impl, role="ours", asked=False)
            for impl in provided(attention_varlen, SELECTOR, "triton")
        ),
        *provided(attention_varlen, SELECTOR, "flash", "math"),
    ),
    make_inputs=_make_inputs,
    differentiable=("q", "k", "v"),
    relayout=("q", "v"),  # k is read as v is
    cases=(
        *_GRID,
        *(_case("quick", 4, d, (256, 100, 156), "quick", causal=True) for d in (64, 128)),
        *_ODD,
    ),
    dtypes=DTYPES,
    suite_dtypes={
        "attention": (torch.bfloat16, torch.float16),
        "quick": (torch.bfloat16, torch.float32),
    },
    cost=_cost,
    # As attention's: terms cancel, and come in another order than eager's.
    budget=Budget(gradients=True, fp32_floor=8.0),
    # What scores of tens leave of the saved logarithm is said in the README.
    magnitudes=((2.0**-12, 0.0), (1.0, 1.0)),
    error_cases=_ERRORS,
)
