"""What is peculiar to bias_gelu: digits where the result is small, both formulas, the bias."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from ops.instruction_sets import BUILT, for_instruction_set
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.bias_gelu.op import CONTRACT
from fuseline.testing.oracle.accuracy import errors

OPS = torch.ops.fuseline
SPEC = table.load()["bias_gelu"]
FORMULAS = ("tanh", "none")
IMPLS = [
    ("cpu", "auto"),
    *(pytest.param("cuda", impl, marks=pytest.mark.gpu) for impl in ("cuda", "triton")),
]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("approximate", FORMULAS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_digits_where_the_result_is_small(
    dtype: torch.dtype, approximate: str, device: str, impl: str
) -> None:
    """x + bias of which a rounding would cost up to 50 ULP of y; eager has no digit left."""
    limit = {8: 8.0, 4: 8.0 if device == "cpu" else 12.0, 2: 1.0}[dtype.itemsize]
    h = torch.linspace(-9.5, 9.5, 61 * 67, dtype=torch.float64, device=device).view(61, 67)
    bias = torch.randn(67, dtype=torch.float64, device=device)
    given = {"x": (h - bias).to(dtype), "bias": bias.to(dtype), "approximate": approximate}
    y = fuseline.bias_gelu(**given, impl=impl)
    assert errors(SPEC, given, "fwd", {"out0": y})["out0"].max_ulp <= limit


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("approximate", FORMULAS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_far_from_zero(dtype: torch.dtype, approximate: str, device: str, impl: str) -> None:
    far = torch.tensor([60.0, 2e4, 1e25, math.inf, math.nan], device=device).to(dtype)
    x = torch.cat((far, -far)).requires_grad_()
    y = fuseline.bias_gelu(x, torch.zeros_like(x), approximate, impl)
    assert torch.equal(y[:4], far[:4])
    assert torch.equal(y[5:7], torch.zeros_like(far[:2]))
    assert y[4].isnan()
    assert y[9].isnan()
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert dx[:2].eq(1).all()
    assert dx[5:7].eq(0).all()


@pytest.mark.parametrize("approximate", FORMULAS)
def test_the_formulas_are_torchs(approximate: str) -> None:
    x, bias = torch.randn(3, 5, 64, dtype=torch.float64), torch.randn(64, dtype=torch.float64)
    want = F.gelu(x + bias, approximate=approximate)
    torch.testing.assert_close(fuseline.bias_gelu(x, bias, approximate), want)
    torch.testing.assert_close(SPEC.eager.fn(x, bias, approximate), want)
    torch.testing.assert_close(SPEC.reference(x, bias, approximate), want)


@pytest.mark.parametrize("approximate", FORMULAS)
def test_gradients_of_every_order(approximate: str) -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)

    def gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return fuseline.bias_gelu(x, bias, approximate)

    assert torch.autograd.gradcheck(gelu, (x, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(gelu, (x, bias))


@pytest.mark.parametrize("approximate", FORMULAS)
def test_the_second_derivative_has_its_digits_in_the_tails(approximate: str) -> None:
    """Where it is small: of 1 minus a number near 1 nothing right would be left."""

    def twice(fn, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        y = fn(x, torch.zeros_like(x), approximate)
        (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(dx.sum(), x)[0]

    x = torch.linspace(2, 6, 97)
    for side in (x, -x):
        want = twice(SPEC.reference, side.double())
        got = twice(fuseline.bias_gelu, side)
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=0.0)


def test_dbias_does_not_depend_on_the_threads() -> None:
    x, bias, dy = torch.randn(1000, 130), torch.randn(130), torch.randn(1000, 130)
    threads = torch.get_num_threads()
    sums = []
    for count in (1, 2):
        torch.set_num_threads(count)
        sums.append(OPS._bias_gelu_bwd(dy, x, bias, "tanh", False, True)[1])
    torch.set_num_threads(threads)
    assert torch.equal(*sums)


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x, bias = torch.randn(shape), torch.randn(shape[-1])
    opcheck(OPS.bias_gelu, (x.clone().requires_grad_(), bias.clone().requires_grad_(), "tanh"))
    for needs in ((True, True), (True, False), (False, True)):
        opcheck(OPS._bias_gelu_bwd, (torch.randn(shape), x, bias, "none", *needs))


def test_raw_operators_name_what_is_wrong() -> None:
    x, bias = torch.randn(3, 8), torch.randn(8)
    for call, args, word in (
        (OPS.bias_gelu, (x, bias[:7], "tanh"), "bias has shape"),
        (OPS.bias_gelu, (x, bias.double(), "tanh"), "bias must have the dtype"),
        (OPS.bias_gelu, (x, bias, "erf"), "approximate is 'erf'"),
        (OPS._bias_gelu_bwd, (x[:, :4], x, bias, "tanh", True, True), "dy has shape"),
    ):
        with pytest.raises(RuntimeError, match=word):
            call(*args)


def test_compiled_without_a_break_and_under_vmap() -> None:
    x, bias = torch.randn(5, 3, 64), torch.randn(64)
    want = fuseline.bias_gelu(x, bias)
    compiled = torch.compile(fuseline.bias_gelu, fullgraph=True)
    assert torch.equal(compiled(x, bias), want)
    mapped = torch.vmap(fuseline.bias_gelu, in_dims=(1, None), out_dims=1)
    assert torch.equal(mapped(x, bias), want)
    biases = torch.randn(5, 64)
    each = torch.stack([fuseline.bias_gelu(a, b) for a, b in zip(x, biases, strict=True)])
    torch.testing.assert_close(torch.vmap(fuseline.bias_gelu)(x, biases), each)


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "import ops.test_bias_gelu as t\n"
    code += "for dtype in t.SPEC.dtypes:\n"
    code += "    for approximate in t.FORMULAS:\n"
    code += "        t.test_digits_where_the_result_is_small(dtype, approximate, 'cpu', 'auto')\n"
    code += "        t.test_far_from_zero(dtype, approximate, 'cpu', 'auto')\n"
    for_instruction_set(isa, code)
