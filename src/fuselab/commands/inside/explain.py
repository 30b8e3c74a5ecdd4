"""fuselab explain: what torch.compile made of a function, and what follows from it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fuselab.commands import exits, paths
from fuselab.explain.page import write_page
from fuselab.explain.run import run as explained
from fuselab.explain.target import examples
from fuselab.explain.text import to_text
from fuselab.planning.plan import PlanError


def run(
    function: str | None,
    *,
    names: bool = False,
    device: str | None = None,
    timeout: int = 120,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Explain a function and print it, or print the shipped examples' names."""
    if names:
        for name, file in examples().items():
            click.echo(f"{name:<24}{file}")
        return exits.OK
    if function is None:
        raise PlanError("FUNCTION: got none, expected FILE.py:FUNCTION or an example (--list)")
    paths.check_folder("--out", out)
    from fuselab.commands import select  # loads torch, which names need not wait for

    found = explained(function, select.device_of(device), timeout)
    click.echo(json.dumps(found.to_record()) if as_json else to_text(found))
    if out is not None:
        click.echo(f"wrote {write_page(found, Path(out))}", err=True)
    return exits.OK
