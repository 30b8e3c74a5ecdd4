"""The row of cross_entropy: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial
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
    ours,
)
from fuseline.ops.cross_entropy import impl_eager, reference
from fuseline.ops.cross_entropy.op import SELECTOR, cross_entropy

_IGNORED = -100


def _case(
    rows: int | tuple[int, ...],
    classes: int,
    *suites: str,
    reduction: str = "mean",
    weighted: bool = False,
    ignored: bool = False,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Case:
    """Return a case; ignored: a third of its targets."""
    lead = rows if isinstance(rows, tuple) else (rows,)
    words = [reduction] * (reduction != "mean") + ["weighted"] * weighted + ["ignored"] * ignored
    numbers = {"smooth": smoothing, "z": z_loss, "cap": softcap}
    words += [f"{name}{value:g}" for name, value in numbers.items() if value]
    how = {"reduction": reduction, "weighted": weighted, "ignored": ignored}
    how |= {"label_smoothing": smoothing, "z_loss": z_loss, "softcap": softcap}
    shape = (*lead, classes)
    return Case("-".join(["x".join(map(str, shape)), *words]), {"shape": shape, **how}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    args = dict(case.args)
    random = drawing(dtype, device, generator)
    *lead, classes = args["shape"]
    target = torch.randint(classes, lead, device=device, generator=generator)
    if args["ignored"]:
        target[torch.rand(target.shape, device=device, generator=generator) < 1 / 3] = _IGNORED
    return {
        "logits": random(*args["shape"]),
        "target": target,
        "weight": random(classes).abs() if args["weighted"] else None,
        "ignore_index": _IGNORED,
        **{n: args[n] for n in ("reduction", "label_smoothing", "z_loss", "softcap")},
    }


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    logits, target, weight = (inputs[name] for name in ("logits", "target", "weight"))
    size, rows = logits.numel() * logits.element_size(), target.numel()
    stat = 8 if logits.dtype == torch.float64 else 4
    shared = 0 if weight is None else weight.numel() * weight.element_size()
    losses = rows if inputs["reduction"] == "none" else 1
    flops = (4 + 2 * bool(inputs["label_smoothing"])) * logits.numel()  # an exponential is one
    of_rows = 8 * rows
    if direction == "bwd":
        return Cost(size + of_rows + (2 * rows + losses) * stat + shared, size, flops=flops)
    return Cost(size + of_rows + shared, losses * stat, flops=flops)


def _added(**inputs: Any) -> Tensor:
    """Return 1: the sum of exponentials, whose logarithm is a term of the loss, rounds near 1."""
    rows = inputs["target"].shape if inputs["reduction"] == "none" else ()
    return torch.ones(rows, dtype=torch.float64, device=inputs["logits"].device)


_LOGITS = torch.linspace(-1, 1, 24).view(3, 8)
_TARGET = torch.tensor([1, 7, 0])
_GOOD: Inputs = {
    "logits": _LOGITS,
    "target": _TARGET,
    "weight": None,
    "ignore_index": _IGNORED,
    "reduction": "mean",
    "label_smoothing": 0.0,
    "z_loss": 0.0,
    "softcap": None,
}
_bad = partial(ErrorCase.changed, _GOOD)
_ERRORS = (
    _bad("integer_logits", TypeError, "logits", "int64", "float32", logits=_TARGET.expand(3, 3)),
    _bad("no_classes", ValueError, "logits", "(3, 0)", "classes", logits=_LOGITS[:, :0]),
    _bad("target_dtype", TypeError, "target", "float32", "int64", target=_TARGET.float()),
    _bad("target_shape", ValueError, "target", "(2,)", "(3,)", target=_TARGET[:2]),
    _bad("target_device", ValueError, "target", "meta", target=_TARGET.to("meta")),
    _bad("weight_shape", ValueError, "weight", "(7,)", "(8,)", weight=_LOGITS[0, :7]),
    _bad("weight_dtype", TypeError, "weight", "float64", "float32", weight=_LOGITS[0].double()),
    _bad("ignore_text", TypeError, "ignore_index", "str", "int", ignore_index="none"),
    _bad("reduction", ValueError, "reduction", "'max'", "'mean'", reduction="max"),
    _bad("smoothing", ValueError, "label_smoothing", "1.5", "0 to 1", label_smoothing=1.5),
    _bad("smoothing_text", TypeError, "label_smoothing", "str", label_smoothing="some"),
    _bad("z_loss", ValueError, "z_loss", "-1", ">= 0", z_loss=-1.0),
    _bad("softcap", ValueError, "softcap", "0.0", "> 0", softcap=0.0),
)
# The vocabularies of Llama 2, GPT-2, Llama 3 and Qwen 2.5; Gemma 2's with its softcap.
_MODELS = (
    _case(8192, 32000, "cross_entropy"),
    _case(1024, 32000, "quick"),
    _case(8192, 50257, "cross_entropy"),
    _case(8192, 128256, "cross_entropy"),
    _case(4096, 151655, "cross_entropy", ignored=True),
    _case(4096, 256000, "cross_entropy", softcap=30.0),
    _case(8192, 32000, "cross_entropy", z_loss=1e-4),
    _case(8192, 32000, "cross_entropy", smoothing=0.1),
    _case(4096, 1000, "cross_entropy", smoothing=0.1),
)
# torch's gradient of an ignored row that has a NaN is NaN, so none that is judged by rows is.
_CHECK = (
    _case(7, 130, "check", reduction="none"),
    _case(5, 2, "check"),
    _case(33, 61, "check", reduction="sum", weighted=True, ignored=True),
    _case((2, 5), 257, "check", reduction="none", smoothing=0.1),
    _case(9, 1027, "check", weighted=True, smoothing=0.2, z_loss=1e-2),
    _case(6, 320, "check", reduction="none", softcap=3.0, z_loss=1e-2),
    _case(8, 96, "check", reduction="sum", softcap=2.0, smoothing=0.1, weighted=True),
    _case(70, 7, "check", reduction="none", weighted=True, smoothing=0.1, z_loss=1e-2),
    _case(130, 8, "check", reduction="sum", softcap=2.0, ignored=True),
    _case(201, 32, "check", weighted=True, smoothing=0.2, softcap=3.0, ignored=True),
    _case((2, 3, 2), 5000, "check"),
    _case(2, 40001, "check", reduction="none"),
)

SPEC = OpSpec(
    name="cross_entropy",
    formula="l = (1 - s) * w[t] * (lse - z[t]) + s / V * sum(w * (lse - z)) + z_loss * lse^2",
    reference=reference.cross_entropy,
    added=_added,
    implementations=(
        Implementation("eager", impl_eager.cross_entropy, role="eager"),
        *ours(cross_entropy, SELECTOR, "cuda", "cpu"),
    ),
    make_inputs=_make_inputs,
    differentiable=("logits",),
    contiguous=True,
    row_inputs=("logits", "target"),
    row_values=("target",),
    cases=(*_CHECK, *_MODELS),
    dtypes=DTYPES,
    suite_dtypes={
        "cross_entropy": (torch.float32, torch.bfloat16),
        "quick": (torch.float32, torch.bfloat16),
    },
    cost=_cost,
    budget=Budget(fp64_ratio=2.0),
    error_cases=_ERRORS,
)
