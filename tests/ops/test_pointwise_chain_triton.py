"""pointwise_chain in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from ops.without_a_gpu import (  # noqa: E402
    compile_for_hopper,
    recorder,
    resources,
    run_in_interpreter,
)

from fuseline.ops.pointwise_chain import impl_triton  # noqa: E402

# Stack that the library's reduction of large angles takes; of half types, bfloat16 alone has any.
LIBRARY = {torch.float64: 48, torch.float32: 32, torch.float16: 0, torch.bfloat16: 32}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("pointwise_chain_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", LIBRARY, ids=str)
def test_compiles_for_hopper_without_a_spill(dtype, tmp_path):
    seen, record = recorder()
    x = torch.empty(100, 1024, dtype=dtype, device="meta")
    impl_triton.fwd(x, wrap=record)
    impl_triton.bwd(x, x, wrap=record)
    for kernel, args, meta in seen:
        compiled = compile_for_hopper(kernel, args, meta)
        registers, stack = resources(compiled, tmp_path)
        print(f"{kernel.__name__} {dtype} {meta}: {registers} registers, {stack} B")
        assert registers * 32 * meta["num_warps"] <= 65536
        assert stack == LIBRARY[dtype]
