"""Triton kernels on the CPU at the ends of each dtype's range; needs TRITON_INTERPRET=1.

Run by test_range_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops.ranges import SPECS, failures

pytestmark = [
    pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CELLS = [
    (name, dtype)
    for name, spec in SPECS.items()
    if any(impl.name == "triton" for impl in spec.implementations)
    for dtype in spec.dtypes
    # bfloat16 has the range of float32, whose kernels it takes, and float16 the least.
    if dtype in (torch.float64, torch.bfloat16)
]


@pytest.mark.parametrize(("name", "dtype"), CELLS, ids=str)
def test_the_whole_range(name, dtype):
    found = failures(name, "triton", dtype, "cpu", 50, 70, few=True)  # the interpreter is slow
    assert not found, f"{len(found)} wrong\n" + "\n".join(found[:8])
