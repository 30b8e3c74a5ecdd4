"""bias_gelu in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

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

from fuseline.ops.bias_gelu import impl_triton  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("bias_gelu_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tanh", [True, False])
def test_compiles_for_hopper_without_a_spill(tanh, dtype, tmp_path):
    seen, record = recorder()
    x, bias = (torch.empty(s, dtype=dtype, device="meta") for s in ((100, 1024), (1024,)))
    impl_triton.fwd(x, bias, tanh, wrap=record)
    impl_triton.bwd(x, x, bias, tanh, True, True, wrap=record)
    for kernel, args, meta in seen[:2]:  # the third finishes dbias
        registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
        print(f"{kernel.__name__} {tanh} {dtype} {meta}: {registers} registers, {stack} B")
        assert registers * 32 * meta["num_warps"] <= 65536
        assert not spills(stack)
