"""Norms in float8_e4m3fn in Triton where there is no GPU: the interpreter, compiling for Hopper."""

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

from fuseline.primitives.triton.norms import layer_fp8, rms_fp8  # noqa: E402

KINDS = ("rms", "add", "layer")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter() -> None:
    run_in_interpreter("norms_fp8_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [64, 1027, 4096, 16384, 70000])
def test_compiles_for_hopper_without_a_spill(kind, n, dtype, tmp_path):
    x, w = (torch.empty(s, dtype=dtype, device="meta") for s in ((100, n), (n,)))
    for scale, block in ((torch.empty(1, device="meta"), None), (None, None), (None, 128)):
        seen, record = recorder()
        if kind == "layer":
            layer_fp8.fwd(x, w, w, 1e-5, scale, block, wrap=record)
        else:
            rms_fp8.fwd(x, x if kind == "add" else None, w, 1e-5, scale, block, wrap=record)
        ((kernel, args, meta),) = seen
        registers, stack = resources(compile_for_hopper(kernel, args, meta), tmp_path)
        print(f"{kind} {n} {dtype} {meta}: {registers} registers, {stack} B")
        assert registers * 32 * meta["num_warps"] <= 65536
        assert not spills(stack)
