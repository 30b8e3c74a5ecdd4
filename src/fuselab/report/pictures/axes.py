"""Where a case stands in a grid of ratios: its row, its column, and what its grid has alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PRODUCTS = ("matmul_add", "matmul_relu", "matmul_add_relu", "matmul_add_gelu")
# As the study names its tables, whose triton is torch.compile.
STUDY = (("compile", "eager"), ("flash", "compile"), ("flash", "eager"))
OWN = (("triton", "eager"), ("flash", "triton"))


@dataclass(frozen=True)
class Axes:
    """How cases of one kind are named, and what their sizes mean.

    row, column  what each axis is
    pattern      of a case's name, with the groups row and column
    alike        match -> what a grid has alike, as text
    heads        what a row is multiplied by
    speeds       pairs of implementations, whose speeds are divided besides
    """

    row: str
    column: str
    pattern: re.Pattern[str]
    alike: Callable[[re.Match[str]], str] = lambda _: ""
    heads: int = 1
    speeds: tuple[tuple[str, str], ...] = ()


def _marks(found: re.Match[str]) -> str:
    return found["marks"].replace("-", ", ")


_MARKS = r"(?P<marks>(?:-[a-z]\w*)*)"
ROWS = Axes("M", "N", re.compile(r"(?P<row>\d+(?:x\d+)*)x(?P<column>\d+)"))
_PRODUCT = Axes(
    *("M", "N", re.compile(r"(?P<row>\d+)x(?P<column>\d+)x(?P<k>\d+)(?P<t>-t)?")),
    alike=lambda found: f"K {found['k']}" + (", b transposed" if found["t"] else ""),
)
_FIRST = Axes(
    *("embedding", "sequence", re.compile(rf"8x8x(?P<column>\d+)x(?P<row>\d+){_MARKS}")),
    alike=lambda found: f"batch 8, 8 heads{_marks(found)}",
    heads=8,
    speeds=(*STUDY, *OWN),
)
_ATTENTION = Axes(
    *("batch", "sequence"),
    re.compile(rf"(?P<row>\d+)x(?P<heads>\d+)x(?P<column>\d+)x(?P<d>\d+){_MARKS}"),
    alike=lambda found: f"{found['heads']} heads of {found['d']}{_marks(found)}",
    speeds=(*STUDY, *OWN),
)
_MODULE = Axes(
    *("embedding", "sequence"),
    re.compile(rf"(?P<batch>\d+)x(?P<column>\d+)x(?P<row>\d+)-(?P<heads>\d+)heads{_MARKS}"),
    alike=lambda found: f"batch {found['batch']}, {found['heads']} heads{_marks(found)}",
    speeds=(*STUDY, *OWN),
)
_BY_OP = {
    "attention": (_FIRST, _ATTENTION),
    "multihead_attention": (_MODULE,),
    **dict.fromkeys(PRODUCTS, (_PRODUCT,)),
}


@dataclass(frozen=True)
class Place:
    """One case in the grid that is of `alike`."""

    axes: Axes
    alike: str
    row: str
    column: int


def place(op: str, case: str) -> Place | None:
    """Return where a case stands, None if its name does not tell its sizes."""
    for axes in _BY_OP.get(op, (ROWS,)):
        if found := axes.pattern.fullmatch(case):
            row = found["row"] if axes.heads == 1 else str(axes.heads * int(found["row"]))
            return Place(axes, axes.alike(found), row, int(found["column"]))
    return None
