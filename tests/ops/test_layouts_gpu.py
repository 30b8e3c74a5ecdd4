"""CUDA and Triton kernels on tensors whose dimensions lie in any order: values, copies, strides."""

from __future__ import annotations

import pytest
import torch
from ops.layouts import KEEPING, LAYOUTS, inputs_with, keeps_the_budget, laid_out, run, strides
from ops.on_a_gpu import kernels

import fuseline
from fuseline import table
from fuseline.core import native

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Long columns, held and in slices; fewer of them than fill a vector; few long ones.
MORE = (
    ((2, 5, 900), (0, 2, 1)),
    ((3, 900), (1, 0)),
    ((3000, 1500), (1, 0)),
    ((1024, 9001), (1, 0)),
    ((40, 9001), (1, 0)),
    ((8, 3, 2100), (2, 0, 1)),
)
IMPLS = [
    (name, impl)
    for name in KEEPING
    for impl in ("cuda", "triton")
    if impl in {i.name for i in table.load()[name].implementations}
]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_the_budget_holds_in_every_order(name: str, impl: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # The oracle of fp64 takes few elements.
    shapes = [*LAYOUTS, *(MORE[:2] if dtype == torch.float64 else MORE)]
    for shape, order in shapes:
        for gap in (0, 5):
            keeps_the_budget(name, laid_out(shape, order, dtype, "cuda", gap), impl)


@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_results_lie_as_the_input(name: str, impl: str) -> None:
    for shape, order in (*LAYOUTS, *MORE):
        for gap in (0, 4):
            x = laid_out(shape, order, torch.bfloat16, "cuda", gap)
            inputs = inputs_with(table.load()[name], x)
            results = run(name, inputs, impl=impl)
            grads = torch.autograd.grad(
                results, tuple(inputs.values()), [torch.ones_like(t) for t in results]
            )
            for t in (*results, grads[0]):
                like = torch.empty_like(x if t.shape == x.shape else x[..., 0].contiguous())
                assert strides(t) == strides(like)


@pytest.mark.parametrize("name", KEEPING)
def test_a_transposed_input_takes_one_kernel_and_no_copy(name: str) -> None:
    x = torch.randn(1504, 8192, device="cuda", dtype=torch.bfloat16).T
    inputs = inputs_with(table.load()[name], x)
    inputs = {n: t.detach() for n, t in inputs.items()}
    before = native.copies()
    names = kernels(lambda: run(name, inputs, impl="cuda"))
    assert ["fuseline::" in name for name in names if "::" in name] == [True], names
    assert native.copies() == before


def layouts(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Gaps, steps, repeated elements, any address, few and many."""
    stored = torch.randn(40, 30, 3000, device="cuda").to(dtype)
    odd = torch.randn(900, 2047, device="cuda").to(dtype)
    return (
        stored[:, :7, 1:20], stored[:, :, 3:2051], stored[..., ::3], stored[:1].expand(9, 30, 3000),
        stored[..., :1].expand(40, 30, 70), stored[:, 1:, :90].transpose(0, 1),
        stored[:2, :9, :11].permute(2, 0, 1), odd, odd[0, 1:], odd[1:, 5:], odd[:, :1],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["bias_gelu", "pointwise_chain", "geglu", "swiglu"])
def test_pointwise_operators_copy_nothing(name: str, dtype: torch.dtype) -> None:
    """The bits of a contiguous input."""
    for x in layouts(dtype):
        inputs = inputs_with(table.load()[name], x)
        plain = {n: t.detach().contiguous().requires_grad_() for n, t in inputs.items()}
        dy = torch.randn((), device="cuda").to(dtype).expand(x.shape)
        before = native.copies()
        (y,) = run(name, inputs, impl="cuda")
        grads = torch.autograd.grad(y, tuple(inputs.values()), dy)
        assert native.copies() == before
        (want,) = run(name, plain, impl="cuda")
        right = torch.autograd.grad(want, tuple(plain.values()), dy)
        assert torch.equal(y, want)
        assert torch.equal(grads[0], right[0])
        eps = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(grads, right, rtol=eps, atol=eps * right[-1].abs().max().item())


def gradients_of_reductions(
    x: torch.Tensor, dcos: torch.Tensor, *of_rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    dsum, damax, amax, count = of_rows
    return (
        torch.ops.fuseline._horizontal_reduction_pointwise_bwd(dsum, dcos, x),
        torch.ops.fuseline._horizontal_reduction_reduction_bwd(dsum, damax, x, amax, count),
    )


def of_rows(x: torch.Tensor) -> list[torch.Tensor]:
    """dsum in steps, damax one for all, amax and count."""
    amax = x.amax(-1)
    dsum = torch.randn(*amax.shape, 2, device="cuda").to(x.dtype)[..., 1]
    one = torch.randn((), device="cuda").to(x.dtype)
    return [dsum, one.expand(amax.shape), amax, (x == amax[..., None]).sum(-1).double()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_reductions_copy_nothing(dtype: torch.dtype) -> None:
    """The bits of contiguous inputs, rows side by side too."""
    for x in (*layouts(dtype), torch.randn(999, 1500, device="cuda").to(dtype).T):
        given = [x, x, *of_rows(x)]
        before = native.copies()
        found = gradients_of_reductions(*given)
        assert native.copies() == before
        for a, b in zip(
            found, gradients_of_reductions(*(t.contiguous() for t in given)), strict=True
        ):
            assert torch.equal(a, b)


def test_what_rows_have_is_copied_of_many_orders() -> None:
    """Of more axes than kernels have."""
    x = torch.randn(3, 4, 5, 2, 3, 7, device="cuda").permute(4, 3, 2, 1, 0, 5)
    given = [x, x, *of_rows(x)]
    right = gradients_of_reductions(*(t.contiguous() for t in given))
    for a, b in zip(gradients_of_reductions(*given), right, strict=True):
        assert torch.equal(a, b)


def test_gradients_that_transpose_are_copied_by_tiles() -> None:
    x, dy = torch.randn(700, 900, device="cuda"), torch.randn(900, 700, device="cuda").T
    before = native.copies()
    got = torch.ops.fuseline._pointwise_chain_bwd(dy, x)
    assert native.copies() == before + 1
    assert torch.equal(got, torch.ops.fuseline._pointwise_chain_bwd(dy.contiguous(), x))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (2, 3, 0, 1), (3, 1, 0, 2)])
@pytest.mark.parametrize(
    "name", ["horizontal_reduction_pointwise", "horizontal_reduction_reduction"]
)
def test_nothing_is_copied_of_permuted_inputs(name: str, order: tuple[int, ...]) -> None:
    """Not even what has one element a row."""
    for shape in ((22, 2, 15, 257), (3, 70, 4, 600)):
        inputs = inputs_with(table.load()[name], laid_out(shape, order, torch.bfloat16, "cuda"))
        before = native.copies()
        results = run(name, inputs, impl="cuda")
        dys = [torch.empty_like(t) for t in results]
        torch.autograd.grad(results, tuple(inputs.values()), dys)
        assert native.copies() == before


@pytest.mark.parametrize(
    "name", ["horizontal_reduction_pointwise", "horizontal_reduction_reduction"]
)
def test_a_column_does_not_know_its_neighbours(name: str) -> None:
    for n in (61, 1500, 9001):
        x = torch.randn(n, 4096, device="cuda").T
        whole = run(name, {"x": x}, impl="cuda")
        for part in (slice(0, 2048), slice(1024, 3072)):
            for a, b in zip(run(name, {"x": x[part]}, impl="cuda"), whole, strict=True):
                assert torch.equal(a, b[part])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_rows_in_steps_are_not_copied(dtype: torch.dtype) -> None:
    """The bits are those of a contiguous one."""
    wide = torch.randn(5000, 3 * 61 + 1, device="cuda").to(dtype)
    small = torch.randn(900, 70, device="cuda").to(dtype)
    for x in (wide[:, 1::3], wide[:, 1::3][:7], wide[:300, ::2], small.T, small[::64, :64].T):
        w = torch.randn(x.shape[1], device="cuda").to(dtype)
        calls = (
            fuseline.softmax, fuseline.log_softmax, fuseline.double_softmax, fuseline.norm_chain,
            lambda x, w=w: fuseline.layer_norm(x, w, w),
            lambda x, w=w: fuseline.rms_norm(x, w, 1e-6),
            lambda x, w=w: torch.stack(fuseline.add_rms_norm(x, x, w, 1e-6)),
        )  # fmt: skip
        for call in calls:
            want, before = call(x.contiguous()), native.copies()
            assert torch.equal(call(x), want)
            assert native.copies() == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inputs_are_copied_by_kernels_of_ours(dtype: torch.dtype) -> None:
    """One copy of an input, large ones by tiles; the bits are those of a contiguous one."""
    for shape, order, kernel in (
        ((700, 301), (1, 0), "transpose_kernel"),
        ((3, 165, 230), (0, 2, 1), "transpose_kernel"),
        ((12, 4200), (1, 0), "direct_kernel"),
        ((2, 40, 5, 50), (0, 2, 3, 1), "direct_kernel"),
    ):
        x = laid_out(shape, order, dtype, "cuda")
        want, before = fuseline.layer_norm(x.contiguous()), native.copies()
        assert torch.equal(fuseline.layer_norm(x), want)
        assert native.copies() == before + 1
        names = kernels(lambda x=x: fuseline.layer_norm(x))
        assert sorted(kernel in name for name in names if "::" in name) == [False, True]
