"""The worker process: answers one request after the other and says what it is about to do.

Requests are tuples: ("group", Group, names to skip), ("prepare", Group, share of the memory),
("check", op, source, impl, options), ("selftest",), ("environment",), which is answered by the
start. Events: ("ready", environment), ("start", impl, phase), ("result", x),
("fatal", impl, status, reason), ("done",).
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from fuselab import environment
from fuselab.worker import group, prepare
from fuselab.worker.device import selftest
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.operators import specs
from fuselab.worker.protocol import Fatal
from fuseline.core.specs.spec_fields import OpSpecError
from fuseline.testing import check
from fuseline.testing.place import told


def main(pipe: Connection, alive: Connection, device: str, log: str) -> None:
    """Serve requests until the pipe closes; the process dies with whoever holds `alive`."""
    os.setsid()
    _die_with(alive)
    _write_to(log)
    _set_threads()
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device))

    def emit(*event: Any) -> None:
        try:
            pipe.send(event)
        except BrokenPipeError:  # the lab was interrupted: nobody is left to tell
            sys.exit()

    # What is loaded by now stays: the collection before each timing need not walk it.
    gc.freeze()
    emit("ready", environment.collect(device))
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            _answer(request, device, emit)
        except Fatal as fatal:
            emit("fatal", fatal.impl, fatal.status, fatal.reason)
            return
        emit("done")


def _answer(request: tuple[Any, ...], device: str, emit: Any) -> None:
    kind, *arguments = request
    if kind == "group":
        wanted, skip = arguments
        if COMPILE in wanted.impls:
            _load_compiler(emit)
        group.run(wanted, frozenset(skip), emit)
    elif kind == "prepare":
        wanted, share = arguments
        prepare.run(wanted, share, emit)
    elif kind == "check":
        op, source, impl, options = arguments
        emit("start", impl, "check")
        spec = specs.load(source)[op]
        try:
            emit("result", check(spec, (impl,), device=device, **_checker_options(options)))
        except Exception as error:  # of the spec's own reference or make_inputs
            emit("result", str(error) if isinstance(error, OpSpecError) else told(error))
    elif kind == "selftest":
        emit("result", selftest.run(torch.device(device), emit))


def _load_compiler(emit: Any) -> None:
    """Load torch's compiler before anything is timed; workers that compile nothing go without."""
    if "torch._dynamo" not in sys.modules:
        emit("start", COMPILE, "compile")
        importlib.import_module("torch._dynamo")
        gc.freeze()


def _checker_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with dtype names turned into dtypes."""
    dtypes = options.get("dtypes")
    return options | {"dtypes": [getattr(torch, name) for name in dtypes] if dtypes else None}


def _set_threads() -> None:
    """Follow an OMP_NUM_THREADS that was set after the fork server had loaded OpenMP."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) not in (0, torch.get_num_threads()):
        torch.set_num_threads(int(wanted))


def _die_with(alive: Connection) -> None:
    """Have the kernel kill this process group when the other end of `alive` closes.

    Unlike a thread that watches, this also works while an implementation holds the GIL.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fd = alive.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if alive.poll():
        os._exit(1)


def _write_to(log: str) -> None:
    """Send what implementations print to the log: stdout belongs to the command's own output."""
    target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    if log:
        os.dup2(target, 2)
    os.close(target)
    faulthandler.enable()
    # In C, at once: the runner asks for it when an implementation hangs, with the GIL perhaps.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
