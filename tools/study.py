"""The study of fusion, answered: the numbers of docs/study.md, from results/ and what it published.

    python tools/study.py            say which parts of the page are not what results/ give
    python tools/study.py --write    write them

A part stands between `<!-- NAME: tools/study.py --write -->` and `<!-- /NAME -->`; the prose around
the parts is written by hand and has no measured number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import study_inside as inside
import study_times as times

PAGE = Path(__file__).parents[1] / "docs" / "study.md"
PART = re.compile(
    r"(<!-- (?P<name>\w+): tools/study.py --write -->\n)(?P<text>.*?)(\n\n<!-- /(?P=name) -->)",
    re.DOTALL,
)
PARTS: Mapping[str, tuple[Callable[[], str], ...]] = {
    "wins": (times.wins, times.others),
    "shapes": (times.shapes,),
    "staircase": (times.staircase,),
    "boundary": (times.boundary, inside.limit),
    "host": (times.host,),
    "counters": (inside.correlation, inside.loads),
    "softmaxes": (inside.softmaxes,),
    "memory": (inside.memory,),
    "tuner": (inside.tuner,),
    "layout": (inside.layout,),
    "gpus": (times.gpus, times.small),
    "timers": (inside.timers, inside.methods),
}


def written(page: str) -> dict[str, str]:
    """Return the parts of a page as they stand in it."""
    return {seen["name"]: seen["text"] for seen in PART.finditer(page)}


def page(now: str) -> str:
    """Return the page with every part made anew."""
    return PART.sub(lambda seen: f"{seen[1]}{part(seen['name'])}{seen[4]}", now)


def part(name: str) -> str:
    """Return a part of the page, made anew."""
    return "\n\n".join(made() for made in PARTS[name])


if __name__ == "__main__":
    before = PAGE.read_text()
    after = page(before)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(after)
    elif changed := [n for n, text in written(after).items() if text != written(before)[n]]:
        sys.exit(f"{', '.join(changed)}: not what results/ give; python tools/study.py --write")
