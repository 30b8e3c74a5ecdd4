"""What is done in which of a script's steps: warmed up, profiled, timed, patched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import fuseline
from fuselab.machine.load import OtherLoad
from fuselab.scan.script.plan import COVER, PATCHING, PROFILE, TIMED, UNPATCH
from fuselab.scan.script.steps import Steps

Answer = Callable[[dict[str, Any]], None]


class Enough(BaseException):
    """Ends a script of which all is known; no Exception, which a script may catch."""


class Stages:
    """Goes through the stages of a run, each so many steps, and answers with what each gave.

    stages  names of `plan` with their numbers of steps
    folder  where traces are written
    ways    what is applied where it is patched: "patch", "enable"
    """

    def __init__(
        self, stages: Sequence[tuple[str, int]], folder: Path, ways: Sequence[str], answer: Answer
    ) -> None:
        self._stages, self._folder, self._ways, self._answer = list(stages), folder, ways, answer
        self._done = 0  # steps of the stage
        self._times: list[float] = []
        self._launched: list[float] = []  # seconds until the host was done
        self._profile: Any = None
        self._begun, self._traces = False, 0
        self._patched = False
        self._before: dict[str, int] = {}
        self.over = False
        self.steps: Steps | None = None

    def began(self) -> None:
        """Do what comes before a step."""
        if self.over:
            raise Enough
        self._begun = True
        name = self._stages[0][0]
        if name in PATCHING:
            self._patch(name)
        wait()
        if name in TIMED and self._done == 0:
            self._others = OtherLoad(torch.get_num_threads())
            self._others.__enter__()
        if name in (PROFILE, COVER):
            self._profile = profiler()
            self._profile.__enter__()
        self._start = time.perf_counter()

    def ended(self) -> None:
        """Do what comes after a step; raise Enough after the last one."""
        if not self._begun or self.over:
            return
        launched = time.perf_counter() - self._start
        wait()
        seconds = time.perf_counter() - self._start
        self._begun = False
        name, count = self._stages[0]
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            self._traces += 1
            path = self._folder / f"{name}-{self._traces}.json"
            self._profile.export_chrome_trace(str(path))
            table = {e.key: [e.self_cpu_time_total, e.self_device_time_total] for e in
                     self._profile.key_averages()}  # fmt: skip
            self._profile = None
            said = {"trace": name, "path": str(path), "seconds": seconds, "table": table}
            self._answer(said)
        self._times.append(seconds)
        self._launched.append(launched)
        self._done += 1
        if self.steps is not None:
            self.steps.settle()
        if self._done == count:
            self._next()

    def _next(self) -> None:
        name, _ = self._stages.pop(0)
        if name in TIMED:
            self._others.__exit__()
            said = {"timed": name, "seconds": self._times, "host": self._launched}
            self._answer(said | {"load": self._others.disturbance})
        self._done, self._times, self._launched = 0, [], []
        if name == COVER:
            self._tell_cover()
        if not self._stages:
            self.over = True
            raise Enough
        following = self._stages[0][0]
        if following in PATCHING:
            self._patch(following)
        elif following == UNPATCH:
            self._unpatch()
        if following == COVER:
            self._before = _served()

    def _patch(self, name: str) -> None:
        """Apply the ways to all modules that are known, once."""
        if self._patched:
            return
        self._patched = True
        roots = self.steps.roots if self.steps is not None else []
        for root in roots if "patch" in self._ways else ():
            # A loss that makes its logits by chunks is many calls, none of which is a case.
            fuseline.patch(root, keep_logits=True)
        if "enable" in self._ways:
            fuseline.enable()
        self._before = _served()
        self._answer({"patched": name, "list_dtype": _dtype(roots)})

    def _tell_cover(self) -> None:
        after = _served()
        self._answer({"served": {n: after[n] - self._before.get(n, 0) for n in after}})

    def _unpatch(self) -> None:
        for root in self.steps.roots if self.steps is not None else ():
            fuseline.unpatch(root)
        fuseline.disable()
        self._patched = False


def _dtype(roots: Sequence[torch.nn.Module]) -> str:
    """Return the dtype of all parameters, which lists of them have; "" where they differ."""
    found = {str(p.dtype).removeprefix("torch.") for root in roots for p in root.parameters()}
    return found.pop() if len(found) == 1 else ""


def _served() -> dict[str, int]:
    """Return the calls that `enable` has served so far, by ATen operator and device."""
    return {
        f"{name} {pair.device}": calls
        for pair in fuseline.status().served
        for name, calls in pair.calls.items()
    }


def wait() -> None:
    """Wait for the GPU, where the script uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def profiler() -> Any:
    """Return a profile of a step: operators with shapes, and the kernels of a GPU."""
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        kinds.append(ProfilerActivity.CUDA)
    return profile(activities=kinds, record_shapes=True)
