"""framework-internals/rmsnorm-fused: its Triton kernel without a GPU; its one command (long)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "framework-internals" / "rmsnorm-fused"

KERNELS = """
import torch, rmsnorm_torch
from rmsnorm_triton import forward, backward
for shape in ((3, 5, 64), (2, 1031), (700, 8)):
    x, w, dy = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape)
    y, rstd = forward(x, w, 1e-6)
    dx, dw = backward(dy, x, w, rstd)
    x64, w64 = x.double().requires_grad_(), w.double().requires_grad_()
    expected = rmsnorm_torch.rms_norm(x64, w64)
    expected.backward(dy.double())
    for ours, oracle in ((y, expected), (dx, x64.grad), (dw, w64.grad)):
        torch.testing.assert_close(ours.double(), oracle.detach(), rtol=1e-4, atol=1e-4)
print("right")
"""


def test_the_short_triton_kernels_are_right() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", KERNELS],
        cwd=FOLDER,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "right", done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_its_one_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "run.py", "--quick", "--out", tmp_path], cwd=FOLDER, check=True)
    made = {file.name for file in tmp_path.iterdir()}
    assert {"packages.json", "binding-cpu.md", "benchmark-cpu.svg"} <= made or {
        "packages.json",
        "binding-cuda.md",
        "benchmark-cuda.svg",
    } <= made
