"""Inputs of one group: several sets of the same size that rotate, so that caches stay cold."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Inputs

MEMORY_SHARE = 0.2
COLD_FACTOR = 3
CPU_SET_BYTES = 128 << 20
CPU_SETS = 20
# Results, saved tensors and what an implementation allocates inside, as multiples of the inputs.
HEADROOM = 5


def seed(key: str, index: int) -> int:
    """Return the seed of an input set: a function of the group's text key alone."""
    digest = hashlib.sha256(f"{key}#{index}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def generator(key: str, index: int, device: torch.device) -> torch.Generator:
    """Return a generator of its own for each text key and index."""
    return torch.Generator(device).manual_seed(seed(key, index))


def tensors(inputs: Inputs) -> dict[str, Tensor]:
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


def nbytes(values: Any) -> int:
    """Return the bytes of the tensors among the values."""
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last cache: L2 on a GPU, L3 on a CPU (32 MiB where unknown)."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    for level in ("index3", "index2"):
        size = Path(f"/sys/devices/system/cpu/cpu0/cache/{level}/size")
        if size.is_file():
            return int(size.read_text().strip().rstrip("K")) << 10
    return 32 << 20


def how_many(set_bytes: int, device: torch.device, calls: int) -> int:
    """Return how many sets rotate: enough to be cold where memory allows, at most one a call."""
    set_bytes = max(1, set_bytes)
    enough = COLD_FACTOR * cache_bytes(device) // set_bytes + 1
    room = int(MEMORY_SHARE * free_bytes(device) / (HEADROOM * set_bytes))
    if device.type == "cpu":
        room = min(room, CPU_SET_BYTES // set_bytes, CPU_SETS)
    return max(1, min(calls, enough, room))
