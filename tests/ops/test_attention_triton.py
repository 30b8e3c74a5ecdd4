"""Attention in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from ops.test_triton_analysis import _lower  # noqa: E402
from ops.without_a_gpu import (  # noqa: E402
    compile_for_hopper,
    recorder,
    resources,
    run_in_interpreter,
    spills,
)

from fuseline.ops.attention import impl_triton, impl_unfused  # noqa: E402
from fuseline.primitives.triton.attention.plan import Options  # noqa: E402

HOPPERS_SHARED = 227 << 10
compiles = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")


def launches(shape, dtype, mask=None, **options):
    """What forward and backward launch."""
    seen, record = recorder()
    q, k, v, dout = (torch.empty(shape, dtype=dtype, device="meta") for _ in range(4))
    lse = torch.empty(shape[:3], device="meta")
    options = Options(0.125, **options)
    draw, how = impl_triton.Draw(1 << 40 if options.dropout else 0), impl_triton.How(record)
    impl_triton.fwd(q, k, v, mask, options, draw, how=how)
    wanted = mask is not None and mask.is_floating_point()
    out = torch.empty_like(q)
    impl_triton.bwd(dout, out, lse, q, k, v, mask, options, wanted, draw, how=how)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("attention_interpreter_cases.py")


@compiles
@pytest.mark.parametrize("d", [64, 128])
def test_compiles_for_hopper_to_its_tensor_cores(d, tmp_path):
    seen = launches((2, 4, 512, d), torch.bfloat16, right=0)
    assert [kernel.__name__ for kernel, _, _ in seen] == [
        "fwd_kernel", "rows_kernel", "keys_kernel", "queries_kernel",
    ]  # fmt: skip
    for kernel, args, meta in seen:
        compiled = compile_for_hopper(kernel, args, meta)
        registers, stack = resources(compiled, tmp_path)
        shared = compiled.metadata.shared
        print(f"{kernel.__name__} {meta}: {registers} registers, {stack} B, {shared} B shared")
        assert not spills(stack, 255)
        assert shared <= HOPPERS_SHARED
        assert ("wgmma" in compiled.asm["ptx"]) == ("BLOCK_M" in meta)


@compiles
@pytest.mark.parametrize("d", [64, 256])
def test_float32_and_what_is_drawn_or_masked_fit_on_hopper(d, tmp_path):
    mask = torch.empty(512, 512, device="meta")
    for kernel, args, meta in launches((2, 4, 512, d), torch.float32, mask, dropout=0.1):
        compiled = compile_for_hopper(kernel, args, meta)
        registers, _ = resources(compiled, tmp_path)
        assert registers * 32 * meta["num_warps"] <= 65536
        assert compiled.metadata.shared <= HOPPERS_SHARED


@compiles
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
@pytest.mark.parametrize("keys", [2048, 8192])
def test_scores_in_memory_are_read_by_packs(keys, mask, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(impl_unfused, "launch", lambda k, _, *launched: seen.append((k, *launched)))
    q, dout = torch.empty(2, 2, 4, keys, 512, dtype=torch.bfloat16, device="meta")
    mask = mask and torch.empty(keys, keys, dtype=mask, device="meta")
    args = (q, q, q, mask, True, None, -1, -1, 0.0, None, None, False)
    out, lse = impl_unfused.fwd(*args)
    impl_unfused.bwd(dout, out, lse, *args, False)
    assert [kernel.__name__ for kernel, _, _ in seen] == ["softmax_kernel", "gradient_kernel"]
    for kernel, args, meta in seen:
        compiled = compile_for_hopper(kernel, args, meta)
        assert "ld.global.v4" in compiled.asm["ptx"]
        registers, stack = resources(compiled, tmp_path)
        print(f"{kernel.__name__} {meta}: {registers} registers, {stack} B")
        assert not spills(stack)


@compiles
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("d", [16, 37])
def test_kernels_lower_where_integers_are_constants(d, dtype):
    mask = torch.empty(40, 40, device="meta")
    for kind in (None, mask, mask > 0):
        for options in ({"right": 0}, {"left": 3, "dropout": 0.2}):
            for launched in launches((1, 2, 40, d), dtype, kind, **options):
                _lower(*launched)
