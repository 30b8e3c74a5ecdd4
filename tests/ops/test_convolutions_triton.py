"""What follows convolutions in Triton, without a GPU: the interpreter, and compiled for Hopper."""

from __future__ import annotations

from typing import Any

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

from fuseline.ops.conv_bn import impl_fold, impl_triton  # noqa: E402
from fuseline.primitives.triton import channels as channels_last  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["conv", "conv_bn"])
def test_interpreter(name: str) -> None:
    run_in_interpreter(f"{name}_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("channels", [64, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiles_for_hopper_without_a_spill(
    dtype: torch.dtype, channels: int, tmp_path: Any
) -> None:
    seen, record = recorder()
    rows = torch.empty(5000, channels, dtype=dtype, device="meta")
    vector = torch.empty(channels, device="meta")
    impl_triton._normalised(rows, vector, vector, True, rows, 1e-5, record)
    impl_triton._gradient([rows, rows, *[vector] * 4], True, rows, record)
    weight = torch.empty(channels, 64, 3, 3, device="meta")
    impl_fold.folded(weight, [vector] * 5, 1e-5, dtype, record)
    impl_fold.folded(weight.to(dtype)[:, :3], [None] * 3 + [vector] * 2, 1e-5, dtype, record)
    image = torch.empty(2, channels, 8, 9, dtype=dtype, device="meta")
    image = image.contiguous(memory_format=torch.channels_last)
    channels_last.epilogue(image, vector.to(dtype), image, True, record)
    channels_last.gradient(image, image, True, record)
    kernels = [one for one in seen if "finish" not in one[0].__name__]
    assert len(kernels) == 9
    for kernel, args, meta in kernels:
        registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
        print(f"{kernel.__name__} {channels} {dtype} {meta}: {registers} registers, {stack} B")
        assert registers * 32 * meta["num_warps"] <= 65536
        assert not spills(stack)
