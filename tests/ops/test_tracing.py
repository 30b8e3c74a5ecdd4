"""Every public function under torch.fx.symbolic_trace, and with tensors of several dtypes under
autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuseline
from fuseline.core import native
from fuseline.core.registration import operator

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)
N = 12
STARTS = torch.tensor([0, 3, 5], dtype=torch.int32)  # of packed sequences
CLASSES = torch.tensor([2, 0, 7])


def of(name: str, *places: str, **options: Any) -> Callable[..., Any]:
    """Return a call of the public function with tensors of these names."""
    return lambda **t: getattr(fuseline, name)(*(t.get(p) for p in places), **options)


CALLS: dict[str, list[Callable[..., Any]]] = {
    "rms_norm": [
        of("rms_norm", "x"),
        of("rms_norm", "x", "w", eps=1),
        of("rms_norm", "x", "w", eps=1e-6, weight_offset=1, impl="eager"),
    ],
    "layer_norm": [
        of("layer_norm", "x", "w", "b"),
        of("layer_norm", "x", eps=1),
        of("layer_norm", "x", "", "b", eps=1e-3, impl="cpu"),
    ],
    "add_rms_norm": [
        of("add_rms_norm", "x", "r", "w"),
        of("add_rms_norm", "x", "r", eps=1),
    ],
    "rms_norm_fp8": [of("rms_norm_fp8", "x", "w", "s", eps=1), of("rms_norm_fp8", "x", "", "s")],
    "rms_norm_fp8_dynamic": [
        of("rms_norm_fp8_dynamic", "x"),
        of("rms_norm_fp8_dynamic", "x", "w", eps=1, block=16, scale_ub=2),
    ],
    "add_rms_norm_fp8_dynamic": [
        of("add_rms_norm_fp8_dynamic", "x", "r", "w"),
        of("add_rms_norm_fp8_dynamic", "x", "r", "w", block=16, impl="eager"),
    ],
    "layer_norm_fp8": [of("layer_norm_fp8", "x", "w", "b", "s", eps=1)],
    "layer_norm_fp8_dynamic": [
        of("layer_norm_fp8_dynamic", "x"),
        of("layer_norm_fp8_dynamic", "x", "w", "b", block=16),
    ],
    "bias_gelu": [of("bias_gelu", "x", "b"), of("bias_gelu", "x", "b", approximate="none")],
    "bias_dropout_add": [
        of("bias_dropout_add", "x", "b", "r", p=0.25),
        of("bias_dropout_add", "x", "b", "r", training=True, seed=7),
    ],
    "softmax": [
        of("softmax", "x"),
        of("softmax", "x", dim=0),
        lambda **t: fuseline.softmax(t["x"], mask=t["b"]),
        of("softmax", "x", dim=1, causal=True),
        of("softmax", "x", scale=2, impl="eager"),
    ],
    "log_softmax": [
        of("log_softmax", "x", dim=0),
        lambda **t: fuseline.log_softmax(t["x"], 1, mask=t["b"], scale=0.5),
    ],
    "masked_softmax": [
        of("masked_softmax", "x", "b", causal=True),
        of("masked_softmax", "x", scale=0.5, log=True),
    ],
    "cross_entropy": [
        lambda **t: fuseline.cross_entropy(t["x"], CLASSES, t["w"], 2, "none", 0.1, 0.5, 2.0),
        lambda **t: fuseline.cross_entropy(t["x"], CLASSES, reduction="none", impl="eager"),
    ],
    "linear_cross_entropy": [
        lambda **t: fuseline.linear_cross_entropy(t["x"], t["m"], CLASSES, t["b"], 2, "none", 0.1),
        lambda **t: fuseline.linear_cross_entropy(
            t["x"], t["m"], CLASSES, None, 1, "none", impl="eager"
        ),
    ],
    "double_softmax": [of("double_softmax", "x", dim=0)],
    "softmax_backward": [of("softmax_backward", "r", "x")],
    "horizontal_reduction_pointwise": [of("horizontal_reduction_pointwise", "x")],
    "horizontal_reduction_reduction": [of("horizontal_reduction_reduction", "x")],
    "norm_chain": [of("norm_chain", "x")],
    "matmul_add": [of("matmul_add", "x", "m", "b"), of("matmul_add", "x", "m", "b", impl="aten")],
    "matmul_relu": [of("matmul_relu", "x", "m")],
    "matmul_matmul": [
        of("matmul_matmul", "x", "m", "m"),
        of("matmul_matmul", "x", "m", "m", activation="relu", impl="aten"),
    ],
    "mlp": [
        of("mlp", "x", "m", "b", "m", "w"),
        of("mlp", "x", "m", "b", "m", "w", activation="relu"),
    ],
    "matmul_add_relu": [of("matmul_add_relu", "x", "m", "b", impl="eager")],
    "matmul_add_gelu": [
        of("matmul_add_gelu", "x", "m", "b"),
        of("matmul_add_gelu", "x", "m", "b", approximate="none"),
    ],
    "pointwise_chain": [of("pointwise_chain", "x")],
    "geglu": [of("geglu", "x", "r"), of("geglu", "x", approximate="none")],
    "rope": [
        lambda **t: fuseline.rope(t["x"], t["r"], t["w"], t["b"]),
        lambda **t: fuseline.rope(t["x"], t["r"], t["w"], t["b"], interleaved=True, impl="eager"),
    ],
    "swiglu": [of("swiglu", "x", "r"), of("swiglu", "x"), of("swiglu", "x", "r", impl="eager")],
    "conv_add": [of("conv_add", "x", "w", "b"), of("conv_add", "x", "w", "b", impl="eager")],
    "conv_relu": [of("conv_relu", "x", "w"), of("conv_relu", "x", "w", "b", padding=1)],
    "conv_add_relu": [
        of("conv_add_relu", "x", "w", "", "r"),
        of("conv_add_relu", "x", "w", "b", "r", impl="aten"),
    ],
    "conv_bn": [
        of("conv_bn", "x", "w", "b", "m", "b", "b", "m", relu=True),
        of("conv_bn", "x", "w", "", "m", "b", "", "", training=True),
    ],
    "attention": [
        of("attention", "x", "r", "w"),
        of("attention", "x", "r", "w", causal=True, impl="eager"),
    ],
    "attention_varlen": [
        lambda **t: fuseline.attention_varlen(t["x"], t["r"], t["w"], STARTS, STARTS, 3, 3),
        lambda **t: fuseline.attention_varlen(
            t["x"], t["r"], t["w"], STARTS, STARTS, causal=True, impl="eager"
        ),
    ],
    "multihead_attention": [
        lambda **t: fuseline.multihead_attention(t["x"], t["m"], t["b"], t["w"], None, 2),
    ],
}


def tensors(name: str = "") -> dict[str, Tensor]:
    if name.startswith("conv"):
        images = {"x": torch.randn(3, 2, N), "r": torch.randn(3, 4, N - 2), "s": torch.rand(())}
        return images | {"w": torch.randn(4, 2, 3), "b": torch.randn(4), "m": torch.rand(4)}
    if name == "attention":
        rows = {n: torch.randn(2, 3, 5, 8) for n in ("x", "r", "w", "b", "m")}
        return rows | {"s": torch.rand(())}
    if name == "rope":
        heads = {n: torch.randn(2, 3, 5, 8) for n in ("x", "r", "m")}
        return heads | {n: torch.randn(5, 3) for n in ("w", "b")} | {"s": torch.rand(())}
    if name == "attention_varlen":
        return {n: torch.randn(5, 3, 8) for n in ("x", "r", "w", "b", "m")} | {"s": torch.rand(())}
    if name == "multihead_attention":
        layer = {"x": torch.randn(2, 3, N), "m": torch.randn(N, 24), "w": torch.randn(8, N)}
        return layer | {"b": torch.randn(24), "r": torch.randn(3), "s": torch.rand(())}
    made = {"x": torch.randn(3, N), "r": torch.randn(3, N), "s": torch.rand(())}
    return made | {"w": torch.rand(N), "b": torch.randn(N), "m": torch.randn(N, N)}


def test_every_public_function_is_here() -> None:
    functions = set(fuseline.ops.__all__)
    assert CALLS.keys() == functions


@pytest.mark.parametrize(
    ("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls]
)
def test_symbolic_trace(name: str, call: Callable[..., Any]) -> None:
    given = tensors(name)

    def every(x: Tensor, r: Tensor, s: Tensor, w: Tensor, b: Tensor, m: Tensor) -> Any:
        return call(x=x, r=r, s=s, w=w, b=b, m=m)

    def first(x: Tensor) -> Any:
        return call(**given | {"x": x})

    wanted = call(**given)
    for traced, args in ((every, given), (first, {"x": given["x"]})):
        graph = torch.fx.symbolic_trace(traced)
        got = graph(**args)
        targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
        # Where the first tensor is no proxy, the operator may stand there: it has its gradient too.
        packet = getattr(torch.ops.fuseline, name, None)
        assert targets in ([getattr(fuseline, name)], [packet and packet.default])
        as_bytes = [
            [t.view(torch.uint8) for t in (y if isinstance(y, tuple) else (y,))]
            for y in (got, wanted)
        ]
        assert all(map(torch.equal, *as_bytes))


FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# What plain torch gives under autocast, where no operator in it is of those that autocast casts.
PLAIN: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "bias_gelu": (
        lambda x, b, r: fuseline.bias_gelu(x, b),
        lambda x, b, r: F.gelu(x + b, approximate="tanh"),
    ),
    "bias_dropout_add": (
        lambda x, b, r: fuseline.bias_dropout_add(x, b, r, 0.5),
        lambda x, b, r: r + (x + b),
    ),
    "dropout": (
        lambda x, b, r: fuseline.bias_dropout_add(x, b, r, 0.5, True, 3),
        lambda x, b, r: r + (x + b) * (fuseline.bias_dropout_add(
            torch.ones(x.shape), torch.zeros(N), torch.zeros(x.shape), 0.5, True, 3)).to(x.dtype),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("b_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_mixed_dtypes_under_autocast(
    name: str, dtype: torch.dtype, b_dtype: torch.dtype, compiled: bool
) -> None:
    function, formula = PLAIN[name]
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    r_dtype = dtype if name == "bias_gelu" else torch.float32
    x, r = torch.randn(5, N).to(dtype), torch.randn(5, N).to(r_dtype)
    b = torch.randn(N).to(b_dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y, wanted = function(x, b, r), formula(x, b, r)
    assert y.dtype == wanted.dtype
    eps = max(torch.finfo(d).eps for d in (dtype, b_dtype))
    torch.testing.assert_close(y, wanted, rtol=4 * eps, atol=4 * eps)
    dy = torch.randn(y.shape).to(y.dtype)
    grads = [torch.autograd.grad(z, b, dy)[0] for z in (y, wanted)]
    torch.testing.assert_close(*grads, rtol=32 * eps, atol=32 * eps)


def test_norms_of_mixed_dtypes_under_autocast() -> None:
    x, w = torch.randn(3, N), torch.rand(N).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = fuseline.rms_norm(x, w, 1e-6)
        layer = fuseline.layer_norm(x, w, w, 1)
        both, total = fuseline.add_rms_norm(x.bfloat16(), x, w, 1)
        half = fuseline.rms_norm(x.bfloat16(), w.float())
    assert torch.equal(y, fuseline.rms_norm(x, w.float(), 1e-6))
    assert torch.equal(layer, fuseline.layer_norm(x, w.float(), w.float(), 1.0))
    assert torch.equal(total, x.bfloat16().float() + x)
    assert both.dtype == torch.float32
    assert half.dtype == torch.bfloat16, "as without autocast: what is taken stays as it is"


def test_without_autocast_mixed_dtypes_are_named() -> None:
    x, b = torch.randn(3, N).bfloat16(), torch.randn(N)
    with pytest.raises(TypeError, match=r"bias has dtype torch\.float32, expected torch\.bfloat16"):
        fuseline.bias_gelu(x, b)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match=r"bias has shape \(11,\), expected \(12,\)"),
    ):
        fuseline.bias_gelu(x, b[1:])
    assert operator.promoted((x, b)) is None
    assert not operator.autocasts("meta")
