"""The horizontal reductions in Triton where there is no GPU: interpreted, and built for Hopper."""

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

from fuseline.ops.horizontal_reduction_pointwise import impl_triton as pointwise  # noqa: E402
from fuseline.ops.horizontal_reduction_reduction import impl_triton as reduction  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("horizontal_reductions_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1027, 70000])
def test_compiles_for_hopper_without_a_spill(n, dtype, tmp_path):
    seen, record = recorder()
    x, row = torch.empty(100, n, dtype=dtype, device="meta"), torch.empty(100, device="meta")
    row = row.to(dtype)
    pointwise.fwd(x, wrap=record)
    pointwise.bwd(row, x, x, wrap=record)
    reduction.fwd(x, True, wrap=record)
    reduction.bwd(row, row, x, row, row.double(), wrap=record)
    for kernel, args, meta in seen:
        registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
        print(f"{kernel.__module__} {kernel.__name__} {n} {dtype}: {registers} regs, {stack} B")
        # The library's reduction of large angles takes 32 bytes of stack.
        assert stack == (32 if kernel.__module__ == pointwise.__name__ else 0)
        assert registers * 32 * meta["num_warps"] <= 65536
