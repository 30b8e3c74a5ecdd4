"""The product in Triton where there is no GPU: the interpreter, tiles, and compiling for Hopper."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from ops.products import arguments  # noqa: E402
from ops.without_a_gpu import (  # noqa: E402
    compile_for_hopper,
    recorder,
    resources,
    run_in_interpreter,
    spills,
)

from fuseline.core.products.triton import Triton  # noqa: E402
from fuseline.primitives.triton import parameters  # noqa: E402
from fuseline.primitives.triton.products import activation, product  # noqa: E402
from fuseline.primitives.triton.products.tiles import HALF, IEEE, TF32, tile_of  # noqa: E402

on_a_compiler = pytest.mark.skipif(
    triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set: there are no JITFunctions"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter() -> None:
    run_in_interpreter("product_interpreter_cases.py")


def launches(monkeypatch: pytest.MonkeyPatch, *args: Any, **given: Any) -> Any:
    """What an eager call launches."""
    seen: list[Any] = []
    monkeypatch.setattr(
        product, "launch", lambda kernel, grid, args, meta, wrap: seen.append((kernel, args, meta))
    )
    product.product(*args, **given)
    return seen


def fits(kernel: Any, args: Any, meta: Any, programs: int, folder: Any) -> str:
    """The PTX of a kernel that spills nothing and of which so many programs run on each SM."""
    compiled = compile_for_hopper(kernel, args, meta)
    registers, stack = resources(compiled, folder)
    shared = compiled.metadata.shared
    print(f"{meta}: {registers} registers, {stack} B of stack, {shared} B shared")
    assert not spills(stack)
    assert programs * registers * 32 * meta["num_warps"] <= 65536
    assert programs * (shared + 1024) <= 228 * 1024
    return compiled.asm["ptx"]


def meta_tensor(rows: int, cols: int, dtype: torch.dtype, turned: bool = False) -> torch.Tensor:
    shape = (cols, rows) if turned else (rows, cols)
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made.mT if turned else made


@on_a_compiler
@pytest.mark.parametrize("act", ["none", "gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("tile", [*HALF.tiles, *TF32.tiles, *IEEE.tiles], ids=str)
def test_compiles_for_hopper(
    tile: Any, act: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    dtype, tf32 = torch.bfloat16 if tile in HALF.tiles else torch.float32, tile in TF32.tiles
    for turned in ((False, False), (True, True)):
        a, b = (meta_tensor(4096, 4096, dtype, t) for t in turned)
        given = (a, b, torch.empty(4096, dtype=dtype, device="meta"), act, tf32)
        seen = launches(monkeypatch, *given, save_h=act != "none", tile=tile)
        ptx = fits(*seen[0], tile.programs, tmp_path)
        assert ("wgmma.mma_async" in ptx) == (tile not in IEEE.tiles)
        assert "cp.async.bulk.tensor.3d.shared::cluster.global" in ptx
        assert "cp.async.bulk.tensor.3d.global.shared" in ptx


@on_a_compiler
@pytest.mark.parametrize("tile", HALF.tiles[:2], ids=str)
def test_compiles_for_hopper_where_descriptors_are_made_on_the_device(
    tile: Any, tmp_path: Any
) -> None:
    seen, record = recorder()
    a, b = meta_tensor(4096, 4096, torch.float16), meta_tensor(4096, 4096, torch.float16)
    product.product(a, b, None, "gelu_tanh", save_h=True, wrap=record, tile=tile)
    assert "tensormap.replace" in fits(*seen[0], tile.programs, tmp_path)


@on_a_compiler
@pytest.mark.parametrize("act", activation.ACTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_compile_for_hopper(act: str, dtype: torch.dtype, tmp_path: Any) -> None:
    seen, record = recorder()
    x = meta_tensor(100, 1024, dtype)
    activation.act_grad(x, x, act, True, wrap=record)
    fits(*seen[0], activation._PROGRAMS, tmp_path)


@on_a_compiler
@pytest.mark.parametrize("op", ["matmul_add", "matmul_relu", "matmul_add_gelu"])
def test_a_graph_traces_through_forward_and_backward(op: str) -> None:
    module = importlib.import_module(f"fuseline.ops.{op}.op")
    run = module.PRODUCT.kernels(Triton(module.contract.triton_beside(module.__name__)))
    seen, record = recorder()
    a, b, y = torch.ones(6, 16), torch.ones(16, 8), torch.ones(6, 8)
    rest = ("tanh",) if op == "matmul_add_gelu" else ()
    given = arguments(op, a, b, torch.ones(8))
    (run.fwd or run.run)(*given, wrap=record)
    assert [kernel for kernel, *_ in seen] == [product._kernel]
    saved = () if op == "matmul_add" else (y,)
    run.bwd(y, a, b, *saved, *rest, *(True,) * (len(given) - len(rest)), wrap=record)
    sums = [] if op == "matmul_relu" else [parameters._finish_kernel]
    expected = [activation._gradient_kernel, *sums, product._kernel, product._kernel]
    assert {*map(id, (kernel for kernel, *_ in seen[1:]))} == {*map(id, expected)}
    assert len(seen) == 1 + len(expected)


PICKED = {
    (1, 128, 128, 64, "none"): (64, 64),
    (1, 1024, 1024, 1024, "none"): (64, 128),
    (1, 8192, 8192, 8192, "none"): (128, 256),
    (132, 128, 256, 4096, "gelu_erf"): (128, 256),
}


@pytest.mark.parametrize(("product", "expected"), PICKED.items(), ids=str)
def test_tile_of(product: Any, expected: Any) -> None:
    assert tile_of(*product, HALF, 132)[:2] == expected
