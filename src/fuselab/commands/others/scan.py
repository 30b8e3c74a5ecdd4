"""fuselab scan: a script's calls, ranked, measured, forecast, patched, compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from fuselab import environment
from fuselab.commands import exits, paths, select
from fuselab.machine import roofs
from fuselab.machine.lock import device_lock
from fuselab.output.plain import say
from fuselab.planning.plan import PlanError
from fuselab.runner import Worker
from fuselab.scan import text
from fuselab.scan.costs import Rates
from fuselab.scan.measure import How
from fuselab.scan.run import SUITE, Setting, scan, scan_of
from fuselab.scan.script.runs import Script
from fuselab.worker import entry


def run(
    script: str | None,
    arguments: Sequence[str],
    *,
    out: str,
    source: str | None = None,
    suite: str | None = None,
    steps: int = 10,
    ways: Sequence[str] = ("patch", "enable"),
    apply: bool = True,
    compiled: bool = True,
    precision: str = "quick",
    device: str | None = None,
    timeout: int = 900,
    as_json: bool = False,
) -> int:
    """Scan a script, or what another tool recorded, and write what was found; 1 if it failed."""
    _check(script, source)
    paths.check_folder("--out", out)
    paths.check_file("--suite", suite)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUITE).unlink(missing_ok=True)  # of an earlier scan
    chosen = select.device_of(device)
    how = How(chosen, precision, timeout, compiled)
    with device_lock(chosen):
        setting = Setting(how, lambda device: Rates(_roofs(device)), apply)
        if script is None:
            found = scan_of(str(source), folder, setting, _say)
        else:
            asked = Script(script, tuple(arguments), folder, steps, timeout, tuple(ways))
            found = scan(asked, setting, _say)
    page = text.write(found, folder, environment.collect(found.device))
    if suite is not None and (folder / SUITE).is_file():
        shutil.copyfile(folder / SUITE, suite)
    if as_json:
        click.echo(json.dumps(found.to_record()))
    else:
        for line in text.to_text(found):
            click.echo(line)
    click.echo(f"wrote {page}", err=True)
    return exits.FAILED if found.raised else exits.OK


def _check(script: str | None, source: str | None) -> None:
    if (script is None) == (source is None):
        got = "neither" if script is None else "both"
        raise PlanError(f"SCRIPT, --from: got {got}, expected one of them")
    for argument, path in (("SCRIPT", script), ("--from", source)):
        if path is not None and not Path(path).is_file():
            raise PlanError(f"{argument}: got {path!r}, expected a file")


def _roofs(device: str) -> roofs.Roofs | None:
    """Return what the device was measured to reach, measured now where that is not known."""
    about = environment.collect(device)
    known = roofs.load(about)
    if known is not None:
        return known
    _say("roofs", f"measuring what {device} reaches, once")
    with Worker(entry.main, device) as worker:
        reply = worker.ask("selftest")
    found = reply.results[0] if reply.results else {}
    return roofs.save(about, found["roofs"]) if "roofs" in found else None


def _say(what: str, said: str) -> None:
    say(f"{what}: {said}")
