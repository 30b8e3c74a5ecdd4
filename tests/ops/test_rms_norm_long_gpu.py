"""The forward of long rows: how exact, and the same bits in any batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.on_a_gpu import misaligned

import fuseline
from fuseline import table
from fuseline.testing.trial import Trial, same_bits

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Accesses of 16 bytes in a row: what a block holds, clusters of 2 to 16, or nearly, and others.
PACKS = (1025, 2047, 2048, 2049, 4096, 4097, 5000, 8192, 8193, 16384, 16385, 32769, 65536, 65537)

pytestmark = pytest.mark.gpu


def _forward_inputs(op: str, packs: int, dtype: torch.dtype) -> dict[str, Any]:
    n = packs * 16 // dtype.itemsize
    names = ("x", "residual") if op == "add_rms_norm" else ("x",)
    rows = {name: misaligned((41, n), 0, dtype) for name in names}
    return {**rows, "weight": misaligned((n,), 0, dtype), "eps": 1e-6}


def _tuple(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", PACKS)
def test_forward_of_long_rows_keeps_the_budget(packs: int, dtype: torch.dtype, op: str) -> None:
    """And know not the batch."""
    inputs, spec = _forward_inputs(op, packs, dtype), table.load()[op]
    trial = Trial(spec, spec.implementation("cuda"), spec.cases[0], dtype, torch.device("cuda"))
    assert trial.wrong(inputs, "fwd") is None
    call = getattr(fuseline, op)
    whole = call(**inputs, impl="cuda")
    for rows in (slice(0, 1), slice(17, 19)):
        part = {k: v[rows] for k, v in inputs.items() if k in ("x", "residual")}
        alone = call(**(inputs | part), impl="cuda")
        for all_rows, some in zip(_tuple(whole), _tuple(alone), strict=True):
            assert same_bits(some, all_rows[rows])


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packs", [2048, 3072, 4097, 16385, 65536])
def test_forward_of_long_rows_gets_a_second_look_out_of_range(
    packs: int, dtype: torch.dtype, op: str
) -> None:
    inputs, call = _forward_inputs(op, packs, dtype), getattr(fuseline, op)
    h = _tuple(call(**inputs, impl="cuda"))[-1] if op == "add_rms_norm" else inputs["x"]
    row = h[17].double()
    expected = row * (row.square().mean().rsqrt()) * inputs["weight"].double()
    for name in inputs.keys() & {"x", "residual"}:
        inputs[name][17] *= 2.0 ** (530 if dtype == torch.float64 else 80)
    y = _tuple(call(**inputs, impl="cuda"))[0]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y[17].double(), expected, rtol=4 * eps, atol=0)
    assert y.isfinite().all()
