"""What is peculiar to RMSNorm in Triton: the interpreter, and compiling without a GPU."""

from __future__ import annotations

import re

import pytest
import torch

triton = pytest.importorskip("triton")

from ops.without_a_gpu import (  # noqa: E402
    TYPES,
    compile_for_hopper,
    recorder,
    resources,
    run_in_interpreter,
    spills,
)

from fuseline.core.selection.tuned import Tile  # noqa: E402
from fuseline.ops.rms_norm import impl_triton  # noqa: E402


def launches(n, dtype, weight_dtype, tile=None):
    """Every launch (kernel, arguments, meta) of forward and backward, none of them run."""
    seen, record = recorder()
    x = torch.empty(10000, n, dtype=dtype, device="meta")
    w = None if weight_dtype is None else torch.empty(n, dtype=weight_dtype, device="meta")
    _, rstd = impl_triton.fwd(x, w, 1e-5, save_rstd=True, wrap=record, tile=tile)
    impl_triton.bwd(x, x, w, rstd, need_dx=True, need_dweight=True, wrap=record, tile=tile)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    """In a process of its own: TRITON_INTERPRET counts when triton is imported."""
    run_in_interpreter("triton_interpreter_cases.py")


# Rows up to these lengths stay in registers, forward and backward, with at most one spilled: where
# tiles were measured, the fastest for half rows of 4096 spills 8 bytes, for fp32 ones of 8192 48.
ONE_REGISTER = 8
NO_SPILLS = {torch.bfloat16: 8192, torch.float16: 8192, torch.float32: 4096, torch.float64: 64}


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("n", [64, 1027, 2048, 4096, 8192, 16384, 32768, 70000])
def test_compiles_for_hopper(n, dtype, tmp_path):
    for weight_dtype in (dtype, None) if n == 4096 else (dtype,):
        for kernel, args, meta in launches(n, dtype, weight_dtype):
            registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
            print(f"{kernel.__name__} {n} {TYPES[dtype]} {meta}: {registers} registers, {stack} B")
            assert registers * 32 * meta["num_warps"] <= 65536
            assert not spills(stack, ONE_REGISTER) or n > NO_SPILLS[dtype]


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
def test_hot_loops_use_wide_and_asynchronous_accesses():
    forward, backward, _ = launches(4096, torch.bfloat16, torch.bfloat16)
    ptx, meta = compile_for_hopper(*forward).asm["ptx"], forward[2]
    assert meta["ROWS"] == 1, "the weight has as many packs as x"
    packs = meta["BLOCK"] // (8 * 32 * meta["num_warps"])
    before = ptx[: ptx.index("shfl.sync")]
    assert len(re.findall(r"ld\.global\S*v4\.b32", before)) == packs * (1 + meta["WEIGHT_FIRST"])
    assert not re.search(r"ld\.global\S*\.b16", ptx)
    ptx = compile_for_hopper(*backward).asm["ptx"]
    assert "cp.async.cg.shared.global [ %" in ptx
    assert ", 0x10," in ptx


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("first", [True, False])
def test_the_weight_is_asked_for_before_or_after_the_reduction_as_the_tile_says(first):
    forward = launches(1024, torch.bfloat16, torch.bfloat16, Tile(1024, 4, weight_first=first))[0]
    ptx = compile_for_hopper(*forward).asm["ptx"]
    # Only the weight's loads have this policy.
    assert (ptx.index("L1::evict_last") < ptx.index("shfl.sync")) == first


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
def test_neither_rows_nor_eps_recompile():
    """Row counts, strides and eps are plain run-time arguments of every kernel."""
    found = [launches(n, torch.float32, torch.float32) for n in (64, 70000)]
    kernels = {kernel.__name__: kernel for seen in found for kernel, *_ in seen}
    assert len(kernels) == 6
    for kernel in kernels.values():
        counts = [p for p in kernel.params if not p.is_constexpr and "_ptr" not in p.name]
        assert counts
        assert all(p.do_not_specialize for p in counts)
