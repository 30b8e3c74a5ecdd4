"""Instructions of one call on a CPU: perf_event where the kernel allows it, else callgrind."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fuselab.counters import Counts, Task, counted, perf_event, uncounted
from fuselab.counters.launch import Answer, answers

PERF, CALLGRIND = "perf_event", "callgrind"
REMEDY = "sudo apt-get install valgrind"
# Threads that wait for one another spin, and would count.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Instructions:
    """Instructions in user space, on one thread, per call."""

    names = ("instructions",)
    batch = 1

    def obstacle(self) -> str:
        refused = perf_event.refusal(perf_event.HARDWARE, perf_event.INSTRUCTIONS)
        if not refused or shutil.which("valgrind"):
            return ""
        return f"{refused}; or with callgrind: {REMEDY}"

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        refused = perf_event.refusal(perf_event.HARDWARE, perf_event.INSTRUCTIONS)
        source = CALLGRIND if refused else PERF
        # torch.utils.benchmark starts "python" from PATH: it must be this one.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        env = {"PATH": path, **ONE_THREAD}
        return [self._counts(a, source) for a in answers(source, tasks, seconds, env)]

    def _counts(self, answer: Answer, source: str) -> Counts:
        if "error" in answer:
            return uncounted(self.names, f"{source}: {answer['error']}", source)
        return counted({"instructions": answer["instructions"]}, source)
