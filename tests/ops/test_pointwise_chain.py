"""What is peculiar to pointwise_chain: max's ties, sums that cancel, large angles."""

from __future__ import annotations

import math

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.pointwise_chain.op import CONTRACT
from fuseline.testing.oracle.accuracy import errors

OPS = torch.ops.fuseline
SPEC = table.load()["pointwise_chain"]
IMPLS = [("cpu", "auto")]
IMPLS += [pytest.param("cuda", i, marks=pytest.mark.gpu) for i in ("cuda", "triton")]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def ulps(x: torch.Tensor, impl: str = "auto") -> float:
    y = fuseline.pointwise_chain(x, impl=impl)
    return errors(SPEC, {"x": x}, "fwd", {"out0": y})["out0"].max_ulp


def most_ulps(dtype: torch.dtype, device: str) -> float:
    """Two roundings beside a cosine within 1 ULP (CUDA's: 2), which x may double."""
    return 1.0 if dtype.itemsize == 2 else 3.0 if device == "cpu" else 5.0


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_ties_go_to_each_side_of_max_by_half(dtype: torch.dtype, device: str, impl: str) -> None:
    eps = torch.finfo(dtype).eps
    x = torch.tensor([1.0, 1 + eps, 1 - eps, 1.0, -1.0] * 9, dtype=torch.float64, device=device)
    x = x.to(dtype).requires_grad_()
    (dx,) = torch.autograd.grad(fuseline.pointwise_chain(x, impl=impl).sum(), x)
    wide = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(SPEC.reference(wide).sum(), wide)
    torch.testing.assert_close(dx.double(), want, rtol=4 * eps, atol=0)
    cos, sin = math.cos(1), math.sin(1)
    assert want[0].item() == pytest.approx(1.5 * (cos - sin) - 0.5 * sin)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_no_digit_is_lost_where_the_formula_cancels(
    dtype: torch.dtype, device: str, impl: str
) -> None:
    """Near x = -1 the sum cancels, near odd multiples of pi / 2 the cosine is nothing."""
    steps = torch.arange(-60, 60, dtype=torch.float64, device=device)
    near = [-1 + steps * torch.finfo(dtype).eps]
    near += [(2 * k + 1) * math.pi / 2 + steps * torch.finfo(dtype).eps for k in (0, 1, 5, 20)]
    assert ulps(torch.cat(near).to(dtype), impl) <= most_ulps(dtype, device)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_large_angles(dtype: torch.dtype, device: str, impl: str) -> None:
    most = min(torch.finfo(dtype).max / 4, 1e30)
    x = torch.logspace(0, math.log10(most), 500, dtype=torch.float64, device=device).to(dtype)
    x[::2] *= -1
    if dtype != torch.float64:
        assert ulps(x, impl) <= most_ulps(dtype, device)
    else:  # the oracle is no better at these
        want = SPEC.reference(x)
        torch.testing.assert_close(fuseline.pointwise_chain(x, impl=impl), want, rtol=1e-14, atol=0)
    x[7] = math.inf
    y = fuseline.pointwise_chain(x, impl=impl)
    assert y[7].isnan()
    assert y.isnan().sum() == 1


def test_scalars_and_no_elements() -> None:
    x = torch.tensor(0.5)
    torch.testing.assert_close(fuseline.pointwise_chain(x), SPEC.reference(x))
    assert fuseline.pointwise_chain(torch.empty(3, 0)).shape == (3, 0)


def test_gradients_of_every_order() -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fuseline.pointwise_chain, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fuseline.pointwise_chain, x)


@pytest.mark.parametrize("shape", [(), (3, 8), (0, 8), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    opcheck(OPS.pointwise_chain, (x.clone().requires_grad_(),))
    opcheck(OPS._pointwise_chain_bwd, (torch.randn_like(x), x))


def test_raw_backward_names_what_is_wrong() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(RuntimeError, match="dy has shape"):
        OPS._pointwise_chain_bwd(x[:, :4], x)


def test_compiled_without_a_break_and_under_vmap() -> None:
    x = torch.randn(5, 3, 64)
    want = fuseline.pointwise_chain(x)
    compiled = torch.compile(fuseline.pointwise_chain, fullgraph=True)
    assert torch.equal(compiled(x), want)
    assert torch.equal(torch.vmap(fuseline.pointwise_chain, in_dims=1, out_dims=1)(x), want)
    each = torch.vmap(torch.vmap(fuseline.pointwise_chain))(x[0])
    assert torch.equal(each, want[0])


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "import torch, ops.test_pointwise_chain as t\n"
    code += "for dtype in t.SPEC.dtypes:\n"
    code += "    t.test_no_digit_is_lost_where_the_formula_cancels(dtype, 'cpu', 'auto')\n"
    code += "    t.test_large_angles(dtype, 'cpu', 'auto')\n"
    code += "    t.test_ties_go_to_each_side_of_max_by_half(dtype, 'cpu', 'auto')\n"
    for_instruction_set(isa, code)
