"""fuselab export: one flat record a cell, as JSON Lines or CSV, or a baseline to compare with."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fuselab import metrics
from fuselab.commands import exits
from fuselab.model import Measurement
from fuselab.plan import PlanError
from fuselab.store import Store

FORMATS = {"jsonl": metrics.to_jsonl, "csv": metrics.to_csv}


def run(folder: str, form: str, *, samples: bool = False) -> int:
    """Print the records of a run; 3 if it holds none.

    `samples` adds the raw samples, for `fuselab compare`.
    """
    if samples and form != "jsonl":
        raise PlanError(f"--samples: got --format {form}, expected --format jsonl")
    with Store.open_readonly(folder) as store:
        measured = list(store.measurements())
    if form == "baseline":
        sys.stdout.write(metrics.to_baseline(measured))
        return _code(folder, measured)
    records = metrics.records(measured)
    if samples:
        pairs = zip(records, measured, strict=True)
        records = [{**record, **metrics.raw(measurement)} for record, measurement in pairs]
    sys.stdout.write(FORMATS[form](records))
    return _code(folder, measured)


def _code(folder: str, measured: Sequence[Measurement]) -> int:
    if not measured:
        print(f"{folder}: the run holds no cell", file=sys.stderr)
    return exits.OK if measured else exits.NO_DATA
