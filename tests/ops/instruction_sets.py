"""Code run with the kernels of one instruction set, which a process chooses when it loads them."""

from __future__ import annotations

import ctypes
import platform

import pytest
import torch
from ops.forks import in_a_fork

from fuseline.core import native

# What the binary has kernels for on this kind of processor.
BUILT = ("avx2", "avx512") if platform.machine() in ("x86_64", "AMD64") else ("default",)


def available() -> tuple[str, ...]:
    capability = torch.backends.cpu.get_cpu_capability().lower().split("_")[0]
    return BUILT[: BUILT.index(capability) + 1] if capability in BUILT else BUILT[:1]


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
