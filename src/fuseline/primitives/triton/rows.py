"""How the Triton implementations of norms over rows launch: tiles, strides, constants.

Counts and strides reach the kernels unspecialised: a new batch size compiles nothing. What a wide
memory access needs to know of them is VEC, which divides the row length and row strides.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton

Wrap = Callable[[Any], Any]
Grid = tuple[int, ...]


class Tile(NamedTuple):
    """Rows up to `row` elements run in programs of `size` elements (one long row, many short)."""

    row: int
    size: int
    warps: int
    stages: int = 1
    programs: int = 1  # resident on each SM: the persistent backward grid is one wave of them


def whole_rows(n_cols: int, tiles: tuple[Tile, ...]) -> Tile | None:
    """The smallest tile that holds a whole row, or None."""
    return next((tile for tile in tiles if n_cols <= tile.row), None)


def tile_meta(n_cols: int, tile: Tile) -> dict[str, int]:
    """A kernel's ROWS, BLOCK and warps for rows of this length."""
    block = triton.next_power_of_2(max(n_cols, 1))
    return {"ROWS": tile.size // block, "BLOCK": block, "num_warps": tile.warps}


@lru_cache(maxsize=1024)
def halves(eps: float) -> tuple[int, int]:
    """The bits of a double as two signed 32-bit numbers; Inductor takes no larger constants."""
    low, high = struct.unpack("<ii", struct.pack("<d", eps))
    return high, low


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """SM count; 2 for the interpreter, which has none."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def vec(x: torch.Tensor, *steps: int) -> int:
    """Elements of one memory access: at most 16 bytes, dividing every step between rows."""
    return math.gcd(16 // x.element_size(), *steps)


def partial_rows(x: torch.Tensor, rows: int, programs: float) -> int:
    """Partial rows of dweight: as many as the device works on at once, or as there are tiles."""
    most = max(1, int(processors(x.device) * programs))
    tiles: int = torch.sym_min(triton.cdiv(x.shape[0], rows), most)
    return tiles


def launch(wrap: Wrap | None, kernel: Any, grid: Grid, *args: Any, **meta: int) -> None:
    """Runs kernel[grid](*args, **meta) on the device of the first argument."""
    device = args[0].device
    if wrap is not None:
        wrap(kernel)[grid](*args, **meta)
    elif device.type != "cuda" or device.index == torch.cuda.current_device():
        kernel[grid](*args, **meta)
    else:
        with torch.cuda.device(device):
            kernel[grid](*args, **meta)
