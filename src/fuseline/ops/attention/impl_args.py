"""The arguments of a call as its implementations see them, and what these share."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor

from fuseline.core import native
from fuseline.primitives import philox

Grads = tuple[Tensor, Tensor, Tensor, Tensor]
HALVES = (torch.float16, torch.bfloat16)
# No scale that float32 has is smaller.
_SMALLEST = 2.0**-126


class Call(NamedTuple):
    """The operator's arguments, in their order.

    left, right  the window: a query i sees the keys j with i - left <= j <= i + right; negative:
                 without bound
    seed         of dropout: a number, or None and a tensor that has it
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None
    left: int
    right: int
    dropout: float
    seed: int | None
    seed_tensor: Tensor | None
    deterministic: bool

    @property
    def factor(self) -> float:
        """What products are multiplied by."""
        return float(int(self.q.shape[-1]) ** -0.5 if self.scale is None else self.scale)

    @property
    def band(self) -> tuple[int, int]:
        """The window's bounds, that of causal with them."""
        if not self.causal:
            return self.left, self.right
        return self.left, 0 if self.right < 0 else min(self.right, 0)

    def hidden(self) -> Tensor | None:
        """Return which keys lie outside the band of each query, None if none do."""
        left, right = self.band
        if left < 0 and right < 0:
            return None
        i = torch.arange(self.q.shape[-2], device=self.q.device)[:, None]
        j = torch.arange(self.k.shape[-2], device=self.q.device)
        beyond = j > i + right if right >= 0 else None
        before = j < i - left if left >= 0 else None
        if beyond is None or before is None:
            return before if beyond is None else beyond
        return beyond | before

    def sees_nothing(self) -> Tensor:
        """Return whether each query, (batch, heads, queries), sees no key through the mask."""
        assert self.mask is not None
        seen = self.mask if self.mask.dtype == torch.bool else self.mask > float("-inf")
        hidden = self.hidden()
        nothing = (seen if hidden is None else seen & ~hidden).any(-1).logical_not()
        return nothing.expand(self.q.shape[:3])

    def kept(self) -> Tensor | None:
        """Return what dropout multiplies probabilities by: 0, or 1 / (1 - dropout)."""
        if self.dropout <= 0.0:
            return None
        *_, batch, heads, rows, _ = self.q.shape
        # The annotation there is TorchScript's; in Python a tensor computes as a number does.
        seed = cast(int, self.seed if self.seed_tensor is None else self.seed_tensor)
        columns, device = self.k.shape[-2], self.q.device
        factor = philox.matrix_dropout_factor(
            batch * heads, rows, columns, self.dropout, seed, device
        )
        return factor.view(*factor.shape[:-3], batch, heads, rows, columns)

    def additive(self) -> Tensor | None:
        """Return the mask as a summand of q's dtype, (..., queries, keys) or what broadcasts."""
        if self.mask is None or self.mask.dtype != torch.bool:
            return self.mask if self.mask is None else self.mask.to(self.q.dtype)
        zeros = torch.zeros(self.mask.shape, dtype=self.q.dtype, device=self.q.device)
        return zeros.masked_fill_(self.mask.logical_not(), float("-inf"))


def unserved(c: Call, dtypes: tuple[torch.dtype, ...], longest: int) -> str | None:
    """Return why a library's attention does not serve a call: dtype, head dimension, scale, window,
    what is drawn, or nothing to compute.
    """
    if c.q.dtype not in dtypes:
        have = " or ".join(str(dtype) for dtype in dtypes)
        return f"q has dtype {c.q.dtype}, expected {have}"
    if c.q.shape[3] > longest:
        return f"the head dimension is {c.q.shape[3]}, expected at most {longest}"
    if c.scale is not None and not c.scale > _SMALLEST:
        return f"scale is {c.scale}, expected one above 0: it hides keys before it multiplies"
    if c.left >= 0 or c.right >= 0:
        return "it has no window"
    if c.dropout > 0:
        return "its dropout draws by a generator of its own"
    return "q or k is empty" if c.q.numel() == 0 or c.k.numel() == 0 else None


def in_packs(*tensors: Tensor) -> bool:
    """Whether rows of half types are contiguous and begin at multiples of 16 bytes."""
    for t in tensors:
        batch, head, row, last = t.stride()
        if last != 1 or batch % 8 or head % 8 or row % 8 or t.storage_offset() % 8:
            return False
        if not (batch and head and row):
            return False
    return True


def readable(t: Tensor) -> Tensor:
    """Return the tensor itself if rows are contiguous, its own and those of torch.empty_like of it,
    else a copy.
    """
    *steps, last = t.stride()
    if ((last == 1 and 1 not in steps) or t.shape[-1] == 1) and not t.is_neg():
        return t
    native.count_copy()
    return t.resolve_neg().contiguous()


def without_gradient(dq: Tensor, lse: Tensor) -> Tensor:
    """Return dq with 0 for the queries that see nothing, whatever came of the infinity there."""
    return dq.masked_fill_((lse == float("-inf")).unsqueeze(-1), 0.0)


def laid_as(t: Tensor, like: Tensor) -> Tensor:
    """Return what an implementation made, in the layout that torch.empty_like(like) has."""
    if t.stride() == _dense(like.shape, like.stride()):
        return t
    native.count_copy()
    return torch.empty_like(like).copy_(t)


@lru_cache(maxsize=1024)
def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()
