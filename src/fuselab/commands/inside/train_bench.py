"""fuselab train-bench: one model, trained alike in PyTorch and in JAX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fuselab.commands import exits, paths, select
from fuselab.output.files import replace
from fuselab.planning.plan import PlanError, unknown
from fuselab.training.bench import bench, to_markdown
from fuselab.training.plot import draw
from fuselab.training.record import Missing, Trained, apart, trained
from fuselab.training.setting import SETTINGS
from fuselab.training.variants import VARIANTS


def run(
    *,
    size: str,
    steps: int,
    variants: Sequence[str] = (),
    device: str | None = None,
    timeout: int = 120,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Train each variant in a process of its own; 1 if one fails or fp32 losses differ too much."""
    for name in variants:
        if name not in VARIANTS:
            raise unknown("--variant", name, VARIANTS)
    paths.check_folder("--out", out)
    where = select.device_of(device).partition(":")[0]
    if where == "cpu" and size == "full":
        raise PlanError("--size: got 'full' on cpu, expected a GPU; small and medium run here")
    rows = []
    for row in bench(tuple(dict.fromkeys(variants)) or VARIANTS, size, steps, where, timeout):
        done = "done" if isinstance(row, Trained) else row.why
        click.echo(f"{row.variant}: {done}", err=True)
        rows.append(row)
    table = to_markdown(rows, size, where)
    record = {"size": size, "device": where, "rows": [asdict(row) for row in rows]}
    click.echo(json.dumps(record) if as_json else table.rstrip())
    if out is not None:
        folder = Path(out)
        stem = f"train-{size}-{where}"
        replace(folder / f"{stem}.md", table)
        replace(folder / f"{stem}.json", json.dumps(record) + "\n")
        if trained(rows):
            draw(trained(rows), folder / f"{stem}.svg")
    if not trained(rows):
        return exits.NO_DATA
    same = SETTINGS[size].dtype != "float32" or not apart(rows)
    failed = any(isinstance(row, Missing) and row.failed for row in rows)
    return exits.OK if same and not failed else exits.FAILED
