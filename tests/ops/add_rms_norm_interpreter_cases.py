"""add_rms_norm's Triton kernels on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_add_rms_norm_triton.py in a process of its own.
"""

from __future__ import annotations

import importlib

import pytest
import torch

import fuseline
from fuseline import table
from fuseline.testing import check

SPEC = table.load()["add_rms_norm"]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs")


def test_the_checkers_questions(monkeypatch):
    # The interpreter may end a process of several threads; a crowd's rows are a program each; and
    # programs run in one order, so that only what was not written varies: "stale" asks for that.
    questions = importlib.import_module("fuseline.testing.check").ON_SMALL_CASES
    for name in ("threads", "crowd", "deterministic"):
        monkeypatch.delitem(questions, name)
    report = check(SPEC, ["triton"], dtypes=[torch.float32], cases=["3x61"], level="quick")
    assert report.ok, str(report)


def _both_ways(x, residual, weight, eps, incoming):
    """Outputs and gradients in Triton and in C++."""
    results = []
    for impl in ("triton", "cpu"):
        leaves = [t.clone().requires_grad_() for t in (x, residual, weight)]
        outputs = fuseline.add_rms_norm(*leaves, eps, impl=impl)
        live = [(y, dy) for y, dy in zip(outputs, incoming, strict=True) if dy is not None]
        ys, seeds = zip(*live, strict=True)
        grads = torch.autograd.grad(ys, leaves, seeds, allow_unused=True)
        results.append((*outputs, *grads))
    return zip(*results, strict=True)


@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
@pytest.mark.parametrize(
    ("n", "absent"), [(1027, None), (1027, 0), (1027, 1), (8192, None), (33000, None)]
)
def test_every_kernel_with_either_gradient_absent(n, dtype, absent):
    x, residual = torch.randn(3, n + 6, dtype=dtype)[:, 6:], torch.randn(3, n, dtype=dtype)
    incoming = [None if i == absent else torch.randn(3, n, dtype=dtype) for i in (0, 1)]
    for ours, other in _both_ways(x, residual, torch.randn(n, dtype=dtype), 1e-5, incoming):
        assert (ours is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("n", [61, 33000])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, s) for s in (1e30, 1e-30)] + [(torch.float64, 1e-200)]
)
def test_the_second_look_reads_the_sum(dtype, scale, n):
    x, residual = (torch.randn(5, n, dtype=torch.float64) * scale for _ in range(2))
    x, residual = x.to(dtype), residual.to(dtype)
    y, h = fuseline.add_rms_norm(x, residual, None, 0.0, impl="triton")
    assert torch.equal(h, x + residual)
    torch.testing.assert_close(y, fuseline.rms_norm(h, None, 0.0, impl="cpu"))


def test_the_raw_backward_refuses_what_it_cannot_read():
    x, rstd = torch.randn(4, 8), torch.ones(4)
    op = torch.ops.fuseline._add_rms_norm_bwd__triton
    for dy, dh, saved, name in (
        (x[:1], x, rstd, "dy"),
        (x, x.double(), rstd, "d_new_residual"),
        (x, None, rstd[:1], "rstd"),
    ):
        with pytest.raises(ValueError, match=name):
            op(dy, dh, x, None, saved, True, False)
