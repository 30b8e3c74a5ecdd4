"""rms_norm_fp8 in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

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

from fuseline.ops.rms_norm_fp8 import impl_triton  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("rms_norm_fp8_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [64, 1027, 4096, 16384, 70000])
def test_compiles_for_hopper_without_a_spill(n, dtype, tmp_path):
    seen, record = recorder()
    x, w = (torch.empty(s, dtype=dtype, device="meta") for s in ((100, n), (n,)))
    impl_triton.fwd(x, w, torch.empty(1, device="meta"), 1e-5, wrap=record)
    ((kernel, args, meta),) = seen
    registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
    print(f"{kernel.__name__} {n} {dtype} {meta}: {registers} registers, {stack} B")
    assert registers * 32 * meta["num_warps"] <= 65536
    assert not spills(stack)
