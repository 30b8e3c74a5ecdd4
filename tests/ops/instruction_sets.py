"""Code run with the kernels of one instruction set, which a process chooses when it loads them."""

from __future__ import annotations

import ctypes

import pytest
import torch
from ops.forks import in_a_fork

from fuseline.core import native


def available() -> set[str]:
    capability = torch.backends.cpu.get_cpu_capability().lower().split("_")[0]
    wider = {"avx512": {"avx512", "avx2"}, "avx2": {"avx2"}}
    return {"default"} | wider.get(capability, set())


def own() -> str:
    """Return what this process runs, where no variable says otherwise."""
    name = native.status().handle.fuseline_cpu_isa
    name.restype = ctypes.c_char_p
    return str(name().decode())


def for_instruction_set(isa: str, code: str) -> None:
    """Run code in a process whose kernels are those of `isa`, or skip where there are none."""
    if isa not in available():
        pytest.skip(f"this processor has no {isa}")
    in_a_fork({"FUSELINE_CPU_ISA": isa}, __name__, "run_with", isa, code)


def run_with(isa: str, code: str) -> None:
    assert own() == isa
    exec(code, {})  # noqa: S102 - the tests' own
