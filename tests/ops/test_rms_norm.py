"""What is peculiar to RMSNorm: its registration, its transforms, its edges of range and layout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.instruction_sets import BUILT, for_instruction_set, own
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.rms_norm.op import CONTRACT, SELECTOR, decomposed

OPS = torch.ops.fuseline
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def _native(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _layouts(device: str) -> dict[str, torch.Tensor]:
    return {
        "contiguous": torch.randn(4, 6, 32, device=device),
        "transposed": torch.randn(6, 32, 4, device=device).transpose(1, 2),
        "last_stride_2": torch.randn(3, 64, device=device)[:, ::2],
        "row_stride": torch.randn(8, 64, device=device)[:, :32],
        "expanded": torch.randn(1, 32, device=device).expand(5, 32),
        "empty": torch.randn(0, 32, device=device),
        "one_dimension": torch.randn(32, device=device),
    }


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", _layouts("cpu"))
@pytest.mark.parametrize("weighted", [True, False])
def test_opcheck(device: str, layout: str, weighted: bool) -> None:
    x = _layouts(device)[layout]
    weight, offset = (torch.randn(32, device=device), (1.0,)) if weighted else (None, ())
    for op in (OPS.rms_norm, OPS._rms_norm, OPS._rms_norm_fwd):
        opcheck(op, (x, weight, 1e-5))
        opcheck(op, (x, weight, 1e-5, *offset))
    if weight is not None:
        weight.requires_grad_()
    opcheck(OPS.rms_norm, (x.detach().requires_grad_(), weight, 1e-5))
    opcheck(OPS.rms_norm, (x.detach().requires_grad_(), weight, 1e-5, *offset))
    _, rstd = OPS._rms_norm_fwd(x, weight, 1e-5)
    dy = torch.randn(1, device=device).expand(x.shape)
    for need_dx, need_dweight in ((True, True), (False, True), (True, False)):
        args = (dy, x, None if weight is None else weight.detach(), rstd, need_dx, need_dweight)
        opcheck(OPS._rms_norm_bwd, args)
        opcheck(OPS._rms_norm_bwd, (*args, *offset))


@pytest.mark.parametrize("device", DEVICES)
def test_dynamo_finds_no_graph_break(device: str) -> None:
    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return fuseline.rms_norm(x * 1.5, weight, 1e-5) + 1

    x, weight = torch.randn(4, 32, device=device), torch.randn(32, device=device)
    report = torch._dynamo.explain(block)(x, weight)
    assert (report.graph_count, report.graph_break_count) == (1, 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_compiles_whole_with_dynamic_shapes(device: str, offset: float) -> None:
    torch._dynamo.reset()

    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return fuseline.rms_norm(x * 1.5, weight, 1e-5, weight_offset=offset) + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for shape in ((4, 6, 32), (3, 5, 48), (7, 2, 16)):
        x = torch.randn(shape, device=device, requires_grad=True)
        weight = torch.randn(shape[-1], device=device, requires_grad=True)
        y, expected = compiled(x, weight), block(x, weight)
        dy = torch.randn_like(y)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            torch.autograd.grad(y, (x, weight), dy), torch.autograd.grad(expected, (x, weight), dy)
        )


def test_export_keeps_the_public_operator() -> None:
    module = fuseline.nn.RMSNorm(32)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.randn(4, 32),), dynamic_shapes=({0: batch},))
    assert OPS.rms_norm.default in [node.target for node in program.graph.nodes]
    x = torch.randn(9, 32)
    torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.slow
def test_exported_and_compiled_programs_need_the_binary_and_no_python(tmp_path: Path) -> None:
    module = fuseline.nn.RMSNorm(32, eps=1e-5)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.randn(4, 32),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "exported.pt2")
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(tmp_path / "compiled.pt2"),
        inductor_configs={"aot_inductor.precompile_headers": False},  # for the next program
    )
    code = f"""
import sys, torch
import torch._inductor.codecache  # torch 2.10's loader forgets to
torch.ops.load_library({str(native.status().path)!r})
x = torch.randn(9, 32)
for run in (
    torch._inductor.aoti_load_package({str(tmp_path / "compiled.pt2")!r}),
    torch.export.load({str(tmp_path / "exported.pt2")!r}).module(),
):
    torch.testing.assert_close(run(x), torch.nn.functional.rms_norm(x, (32,), None, 1e-5))
assert "fuseline" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("weighted", [True, False])
def test_double_backward(weighted: bool) -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True) if weighted else None
    offset = 1.0 if weighted else 0.0

    def norm(*t: Any) -> torch.Tensor:
        return fuseline.rms_norm(*t, 1e-5, weight_offset=offset)

    assert torch.autograd.gradgradcheck(norm, (x, weight))


def _reused(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return f(f(x, weight, 1e-5), weight, 1e-5).square().sum()


def _own_weight(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return f(x, x.mean(0), 1e-5).square().sum() + weight.sum()


def _hooked(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    inner = x * 1.0
    inner.register_hook(lambda g: 2 * g)
    return f(inner, weight, 1e-5).square().sum()


@pytest.mark.parametrize("use", [_reused, _own_weight, _hooked])
def test_a_graph_of_the_gradient_ends_at_the_operators_own_arguments(use: Any) -> None:
    x, weight = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 7), (7,)))
    for create_graph in (False, True):
        got, want = (
            torch.autograd.grad(use(f, x, weight), (x, weight), create_graph=create_graph)
            for f in (fuseline.rms_norm, _native)
        )
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float64, s) for s in (1.0, 1e200, 1e-200, 1e300, 1e-300)]
    + [(torch.float32, s) for s in (1.0, 1e30, 1e-30, 1e-36)],
)
def test_the_paths_that_take_the_formula_keep_the_kernels_range(
    dtype: torch.dtype, scale: float
) -> None:
    x, weight = torch.randn(3, 5, dtype=torch.float64) * scale, torch.randn(5, dtype=dtype)
    x = x.to(dtype)
    leaf = x.clone().requires_grad_()
    y = fuseline.rms_norm(leaf, weight, 0.0)
    (dx,) = torch.autograd.grad(y, leaf, weight.expand(3, 5))
    got = torch.func.grad(lambda t: (fuseline.rms_norm(t, weight, 0.0) * weight).sum())(x)
    torch.testing.assert_close(got * scale, dx * scale)
    batched = torch.func.vmap(lambda w: fuseline.rms_norm(x, w, 0.0))(weight[None])
    torch.testing.assert_close(batched[0], y.detach())


def test_transforms_validate_as_calls_do() -> None:
    x = torch.randn(3, 8)
    for call, words in (
        (lambda: torch.func.grad(lambda t: fuseline.rms_norm(t, x[0, :1]).sum())(x), "weight"),
        (lambda: torch.func.vmap(lambda w: fuseline.rms_norm(x, w))(x[:, :1]), "weight"),
        (lambda: torch.func.vmap(fuseline.rms_norm)(x[0]), "x is a scalar"),
        (lambda: fuseline.rms_norm(x, x[0, :1], impl="eager"), "weight"),
        (lambda: OPS._rms_norm_bwd(x, x, None, x[:, 0].to("meta"), True, True), "rstd"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="eps"):
        fuseline.rms_norm(x, None, torch.tensor(1e-5, requires_grad=True))


def test_traces_and_symbolic_traces_name_the_operator() -> None:
    module = torch.nn.Sequential(fuseline.nn.RMSNorm(8, eps=1e-5))
    x = torch.randn(3, 8)
    traced = torch.jit.trace(module, torch.randn(2, 8))
    assert "fuseline::rms_norm" in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), module(x))
    graph = torch.fx.symbolic_trace(lambda t: fuseline.rms_norm(t + 1, None, 1e-5)).graph
    assert fuseline.rms_norm in [node.target for node in graph.nodes]
    shifted = torch.fx.symbolic_trace(lambda t, w: _ours_with_offset(t, w, 1e-5))
    torch.testing.assert_close(shifted(x, x[0]), _native_with_offset(x, x[0], 1e-5))


def _ours_with_offset(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return fuseline.rms_norm(x, weight, eps, weight_offset=0.5)


def _native_with_offset(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _native(x, 0.5 + weight, eps)


@pytest.mark.parametrize(
    ("ours", "native"), [(fuseline.rms_norm, _native), (_ours_with_offset, _native_with_offset)]
)
def test_transforms_agree_with_torch(ours: Any, native: Any) -> None:
    x, weight = torch.randn(4, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    tangent = torch.randn_like(x)
    for transform in (
        lambda f: torch.func.jvp(lambda t: f(t, weight, 1e-5), (x,), (tangent,)),
        lambda f: torch.func.grad(lambda t: f(t, weight, 1e-5).square().sum())(x),
        lambda f: torch.func.vmap(lambda t: f(t, weight, 1e-5))(x),
        lambda f: torch.func.vmap(lambda w: f(x, w, 1e-5))(weight.expand(3, 7) * tangent[:3]),
        lambda f: torch.func.vmap(lambda t: f(t, weight, 1e-5), in_dims=1)(x.expand(3, 4, 7)),
        lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t, weight, 1e-5).sum()))(x),
        lambda f: torch.func.hessian(lambda t: f(t, weight, 1e-5).square().sum())(x[0]),
        lambda f: torch.func.jacfwd(lambda t: f(t, weight, 1e-5))(x[0]),
        lambda f: torch.func.jacrev(lambda t: f(t, weight, 1e-5))(x[0]),
    ):  # fmt: skip
        torch.testing.assert_close(transform(ours), transform(native))


def test_forward_mode_without_requires_grad_keeps_the_tangent() -> None:
    x, tangent = torch.randn(2, 5), torch.randn(2, 5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        for f in (fuseline.rms_norm, OPS.rms_norm):
            got = torch.autograd.forward_ad.unpack_dual(f(dual, None, 1e-5)).tangent
            want = torch.autograd.forward_ad.unpack_dual(_native(dual, None, 1e-5)).tangent
            torch.testing.assert_close(got, want)


def test_forward_mode_reaches_compiled_graphs_and_gradients() -> None:
    x, tangent = torch.randn(2, 5), torch.randn(2, 5)

    def jvp(f: Any) -> Any:
        return lambda t: torch.func.jvp(lambda u: f(u, None, 1e-5) + u, (t,), (tangent,))[1]

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(jvp(fuseline.rms_norm))(x), jvp(_native)(x))
    leaf = x.clone().requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        dy = torch.autograd.forward_ad.make_dual(torch.ones_like(x), tangent)
        got, want = (
            torch.autograd.forward_ad.unpack_dual(
                torch.autograd.grad(f(leaf, None, 1e-5), leaf, dy)[0]
            )
            for f in (fuseline.rms_norm, _native)
        )
    torch.testing.assert_close(got.tangent, want.tangent)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_only_for_what_asks(device: str) -> None:
    x, weight = torch.randn(3, 9, device=device), torch.randn(9, device=device)
    for wants_x, wants_weight in ((True, False), (False, True)):
        a, b = x.clone().requires_grad_(wants_x), weight.clone().requires_grad_(wants_weight)
        fuseline.rms_norm(a, b, 1e-5).sum().backward()
        assert ((a.grad is not None), (b.grad is not None)) == (wants_x, wants_weight)
    _, rstd = OPS._rms_norm_fwd(x, weight, 1e-5)
    dx, dweight = OPS._rms_norm_bwd(x, x, weight, rstd, False, False)
    assert dx.shape == dweight.shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("n", [1, 61, 4096, 70000])
def test_rows_that_leave_the_normal_range(
    device: str, dtype: torch.dtype, scale: float, n: int
) -> None:
    """|x| = 1e30 or 1e-30 with eps = 0, beside an ordinary row (fp64: 1e300 and 1e-300)."""
    scale = scale**10 if dtype == torch.float64 else scale
    rows = torch.randn(3, n, dtype=torch.float64, device=device)
    x = (rows * torch.tensor([[scale], [1.0], [scale]], dtype=torch.float64, device=device)).to(
        dtype
    )
    weight = torch.randn(n, dtype=dtype, device=device)
    y = fuseline.rms_norm(x, weight, 0.0)
    # The oracle in the same range: a power of two out, which the norm does not see.
    down = 2.0 ** torch.floor(torch.log2(x.double().abs().amax(-1, keepdim=True)))
    expected = _native(x.double() / down, weight.double(), 0.0)
    torch.testing.assert_close(
        y.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).tiny
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [7, 64, 20001])
def test_a_weight_of_fp32_beside_fp64_rows_is_one_of_fp64(device: str, n: int) -> None:
    """Its gradient comes in fp32. Of every norm, since kernels of both are left out."""
    x, residual, dy = torch.randn(3, 4, n, dtype=torch.float64, device=device)
    weight = torch.randn(n, device=device)
    for call in (
        lambda x, weight: fuseline.rms_norm(x, weight),
        lambda x, weight: fuseline.add_rms_norm(x, residual, weight)[0],
        lambda x, weight: fuseline.layer_norm(x, weight, None),
    ):
        mixed = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        wide = [x.clone().requires_grad_(), weight.double().requires_grad_()]
        y, expected = call(*mixed), call(*wide)
        assert torch.equal(y, expected)
        dx, dweight = torch.autograd.grad(y, mixed, dy)
        right, exact = torch.autograd.grad(expected, wide, dy)
        assert torch.equal(dx, right)
        assert dweight.dtype == torch.float32
        assert torch.equal(dweight, exact.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1023, 4095, 4096, 1 << 20])
def test_equal_elements_do_not_add_up_their_roundings(dtype: torch.dtype, n: int) -> None:
    """All lanes of a sum then err alike; random rows would hide it."""
    value = torch.tensor(0.7390851332151607, dtype=dtype)
    y = fuseline.rms_norm(value.expand(1, n), None, 0.0, impl="cpu")
    assert ((y - 1).abs() <= 4 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("device", DEVICES)
def test_extremes_of_eps_and_of_elements_beside_each_other(device: str) -> None:
    x = torch.full((1, 3), 1e15, device=device)
    weight = torch.full((3,), 1e38, device=device)
    torch.testing.assert_close(fuseline.rms_norm(x, weight, 1e90), torch.full_like(x, 1e8))
    like = {"dtype": torch.float64, "device": device}
    x = torch.tensor([[1e155, 1e-140], [1e-310, 1e-310]], **like)
    y = fuseline.rms_norm(x, torch.tensor([1.0, 1e100], **like), 0.0)
    expected = torch.tensor([[2.0**0.5, 2.0**0.5 * 1e-195], [1.0, 1e100]], **like)
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=0.0)


@pytest.mark.timeout(10)
def test_any_number_of_empty_rows() -> None:
    assert fuseline.rms_norm(torch.empty(1 << 40, 0)).shape == (1 << 40, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_nan_and_inf_stay_in_their_rows(device: str) -> None:
    x = torch.randn(4, 300, device=device)
    clean = fuseline.rms_norm(x, None, 1e-5)
    x[1, 7], x[2, 299] = float("nan"), float("inf")
    y = fuseline.rms_norm(x, None, 1e-5)
    assert torch.equal(y[[0, 3]], clean[[0, 3]])
    assert y[1].isnan().all()
    assert y[2, 299].isnan()
    assert (y[2, :299] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_made_only_where_no_row_stride_exists_and_are_counted(device: str) -> None:
    # Every second element CUDA's kernels read where it is.
    copied = {"transposed"} if device == "cuda" else {"transposed", "last_stride_2"}
    for name, x in _layouts(device).items():
        before = native.copies()
        fuseline.rms_norm(x, None, 1e-5)
        assert native.copies() - before == (name in copied), name


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_does_not_depend_on_the_batch(device: str) -> None:
    for n in (5, 130, 1027, 4096):
        x = torch.randn(2000, n, device=device)
        assert torch.equal(
            fuseline.rms_norm(x, None, 1e-5)[:3], fuseline.rms_norm(x[:3], None, 1e-5)
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 0), (0, 5), (2, 0, 4)])
def test_empty(device: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device=device, requires_grad=True)
    weight = torch.randn(shape[-1], device=device, requires_grad=True)
    y = fuseline.rms_norm(x, weight, 1e-5)
    y.sum().backward()
    assert y.shape == x.shape
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_raw_operators_refuse_what_the_kernels_cannot_read() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    _, rstd = OPS._rms_norm_fwd(x, weight, 1e-5)
    for call, words in (
        (lambda: OPS._rms_norm(x.int(), weight, 1e-5), "x must be float64"),
        (lambda: OPS._rms_norm(x, weight[:7], 1e-5), r"weight has shape \[7\], expected \[8\]"),
        (lambda: OPS._rms_norm(x, weight.half(), 1e-5), "weight must have the dtype"),
        (lambda: OPS._rms_norm(torch.tensor(1.0), None, 1e-5), "at least one dimension"),
        (lambda: OPS._rms_norm(x, None, 1e-5, 1.0), "weight_offset is 1.*expected 0 without"),
        (lambda: OPS._rms_norm_bwd(x, x, None, rstd, True, True, 1.0), "weight_offset is 1"),
        (lambda: OPS._rms_norm_bwd(x[:2], x, weight, rstd, True, True), "dy has shape"),
        (lambda: OPS._rms_norm_bwd(x.half(), x, weight, rstd, True, True), "dy must have the"),
        (lambda: OPS._rms_norm_bwd(x, x, weight, rstd[:2], True, True), "rstd has shape"),
        (lambda: OPS._rms_norm_bwd(x, x, weight, rstd.double(), True, True), "rstd must be"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=words):
            call()


def test_the_kernel_takes_the_eps_that_the_public_function_refuses() -> None:
    x = torch.randn(3, 8) * 10
    torch.testing.assert_close(OPS.rms_norm(x, None, -0.5), _native(x, None, -0.5))
    with pytest.raises(ValueError, match=r"eps is -0\.5, expected a number >= 0"):
        fuseline.rms_norm(x, None, -0.5)


def test_unknown_implementation_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'fast', expected one of: auto, cuda, .* eager"):
        fuseline.rms_norm(torch.randn(2, 3), impl="fast")


def test_an_implementation_for_another_device_says_so() -> None:
    with pytest.raises(RuntimeError, match="impl 'cuda' cannot run here: it needs x on cuda"):
        fuseline.rms_norm(torch.randn(2, 3), impl="cuda")


def test_eps_defaults_to_that_of_the_dtype_of_x() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(2, 64).to(dtype) * 1e-2
        expected = fuseline.rms_norm(x, None, torch.finfo(dtype).eps)
        assert torch.equal(fuseline.rms_norm(x), expected)


def test_decomposed_is_the_same_function() -> None:
    x, weight = torch.randn(5, 33), torch.randn(33)
    for scale, eps in ((1.0, 1e-5), (1e30, 0.0), (1e-30, 0.0), (1e-30, 1e-6)):
        torch.testing.assert_close(
            decomposed(x * scale, weight, eps), fuseline.rms_norm(x * scale, weight, eps)
        )


def test_module_is_torchs_in_all_but_speed() -> None:
    for shape in (8, (8,), (2, 4)):
        ours, theirs = fuseline.nn.RMSNorm(shape, eps=1e-5), torch.nn.RMSNorm(shape, eps=1e-5)
        torch.nn.init.normal_(theirs.weight)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        theirs.load_state_dict(ours.state_dict(), strict=True)
        assert repr(ours) == repr(theirs)
        x = torch.randn(3, 2, 4) if shape == (2, 4) else torch.randn(3, 8)
        torch.testing.assert_close(ours(x), theirs(x))
    bare = fuseline.nn.RMSNorm(8, elementwise_affine=False)
    assert bare.weight is None
    for module, shape in ((bare, (3, 7)), (fuseline.nn.RMSNorm((2, 4)), (1, 8))):
        with pytest.raises(ValueError, match=r"x has shape .* normalized_shape, \("):
            module(torch.randn(shape))


@pytest.mark.parametrize("shape", [8, (2, 4)])
def test_a_module_with_an_offset_begins_as_one_without(shape: Any) -> None:
    ours = fuseline.nn.RMSNorm(shape, eps=1e-5, weight_offset=1.0)
    theirs = torch.nn.RMSNorm(shape, eps=1e-5)
    assert torch.equal(ours.weight, torch.zeros_like(theirs.weight))
    assert repr(ours) == repr(theirs)[:-1] + ", weight_offset=1.0)"
    x = torch.randn(3, *theirs.normalized_shape)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.nn.init.normal_(ours.weight)
    theirs.weight = torch.nn.Parameter(1 + ours.weight.detach())
    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, ours.weight, dy), torch.autograd.grad(expected, theirs.weight, dy)
    )
    with pytest.raises(ValueError, match=r"weight_offset is 1\.0, expected 0 without a weight"):
        fuseline.nn.RMSNorm(shape, elementwise_affine=False, weight_offset=1.0)(x)


def test_an_offset_is_added_before_the_weight_is_rounded() -> None:
    """1 + w of a bfloat16 weight has more bits than bfloat16."""
    x, weight = torch.randn(4, 64).bfloat16(), (torch.randn(64) * 1e-3).bfloat16()
    y = fuseline.rms_norm(x, weight, 1e-6, weight_offset=1.0)
    wide = fuseline.rms_norm(x, 1 + weight.float(), 1e-6)
    assert torch.equal(y, wide)
    assert not torch.equal(y, fuseline.rms_norm(x, 1 + weight, 1e-6))


def _run_copy(folder: Path, code: str, binary: bytes | None) -> None:
    """Runs code against a copy of the package that has this binary, or none."""
    copy = folder / "fuseline"
    shutil.copytree(Path(table.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so"))
    if binary is not None:
        (copy / native.LIBRARY).write_bytes(binary)
    alone = f"""
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path.insert(0, {str(folder)!r})
import fuseline, torch, warnings
assert list(fuseline.__path__) == [{str(copy)!r}], fuseline.__path__
"""
    done = subprocess.run([sys.executable, "-c", alone + code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_without_the_binary_auto_runs_eager_and_says_so_once(tmp_path: Path) -> None:
    code = """
x = torch.randn(3, 8)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    y = fuseline.rms_norm(x); fuseline.rms_norm(x)
assert len(seen) == 1, seen
assert "eager" in str(seen[0].message) and "pip install" in str(seen[0].message)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (8,)))
op = torch.ops.fuseline.rms_norm
for call in (lambda: fuseline.rms_norm(x, impl="cpu"), lambda: op(x, None, 0.0)):
    try:
        call()
    except RuntimeError as error:
        assert "missing" in str(error) and "pip install" in str(error), error
    else:
        raise AssertionError("ran without a binary")
assert op(x.to("meta"), None, 0.0).shape == x.shape
"""
    _run_copy(tmp_path, code, None)


def test_a_broken_binary_names_cause_and_remedy(tmp_path: Path) -> None:
    code = """
try:
    fuseline.rms_norm(torch.randn(2, 3), impl="cpu")
except RuntimeError as error:
    assert "broken" in str(error) and "does not load" in str(error) and "pip" in str(error), error
else:
    raise AssertionError("ran with a broken binary")
"""
    _run_copy(tmp_path, code, b"not a library")


@pytest.mark.parametrize("part", [0.5, 0.999])
def test_a_binary_that_was_cut_short_does_not_end_the_process(tmp_path: Path, part: float) -> None:
    whole = native.status().path.read_bytes()
    code = """
try:
    fuseline.rms_norm(torch.randn(2, 3), impl="cpu")
except RuntimeError as error:
    assert "broken" in str(error) and "cut short" in str(error), error
else:
    raise AssertionError("ran with half a binary")
"""
    _run_copy(tmp_path, code, whole[: int(len(whole) * part)])


def test_the_package_joins_a_process_that_loaded_the_binary_itself() -> None:
    path = str(native.status().path)
    code = f"""
import torch
torch.ops.load_library({path!r})
import fuseline
x = torch.randn(2, 8, requires_grad=True)
fuseline.rms_norm(x, impl="cpu").sum().backward()
assert x.grad is not None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_binary_of_other_operators_leaves_the_package_importable(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    shutil.copy(native.status().path, other)
    code = f"""
import torch
torch.ops.load_library({str(other)!r})
import fuseline
try:
    fuseline.rms_norm(torch.randn(2, 3), impl="cpu")
except RuntimeError as error:
    assert "another copy" in str(error), error
else:
    raise AssertionError("two copies, and no word")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, weight = torch.randn(700, 513), torch.randn(513, requires_grad=True)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            y = fuseline.rms_norm(x, weight, 1e-5)
            results.append((y, *torch.autograd.grad(y, weight, x)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_runs_and_is_right(isa: str) -> None:
    code = """
from fuseline import table, testing
for name in ("rms_norm", "add_rms_norm"):
    report = testing.check(table.load()[name], ["cpu"], level="quick")
    assert report.ok, str(report)
"""
    # Of the widest, which this process has, test_all.py asks everything.
    for_instruction_set(isa, "" if isa == own() else code)


def test_no_warning_on_an_ordinary_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuseline.rms_norm(torch.randn(2, 8), torch.randn(8))


def test_selector_prefers_the_binary() -> None:
    assert SELECTOR.calls["auto", "cpu"] is SELECTOR.calls["cpu", "cpu"]


def _host_takes_free_pages() -> bool:
    balloons = (
        device
        for device in Path("/sys/bus/virtio/devices").glob("*")
        if (device / "device").read_text().strip() == "0x0005"
    )
    return any((balloon / "features").read_text()[5] == "1" for balloon in balloons)


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")
def test_large_outputs_lie_on_huge_pages_unless_a_host_takes_them_away() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.is_file() or "[madvise]" not in setting.read_text():
        pytest.skip("transparent huge pages are not given on advice")
    y = fuseline.rms_norm(torch.randn(4096, 8192), impl="cpu")
    at, huge_kb = y.data_ptr() + y.nbytes // 2, 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if re.fullmatch("[0-9a-f]+-[0-9a-f]+", first):
            low, high = (int(number, 16) for number in first.split("-"))
            inside = low <= at < high
        elif inside and first == "AnonHugePages:":
            huge_kb = int(rest.split()[0])
    assert (huge_kb >= y.nbytes // 2 // 1024) == (not _host_takes_free_pages())
