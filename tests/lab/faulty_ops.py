"""The same operator, broken in every way that must cost one cell and no more."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import torch
from torch import Tensor
from toy_ops import right, spec, tell_pid

_CALLS: dict[str, int] = {}


def _calls(name: str) -> int:
    _CALLS[name] = _CALLS.get(name, 0) + 1
    return _CALLS[name]


def segfaults(x: Tensor, scale: float) -> Tensor:
    ctypes.string_at(0)
    return x


def aborts(x: Tensor, scale: float) -> Tensor:
    os.abort()


def hangs(x: Tensor, scale: float) -> Tensor:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell_pid()
    while True:
        # With the GIL held, as C code of an extension would hang.
        ctypes.PyDLL(None).sleep(600)


def hangs_in_python(x: Tensor, scale: float) -> Tensor:
    while True:
        time.sleep(0.01)


def hangs_later(x: Tensor, scale: float) -> Tensor:
    return right(x, scale) if _calls("hangs_later") < 8 else hangs_in_python(x, scale)


def kills_itself(x: Tensor, scale: float) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def leaves(x: Tensor, scale: float) -> Tensor:
    os._exit(3)


def interrupts(x: Tensor, scale: float) -> Tensor:
    raise KeyboardInterrupt


def recurses(x: Tensor, scale: float) -> Tensor:
    return recurses(x, scale)


def allocates(x: Tensor, scale: float) -> Tensor:
    return torch.empty(1 << 56, dtype=torch.uint8)


def raises(x: Tensor, scale: float) -> Tensor:
    raise ValueError("no such tile size")


def starves(x: Tensor, scale: float) -> Tensor:
    raise MemoryError("64 TiB wanted")


def overwrites(x: Tensor, scale: float) -> Tensor:
    y = right(x, scale)
    with torch.no_grad():
        x.mul_(2)
    return y


def overwrites_later(x: Tensor, scale: float) -> Tensor:
    return right(x, scale) if _calls("overwrites_later") < 8 else overwrites(x, scale)


def returns_a_list(x: Tensor, scale: float) -> list[str]:
    return ["y"]


def returns_integers(x: Tensor, scale: float) -> Tensor:
    return right(x, scale).long()


def returns_half(x: Tensor, scale: float) -> Tensor:
    return right(x, scale).bfloat16()


def returns_more(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return right(x, scale), x + 1


def returns_none_later(x: Tensor, scale: float) -> Tensor | None:
    return right(x, scale) if _calls("returns_none_later") <= 5 else None


def resizes(x: Tensor, scale: float) -> Tensor:
    y = right(x, scale)
    x.resize_(3)
    return y


def raises_strangely(x: Tensor, scale: float) -> Tensor:
    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Strange


def sets_threads(x: Tensor, scale: float) -> Tensor:
    torch.set_num_threads(torch.get_num_threads() + 1)
    return right(x, scale)


def sets_threads_and_raises(x: Tensor, scale: float) -> Tensor:
    sets_threads(x, scale)
    raise ValueError("no such tile size")


def raises_later(x: Tensor, scale: float) -> Tensor:
    return right(x, scale) if _calls("raises_later") < 8 else raises(x, scale)


def wrong(x: Tensor, scale: float) -> Tensor:
    return right(x, scale * 1.01)


def wrong_later(x: Tensor, scale: float) -> Tensor:
    return right(x, scale) if _calls("wrong_later") < 8 else wrong(x, scale)


def exits(x: Tensor, scale: float) -> Tensor:
    sys.exit(7)


FAULTY = spec(
    "faulty", right, segfaults, aborts, hangs, raises, starves, overwrites, wrong, exits,
    overwrites_later, wrong_later, returns_a_list, returns_integers, returns_half, returns_more,
    returns_none_later, resizes, raises_strangely, sets_threads, sets_threads_and_raises,
    raises_later, hangs_in_python, hangs_later, kills_itself, leaves, interrupts, recurses,
    allocates,
)  # fmt: skip
