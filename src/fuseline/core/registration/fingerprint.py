"""A hash of all that decides what a compiled graph of ours holds, in the keys of torch's caches.

A graph is traced through our Python functions, so that it holds their kernels, launch parameters
and choices, of which torch's keys know nothing: the hash is added to
`torch.compiler.config.cache_key_tag` before they are made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch

from fuseline.core import native
from fuseline.core.selection import select, tuned

PACKAGE = Path(__file__).parents[2]
_SUFFIXES = (".py", ".json")


@cache
def fingerprint() -> str:
    """Return a hash of code, binary, tables, rules and the implementations that can run here.

    It is made once, of what lies there at the first call: 0.1 s.
    """
    found = hashlib.sha256()
    for name, data in _parts():
        found.update(f"{name}\0{len(data)}\0".encode())
        found.update(data)
    return found.hexdigest()[:32]


def _parts() -> Iterator[tuple[str, bytes]]:
    yield from _files("package", PACKAGE)
    if (user := tuned.user_tables()) is not None:
        yield from _files("user", user)
    if (binary := native.status()).path is not None:
        yield binary.state, binary.path.read_bytes()
    for op, available in sorted((s.op, s.available()) for s in select.known):
        yield op, repr(available).encode()


def _files(owner: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return name and bytes of each file that matters, as far as they can be read."""
    try:
        found: Iterable[Path] = sorted(f for f in folder.rglob("*") if f.suffix in _SUFFIXES)
    except OSError:
        found = ()
    for file in found:
        try:
            yield f"{owner}/{file.relative_to(folder).as_posix()}", file.read_bytes()
        except OSError:
            continue


def known_to_caches(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fake of an operator, which tells torch's caches of the hash when it is compiled.

    Dynamo runs the fake of what it puts into a graph, and the keys are made of the whole graph.
    """

    @wraps(fake)
    def told(*args: Any, **options: Any) -> Any:
        if torch._guards.TracingContext.try_get() is not None:
            _tell()
        return fake(*args, **options)

    return told


def _tell() -> None:
    """Add the hash to the tag, which is the user's too, unless it is there."""
    config = torch.compiler.config
    mine = f"fuseline-{fingerprint()}"
    if mine not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag} {mine}".strip()
