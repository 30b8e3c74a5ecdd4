"""Has pairs judged: each is looked at, measured from outside, then beside the baselines."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fuselab import runner
from fuselab.judge.find import Files
from fuselab.judge.record import COMPILE, EAGER, SOLUTION, Finding, Verdict
from fuselab.judge.verdict import Looked, too_short, verdict
from fuselab.model import ISOLATED, Group, Measurement
from fuselab.output.files import replace as write
from fuselab.planning.plan import CEILING, default_timer
from fuselab.processes import caches, child
from fuselab.runner import Worker
from fuselab.worker import entry
from fuselab.worker.operators import pairs
from fuselab.worker.operators.pairs import Pair

# Times outside that a loaded machine made shorter than nothing are taken again.
ATTEMPTS = 3
LOG = "worker.log"


@dataclass(frozen=True)
class Setting:
    """How pairs are judged: device, precision, seconds a step may take, what else is timed."""

    device: str
    precision: str
    timeout: int
    compiled: bool
    log: str = ""


def judge(files: Files, setting: Setting) -> Verdict:
    """Return the verdict of a pair; whatever it does costs no more than its processes."""
    pair = Pair(files.problem, files.solution, secrets.randbits(31), setting.device)
    kept = _Kept(files)
    looked = _look(pair, setting)
    kept.put_back()
    alone: Mapping[str, Measurement] = {}
    together: Mapping[str, Measurement] = {}
    if not looked.fault:
        dtype = looked.problem["dtype"]
        for _ in range(ATTEMPTS):
            alone = _measure(pair, dtype, setting, ISOLATED, EAGER, SOLUTION)
            kept.put_back()
            if not any(map(too_short, alone.values())):
                break
        if all(m.status.has_number or too_short(m) for m in alone.values()):
            names = (EAGER, *((COMPILE,) if setting.compiled else ()), SOLUTION, CEILING)
            together = _measure(pair, dtype, setting, default_timer(setting.device), *names)
            kept.put_back()
    return verdict(files, setting.device, kept.told(looked), alone, together)


class _Kept:
    """The files of a pair as they were, which a solution may find and rewrite."""

    def __init__(self, files: Files) -> None:
        self._known = {path: Path(path).read_bytes() for path in (files.problem, files.solution)}
        self._rewritten: set[str] = set()

    def put_back(self) -> None:
        """Write what is another now as it was: others are judged by the same problem."""
        for path, known in self._known.items():
            if not os.path.isfile(path) or Path(path).read_bytes() != known:
                write(path, known)
                self._rewritten.add(Path(path).name)

    def told(self, looked: Looked) -> Looked:
        """Return what was seen, with the names of files that had to be put back."""
        if not self._rewritten:
            return looked
        found = Finding("rewritten", ", ".join(sorted(self._rewritten)))
        return replace(looked, findings=(*looked.findings, found))


def _look(pair: Pair, setting: Setting) -> Looked:
    # It may compile, as a step of the worker that is announced as that.
    seconds = setting.timeout * runner.COMPILE_FACTOR
    question = {"source": pair.source}
    answers, why = child.ask("fuselab.judge.look", question, seconds, caches.variables())
    return Looked.of(answers, why)


def _measure(
    pair: Pair, dtype: str, setting: Setting, timer: str, *impls: str
) -> Mapping[str, Measurement]:
    """Measure in a worker of its own, which ends with whatever the solution did to it."""
    place = (pairs.NAME, pairs.CASE, dtype, "fwd", "contiguous", setting.device)
    group = Group(*place, impls, pair.source, precision=setting.precision, timer=timer)
    with Worker(entry.main, setting.device, setting.timeout, setting.log) as worker:
        (step,) = runner.run([group], worker)
    return {m.cell.impl: m for m in step.measurements}


def log_of(folder: str | os.PathLike[str]) -> str:
    """Return where workers write what pairs print."""
    return str(Path(folder) / LOG)
