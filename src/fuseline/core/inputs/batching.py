"""What vmap rules of operators on rows need: the batch as one more leading dimension."""

from __future__ import annotations

from torch import Tensor


def unbatched(t: Tensor, batch_dim: int | None) -> Tensor:
    """Return what one element of a batch sees of a tensor."""
    return t if batch_dim is None else t.select(batch_dim, 0)


def move_batch_dim_to_front(t: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """Return the tensor with the batch as its first dimension, expanded if it has none."""
    return t.expand(size, *t.shape) if batch_dim is None else t.movedim(batch_dim, 0)


def move_weight_batch_to_front(weight: Tensor, batch_dim: int, dims: int) -> Tensor:
    """Return a batch of weights that broadcasts over rows of `dims` dimensions, batch included."""
    weight = weight.movedim(batch_dim, 0)
    return weight.view(weight.shape[0], *(1,) * (dims - 2), weight.shape[-1])
