"""fuselab scan: a script's calls, ranked, measured, forecast, patched, compared."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fuselab import environment, roofs
from fuselab.commands import exits, paths, select
from fuselab.lock import device_lock
from fuselab.plan import PlanError
from fuselab.runner import Worker
from fuselab.scan import text
from fuselab.scan.costs import Rates
from fuselab.scan.measure import How
from fuselab.scan.run import SUITE, Setting, scan
from fuselab.scan.runs import Script
from fuselab.worker import entry


def run(
    script: str,
    arguments: Sequence[str],
    *,
    out: str,
    suite: str | None = None,
    steps: int = 5,
    ways: Sequence[str] = ("patch", "enable"),
    apply: bool = True,
    compiled: bool = True,
    precision: str = "quick",
    device: str | None = None,
    timeout: int = 900,
    as_json: bool = False,
) -> int:
    """Scan a script and write what was found; 1 if it failed, or is served by nothing of ours."""
    if not Path(script).is_file():
        raise PlanError(f"SCRIPT: got {script!r}, expected a Python file")
    paths.check_folder("--out", out)
    paths.check_file("--suite", suite)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = select.device_of(device)
    about = environment.collect(chosen)
    how = How(chosen, precision, timeout, compiled)
    asked = Script(script, tuple(arguments), folder, steps, timeout, tuple(ways))
    with device_lock(chosen):
        rates = Rates(_roofs(chosen, about))
        found = scan(asked, Setting(how, rates, apply), _say)
    page = text.write(found, folder, about)
    if suite is not None and (folder / SUITE).is_file():
        shutil.copyfile(folder / SUITE, suite)
    if as_json:
        click.echo(json.dumps(found.to_record()))
    else:
        for line in text.to_text(found):
            click.echo(line)
    click.echo(f"wrote {page}", err=True)
    return exits.FAILED if found.raised else exits.OK


def _roofs(device: str, about: Mapping[str, Any]) -> roofs.Roofs | None:
    """Return what the device was measured to reach, measured now where that is not known."""
    known = roofs.load(about)
    if known is not None:
        return known
    _say("roofs", f"measuring what {device} reaches, once")
    with Worker(entry.main, device) as worker:
        reply = worker.ask("selftest")
    found = reply.results[0] if reply.results else {}
    return roofs.save(about, found["roofs"]) if "roofs" in found else None


def _say(what: str, said: str) -> None:
    print(f"{what}: {said}", file=sys.stderr, flush=True)
