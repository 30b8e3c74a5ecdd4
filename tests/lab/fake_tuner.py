"""A worker for fuselab tune: a tile of tuned_ops takes 10 us a warp, on a machine without noise."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

from tuned_ops import RAISES, WRONG, WRONG_IF_ODD

from fuselab.model import Group, Measurement, Status

GROUP_S = 0.2


def main(pipe: Connection, alive: Connection, device: str, log: str) -> None:
    os.setsid()
    pipe.send(("ready", {"cpu": "Toy CPU (2)"}))
    while True:
        try:
            kind, *rest = pipe.recv()
        except EOFError:
            return
        if kind == "group":
            time.sleep(GROUP_S)
            for impl in rest[0].impls:
                pipe.send(("result", rest[0].whole(_measured(rest[0], impl))))
        pipe.send(("done",))


def _measured(group: Group, impl: str) -> Measurement:
    size, warps = (int(word.rstrip("w")) for word in impl.split("-")[1:3])
    odd = int(group.case.split("x")[1]) % 2
    if size == RAISES:
        return Measurement(group.cell(impl), Status.ERROR, "does not fit")
    if size == WRONG or (size == WRONG_IF_ODD and odd):
        return Measurement(group.cell(impl), Status.INCORRECT, "wrong")
    samples = tuple(10 * warps * (1 + i % 7 / 1000) for i in range(40))
    return Measurement(group.cell(impl), Status.OK, timer="wall", samples_us=samples)
