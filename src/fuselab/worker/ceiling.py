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
# Half and third of it are multiples of 512: buffers begin as well aligned as allocations do.
PITCH = 3072
PEAK_BYTES = 4 << 30


class Streams:
    """Sets of buffers that `copy_` or `add` streams through, `nbytes` moved a call.

    `memory` holds what lies under the sets; two Streams of equal `nbytes` may share it.
    """

    def __init__(
        self,
        mix: str,
        nbytes: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: list[Tensor] | None = None,
    ) -> None:
        self.mix = mix
        self._streams = 3 if mix == "2R1W" else 2
        # A copy of an odd number of bytes takes a slow path that says nothing about the memory.
        self._length = max(ALIGNED, nbytes // self._streams // ALIGNED * ALIGNED) // dtype.itemsize
        self._nbytes, self._dtype, self._device = nbytes, dtype, device
        self._memory: list[Tensor] = [] if memory is None else memory

    @property
    def cost(self) -> Cost:
        size = self._length * self._dtype.itemsize
        return Cost(size * (self._streams - 1), size, self._length if self.mix == "2R1W" else 0)

    def calls(self, count: int, sets: int) -> list[Call]:
        """Return `count` calls over `sets` rotating sets of buffers."""
        while len(self._memory) < sets:
            self._memory.append(self._fill())
        return [self._call(self._memory[i % sets]) for i in reversed(range(count))]

    def _call(self, memory: Tensor) -> Call:
        *sources, out = (row[: self._length] for row in memory.view(self._streams, -1))
        return _copy(sources[0], out) if len(sources) == 1 else _add(sources[0], sources[1], out)

    def _fill(self) -> Tensor:
        """Return random data, a short pattern repeated: drawing gigabytes would take seconds."""
        length = max(1, -(-self._nbytes // PITCH)) * PITCH // self._dtype.itemsize
        pattern = torch.randn(min(length, PATTERN), device=self._device).to(self._dtype)
        return pattern.repeat(-(-length // pattern.numel()))[:length]


def mix_of(cost: Cost) -> str:
    """Return "2R1W" where the case reads clearly more than it writes, else "1R1W"."""
    return "2R1W" if cost.bytes_read >= ADD_FROM * cost.bytes_written else "1R1W"


def peak_bytes(device: torch.device) -> tuple[int, str]:
    """Return the bytes that the fixed recipe moves here, and why if these are not 4 GiB."""
    room = int(MEMORY_SHARE * free_bytes(device))
    if room < PEAK_BYTES:
        return room, f"moved {room >> 20} MiB: 4 GiB are more than a fifth of the free memory"
    return PEAK_BYTES, ""


def _copy(source: Tensor, out: Tensor) -> Callable[[], object]:
    return lambda: out.copy_(source)


def _add(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    return lambda: torch.add(a, b, out=out)
