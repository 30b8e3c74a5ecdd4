"""The arguments of a call as its implementations see them, and its sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fuseline.ops.attention.impl_args import Call

Grads = tuple[Tensor, Tensor, Tensor]


class Packed(NamedTuple):
    """The operator's arguments, in their order; what comes after max_k is as in attention's."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int
    causal: bool
    scale: float | None
    left: int
    right: int
    dropout: float
    seed: int | None
    seed_tensor: Tensor | None
    deterministic: bool

    def of(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Call:
        """Return a call of attention with the same how."""
        return Call(q, k, v, mask, *self[7:])

    def together(self) -> Call:
        """Return all sequences as if they were one, in a batch of 1."""
        return self.of(*(batch_of(t) for t in self[:3]))

    def sequences(self) -> Iterator[tuple[slice, slice, Call]]:
        """Yield the queries and keys of each sequence, and its call; lengths come to the host."""
        starts_q, starts_k = starts_of(self.cu_q), starts_of(self.cu_k)
        for i in range(len(starts_q) - 1):
            queries = slice(starts_q[i], starts_q[i + 1])
            keys = slice(starts_k[i], starts_k[i + 1])
            three = (self.q[queries], self.k[keys], self.v[keys])
            yield queries, keys, self.of(*map(batch_of, three))

    @property
    def in_line(self) -> bool:
        """Whether metadata say that a sequence has as many queries as keys."""
        a, b = self.cu_q, self.cu_k
        if a is b:
            return True
        # is_set_to() knows neither fake tensors nor vmap's.
        same = torch._C._is_alias_of(a, b)  # type: ignore[attr-defined]
        same = same and a.storage_offset() == b.storage_offset()
        return bool(same and a.shape == b.shape)


def starts_of(cu: Tensor) -> list[int]:
    """Return where sequences begin; torch's zero tensors have no memory to read that from."""
    return (cu.clone() if cu._is_zerotensor() else cu).tolist()


def batch_of(t: Tensor) -> Tensor:
    """Return (rows, heads, D) as (1, heads, rows, D)."""
    return t.transpose(0, 1).unsqueeze(0)


def rows_of(t: Tensor) -> Tensor:
    """Return (1, heads, rows, D) as (rows, heads, D)."""
    return t.squeeze(0).transpose(0, 1)


class Places(NamedTuple):
    """Where the rows of packed sequences lie in a batch that is as long as the longest.

    rows    (sequences, length): which row is there, any where none is
    there   (sequences, length): whether one is
    sequence, place  (rows,): whose row it is, and which of its
    """

    rows: Tensor
    there: Tensor
    sequence: Tensor
    place: Tensor

    @classmethod
    def of(cls, cu: Tensor, count: int, longest: int) -> Places:
        """Return those of `count` rows, by where sequences start."""
        starts, at = cu[:-1].long(), torch.arange(longest, device=cu.device)
        there = at < (cu[1:].long() - starts)[:, None]
        row = torch.arange(count, device=cu.device)
        sequence = torch.searchsorted(cu[1:].long(), row, right=True)
        rows = (starts[:, None] + at).clamp(max=max(count - 1, 0))
        return cls(rows, there, sequence, row - cu.long()[sequence])

    def padded(self, t: Tensor) -> Tensor:
        """Return (rows, heads, ...) as (sequences, heads, length, ...), 0 where no row is."""
        if t.shape[0] == 0:
            return t.new_zeros((*self.rows.shape, *t.shape[1:])).transpose(1, 2)
        there = self.there.view(*self.there.shape, *(1,) * (t.dim() - 1))
        return torch.where(there, t[self.rows], 0.0).transpose(1, 2)

    def packed(self, t: Tensor) -> Tensor:
        """Return what `padded` made as it was."""
        return t.transpose(1, 2)[self.sequence, self.place]
