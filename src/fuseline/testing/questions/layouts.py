"""Memory layouts that a tensor may come in, each filled with NaN where it has gaps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def relayouts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Return the layouts that the tensor's rank allows, by name.

    All hold the values of `tensor`, except "expanded", where the first slice stands for all.
    """
    if tensor.dim() == 0 or tensor.numel() == 0:
        return
    *lead, length = tensor.shape
    if lead:
        # 16 keeps a vector load aligned in every row, 3 in none but the first.
        yield "row stride + 16", _fill(_gaps(tensor, *lead, length + 16)[..., :length], tensor)
        yield "row stride + 3", _fill(_gaps(tensor, *lead, length + 3)[..., :length], tensor)
        columns = _gaps(tensor, *lead[:-1], length, lead[-1]).transpose(-1, -2)
        yield "transposed", _fill(columns, tensor)
    if len(lead) > 1:
        swapped = _gaps(tensor, lead[1], lead[0], *lead[2:], length).transpose(0, 1)
        yield "leading dims swapped", _fill(swapped, tensor)
        sliced = _gaps(tensor, lead[0], lead[1] + 1, *lead[2:], length)[:, : lead[1]]
        yield "leading dim sliced", _fill(sliced, tensor)
    yield "last stride 2", _fill(_gaps(tensor, *lead, 2 * length)[..., ::2], tensor)
    yield "misaligned", misaligned(tensor)
    yield "expanded", tensor[:1].expand(tensor.shape)


def misaligned(tensor: Tensor) -> Tensor:
    """Return the tensor, contiguous, one element past the start of its allocation."""
    return _fill(_gaps(tensor, tensor.numel() + 2)[1:-1].view(tensor.shape), tensor)


def _gaps(tensor: Tensor, *shape: int) -> Tensor:
    value = float("nan") if tensor.is_floating_point() else 1
    return torch.full(shape, value, dtype=tensor.dtype, device=tensor.device)


def _fill(view: Tensor, tensor: Tensor) -> Tensor:
    return view.copy_(tensor)
