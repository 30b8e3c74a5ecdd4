"""fuselab judge: the lab's verdict on a solution in KernelBench's form, or on a folder of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fuselab import environment
from fuselab.commands import exits, paths, select
from fuselab.commands.progress import Steps
from fuselab.judge import text
from fuselab.judge.find import find
from fuselab.judge.record import Outcome, Verdict
from fuselab.judge.run import Setting, judge, log_of
from fuselab.machine.lock import device_lock


def run(
    problem: str,
    solution: str | None,
    *,
    out: str,
    precision: str,
    compiled: bool = True,
    device: str | None = None,
    timeout: int = 120,
    as_json: bool = False,
) -> int:
    """Judge the pairs, write what is known after each; 1 if one is refused, 3 if none is judged."""
    found = find(problem, solution)
    paths.check_folder("--out", out)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(select.device_of(device), precision, timeout, compiled, log_of(folder))
    about = environment.collect(setting.device)
    verdicts: list[Verdict] = []
    with device_lock(setting.device), Steps(len(found)) as steps:
        for files in found:
            verdicts.append(judge(files, setting))
            page = text.write(verdicts, folder, about, asdict(setting))
            steps.step(files.name, text.summary(verdicts[-1]))
    if as_json:
        click.echo(json.dumps([verdict.to_record() for verdict in verdicts]))
    else:
        for line in text.to_text(verdicts):
            click.echo(line)
    click.echo(f"wrote {page}", err=True)
    return _code(verdicts)


def _code(verdicts: Sequence[Verdict]) -> int:
    outcomes = {verdict.outcome for verdict in verdicts}
    if Outcome.REFUSED in outcomes:
        return exits.FAILED
    return exits.OK if Outcome.RIGHT in outcomes else exits.NO_DATA
