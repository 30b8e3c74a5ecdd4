"""What is peculiar to the horizontal reductions: sums that cancel, ties of amax, Inf and NaN."""

from __future__ import annotations

import math

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.horizontal_reduction_pointwise.op import CONTRACT as POINTWISE
from fuseline.ops.horizontal_reduction_reduction.op import CONTRACT as REDUCTION
from fuseline.testing.oracle.accuracy import errors

OPS = torch.ops.fuseline
SPECS = {
    name: table.load()[name]
    for name in ("horizontal_reduction_pointwise", "horizontal_reduction_reduction")
}
IMPLS = [("cpu", "auto"), pytest.param("cuda", "auto", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def call(name: str, x: torch.Tensor, impl: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    return getattr(fuseline, name)(x, impl=impl)


@pytest.mark.parametrize("contract", [POINTWISE, REDUCTION], ids=lambda c: c.name)
def test_schemas_in_the_binary_are_those_of_the_contract(contract) -> None:
    for name, schema in contract.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("n", [1, 61, 1027, 20001])
def test_a_sum_that_cancels_costs_no_digits(n: int, name: str, device: str, impl: str) -> None:
    x = torch.randn(8, n, dtype=torch.float64, device=device)
    x[:, 0] -= x.sum(1) - 1  # with less left, long double would be no oracle
    for dtype in (torch.float64, torch.float32):
        rounded = x.to(dtype)
        outputs = {"out0": call(name, rounded, impl)[0], "out1": SPECS[name].reference(rounded)[1]}
        assert errors(SPECS[name], {"x": rounded}, "fwd", outputs)["out0"].max_ulp <= 1


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [7, 61, 5000])
def test_amax_shares_its_gradient_among_ties(
    n: int, dtype: torch.dtype, device: str, impl: str
) -> None:
    """Also where the largest is negative: what stands beyond a row's end must not count."""
    x = -torch.randint(1, 5, (9, n), device=device).to(dtype)
    x[3] = -math.inf
    leaf = x.clone().requires_grad_()
    total, amax = fuseline.horizontal_reduction_reduction(leaf, impl=impl)
    assert torch.equal(amax, x.amax(-1))
    assert torch.equal(total, x.double().sum(-1).to(dtype))
    dys = torch.randn(2, 9, device=device).to(dtype)
    (dx,) = torch.autograd.grad((total, amax), leaf, tuple(dys))
    wide = x.double().requires_grad_()
    (want,) = torch.autograd.grad(SPECS["horizontal_reduction_reduction"].reference(wide), wide,
                                  tuple(dys.double()))  # fmt: skip
    torch.testing.assert_close(dx, want.to(dtype))


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("n", [8, 5000])
def test_inf_and_nan_are_torchs(
    n: int, name: str, dtype: torch.dtype, device: str, impl: str
) -> None:
    x = torch.randn(6, n, device=device, dtype=dtype)
    x[0, 3], x[1, 3], x[2, 3] = math.inf, math.nan, -math.inf
    x[3, 3], x[3, 4] = math.inf, -math.inf
    x[4, 3], x[4, 4], x[4, 5] = math.inf, -math.inf, math.nan
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = call(name, leaf, impl), SPECS[name].eager.fn(other)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.isinf(), b.isinf())
    sum(t.sum() for t in got).backward()
    sum(t.sum() for t in want).backward()
    assert torch.equal(leaf.grad.isnan(), other.grad.isnan())


@pytest.mark.parametrize("name", SPECS)
def test_gradients_of_every_order(name: str) -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    operator = getattr(fuseline, name)
    assert torch.autograd.gradcheck(operator, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(operator, x)


@pytest.mark.parametrize("name", SPECS)
def test_the_gradient_of_one_output_alone(name: str) -> None:
    x = torch.randn(3, 7)
    for i in range(2):
        leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
        call(name, leaves[0])[i].sum().backward()
        SPECS[name].eager.fn(leaves[1])[i].sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    ys = torch.randn(shape[:-1]), torch.randn(shape[:-1])
    opcheck(OPS.horizontal_reduction_pointwise, (x.clone().requires_grad_(),))
    opcheck(OPS._horizontal_reduction_pointwise_bwd, (ys[0], torch.randn(shape), x))
    opcheck(OPS.horizontal_reduction_reduction, (x.clone().requires_grad_(),))
    opcheck(OPS._horizontal_reduction_reduction_fwd, (x,))
    _, amax, count = OPS._horizontal_reduction_reduction_fwd(x)
    opcheck(OPS._horizontal_reduction_reduction_bwd, (*ys, x, amax, count))


def test_raw_operators_name_what_is_wrong() -> None:
    x = torch.randn(3, 8)
    total, amax, count = OPS._horizontal_reduction_reduction_fwd(x)
    reduction = OPS._horizontal_reduction_reduction_bwd
    for call, args, word in (
        (OPS._horizontal_reduction_pointwise_bwd, (total[:2], x, x), "dsum has shape"),
        (OPS._horizontal_reduction_pointwise_bwd, (total, x[:, :4], x), "dcos has shape"),
        (reduction, (total, amax, x, amax[:2], count), "amax has shape"),
        (reduction, (total, amax, x, amax, count.float()), "count must be"),
        (OPS.horizontal_reduction_reduction, (x[:, :0],), "at least one column"),
    ):
        with pytest.raises(RuntimeError, match=word):
            call(*args)


@pytest.mark.parametrize("name", SPECS)
def test_compiled_without_a_break_and_under_vmap(name: str) -> None:
    x = torch.randn(5, 3, 64)
    operator = getattr(fuseline, name)
    want = operator(x)
    mapped = torch.vmap(operator, in_dims=1, out_dims=1)(x)
    compiled = torch.compile(operator, fullgraph=True)(x)
    for i in range(2):
        assert torch.equal(compiled[i], want[i])
        assert torch.equal(mapped[i], want[i])


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "import torch, ops.test_horizontal_reductions as t\n"
    code += "for n in (1, 61, 1027):\n"
    code += "    for name in t.SPECS:\n"
    code += "        t.test_a_sum_that_cancels_costs_no_digits(n, name, 'cpu', 'auto')\n"
    code += "    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):\n"
    code += "        t.test_amax_shares_its_gradient_among_ties(n, dtype, 'cpu', 'auto')\n"
    for_instruction_set(isa, code)
