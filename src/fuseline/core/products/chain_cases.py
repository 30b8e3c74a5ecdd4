"""What the specs of two products try alike: problem sizes, inputs, costs and bad inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.products.cases import SUITE_DTYPES
from fuseline.core.products.chain import Chain
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

# Rows, K, N, P: the study's; a transformer's block; a wide middle; a narrow one.
_MATMUL = ((8192, 1024, 1024, 1024), (4096, 1024, 4096, 1024), (8192, 2048, 2048, 2048),
           (8192, 4096, 64, 4096))  # fmt: skip
_QUICK = ((256, 128, 512, 128),)
_FEW, _MANY = 64, 1 << 20
# The last is of few operations if the weights are multiplied first.
_CHECK = ("2,3x7x8x5-t", "40x6x40x6")


def _case(name: str, activation: str | None, *suites: str) -> Case:
    """Return the case rows x K x N x P; "-t": of transposed weights, as those of Linear."""
    sizes, _, layout = name.partition("-")
    rows, k, n, p = sizes.split("x")
    args = {
        "x": (*map(int, rows.split(",")), int(k)),
        "n": int(n),
        "p": int(p),
        "transposed": layout == "t",
        "activation": activation,
    }
    return Case(f"{name}-{activation}" if activation else name, args, suites)


def _cases(chain: Chain) -> tuple[Case, ...]:
    found = []
    for activation in chain.activations:
        for sizes, suite in ((_MATMUL, "matmul"), (_QUICK, "quick")):
            found += [_case("x".join(map(str, one)), activation, suite) for one in sizes]
        several = _CHECK if activation == chain.activations[0] else _CHECK[:1]
        found += [_case(name, activation, "check") for name in several]
    return tuple(found)


def _make_inputs(
    chain: Chain,
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> Inputs:
    """Return random inputs whose products have a variance near 1.

    Of a ReLU of few columns and many rows it is -1, 0 or 1 times a power of two, whose sums half
    types have: else the elements that rounding moves across 0 decide how wrong a gradient is.
    """
    random = drawing(dtype, device, generator)
    x, n, p = case.args["x"], case.args["n"], case.args["p"]
    whole = case.args["activation"] == "relu" and n <= _FEW and math.prod(x) > _MANY

    def first(*shape: int) -> Tensor:
        return random(*shape).round_().clamp_(-1, 1) if whole else random(*shape)

    def weight(draw: Callable[..., Tensor], rows: int, columns: int) -> Tensor:
        w = draw(columns, rows).mT if case.args["transposed"] else draw(rows, columns)
        scaled: Tensor = w * (2.0 ** -round(math.log2(rows) / 2) if whole else rows**-0.5)
        return scaled

    inputs: Inputs = {"x": first(*x), "w1": weight(first, x[-1], n)}
    if chain.biased:
        inputs["b1"] = first(n)
    inputs["w2"] = weight(random, n, p)
    if chain.biased:
        inputs["b2"] = random(p)
    return inputs | {"activation": case.args["activation"]}


def _cost(chain: Chain, inputs: Inputs, direction: Direction) -> Cost:
    x, w1, w2 = inputs["x"], inputs["w1"], inputs["w2"]
    rows, size = x.numel() // x.shape[-1], x.element_size()
    (k, n), p = w1.shape, w2.shape[-1]
    given = sum(t.numel() for t in inputs.values() if isinstance(t, Tensor))
    first = chain.weights_first(chain.of(*inputs.values()))
    flops = 2 * k * p * (n + rows) if first else 2 * rows * n * (k + p)
    if direction == "fwd":
        return Cost(size * given, size * rows * p, flops)
    middle = k * p if first else rows * n
    return Cost(size * (given + rows * p + middle), size * given, 2 * flops)


def _errors(chain: Chain) -> tuple[ErrorCase, ...]:
    good = {"x": torch.randn(3, 4), "w1": torch.randn(4, 5)}
    good |= {"b1": torch.randn(5)} if chain.biased else {}
    good |= {"w2": torch.randn(5, 2)} | ({"b2": torch.randn(2)} if chain.biased else {})
    bad = partial(ErrorCase.changed, good | {"activation": chain.activations[0]})
    cases = [
        bad("integer_x", TypeError, "x has dtype", "int64", "float32", x=torch.ones(3, 4).long()),
        bad("vector_x", ValueError, "x has shape", "(4,)", "two dimensions", x=torch.ones(4)),
        bad("not_a_tensor", TypeError, "x is a list", x=[1.0]),
        bad("rows_of_w1", ValueError, "w1 has shape", "(3, 5)", "(4, any)", w1=torch.ones(3, 5)),
        bad("rows_of_w2", ValueError, "w2 has shape", "(4, 2)", "(5, any)", w2=torch.ones(4, 2)),
        bad("dtype_of_w2", TypeError, "w2 has dtype", "float16", w2=torch.ones(5, 2).half()),
        bad("activation", ValueError, "activation is 'tanh'", "relu", activation="tanh"),
    ]
    if chain.biased:
        cases.append(bad("b2_length", ValueError, "b2 has shape", "(3,)", "(2)", b2=torch.ones(3)))
    return tuple(cases)


def spec(
    chain: Chain,
    formula: str,
    public: Callable[..., Any],
    selector: Selector,
    eager: Callable[..., Any],
    reference: Callable[..., Any],
) -> OpSpec:
    """Return the row of one operator."""
    names = ("x", "w1", "b1", "w2", "b2") if chain.biased else ("x", "w1", "w2")
    return OpSpec(
        name=chain.name,
        formula=formula,
        reference=reference,
        implementations=(
            Implementation("eager", eager, role="eager"),
            Implementation("auto", partial(public, impl="auto")),
            *provided(public, selector, *selector.names[:-1]),
        ),
        make_inputs=partial(_make_inputs, chain),
        differentiable=names,
        cases=_cases(chain),
        dtypes=arguments.DTYPES,
        suite_dtypes=SUITE_DTYPES,
        cost=partial(_cost, chain),
        # As of one product. Where w1 @ w2 comes first, that is rounded and not the middle: of small
        # numbers float16 then has other digits than in eager's order.
        budget=Budget(gradients=True, fp32_floor=8.0, half_extra=1.0 if chain.biased else 2.0),
        error_cases=_errors(chain),
    )
