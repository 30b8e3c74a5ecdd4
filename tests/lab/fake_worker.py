"""A worker that behaves as the name of the case says, without torch or a device."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from fuselab.model import Group, Measurement, Proof, Status

BAD = "bad"
# What a module sees that is imported in the worker, as torch's compiler is.
AT_IMPORT = dict(os.environ)
EARLY = [name for name in ("torch._inductor", "torch._dynamo", "triton") if name in sys.modules]


def main(pipe: Connection, alive: Connection, device: str, log: str) -> None:
    os.setsid()
    if device == "cuda:7":
        os._exit(9)
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    pipe.send(("ready", {"pid": os.getpid(), "variables": AT_IMPORT, "early": EARLY}))
    while True:
        try:
            _kind, group, skip = pipe.recv()
        except EOFError:
            return
        pipe.send(("start", "", "inputs"))
        _measure(pipe, group, skip, log)
        pipe.send(("done",))
        if group.case == "leaves":
            os._exit(0)


def _measure(pipe: Connection, group: Group, skip: tuple[str, ...], log: str) -> None:
    if group.case == "no_inputs":
        os._exit(3)
    if group.case == "bad_yardstick" and "yardstick" not in skip:
        pipe.send(("start", "yardstick", "forward"))
        os._exit(4)
    for impl in group.impls:
        pipe.send(("start", impl, "forward"))
        if impl == BAD:
            _misbehave(pipe, group.case, log)
        pipe.send(("result", _result(group, impl, skip)))


def _misbehave(pipe: Connection, case: str, log: str) -> None:
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "exits":
        os._exit(5)
    elif case == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif case == "fatal":
        pipe.send(("fatal", BAD, Status.OUT_OF_MEMORY, "too large"))
        os._exit(0)
    elif case == "child_hangs":
        Path(log + ".pid").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)


def _result(group: Group, impl: str, skip: tuple[str, ...]) -> Measurement:
    # So that the tests see what it was asked, and who answers.
    proof = Proof(chosen=", ".join(sorted(skip)), version=str(os.getpid()))
    return Measurement(group.cell(impl), Status.OK, samples_us=(1.0,), proof=proof)
