"""fuselab trace: one call, from the Python function to the kernel, forward and backward."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fuselab.commands import exits, paths, select
from fuselab.trace.call import prepare
from fuselab.trace.page import write_page
from fuselab.trace.record import trace
from fuselab.trace.text import to_record, to_text


def run(
    expression: str,
    *,
    setup: str | None = None,
    under: tuple[str, ...] = (),
    depth: int = 3,
    device: str | None = None,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Trace a call and print it; with `out`, write the page DIR/trace.html too."""
    paths.check_folder("--out", out)
    call = prepare(expression, setup=setup, under=under, device=select.device_of(device))
    seen = trace(call)
    click.echo(json.dumps(to_record(seen)) if as_json else to_text(seen, depth).rstrip())
    if out is not None:
        click.echo(f"wrote {write_page(seen, Path(out))}", err=True)
    return exits.OK
