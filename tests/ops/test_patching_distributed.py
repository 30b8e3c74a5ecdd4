"""Patched models under DistributedDataParallel, fully_shard and tensor parallelism, over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fuseline.core import native

SCRIPT = Path(__file__).with_name("distributed_patching.py")

pytestmark = [
    pytest.mark.skipif(
        native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
    ),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed"),
]


@pytest.mark.parametrize("processes", [1, 2])
def test_losses_are_those_without_patch(processes: int) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={processes}", str(SCRIPT)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("done") == 8 * processes, done.stdout
