"""What is peculiar to add_rms_norm: two outputs, either of them without a gradient, and one
gradient for two inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck

import fuseline
from fuseline.core import native
from fuseline.ops.add_rms_norm.op import CONTRACT, SELECTOR, decomposed

OPS = torch.ops.fuseline
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
BACKWARDS = {
    "cpu": (OPS._add_rms_norm_bwd,),
    "cuda": (OPS._add_rms_norm_bwd, OPS._add_rms_norm_bwd__triton),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def _native(x: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    h = x + residual
    return F.rms_norm(h, h.shape[-1:], weight, eps), h


def _leaves(
    *shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, residual and weight, all of which ask for gradients."""
    shapes = (shape, shape, shape[-1:])
    return tuple(torch.randn(s, dtype=dtype, device=device).requires_grad_() for s in shapes)


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        assert str(getattr(OPS, name).default._schema) == f"fuseline::{name}{schema}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_y_is_the_norm_of_the_sum_as_it_was_rounded(device: str, dtype: torch.dtype) -> None:
    for n in (1, 61, 1024, 40001):
        x, residual, weight = (t.detach() for t in _leaves(3, n, dtype=dtype, device=device))
        for impl in ("cpu", "eager") if device == "cpu" else ("cuda", "triton"):
            y, h = fuseline.add_rms_norm(x, residual, weight, 1e-6, impl=impl)
            assert torch.equal(h, x + residual)
            alone = fuseline.rms_norm(h, weight, 1e-6, impl=impl)
            # On a GPU blocks are chosen for each operator, and the order of a sum follows them.
            exact = {} if device == "cuda" else {"rtol": 0.0, "atol": 0.0}
            torch.testing.assert_close(y, alone, **exact)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_the_sum_is_rounded_once(device: str, dtype: torch.dtype) -> None:
    """As large as the norm's own, and of the other sign: two roundings would show."""
    x, residual, weight = _leaves(64, 61, dtype=dtype, device=device)
    y, h = fuseline.add_rms_norm(x, residual, weight, 1e-6)
    dy = torch.randn_like(y)
    exact = [t.detach().double().requires_grad_() for t in (h, weight)]
    (dh,) = torch.autograd.grad(F.rms_norm(exact[0], (61,), exact[1], 1e-6), exact[0], dy.double())
    d_h = (-dh * 1.01).to(dtype)
    for create_graph in (False, True):
        (dx,) = torch.autograd.grad((y, h), x, (dy, d_h), create_graph=create_graph)
        off = (dx.double() - (dh + d_h.double())).abs()
        # fp32's rounding of terms as large as dh, then dx's own.
        allowed = 8 * 2.0**-24 * dh.abs().max() + torch.finfo(dtype).eps / 2 * dx.double().abs()
        assert (off <= allowed).all()
        y, h = fuseline.add_rms_norm(x, residual, weight, 1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("used", ["y", "h", "both"])
def test_either_output_may_come_without_a_gradient(device: str, used: str) -> None:
    leaves = _leaves(3, 9, device=device)
    for create_graph in (False, True):
        got, want = (
            torch.autograd.grad(
                {"y": y.sin().sum(), "h": h.sin().sum(), "both": (y * h).sum()}[used],
                leaves,
                allow_unused=True,
                create_graph=create_graph,
            )
            for y, h in (f(*leaves, 1e-5) for f in (fuseline.add_rms_norm, _native))
        )
        assert (got[2] is None) == (want[2] is None) == (used == "h")
        torch.testing.assert_close(got[: 2 if used == "h" else 3], want[: 2 if used == "h" else 3])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_that_are_kept_are_not_one_tensor(device: str, compiled: bool) -> None:
    """The backward returns one for both; what is done to x.grad must not reach residual.grad."""
    torch._dynamo.reset()
    f = torch.compile(fuseline.add_rms_norm, fullgraph=True) if compiled else fuseline.add_rms_norm
    for used in (0, 1, slice(None)):
        x, residual, weight = _leaves(3, 9, device=device)
        outputs = f(x, residual, weight, 1e-5)[used]
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        dys = [torch.randn_like(t) for t in outputs]
        torch.autograd.backward(outputs, dys)
        kept, seeds = residual.grad.clone(), [dy.clone() for dy in dys]
        assert torch.equal(x.grad, kept)
        x.grad.zero_()
        assert torch.equal(residual.grad, kept)
        assert all(torch.equal(a, b) for a, b in zip(dys, seeds, strict=True))


def test_gradients_that_are_added_to_others_are_not_one_tensor() -> None:
    """Each input has a second use, whose gradient autograd adds, in place where it may."""
    x, residual, weight = _leaves(3, 9)
    for f in (fuseline.add_rms_norm, _native):
        a, b = x * 1.0, residual * 1.0
        y, h = f(a, b, weight, 1e-5)
        total = y.sin().sum() + h.cos().sum() + (a * 3).sum() + (b * 5).sum()
        grads = torch.autograd.grad(total, (x, residual))
        torch.testing.assert_close(grads[1] - grads[0], torch.full_like(x, 2.0))
    one = x.detach().requires_grad_()
    y, h = fuseline.add_rms_norm(one, one, weight, 1e-5)
    (both,) = torch.autograd.grad((y * h).sum(), one)
    y, h = _native(one, one, weight, 1e-5)
    torch.testing.assert_close(both, torch.autograd.grad((y * h).sum(), one)[0])


@pytest.mark.parametrize("device", DEVICES)
def test_only_what_is_asked_for_is_computed(device: str) -> None:
    for asks in range(1, 8):
        leaves = _leaves(3, 9, device=device)
        wanted = [bool(asks & 1 << i) for i in range(3)]
        for leaf, want in zip(leaves, wanted, strict=True):
            leaf.requires_grad_(want)
        y, h = fuseline.add_rms_norm(*leaves, 1e-5)
        assert y.requires_grad
        assert h.requires_grad == any(wanted[:2])
        (y.sum() + h.sum()).backward()
        assert [leaf.grad is not None for leaf in leaves] == wanted
    x, rstd = torch.randn(3, 9, device=device), torch.ones(3, device=device)
    for backward in BACKWARDS[device]:
        dx, dweight = backward(x, x, x, x[0], rstd, False, False)
        assert dx.shape == dweight.shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded", "empty", "one_row"])
def test_opcheck(layout: str, weighted: bool, device: str) -> None:
    x = {
        "contiguous": torch.randn(4, 6, 32),
        "transposed": torch.randn(6, 32, 4).to(device).transpose(1, 2),
        "expanded": torch.randn(1, 32).to(device).expand(5, 32),
        "empty": torch.randn(0, 32),
        "one_row": torch.randn(32),
    }[layout].to(device)
    residual = torch.randn(x.shape, device=device)
    weight = torch.randn(32, device=device) if weighted else None
    for op in (OPS.add_rms_norm, OPS._add_rms_norm, OPS._add_rms_norm_fwd):
        opcheck(op, (x, residual, weight, 1e-5))
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, residual, weight)]
    opcheck(OPS.add_rms_norm, (*leaves, 1e-5))
    _, h, rstd = OPS._add_rms_norm_fwd(x, residual, weight, 1e-5)
    for d_h in (None, residual):
        for needs in ((True, True), (False, True), (True, False)):
            opcheck(OPS._add_rms_norm_bwd, (x, d_h, h, weight, rstd, *needs))


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_whole_with_dynamic_shapes(device: str) -> None:
    torch._dynamo.reset()

    def block(x: Any, residual: Any, weight: Any) -> Any:
        y, h = fuseline.add_rms_norm(x * 1.5, residual, weight, 1e-5)
        return fuseline.add_rms_norm(y, h, weight, 1e-5)

    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for shape in ((4, 6, 32), (3, 5, 48), (7, 2, 16)):
        leaves = _leaves(*shape, dtype=torch.float32, device=device)
        got, want = compiled(*leaves), block(*leaves)
        torch.testing.assert_close(got, want)
        dys = [torch.randn_like(y) for y in want]
        torch.testing.assert_close(
            torch.autograd.grad(got, leaves, dys), torch.autograd.grad(want, leaves, dys)
        )


def test_export_keeps_the_public_operator() -> None:
    class Block(torch.nn.Module):
        def forward(self, x: Any, residual: Any) -> Any:
            return fuseline.add_rms_norm(x, residual, None, 1e-5)

    args = (torch.randn(4, 32), torch.randn(4, 32))
    program = torch.export.export(Block(), args)
    assert OPS.add_rms_norm.default in [node.target for node in program.graph.nodes]
    torch.testing.assert_close(program.module()(*args), Block()(*args))


@pytest.mark.parametrize("used", [0, 1, slice(None)])
@pytest.mark.parametrize("weighted", [True, False])
def test_double_backward(weighted: bool, used: Any) -> None:
    x, residual, weight = _leaves(3, 7)
    leaves = (x, residual, weight if weighted else None)
    assert torch.autograd.gradgradcheck(lambda *t: fuseline.add_rms_norm(*t, 1e-5)[used], leaves)


def _chained(f: Any, x: Any, residual: Any, weight: Any) -> Any:
    y, h = f(x, residual, weight, 1e-5)
    y, h = f(y * 2, h, weight, 1e-5)
    return (y * h).sum()


def _hooked(f: Any, x: Any, residual: Any, weight: Any) -> Any:
    inner = x * 1.0
    inner.register_hook(lambda g: 2 * g)
    y, h = f(inner, residual, weight, 1e-5)
    return (y.square() * h).sum()


@pytest.mark.parametrize("use", [_chained, _hooked])
def test_a_graph_of_the_gradient_goes_on_through_the_sum(use: Any) -> None:
    leaves = _leaves(4, 7)
    for create_graph in (False, True):
        got, want = (
            torch.autograd.grad(use(f, *leaves), leaves, create_graph=create_graph)
            for f in (fuseline.add_rms_norm, _native)
        )
        torch.testing.assert_close(got, want)
    got, want = (
        torch.autograd.grad(sum(g.square().sum() for g in grads), leaves) for grads in (got, want)
    )
    torch.testing.assert_close(got, want)


def test_transforms_agree_with_torch() -> None:
    x, residual, weight = (t.detach() for t in _leaves(4, 7))
    tangent, pair = torch.randn_like(x), torch.stack([x, residual], 1)
    for transform in (
        lambda f: torch.func.jvp(lambda t: f(t, residual, weight, 1e-5), (x,), (tangent,)),
        lambda f: torch.func.grad(lambda t: f(x, t, weight, 1e-5)[0].square().sum())(residual),
        lambda f: torch.func.vmap(lambda t: f(t, residual[0], weight, 1e-5))(x),
        lambda f: torch.func.vmap(lambda t: f(x, t, weight, 1e-5), 1)(pair),
        lambda f: torch.func.vmap(lambda w: f(x, residual, w, 1e-5))(weight.expand(3, 7) * 2),
        lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t, t, weight, 1e-5)[1].sum()))(x),
        lambda f: torch.func.jacrev(lambda t: f(t, residual[0], weight, 1e-5))(x[0]),
        lambda f: torch.func.jacfwd(lambda t: f(t, residual[0], weight, 1e-5))(x[0]),
    ):  # fmt: skip
        torch.testing.assert_close(transform(fuseline.add_rms_norm), transform(_native))


def test_batched_gradients() -> None:
    x, residual, weight = _leaves(3, 5)
    seeds = torch.randn(4, 3, 5, dtype=x.dtype)
    got, want = (
        torch.autograd.grad(f(x, residual, weight, 1e-5), (x, weight), (seeds, seeds * 2),
                            is_grads_batched=True)
        for f in (fuseline.add_rms_norm, _native)
    )  # fmt: skip
    torch.testing.assert_close(got, want)


def test_forward_mode_keeps_the_tangents_of_both_outputs() -> None:
    x, residual, tangent = (torch.randn(2, 5) for _ in range(3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        for f in (fuseline.add_rms_norm, OPS.add_rms_norm):
            for got, want in zip(
                f(dual, residual, None, 1e-5), _native(dual, residual, None, 1e-5), strict=True
            ):
                got, want = (torch.autograd.forward_ad.unpack_dual(t).tangent for t in (got, want))
                torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, s) for s in (1e30, 1e-30)] + [(torch.float64, 1e300)]
)
def test_sums_that_leave_the_normal_range(dtype: torch.dtype, scale: float) -> None:
    for n in (1, 61, 4096):
        x, residual = (t.detach() * scale for t in _leaves(3, n, dtype=dtype)[:2])
        y, h = fuseline.add_rms_norm(x, residual, None, 0.0)
        assert torch.equal(y, fuseline.rms_norm(h, None, 0.0))
        torch.testing.assert_close(decomposed(x, residual, None, 0.0), (y, h))


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_made_only_where_no_row_stride_exists_and_are_counted(device: str) -> None:
    rows = torch.randn(4, 3, 64, device=device)[..., :32]
    crossed = torch.randn(3, 4, 32, device=device).transpose(0, 1)
    for x, residual, copies in ((rows, rows, 0), (rows, crossed, 1), (crossed, crossed, 2)):
        before = native.copies()
        fuseline.add_rms_norm(x, residual, None, 1e-5)
        assert native.copies() - before == copies


@pytest.mark.parametrize("device", DEVICES)
def test_raw_operators_refuse_what_the_kernels_cannot_read(device: str) -> None:
    x, weight, rstd = (t.to(device) for t in (torch.randn(3, 8), torch.randn(8), torch.ones(3)))
    for call, words in (
        (lambda: OPS._add_rms_norm(x.int(), x, None, 1e-5), "x must be float64"),
        (lambda: OPS._add_rms_norm(x, x[:2], None, 1e-5), r"residual has shape \[2, 8\]"),
        (lambda: OPS._add_rms_norm(x, x.half(), None, 1e-5), "residual must have the dtype of x"),
        (lambda: OPS._add_rms_norm(x, x, weight[:7], 1e-5), r"weight has shape \[7\]"),
        (lambda: OPS._add_rms_norm_bwd(x[:2], x, x, None, rstd, True, True), "dy has shape"),
        (lambda: OPS._add_rms_norm_bwd(x, x[:2], x, None, rstd, True, True), "d_new_residual has"),
        (lambda: OPS._add_rms_norm_bwd(x, x.half(), x, None, rstd, True, True), "d_new_residual"),
        (lambda: OPS._add_rms_norm_bwd(x, x, x, None, rstd[:2], True, True), "rstd has shape"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=words):
            call()


def test_transforms_and_fakes_validate_as_calls_do() -> None:
    x = torch.randn(3, 8)
    for call in (
        lambda: fuseline.add_rms_norm(x, x[0], None, 1e-5),
        lambda: torch.func.grad(lambda t: fuseline.add_rms_norm(t, x[0])[0].sum())(x),
        lambda: torch.func.vmap(lambda t: fuseline.add_rms_norm(x, t))(x[:, :1]),
        lambda: OPS.add_rms_norm(x.to("meta"), x[0].to("meta"), None, 1e-5),
    ):
        with pytest.raises(ValueError, match=r"residual has shape .* expected .*, that of x"):
            call()


def test_symbolic_traces_name_the_operator() -> None:
    graph = torch.fx.symbolic_trace(lambda t: fuseline.add_rms_norm(t, t + 1, None, 1e-5)).graph
    assert fuseline.add_rms_norm in [node.target for node in graph.nodes]


def test_auto_takes_the_binary_and_triton_where_it_was_built_without_nvcc() -> None:
    assert SELECTOR.calls["auto", "cpu"] is SELECTOR.calls["cpu", "cpu"]
    without = native.status().build["nvcc"] is None
    assert (SELECTOR.unavailable("cuda", "cuda") is not None) == without
    kernels = "triton" if without else "cuda"
    assert SELECTOR.calls["auto", "cuda"] is SELECTOR.calls[kernels, "cuda"]


def test_an_operator_without_a_kernel_for_a_device_says_so() -> None:
    assert native.why_no_kernel("fuseline::add_rms_norm", "cpu") is None
    assert "no cpu kernel of aten::_cudnn_rnn" in str(
        native.why_no_kernel("aten::_cudnn_rnn", "cpu")
    )
