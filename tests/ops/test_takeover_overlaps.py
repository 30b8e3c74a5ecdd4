"""enable() from threads and generators, under modes, and in blocks that end in any order."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import MARKS
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import fuseline
from fuseline.takeover import TAKEOVERS

pytestmark = [*MARKS, pytest.mark.usefixtures("given_back")]


def on() -> set[str]:
    return {s.op for s in fuseline.status().served if s.enabled}


def block(ops: list[str]) -> Iterator[None]:
    with fuseline.enabled(ops):
        yield


def test_blocks_of_generators_end_in_any_order() -> None:
    draw = random.Random(7)
    names = sorted(TAKEOVERS)
    opened: list[tuple[list[str], Iterator[None]]] = []
    for _ in range(300):
        if opened and draw.random() < 0.5:
            _, generator = opened.pop(draw.randrange(len(opened)))
            assert next(generator, "ended") == "ended"
        else:
            ops = draw.sample(names, draw.randint(1, 3))
            opened.append((ops, block(ops)))
            next(opened[-1][1])
        assert on() == {op for ops, _ in opened for op in ops}


def test_blocks_of_threads_end_in_any_order() -> None:
    for first_out in (0, 1):
        leave, inside, left = ([threading.Event() for _ in range(2)] for _ in range(3))

        def run(i: int, leave=leave, inside=inside, left=left) -> None:
            with fuseline.enabled(["softmax"]):
                inside[i].set()
                leave[i].wait()
            left[i].set()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for i, thread in enumerate(threads):
            thread.start()
            inside[i].wait()
        for i in (first_out, 1 - first_out):
            assert on() == {"softmax"}
            leave[i].set()
            left[i].wait()
        assert on() == set()
        for thread in threads:
            thread.join()


def test_what_is_said_outside_of_a_block_outlives_it() -> None:
    generator = block(["softmax"])

    def run() -> None:
        next(generator)
        fuseline.disable("softmax")  # what another thread's block needs

    with fuseline.enabled(["gelu"]):
        thread = threading.Thread(target=lambda: fuseline.enable("rms_norm"))
        thread.start()
        thread.join()
        assert on() == {"gelu", "rms_norm"}
        fuseline.disable()
        assert on() == set()
    assert on() == {"rms_norm"}
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert on() == {"rms_norm"}
    next(generator, None)  # entered in one thread, left in another
    assert on() == {"rms_norm"}
    fuseline.disable()
    assert on() == set()


RACE = """
import sys, threading
import torch, fuseline
x = torch.randn(3, 8)
def run(seed):
    for i in range(200):
        torch.ops.fuseline._take_over("softmax", "CPU", (i + seed) % 3 != 0)
threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
torch.ops.fuseline._take_over("softmax", "CPU", False)
torch.testing.assert_close(torch.softmax(x, -1), x.double().exp().div(
    x.double().exp().sum(-1, True)).float())
print("ended")
"""


def test_eight_threads_may_take_over_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RACE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_atens_operators_and_not_how_they_are_taken_over() -> None:
    x = torch.randn(3, 8)
    with Log() as log, fuseline.enabled(TAKEOVERS):
        F.rms_norm(x, (8,))
        F.layer_norm(x, (8,))
        F.softmax(x, -1)
        F.log_softmax(x, -1)
        F.gelu(x, approximate="tanh")
    assert log.seen == [
        "aten._fused_rms_norm.default",
        "aten.native_layer_norm.default",
        "aten._softmax.default",
        "aten._log_softmax.default",
        "aten.gelu.default",
    ]


def test_it_may_be_called_under_a_fake_mode_and_a_transform() -> None:
    with FakeTensorMode(), fuseline.enabled():
        assert "softmax" in on()
    assert on() == set()

    def inside(x: torch.Tensor) -> torch.Tensor:
        with fuseline.enabled():
            assert "softmax" in on()
            return F.softmax(x, -1)

    x = torch.randn(3, 8)
    for transform in (torch.vmap, lambda f: torch.func.vjp(f, x)[1], torch.func.functionalize):
        transform(inside)(x)
        assert on() == set()
