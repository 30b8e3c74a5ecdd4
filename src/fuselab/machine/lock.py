"""One measurement at a time on a device: a lock that the kernel frees when its holder ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from fuselab.output.plain import say
from fuselab.processes import caches

# Where the locks lie, if not in the lab's cache folder; it must exist.
FOLDER = "FUSELAB_LOCK_DIR"
_WORDS = 100


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Keep other measurements of this user away from a device (cpu, cuda:N) while it is open.

    Waits for the one that has it, and says so on stderr. A process that takes the lock a second
    time waits for itself. CacheError where the lab's cache folder is not ours alone.
    """
    # The descriptor is closed in every program that this process starts, so that none of them
    # keeps the lock when this process dies.
    file = os.open(_path(device), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _acquire(file, device)
        yield
    finally:
        os.close(file)


@contextmanager
def host_lock() -> Iterator[None]:
    """Keep other measurements of host time on this machine away while it is open, for moments."""
    file = os.open(_path("host"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _acquire(file: int, device: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for {device}: {_holder(file)}")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:  # a file system without locks
        say(f"{device} is not locked: {error}; nothing keeps another measurement away")
    now = datetime.now().isoformat(" ", "seconds")
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} measures on it, since {now}".encode(), 0)


def _holder(file: int) -> str:
    return os.pread(file, _WORDS, 0).decode(errors="replace") or "another process measures on it"


def _path(device: str) -> Path:
    caches.variables()  # makes and checks the folder
    folder = Path(os.environ.get(FOLDER) or caches.root())
    kind, _, index = device.partition(":")
    # Several machines may share a home, but no GPU.
    name = (kind == "cuda" and _uuid(int(index or 0))) or f"{device}-{platform.node()}"
    return folder / (re.sub(r"[^\w.-]", "-", name) + ".lock")


def _uuid(index: int) -> str:
    """Return the UUID of the GPU that has this number for CUDA in this process, or "".

    Only the driver knows: CUDA_VISIBLE_DEVICES picks, and CUDA's order is not NVML's. Asking
    makes no context.
    """
    number, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        error = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(number), index)
            or driver.cuDeviceGetUuid_v2(ctypes.byref(found), number)
        )
    except (OSError, AttributeError):  # no driver, or one of before 2021
        return ""
    return "" if error else f"GPU-{uuid.UUID(bytes=bytes(found))}"
