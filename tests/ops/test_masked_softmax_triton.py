"""masked_softmax in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

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

from fuseline.ops.masked_softmax import impl_triton  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("masked_softmax_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1024, 16384, 70000])
def test_compiles_for_hopper_without_a_spill(n, dtype, log, tmp_path):
    seen, record = recorder()
    x, mask = (torch.empty(s, dtype=dtype, device="meta") for s in ((100, n), (n,)))
    for m in (mask, None):
        impl_triton.fwd(x, x.shape, m, 10, 0.5, log, wrap=record)
    impl_triton.bwd(x, x, 10, 0.5, log, wrap=record)
    for kernel, args, meta in seen:
        registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
        print(f"{kernel.__name__} {n} {dtype} {meta}: {registers} registers, {stack} B")
        assert registers * 32 * meta["num_warps"] <= 65536
        assert not spills(stack)
