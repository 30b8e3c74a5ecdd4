"""The suite `wild`: problems drawn from a seed, each with a name that makes it again by itself.

A name is `wild:SHAPE`, then `.dimD` where the operator works along another dim than the last, then
`@LAYOUT` where its tensors are not dense, then `~VALUES` where they are not drawn from the normal
distribution: `wild:8192x577`, `wild:16x577x12.dim1@gap3.offset1`, `wild:64x1500~penalty`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuselab.errors import LabError

SUITE = "wild"
PREFIX = f"{SUITE}:"
DENSE = "contiguous"
CELLS = 200
MOST_BYTES = 256 << 20
MOST_ROWS, MOST_COLUMNS = 10**6, 1 << 20

# Sizes that models have, whose rows nobody rounds to a power of two.
SIZES: Mapping[str, tuple[int, ...]] = {
    "hidden size": (
        384,
        768,
        896,
        1152,
        1280,
        1536,
        1600,
        2560,
        2880,
        3072,
        3584,
        5120,
        6144,
        7168,
    ),
    "head size": (40, 64, 72, 80, 96, 128, 192, 256),
    "patches and one": (50, 65, 145, 197, 257, 325, 577, 730, 1025, 1370),
    "tokens": (77, 120, 333, 512, 1001, 2047, 4000),
    "audio frames": (80, 499, 750, 1500, 3000),
    "vocabulary": (30522, 32000, 32128, 49408, 50257, 51865, 65024, 128256, 151655, 151936, 256000),
    "classes": (2, 3, 10, 19, 21, 80, 100, 365, 1000, 21841),
    "experts": (8, 16, 60, 64, 128, 160, 256, 384),
}
EXAMPLE = "wild:16x577x12.dim1@gap3.offset1"
# Behind a random element of each row, what masks leave of scores: -Inf, or -1e4 where a penalty is
# added. Or scores far apart, most of whose exponentials underflow.
MASKED, PENALTY, PEAKED = VALUES = ("masked", "penalty", "peaked")
_OF_VALUES = 0.15  # of the problems have such
# By rank, of 20 problems.
_OFTEN = {1: 1, 2: 14, 3: 3, 4: 2}
RANKS = tuple(_OFTEN)
_RANKS = {"transposed": 2, "expanded": 2, "permuted": 4}
_DTYPES = {"bfloat16": 8, "float16": 5, "float32": 8, "float64": 2}
_BYTES = {"float64": 8, "float32": 4}
_GRAMMAR = re.compile(
    r"wild:(\d+(?:x\d+)*)(?:\.dim(\d+))?(?:@([a-z]+\d*(?:\.[a-z]+\d*)*))?(?:~([a-z]+))?"
)
_LAYOUT = re.compile(r"transposed|permuted|expanded|(?:step(\d+)|gap(\d+))?\.?(?:offset(\d+))?")


class WildError(LabError, ValueError):
    """A name of no problem, or an operator without any; the text says why."""

    code = 2


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in memory.

    word    "transposed": the last two dims are; "permuted": NHWC seen as NCHW; "expanded": one
            slice of the first dim stands for all; "": rows one behind the other
    step    elements from one of a row to the next
    gap     elements between the end of a row and the start of the next
    offset  elements from the start of the memory to the first
    """

    word: str = ""
    step: int = 1
    gap: int = 0
    offset: int = 0

    def __str__(self) -> str:
        parts = (
            self.word,
            f"step{self.step}" * (self.step > 1),
            f"gap{self.gap}" * (self.gap > 0),
            f"offset{self.offset}" * (self.offset > 0),
        )
        return ".".join(filter(None, parts)) or DENSE


@dataclass(frozen=True)
class Shape:
    """One problem: a shape, the dim that the operator works along (None: the last), a layout, and
    one of VALUES ("": normal).
    """

    sizes: tuple[int, ...]
    dim: int | None = None
    layout: Layout = Layout()
    values: str = ""

    @property
    def name(self) -> str:
        dim = "" if self.dim is None else f".dim{self.dim}"
        layout = "" if self.layout == Layout() else f"@{self.layout}"
        values = f"~{self.values}" if self.values else ""
        return f"{PREFIX}{'x'.join(map(str, self.sizes))}{dim}{layout}{values}"


@dataclass(frozen=True)
class Drawn:
    """A problem with the dtype and the direction it is measured in."""

    shape: Shape
    dtype: str
    direction: str


def parse(name: str) -> Shape:
    """Return the problem of that name; WildError where none has it."""
    found = _GRAMMAR.fullmatch(name)
    layout = found and _layout(found[3] or "")
    if found and layout is not None:
        sizes = tuple(map(int, found[1].split("x")))
        dim = None if found[2] is None else int(found[2])
        shape = Shape(sizes, dim, layout, found[4] or "")
        least = max(_RANKS.get(layout.word, 1), (dim or 0) + 1)
        # One name a problem: a gap of 0 is none.
        if shape.name == name and least <= len(sizes) and shape.values in ("", *VALUES):
            return shape
    raise WildError(
        f"case: got {name!r}, expected wild:SHAPE[.dimD][@LAYOUT][~VALUES], as in {EXAMPLE}"
    )


def draw(
    op: str,
    seed: int,
    cells: int,
    dtypes: Sequence[str],
    directions: Sequence[str],
    *,
    dims: bool,
    ranks: Sequence[int] = RANKS,
    rows_of: Sequence[tuple[int, ...]] = (),
    values: Sequence[str] = (),
) -> tuple[Drawn, ...]:
    """Return so many different problems of an operator; the same for the same arguments.

    dims     whether it takes a dim
    ranks    how many dimensions its tensors may have
    rows_of  the shapes that one row may have, where not any
    values   those of VALUES that it takes
    """
    random_, others = (random.Random(f"{SUITE}{part} {op} {seed}") for part in ("", " values"))
    weights = [_DTYPES.get(dtype, 1) for dtype in dtypes]
    found: dict[Drawn, None] = {}
    for _ in range(100 * cells):
        if len(found) == cells:
            break
        dtype = random_.choices(dtypes, weights)[0]
        most = MOST_BYTES // _BYTES.get(dtype, 2)
        shape = _rows(random_, rows_of, most) if rows_of else _shape(random_, dims, most, ranks)
        if values and others.random() < _OF_VALUES:
            shape = replace(shape, values=others.choice(values))
        found[Drawn(shape, dtype, random_.choice(directions))] = None
    return tuple(found)


def _rows(random_: random.Random, rows_of: Sequence[tuple[int, ...]], most: int) -> Shape:
    row = random_.choice(rows_of)
    rows = _log_uniform(random_, max(1, min(MOST_ROWS, most // max(1, math.prod(row)))))
    return Shape((rows, *row), None, _draw_layout(random_, 1 + len(row)))


def _shape(random_: random.Random, dims: bool, most: int, ranks: Sequence[int]) -> Shape:
    columns = most + 1
    while columns > most:
        columns = _columns(random_)
    rows = _log_uniform(random_, max(1, min(MOST_ROWS, most // columns)))
    sizes = _split(random_, rows, columns, ranks)
    along = random_.randrange(len(sizes)) if dims and random_.random() < 0.25 else None
    # The long dim is as often the one that the operator works along.
    if along is not None and random_.random() < 0.5:
        others = list(sizes[:-1])
        others.insert(along, sizes[-1])
        sizes = tuple(others)
    dim = None if along == len(sizes) - 1 else along
    return Shape(sizes, dim, _draw_layout(random_, len(sizes)))


def _columns(random_: random.Random) -> int:
    kind = random_.random()
    if kind < 0.4:
        return random_.choice(SIZES[random_.choice(list(SIZES))])
    if kind < 0.7:
        return _log_uniform(random_, MOST_COLUMNS)
    if kind < 0.85:
        return (1 << random_.randrange(1, 20)) + random_.choice((-1, 1))
    return _prime(_log_uniform(random_, MOST_COLUMNS // 2))


def _split(
    random_: random.Random, rows: int, columns: int, ranks: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape of about so many rows: of rank 2 rather than of another."""
    rank = random_.choices(ranks, [_OFTEN[rank] for rank in ranks])[0]
    if rank == 1:
        return (columns,)
    outer = [_log_uniform(random_, max(1, round(rows ** (1 / 2)))) for _ in range(rank - 2)]
    return (*outer, max(1, rows // math.prod(outer)), columns)


def _draw_layout(random_: random.Random, rank: int) -> Layout:
    kind = random_.choices(
        ("dense", "offset", "gap", "step", "transposed", "permuted", "expanded"),
        (50, 10, 14, 8, 10 * (rank > 1), 30 * (rank == 4), 4 * (rank > 1)),
    )[0]
    if kind in _RANKS:
        return Layout(kind)
    start = random_.randrange(1, 9) if kind == "offset" or random_.random() < 0.3 else 0
    return Layout(
        step=random_.randrange(2, 5) if kind == "step" else 1,
        gap=random_.randrange(1, 65) if kind == "gap" else 0,
        offset=start if kind != "dense" else 0,
    )


def _layout(text: str) -> Layout | None:
    found = _LAYOUT.fullmatch(text)
    if not found:
        return None
    if text in _RANKS:
        return Layout(text)
    step, gap, offset = (int(part or 0) for part in found.groups())
    return Layout(step=max(1, step), gap=gap, offset=offset)


def _log_uniform(random_: random.Random, most: int) -> int:
    return min(most, math.floor(math.exp(random_.uniform(0, math.log(most + 1)))))


def _prime(at_least: int) -> int:
    """Return the next prime number."""
    number = max(2, at_least)
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number
