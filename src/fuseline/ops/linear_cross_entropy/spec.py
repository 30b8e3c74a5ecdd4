"""The row of linear_cross_entropy: how to try it, what it must cost, its baselines."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
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
    ours,
)
from fuseline.ops.linear_cross_entropy import impl_eager, reference
from fuseline.ops.linear_cross_entropy.op import SELECTOR, linear_cross_entropy

_IGNORED = -100


def _case(
    rows: int | tuple[int, ...],
    columns: int,
    classes: int,
    *suites: str,
    biased: bool = False,
    ignored: bool = False,
    **how: Any,
) -> Case:
    """Return a case; ignored: a third of its targets; how: arguments as they are."""
    lead = rows if isinstance(rows, tuple) else (rows,)
    words = [str(value) if key == "reduction" else f"{key}{value:g}" for key, value in how.items()]
    words = ["biased"] * biased + ["ignored"] * ignored + words
    name = "-".join(["x".join(map(str, (*lead, columns, classes))), *words])
    args = {"shape": (*lead, columns), "classes": classes, "biased": biased, "ignored": ignored}
    args["whole"] = "check" in suites
    return Case(name, {**args, "how": how}, suites)


def _whole(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Callable[..., Tensor]:
    """Return random(*shape), whole numbers from -3 to 3."""

    def random(*shape: int) -> Tensor:
        return torch.randint(-3, 4, shape, device=device, generator=generator).to(dtype)

    return random


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    """Return random inputs whose logits have a variance near 1.

    whole: logits are whole multiples of a power of two, which half types keep. Elsewhere they round
    logits, by errors beside which those of all that follows are small, and a mean's are luck.
    """
    args = case.args
    *lead, columns = args["shape"]
    random, scale = drawing(dtype, device, generator), columns**-0.5
    if args["whole"]:
        random, scale = _whole(dtype, device, generator), 2.0 ** round(math.log2(scale / 4))
    target = torch.randint(args["classes"], lead, device=device, generator=generator)
    if args["ignored"]:
        target[torch.rand(target.shape, device=device, generator=generator) < 1 / 3] = _IGNORED
    how = {"reduction": "mean", "label_smoothing": 0.0, "z_loss": 0.0, "softcap": None}
    return {
        "hidden": random(*lead, columns),
        "weight": random(args["classes"], columns) * scale,
        "target": target,
        "bias": random(args["classes"]) * (8 * scale) if args["biased"] else None,
        "ignore_index": _IGNORED,
        **how,
        **args["how"],
    }


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    """Return the operations of the products, and what goes in and comes out."""
    hidden, weight, bias, target = (inputs[n] for n in ("hidden", "weight", "bias", "target"))
    size, stat = hidden.element_size(), 8 if hidden.dtype == torch.float64 else 4
    given = hidden.numel() + weight.numel() + (0 if bias is None else bias.numel())
    losses = stat * (target.numel() if inputs["reduction"] == "none" else 1)
    flops = 2 * hidden.numel() * weight.shape[0]
    read = size * given + target.element_size() * target.numel()
    if direction == "fwd":
        return Cost(read, losses, flops)
    return Cost(read + losses, size * given, 2 * flops)


def _native(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    reduction: str,
    **others: Any,
) -> Tensor:
    loss: Tensor = F.linear_cross_entropy(
        hidden.flatten(0, -2),
        weight,
        target.flatten(),
        linear_bias=bias,
        ignore_index=ignore_index,
        reduction=reduction,
        options=torch.nn.LinearCrossEntropyOptions(),
    )
    return loss.view(target.shape) if reduction == "none" else loss


def _no_native(device_type: str) -> str | None:
    if hasattr(F, "linear_cross_entropy"):
        return None
    return f"torch {torch.__version__} has no linear_cross_entropy, 2.13 has"


def _beyond_native(direction: Direction, inputs: Inputs) -> str | None:
    more = [n for n in ("label_smoothing", "z_loss", "softcap") if inputs[n]]
    return f"torch's by chunks has no {more[0]}" if more else None


def _added(**inputs: Any) -> Tensor:
    """Return 1: the sum of exponentials, whose logarithm is a term of the loss, rounds near 1."""
    rows = inputs["target"].shape if inputs["reduction"] == "none" else ()
    return torch.ones(rows, dtype=torch.float64, device=inputs["hidden"].device)


_HIDDEN = torch.linspace(-1, 1, 24).view(3, 8)
_WEIGHT = torch.linspace(-2, 2, 40).view(5, 8)
_TARGET = torch.tensor([1, 4, 0])
_GOOD: Inputs = {
    "hidden": _HIDDEN,
    "weight": _WEIGHT,
    "target": _TARGET,
    "bias": torch.ones(5),
    "ignore_index": _IGNORED,
    "reduction": "mean",
    "label_smoothing": 0.0,
    "z_loss": 0.0,
    "softcap": None,
}
_bad = partial(ErrorCase.changed, _GOOD)
_ERRORS = (
    _bad("integer_hidden", TypeError, "hidden", "int64", "float32", hidden=_HIDDEN.long()),
    _bad("weight_dtype", TypeError, "weight", "float64", "float32", weight=_WEIGHT.double()),
    _bad("weight_columns", ValueError, "weight", "(5, 7)", "(classes, 8)", weight=_WEIGHT[:, :7]),
    _bad("weight_vector", ValueError, "weight", "(8,)", "(classes, 8)", weight=_WEIGHT[0]),
    _bad("no_classes", ValueError, "weight", "(0, 8)", "classes", weight=_WEIGHT[:0]),
    _bad("weight_device", ValueError, "weight", "meta", weight=_WEIGHT.to("meta")),
    _bad("target_dtype", TypeError, "target", "float32", "int64", target=_TARGET.float()),
    _bad("target_shape", ValueError, "target", "(2,)", "(3,)", target=_TARGET[:2]),
    _bad("bias_shape", ValueError, "bias", "(4,)", "(5,)", bias=torch.ones(4)),
    _bad("bias_dtype", TypeError, "bias", "float16", "float32", bias=torch.ones(5).half()),
    _bad("ignore_text", TypeError, "ignore_index", "str", "int", ignore_index="none"),
    _bad("reduction", ValueError, "reduction", "'max'", "'mean'", reduction="max"),
    _bad("smoothing", ValueError, "label_smoothing", "1.5", "0 to 1", label_smoothing=1.5),
    _bad("z_loss", ValueError, "z_loss", "-1", ">= 0", z_loss=-1.0),
    _bad("softcap", ValueError, "softcap", "0.0", "> 0", softcap=0.0),
)
# The heads of Llama 2 and 3, GPT-2, Qwen 2.5 of 7 B, Gemma 2 with its softcap.
_MODELS = (
    _case(8192, 4096, 32000, "linear_cross_entropy"),
    _case(8192, 4096, 128256, "linear_cross_entropy"),
    _case(8192, 768, 50257, "linear_cross_entropy"),
    _case(4096, 3584, 152064, "linear_cross_entropy", ignored=True),
    _case(4096, 2304, 256000, "linear_cross_entropy", softcap=30.0),
    _case(512, 256, 4000, "quick"),
)
# A chunk has 256 rows on a CPU, and those of equal chunks are rounded up to 128.
_CHECK = (
    _case(7, 24, 13, "check", reduction="none"),
    _case((2, 5), 36, 7, "check", biased=True, label_smoothing=0.1, z_loss=1e-2),
    _case(9, 33, 15, "check", ignored=True, reduction="sum", softcap=3.0),
    _case((3, 100), 48, 5, "check", biased=True),
    _case(4, 24, 2, "check", reduction="none", label_smoothing=0.2),
)

SPEC = OpSpec(
    name="linear_cross_entropy",
    formula="l = cross_entropy(hidden @ weight.mT + bias, target)",
    reference=reference.linear_cross_entropy,
    added=_added,
    implementations=(
        Implementation("eager", impl_eager.linear_cross_entropy, role="eager"),
        Implementation(
            "native",
            _native,
            role="native",
            unavailable=_no_native,
            unsupported=_beyond_native,
        ),
        *ours(linear_cross_entropy, SELECTOR, "chunks"),
    ),
    make_inputs=_make_inputs,
    differentiable=("hidden", "weight", "bias"),
    contiguous=True,
    row_inputs=("hidden", "target"),
    row_values=("target",),
    cases=(*_CHECK, *_MODELS),
    dtypes=DTYPES,
    suite_dtypes={
        "linear_cross_entropy": (torch.bfloat16,),
        "quick": (torch.bfloat16, torch.float32),
    },
    cost=_cost,
    # As of products, whose terms cancel. In fp64 BLAS adds up weight's gradient over rows, as of
    # the oracle, in another order.
    budget=Budget(fp64_ratio=2.0, fp64_grad_eps=32.0, gradients=True, fp32_floor=8.0),
    magnitudes=((2.0**-12, 0.0), (1.0, 1.0)),
    error_cases=_ERRORS,
)
