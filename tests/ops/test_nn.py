"""fuseline.nn.RMSNorm is torch.nn.RMSNorm: dtypes, eps, autocast, subclasses, tracing, errors."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseline
from fuseline import nn
from fuseline.core import native

pytestmark = [
    pytest.mark.skipif(
        native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
    ),
    pytest.mark.filterwarnings("ignore:Mismatch dtype"),
]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CASTS = [None, torch.bfloat16, torch.float16]


def twins(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return torch's module and ours with the same random weight."""
    theirs, ours = torch.nn.RMSNorm(*args, **kwargs), nn.RMSNorm(*args, **kwargs)
    if theirs.weight is not None:
        with torch.no_grad():
            theirs.weight.copy_(torch.rand(theirs.weight.shape) + 0.5)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def outcome(module: Any, x: Any, to: torch.dtype | None = None) -> Any:
    try:
        with torch.autocast(x.device.type, to, enabled=to is not None):
            return module(x)
    except Exception as error:
        return type(error)


def assert_same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if not isinstance(wanted, Tensor):
        assert got is wanted
        return
    eps = torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(got, wanted, rtol=4 * eps, atol=eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("eps", [None, 1e-6, 0.5, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_pair_of_dtypes(dtype: torch.dtype, eps: Any, device: str) -> None:
    theirs, ours = twins(24, eps=eps, dtype=dtype, device=device)
    for x_dtype, to in product(DTYPES, CASTS):
        # Rows as small as the smallest eps of a dtype, where another eps would show.
        sizes = torch.tensor([1.0, 1e-4, 1e-2, 30.0]).view(-1, 1)
        x = (torch.randn(4, 24) * sizes).to(device, x_dtype)
        assert_same(outcome(ours, x, to), outcome(theirs, x, to))


@pytest.mark.parametrize("shape", [(3,), (2, 5), (1,), (2, 1, 4)])
def test_shapes_and_no_weight(shape: tuple[int, ...]) -> None:
    for affine, dtype in product((True, False), FLOATS):
        theirs, ours = twins(shape, elementwise_affine=affine, dtype=dtype)
        for lead in ((), (7,), (0,), (2, 3)):
            x = torch.randn(*lead, *shape).to(dtype)
            assert_same(ours(x), theirs(x))


@pytest.mark.parametrize("w_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("x_dtype", FLOATS, ids=str)
def test_gradients_of_mixed_dtypes(x_dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    theirs, ours = twins(16, eps=1e-3, dtype=w_dtype)
    x, dy = torch.randn(5, 16).to(x_dtype), torch.randn(5, 16).to(x_dtype)
    grads = []
    for module in (theirs, ours):
        leaf = x.clone().requires_grad_()
        module(leaf).backward(dy)
        grads.append((leaf.grad, module.weight.grad))
    for wanted, got in zip(*grads, strict=True):
        assert got.dtype == wanted.dtype
        eps = max(torch.finfo(d).eps for d in (x_dtype, w_dtype))
        torch.testing.assert_close(got, wanted, rtol=16 * eps, atol=16 * eps)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_offset_beside_another_dtype(dtype: torch.dtype) -> None:
    for w_dtype in FLOATS:
        ours = nn.RMSNorm(16, eps=1e-6, weight_offset=1.0, dtype=w_dtype)
        with torch.no_grad():
            ours.weight.uniform_(-0.5, 0.5)
        x = torch.randn(3, 16).to(dtype)
        y, weight = ours(x), 1 + ours.weight.double()
        assert y.dtype == dtype
        wanted = torch.nn.functional.rms_norm(x.double(), (16,), weight, 1e-6).to(dtype)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(y, wanted, rtol=4 * eps, atol=eps)


def test_autocast_of_a_device_that_has_the_norm_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn, "IN_FLOAT", frozenset(("cpu",)))
    _, ours = twins(16, eps=1e-3)
    for w_dtype, x_dtype in product(FLOATS, FLOATS):
        ours.to(w_dtype)
        x = torch.randn(3, 16).to(x_dtype)
        with torch.autocast("cpu", torch.bfloat16):
            y = ours(x)
        wide = x if x_dtype == torch.float64 else x.float()
        weight = ours.weight if w_dtype == torch.float64 else ours.weight.float()
        assert_same(y, torch.nn.functional.rms_norm(wide, (16,), weight, 1e-3))
        assert_same(ours(x), torch.nn.functional.rms_norm(x, (16,), ours.weight, 1e-3))
    torch._dynamo.reset()
    compiled = torch.compile(ours.bfloat16(), fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(compiled(x), ours(x))
    assert_same(compiled(x), ours(x))
    torch._dynamo.reset()


def test_what_autocast_does_is_what_the_dispatcher_says() -> None:
    assert nn.IN_FLOAT.issubset({"cpu", "cuda"})
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.nn.functional.rms_norm(torch.randn(2, 8).bfloat16(), (8,))
    assert (y.dtype == torch.float32) == ("cpu" in nn.IN_FLOAT)


class Tagged(torch.Tensor):
    """A subclass that does nothing."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_subclasses_run_torchs_own() -> None:
    theirs, ours = twins(8)
    rows = [torch.randn(3, 8), torch.randn(5, 8)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    for y, row in zip(ours(jagged).unbind(), rows, strict=True):
        assert_same(y, theirs(row))
    tagged = torch.randn(3, 8).as_subclass(Tagged)  # type: ignore[arg-type]
    assert type(ours(tagged)) is Tagged
    assert_same(ours(tagged), theirs(tagged))
    with pytest.raises(TypeError, match="rms_norm: x has layout nested, expected"):
        fuseline.rms_norm(jagged)
    with pytest.raises(TypeError, match="layer_norm: x has layout nested"):
        fuseline.layer_norm(jagged)


def test_symbolic_trace() -> None:
    for norm in (nn.RMSNorm(8), nn.RMSNorm((2, 8), weight_offset=1.0), nn.RMSNorm(8, eps=1)):
        net = torch.nn.Sequential(torch.nn.ReLU(), norm)
        graph = torch.fx.symbolic_trace(net)
        targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
        assert targets == [nn._rms_norm]
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(3, 2, 8).to(dtype)
            assert torch.equal(graph(x), net(x))
        assert torch.equal(copy.deepcopy(graph)(x), net(x))


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(2, 7\), expected it to end with"):
        nn.RMSNorm(8)(torch.randn(2, 7))
