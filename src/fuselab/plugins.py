"""Plug-ins: metrics, rivals and operators that other distributions add by entry points.

One that cannot be loaded, or is not what its group holds, is named on stderr and left out.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from fuselab.errors import LabError

GROUPS = METRICS, RIVALS, SPECS = "fuselab.metrics", "fuselab.rivals", "fuselab.specs"
T = TypeVar("T")


@dataclass(frozen=True)
class Given(Generic[T]):
    """What an entry point leads to.

    package  the distribution with its version
    entry    the entry point, behind its group, and the package
    code     the package with a hash of the file that the entry point names
    """

    value: T
    package: str
    entry: str
    code: str


_given: dict[int, Given[Any]] = {}
_refused: dict[str, str] = {}


class Unfit(LabError, ValueError):
    """What an entry point leads to is not what its group holds; the text says why."""


def load(
    group: str, kind: type[T], name: Callable[[T], Hashable], taken: Collection[Hashable]
) -> dict[Hashable, Given[T]]:
    """Return what the entry points of a group lead to, one or several each, by its name.

    Refused, with the whole entry point: what cannot be loaded, is not of the kind, has a name that
    is taken, or none: `name` raises a LabError for what is unfit.
    """
    found: dict[Hashable, Given[T]] = {}
    for point in _points()[group]:
        try:
            with redirect_stdout(sys.stderr):  # stdout is for our own words
                loaded = point.load()
                values = loaded if isinstance(loaded, (list, tuple)) else (loaded,)
                named = {_name(value, kind, name, {*taken, *found}): value for value in values}
                if len(named) < len(values):
                    raise Unfit(f"got {len(values)} with {len(named)} names, expected one each")
        except LabError as error:
            refuse(_entry(point), str(error))
        except (Exception, SystemExit) as error:
            refuse(_entry(point), _told(error))
        else:
            package = _package(point)
            code = f"{package} {_hash(point.module)}"
            for key, value in named.items():
                found[key] = _given[id(value)] = Given(value, package, _entry(point), code)
    return found


def origin(value: object) -> Given[Any] | None:
    """Return what is known of an object that a plug-in gave, None for any other."""
    return _given.get(id(value))


def refuse(entry: str, why: str) -> None:
    """Leave out what an entry point leads to, and say so, once in a process."""
    if entry not in _refused:
        print(f"warning: plug-in left out: {entry}: {why}", file=sys.stderr, flush=True)
    _refused[entry] = why


def refused() -> Mapping[str, str]:
    """Return why entry points were refused so far in this process."""
    return _refused


def versions() -> dict[str, str]:
    """Return the version of each distribution with plug-ins; loads none."""
    points = (point for those in _points().values() for point in those)
    return {point.dist.name: point.dist.version for point in points if point.dist}


@cache
def _points() -> dict[str, list[EntryPoint]]:
    return {group: sorted(entry_points(group=group), key=_entry) for group in GROUPS}


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "(no distribution)"


def _entry(point: EntryPoint) -> str:
    return f"{_package(point)}, entry point {point.group}: {point.name} = {point.value}"


def _told(error: BaseException) -> str:
    """Return an error as one line, with the place in a file that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if last.filename.startswith("<") else f" ({Path(last.filename).name}:{last.lineno})"
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}{where}"


def _name(value: Any, kind: type[T], name: Callable[[T], Hashable], taken: set[Hashable]) -> Any:
    if not isinstance(value, kind):
        raise Unfit(f"got {type(value).__name__}, expected {kind.__name__} or several")
    found = name(value)
    if found in taken:
        raise Unfit(f"the name {found!r} is taken")
    return found


def _hash(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file else ""
