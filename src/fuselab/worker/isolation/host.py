"""The worker's side of the processes of `--isolate`: shared memory, requests, the clock.

A process of an implementation runs only while it is asked: it is stopped (SIGSTOP) otherwise. So
nothing in it can work before the clock starts, on contents that are written meanwhile, or after it
has stopped. What it answers is JSON and is never unpickled: that would run its code here.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import torch
from torch import Tensor

from fuselab.model import Status
from fuselab.processes import starts
from fuselab.worker.isolation import guest
from fuselab.worker.protocol import synchronize
from fuselab.worker.tensors import contents
from fuselab.worker.tensors.problem import InputSet, Problem

POISON = 0xFF
LONGEST = 1 << 16
STOP_S = 1.0
GRACE_S = 5.0
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Refused(Exception):
    """The guest could not do it; the status and the text say why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Rooms:
    """Memory that the worker and all guests see: inputs, output gradients and results by slot.

    The problem's own sets stay with the worker; slots hold copies of them for one batch.
    """

    def __init__(self, problem: Problem) -> None:
        self._device = problem.device
        self.slots = [_copy(given) for given in problem.sets]
        self.results = [tuple(_shared(t) for t in problem.blank()) for _ in problem.sets]
        self.erase()

    def erase(self) -> None:
        """Fill results and output gradients with NaN, so that earlier ones tell nothing."""
        dys = [slot.dys or () for slot in self.slots]
        for tensor in (t for tensors in (*self.results, *dys) for t in tensors):
            tensor.view(-1).view(torch.uint8).fill_(POISON)

    def give(self, sets: Sequence[InputSet]) -> None:
        """Put inputs into the slots."""
        for slot, given in zip(self.slots, sets, strict=False):
            contents.fill(contents_of(slot), contents_of(given), silent=True)
        synchronize(self._device)

    def give_gradients(self, sets: Sequence[InputSet]) -> None:
        """Put output gradients into the slots."""
        for slot, given in zip(self.slots, sets, strict=False):
            for into, dy in zip(slot.dys or (), given.dys or (), strict=True):
                into.data.copy_(dy)
        synchronize(self._device)

    def changed(self, sets: Sequence[InputSet]) -> list[str]:
        """Return the names of inputs that are no longer those that were given."""
        pairs = list(zip(self.slots, sets, strict=False))
        return [
            name
            for name in contents_of(pairs[0][0])
            if not all(_same(contents_of(a)[name], contents_of(b)[name]) for a, b in pairs)
        ]

    def unwritten(self, count: int) -> bool:
        """Say whether a result still has elements that nobody wrote."""
        tensors = [t for slot in self.results[:count] for t in slot if t.is_floating_point()]
        return any(
            bool((t.view(_INTEGERS[t.element_size()]) == -1).any())
            for t in tensors
            if t.element_size() in _INTEGERS
        )


class Guest:
    """The process of an implementation ("": of the empty one), on the worker's side."""

    def __init__(self, problem: Problem, rooms: Rooms, impl: str) -> None:
        self._problem, self._rooms = problem, rooms
        # Graphs and graph breaks of torch's compiler in that process so far.
        self.compiled = (0, 0)
        memories = (*(slot.tensors for slot in rooms.slots), *rooms.results)
        context = starts.context(sum(map(len, memories)))
        self._ended = False
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        desk = guest.Desk(
            *(problem.group.source, problem.group.op, impl, str(problem.device)),
            inputs=[slot.inputs for slot in rooms.slots],
            dys=[slot.dys for slot in rooms.slots],
            results=rooms.results,
        )
        # As arguments, tensors travel without a server here that a guest could talk to.
        self._process = context.Process(target=guest.main, args=(theirs, desk), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._ask("load")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, which gives back a GPU's shared memory if it ends by itself."""
        self._signal(signal.SIGCONT)
        self._pipe.close()
        self._process.join(GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(GRACE_S)

    def batch(self, sets: Sequence[InputSet]) -> float:
        """Return the us from the request for calls on these sets to the answer."""
        self._rooms.erase()
        self._rooms.give(sets)
        if sets[0].dys is not None:
            self._ask("prepare", len(sets))
            self._rooms.give_gradients(sets)
        taken = self._ask("go", len(sets))
        if self._rooms.unwritten(len(sets)):
            raise Refused(Status.INVALID, "it answered before its results were there")
        return taken

    def results(self, index: int) -> tuple[Tensor, ...]:
        """Return a copy of the results of a call of the last batch."""
        return tuple(t.clone() for t in self._rooms.results[index])

    def _ask(self, *request: Any) -> float:
        """Send a request, let the process run until its answer; return the us it took.

        Refused if the answer is an error, or none.
        """
        token = secrets.token_hex(8)
        synchronize(self._problem.device)
        if self._pipe.poll():
            raise Refused(Status.INVALID, "its process answered before it was asked")
        begin = perf_counter()
        try:
            self._pipe.send((token, *request))
            self._signal(signal.SIGCONT)
            said = self._pipe.recv_bytes(LONGEST)
        except (EOFError, OSError):
            self._ended = True
            self._process.join(GRACE_S)
            reason = f"its process ended with code {self._process.exitcode}"
            raise Refused(Status.CRASHED, reason) from None
        taken = (perf_counter() - begin) * 1e6
        self._stop()
        self._read(said, token)
        return taken

    def _read(self, said: bytes, token: str) -> None:
        try:
            answer = json.loads(said)
            known = answer["token"] == token
            kind, text = map(str, answer["fault"])
            self.compiled = int(answer["graphs"]), int(answer["breaks"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Refused(Status.ERROR, "its process gave no answer that can be read") from error
        if not known:
            raise Refused(Status.INVALID, "its process answered before it was asked")
        if kind:
            known_kinds = ("unsupported", "out_of_memory", "incorrect")
            status = Status(kind) if kind in known_kinds else Status.ERROR
            raise Refused(status, text)

    def _signal(self, number: int) -> None:
        # Not asking the fork server whether it lives, which another guest may have killed.
        with suppress(ProcessLookupError):
            if self._process.pid is not None and not self._ended:
                os.kill(self._process.pid, number)

    def _stop(self) -> None:
        """Stop all threads of the process and wait until they have stopped."""
        self._signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        deadline = monotonic() + STOP_S
        while not _stopped(tasks) and monotonic() < deadline:
            sleep(1e-4)


def contents_of(given: InputSet) -> dict[str, Tensor]:
    """Return the input tensors of a set, without output gradients."""
    return InputSet(given.inputs, None).tensors


def _stopped(tasks: Path) -> bool:
    """Say whether every thread is stopped, or ended; true where the system does not tell."""
    try:
        states = [f.read_text().rpartition(")")[2].split()[0] for f in tasks.glob("*/stat")]
    except OSError:  # a thread that ended meanwhile
        return False
    return all(state in "TtZX" for state in states)


def _copy(given: InputSet) -> InputSet:
    inputs = {n: _shared(v) if isinstance(v, Tensor) else v for n, v in given.inputs.items()}
    return InputSet(inputs, given.dys and tuple(_shared(dy) for dy in given.dys))


def _shared(tensor: Tensor) -> Tensor:
    """Return a copy in memory that other processes can see, of the same shape and strides."""
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    memory = torch.empty(max(1, extent), dtype=tensor.dtype, device=tensor.device)
    if tensor.device.type == "cpu":
        memory.share_memory_()
    copied = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copied.set_(memory.untyped_storage(), 0, tensor.shape, tensor.stride())
    contents.overwrite(copied, tensor)
    return copied


def _same(a: Tensor, b: Tensor) -> bool:
    word = _INTEGERS.get(a.element_size(), torch.uint8)
    return torch.equal(a.view(word), b.view(word)) if a.element_size() <= 8 else torch.equal(a, b)
