"""What is peculiar to layer norm: means that are large beside the spread, two parameters, edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.instruction_sets import BUILT, for_instruction_set
from torch import Tensor
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.layer_norm.op import CONTRACT
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.accuracy import errors

OPS = torch.ops.fuseline
SPEC = table.load()["layer_norm"]
IMPLS = [
    ("cpu", "auto"),
    *(pytest.param("cuda", impl, marks=pytest.mark.gpu) for impl in ("cuda", "triton")),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def _native(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def worst(
    x: Tensor, impl: str, alike: Tensor | None = None, exact: Tensor | None = None
) -> tuple[float, float]:
    """Errors without parameters and eps: y's in ULP, dx's in eps of the largest dy * rstd.

    Of dx itself a row of three elements may leave next to nothing.
    alike, exact: rows with the same gradient and with the same norm, for an oracle that has no
    digits to spare.
    """
    leaf = x.clone().requires_grad_()
    y = fuseline.layer_norm(leaf, eps=0.0, impl=impl)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    given = {"x": x if exact is None else exact, "weight": None, "bias": None, "eps": 0.0}
    forward = errors(SPEC, given, "fwd", {"out0": y.detach()})["out0"]
    given["x"] = x if alike is None else alike
    backward = errors(SPEC, given, "bwd", {"x": dx}, (dy,))["x"]
    rstd = 1 / given["x"].double().std(1, correction=0, keepdim=True)
    unit = torch.finfo(x.dtype).eps * (dy.double() * rstd).abs().max().item()
    return forward.max_ulp, backward.max_abs / unit


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [3, 61, 1027, 20001])
@pytest.mark.parametrize(("dtype", "mean"), [(torch.float32, 1e4), (torch.float64, 1e7)])
def test_a_mean_of_ten_million_spreads_costs_no_digits(
    dtype: torch.dtype, mean: float, n: int, device: str, impl: str
) -> None:
    """The spread is 1e-3. So the elements are integers, times some unit, whose mean is exact."""
    x = (mean + 1e-3 * torch.randn(2, n, dtype=torch.float64)).to(device, dtype)
    x[:, 1] += 4e-3  # in fp32 all may be equal
    shifted = x.double() - x[:, :1].double()
    integers = (shifted / accuracy.ulp(x.double(), dtype)).long()
    exact = n * integers - integers.sum(1, keepdim=True)
    forward, backward = worst(x, impl, shifted, exact.double())
    # CUDA rounds what it makes of fp32 four times.
    assert forward <= (8 if dtype == torch.float64 else 3 if impl == "cuda" else 2)
    assert backward <= 4


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [61, 20001])
def test_an_outlier_in_the_place_that_all_are_compared_with(n: int, device: str, impl: str) -> None:
    """No element is further off the mean, in standard deviations, than a single outlier."""
    for dtype, scale in ((torch.float32, 1e8), (torch.float64, 1e12)):
        x = torch.randn(1, n, dtype=dtype, device=device)
        x[:, 0] = scale
        forward, backward = worst(x, impl)
        # CUDA adds the squares of fp32 up in fp32.
        assert forward <= (8 if dtype == torch.float64 else 5 if impl == "cuda" else 2)
        assert backward <= 4


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
@pytest.mark.parametrize("n", [61, 20001])
def test_what_a_bias_leaves_is_right(n: int, dtype: torch.dtype, device: str, impl: str) -> None:
    """The bias cancels the rest but for some 2^-20 of it, of which the formula knows 4 bits."""
    x, weight = torch.randn(2, n, dtype=torch.float64).to(dtype)
    x, weight = x[None].to(device), weight.to(device)
    given = {"x": x, "weight": weight, "bias": None, "eps": 1e-5}
    exact = oracle(given)
    bias = torch.from_numpy(-exact[0].astype("float64")).to(device)
    bias = (bias * (1 + 2e-6 * torch.rand_like(bias))).to(dtype)
    y = fuseline.layer_norm(x, weight, bias, impl=impl)
    size = (bias.double().abs() + weight.double().abs()).cpu()
    exact = oracle({**given, "bias": bias})
    gap = torch.from_numpy(abs(y.double().cpu().numpy() - exact).astype("float64"))
    rounding = accuracy.ulp(torch.from_numpy(exact.astype("float64")), dtype)
    lost = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    # Of xhat and its rest: 2^-40 for fp32; in fp64 long double knows no more than 2^-60. CUDA's
    # xhat has no rest, but is rounded at most four times.
    kept = 2 if impl == "cuda" else 2.0**-17
    assert (gap <= rounding + max(lost * kept, 2.0**-60) * size).all()


def oracle(given: dict[str, Any]) -> Any:
    """The formula in long double."""
    wide = {
        n: v.double().cpu().numpy().astype("longdouble") if isinstance(v, Tensor) else v
        for n, v in given.items()
    }
    return SPEC.longdouble("fwd", None, **wide)[0]


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 1e30), (torch.float32, 1e-30), (torch.bfloat16, 1e30), (torch.float32, 1e-41),
     (torch.float64, 1e300), (torch.float64, 1e-300)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("n", [1, 61, 20001])
def test_rows_that_leave_the_normal_range(
    n: int, dtype: torch.dtype, scale: float, device: str, impl: str
) -> None:
    """Beside an ordinary row, with eps = 0."""
    like = {"dtype": torch.float64, "device": device}
    x = torch.randn(3, n, **like) * torch.tensor([[scale], [1.0], [scale]], **like)
    x, weight = x.to(dtype), torch.randn(n, **like).to(dtype)
    y = fuseline.layer_norm(x, weight, None, 0.0, impl=impl)
    # The oracle in the same range: a power of two out, which the norm does not see.
    down = 2.0 ** torch.floor(torch.log2(x.double().abs().amax(-1, keepdim=True)))
    expected = _native(x.double() / down, weight.double(), None, 0.0)
    torch.testing.assert_close(
        y.double(), expected, rtol=8 * torch.finfo(dtype).eps, atol=1e-15, equal_nan=True
    )


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [300, 20001])
def test_nan_and_inf_stay_in_their_rows(n: int, device: str, impl: str) -> None:
    x = torch.randn(4, n, device=device)
    clean = fuseline.layer_norm(x, impl=impl)
    x[1, 7], x[2, n - 1] = float("nan"), float("inf")
    y = fuseline.layer_norm(x, impl=impl)
    assert torch.equal(y[[0, 3]], clean[[0, 3]])
    assert y[1:3].isnan().all()


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rows_of_one_element_have_torchs_gradients(
    dtype: torch.dtype, device: str, impl: str
) -> None:
    """Zero, but for those whose norm is NaN: of NaN, Inf and, without eps, of any."""
    x = torch.randn(7, 1, dtype=dtype, device=device)
    x[2], x[5] = float("nan"), float("inf")
    dy, *parameters = (torch.randn(k, 1, dtype=dtype, device=device).squeeze(0) for k in (7, 1, 1))
    for rows, eps in (x[[0, 1, 3, 4, 6]], 1e-5), (x, 1e-5), (x, 0.0):
        leaves = [t.clone().requires_grad_() for t in (rows, *parameters)]
        ours, native = (
            torch.autograd.grad(y, leaves, dy[: len(rows)])
            for y in (fuseline.layer_norm(*leaves, eps, impl), _native(*leaves, eps))
        )
        assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(ours, native, strict=True))
        assert not ours[0].nan_to_num(0.0).any()
        exact = dy[: len(rows)].double().sum(0)
        torch.testing.assert_close(ours[2], exact.to(dtype))


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [130, 1024, 16384, 20001])
def test_parameters_have_dtypes_of_their_own(n: int, device: str, impl: str) -> None:
    """The gradient of each comes in its dtype, with all its digits."""
    x, dy = torch.randn(2, 3, n, device=device).bfloat16()
    half, full = (torch.randn(n, device=device).to(t) for t in (torch.bfloat16, torch.float32))
    for weight, bias in ((half, full), (full, half), (None, full), (None, half), (half, None)):
        inputs = [None if t is None else t.clone().requires_grad_() for t in (x, weight, bias)]
        leaves = [t for t in inputs if t is not None]
        grads = torch.autograd.grad(fuseline.layer_norm(*inputs, impl=impl), leaves, dy)
        wide = [None if t is None else t.detach().double().requires_grad_() for t in inputs]
        want = torch.autograd.grad(
            SPEC.reference(*wide, 1e-5), [t for t in wide if t is not None], dy.double()
        )
        for grad, exact, leaf in zip(grads, want, leaves, strict=True):
            assert grad.dtype == leaf.dtype
            eps = torch.finfo(grad.dtype).eps
            torch.testing.assert_close(
                grad.double(), exact, rtol=0, atol=4 * eps * float(exact.abs().max())
            )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("need", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 0)])
def test_gradients_only_for_what_asks(need: tuple[int, int, int], device: str) -> None:
    x, dy = torch.randn(2, 9, 61, device=device)
    weight = torch.randn(61, device=device)
    saved = OPS._layer_norm_fwd(x, weight, None, 1e-5)[1:]
    every = OPS._layer_norm_bwd(dy, x, weight, *saved, True, True, True)
    some = OPS._layer_norm_bwd(dy, x, weight, *saved, *map(bool, need))
    for wanted, mine, whole in zip(need, some, every, strict=True):
        assert torch.equal(mine, whole) if wanted else mine.shape == (0,)


def test_gradients_of_every_order() -> None:
    like = {"dtype": torch.float64, "requires_grad": True}
    x, weight, bias = torch.randn(3, 7, **like), torch.randn(7, **like), torch.randn(7, **like)
    for inputs in ((x, weight, bias), (x, None, bias), (x, weight, None), (x, None, None)):
        assert torch.autograd.gradcheck(fuseline.layer_norm, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(fuseline.layer_norm, inputs)

    def third(f: Any) -> Tensor:
        g = x
        for _ in range(3):
            (g,) = torch.autograd.grad(
                f(g, weight, bias, 1e-5).square().sum(), g, create_graph=True
            )
        return torch.autograd.grad(g.square().sum(), x)[0]

    torch.testing.assert_close(third(fuseline.layer_norm), third(_native))


@pytest.mark.parametrize("shape", [(0, 8), (2, 3, 5), (8,)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
    leaves = (t.clone().requires_grad_() for t in (x, weight, bias))
    opcheck(OPS.layer_norm, (*leaves, 1e-5))
    opcheck(OPS._layer_norm, (x, None, bias, 1e-5))
    opcheck(OPS._layer_norm_fwd, (x, weight, None, 1e-5))
    saved = OPS._layer_norm_fwd(x, weight, bias, 1e-5)[1:]
    for need in ((True, True, True), (False, True, False), (False, False, True)):
        opcheck(OPS._layer_norm_bwd, (torch.randn(shape), x, weight, *saved, *need))
        opcheck(OPS._layer_norm_bwd, (torch.randn(shape), x, None, *saved, *need))


def test_raw_operators_refuse_what_the_kernels_cannot_read() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    _, mean, rstd = OPS._layer_norm_fwd(x, weight, None, 1e-5)
    for call, words in (
        (lambda: OPS._layer_norm(x.int(), weight, None, 1e-5), "x must be float64"),
        (lambda: OPS._layer_norm(x, weight[:7], None, 1e-5), r"weight has shape \[7\]"),
        (lambda: OPS._layer_norm(x, None, weight[:7], 1e-5), r"bias has shape \[7\]"),
        (lambda: OPS._layer_norm(x, weight, weight.half(), 1e-5), "bias must have the dtype"),
        (lambda: OPS._layer_norm_bwd(x[:2], x, weight, mean, rstd, True, True, True), "dy has"),
        (lambda: OPS._layer_norm_bwd(x, x, weight, mean[:2], rstd, True, True, True), "mean has"),
        (lambda: OPS._layer_norm_bwd(x, x, weight, mean, rstd.double(), True, True, True),
         "rstd must be"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=words):
            call()


def test_transforms_agree_with_torch() -> None:
    like = {"dtype": torch.float64}
    x, weight, bias = torch.randn(4, 7, **like), torch.randn(7, **like), torch.randn(7, **like)
    many, tangent = torch.randn(3, 7, **like), torch.randn(4, 7, **like)
    for transform in (
        lambda f: torch.func.jvp(lambda t: f(t, weight, bias, 1e-5), (x,), (tangent,)),
        lambda f: torch.func.grad(lambda t: f(t, weight, bias, 1e-5).square().sum())(x),
        lambda f: torch.func.vmap(lambda t: f(t, weight, bias, 1e-5), in_dims=1)(x.expand(3, 4, 7)),
        lambda f: torch.func.vmap(lambda w: f(x, w, bias, 1e-5))(many),
        lambda f: torch.func.vmap(lambda b: f(x, None, b, 1e-5))(many),
        lambda f: torch.func.vmap(lambda w, b: f(x, w, b, 1e-5), in_dims=(0, 1))(many, many.T),
        lambda f: torch.func.hessian(lambda t: f(t, weight, bias, 1e-5).square().sum())(x[0]),
    ):
        torch.testing.assert_close(transform(fuseline.layer_norm), transform(_native))


def test_the_formula_keeps_digits_beside_a_large_mean_too() -> None:
    """What forward mode, vmap over weights and second derivatives run on."""
    x, weight = 1e4 + 1e-2 * torch.randn(5, 61), torch.randn(1, 61)
    got = torch.func.vmap(lambda w: fuseline.layer_norm(x, w))(weight)[0]
    torch.testing.assert_close(got, fuseline.layer_norm(x, weight[0]), rtol=1e-4, atol=1e-5)


def test_compiles_whole_with_dynamic_shapes() -> None:
    torch._dynamo.reset()

    def net(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fuseline.layer_norm(x * 1.5, weight, bias) + 1

    compiled = torch.compile(net, fullgraph=True, dynamic=True)
    for shape in ((4, 6, 32), (3, 5, 48)):
        leaves = [torch.randn(s, requires_grad=True) for s in (shape, shape[-1:], shape[-1:])]
        y, want = compiled(*leaves), net(*leaves)
        dy = torch.randn_like(y)
        torch.testing.assert_close(y, want)
        torch.testing.assert_close(
            torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy)
        )


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_knows_neither_the_batch_nor_the_threads(device: str) -> None:
    for n in (5, 130, 1027, 20001):
        x = torch.randn(70, n, device=device)
        assert torch.equal(fuseline.layer_norm(x)[:3], fuseline.layer_norm(x[:3]))
    x = torch.randn(700, 130)
    leaves = [torch.randn(130, requires_grad=True) for _ in range(2)]
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            y = fuseline.layer_norm(x, *leaves)
            results.append((y, *torch.autograd.grad(y, leaves, x)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_eps_may_be_any_number_that_is_not_negative() -> None:
    x = torch.arange(24.0).view(3, 8)
    assert torch.equal(fuseline.layer_norm(x, eps=0), fuseline.layer_norm(x, eps=0.0))
    for rows in (x, x / 100):  # of variances above and below 0.1, which makes NaN
        found, right = (f(rows, None, None, -0.1) for f in (OPS.layer_norm, _native))
        torch.testing.assert_close(found, right, equal_nan=True)


def test_symbolic_traces_name_the_operator() -> None:
    graph = torch.fx.symbolic_trace(lambda t: fuseline.layer_norm(t + 1)).graph
    assert fuseline.layer_norm in [node.target for node in graph.nodes]


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_is_right(isa: str) -> None:
    code = """
import torch
from ops import test_layer_norm as t
for n in (3, 61, 1027):
    for dtype, mean in ((torch.float32, 1e4), (torch.float64, 1e7)):
        t.test_a_mean_of_ten_million_spreads_costs_no_digits(dtype, mean, n, "cpu", "auto")
for n in (61, 1030):
    t.test_parameters_have_dtypes_of_their_own(n, "cpu", "auto")
    for dtype in t.SPEC.dtypes:
        t.test_what_a_bias_leaves_is_right(n, dtype, "cpu", "auto")
"""
    for_instruction_set(isa, code)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [37, 20001])
def test_an_infinite_weight_gives_infinities(
    n: int, dtype: torch.dtype, device: str, impl: str
) -> None:
    """NaN came from infinity times what roundings lose, which may be 0."""
    x = torch.randn(9, n, generator=torch.Generator().manual_seed(3)).to(device, dtype)
    weight = torch.full((n,), math.inf, dtype=dtype, device=device)
    weight[::3], weight[1::3] = 0.5, -math.inf
    bias = torch.ones(n, dtype=dtype, device=device)
    expected = F.layer_norm(x.double(), (n,), weight.double(), bias.double(), 1e-5)
    y = fuseline.layer_norm(x, weight, bias, 1e-5, impl=impl)
    assert torch.equal(y.isinf(), expected.isinf())
    torch.testing.assert_close(y, expected.to(dtype))
