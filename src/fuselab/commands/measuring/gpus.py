"""fuselab run --gpus: which GPUs of this machine, and a worker process on each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

import torch

from fuselab.planning.plan import PlanError
from fuselab.processes import caches
from fuselab.runner import Worker
from fuselab.worker import entry

ALL = "all"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def numbers(text: str, count: int) -> list[int]:
    """Return the numbers of the GPUs that a text names: "all", or numbers with commas."""
    if text == ALL and count:
        return list(range(count))
    have = ", ".join(map(str, range(count))) or "none"
    found = text.split(",")
    if not all(one.isdecimal() and int(one) < count for one in found):
        raise PlanError(
            f"gpus: got {text!r}, expected {ALL} or numbers of GPUs with commas: {have}"
        )
    if len(set(map(int, found))) < len(found):
        raise PlanError(f"gpus: got {text!r}, expected each GPU once")
    return [int(one) for one in found]


def chosen(text: str | None) -> list[int]:
    """Return the numbers that a text names among this process's GPUs; [] for None."""
    return [] if text is None else numbers(text, torch.cuda.device_count())


def names(wanted: Sequence[int]) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES calls the GPUs of these numbers, each alone."""
    visible = os.environ.get(VISIBLE)
    return [visible.split(",")[number] if visible else str(number) for number in wanted]


@contextmanager
def first(wanted: Sequence[int]) -> Iterator[None]:
    """Have the processes that are started see the first of these GPUs alone, if there is one."""
    before = os.environ.get(VISIBLE)
    if wanted:
        os.environ[VISIBLE] = names(wanted)[0]
    try:
        yield
    finally:
        os.environ.pop(VISIBLE, None)
        if before is not None:
            os.environ[VISIBLE] = before


def workers(
    count: int, device: str, timeout: float, log: str, named: Sequence[str]
) -> list[Callable[[Connection], Worker]]:
    """Return what starts so many workers, each on one of these GPUs, by turns; the only one that it
    sees. Without names all are on `device`.
    """
    turns = [{VISIBLE: named[i % len(named)]} if named else {} for i in range(count)]
    return [partial(_start, device, timeout, log, turn) for turn in turns]


def _start(
    device: str, timeout: float, log: str, visible: dict[str, str], cancel: Connection
) -> Worker:
    folders = caches.variables() | visible if visible else None
    return Worker(entry.main, device, timeout, log, folders, cancel)
