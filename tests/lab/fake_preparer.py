"""A worker that prepares as the name of the case says, without torch or a device."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from fuselab.model import Status


def main(pipe: Connection, alive: Connection, device: str, log: str) -> None:
    os.setsid()
    if device == "cuda:7":
        os._exit(9)
    pipe.send(("ready", {}))
    while True:
        try:
            _kind, group, _share = pipe.recv()
        except EOFError:
            return
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {group.case}\n")
        pipe.send(("start", "compile", "preparation"))
        if group.case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif group.case == "hangs":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        elif group.case == "fatal":
            pipe.send(("fatal", "", Status.CRASHED, "the device is lost"))
            return
        time.sleep(0.2)  # for the others to take their part
        pipe.send(("result", "compile"))
        pipe.send(("done",))
