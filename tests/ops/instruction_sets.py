"""Code run with the kernels of one instruction set, which a process chooses when it loads them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection

import pytest
import torch

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
    """Run code in a process whose kernels are those of `isa`, or skip where there are none.

    It comes of a server that has loaded torch, which takes two seconds, but not the kernels.
    """
    if isa not in available():
        pytest.skip(f"this processor has no {isa}")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(isa, code, writer))
    process.start()
    writer.close()
    try:
        error = reader.recv()
    except EOFError:
        error = "it ended"
    process.join()
    assert (process.exitcode, error) == (0, ""), f"exit code {process.exitcode}: {error}"


def _run(isa: str, code: str, writer: Connection) -> None:
    os.environ["FUSELINE_CPU_ISA"] = isa
    try:
        assert own() == isa
        exec(code, {})  # noqa: S102 - the tests' own
    except BaseException:
        writer.send(traceback.format_exc())
    else:
        writer.send("")
