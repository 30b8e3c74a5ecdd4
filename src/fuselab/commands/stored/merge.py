"""fuselab merge: one run of the cells of several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fuselab.commands import exits
from fuselab.planning.plan import CEILING
from fuselab.storage.store import KEY, NAMES, WRITTEN, Row, Store, StoreError, file_of

_DIRECTIONS = ("fwd", "bwd")


def run(out: str, folders: Sequence[str], *, over: bool = False) -> int:
    """Write the cells of all runs into one, in the order of their names; 3 if there is none.

    Nothing is written where two hold a cell that was measured apart, also if one of them is `out`,
    but for those that it shall have anew (`over`).
    """
    found: dict[str, tuple[str, Row]] = {}
    sources = (*([out] if file_of(out).exists() and not over else []), *folders)
    with ExitStack() as opened:
        stores = [opened.enter_context(Store.open_readonly(folder)) for folder in sources]
        for folder, store in zip(sources, stores, strict=True):
            for row in store.rows():
                before, known = found.setdefault(row[KEY], (folder, row))
                if row[NAMES][0] != CEILING and _measured(row) != _measured(known):
                    raise StoreError(f"{before} and {folder} both hold {row[KEY]}, measured apart")
        environments = [env for store in stores for env in store.environment()]
    rows = [row for _, row in found.values()]
    ops = list(dict.fromkeys(row[NAMES][0] for row in rows))
    with Store.open(out) as whole:
        whole.take(sorted(rows, key=lambda row: _place(row, ops)), environments)
    print(f"{len(rows)} cells of {len(folders)} runs in {out}")
    return exits.OK if rows else exits.NO_DATA


def parts(out: str, folders: Sequence[str], codes: Sequence[int]) -> int:
    """Merge the parts of one run that were begun, and return the gravest of their exit codes."""
    begun = [folder for folder in folders if Path(folder).is_dir()]
    if not begun:
        return max(codes)
    merged = run(out, begun, over=True)
    return merged if set(codes) <= {exits.OK} else max(codes)


def _measured(row: Row) -> tuple[Any, ...]:
    """Return all of a cell but when it was written."""
    return row[:WRITTEN] + row[WRITTEN + 1 :]


def _place(row: Row, ops: Sequence[str]) -> tuple[Any, ...]:
    """Return what cells are ordered by, as in a plan: cases by the numbers in their names."""
    op, _, direction, case, dtype, layout, device = row[NAMES]
    numbers = [(int(n), "") if n.isdecimal() else (-1, n) for n in re.split(r"(\d+)", case) if n]
    first = ops.index(op) if op != CEILING else -1
    known = _DIRECTIONS.index(direction) if direction in _DIRECTIONS else len(_DIRECTIONS)
    return first, dtype, known, layout, device, numbers
