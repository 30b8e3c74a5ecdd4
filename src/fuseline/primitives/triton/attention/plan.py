"""What a call's launches depend on, and what they are launched with: metadata alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fuseline.primitives import philox
from fuseline.primitives.triton.attention.kernels import BOOL_MASK, FLOAT_MASK, NO_MASK
from fuseline.primitives.triton.rows import halves, power_of_2, vec_of

Ints = tuple[int, ...]

# Wider than any sequence.
_FAR = 1 << 30


class Tile(NamedTuple):
    """What a kernel is compiled for: queries and keys of a block, warps, stages of its loops."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class Tiles(NamedTuple):
    """Those of the forward, of dk and dv, and of dq."""

    fwd: Tile
    keys: Tile
    queries: Tile


class Options(NamedTuple):
    """How scores are made and what becomes of them; the same for forward and backward.

    A query i sees the keys j with i - left <= j <= i + right; negative: without bound.
    """

    scale: float
    left: int = -1
    right: int = -1
    dropout: float = 0.0


class Mask(NamedTuple):
    """A mask's dtype (uint8 of a boolean one), shape and strides."""

    dtype: torch.dtype
    shape: Ints
    strides: Ints


class Form(NamedTuple):
    """What the launches of a call depend on.

    q, k       shapes
    strides    those of q, k, v and of what lies by queries: out, or dout and out
    lengths    of packed sequences: how many, the most queries and the most keys of one
    precision  how fp32 is multiplied
    seed       "" where a number of 32 bits, else whence: "wide" number, "tensor"
    tma        whether operands are read through descriptors
    place      of the device, and whether all tensors are aligned to 16 bytes
    """

    dtype: torch.dtype
    q: Ints
    k: Ints
    strides: tuple[Ints, ...]
    mask: Mask | None
    options: Options
    lengths: tuple[int, int, int] | None
    precision: str
    seed: str
    tma: bool
    place: tuple[int, bool]

    @property
    def batch(self) -> int:
        return self.lengths[0] if self.lengths else self.q[0]

    @property
    def most(self) -> tuple[int, int]:
        """The most queries and keys of a sequence."""
        return self.lengths[1:] if self.lengths else (self.q[2], self.k[2])

    @property
    def kind(self) -> int:
        """The kernels' MASK."""
        if self.mask is None:
            return int(NO_MASK.value)
        return int((BOOL_MASK if self.mask.dtype == torch.uint8 else FLOAT_MASK).value)

    def places(self, *strides: Ints) -> Ints:
        """Return the steps of batch, head and row in tensors; packed sequences have no batch."""
        return tuple(0 if self.lengths and d == 0 else s[d] for s in strides for d in range(3))

    def counts(self, tiles: int, *rows: Ints) -> Ints:
        """Return the integers that the kernels over scores begin with.

        rows: steps of what has a number, or several, for each query.
        """
        heads, group = self.q[1], self.q[1] // self.k[1]
        o = self.options
        left, right = (bound if bound >= 0 else _FAR for bound in (o.left, o.right))
        begin = (heads, group, tiles, *self.most, left, right, *halves(o.scale))
        steps = self.places(*self.strides[:4])
        return (*begin, *steps, *(n for r in rows for n in r), *self._mask_steps(), *_draw(o))

    def constants(self, tile: Tile, *written: Ints) -> dict[str, Any]:
        """Return the constants of a kernel over scores; written: strides of what it writes."""
        o = self.options
        steps = self.places(*self.strides[:4], *written)
        return {
            "D": self.q[3],
            "MASK": self.kind,
            "MASK_VEC": self._mask_vec(),
            "DROP": o.dropout > 0.0,
            "LEFT": o.left >= 0,
            "RIGHT": o.right >= 0,
            "NEGATIVE": o.scale < 0.0,
            "VEC": vec_of(self.dtype, *steps),
            "TMA": self.tma,
            "PRECISION": self.precision,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_D": self.block_d,
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }

    def blocks(self, tile: Tile) -> tuple[list[int] | None, ...]:
        """Return which blocks descriptors are of: of q, k, v, the mask, what lies by queries, and a
        row's numbers.
        """
        if not self.tma:
            return ()
        by_queries, by_keys = ([1, 1, n, self.q[3]] for n in (tile.block_m, tile.block_n))
        return by_queries, by_keys, by_keys, None, by_queries, [tile.block_m]

    @property
    def block_d(self) -> int:
        return max(16, power_of_2(self.q[3]))

    def _mask_steps(self) -> Ints:
        """Return the steps of batch, head, query and key in the mask."""
        if self.mask is None:
            return (0, 0, 0, 0)
        own = [0 if n == 1 else s for n, s in zip(self.mask.shape, self.mask.strides, strict=True)]
        return (0,) * (4 - len(own)) + tuple(own)

    def _mask_vec(self) -> int:
        if self.mask is None:
            return 0
        *steps, last = self._mask_steps()
        return vec_of(self.mask.dtype, *steps) if last == 1 else 0


def _draw(options: Options) -> Ints:
    """Return the integers of dropout but for the seed."""
    if options.dropout <= 0.0:
        return (0, 0, 0)
    limit = philox.threshold(options.dropout)
    signed = limit - (1 << 32) if limit >= 1 << 31 else limit
    return (signed, *halves(philox.scale(options.dropout)))


# Measured on an H100 with descriptors: at most so long a head dimension, whether there is a bound
# to the right.
_HALF = {
    (64, False): Tiles(Tile(64, 128, 4, 2), Tile(64, 64, 4, 3), Tile(64, 64, 4, 2)),
    (64, True): Tiles(Tile(64, 128, 4, 2), Tile(128, 64, 4, 2), Tile(64, 64, 4, 2)),
    (128, False): Tiles(Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
    (128, True): Tiles(Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
}
# The same by pointers, and of longer head dimensions.
_HALF_POINTERS = {
    64: Tiles(Tile(128, 64, 4, 2), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Tiles(Tile(128, 128, 8, 2), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    256: Tiles(Tile(128, 64, 8, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
}
_SINGLE = {
    ("tf32", 64): Tiles(Tile(64, 64, 4, 2), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1)),
    ("tf32", 128): Tiles(Tile(64, 32, 4, 2), Tile(32, 64, 8, 1), Tile(64, 32, 8, 1)),
    ("tf32", 256): Tiles(Tile(64, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    ("tf32x3", 64): Tiles(Tile(64, 64, 4, 2), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1)),
    ("tf32x3", 128): Tiles(Tile(64, 32, 4, 2), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    ("tf32x3", 256): Tiles(Tile(16, 32, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}


def tiles_of(form: Form) -> Tiles:
    """Return what the kernels of a call are compiled for."""
    longest = max(64, form.block_d)
    if form.dtype == torch.float32:
        return _SINGLE[form.precision, longest]
    by_descriptors = form.tma and _HALF.get((longest, form.options.right >= 0))
    return by_descriptors or _HALF_POINTERS[longest]
