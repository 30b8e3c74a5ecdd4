"""What the worker says to the runner, and the errors that end a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuselab.model import Status

Emit = Callable[..., None]


class Fatal(Exception):
    """The worker cannot go on: `impl` ("" if none) gets this status, the rest runs afresh."""

    def __init__(self, impl: str, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.impl, self.status, self.reason = impl, status, reason


def describe(error: BaseException) -> str:
    """Return the error as one line: its type and the first line of its message."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []  # an exception of a user may be broken too
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def judge(error: BaseException, impl: str, phase: str, device: torch.device) -> str:
    """Return the reason for an ordinary error; raise Fatal where the process must not go on."""
    reason = f"{describe(error)} (during {phase})"
    out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if out_of_memory or "DefaultCPUAllocator: can't allocate memory" in reason:
        raise Fatal(impl, Status.OUT_OF_MEMORY, reason) from error
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as lost:
            raise Fatal(impl, Status.CRASHED, f"{reason}; the CUDA context is lost") from lost
    return reason


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that an error shows up in the call that caused it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Proof = dict[str, Any]
