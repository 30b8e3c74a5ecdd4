"""Launch parameters of an operator on rows: a table a GPU, in a file, nothing tried in a call.

`<gpu>.json` holds for each direction and element size tiles by row length; the user's own file
(`fuselab tune`) wins over the one that is shipped.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "FUSELINE_TUNED"
# What serves a GPU that nobody has tuned for.
NEAREST = "NVIDIA H200"
DIRECTIONS = ("fwd", "bwd")
ELEMENT_SIZES = (2, 4, 8)


class TunedError(ValueError):
    """A table that cannot be used; the text names file and key, what came, what was expected."""


class Tile(NamedTuple):
    """How one program works: on `size` elements, one row or several; longer rows in blocks of it.

    programs      resident on each SM, where the grid is one wave of them (backward)
    weight_first  ask for the weight before the row is reduced (forward)
    """

    size: int
    warps: int
    stages: int = 1
    programs: int = 1
    weight_first: bool = False

    def __str__(self) -> str:
        words = [f"{self.size}", f"{self.warps}w"]
        words += [f"{self.stages}s"] if self.stages > 1 else []
        words += [f"{self.programs}p"] if self.programs > 1 else []
        return "-".join(words + ["first"] * self.weight_first)


class Entry(NamedTuple):
    """The tile of rows up to `row` elements, of all longer ones for None."""

    row: int | None
    tile: Tile


Entries = tuple[Entry, ...]
Key = tuple[str, int]


@dataclass(frozen=True)
class Table:
    """entries by (direction, bytes of an element), each list in the order of rows.

    gpu    the one it was measured on
    about  what else the file says, for its reader
    """

    gpu: str
    entries: Mapping[Key, Entries]
    about: Mapping[str, Any] = field(default_factory=dict)

    def tile(self, direction: str, element_size: int, n: int) -> Tile:
        """Return the tile for rows of n elements."""
        entries = self.entries[direction, element_size]
        return next(tile for row, tile in entries if row is None or n <= row)


def user_folder(op: str) -> Path | None:
    """Return where a user's own tables of an operator lie, or None as user_tables() does."""
    folder = user_tables()
    return folder / op if folder else None


def user_tables() -> Path | None:
    """Return where a user's own tables and rules lie; None where the user has no home folder.

    That is FUSELINE_TUNED, else fuseline/tuned in XDG_CONFIG_HOME or ~/.config.
    """
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        # The standard has a relative path count as none.
        config = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError:  # neither HOME nor an entry of this user in the password database
        return None
    return config / "fuseline" / "tuned"


def user_files(op: str) -> list[Path]:
    """Return a user's own tables of an operator, as far as their folder can be read."""
    folder = user_folder(op)
    try:
        return sorted(folder.glob("*.json")) if folder else []
    except OSError:
        return []


def file_name(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def find(op: str, shipped: Path, gpu: str | None) -> Table:
    """Return the table for a GPU: the user's, else the shipped one, else the nearest, and say so.

    gpu: None where there is none, which is no reason for a warning.
    """
    if gpu is not None:
        for folder in (user_folder(op), shipped):
            file = folder and folder / file_name(gpu)
            # Unlike Path's, this says no of what lies in a folder that cannot be read.
            if file and os.path.isfile(file):
                return load(file)
        warnings.warn(
            f"fuseline.{op} (triton) knows no launch parameters for {gpu} and takes those of "
            f"{NEAREST}; to measure them here, once: fuselab tune {op}",
            RuntimeWarning,
            stacklevel=2,
        )
    return load(shipped / file_name(NEAREST))


def load(file: Path) -> Table:
    """Return the table of a file; TunedError if it is not one."""
    try:
        found = json.loads(file.read_bytes())  # which knows the mark that an editor may begin with
    except (OSError, ValueError) as error:
        raise TunedError(f"{file}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise TunedError(f"{file}: got a {type(found).__name__}, expected an object")
    entries = {
        (direction, size): _entries(
            f"{file}: {direction}.{size}", _list(file, found, direction, size)
        )
        for direction in DIRECTIONS
        for size in ELEMENT_SIZES
    }
    about = {name: value for name, value in found.items() if name not in ("gpu", *DIRECTIONS)}
    return Table(str(found.get("gpu", "")), entries, about)


def save(table: Table, file: Path) -> None:
    """Write the table, one entry a line, so that a reader never sees half of it."""
    head = [
        f"  {json.dumps(k)}: {json.dumps(v)}"
        for k, v in ({"gpu": table.gpu} | dict(table.about)).items()
    ]
    parts = []
    for direction in DIRECTIONS:
        sizes = (
            f'    "{size}": [\n{_lines(table.entries[direction, size])}\n    ]'
            for size in ELEMENT_SIZES
        )
        parts.append(f'  "{direction}": {{\n' + ",\n".join(sizes) + "\n  }")
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, "{\n" + ",\n".join(head + parts) + "\n}\n")


def replace_file(file: Path, text: str) -> None:
    """Write the text, so that a reader never sees half of it."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=file.parent, suffix=".tmp", delete=False
    ) as new:
        try:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
            os.chmod(new.name, 0o644)
            os.replace(new.name, file)
        except BaseException:
            os.unlink(new.name)
            raise


def merged(entries: Sequence[Entry]) -> Entries:
    """Return the entries without those whose longer neighbour says the same."""
    return (*(e for e, after in pairwise(entries) if after.tile != e.tile), entries[-1])


def _lines(entries: Entries) -> str:
    return ",\n".join(f"      {json.dumps(_object(entry))}" for entry in entries)


def _object(entry: Entry) -> dict[str, Any]:
    given = entry.tile._asdict()
    defaults = Tile._field_defaults
    return {"row": entry.row} | {
        k: v for k, v in given.items() if k not in defaults or v != defaults[k]
    }


def _list(file: Path, found: Mapping[str, Any], direction: str, size: int) -> list[Any]:
    part = found.get(direction)
    came = part.get(str(size)) if isinstance(part, dict) else None
    if not isinstance(came, list) or not came:
        raise TunedError(f"{file}: {direction}.{size}: got {came!r}, expected a list of entries")
    return came


def _entries(where: str, came: list[Any]) -> Entries:
    entries = tuple(_entry(f"{where}[{i}]", item) for i, item in enumerate(came))
    *bounds, last = (entry.row for entry in entries)
    rows = [row for row in bounds if row is not None]
    if last is not None or len(rows) < len(bounds) or rows != sorted(set(rows)):
        raise TunedError(f"{where}: row: got {[*bounds, last]}, expected rising lengths, then null")
    return entries


def _entry(where: str, came: Any) -> Entry:
    if not isinstance(came, dict):
        raise TunedError(f"{where}: got {came!r}, expected an object")
    names = ("row", *Tile._fields)
    for name in came:
        if name not in names:
            raise TunedError(f"{where}.{name}: unknown, expected one of: {', '.join(names)}")
    for name in ("row", "size", "warps"):
        if name not in came:
            raise TunedError(f"{where}.{name}: missing")
    for name, value in came.items():
        if expected := _fault(name, value):
            raise TunedError(f"{where}.{name}: got {value!r}, expected {expected}")
    return Entry(came["row"], Tile(**{name: v for name, v in came.items() if name != "row"}))


def _fault(name: str, value: Any) -> str:
    """Return what was expected instead of the value, or ""."""
    if name == "weight_first":
        return "" if isinstance(value, bool) else "true or false"
    if name == "row" and value is None:
        return ""
    if type(value) is not int or value < 1:
        return "a positive integer"
    power = value & (value - 1) == 0
    if name == "size":
        return "" if power and value >= 4 else "a power of two from 4 on"
    if name == "warps":
        return "" if power and value <= 32 else "a power of two up to 32"
    return ""
