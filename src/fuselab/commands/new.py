"""fuselab new: a stand-alone operator package."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from fuselab.commands import exits
from fuselab.scaffold.write import STYLES, create


def run(name: str, *, style: str, folder: str | None) -> int:
    """Write the package and say what to do with it."""
    where = Path(folder or name)
    files = create(name, style, where)
    click.echo(f"wrote {len(files)} files to {where}:")
    for file in files:
        click.echo(f"  {file}")
    click.echo(
        f"\nnext:\n  cd {shlex.quote(str(where))}\n  pip install {STYLES[style]} pytest\n"
        "  pip install --no-build-isolation --no-deps .\n"
        "  python -m pytest\n  fuselab check spec.py\n  fuselab run spec.py"
    )
    return exits.OK
