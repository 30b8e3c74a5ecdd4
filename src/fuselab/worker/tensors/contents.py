"""New contents at the addresses of a set of inputs, with and without a trace of the writing.

A tensor's version counter tells that it was written through that tensor or a view of it. Writes
through its `data`, which has a counter of its own, leave address and version as they were: results
kept by these are those of other contents then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from torch import Tensor

# Of the elements of a tensor, one in so many is enough to make every kept result wrong, and too
# little to be worth anything in a cache.
PART = 256
_RANDOM = random.SystemRandom()

Named = Mapping[str, Tensor]


def fill(into: Named, source: Named, silent: bool = False) -> None:
    """Copy the tensors of the same names; `silent`: without a new version."""
    for name, tensor in source.items():
        overwrite(into[name].data if silent else into[name], tensor)


def overwrite(into: Tensor, source: Tensor) -> None:
    """Copy the elements of a tensor of the same shape; `into` may be a view that repeats some."""
    for dim, stride in enumerate(into.stride()):
        if stride == 0 and into.shape[dim] > 1:
            into, source = into.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    into.copy_(source)


def mix(into: Named, source: Named) -> dict[str, tuple[Tensor, Tensor]]:
    """Silently replace a small part of each floating tensor by another place of the source's.

    Return both parts by name, to see later whether somebody wrote there.
    """
    parts = {
        name: _parts(into[name].data, tensor)
        for name, tensor in source.items()
        if tensor.is_floating_point() and tensor.numel()
    }
    for mine, theirs in parts.values():
        mine.copy_(theirs)
    return parts


def _parts(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Return a random part of one tensor and one of the same shape, elsewhere in the other."""
    wanted = 1 / PART
    for dim, (size, stride) in enumerate(zip(mine.shape, mine.stride(), strict=True)):
        if stride == 0 and size > 1:
            mine, theirs = mine.narrow(dim, 0, 1), theirs.narrow(dim, 0, 1)
        elif wanted < 1:
            length = max(1, math.ceil(size * wanted))
            wanted *= size / length
            places = size - length + 1
            a = _RANDOM.randrange(places)
            # The same place of what was made from one source would leave it as it is.
            b = (a + 1 + _RANDOM.randrange(places - 1)) % places if places > 1 else a
            mine, theirs = mine.narrow(dim, a, length), theirs.narrow(dim, b, length)
    return mine, theirs
