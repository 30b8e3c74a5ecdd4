"""Operators on DTensors: two processes, over gloo or NCCL, give what one gives."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fuseline import table
from fuseline.core import native
from fuseline.core.registration import contract
from fuseline.sharding import registration
from fuseline.sharding.layouts import LAYOUTS

SCRIPT = Path(__file__).with_name("sharded_operators.py")
WITHOUT_PROCESSES = SCRIPT.with_name("sharded_locally.py")
TASKS = [
    *("in inference mode", "stays local", "two dimensions", "asks again", "compiled", "dropout"),
    *("sequence parallel", "llama, ddp", "llama, fsdp", "llama, tp"),
]

# Torch 2.11 has no rules for what conv_bn is made of.
OPERATORS = [n for n in table.load() if n != "conv_bn" or torch.__version__ >= (2, 13)]

# Names of layouts that several operators have, of which some lack these.
SHARED = {"h", "y", "z", "bias", "dy"}

pytestmark = [
    pytest.mark.skipif(
        native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
    ),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed"),
]


@pytest.mark.slow
@pytest.mark.parametrize("names", [TASKS, OPERATORS], ids=["models", "operators"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_two_processes_give_what_one_gives(tmp_path: Path, device: str, names: list[str]) -> None:
    if names is TASKS:
        pytest.importorskip("transformers")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    meeting = str(tmp_path / "meet")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "2", meeting, device, *names]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for name in names:
        counts = [line for line in done.stdout.splitlines() if f" {name}: " in line]
        assert len(counts) == 2, f"{name}: {counts}"
        assert all(int(line.split()[-2]) > 0 for line in counts), counts


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("torch.distributed._local_tensor") is None, reason="no LocalTensorMode"
)
def test_three_ranks_in_one_process_give_what_one_gives() -> None:
    # Torch's native_batch_norm_backward of a part without images ends the process.
    names = [name for name in OPERATORS if name != "conv_bn"]
    command = [sys.executable, "-W", "ignore", str(WITHOUT_PROCESSES), "3", *names]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count(" done") == len(names), done.stdout


def test_importing_us_imports_nothing_of_dtensor() -> None:
    modules = "{'torch.distributed.tensor', 'fuseline.sharding.layouts'}"
    code = f"import sys, fuseline; sys.exit(bool({modules} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rules_name_operators_and_their_arguments() -> None:
    schemas = {one.name: (one, one.args + ", " + one.bwd_args) for one, _ in contract.variants}
    for name, layout in LAYOUTS.items():
        one, arguments = schemas[name]
        known = {a.split()[-1].split("=")[0] for a in arguments.split(", ") if a} | {
            *layout.outputs
        }
        known |= {f"d{n}" for n in (*one.gradients, *layout.gradients)}
        assert {*layout.dims} <= known | SHARED, name
        assert len(layout.outputs) >= one.returns.count("Tensor"), name


def test_without_register_sharding_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.experimental", None)
    with pytest.raises(RuntimeError, match=r"has no torch\.distributed\.tensor\.experimental"):
        registration.register_all.__wrapped__()
