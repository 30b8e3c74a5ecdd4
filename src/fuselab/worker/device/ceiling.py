"""What the memory allows: streams of a known number of bytes in four mixes of reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fuselab.timers import Call
from fuselab.worker.tensors.inputs import MEMORY_SHARE, free_bytes
from fuseline.core import native
from fuseline.core.specs.spec import Cost

# Streams read and written.
MIXES: Mapping[str, tuple[int, int]] = {
    "1R0W": (1, 0),
    "3R1W": (3, 1),
    "2R1W": (2, 1),
    "1R1W": (1, 1),
}
PATTERN = 1 << 20
ALIGNED = 16
# A copy of a size that is no multiple of this takes 2.1 us more on an H200 (5.5 instead of 3.4 us
# for 8 MiB), whatever the size (results/h200/lab-2026-11-22/copies.txt).
WHOLE, LONG = 4096, 1 << 20
# Half, a third and a quarter of it are multiples of 512: buffers begin as well aligned as
# allocations do.
PITCH = 6144
PEAK_BYTES = 4 << 30
WORD = 4
OWN_BELOW = 8 << 20


class Streams:
    """Sets of float32 buffers that a plain operation streams through, `nbytes` moved a call.

    `memory` holds what lies under the sets; two Streams of equal `nbytes` may share it. `own`
    takes the lab's kernels in place of torch's.
    """

    def __init__(
        self,
        mix: str,
        nbytes: int,
        device: torch.device,
        memory: list[Tensor] | None = None,
        own: bool = False,
    ) -> None:
        self.mix = mix
        self._reads, self._writes = MIXES[mix]
        row = nbytes // (self._reads + self._writes)
        step = WHOLE if row >= LONG else ALIGNED
        self._length = max(step, row // step * step) // WORD
        self._nbytes, self._device = nbytes, device
        self._memory: list[Tensor] = [] if memory is None else memory
        self._operation = (_OWN if own else _OPERATIONS)[mix]

    @property
    def cost(self) -> Cost:
        row = self._length * WORD
        return Cost(row * self._reads, row * self._writes, self._length * (self._reads - 1))

    def calls(self, count: int, sets: int) -> list[Call]:
        """Return `count` calls over `sets` rotating sets of buffers."""
        while len(self._memory) < sets:
            self._memory.append(self._fill())
        return [self._call(self._memory[i % sets]) for i in reversed(range(count))]

    def _call(self, memory: Tensor) -> Call:
        rows = [row[: self._length] for row in memory.view(self._reads + self._writes, -1)]
        out = rows.pop() if self._writes else memory.new_empty(ALIGNED // WORD)
        return self._operation(rows, out)

    def _fill(self) -> Tensor:
        """Return random data, a short pattern repeated: drawing gigabytes would take seconds."""
        length = max(1, -(-self._nbytes // PITCH)) * PITCH // WORD
        pattern = torch.randn(min(length, PATTERN), dtype=torch.float32, device=self._device)
        return pattern.repeat(-(-length // pattern.numel()))[:length]


def mix_of(cost: Cost) -> str:
    """Return the mix whose share of writes is nearest to the case's."""
    share = cost.bytes_written / max(1, cost.bytes)
    return min(MIXES, key=lambda mix: abs(MIXES[mix][1] / sum(MIXES[mix]) - share))


def better(mix: str, nbytes: int, device: torch.device) -> bool:
    """Say whether the lab's kernels are here and stream faster than torch's.

    On an H200 they do where nothing is written (by 5 to 210 %) and at 4 MiB (by 2 to 12 %); else
    torch's are up to 5 % faster, or within 1 % (results/h200/lab-2026-11-22/doctor.txt).
    """
    here = device.type == "cuda" and native.status().has("cuda")
    return here and (mix == "1R0W" or nbytes < OWN_BELOW)


def peak_bytes(device: torch.device) -> tuple[int, str]:
    """Return the bytes that the fixed recipe moves here, and why if these are not 4 GiB."""
    room = int(MEMORY_SHARE * free_bytes(device))
    if room < PEAK_BYTES:
        return room, f"moved {room >> 20} MiB: 4 GiB are more than a fifth of the free memory"
    return PEAK_BYTES, ""


Operation = Callable[[list[Tensor], Tensor], Call]


def _read(rows: list[Tensor], out: Tensor) -> Call:
    total = out[0]
    return lambda: torch.sum(rows[0], dim=0, out=total)


def _copy(rows: list[Tensor], out: Tensor) -> Call:
    return lambda: out.copy_(rows[0])


def _add(rows: list[Tensor], out: Tensor) -> Call:
    return lambda: torch.add(*rows, out=out)


def _add3(rows: list[Tensor], out: Tensor) -> Call:
    return lambda: torch.addcmul(*rows, out=out)


_OPERATIONS: Mapping[str, Operation] = {
    "1R0W": _read,
    "1R1W": _copy,
    "2R1W": _add,
    "3R1W": _add3,
}
_NAMES = {"1R0W": "read", "1R1W": "copy", "2R1W": "add", "3R1W": "add3"}


def _of_ours(name: str) -> Operation:
    return lambda rows, out: lambda: getattr(torch.ops.fuselab, name)(*rows, out)


_OWN: Mapping[str, Operation] = {mix: _of_ours(name) for mix, name in _NAMES.items()}
