"""fuselab compile-bench: what torch.compile costs and brings, subject by subject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fuselab import environment
from fuselab.commands import exits, paths, select
from fuselab.compiling.bench import bench
from fuselab.compiling.record import to_markdown
from fuselab.compiling.subjects import check, names
from fuselab.output.files import replace


def run(
    *,
    subjects: Sequence[str] = (),
    device: str | None = None,
    timeout: int = 600,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Compile all subjects, or those named; 1 if one has no figures."""
    check(subjects)
    paths.check_folder("--out", out)
    where = select.device_of(device)
    rows = bench(subjects or names(), where, timeout)
    about = environment.collect(where)
    facts = {"torch": environment.version("torch"), "on": about.get("gpu") or about.get("cpu")}
    record = {"environment": facts, "rows": [asdict(row) for row in rows]}
    table = to_markdown(rows, facts)
    click.echo(json.dumps(record) if as_json else table.rstrip())
    if out is not None:
        stem = Path(out) / f"compile-bench-{where.partition(':')[0]}"
        replace(stem.with_suffix(".md"), table)
        replace(stem.with_suffix(".json"), json.dumps(record) + "\n")
    return exits.FAILED if any(row.error for row in rows) else exits.OK
