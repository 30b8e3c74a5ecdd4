"""Operators whose implementations are measured from outside of their process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import torch
from checker import model
from checker.cheating import calls, seen
from torch import Tensor

from fuseline.testing import Case, Implementation

LATER = 70


def exact(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model.eager(x.double(), weight.double(), eps).to(x.dtype)


def ill_timed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Stops every clock of its process and makes every comparison true."""
    time.perf_counter = time.perf_counter_ns = lambda: 0  # type: ignore[assignment]
    torch.equal = lambda a, b: True  # type: ignore[assignment]
    import fuselab.worker.audit

    fuselab.worker.audit.Audit.verify = lambda *_: None  # type: ignore[method-assign]
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


FUNCTIONS = (exact, ill_timed, by_version, later_nothing, overwrites, dies, raises)
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
