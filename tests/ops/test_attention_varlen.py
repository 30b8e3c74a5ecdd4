"""Attention of packed sequences on a CPU: each is attention, whatever lies beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from ops.varlen_calls import hold, packed, results
from torch import Tensor

import fuseline
from fuseline.ops.attention_varlen.op import SELECTOR

IMPLS = ("auto", "flash", "math", "eager")
OPS = torch.ops.fuseline
LENGTHS = ((5, 0, 33, 1, 18), (40, 0, 17, 3, 20))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_lengths_and_types(impl: str, dtype: torch.dtype) -> None:
    for causal in (False, True):
        hold(packed(*LENGTHS, 8, dtype, heads=(4, 2)), causal=causal, impl=impl)


@pytest.mark.parametrize("impl", IMPLS[:3])
@pytest.mark.parametrize("layout", ["gaps", "heads first", "columns"])
def test_layouts_of_all_and_of_the_results(layout: str, impl: str) -> None:
    call = packed(*LENGTHS, 8, layout=layout)
    hold(call, impl=impl)
    found = results(call, impl=impl)
    for t, like in zip(found, (call.q, call.q, call.k, call.v), strict=True):
        assert t.stride() == torch.empty_like(like).stride()


@pytest.mark.parametrize("how", [{"window": 4}, {"window": (3, -1), "causal": True},
                                 {"scale": -0.3}, {"dropout": 0.3, "seed": 5}])  # fmt: skip
@pytest.mark.parametrize("impl", ["auto", "math"])
def test_how(how: dict[str, Any], impl: str) -> None:
    hold(packed(*LENGTHS, 8), **how, impl=impl)


@pytest.mark.parametrize("impl", IMPLS)
def test_each_sequence_is_attention_of_it(impl: str) -> None:
    call = packed((20, 31), (20, 31), 16)
    out = fuseline.attention_varlen(*call[:5], causal=True, impl=impl)
    for rows in (slice(0, 20), slice(20, 51)):
        one = [t[rows].transpose(0, 1)[None] for t in call[:3]]
        wanted = fuseline.attention(*one, causal=True)[0].transpose(0, 1)
        torch.testing.assert_close(out[rows], wanted)


@pytest.mark.parametrize("impl", IMPLS)
def test_nan_stays_in_its_sequence(impl: str) -> None:
    call = packed((20, 31), (20, 31), 16)
    for i in range(3):
        tensors = [t.clone() for t in call[:3]]
        tensors[i][3, 1, 2] = torch.nan
        found = results(call._replace(q=tensors[0], k=tensors[1], v=tensors[2]), impl=impl)
        assert found[0][:20].isnan().any()
        assert all(t[20:].isfinite().all() for t in found)


def test_starts_are_looked_at_where_they_lie_on_the_host() -> None:
    call = packed((4, 5), (4, 5), 8)

    def refused(starts: list[int], message: str, **most: int) -> None:
        cu = torch.tensor(starts, dtype=torch.int32)
        for impl in IMPLS:
            with pytest.raises(ValueError, match=message):
                fuseline.attention_varlen(*call[:3], cu, call.cu_k, impl=impl, **most)

    refused([0, 6, 4], "cu_seqlens_q is .0, 6, 4., expected numbers that never fall")
    refused([1, 4, 9], "cu_seqlens_q is .1, 4, 9., .* from 0 to 9, the rows of q")
    refused([0, 4, 10], "from 0 to 9")
    refused([0, 4, 9], "max_seqlen_q is 4, expected at least 5", max_seqlen_q=4)


def test_starts_without_memory_are_zeros() -> None:
    none, rows = torch._efficientzerotensor((2,), dtype=torch.int32), torch.randn(0, 2, 8)
    how = (0, 0, False, None, -1, -1, 0.0, None, None, False)
    with forward_ad.dual_level():  # which leads past the kernel
        dual = forward_ad.make_dual(rows, rows)
        assert OPS.attention_varlen__triton(dual, rows, rows, none, none, *how).shape == rows.shape
        rows = torch.randn(3, 2, 8)
        dual = forward_ad.make_dual(rows, rows)
        with pytest.raises(ValueError, match=r"cu_seqlens_q is \[0, 0\], expected .* from 0 to 3"):
            OPS.attention_varlen__triton(dual, rows, rows, none, none, *how)
        starts = torch.tensor([0, 3], dtype=torch.int32)
        traced = torch._to_functional_tensor(starts)  # cannot be read, either
        found = OPS.attention_varlen__math(dual, rows, rows, traced, starts, 3, 3, *how[2:])
        assert found.shape == rows.shape
    with pytest.raises(ValueError, match=r"cu_seqlens_q is \[0, 0\], expected .* from 0 to 3"):
        fuseline.attention_varlen(rows, rows, rows, none, none)


def test_what_is_empty() -> None:
    none = torch.zeros(1, dtype=torch.int32)
    q = torch.randn(0, 2, 8, requires_grad=True)
    for impl in ("auto", "math"):
        out = fuseline.attention_varlen(q, q, q, none, none, impl=impl)
        assert out.shape == (0, 2, 8)
        assert torch.autograd.grad(out.sum(), q)[0].shape == (0, 2, 8)


def test_longer_bounds_change_nothing() -> None:
    call = packed(*LENGTHS, 8)
    wanted = fuseline.attention_varlen(*call[:5], dropout=0.4, seed=3)
    found = fuseline.attention_varlen(*call[:5], 50, 64, dropout=0.4, seed=3)
    torch.testing.assert_close(found, wanted)


def test_transforms_take_it_apart() -> None:
    call = packed((3, 4), (5, 2), 8, torch.float64)

    def loss(q: Tensor, k: Tensor) -> Tensor:
        return fuseline.attention_varlen(q, k, call.v, call.cu_q, call.cu_k, 4, 5)

    leaves = (call.q.requires_grad_(), call.k.requires_grad_())
    assert torch.autograd.gradcheck(loss, leaves)
    assert torch.autograd.gradgradcheck(loss, leaves)
    many = torch.stack([call.q.detach(), 2 * call.q.detach()])
    found = torch.vmap(loss, (0, None))(many, call.k.detach())
    wanted = torch.stack([loss(q, call.k.detach()) for q in many])
    torch.testing.assert_close(found, wanted)


def test_compiled_and_exported() -> None:
    call = packed((3, 40), (5, 20), 8)

    def step(*args: Tensor) -> Tensor:
        return fuseline.attention_varlen(*args, 40, 20, causal=True)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*call[:5]), step(*call[:5]))

    class Module(torch.nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            return step(*args)

    program = torch.export.export(Module(), call[:5])
    assert "fuseline.attention_varlen.default" in str(program.graph)
    torch.testing.assert_close(program.module()(*call[:5]), step(*call[:5]))
    with pytest.raises(Exception, match="max_seqlen_q is None, expected a number"):
        torch.compile(fuseline.attention_varlen, backend="aot_eager", fullgraph=True)(*call[:5])


def test_why_flash_does_not_serve_a_call() -> None:
    call = packed((3, 40), (5, 20), 8)
    with pytest.raises(RuntimeError, match="impl 'flash' cannot run here: it has no window"):
        fuseline.attention_varlen(*call[:5], window=2, impl="flash")
    told = fuseline.explain_choice(fuseline.attention_varlen, *call[:5], window=2)
    assert told.fwd.impl == told.bwd.impl == "math"
    assert SELECTOR.names == ("triton", "flash", "math", "eager")
