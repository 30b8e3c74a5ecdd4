"""The row of rope: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

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
    ours,
)
from fuseline.ops.rope import impl_eager, reference
from fuseline.ops.rope.op import SELECTOR, rope


def _case(
    batch: int,
    heads: int,
    shared: int,
    tokens: int,
    d: int,
    *suites: str,
    pairs: int | None = None,
    interleaved: bool = False,
    tables: str = "same",
) -> Case:
    """Return a case; shared: heads of k; tables: of the "same" dtype, of "float32", or of the same
    for each "batch", or for "both" elements of a pair.
    """
    name = f"{batch}x{heads}x{tokens}x{d}-{shared}k" + (f"-{pairs}pairs" if pairs else "")
    name += "-interleaved" * interleaved + f"-{tables}" * (tables != "same")
    sizes = {"q": (batch, heads, tokens, d), "k": (batch, shared, tokens, d)}
    how = {"pairs": pairs or d // 2, "interleaved": interleaved, "tables": tables}
    return Case(name, {**sizes, **how}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    random = drawing(dtype, device, generator)

    def heads(shape: tuple[int, ...]) -> torch.Tensor:  # as a projection leaves them
        batch, count, tokens, d = shape
        return random(batch, tokens, count, d).transpose(1, 2)

    batch, _, tokens, _ = case.args["q"]
    shape = {"batch": (batch, tokens), "both": (1, tokens, 2)}.get(case.args["tables"], (tokens,))
    angles = drawing(torch.float32, device, generator)(*shape, case.args["pairs"]) * 4
    table_dtype = torch.float32 if case.args["tables"] == "float32" else dtype
    return {
        "q": heads(case.args["q"]),
        "k": heads(case.args["k"]),
        "cos": angles.cos().to(table_dtype),
        "sin": angles.sin().to(table_dtype),
        "interleaved": case.args["interleaved"],
    }


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    q, k, cos, sin = (inputs[name] for name in ("q", "k", "cos", "sin"))
    heads, tables = (sum(t.numel() * t.element_size() for t in two) for two in ((q, k), (cos, sin)))
    rows = (q.numel() + k.numel()) // max(q.shape[-1], 1)
    return Cost(heads + tables, heads, flops=6 * rows * cos.shape[-1])


_HEADS = torch.ones(2, 4, 3, 8)
_TABLE = torch.ones(3, 4)
_bad = partial(
    ErrorCase.changed,
    {"q": _HEADS, "k": _HEADS[:, :2], "cos": _TABLE, "sin": _TABLE, "interleaved": False},
)
_ERRORS = (
    _bad("integer_q", TypeError, "q", "int64", "float32", q=_HEADS.long()),
    _bad("not_a_tensor", TypeError, "q", "list", q=[1.0]),
    _bad("q_of_three", ValueError, "q", "(4, 3, 8)", "(batch, heads, tokens, d)", q=_HEADS[0]),
    _bad("k_tokens", ValueError, "k", "(2, 4, 2, 8)", "(2, 4, 3, 8)", k=_HEADS[:, :, :2]),
    _bad("k_dtype", TypeError, "k", "float16", "float32", k=_HEADS.half()),
    _bad("k_device", ValueError, "k", "meta", k=_HEADS.to("meta")),
    _bad("cos_tokens", ValueError, "cos", "(2, 4)", "(2, 4, 3, 8)", cos=_TABLE[:2]),
    _bad("cos_pairs", ValueError, "cos", "(3, 5)", "d / 2", cos=torch.ones(3, 5)),
    _bad("cos_batch", ValueError, "cos", "(3, 3, 4)", "batch", cos=torch.ones(3, 3, 4)),
    _bad("cos_dtype", TypeError, "cos", "float16", "float32", cos=_TABLE.half()),
    _bad("sin_shape", ValueError, "sin", "(3, 2)", "(3, 4)", sin=_TABLE[:, :2]),
    _bad("sin_dtype", TypeError, "sin", "float64", "float32", sin=_TABLE.double()),
    _bad("interleaved_text", TypeError, "interleaved", "str", "bool", interleaved="yes"),
)
# Llama 3 8B and 70B, Qwen 2.5 7B in training; a token of Llama 3 8B; GPT-J, half of Phi-2.
_MODELS = (
    _case(1, 32, 8, 8192, 128, "rope"),
    _case(4, 32, 8, 2048, 128, "rope"),
    _case(1, 32, 8, 512, 128, "quick"),
    _case(1, 64, 8, 4096, 128, "rope"),
    _case(2, 28, 4, 4096, 128, "rope", tables="float32"),
    _case(8, 32, 8, 1, 128, "rope", tables="batch"),
    _case(4, 16, 16, 2048, 256, "rope", pairs=32, interleaved=True),
    _case(4, 32, 32, 2048, 80, "rope", pairs=16),
)
_CHECK = (
    _case(2, 4, 2, 5, 32, "check"),
    _case(1, 3, 1, 7, 10, "check", pairs=3),
    _case(2, 2, 2, 3, 7, "check"),
    _case(2, 3, 3, 4, 96, "check", pairs=16, tables="float32"),
    _case(3, 2, 1, 5, 34, "check", interleaved=True, tables="batch"),
    _case(1, 2, 2, 9, 160, "check", pairs=72, interleaved=True),
    _case(2, 5, 1, 33, 128, "check", interleaved=True, tables="float32"),
    _case(2, 3, 1, 9, 64, "check", tables="both"),
    _case(1, 2, 2, 5, 22, "check", pairs=9, interleaved=True, tables="both"),
)

SPEC = OpSpec(
    name="rope",
    formula="y, z = a * cos - b * sin, b * cos + a * sin for pairs (a, b) of q and k",
    reference=reference.rope,
    implementations=(
        Implementation("eager", impl_eager.rope, role="eager"),
        *ours(rope, SELECTOR, "cuda", "cpu"),
    ),
    make_inputs=_make_inputs,
    differentiable=("q", "k"),
    cases=(*_MODELS, *_CHECK),
    dtypes=DTYPES,
    suite_dtypes={"rope": (torch.bfloat16,), "quick": (torch.float32, torch.bfloat16)},
    cost=_cost,
    # The terms of an element cancel, and its gradients are the same rotation backwards.
    budget=Budget(gradients=True),
    error_cases=_ERRORS,
)
