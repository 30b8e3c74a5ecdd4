"""Triton kernels of convolutions on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_convolutions_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops.convolutions import LAST, OPS, computed, error, exact, seeds, tensors

import fuseline

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs")
# Of a half type eager rounds twice before ReLU.
LIMITS = {torch.float32: 6.0, torch.bfloat16: 2.0, torch.float16: 2.0}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(("filters", "size"), [(1, 6), (20, 13), (131, 5)])
def test_forward_and_gradients(filters: int, size: int, dtype: torch.dtype, op: str) -> None:
    given = tensors(op, (3, 4, size, size + 1), filters, dtype=dtype, form=LAST)
    dy = seeds(op, given, {})
    wanted = exact(op, given, {}, dy)
    plain = computed(op, given, {}, dy, "eager")
    found = computed(op, given, {}, dy, "triton")
    for mine, theirs, want in zip(found, plain, wanted, strict=True):
        assert error(mine, want, dy) <= max(LIMITS[dtype], 2 * error(theirs, want, dy))
    given["x"][0, 0, 2, 2] = torch.nan
    given.pop("z", None)
    if op == "conv_relu":
        y = computed(op, given, {}, impl="triton")[0]
        assert torch.equal(y.isnan(), exact(op, given, {})[0].isnan())


@pytest.mark.parametrize("op", OPS)
def test_what_it_does_not_serve(op: str) -> None:
    def why_not(**change: torch.Tensor) -> str:
        given = tensors(op, form=LAST) | change
        told = fuseline.explain_choice(getattr(fuseline, op), **given)
        return dict(told.fwd.others).get("triton", "")

    assert why_not() == ""
    plain = tensors(op)
    assert "channels_last" in why_not(**plain)
    wide = tensors(op, dtype=torch.float64, form=LAST)
    assert "float64" in why_not(**wide)
    none = tensors(op, (0, 8, 9, 7), form=LAST)
    none["weight"] = none["weight"].contiguous(memory_format=LAST)
    assert why_not(**none) == "x is empty"
