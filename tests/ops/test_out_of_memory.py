"""Memory that torch cannot give is refused with torch's error, whoever asks for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.core import native

SPECS = table.load()
OPS = torch.ops.fuseline
ROWS = 1 << 40  # all in the same memory; results would take more addresses than a process has
CELLS = [
    (name, impl.name)
    for name, spec in SPECS.items()
    for impl in spec.implementations
    if impl.role == "ours" and spec.row_inputs
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _many_rows(t: Tensor, one_a_row: bool = False) -> Tensor:
    if one_a_row:
        return t.flatten()[:1].expand(ROWS)
    return t.reshape(-1, t.shape[-1])[:1].expand(ROWS, t.shape[-1])


def _inputs(name: str, device: str) -> dict[str, Any]:
    spec, where = SPECS[name], torch.device(device)
    case = next(c for c in spec.cases if "check" in c.suites and c.args["shape"][-1:] > (40,))
    drawn = spec.make_inputs(case, torch.float32, where, torch.Generator(where).manual_seed(0))
    return {
        k: _many_rows(v, k in spec.row_values) if k in spec.row_inputs and v is not None else v
        for k, v in drawn.items()
    }


def _assert_refused(call: Any, device: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    if device == "cuda":
        assert isinstance(caught.value, torch.OutOfMemoryError), repr(caught.value)[:300]
        assert "CUDA out of memory. Tried to allocate" in str(caught.value)
    else:
        assert "DefaultCPUAllocator: can't allocate memory" in str(caught.value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "impl"), CELLS)
def test_an_output_that_has_no_place(name: str, impl: str, device: str) -> None:
    own = SPECS[name].implementation(impl)
    if reason := own.unavailable(device):
        pytest.skip(reason)
    inputs = _inputs(name, device)
    _assert_refused(lambda: own.fn(**inputs), device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_has_no_place(device: str) -> None:
    if reason := native.status().why_not(device):
        pytest.skip(reason)
    one = torch.randn(1, 64, device=device)
    x, rstd = _many_rows(one), one[0, :1].expand(ROWS)
    _assert_refused(lambda: OPS._rms_norm_bwd(x, x, None, rstd, True, False), device)
    _assert_refused(lambda: OPS._softmax_bwd(x, x, -1), device)
    misaligned = torch.randn(3, 5, device=device).t()[None].expand(ROWS, 5, 3)
    _assert_refused(
        lambda: OPS._softmax_bwd(misaligned, misaligned, -1), device
    )  # the copy has none


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_that_runs_out(compiled: bool) -> None:
    """All of a GPU but little is taken; the forward fits, the backward does not."""
    x = torch.randn(1 << 15, 1024, device="cuda", requires_grad=True)

    def step(x: Tensor) -> Tensor:
        return fuseline.rms_norm(x, None, 1e-6, impl="cuda")

    f = torch.compile(step) if compiled else step
    f(x).backward(torch.ones_like(x))
    y, dy = f(x), torch.ones_like(x)
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    most = torch.cuda.memory_reserved() + (16 << 20)
    torch.cuda.memory.set_per_process_memory_fraction(most / total)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            torch.autograd.grad(y, x, dy)
    finally:
        torch.cuda.memory.set_per_process_memory_fraction(1.0)
