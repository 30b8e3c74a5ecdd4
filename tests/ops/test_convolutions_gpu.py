"""Convolutions on a GPU: cuDNN's fused kernels and the norm in Triton, against fp64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from ops.convolutions import LAST, OPS, computed, error, exact, seeds, tensors
from ops.on_a_gpu import kernels
from torch import Tensor

import fuseline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
HALVES = (torch.float16, torch.bfloat16)
FORMS = (torch.contiguous_format, LAST)
# x, filters, kernel, numbers.
PROBLEMS: tuple[tuple[tuple[int, ...], int, tuple[int, int], dict[str, Any]], ...] = (
    ((2, 64, 14, 15), 64, (3, 3), {"padding": 1}),
    ((2, 3, 33, 32), 64, (7, 7), {"stride": 2, "padding": 3}),
    ((1, 1, 8, 8), 1, (1, 1), {}),
    ((3, 66, 9, 10), 50, (3, 1), {"padding": (1, 0), "stride": (1, 2)}),
    ((2, 32, 20, 18), 40, (3, 3), {"dilation": 2, "groups": 2}),
    ((2, 16, 9, 9), 16, (3, 3), {"groups": 16}),
)


@pytest.fixture
def ieee() -> Iterator[None]:
    """Have float32 multiplied in float32."""
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision = before


def served(op: str, given: dict[str, Tensor], numbers: dict[str, Any]) -> list[str]:
    """The implementations that serve a call."""
    told = fuseline.explain_choice(getattr(fuseline, op), **given, **numbers)
    later = [name for name, why in told.fwd.others if why.startswith("it comes after")]
    return [told.fwd.impl, *later]


@pytest.mark.usefixtures("ieee")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
def test_every_implementation_is_right(op: str, dtype: torch.dtype) -> None:
    for (shape, filters, kernel, numbers), form in product(PROBLEMS, FORMS):
        given = tensors(op, shape, filters, kernel, dtype, "cuda", form, **numbers)
        dy = seeds(op, given, numbers)
        wanted = exact(op, given, numbers, dy)
        plain = computed(op, given, numbers, dy, "eager")
        eager = [error(*pair, dy) for pair in zip(plain, wanted, strict=True)]
        for impl in served(op, given, numbers):
            found = computed(op, given, numbers, dy, impl)
            for mine, want, theirs in zip(found, wanted, eager, strict=True):
                assert error(mine, want, dy) <= max(4.0, 2.5 * theirs), (impl, shape, form)
            last = form is LAST and shape[1] > 1
            assert found[0].is_contiguous(memory_format=LAST if last else FORMS[0])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_passes_and_memory_does_not_matter(op: str, dtype: torch.dtype) -> None:
    given = tensors(op, (2, 64, 9, 9), 64, dtype=dtype, device="cuda", form=LAST)
    for impl in served(op, given, {}):
        filth = [torch.full((2, 64, 7, 7), torch.nan, device="cuda", dtype=dtype) for _ in range(4)]
        del filth
        assert not computed(op, given, {}, impl=impl)[0].isnan().any()
        bad = {**given, "x": given["x"].clone()}
        bad["x"][0, 3, 4, 4] = torch.nan
        found = computed(op, bad, {}, impl=impl)[0].isnan()
        assert torch.equal(found, exact(op, bad, {})[0].isnan()), impl


def test_z_may_be_x() -> None:
    """As pytorch#62926 has it."""
    for dtype, form, (channels, size) in product((torch.float32, torch.bfloat16), FORMS,
                                                 ((1, 8), (64, 14))):  # fmt: skip
        shape = (2, channels, size, size)
        given = tensors("conv_add_relu", shape, channels, (1, 1), dtype, "cuda", form)
        given["z"] = given["x"]
        before = given["x"].clone()
        wanted = exact("conv_add_relu", given, {})[0]
        limit = 4 + 2.5 * error(computed("conv_add_relu", given, {}, impl="eager")[0], wanted)
        for impl in served("conv_add_relu", given, {}):
            assert error(computed("conv_add_relu", given, {}, impl=impl)[0], wanted) <= limit
        assert torch.equal(given["x"], before)


def test_one_kernel_where_cudnn_fuses() -> None:
    given = tensors("conv_relu", (8, 64, 28, 28), 64, (1, 1), torch.bfloat16, "cuda", LAST)
    if served("conv_relu", given, {})[0] != "cudnn":
        pytest.skip("another implementation serves it")
    ran = kernels(lambda: computed("conv_relu", given, {}))
    assert not [name for name in ran if "elementwise" in name], ran


def _norm(channels: int, kind: torch.dtype) -> dict[str, Tensor]:
    weight, bias = (torch.randn(channels, device="cuda").to(kind) for _ in range(2))
    return {"bn_weight": weight, "bn_bias": bias}


def _trained(call: Callable[..., Tensor], given: dict[str, Tensor]) -> list[Tensor]:
    leaves = {n: t.detach().requires_grad_() for n, t in given.items()}
    y = call(**leaves)
    return [y.detach(), *torch.autograd.grad(y, [*leaves.values()], y.detach().cos())]


def _formula(x: Tensor, weight: Tensor, bn_weight: Tensor, bn_bias: Tensor) -> Tensor:
    h = torch.conv2d(x, weight, None, padding=1)
    return torch.relu(torch.batch_norm(h, bn_weight, bn_bias, None, None, True, 0, 1e-5, True))


def _conv_bn(impl: str) -> Callable[..., Tensor]:
    fixed: dict[str, Any] = {
        "bias": None, "running_mean": None, "running_var": None, "training": True, "relu": True,
        "padding": 1, "impl": impl,
    }  # fmt: skip
    return lambda **given: fuseline.conv_bn(**given, **fixed)


@pytest.mark.usefixtures("ieee")
@pytest.mark.parametrize("impl", ["auto", "aten", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_norm_and_relu_in_training(dtype: torch.dtype, impl: str) -> None:
    for shape, channels in (((4, 8, 15, 14), 64), ((3, 16, 9, 9), 200), ((2, 8, 33, 31), 6)):
        given = tensors("conv_relu", shape, channels, dtype=dtype, device="cuda", form=LAST)
        del given["bias"]
        given |= _norm(channels, torch.float32)
        wanted = _trained(_formula, {n: t.double() for n, t in given.items()})
        eager = [error(*pair) for pair in zip(_trained(_formula, given), wanted, strict=True)]
        for mine, want, theirs in zip(_trained(_conv_bn(impl), given), wanted, eager, strict=True):
            assert error(mine, want) <= max(4.0, 2.5 * theirs)


def _inference(
    given: dict[str, Tensor], relu: bool, numbers: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The formula, and how large its terms are."""
    x, weight, bias, w, b, mean, var = given.values()
    h = torch.conv2d(x, weight, bias, **numbers)
    y = torch.batch_norm(h, w, b, mean, var, False, 0.0, 1e-5, False)
    terms = (h.abs().amax((0, 2, 3)) + mean.abs()) * w.abs() / var.sqrt() + b.abs()
    return y.relu() if relu else y, terms.max()


@pytest.mark.usefixtures("ieee")
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_inference_is_folded_by_one_kernel(dtype: torch.dtype, relu: bool) -> None:
    for (shape, filters, kernel, numbers), form in product(PROBLEMS, FORMS):
        given = tensors("conv_relu", shape, filters, kernel, dtype, "cuda", form, **numbers)
        given |= _norm(filters, torch.float32)
        given |= {n: torch.rand(filters, device="cuda") for n in ("running_mean", "running_var")}

        def call(given: dict[str, Tensor] = given, numbers: dict[str, Any] = numbers) -> Tensor:
            return fuseline.conv_bn(**given, relu=relu, **numbers)

        for _ in range(3):  # the first call may compile, the next repeat its launch
            given["running_var"].data.uniform_(0.5, 2.0)
            wanted, terms = _inference({n: t.double() for n, t in given.items()}, relu, numbers)
            eager, _ = _inference(given, relu, numbers)
            mine, theirs = ((y - wanted).abs().max() for y in (call(), eager))
            # In float32 a sum is off by more than its rounding.
            own = (8 if dtype == torch.float32 else 2) * torch.finfo(dtype).eps * terms
            assert mine <= torch.maximum(own, 2.5 * theirs), (shape, form)
        ran = kernels(call)
        assert "_fold_kernel" in ran
        assert not [name for name in ran if "rsqrt" in name], ran


def test_a_graph_of_training_can_be_captured() -> None:
    given = tensors("conv_relu", (4, 16, 14, 14), 32, (3, 3), torch.bfloat16, "cuda", LAST)
    del given["bias"]
    given |= _norm(32, torch.float32)
    call = _conv_bn("auto")
    wanted = _trained(call, given)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _trained(call, given)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        found = _trained(call, given)
    graph.replay()
    torch.testing.assert_close(found, wanted)
