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


def test_losses_of_one_and_of_two_processes_are_those_without_patch(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "1", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("done") == 8 * (1 + 2), done.stdout
