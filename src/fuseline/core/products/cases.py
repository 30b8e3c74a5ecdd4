"""What the specs of products try alike: problem sizes, inputs, costs and bad inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fuseline.core.gradients import settled_by
from fuseline.core.inputs import arguments
from fuseline.core.products.product import Product
from fuseline.core.selection.select import Selector
from fuseline.core.specs import fusion_cases
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

# Of the study's grid of M and N, whose K is not told. The times of its product at 8192 x 1024 and
# at 8192 x 2048 allow 1024: with 2048 they would be above the peak of its A100.
_K = 1024
# M, N, K: squares, the study's two, and others.
_MATMUL = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192)),
    (8192, 1024, _K), (8192, 2048, _K),
    (8192, 2048, 2048), (8192, 4096, 1024), (4096, 1024, 8192),
)  # fmt: skip
_QUICK = ((128, 128, 128), (512, 1024, 256))
# Batches before these; "t": of a transposed b.
_CHECK = ("1x1x1", "33x66x130", "65x40x17-t", "3,9x24x11", "4,6,16x10x1-b")

SUITE_DTYPES = {
    "matmul": (torch.bfloat16, torch.float16, torch.float32),
    "quick": (torch.float32, torch.bfloat16),
}
_FUSION = {"fusion": fusion_cases.SUITE_DTYPES["fusion"]}


def _case(name: str, *suites: str) -> Case:
    """Return the case MxNxK: M with the batches before it; "-t": of a transposed b; "-b": of a
    batch of b.
    """
    sizes, _, layout = name.partition("-")
    rows, n, k = sizes.split("x")
    args = {"a": (*map(int, rows.split(",")), int(k)), "n": int(n), "layout": layout}
    return Case(name, args, suites)


def cases() -> tuple[Case, ...]:
    """Return the suites matmul, fusion (the study's grid), quick and check."""
    suites: dict[str, list[str]] = {}
    grid = ((m, n, _K) for (m, n), _ in fusion_cases.grid())
    for suite, sizes in (("matmul", _MATMUL), ("fusion", grid), ("quick", _QUICK)):
        for one in sizes:
            suites.setdefault("x".join(map(str, one)), []).append(suite)
    return (
        *(_case(name, *those) for name, those in suites.items()),
        *(_case("x".join(map(str, one)) + "-t", "matmul") for one in _MATMUL),
        *(_case(name, "check") for name in _CHECK),
    )


def _make_inputs(
    product: Product,
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> Inputs:
    """Return random inputs whose products have a variance near 1."""
    random = drawing(dtype, device, generator)
    a, n, layout = case.args["a"], case.args["n"], case.args["layout"]
    batch = a[:-2] if layout == "b" else ()
    scale = a[-1] ** -0.5
    b = random(*batch, n, a[-1]).mT if layout == "t" else random(*batch, a[-1], n)
    inputs: Inputs = {"a": random(*a), "b": b * scale}
    if product.biased:
        inputs["bias"] = random(n)
    return inputs | ({"approximate": "tanh"} if product.activation == "gelu" else {})


def _cost(product: Product, inputs: Inputs, direction: Direction) -> Cost:
    a, b = inputs["a"], inputs["b"]
    bias = inputs["bias"].numel() if product.biased else 0
    y = a.numel() // a.shape[-1] * b.shape[-1]
    size, both = a.element_size(), a.numel() + b.numel()
    flops = 2 * a.numel() * b.shape[-1]
    if direction == "fwd":
        return Cost(size * (both + bias), size * y, flops)
    saved = y if product.activation else 0
    return Cost(size * (both + y + saved), size * (both + bias), 2 * flops)


def _errors(product: Product) -> tuple[ErrorCase, ...]:
    good: Inputs = {"a": torch.randn(3, 4), "b": torch.randn(4, 5)}
    bad = partial(ErrorCase.changed, good | ({"bias": torch.randn(5)} if product.biased else {}))
    cases = [
        bad("integer_a", TypeError, "a has dtype", "int64", "float32", a=torch.ones(3, 4).long()),
        bad("vector_a", ValueError, "a has shape", "(4,)", "two dimensions", a=torch.ones(4)),
        bad("not_a_tensor", TypeError, "a is a list", a=[1.0]),
        bad(
            "dtype_of_b", TypeError, "b has dtype", "float16", "float32", b=torch.ones(4, 5).half()
        ),
        bad("rows_of_b", ValueError, "b has shape", "(3, 5)", "(4, N)", b=torch.ones(3, 5)),
        bad("batch_of_b", ValueError, "b has shape", "(2, 4, 5)", b=torch.ones(2, 4, 5)),
    ]
    if product.biased:
        cases += [
            bad("bias_length", ValueError, "bias", "(4,)", "(5,)", bias=torch.ones(4)),
            bad("bias_dtype", TypeError, "bias", "float16", "float32", bias=torch.ones(5).half()),
        ]
    if product.activation == "gelu":
        cases.append(
            bad("approximate", ValueError, "approximate", "erf", "tanh", approximate="erf")
        )
    return tuple(cases)


def _before_relu(inputs: Inputs) -> torch.Tensor:
    h: torch.Tensor = inputs["a"] @ inputs["b"]
    return h + inputs["bias"] if "bias" in inputs else h


def spec(
    product: Product,
    formula: str,
    public: Callable[..., Any],
    selector: Selector,
    eager: Callable[..., Any],
    reference: Callable[..., Any],
) -> OpSpec:
    """Return the row of one operator."""
    return OpSpec(
        name=product.name,
        formula=formula,
        reference=reference,
        implementations=(
            Implementation("eager", eager, role="eager"),
            Implementation("auto", partial(public, impl="auto")),
            *provided(public, selector, *selector.names[:-1]),
        ),
        make_inputs=partial(_make_inputs, product),
        differentiable=("a", "b", "bias")[: 2 + product.biased],
        cases=cases(),
        dtypes=arguments.DTYPES,
        suite_dtypes=SUITE_DTYPES | _FUSION,
        settled=settled_by(_before_relu) if product.activation == "relu" else None,
        cost=partial(_cost, product),
        # Terms cancel in every element, so that errors count beside the largest, as in gradients,
        # and come in another order than eager's.
        budget=Budget(gradients=True, fp32_floor=8.0),
        error_cases=_errors(product),
    )
