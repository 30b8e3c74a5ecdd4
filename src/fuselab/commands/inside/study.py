"""fuselab study methods: the same cells by every method of measuring, and how far off each is."""

from __future__ import annotations

from pathlib import Path

import click

from fuselab import environment
from fuselab.commands import exits, paths, select
from fuselab.output.files import replace
from fuselab.planning.plan import unknown
from fuselab.study.record import REFERENCE, to_json_lines, to_markdown
from fuselab.study.run import methods as measured
from fuseline import table


def methods(
    *,
    op: str,
    sizes: int,
    repeats: int,
    device: str | None = None,
    timeout: int = 900,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Print bias, scatter and cause of each method; 1 if a cell has no reference."""
    if op not in table.load():
        raise unknown("--op", op, table.load())
    paths.check_folder("--out", out)
    where = select.device_of(device)
    about = environment.collect(where)
    facts = {"torch": environment.version("torch"), "on": about.get("gpu") or about.get("cpu")}
    facts |= {"threads": about["threads"]} if where == "cpu" else {}
    record = measured(op, where, sizes, repeats, timeout, facts)
    text, lines = to_markdown(record), to_json_lines(record)
    click.echo(lines.rstrip() if as_json else text.rstrip())
    if out is not None:
        stem = Path(out) / f"methods-{op}-{where.partition(':')[0]}"
        replace(stem.with_suffix(".md"), text)
        replace(stem.with_suffix(".jsonl"), lines)
    lacking = any(row.error for row in record.rows if row.method == REFERENCE)
    return exits.FAILED if lacking else exits.OK
