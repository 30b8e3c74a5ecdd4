"""bias_dropout_add in Triton where there is no GPU: the interpreter, and compiling for Hopper."""

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

from fuseline.ops.bias_dropout_add import impl_triton  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("bias_dropout_add_interpreter_cases.py")


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
@pytest.mark.parametrize("drop", [None, (0.5, 1 << 40)], ids=["eval", "training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["alike", "transposed"])
def test_compiles_for_hopper_to_wide_accesses_without_a_spill(layout, dtype, drop, tmp_path):
    seen, record = recorder()
    x = torch.empty(4096, 1024, dtype=dtype, device="meta")
    y = torch.empty(1024, 4096, dtype=dtype, device="meta").t() if layout == "transposed" else x
    impl_triton.fwd(x, y, y, drop, wrap=record)
    kernel, args, meta = seen[0]
    compiled = compile_for_hopper(kernel, args, meta)
    registers, stack = resources(compiled, tmp_path)
    shared = compiled.metadata.shared
    print(f"{kernel.__name__} {meta}: {registers} registers, {stack} B, {shared} B shared")
    assert registers * 32 * meta["num_warps"] <= 65536
    assert not spills(stack)
    accesses = [word for word in compiled.asm["ptx"].split() if word.startswith("ld.global")]
    assert accesses
    assert all(".v4.b32" in access for access in accesses)
    if drop:  # ten rounds of two products at most, for four elements
        elements = meta.get("ROWS", 1) * meta["COLS"] // (32 * meta["num_warps"])
        assert 0 < compiled.asm["ptx"].count("mul.hi.u32") <= 20 * elements // 4


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set")
def test_backward_and_odd_layouts_compile_for_hopper(tmp_path):
    seen, record = recorder()
    drop = (0.3, 7)
    x, crossing = (torch.empty(shape, device="meta") for shape in ((64, 128), (128, 64)))
    odd = torch.empty(5, 7, 9, dtype=torch.float64, device="meta")
    impl_triton.bwd(x, drop, wrap=record)
    impl_triton.bwd(crossing.t(), drop, wrap=record)
    for given in (drop, None):
        impl_triton.fwd(odd, odd[:1, :, :1], odd.permute(1, 2, 0).contiguous().permute(2, 0, 1),
                        given, wrap=record)  # fmt: skip
        impl_triton.fwd(odd[..., ::2], odd[0, 0, ::2], odd[..., ::2], given, wrap=record)
    assert len(seen) == 6
    for launched in seen:
        _, stack = resources(compile_for_hopper(*launched), tmp_path)
        assert not spills(stack)
