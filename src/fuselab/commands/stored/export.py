"""fuselab export: one flat record a cell, as JSON Lines or CSV, or a baseline to compare with."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fuselab.commands import exits, paths
from fuselab.model import Measurement
from fuselab.output.files import replace
from fuselab.planning.plan import PlanError
from fuselab.records import frames, metrics
from fuselab.storage.store import Store

PARQUET = "parquet"
FORMATS = {"jsonl": metrics.to_jsonl, "csv": metrics.to_csv}


def run(folder: str, form: str, *, samples: bool = False, out: str | None = None) -> int:
    """Print the records of a run, or write them to a file; 3 if it holds none.

    `samples` adds the raw samples, for `fuselab compare`.
    """
    if samples and form not in ("jsonl", PARQUET):
        raise PlanError(f"--samples: got --format {form}, expected --format jsonl or {PARQUET}")
    if form == PARQUET and out is None:
        raise PlanError("--out: got nothing, expected a file for --format parquet")
    paths.check_file("--out", out)
    with Store.open_readonly(folder) as store:
        measured = list(store.measurements())
    if form == "baseline":
        _write(metrics.to_baseline(measured), out)
        return _code(folder, measured)
    records = metrics.records(measured)
    if samples:
        pairs = zip(records, measured, strict=True)
        records = [{**record, **metrics.raw(measurement)} for record, measurement in pairs]
    if form == PARQUET:
        _write(frames.to_parquet(records), out)
    else:
        _write(FORMATS[form](records), out)
    return _code(folder, measured)


def _write(content: str | bytes, out: str | None) -> None:
    if out is not None:
        replace(out, content)
    elif isinstance(content, str):
        sys.stdout.write(content)


def _code(folder: str, measured: Sequence[Measurement]) -> int:
    if not measured:
        print(f"{folder}: the run holds no cell", file=sys.stderr)
    return exits.OK if measured else exits.NO_DATA
