"""What the memory allows: plain copies and adds that move a given number of bytes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuselab.timers import Call
from fuselab.worker.inputs import MEMORY_SHARE, free_bytes
from fuseline.core.spec import Cost

# From this many bytes read per byte written, an add (two reads, one write) is the fairer limit.
ADD_FROM = 1.5
PATTERN = 1 << 20
ALIGNED = 16
PEAK_BYTES = 4 << 30
CPU_PEAK_BYTES = 512 << 20


class Streams:
    """Sets of buffers that `copy_` or `add` streams through, `nbytes` moved a call."""

    def __init__(self, mix: str, nbytes: int, dtype: torch.dtype, device: torch.device) -> None:
        self.mix = mix
        streams = 3 if mix == "2R1W" else 2
        # A copy of an odd number of bytes takes a slow path that says nothing about the memory.
        size = max(ALIGNED, nbytes // streams // ALIGNED * ALIGNED)
        self._length = size // dtype.itemsize
        self._streams, self._dtype, self._device = streams, dtype, device
        self._buffers: list[list[Tensor]] = []

    @property
    def cost(self) -> Cost:
        size = self._length * self._dtype.itemsize
        return Cost(size * (self._streams - 1), size, self._length if self.mix == "2R1W" else 0)

    def calls(self, count: int, sets: int) -> list[Call]:
        """Return `count` calls over `sets` rotating sets of buffers."""
        while len(self._buffers) < sets:
            self._buffers.append([self._fill() for _ in range(self._streams)])
        return [self._call(self._buffers[i % sets]) for i in reversed(range(count))]

    def _call(self, buffers: list[Tensor]) -> Call:
        *sources, out = buffers
        return _copy(sources[0], out) if len(sources) == 1 else _add(sources[0], sources[1], out)

    def _fill(self) -> Tensor:
        """Return random data, a short pattern repeated: drawing gigabytes would take seconds."""
        pattern = torch.randn(min(self._length, PATTERN), device=self._device).to(self._dtype)
        repeats = -(-self._length // pattern.numel())
        return pattern.repeat(repeats)[: self._length]


def mix_of(cost: Cost) -> str:
    """Return "2R1W" where the case reads clearly more than it writes, else "1R1W"."""
    return "2R1W" if cost.bytes_read >= ADD_FROM * cost.bytes_written else "1R1W"


def peak_bytes(device: torch.device) -> tuple[int, str]:
    """Return the bytes that the fixed recipe moves here, and why if these are not 4 GiB."""
    room = int(MEMORY_SHARE * free_bytes(device))
    if device.type == "cpu" and room >= CPU_PEAK_BYTES:
        return CPU_PEAK_BYTES, f"moved {CPU_PEAK_BYTES >> 20} MiB: 4 GiB take a CPU too long"
    if room < PEAK_BYTES:
        return room, f"moved {room >> 20} MiB: 4 GiB are more than a fifth of the free memory"
    return PEAK_BYTES, ""


def _copy(source: Tensor, out: Tensor) -> Callable[[], object]:
    return lambda: out.copy_(source)


def _add(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    return lambda: torch.add(a, b, out=out)
