"""What a solution does to the process around it: functions, files, frames, threads, modules."""

from __future__ import annotations

import builtins
import os
import random
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch._dynamo.config
import torch._inductor.config

from fuselab.worker.checks.guard import Guard

# Whose functions a solution must leave as they are.
OWNERS: tuple[object, ...] = (
    *(builtins, time, random, os, torch, torch.Tensor, torch.cuda, torch.autograd, torch.testing),
    *(torch.nn.functional, torch.nn.Module, torch.backends, torch.random),
)
_LOOKS = ("sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers")
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
_HEARD = ("open", *_LOOKS, *_STARTS)
_STDLIB = (sysconfig.get_path("stdlib"), "<frozen")
_WRITING = os.O_WRONLY | os.O_RDWR


class Watch:
    """Notes what a solution's own lines do while it is open, over several openings.

    An audit hook of Python's cannot be removed: this is for a process of its own.
    """

    def __init__(self, solution: str, problem: str) -> None:
        self._solution, self._problem = os.path.realpath(solution), os.path.realpath(problem)
        # Torch's compiler replaces some of torch's functions when it is first used, or imported.
        torch.compile(torch.neg, backend="eager")(torch.ones(1))
        self._configured = _compilers_settings()
        self._guard = Guard()
        self._guard.hold(*OWNERS)
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._open = False
        self._written: set[str] = set()
        self._looked: set[str] = set()
        self._starts = False
        self._called = 0
        self._started: list[threading.Thread] = []
        self._left = 0  # of these, most that ran on behind a call
        self._note_threads()
        sys.addaudithook(self._heard)

    def __enter__(self) -> Watch:
        self._hook = torch.nn.modules.module.register_module_forward_hook(self._forward)
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        self._hook.remove()
        self._left = max(self._left, sum(thread.is_alive() for thread in self._started))

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of what was noted."""
        if replaced := self._guard.replaced():
            yield "replaced", replaced
        if self._called:
            yield "model", ""
        if self._written:
            yield "writes", ", ".join(sorted(self._written))
        if self._looked:
            yield "looks", ", ".join(sorted(self._looked))
        if self._left:
            yield "threads", str(self._left)
        if self._starts and (left := _children()):
            yield "processes", str(left)
        now = _compilers_settings()
        if changed := [name for name, value in self._configured.items() if now[name] != value]:
            yield "configures", ", ".join(changed)

    def _note_threads(self) -> None:
        start = threading.Thread.start

        def noting(thread: threading.Thread) -> None:
            if self._open and self._by_solution():
                self._started.append(thread)
            start(thread)

        threading.Thread.start = noting  # type: ignore[assignment, method-assign]

    def _forward(self, module: torch.nn.Module, given: Any, output: Any) -> None:
        code = getattr(type(module).forward, "__code__", None)
        if code and os.path.realpath(code.co_filename) == self._problem:
            self._called += 1

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._open or event not in _HEARD:
            return
        self._open = False  # what follows is heard, too
        if (event != "open" or self._writes(*arguments)) and self._by_solution():
            if event in _LOOKS:
                self._looked.add(event)
            elif event in _STARTS:
                self._starts = True
            else:
                self._written.add(Path(os.fsdecode(arguments[0])).name)
        self._open = True

    def _by_solution(self) -> bool:
        """Say whether the innermost frame that is not of Python's own library is the solution's."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(_STDLIB) or "site-packages" in name:
                return os.path.realpath(name) == self._solution
            frame = frame.f_back
        return False

    def _writes(self, path: Any, mode: Any, flags: Any) -> bool:
        """Say whether a file is opened to write to, outside of the temporary folder."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        writing = any(c in mode for c in "wax+") if isinstance(mode, str) else flags & _WRITING
        place = os.path.realpath(os.fsdecode(path))
        allowed = place.startswith((self._temporary, os.devnull)) or "__pycache__" in place
        return bool(writing) and not allowed


def _children() -> int:
    """Return how many child processes of this one run."""
    own, found = str(os.getpid()), 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        found += parent == own and state != "Z"
    return found


def _compilers_settings() -> dict[str, Any]:
    """Return the settings of torch's compiler, which a baseline is compiled with, by name."""
    modules = {"dynamo": torch._dynamo.config, "inductor": torch._inductor.config}
    return {
        f"{short}.{name}": value
        for short, module in modules.items()
        for name, value in module.get_config_copy().items()
    }
