"""Linux perf_event_open(2) through ctypes: one event, opened, read, closed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# linux/perf_event.h; asm/unistd.h
HARDWARE = 0
INSTRUCTIONS = 1
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_ATTR_BYTES = 128
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6
_NOWHERE = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)


class PerfError(RuntimeError):
    """The kernel refuses the event; the text says why, and what would mend it."""


class Event:
    """A counter that runs from now on; a context manager.

    Without a cpu: this process in user space, with the threads it starts later; else all that
    runs on the cpu, for events of memory controllers.
    """

    def __init__(self, kind: int, config: int, cpu: int = -1) -> None:
        attributes = bytearray(_ATTR_BYTES)
        struct.pack_into("<IIQ", attributes, 0, kind, _ATTR_BYTES, config)
        if cpu < 0:
            struct.pack_into("<Q", attributes, 40, _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV)
        self._fd = _open(attributes, 0 if cpu < 0 else -1, cpu)

    def read(self) -> int:
        return int.from_bytes(os.read(self._fd, 8), "little")

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)


def refusal(kind: int, config: int, cpu: int = -1) -> str:
    """Return why the event cannot be opened here, or ""."""
    try:
        Event(kind, config, cpu).close()
    except PerfError as error:
        return str(error)
    return ""


def _open(attributes: bytearray, pid: int, cpu: int) -> int:
    number = _SYSCALL.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        raise PerfError(f"no perf_event on {platform.system()} {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTR_BYTES).from_buffer(attributes)
    fd = libc.syscall(number, buffer, pid, cpu, -1, 0)
    if fd < 0:
        raise PerfError(_why(ctypes.get_errno(), cpu))
    return int(fd)


def _why(number: int, cpu: int) -> str:
    if number in (errno.EACCES, errno.EPERM):
        level = 2 if cpu < 0 else 0
        return f"perf_event is not allowed; sudo sysctl kernel.perf_event_paranoid={level}"
    if number in _NOWHERE:
        return "perf_event has no such counter here: a virtual machine hides those of the CPU"
    return f"perf_event: {os.strerror(number)}"
