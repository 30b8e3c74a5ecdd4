"""fuselab export: one flat record a cell, as JSON Lines or CSV."""

from __future__ import annotations

import sys

from fuselab import metrics
from fuselab.commands import exits
from fuselab.store import Store

FORMATS = {"jsonl": metrics.to_jsonl, "csv": metrics.to_csv}


def run(folder: str, form: str) -> int:
    """Print the records of a run; 3 if it holds none."""
    with Store.open_readonly(folder) as store:
        records = metrics.records(store.measurements())
    sys.stdout.write(FORMATS[form](records))
    return exits.OK if records else exits.NO_DATA
