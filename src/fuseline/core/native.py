"""Loads the one binary, and says what is in it, what is not, and why."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

LIBRARY = "libfuseline.so"
REBUILD = (
    "rebuild it against the installed torch, in the source tree: "
    "pip install --no-build-isolation --no-deps ."
)


@dataclass(frozen=True)
class Native:
    """State of the binary: "loaded", "missing" or "broken", with cause and remedy if not loaded."""

    state: str
    cause: str = ""
    remedy: str = ""
    path: Path | None = None
    build: dict[str, Any] = field(default_factory=dict)
    handle: ctypes.CDLL | None = None
    processor: str = ""  # why this processor runs none of the CPU kernels

    def has(self, device_type: str) -> bool:
        """Return whether the binary holds kernels for a device type ("cpu", "cuda")."""
        return self.why_not(device_type) is None

    def why_not(self, device_type: str) -> str | None:
        """Return why it holds none, and what fixes that; None if it does."""
        if self.state != "loaded":
            return f"fuseline's binary is {self.state}: {self.cause}; {self.remedy}"
        if device_type == "cpu" and self.processor:
            return f'{self.processor}; impl="eager" runs torch\'s own'
        if device_type == "cuda" and self.build["nvcc"] is None:
            return (
                "fuseline's binary was built without nvcc, so it holds no CUDA kernels; "
                f"with nvcc in PATH or CUDACXX {REBUILD}"
            )
        if device_type not in ("cpu", "cuda"):
            return f"fuseline's binary holds no kernels for device type {device_type!r}"
        return None


def _find() -> Path | None:
    # Editable installs keep the binary apart from the sources; the package's path lists both.
    spec = importlib.util.find_spec("fuseline")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        if (path := Path(folder) / LIBRARY).is_file():
            return path.resolve()
    return None


def operators() -> list[str]:
    """Return the qualified names of all operators that this process has so far."""
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return names


def _is_cut_short(path: Path) -> bool:
    """Return whether an ELF file ends before its section headers: mapping it kills the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False  # the loader says what is wrong
    (offset,) = struct.unpack_from("<Q", header, 0x28)
    size, count = struct.unpack_from("<HH", header, 0x3A)
    end: int = offset + size * count
    return path.stat().st_size < end


@cache
def status() -> Native:
    """Load the binary at the first call; return its state."""
    path = _find()
    if path is None:
        return Native("missing", f"no {LIBRARY} in the installed package", REBUILD)
    # A second definition of the same operators aborts the process instead of raising.
    loaded_before = any(Path(known).resolve() == path for known in torch.ops.loaded_libraries)
    if not loaded_before and any(n.startswith("fuseline::") for n in operators()):
        return Native("broken", "another copy of fuseline is loaded in this process",
                      "remove one of the two installations", path)  # fmt: skip
    if _is_cut_short(path):
        return Native("broken", f"{path.name} is cut short", REBUILD, path)
    try:
        torch.ops.load_library(str(path))
        handle = ctypes.CDLL(str(path))
        handle.fuseline_build_info.restype = ctypes.c_char_p
        handle.fuseline_copies.restype = ctypes.c_int64
        handle.fuseline_copied_bytes.restype = ctypes.c_int64
        handle.fuseline_debug_fill.argtypes = (ctypes.c_bool,)
        handle.fuseline_served.restype = ctypes.c_int64
        handle.fuseline_served.argtypes = (ctypes.c_char_p,) * 3
        handle.fuseline_why_no_cpu_isa.restype = ctypes.c_char_p
        build = json.loads(handle.fuseline_build_info())
        processor = (handle.fuseline_why_no_cpu_isa() or b"").decode()
    except (OSError, AttributeError, ValueError) as error:
        cause = error.__cause__ or error
        return Native("broken", f"{path.name} does not load: {cause}", REBUILD, path)
    return Native("loaded", path=path, build=build, handle=handle, processor=processor)


def why_no_kernel(operator: str, device_type: str) -> str | None:
    """Return why the binary has no such kernel of an operator
    (a qualified name); None if it has.
    """
    reason = status().why_not(device_type)
    if reason is None and not has_kernel(operator, device_type):
        reason = f"fuseline's binary holds no {device_type} kernel of {operator}"
    return reason


def has_kernel(operator: str, device_type: str) -> bool:
    """Return whether torch has a kernel of an operator (a qualified name) for a device type."""
    key = device_type.upper()
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)
    return found


_python_copies = 0


def count_copy() -> None:
    """Count a layout copy made in Python (those in C++ count themselves)."""
    global _python_copies
    _python_copies += 1


def copies() -> int:
    """Return the layout copies made by all operators of this process so far."""
    handle = status().handle
    return _python_copies + (int(handle.fuseline_copies()) if handle else 0)


def copied_bytes() -> int:
    """Return the bytes of those copies that torch did not see: by the binary's own code."""
    handle = status().handle
    return int(handle.fuseline_copied_bytes()) if handle else 0


def debug_fill(on: bool) -> None:
    """Fill what the binary allocates with NaN, or -1 where a dtype has none, so that elements that
    are not written show.
    """
    handle = status().handle
    if handle:
        handle.fuseline_debug_fill(on)
