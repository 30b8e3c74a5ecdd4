"""fuselab internals: all folders of the course anew, and an index of what they made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fuselab.commands import exits, paths
from fuselab.internals import folders
from fuselab.planning.plan import PlanError, unknown


def run(*, folder: str, only: Sequence[str] = (), out: str) -> int:
    """Run each folder's run.py; 1 if one fails, after all the others."""
    found = folders.scripts(Path(folder))
    if not found:
        raise PlanError(f"--folder: got {folder!r}, expected a folder with */run.py: a checkout's")
    for name in only:
        if name not in found:
            raise unknown("--only", name, found)
    paths.check_folder("--out", out)
    ran = [folders.run(found[name], Path(out).resolve()) for name in only or found]
    for one in ran:
        click.echo(f"{one.name}: {one.seconds:.0f} s, exit code {one.code}" + _noisy(one))
    click.echo(f"wrote {folders.write_index(ran, Path(out))}")
    return exits.FAILED if any(one.code for one in ran) else exits.OK


def _noisy(one: folders.Ran) -> str:
    return f"; noisy: {one.noise}" if one.noise else ""
