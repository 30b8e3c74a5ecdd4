"""fuselab plot: bandwidth over size as a picture for a README or a paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fuselab.commands import exits, paths
from fuselab.planning.plan import CEILING, PlanError, unknown
from fuselab.records import metrics
from fuselab.records.metrics import Record
from fuselab.report.pictures import plots
from fuselab.storage.store import Store, StoreError


def run(folder: str, picture: str, op: str | None, dtype: str | None) -> int:
    """Write the picture of one operator and dtype, the first by default; 3 for an empty run."""
    paths.check_file("PICTURE", picture)
    if not picture.lower().endswith(plots.KINDS):
        raise PlanError(f"PICTURE: got {picture!r}, expected a name that ends in .svg or .png")
    with Store.open_readonly(folder) as store:
        records = metrics.records(store.measurements())
    if not records:
        print(f"{folder}: the run holds no cell", file=sys.stderr)
        return exits.NO_DATA
    drawn = [row for row in records if row["role"] != CEILING and plots.drawable(row)]
    op, dtype = _one_of("op", op, drawn), _one_of("dtype", dtype, drawn)
    plots.save(records, picture, op=op, dtype=dtype)
    print(picture)
    return exits.OK


def _one_of(column: str, name: str | None, records: Sequence[Record]) -> str:
    """Return the requested name, or the first there is; PlanError if it has no bandwidth."""
    have = list(dict.fromkeys(str(record[column]) for record in records))
    if not have:
        raise StoreError("PICTURE: no cell has a bandwidth to draw")
    if name and name not in have:
        raise unknown(column, name, have)
    return name or have[0]
