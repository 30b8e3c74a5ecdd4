"""Triton kernels of rms_norm_fp8 on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_rms_norm_fp8_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops.test_rms_norm_fp8 import probe, same

import fuseline
from fuseline import table
from fuseline.testing.oracle.accuracy import errors, over_budget

SPEC = table.load()["rms_norm_fp8"]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")


@pytest.mark.parametrize("n", [None, 40000])
def test_every_value_and_every_tie(n):
    values, wanted = probe()
    if n:  # in blocks
        values, wanted = (t.repeat(n // len(t)) for t in (values, wanted))
    y = fuseline.rms_norm_fp8(
        torch.ones(2, len(values)), values, torch.ones(()), 0.0, impl="triton"
    )
    assert same(y, wanted.to(y.dtype).expand(2, -1).contiguous())


@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
@pytest.mark.parametrize(
    ("n", "kind", "eps"),
    [
        *((n, "same", 0.0) for n in (1, 61, 130, 1027, 4096, 40000)),
        *((n, kind, 1e-6) for n in (61, 40000) for kind in ("float32", "none")),
    ],
)
def test_within_the_budget(n, dtype, kind, eps):
    kinds = {"same": dtype, "float32": torch.float32}
    x = torch.randn(5, n + 6).to(dtype)[:, 6:]
    if eps == 0.0:
        x = x * torch.tensor([[1.0], [2.0**60], [2.0**-60], [1.0], [1.0]]).to(dtype)
        x = x.nan_to_num(1.0, 1.0, 1.0) + (x == 0) * torch.tensor(2.0**-20).to(dtype)
    given = {
        "x": x,
        "weight": torch.randn(n).to(kinds[kind]) if kind in kinds else None,
        "scale": torch.tensor([0.013]),
        "eps": eps,
    }
    y = fuseline.rms_norm_fp8(**given, impl="triton")
    figures = errors(SPEC, given, "fwd", {"out0": y})["out0"]
    assert over_budget(SPEC.budget, y.dtype, "fwd", figures, None) is None
