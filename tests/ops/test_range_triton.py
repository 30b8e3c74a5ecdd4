"""Every Triton kernel at the ends of each dtype's range where there is no GPU: the interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from ops.without_a_gpu import run_in_interpreter


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interpreter():
    run_in_interpreter("range_interpreter_cases.py")
