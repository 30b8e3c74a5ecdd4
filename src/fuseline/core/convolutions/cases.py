"""What the specs of convolutions try alike: problem sizes, inputs, costs, bad inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from fuseline.core.convolutions import geometry
from fuseline.core.convolutions.convolution import Convolution
from fuseline.core.convolutions.formula import convolution
from fuseline.core.gradients import settled_by
from fuseline.core.inputs import arguments
from fuseline.core.selection.select import Selector
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

SUITE_DTYPES = {
    "conv": (torch.bfloat16, torch.float16, torch.float32),
    "quick": (torch.float32, torch.bfloat16),
}


def case(
    shape: tuple[int, ...],
    filters: int,
    kernel: tuple[int, ...],
    *suites: str,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    last: bool = True,
    bias: bool = True,
) -> Case:
    """Return one convolution of an x of this shape.

    last  whether x, weight and z are channels_last
    bias  whether there is one
    """
    name = f"{'x'.join(map(str, shape))}-{filters}-{'x'.join(map(str, kernel))}"
    marks = {"s": (stride, 1), "p": (padding, 0), "d": (dilation, 1), "g": (groups, 1)}
    name += "".join(f"-{mark}{value}" for mark, (value, usual) in marks.items() if value != usual)
    name += ("" if last else "-contiguous") + ("" if bias else "-without_bias")
    args = {
        "shape": shape,
        "weight": (filters, shape[1] // groups, *kernel),
        "numbers": {
            "stride": [stride] * len(kernel),
            "padding": [padding] * len(kernel),
            "dilation": [dilation] * len(kernel),
            "groups": groups,
        },
        "last": last,
        "bias": bias,
    }
    return Case(name, args, suites)


# Channels, size, filters, kernel, stride of images, 32 in a batch: a large layer, and those of
# ResNet-50.
LAYERS = (
    (256, 56, 256, 3, 1), (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1),
    (128, 56, 128, 3, 2), (256, 14, 256, 3, 1), (1024, 14, 256, 1, 1), (512, 7, 512, 3, 1),
)  # fmt: skip


def large(bias: bool = True) -> tuple[Case, ...]:
    """Return the suites conv and quick."""
    layers = tuple(
        case((32, c, n, n), k, (r, r), "conv", stride=s, padding=r // 2, last=last, bias=bias)
        for last in (True, False)
        for c, n, k, r, s in LAYERS
    )
    return (*layers, case((4, 64, 28, 28), 64, (3, 3), "quick", padding=1, bias=bias))


def _cases(of: Convolution) -> tuple[Case, ...]:
    """Return the suites conv, quick and check."""
    return (
        *large(),
        case((2, 8, 9, 7), 16, (3, 3), "check", padding=1),
        case((2, 6, 7, 9), 4, (3, 2), "check", stride=2, padding=1, last=False),
        case((1, 3, 11, 12), 5, (7, 7), "check", stride=2, padding=3),
        case((2, 4, 9, 8), 8, (3, 3), "check", dilation=2, groups=2),
        case((2, 5, 5, 6), 5, (3, 3), "check", groups=5, last=False),
        case((2, 16, 3, 5), 8, (1, 1), "check", bias=not of.optional),
    )


def _placed(t: Tensor, last: bool) -> Tensor:
    forms = {4: torch.channels_last, 5: torch.channels_last_3d} if last else {}
    return t.contiguous(memory_format=forms.get(t.dim(), torch.contiguous_format))


def make_inputs(
    of: Convolution,
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> Inputs:
    """Return random inputs whose convolutions have a variance near 1."""

    drawn = drawing(dtype, device, generator)

    def random(shape: Sequence[int]) -> Tensor:
        return _placed(drawn(*shape), case.args["last"])

    x, weight, numbers = random(case.args["shape"]), case.args["weight"], case.args["numbers"]
    inputs: Inputs = {"x": x, "weight": random(weight) * prod(weight[1:]) ** -0.5, **numbers}
    inputs["bias"] = random(weight[:1]) if case.args["bias"] else None
    if of.adds:
        places = (numbers[name] for name in geometry.LEAST)
        inputs["z"] = random(geometry.output_shape(x, inputs["weight"], *places))
    return inputs


def _cost(of: Convolution, inputs: Inputs, direction: Direction) -> Cost:
    """Return the least bytes, each tensor once, and the products and sums of the convolution."""
    x, weight = inputs["x"], inputs["weight"]
    shape = geometry.output_shape(x, weight, *(inputs[n] for n in geometry.LEAST))
    bias, z = (inputs.get(name) for name in ("bias", "z"))
    of_bias = 0 if bias is None else bias.numel()
    result = prod(shape)
    flops = 2 * result * prod(weight.shape[1:])
    added = 0 if z is None else result
    size, both = x.element_size(), x.numel() + weight.numel()
    if direction == "fwd":
        return Cost((both + of_bias + added) * size, result * size, flops)
    return Cost((both + result * (1 + of.relu)) * size, (both + of_bias + added) * size, 2 * flops)


def errors(of: Convolution, **more: Any) -> tuple[ErrorCase, ...]:
    """Return the bad inputs of a convolution; more: inputs that its operator has besides."""
    good: Inputs = {
        "x": torch.randn(2, 4, 5, 5),
        "weight": torch.randn(6, 4, 3, 3),
        "bias": torch.randn(6),
        **({"z": torch.randn(2, 6, 3, 3)} if of.adds else {}),
        **more,
    }
    bad = partial(ErrorCase.changed, good)
    r = torch.randn
    cases = [
        bad("integer_x", TypeError, "x", "int64", "float32", x=torch.ones(2, 4, 5, 5).long()),
        bad("x_without_batch", ValueError, "x has 2 dimensions", x=r(5, 5)),
        bad("not_a_tensor", TypeError, "x", "list", x=[1.0, 2.0]),
        bad("empty_image", ValueError, "x", "(2, 4, 0, 5)", x=r(2, 4, 0, 5)),
        bad(
            "weight_dtype", TypeError, "weight", "float64", "float32", weight=r(6, 4, 3, 3).double()
        ),
        bad("weight_dimensions", ValueError, "weight has 3 dimensions", weight=r(6, 4, 3)),
        bad("weight_device", ValueError, "weight", "meta", weight=r(6, 4, 3, 3).to("meta")),
        bad("weight_channels", ValueError, "weight", "(6, 3, 3, 3)", "4", weight=r(6, 3, 3, 3)),
        bad("weight_larger_than_x", ValueError, "weight", "7 > 5", weight=r(6, 4, 7, 7)),
        bad("weight_not_a_tensor", TypeError, "weight", "list", weight=[1.0]),
        bad("bias_length", ValueError, "bias", "(5,)", "(6,)", bias=r(5)),
        bad("bias_matrix", ValueError, "bias", "(1, 6)", "(6,)", bias=r(1, 6)),
        bad("groups_of_no_divisor", ValueError, "groups", "4", "6", groups=4),
        bad("groups_not_an_int", TypeError, "groups", "float", "int", groups=1.0),
        bad("stride_0", ValueError, "stride", "[0, 0]", ">= 1", stride=0),
        bad("negative_padding", ValueError, "padding", "[-1, 0]", ">= 0", padding=(-1, 0)),
        bad("padding_by_name", TypeError, "padding", "same", "int", padding="same"),
        bad("padding_a_side", ValueError, "padding", "4 numbers", "1 or 2", padding=(0, 1, 0, 1)),
        bad("dilation_a_float", TypeError, "dilation", "1.5", "int", dilation=1.5),
    ]
    if not of.optional:
        cases.append(bad("no_bias", TypeError, "bias", "None", "Tensor", bias=None))
    if of.adds:
        cases += [
            bad("z_shape", ValueError, "z", "(6, 1, 1)", "(2, 6, 3, 3)", z=r(6, 1, 1)),
            bad("z_dtype", TypeError, "z", "float64", "float32", z=r(2, 6, 3, 3).double()),
            bad("no_z", TypeError, "z", "NoneType", "Tensor", z=None),
        ]
    return tuple(cases)


def _before_relu(inputs: Inputs) -> Tensor:
    numbers = (inputs[name] for name in ("stride", "padding", "dilation", "groups"))
    h = convolution(inputs["x"], inputs["weight"], inputs["bias"], *numbers)
    return h + inputs["z"] if "z" in inputs else h


def spec(
    of: Convolution,
    formula: str,
    public: Callable[..., Any],
    selector: Selector,
    eager: Callable[..., Any],
    reference: Callable[..., Any],
) -> OpSpec:
    """Return the row of one operator."""
    return OpSpec(
        name=of.name,
        formula=formula,
        reference=reference,
        implementations=(
            Implementation("eager", eager, role="eager"),
            Implementation("auto", partial(public, impl="auto")),
            *provided(public, selector, *selector.names[:-1]),
        ),
        make_inputs=partial(make_inputs, of),
        differentiable=("x", "weight", "bias", "z")[: 3 + of.adds],
        cases=_cases(of),
        dtypes=arguments.DTYPES,
        suite_dtypes=SUITE_DTYPES,
        settled=settled_by(_before_relu) if of.relu else None,
        cost=partial(_cost, of),
        # Terms cancel in every element, so that errors count beside the largest, as in gradients.
        budget=Budget(gradients=True),
        error_cases=errors(of),
    )
