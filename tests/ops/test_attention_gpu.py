"""Attention on a GPU: every implementation beside fp64, that it ran, NaN, and determinism."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from ops import varlen_calls
from ops.attention_calls import error, hold, oracle, problem, results
from ops.on_a_gpu import kernels
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuseline
from fuseline import table
from fuseline.core.selection.select import asked
from fuseline.core.selection.tuned import DIRECTIONS
from fuseline.ops.attention.op import SELECTOR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# What its kernels are called, forward and backward.
NAMES = {
    "cudnn": ("cudnn", "cudnn"),
    "triton": ("fwd_kernel", "queries_kernel"),
    "flash": ("flash_fwd", "flash_bwd"),
    "fa4": ("FlashAttentionForward", "FlashAttentionBackward"),
}
IMPLS = ("cudnn", "triton", "flash", "unfused", "math", "fa4")
LAYER = table.load()["multihead_attention"]
HALVES = (torch.float16, torch.bfloat16)
# Shapes of FlashAttention's tests.
LENGTHS = ((1, 1), (1, 128), (64, 128), (239, 1), (3, 799), (113, 203), (1023, 1024), (1024, 1024))


def here(impl: str) -> str:
    """Skip what is not installed."""
    if impl != "auto" and (reason := SELECTOR.unavailable(impl, "cuda")):
        pytest.skip(reason)
    return impl


def serves(impl: str, *tensors: Any, **options: Any) -> bool:
    """Whether an implementation serves a call in both directions."""
    if impl == "auto":
        return True
    args = asked(fuseline.attention, *tensors, **options).call
    return not any(SELECTOR.refusal(impl, d, "cuda", *args) for d in DIRECTIONS)


def cuda(*args: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return problem(*args, **options, device="cuda")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("impl", ["auto", *IMPLS])
def test_lengths(impl: str, d: int, causal: bool) -> None:
    held = 0
    for (queries, keys), dtype in product(LENGTHS, HALVES):
        *tensors, dout = cuda(queries, keys, d, dtype)
        if serves(here(impl), *tensors, causal=causal):
            hold(dout, *tensors, causal=causal, impl=impl)
            held += 1
    assert held >= 4


@pytest.mark.parametrize("impl", ["auto", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_head_dimensions(impl: str, dtype: torch.dtype) -> None:
    for d in (1, 40, 96, 256, *((264, 520) if impl == "auto" else ())):
        *tensors, dout = cuda(113, 203, d, dtype)
        hold(dout, *tensors, causal=True, impl=impl)


@pytest.mark.parametrize("layout", ["heads last", "gaps", "columns"])
@pytest.mark.parametrize("heads", [(4, 1), (6, 2)])
@pytest.mark.parametrize("impl", ["auto", *IMPLS])
def test_layouts_and_shared_heads(impl: str, layout: str, heads: tuple[int, int]) -> None:
    *tensors, dout = cuda(130, 200, 64, torch.bfloat16, heads=heads, layout=layout)
    if not serves(here(impl), *tensors):
        pytest.skip("it does not read these")
    hold(dout, *tensors, impl=impl)
    for t, like in zip(results(dout, *tensors, impl=impl), (tensors[0], *tensors), strict=True):
        assert t.stride() == torch.empty_like(like).stride()


@pytest.mark.parametrize("impl", NAMES)
def test_what_is_named_is_what_runs(impl: str) -> None:
    *tensors, dout = cuda(256, 256, 64, torch.bfloat16)
    leaves = [t.requires_grad_() for t in tensors]
    out = fuseline.attention(*leaves, causal=True, impl=here(impl))
    forward = kernels(lambda: fuseline.attention(*tensors, causal=True, impl=impl))
    backward = kernels(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))
    for names, word in zip((forward, backward), NAMES[impl], strict=True):
        assert any(word in name for name in names), names


@pytest.mark.parametrize("first", IMPLS)
@pytest.mark.parametrize("second", IMPLS)
def test_any_backward_follows_any_forward(first: str, second: str) -> None:
    q, k, v, dout = cuda(200, 200, 64, torch.bfloat16, heads=(4, 2))
    args = (q, k, v, None, True, 0.2, -1, -1, 0.0, None, None, False)
    ops = torch.ops.fuseline
    out, lse = getattr(ops, f"_attention_fwd__{here(first)}")(*args)
    *grads, _ = getattr(ops, f"_attention_bwd__{here(second)}")(dout, out, lse, *args, False)
    for found, wanted in zip(grads, oracle(dout, q, k, v, causal=True, scale=0.2)[1:], strict=True):
        assert error(found, wanted) < 0.03 * float(wanted.abs().max())


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
@pytest.mark.parametrize("queries", [1, 64, 128, 192, 320])
def test_no_nan_where_all_scores_are_very_negative(impl: str, queries: int) -> None:
    for keys, causal in product((64, 65, 128, 136, 192, 200), (False, True)):
        *tensors, dout = cuda(queries, keys, 64, torch.bfloat16)
        tensors[0][..., 0], tensors[1][..., 0] = 8.0, -120.0  # scores near -120
        if serves(here(impl), *tensors, causal=causal):
            found = results(dout, *tensors, causal=causal, impl=impl)
            wanted = oracle(dout, *tensors, causal=causal)
            for f, w in zip(found, wanted, strict=True):
                assert f.isfinite().all(), (keys, causal)
                if impl == "unfused":  # its scores are bf16, of which neighbours are 0.5 apart
                    continue
                f, w = f[..., 1:], w[..., 1:]  # in the first, terms of 120 cancel
                assert error(f, w) <= 0.05 * max(float(w.abs().max()), 1.0)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(kind: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        *tensors, dout = cuda(130, 192, 64, dtype)
        mask = torch.randn(2, 2, 130, 192, device="cuda", dtype=dtype)
        mask = mask > -0.5 if kind == "bool" else mask
        hold(dout, *tensors, mask, impl="auto")
        if kind == "bool":
            mask[:, :, 1::2] = False
            out, dq, *_ = results(dout, *tensors, mask)
            assert not out[:, :, 1::2].any()
            assert not dq[:, :, 1::2].any()


@pytest.mark.parametrize("window", [1, 100, (40, -1), (-1, 7), (3, 300)])
def test_windows(window: Any) -> None:
    *tensors, dout = cuda(333, 400, 64, torch.bfloat16)
    for causal in (False, True):
        hold(dout, *tensors, window=window, causal=causal)


def test_dropout_is_by_seed_and_place_alone() -> None:
    *tensors, dout = cuda(130, 203, 64, torch.bfloat16)
    for seed in (7, 1 << 40):
        hold(dout, *tensors, dropout=0.3, seed=seed)
    kept = fuseline.attention(*tensors[:2], torch.ones_like(tensors[2]), dropout=0.3).mean()
    assert abs(float(kept) - 1.0) < 0.01


@pytest.mark.parametrize("d", [64, 128])
def test_deterministic_gradients_are_the_same_each_time(d: int) -> None:
    *tensors, dout = cuda(777, 1024, d, torch.bfloat16, heads=(8, 2))
    first, *others = (results(dout, *tensors, causal=True, deterministic=True) for _ in range(4))
    for other in others:
        assert all(map(torch.equal, first, other))


def test_float32_is_multiplied_in_tf32_only_where_torch_does() -> None:
    *tensors, dout = cuda(130, 203, 64)
    hold(dout, *tensors, impl="triton")
    wanted = oracle(dout, *tensors)[0]
    exact = error(fuseline.attention(*tensors, impl="triton"), wanted)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        rounded = error(fuseline.attention(*tensors, impl="triton"), wanted)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert rounded > 20 * exact


def test_in_a_cuda_graph_and_compiled() -> None:
    *tensors, dout = cuda(256, 256, 64, torch.bfloat16)
    wanted = results(dout, *tensors, causal=True)
    leaves = [t.clone().requires_grad_() for t in tensors]

    def step() -> tuple[Tensor, ...]:
        out = fuseline.attention(*leaves, causal=True)
        return (out, *torch.autograd.grad(out, leaves, dout))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    compiled = torch.compile(lambda: fuseline.attention(*leaves, causal=True), fullgraph=True)
    out = compiled()
    for each in (found, (out, *torch.autograd.grad(out, leaves, dout))):
        for f, w in zip(each, wanted, strict=True):
            torch.testing.assert_close(f, w, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("impl", ["auto", "triton", "flash", "math"])
@pytest.mark.parametrize("d", [64, 128])
def test_packed_sequences(impl: str, d: int) -> None:
    lengths = (300, 1, 0, 257, 64)
    call = varlen_calls.packed(lengths, lengths, d, torch.bfloat16, heads=(4, 2), device="cuda")
    for causal in (False, True):
        varlen_calls.hold(call, causal=causal, impl=impl)
    others = (200, 3, 5, 300, 0)
    call = varlen_calls.packed(lengths, others, d, torch.bfloat16, device="cuda")
    varlen_calls.hold(call, impl=impl)
    told = asked(fuseline.attention_varlen, *call[:5], causal=True)
    assert told.selector.refusal("flash", "fwd", "cuda", *told.call)
    for how in ({"window": 40}, {"dropout": 0.2, "seed": 3}):
        varlen_calls.hold(call, **how)


def test_models_on_torchs_attention_run_on_ours() -> None:
    q, k, v, dout = (t.requires_grad_() for t in cuda(300, 300, 64, torch.bfloat16))

    def step(dropout: float = 0.0) -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return (out, *torch.autograd.grad(out, (q, k, v), dout.detach()))

    theirs = step()
    torch.nn.attention.activate_flash_attention_impl("fuseline")
    try:
        ours, names = step(), kernels(step)
        compiled = torch.compile(step)()
        torch.manual_seed(5)
        first = step(0.3)
        torch.manual_seed(5)
        assert all(map(torch.equal, first, step(0.3)))
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert any("queries_kernel" in name for name in names), names
    assert not any("flash" in name for name in names), names
    for found in (ours, compiled):
        torch.testing.assert_close(found, theirs, atol=2e-2, rtol=2e-2)
    assert any("flash" in name for name in kernels(step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_of_self_attention(dtype: torch.dtype) -> None:
    shapes = ((2, 300, 512), (512, 1536), (1536,), (512, 512), (512,))
    x, *weights = (torch.randn(s, device="cuda").to(dtype) / (s[0] ** 0.5 if i else 1.0)
                   for i, s in enumerate(shapes))  # fmt: skip
    leaves = [t.requires_grad_() for t in (x, *weights)]
    found = fuseline.multihead_attention(*leaves, 8, causal=True)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    wanted = LAYER.reference(*wide, 8, causal=True)
    dy = torch.randn_like(found)
    pairs = zip((found, *torch.autograd.grad(found, leaves, dy)),
                (wanted, *torch.autograd.grad(wanted, wide, dy.double())), strict=True)  # fmt: skip
    limit = 3e-5 if dtype == torch.float32 else 3e-2
    for f, w in pairs:
        assert error(f, w) <= limit * float(w.abs().max())
