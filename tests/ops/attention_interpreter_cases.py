"""Attention in Triton on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_attention_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import varlen_calls
from ops.attention_calls import error, hold, oracle, problem, results
from ops.budgets import keeps_the_budget
from ops.varlen_calls import packed

import fuseline
from fuseline import sdpa, table
from fuseline.core.selection.explain import asked
from fuseline.ops.attention import impl_triton, impl_unfused
from fuseline.ops.attention.op import SELECTOR
from fuseline.primitives.triton.attention.plan import Options, Tile, Tiles

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")

GENERATOR = torch.Generator().manual_seed(torch.initial_seed() % 1000)
SEQUENCES = ((10, 1, 0, 40, 33), (7, 0, 5, 50, 33))  # queries and keys
# Small, so that there are several of them.
TILES = Tiles(*(Tile(16, 16, 1, 1) for _ in range(3)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (64, 128), (239, 1), (3, 179), (113, 103)])
def test_lengths(queries, keys, causal):
    *tensors, dout = problem(queries, keys, 16, batch=1)
    hold(dout, *tensors, causal=causal, impl="triton")


@pytest.mark.parametrize("d", [1, 7, 40, 72, 136, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # it multiplies no bfloat16
def test_head_dimensions_and_types(d, dtype):
    *tensors, dout = problem(19, 23, d, dtype, batch=1)
    hold(dout, *tensors, causal=True, impl="triton")


@pytest.mark.parametrize("layout", ["heads last", "gaps", "columns"])
@pytest.mark.parametrize("heads", [(4, 1), (6, 2)])
def test_layouts_and_shared_heads(layout, heads):
    *tensors, dout = problem(19, 37, 8, heads=heads, layout=layout)
    hold(dout, *tensors, causal=True, impl="triton")


@pytest.mark.parametrize("window", [1, 5, (3, -1), (-1, 4), (17, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_windows_over_several_blocks(window, causal):
    q, k, v, dout = problem(70, 90, 16, batch=1)
    how = {"window": window, "causal": causal}
    hold(dout, q, k, v, **how, impl="triton")
    left, right = (window - 1, window - 1) if isinstance(window, int) else window
    options = Options(
        0.25, left, min(right, 0) if causal and right >= 0 else 0 if causal else right
    )
    small = impl_triton.How(tiles=TILES)
    out, lse = impl_triton.fwd(q, k, v, None, options, how=small)
    grads = impl_triton.bwd(dout, out, lse, q, k, v, None, options, how=small)
    for found, wanted in zip((out, *grads[:3]), oracle(dout, q, k, v, **how), strict=True):
        assert error(found, wanted) < 2e-5


@pytest.mark.parametrize("shape", [(2, 2, 21, 35), (21, 35), (35,), (2, 1, 1, 35), (2, 21, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_floats_and_their_gradients(shape, causal):
    *tensors, dout = problem(21, 35, 8)
    hold(dout, *tensors, torch.randn(shape), causal=causal, impl="triton")


def test_queries_that_see_nothing():
    *tensors, dout = problem(21, 35, 8)
    mask = torch.rand(2, 2, 21, 35) > 0.4
    mask[:, :, 1::2] = False
    dout[:, :, 1] = float("nan")
    out, dq, *_ = results(dout, *tensors, mask, impl="triton")
    assert (out[:, :, 1::2] == 0).all()
    assert (dq[:, :, 1::2] == 0).all()
    low = torch.full((21, 35), torch.finfo(torch.float32).min)
    low[:, :7] = 0
    *_, dout = problem(21, 35, 8)
    hold(dout, *tensors, low, impl="triton")


@pytest.mark.parametrize("seed", [7, -3, 1 << 40])
def test_dropout_is_that_of_the_formula(seed):
    *tensors, dout = problem(21, 35, 8)
    hold(dout, *tensors, dropout=0.3, seed=seed, impl="triton")
    number, held = (fuseline.attention(*tensors, dropout=0.3, seed=s, impl="triton")
                    for s in (seed, torch.tensor(seed)))  # fmt: skip
    assert torch.equal(number, held)


def test_a_negative_scale():
    *tensors, dout = problem(21, 35, 8)
    hold(dout, *tensors, scale=-0.4, causal=True, impl="triton")


@pytest.mark.parametrize("first", ["triton", "flash", "math"])
@pytest.mark.parametrize("second", ["triton", "flash", "math"])
def test_any_backward_follows_any_forward(first, second):
    q, k, v, dout = problem(9, 20, 8, heads=(4, 2))
    mask = torch.rand(9, 20) > 0.2
    mask[3] = False
    args = (q, k, v, mask, True, None, -1, -1, 0.0, None, None, False)
    ops = torch.ops.fuseline
    out, lse = getattr(ops, f"_attention_fwd__{first}")(*args)
    assert (lse[:, :, 3] == float("-inf")).all()
    *grads, _ = getattr(ops, f"_attention_bwd__{second}")(dout, out, lse, *args, False)
    for found, wanted in zip(grads, oracle(dout, q, k, v, mask, causal=True)[1:], strict=True):
        assert error(found, wanted) < 1e-5


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 16), (torch.bfloat16, 4096)])
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (7, 3)}, {"scale": -0.4}])
def test_scores_in_memory(how, dtype, most, monkeypatch):
    monkeypatch.setattr(impl_unfused, "_MOST", most)
    for queries, keys, layout in ((1, 1, "heads last"), (9, 37, "gaps"), (7, 70, "columns")):
        *tensors, dout = problem(queries, keys, 40, dtype, heads=(4, 2), batch=1, layout=layout)
        hold(dout, *tensors, **how, impl="unfused")
        seen = torch.rand(4, queries, keys) > 0.3
        seen[:, ::4] = False  # some see nothing
        found = results(dout, *tensors, seen, **how, impl="unfused")
        for t, wanted in zip(found, oracle(dout, *tensors, seen, **how), strict=True):
            assert error(t, wanted) <= 8 * torch.finfo(dtype).eps * float(wanted.abs().max() + 1)
        assert not found[0][:, :, ::4].any()
        assert not found[1][:, :, ::4].any()
        added = torch.randn(1, 4, 1, keys)  # broadcast, of another type
        with torch.no_grad():
            out = fuseline.attention(*tensors, added, **how, impl="unfused")
        exact = oracle(dout, *tensors, added, **how)[0]
        assert error(out, exact) <= 8 * torch.finfo(dtype).eps * float(exact.abs().max())


def test_scores_in_memory_serve_long_heads():
    q, k, v, dout = problem(9, 20, 264, torch.bfloat16)
    args = asked(fuseline.attention, q, k, v).call
    served = [n for n in SELECTOR.names if not SELECTOR.refusal(n, "fwd", "cuda", *args)]
    assert served[0] == "unfused"
    hold(dout, q, k, v, impl="unfused")
    for value in (float("nan"), float("inf")):
        q[0, 0, 3, 5] = value
        out = fuseline.attention(q, k, v, impl="unfused")
        assert out[0, 0, 3].isnan().all()
        assert not out[0, 0, 4].isnan().any()


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_no_queries_or_no_keys(queries, keys):
    *tensors, dout = problem(queries, keys, 8)
    for t in results(dout, *tensors, impl="triton"):
        assert not t.any()


@pytest.mark.parametrize("how", [{}, {"window": (7, 3)}, {"dropout": 0.3, "seed": 1 << 40}])
def test_sequences_of_several_lengths(how):
    varlen_calls.hold(packed(*SEQUENCES, 8, heads=(4, 2)), **how, impl="triton")


@pytest.mark.parametrize("layout", ["", "gaps", "heads first", "columns"])
def test_layouts_of_sequences(layout):
    call = packed(*SEQUENCES, 8, heads=(4, 2), layout=layout)
    varlen_calls.hold(call, causal=True, impl="triton")


@pytest.mark.parametrize("impl", ["triton", "flash", "math"])
def test_any_backward_of_sequences_follows_any_forward(impl):
    call = packed((9, 30), (20, 17), 8, heads=(4, 2))
    args = (*call[:5], 30, 20, True, None, -1, -1, 0.0, None, None, False)
    ops, wanted = torch.ops.fuseline, varlen_calls.oracle(call, causal=True)
    for first, second in (("triton", impl), (impl, "triton")):
        out, lse = getattr(ops, f"_attention_varlen_fwd__{first}")(*args)
        grads = getattr(ops, f"_attention_varlen_bwd__{second}")(call.dout, out, lse, *args)
        for found, exact in zip((out, *grads), wanted, strict=True):
            assert error(found, exact) < 1e-5


def test_longer_bounds_change_nothing():
    call = packed((10, 40), (7, 50), 8)
    wanted, found = (varlen_calls.results(call, impl="triton", max_seqlen_q=q, max_seqlen_k=k)
                     for q, k in ((None, None), (90, 99)))  # fmt: skip
    assert all(map(torch.equal, found, wanted))


def test_a_layer_of_self_attention():
    spec = table.load()["multihead_attention"]
    for case in (c for c in spec.cases if "check" in c.suites):
        cpu = torch.device("cpu")
        keeps_the_budget(spec, "triton", spec.make_inputs(case, torch.float32, cpu, GENERATOR))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_what_torch_calls_for_dense_tensors(dropout):
    q, k, v, dout = problem(9, 20, 8, heads=(4, 2))
    out, lse, _, _, _, _, state, unused, _ = sdpa._sdpa_forward(q, k, v, dropout, scale=0.3)
    saved = (out, lse, None, None, 9, 20, dropout, False, state, unused)
    grads = sdpa._sdpa_backward(dout, q, k, v, *saved, scale=0.3)
    seed = int(state.view(torch.int64)[0]) if dropout else None
    wanted = oracle(dout, q, k, v, scale=0.3, dropout=dropout, seed=seed)
    for found, exact in zip((out, *grads), wanted, strict=True):
        assert error(found, exact) < 1e-5


@pytest.mark.parametrize(("queries", "keys"), [(13, 13), (9, 20)])
@pytest.mark.parametrize("how", [{"is_causal": True}, {"window_size_left": 15,
                                                       "window_size_right": 2}])  # fmt: skip
def test_what_torch_calls_aligns_the_last_query_with_the_last_key(how, queries, keys):
    q, k, v, dout = (t.transpose(1, 2) for t in problem(queries, keys, 8))
    how = {"is_causal": False, **how}
    given = (None, None, queries, keys, 0.0, how.pop("is_causal"))
    out, lse, state, unused, _ = sdpa._forward(q, k, v, *given, False, **how)
    grads = sdpa._backward(dout, q, k, v, out, lse, *given, state, unused, **how)
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    seen = j <= i if given[-1] else (j >= i - 15) & (j <= i + 2)
    wanted = oracle(*(t.transpose(1, 2) for t in (dout, q, k, v)), seen)
    for found, exact in zip((out, *grads), wanted, strict=True):
        assert error(found, exact.transpose(1, 2)) < 1e-5


def test_what_torch_calls_for_packed_sequences():
    call = packed((10, 1, 40), (10, 1, 40), 8)
    given = (call.cu_q, call.cu_k, 40, 40, 0.0, True)
    out, lse, state, unused, _ = sdpa._forward(*call[:3], *given, False)
    grads = sdpa._backward(call.dout, *call[:3], out, lse, *given, state, unused)
    for found, exact in zip((out, *grads), varlen_calls.oracle(call, causal=True), strict=True):
        assert error(found, exact) < 1e-5
    other = packed((10, 40), (12, 50), 8)
    given = (other.cu_q, other.cu_k, 40, 50, 0.0, True)
    with pytest.raises(RuntimeError, match="cum_seq_k is another tensor than cum_seq_q"):
        sdpa._forward(*other[:3], *given, False)
