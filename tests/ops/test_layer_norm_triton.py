"""layer_norm in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from ops.without_a_gpu import (  # noqa: E402
    compile_for_hopper,
    recorder,
    resources,
    run_in_interpreter,
    spills,
)

from fuseline.ops.layer_norm import impl_triton  # noqa: E402

SHARED_BYTES = 227 << 10


def launches(n, dtype, affine=True):
    """Every launch (kernel, arguments, meta) of forward and backward, none of them run."""
    seen, record = recorder()
    x = torch.empty(10000, n, dtype=dtype, device="meta")
    w = torch.empty(n, dtype=dtype, device="meta") if affine else None
    _, mean, rstd = impl_triton.fwd(x, w, w, 1e-5, save=True, wrap=record)
    impl_triton.bwd(x, x, w, mean, rstd, True, affine, affine, wrap=record)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("layer_norm_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [64, 1027, 4096, 8192, 16384, 70000])
def test_compiles_for_hopper_without_a_spill(n, dtype, tmp_path):
    for kernel, args, meta in launches(n, dtype) + (launches(n, dtype, False) if n == 4096 else []):
        compiled = compile_for_hopper(kernel, args, meta)
        registers, stack = resources(compiled, tmp_path)
        shared = compiled.metadata.shared
        print(f"{kernel.__name__} {n} {dtype} {meta}: {registers} registers, {stack} B, {shared} B")
        assert registers * 32 * meta["num_warps"] <= 65536
        assert shared <= SHARED_BYTES
        assert not spills(stack)


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
def test_neither_rows_nor_eps_recompile():
    """Row counts, strides and eps are plain run-time arguments of every kernel."""
    found = [launches(n, torch.float32) for n in (64, 70000)]
    kernels = {kernel.__name__: kernel for seen in found for kernel, *_ in seen}
    assert len(kernels) == 6
    for kernel in kernels.values():
        counts = [p for p in kernel.params if not p.is_constexpr and "_ptr" not in p.name]
        assert counts
        assert all(p.do_not_specialize for p in counts)


def test_one_kernel_finishes_both_parameters():
    names = [kernel.__name__ for kernel, *_ in launches(1024, torch.float32)]
    assert names == ["fwd_kernel", "bwd_kernel", "_finish_kernel"]
