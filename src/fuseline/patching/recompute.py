"""A layer whose input is computed again in backward, not kept for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def recomputed(
    layer: Callable[[Tensor], Tensor], y: Tensor, make: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """Return layer(y) of y = make(*inputs), for whose backward the inputs are kept and not y.

    That saves memory where something keeps the inputs anyway. Hooks of others over what is saved,
    as checkpoints and offloading have, see y as before.
    """
    if not (torch.is_grad_enabled() and y.requires_grad and y.numel() and _can_hook()):
        return layer(y)
    saved = _Saved(y, make, inputs)
    with saved_tensors_hooks(saved.pack, saved.unpack):
        return layer(y)


def _can_hook() -> bool:
    if torch._C._are_functorch_transforms_active():
        return False
    graph: Any = torch._C._autograd
    return graph._saved_tensors_hooks_is_enabled() and (
        graph._top_saved_tensors_default_hooks(True) is None
    )


class _Saved:
    """What a layer saves for its backward, y by the inputs it is made of.

    With hooks torch does not check that nothing was written to in between: `_Version` does.
    """

    def __init__(self, y: Tensor, make: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        self._y = y.data_ptr(), y.numel(), y.dtype  # y itself must not be kept
        self._make, self._inputs = make, [_Version(t.detach()) for t in inputs]

    def pack(self, saved: Tensor) -> Any:
        """Return what is kept of a tensor: of y, which may be seen in another shape, the shape."""
        if (saved.data_ptr(), saved.numel(), saved.dtype) == self._y:
            return saved.size(), saved.stride()
        return _Version(saved)

    def unpack(self, kept: Any) -> Tensor:
        if isinstance(kept, _Version):
            return kept.tensor()
        with torch.no_grad():
            return self._make(*(one.tensor() for one in self._inputs)).as_strided(*kept)


class _Version:
    """A tensor that must not be written to."""

    def __init__(self, of: Tensor) -> None:
        self._of, self._version = of, of._version

    def tensor(self) -> Tensor:
        """Return it; raise RuntimeError if it was written to."""
        if self._of._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {tuple(self._of.shape)} is at version "
                f"{self._of._version}, expected version {self._version}"
            )
        return self._of
