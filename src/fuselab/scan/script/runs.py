"""Runs of a script in processes of their own, and what they answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselab.errors import LabError
from fuselab.machine.load import told
from fuselab.processes import caches, child
from fuselab.scan.record import Outcome
from fuselab.scan.script import plan
from fuselab.scan.script.plan import Run
from fuselab.scan.script.steps import CALLS, OPTIMIZER

Told = Callable[[str, str], None]


class ScanError(LabError, RuntimeError):
    """A script of which nothing could be recorded; the text says why."""


@dataclass(frozen=True)
class Script:
    """A script, its arguments, and how it is run.

    folder   where traces are written
    steps    how many are timed of each kind
    seconds  that one run may take
    ways     what is applied: "patch", "enable"
    """

    path: str
    arguments: tuple[str, ...]
    folder: Path
    steps: int
    seconds: float
    ways: tuple[str, ...]


@dataclass
class Heard:
    """What runs of a script answered.

    kind, seen     what a step is, and how many of each kind there were
    traces         paths of the profiled steps, by stage; tables: the profiler's own times of these
    seconds, host  of each step by stage, whole and until all was launched
    served         calls that `enable` served in the patched step
    load           what others did to the machine while steps were timed
    list_dtype     of all parameters, or ""
    raised         how the script failed, or ""
    gpu            whether it had memory of a GPU
    """

    kind: str = ""
    seen: Mapping[str, int] = field(default_factory=dict)
    traces: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    host: dict[str, list[float]] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    load: str = ""
    list_dtype: str = ""
    raised: str = ""
    gpu: bool = False

    def take(self, answers: Sequence[Mapping[str, Any]], why: str) -> bool:
        """Take what a run answered; return whether the script had all the steps that it wanted."""
        for said in answers:
            if "trace" in said:
                self.traces.setdefault(said["trace"], []).append(said["path"])
                self.tables.setdefault(said["trace"], []).append(said["table"])
                self.seconds.setdefault(said["trace"], []).append(said["seconds"])
            elif "timed" in said:
                self.seconds[said["timed"]] = said["seconds"]
                self.host[said["timed"]] = said["host"]
                self.load = told(self.load, said["load"])
            elif "patched" in said:
                self.list_dtype = said["list_dtype"]
            elif "served" in said:
                self.served = {n.split()[0]: k for n, k in said["served"].items() if k}
        if not answers or "ended" not in answers[-1]:
            self.raised = why
            return False
        ended = answers[-1]["ended"]
        self.kind, self.seen = answers[-1]["kind"], answers[-1]["seen"]
        self.gpu = answers[-1]["gpu"]
        self.raised = ended["text"] if ended["how"] == "raised" else ""
        return bool(ended["how"] == "stopped")

    @property
    def available(self) -> int:
        """How many steps of its kind a run of the script has."""
        steps = self.seen.get(self.kind, 0)
        return steps - 1 if self.kind == OPTIMIZER else steps


class Runs:
    """The runs of a script: first those that record, then those that compare."""

    def __init__(self, script: Script, told: Told) -> None:
        self._script, self._told = script, told
        self._kind = ""
        self._available: int | None = None

    def record(self) -> Heard:
        """Return what the script's plain steps and a patched one were seen to do.

        Raises ScanError where no step could be recorded.
        """
        heard = Heard()
        (whole,) = plan.recording(self._script.steps)
        if not self._run(whole, heard) and not heard.raised:
            self._learn(heard)
            heard = Heard()
            for run in plan.recording(self._script.steps, self._available):
                if not self._run(run, heard) and heard.raised:
                    break
        self._kind = heard.kind
        if not heard.traces.get(plan.PROFILE):
            raise ScanError(f"{self._script.path}: no step could be recorded: {_why(heard)}")
        return heard

    def compare(self) -> tuple[Outcome | None, str]:
        """Return what steps took plain and patched, and why that is doubtful or unknown, or ""."""
        heard = Heard()
        for run in plan.comparing(self._script.steps, self._available):
            enough = self._run(run, heard)
        if not enough and not heard.raised and self._available is None:
            self._learn(heard)
            heard = Heard()
            for run in plan.comparing(self._script.steps, self._available):
                self._run(run, heard)
        times = {name: tuple(1e3 * s for s in found) for name, found in heard.seconds.items()}
        if not (times.get(plan.PLAIN) and times.get(plan.PATCHED)):
            return None, _why(heard)
        plain, patched, again = (times.get(n, ()) for n in (plan.PLAIN, plan.PATCHED, plan.AGAIN))
        return Outcome(plain, patched, again), heard.load

    def _learn(self, heard: Heard) -> None:
        """Take note of how many steps the script has, and of which kind."""
        if heard.available < 1 and heard.seen.get(CALLS):
            heard.kind = CALLS
        if heard.available < 1:
            raise ScanError(
                f"{self._script.path}: it has no step: expected an optimizer that makes two steps, "
                "a call of a torch.nn.Module, or `with fuselab.scan.step():`"
            )
        self._kind, self._available = heard.kind, heard.available
        self._told("script", f"it has {self._available} steps: each stage in a run of its own")

    def _run(self, run: Run, heard: Heard) -> bool:
        script = self._script
        question = {
            "script": script.path,
            "arguments": script.arguments,
            "stages": run,
            "folder": str(script.folder.resolve()),
            "ways": script.ways,
            "kind": self._kind,
        }
        self._told("script", "run for " + ", ".join(f"{n} {name}" for name, n in run))
        said = child.ask("fuselab.scan.script.child", question, script.seconds, caches.variables())
        return heard.take(*said)


def _why(heard: Heard) -> str:
    return heard.raised or "the script ended before"
