"""Operators whose implementations are measured from outside of their process."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from checker import model
from checker.cheating import calls, seen
from torch import Tensor

from fuseline.testing import Case, Implementation

LATER = 70
SLOW_S = 2e-3
watched: dict[int, tuple[Tensor, Tensor]] = {}
foreseen: dict[int, tuple[Tensor, Tensor, Tensor]] = {}


def exact(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model.eager(x.double(), weight.double(), eps).to(x.dtype)


def ill_timed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Stops every clock of its process and makes every comparison true."""
    time.perf_counter = time.perf_counter_ns = lambda: 0  # type: ignore[assignment]
    torch.equal = lambda a, b: True  # type: ignore[assignment]
    import fuselab.worker.checks.audit

    fuselab.worker.checks.audit.Audit.verify = lambda *_: None  # type: ignore[method-assign]
    return torch.zeros_like(x)


def by_version(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    key = "isolated", x.data_ptr(), x._version
    if key not in seen:
        seen[key] = model.eager(x, weight, eps)
    return seen[key]


def later_nothing(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model.eager(x, weight, eps) if calls("isolated") < LATER else torch.zeros_like(x)


def overwrites(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = model.eager(x, weight, eps)
    x.copy_(y)
    return y


def dies(x: Tensor, weight: Tensor, eps: float) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def raises(x: Tensor, weight: Tensor, eps: float) -> Any:
    raise ValueError("no such tile")


def orphans(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Kills, once, the process that it was started by."""
    if calls("orphans") == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    return model.eager(x, weight, eps)


def foresees(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Has a thread compute, between the calls, what it finds in the inputs of later calls."""
    watched.setdefault(x.data_ptr(), (x, weight))
    if "thread" not in seen:
        seen["thread"] = threading.Thread(target=_foresee, args=(eps,), daemon=True)
        seen["thread"].start()
    kept = foreseen.get(x.data_ptr())
    if kept is not None and torch.equal(kept[0], x) and torch.equal(kept[1], weight):
        return kept[2]
    time.sleep(SLOW_S)  # so that foreseeing is seen in the time
    return model.eager(x, weight, eps)


def _foresee(eps: float) -> None:
    while True:
        for address, (x, weight) in list(watched.items()):
            kept = foreseen.get(address)
            if kept is None or not torch.equal(kept[0], x):
                done = time.thread_time() + SLOW_S  # a sleep would go on while it is stopped
                while time.thread_time() < done:
                    pass
                mine = x.clone(), weight.clone()
                foreseen[address] = *mine, model.eager(*mine, eps)
        time.sleep(1e-4)


def _nothing(*_: object) -> None:
    """Send nothing."""


def speaks_early(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Answers every request at once, and computes afterwards."""
    if calls("early") == 60:
        send = Connection.send_bytes

        def receive(pipe: Connection) -> Any:
            request = pickle.loads(pipe.recv_bytes())  # noqa: S301
            answer = {"token": request[0], "fault": ("", ""), "graphs": 0, "breaks": 0}
            send(pipe, json.dumps(answer).encode())
            return request

        Connection.recv = receive  # type: ignore[method-assign]
        # The answer to the request that is served now must still come.
        answers = iter([send])
        Connection.send_bytes = lambda *said: next(answers, _nothing)(*said)  # type: ignore
    return model.eager(x, weight, eps)


class Bomb:
    """Runs code in who unpickles it."""

    def __reduce__(self) -> Any:
        return os.kill, (os.getppid(), signal.SIGKILL)


def sends_code(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Answers with what would run in a process that unpickles it."""
    send = Connection.send_bytes
    Connection.send_bytes = lambda pipe, *_: send(pipe, pickle.dumps(Bomb()))  # type: ignore[method-assign]
    return model.eager(x, weight, eps)


def zeroes(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Makes the inputs such that nothing is the right result of them."""
    x.zero_()
    return torch.zeros_like(x)


def returns_a_list(x: Tensor, weight: Tensor, eps: float) -> list[int]:
    return [1]


FUNCTIONS = (
    *(exact, orphans, foresees, speaks_early, sends_code, zeroes, returns_a_list),
    *(ill_timed, by_version, later_nothing, overwrites, dies, raises),
)
SPEC = replace(
    model.spec(model.eager),
    name="isolated",
    cases=(Case("256x2048", {"shape": (256, 2048)}),),
    dtypes=(torch.float32,),
    implementations=(
        Implementation("eager", model.eager, "eager"),
        *(Implementation(fn.__name__, fn) for fn in FUNCTIONS),
    ),
)
