"""What the worker says to the runner, and the errors that end a worker."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fuselab.model import Status
from fuseline.testing.place import place

Emit = Callable[..., None]

PROBED = 1000
# How Python prints what was raised, in the text of another error.
_RAISED = re.compile(r"[A-Za-z_][\w.]*: \S")


class Fatal(Exception):
    """The worker cannot go on: `impl` ("" if none) gets this status, the rest runs afresh."""

    def __init__(self, impl: str, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.impl, self.status, self.reason = impl, status, reason


def describe(error: BaseException) -> str:
    """Return the error as one line: its type and the first line of its message.

    A first line that ends in a colon announces another error (Inductor's, from a compile
    process): the last line that raises one is added.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []  # an exception of a user may be broken too
    if not lines:
        return type(error).__name__
    raised = [line for line in lines[1:] if _RAISED.match(line)]
    cause = f" {raised[-1]}" if raised and lines[0].endswith(":") else ""
    return f"{type(error).__name__}: {lines[0]}{cause}"


def judge(error: BaseException, impl: str, phase: str, device: torch.device) -> str:
    """Return the reason for an ordinary error; raise Fatal where the process must not go on.

    It must not after a first error for want of memory (what is left of it would be timed with
    the others), after any error of CUDA's, or when the device no longer computes what it should.
    """
    reason = f"{describe(error)} (during {phase})"
    if where := place(error):
        reason = f"{where}: {reason}"
    out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if out_of_memory or "DefaultCPUAllocator: can't allocate memory" in reason:
        raise Fatal(impl, Status.OUT_OF_MEMORY, reason) from error
    sick = probe(device)
    if sick:
        raise Fatal(impl, Status.CRASHED, f"{reason}; after it {sick}") from error
    if _is_of_cuda(error):
        raise Fatal(impl, Status.ERROR, reason) from error
    return reason


def probe(device: torch.device) -> str:
    """Return why a small sum on the device fails or is wrong, or ""."""
    try:
        synchronize(device)
        with torch.no_grad():
            found = torch.arange(PROBED, dtype=torch.int64, device=device).square().sum().item()
    except Exception as error:
        return f"{device.type} is lost: {describe(error)}"
    expected = sum(i * i for i in range(PROBED))
    return "" if found == expected else f"{device.type} adds up to {found}, expected {expected}"


def _is_of_cuda(error: BaseException) -> bool:
    """Say whether CUDA or one of its libraries raised it; torch has no type for the latter."""
    if isinstance(error, torch.AcceleratorError):
        return True
    words = ("CUDA error", "CUDA driver error", "cuDNN error", "cuBLAS error")
    return isinstance(error, RuntimeError) and any(word in describe(error) for word in words)


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep Python's collector from running, and from telling what is going on by its state."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that an error shows up in the call that caused it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
