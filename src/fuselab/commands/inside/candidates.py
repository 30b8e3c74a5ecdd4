"""fuselab candidates: what the inductor's tuner tries for each kernel of a subject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fuselab import environment
from fuselab.candidates.record import to_markdown
from fuselab.candidates.run import run as tuned
from fuselab.commands import exits, paths, select
from fuselab.compiling.subjects import check, names
from fuselab.output.files import replace
from fuselab.planning.plan import PlanError


def run(
    *,
    subjects: Sequence[str] = (),
    device: str | None = None,
    timeout: int = 600,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Print every kernel's candidates; 1 if a subject has none."""
    check(subjects)
    paths.check_folder("--out", out)
    where = select.device_of(device)
    if where == "cpu":
        raise PlanError("device: got 'cpu', expected a GPU: Inductor tunes nothing on a CPU")
    found = tuned(subjects or names(), where, timeout)
    gpu = environment.collect(where).get("gpu", where)
    table = to_markdown(found, f"torch {environment.version('torch')}, {gpu}, float32, forward")
    record = [asdict(one) for one in found]
    click.echo(json.dumps(record) if as_json else table.rstrip())
    if out is not None:
        replace(Path(out) / "candidates.md", table)
        replace(Path(out) / "candidates.json", json.dumps(record) + "\n")
    return exits.FAILED if any(one.error for one in found) else exits.OK
