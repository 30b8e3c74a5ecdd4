"""The row of conv_bn: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial
from math import prod

import torch
from torch import Tensor

from fuseline.core.convolutions import cases, geometry
from fuseline.core.convolutions.convolution import Convolution
from fuseline.core.gradients import settled_by
from fuseline.core.inputs import arguments
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
from fuseline.ops.conv_bn import impl_eager, reference
from fuseline.ops.conv_bn.op import SELECTOR, conv_bn

_CONVOLUTION = Convolution("conv_bn", optional=True)
_VECTORS = ("bn_weight", "bn_bias", "running_mean", "running_var")


def _case(of: Case, training: bool, relu: bool = True, same: bool = False) -> Case:
    """Return a convolution and what follows it.

    same  whether parameters and statistics of the norm have x's dtype, not float32; only then are
          there none in training, too
    """
    name = of.name.removesuffix("-without_bias") + ("-training" if training else "-inference")
    name += ("" if relu else "-without_relu") + ("-same_dtype" if same else "")
    return Case(name, {**of.args, "training": training, "relu": relu, "same": same}, of.suites)


def _cases() -> tuple[Case, ...]:
    """Return the suites conv, quick and check. In training the bias cancels: what is left of its
    gradient is rounding, so that there is none.
    """
    case = partial(cases.case, bias=False)
    return (
        *(_case(layer, training) for layer in cases.large(False) for training in (True, False)),
        _case(case((2, 8, 9, 7), 16, (3, 3), "check", padding=1), True),
        _case(case((3, 6, 7, 9), 4, (3, 2), "check", stride=2, last=False), True, same=True),
        _case(case((4, 4, 6, 5), 8, (3, 3), "check", dilation=2, groups=2), True),
        _case(cases.case((2, 8, 5, 6), 6, (3, 3), "check", padding=1), False),
        _case(case((2, 5, 5, 6), 5, (3, 3), "check", groups=5, last=False), False, False, True),
    )


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    conv = cases.make_inputs(_CONVOLUTION, case, dtype, device, generator)
    training, same = case.args["training"], case.args["same"]
    kind = torch.promote_types(dtype, torch.float32) if not same else dtype
    random = drawing(kind, device, generator)
    bn_weight, bn_bias, mean, var = (random(conv["weight"].shape[0]) for _ in _VECTORS)
    # Statistics that training would move are inputs that change.
    running = (None, None) if training else (mean, var.abs() + 0.5)
    norm = dict(zip(_VECTORS, (bn_weight, bn_bias, *running), strict=True))
    numbers = {"training": training, "momentum": 0.1, "eps": 1e-5, "relu": case.args["relu"]}
    return {**conv, **norm, **numbers}


def _before_relu(inputs: Inputs) -> Tensor | None:
    return impl_eager.conv_bn(**{**inputs, "relu": False}) if inputs["relu"] else None


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    """Return the bytes of separate kernels for the convolution and what follows it, in training,
    where statistics are of all its results: these are written once, and read twice. Their
    operations are the convolution's.
    """
    x, weight = inputs["x"], inputs["weight"]
    shape = geometry.output_shape(x, weight, *(inputs[n] for n in geometry.LEAST))
    size, result, both = x.element_size(), prod(shape), x.numel() + weight.numel()
    vectors = sum(t.nbytes for n in _VECTORS if isinstance(t := inputs[n], Tensor))
    flops = 2 * result * prod(weight.shape[1:])
    if direction == "bwd":
        # dy and h twice, dh written and read.
        return Cost((5 * result + both) * size + vectors, (result + both) * size, 2 * flops)
    passes = 2 if inputs["training"] else 0
    read, written = (both + passes * result) * size, (1 + passes // 2) * result * size
    return Cost(read + vectors, written, flops)


def _errors() -> tuple[ErrorCase, ...]:
    vectors = {name: torch.ones(6) for name in _VECTORS}
    x, weight = torch.randn(2, 4, 5, 5), torch.randn(6, 4, 3, 3)
    good: Inputs = {"x": x, "weight": weight, "bias": None, **vectors}
    bad = partial(ErrorCase.changed, good)
    return (
        *cases.errors(_CONVOLUTION, **vectors),
        bad("bn_weight", ValueError, "bn_weight", "(5,)", "(6,)", bn_weight=torch.ones(5)),
        bad("bn_bias", TypeError, "bn_bias", "float16", "float32", bn_bias=torch.ones(6).half()),
        bad("no_running_mean", ValueError, "running_mean", "None", running_mean=None),
        bad("no_running_var", ValueError, "running_var", "None", running_var=None, training=True),
        bad("negative_eps", ValueError, "eps", "-1", ">= 0", eps=-1.0),
        bad("relu_not_a_bool", TypeError, "relu", "int", "bool", relu=1),
        bad("training_not_a_bool", TypeError, "training", "str", "bool", training="yes"),
        bad("one_value_a_channel", ValueError, "x", "1 values", "training",
            x=torch.randn(1, 4, 3, 3), training=True),
    )  # fmt: skip


SPEC = OpSpec(
    name="conv_bn",
    formula=(
        "h = conv(x, weight) + bias; y = max((h - mean(h)) / sqrt(var(h) + eps) * bn_weight + "
        "bn_bias, 0)"
    ),
    reference=reference.conv_bn,
    implementations=(
        Implementation("eager", impl_eager.conv_bn, role="eager"),
        Implementation("auto", partial(conv_bn, impl="auto")),
        *provided(conv_bn, SELECTOR, *SELECTOR.names[:-1]),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "weight", "bias", "bn_weight", "bn_bias"),
    # Torch's backward reads vectors of the norm as if they were contiguous.
    relayout=("x", "weight", "bias"),
    cases=_cases(),
    dtypes=arguments.DTYPES,
    suite_dtypes=cases.SUITE_DTYPES,
    settled=settled_by(_before_relu),
    cost=_cost,
    # Terms cancel in every element, so that errors count beside the largest, as in gradients.
    budget=Budget(gradients=True),
    error_cases=_errors(),
)
