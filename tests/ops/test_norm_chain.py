"""What is peculiar to norm_chain: sums that cancel, powers that leave the range, no more copies."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.norm_chain.op import CONTRACT
from fuseline.testing.oracle.accuracy import errors

OPS = torch.ops.fuseline
SPEC = table.load()["norm_chain"]
IMPLS = [("cpu", "auto")]
IMPLS += [pytest.param("cuda", impl, marks=pytest.mark.gpu) for impl in ("cuda", "triton")]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def ulps(x: torch.Tensor, impl: str = "auto") -> float:
    y = fuseline.norm_chain(x, impl=impl)
    return errors(SPEC, {"x": x}, "fwd", {"out0": y})["out0"].max_ulp


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [2, 61, 1027, 20001])
def test_a_sum_that_cancels_costs_no_digits(n: int, device: str, impl: str) -> None:
    x = torch.randn(8, n, dtype=torch.float64, device=device)
    x[:, 0] -= x.sum(1) - 1  # with less left, long double would be no oracle
    limit = {torch.float64: 8.0, torch.float32: 2.0}
    for dtype, most in limit.items():
        assert ulps(x.to(dtype), impl) <= most


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [16, 20000])
def test_powers_that_fp32_does_not_have(n: int, device: str, impl: str) -> None:
    """x * sum^7 is an ordinary number although sum^7 is too small, or too large; all exact."""
    x = torch.zeros(3, n, device=device)
    x[0, :3] = torch.tensor([2.0**16, -(2.0**16), 2.0**-20])
    x[1, :3] = torch.tensor([2.0**19, 2.0**-20, -(2.0**-20)])
    want = torch.zeros(3, n, device=device)
    want[0, :2] = torch.tensor([2.0**-124, -(2.0**-124)])
    want[1, :3] = torch.tensor([math.inf, 2.0**113, -(2.0**113)])
    assert torch.equal(fuseline.norm_chain(x, impl=impl), want)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [8, 20000])
def test_inf_and_nan_are_the_chains(n: int, device: str, impl: str) -> None:
    x = torch.rand(4, n, device=device)
    x[0, 3], x[1, 3], x[2, 3] = math.inf, math.nan, -math.inf
    x[3, 3], x[3, 4] = math.inf, -1.0
    assert torch.allclose(
        fuseline.norm_chain(x, impl=impl), SPEC.reference(x.double()).float(), equal_nan=True
    )


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [1, 2, 61, 20001])
def test_gradients_of_rows_with_an_infinity_are_the_chains(n: int, device: str, impl: str) -> None:
    have_the_chains_infinities(n, device, impl, SPEC.dtypes)


def have_the_chains_infinities(
    n: int, device: str, impl: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Infinities of one sign where all of x and of dy have one, else NaN."""
    for dtype, sign, one_sign in product(dtypes, (1, -1), (True, False)):
        # Of at most 2, whose seventh power float16 has.
        x, dy = (torch.randn(6, n, device=device).clamp(-2, 2) for _ in range(2))
        x = (x.abs() * sign if one_sign else x) / n
        x[::2, n // 2] = sign * math.inf
        dy[:3] = dy[:3].abs()
        leaf, dy = x.to(dtype).requires_grad_(), dy.to(dtype)
        wide = leaf.detach().double().requires_grad_()
        (got,) = torch.autograd.grad(fuseline.norm_chain(leaf, impl=impl), leaf, dy)
        (want,) = torch.autograd.grad(SPEC.reference(wide), wide, dy.double())
        assert torch.equal(got[::2].nan_to_num(7.0), want[::2].to(dtype).nan_to_num(7.0))
        assert got[1::2].isfinite().all()


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [7, 20001])
def test_gradients_that_overflow_have_their_sign(n: int, device: str, impl: str) -> None:
    x = torch.rand(4, n, device=device, dtype=torch.float64) * 2.0**515 / n
    dy = torch.randn(4, n, device=device, dtype=torch.float64)
    leaf = x.requires_grad_()
    (got,) = torch.autograd.grad(fuseline.norm_chain(leaf, impl=impl), leaf, dy)
    total, dot = (t.sum(1, keepdim=True) for t in (x.detach(), dy * x.detach()))
    assert torch.equal(got, (dy * total + 7 * dot).sign() * math.inf)


def test_gradients_of_every_order() -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fuseline.norm_chain, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fuseline.norm_chain, x)


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    opcheck(OPS.norm_chain, (x.clone().requires_grad_(),))
    y, total = OPS._norm_chain_fwd(x)
    opcheck(OPS._norm_chain_fwd, (x,))
    opcheck(OPS._norm_chain_bwd, (torch.randn_like(y), x, total))


def test_raw_backward_names_what_is_wrong() -> None:
    x = torch.randn(3, 8)
    y, total = OPS._norm_chain_fwd(x)
    for args, word in (
        ((y[:, :4], x, total), "dy has shape"),
        ((y, x, total[:2]), "sum has shape"),
        ((y, x, total.float()), "sum must be"),
    ):
        with pytest.raises(RuntimeError, match=word):
            OPS._norm_chain_bwd(*args)


def test_compiled_without_a_break_and_under_vmap() -> None:
    x = torch.randn(5, 3, 64)
    want = fuseline.norm_chain(x)
    compiled = torch.compile(fuseline.norm_chain, fullgraph=True)
    assert torch.equal(compiled(x), want)
    assert torch.equal(torch.vmap(fuseline.norm_chain, in_dims=1, out_dims=1)(x), want)


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "from ops.test_norm_chain import test_a_sum_that_cancels_costs_no_digits as t\n"
    code += "for n in (2, 61, 1027): t(n, 'cpu', 'auto')"
    for_instruction_set(isa, code)


@pytest.mark.parametrize("first", [math.inf, -math.inf])
def test_forward_mode_of_a_row_with_an_infinity_is_the_chains(first: float) -> None:
    x = torch.tensor([[first, 0.57], [first, -0.3], [0.4, 0.6]])
    y, _ = torch.func.jvp(fuseline.norm_chain, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(y, SPEC.reference(x.double()).float(), equal_nan=True)
