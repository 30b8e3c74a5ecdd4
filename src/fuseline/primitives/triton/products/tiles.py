"""The tile a product is cut into: a function of its sizes, so that nothing is tried in a call."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """A program's tile of the result, m x n, of which it adds up k terms at a time.

    parts     the tile is stored in so many parts, each through shared memory
    programs  resident on each SM: one stores while another multiplies
    speed     of its multiplications, against the fastest tile's
    ends      terms that could be added up while a tile begins and ends
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    parts: int
    programs: int
    speed: float
    ends: int


class Kind(NamedTuple):
    """What is multiplied in one way: its tiles, and whether a and b may lie transposed, by
    preference.
    """

    tiles: tuple[Tile, ...]
    left: tuple[bool, ...]
    right: tuple[bool, ...]


HALF = Kind(
    (
        Tile(128, 256, 64, 8, 4, 2, 1, 1.0, 190),
        Tile(128, 128, 64, 4, 3, 2, 2, 0.95, 160),
        Tile(64, 128, 64, 4, 4, 1, 2, 0.65, 120),
        Tile(128, 64, 64, 4, 4, 1, 2, 0.57, 120),
        Tile(64, 64, 64, 4, 4, 1, 2, 0.45, 120),
    ),
    (False, True),
    (False, True),
)
# Hopper multiplies TF32 along rows of both operands; 4096 x 4096 x 4096 took 3.5 times as long with
# a b whose rows lie in memory, more than a copy.
TF32 = Kind(
    (
        Tile(128, 256, 32, 8, 3, 2, 1, 1.0, 100),
        Tile(128, 128, 32, 8, 4, 1, 1, 0.8, 100),
        Tile(64, 128, 32, 4, 3, 1, 2, 0.6, 100),
        Tile(64, 64, 32, 4, 3, 1, 2, 0.5, 100),
    ),
    (False,),
    (True,),
)
# Without tensor cores an order of its own takes registers that there are not.
IEEE = Kind(
    (Tile(128, 128, 16, 8, 3, 1, 1, 1.0, 20), Tile(64, 64, 16, 4, 3, 1, 2, 0.85, 20)),
    (False,),
    (False,),
)
# Terms that could be added up while GELU is computed.
_GELU = 190


def tile_of(batches: int, m: int, n: int, k: int, act: str, kind: Kind, processors: int) -> Tile:
    """Return the tile with which a product of batches x (m, k) x (k, n) ends first.

    All SMs work on one round of tiles after the other, the last of which may be smaller; the first
    of equals is taken. A size that a compiler knows as a symbol counts as large.
    """
    if not all(type(size) is int for size in (batches, m, n, k)):
        return kind.tiles[0]
    terms = k + (_GELU if act.startswith("gelu") else 0)

    def time(tile: Tile) -> float:
        rounds = -(-count(batches, m, n, tile) // processors)
        return rounds * tile.m * tile.n * (terms + tile.ends) / tile.speed

    return min(kind.tiles, key=time)


def count(batches: int, m: int, n: int, tile: Tile) -> int:
    """Return the number of tiles."""
    return batches * -(-m // tile.m) * -(-n // tile.n)
