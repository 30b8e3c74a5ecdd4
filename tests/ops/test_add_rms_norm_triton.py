"""What is peculiar to add_rms_norm in Triton: the interpreter, and compiling without a GPU."""

from __future__ import annotations

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

from fuseline.ops.add_rms_norm import impl_triton  # noqa: E402

SHARED_BYTES = 227 << 10
# Rows up to these lengths stay in registers, forward and backward, without a spill.
NO_SPILLS = {torch.bfloat16: 8192, torch.float16: 8192, torch.float32: 4096, torch.float64: 64}


def launches(n, dtype, weight_dtype):
    """Every launch (kernel, arguments, meta) of forward and backward, none of them run."""
    seen, record = recorder()
    x = torch.empty(10000, n, dtype=dtype, device="meta")
    w = None if weight_dtype is None else torch.empty(n, dtype=weight_dtype, device="meta")
    _, h, rstd = impl_triton.fwd(x, x, w, 1e-5, save_rstd=True, wrap=record)
    impl_triton.bwd(x, x, h, w, rstd, need_dx=True, need_dweight=True, wrap=record)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("add_rms_norm_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("n", [64, 1027, 2048, 4096, 8192, 16384, 32768, 70000])
def test_compiles_for_hopper(n, dtype, tmp_path):
    for weight_dtype in (dtype, None) if n == 4096 else (dtype,):
        for kernel, args, meta in launches(n, dtype, weight_dtype):
            compiled = compile_for_hopper(kernel, args, meta)
            registers, stack = resources(compiled, tmp_path)
            shared = compiled.metadata.shared
            print(f"{kernel.__name__} {n} {meta}: {registers} registers, {stack} B, {shared} B")
            assert registers * 32 * meta["num_warps"] <= 65536
            assert shared <= SHARED_BYTES
            assert not spills(stack) or n > NO_SPILLS[dtype]


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
