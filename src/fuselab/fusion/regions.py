"""Bytes of tensors, each piece of memory counted once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in a nest of arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    """Return what two tensors have in common if they share memory."""
    return tensor.untyped_storage().data_ptr()


def nbytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements, repeated ones (stride 0) once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count * tensor.element_size()


class Regions:
    """A set of pieces of memory."""

    def __init__(self, found: Iterable[Tensor] = ()) -> None:
        self._held: dict[int, tuple[int, dict[Any, int]]] = {}
        for tensor in found:
            self.add(tensor, nbytes(tensor))

    def add(self, tensor: Tensor, count: int) -> None:
        """Add a tensor of which so many bytes are meant; the most counts if it is there already."""
        whole = tensor.untyped_storage().nbytes()
        _, pieces = self._held.setdefault(storage(tensor), (whole, {}))
        key = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        pieces[key] = max(count, pieces.get(key, 0))

    @property
    def nbytes(self) -> int:
        """Bytes of the set; pieces of one storage that overlap count as much as that at most."""
        return sum(min(whole, sum(pieces.values())) for whole, pieces in self._held.values())
