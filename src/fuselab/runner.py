"""The runner: hands groups to a worker process, and charges its death to the culprit.

The parent never touches the device. A worker that crashes, hangs or runs out of memory costs the
implementation it had named last; the rest of the group runs again in a fresh worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import Pipe, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from fuselab.errors import LabError
from fuselab.model import Group, Measurement, Status
from fuselab.precision import LEVELS
from fuselab.processes import caches, starts, variables
from fuselab.statistics import stats
from fuselab.statistics.pooling import pool

Entry = Callable[[Connection, Connection, str, str], None]
T = TypeVar("T")

START_S = 300.0
COMPILE_FACTOR = 5.0
GRACE_S = 2.0
# A dump of all stacks takes milliseconds, unless the process is stuck in the kernel.
DUMP_S = 0.5
# Bounds what leaks and fragments of memory pile up; a fresh worker costs seconds in an hour.
GROUPS = 200
_INNERMOST = re.compile(r'^Current thread .*\n  File "(.*)", line (\d+) in (.+)', re.MULTILINE)


class WorkerError(LabError, RuntimeError):
    """The worker process for a device does not start; the text says why."""

    code = 3


class Cancelled(Exception):
    """Nobody wants the answer of the worker any more."""


@dataclass(frozen=True)
class Death:
    """Why a worker ended early: the implementation to blame ("" for none), and its verdict."""

    impl: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Reply:
    """What came back for one request: results in order, and a death if there was one.

    idle: the worker died without a word about this request.
    """

    results: tuple[Any, ...]
    death: Death | None = None
    idle: bool = False


@dataclass(frozen=True)
class Step:
    """One group finished: its measurements and the environment they were made in."""

    group: Group
    measurements: tuple[Measurement, ...]
    environment: dict[str, Any]

    @property
    def outcome(self) -> str:
        """Each implementation's median in us, or its status."""
        return "  ".join(
            f"{m.cell.impl} {stats.median(m.samples_us):.4g} us"
            if m.status.has_number
            else f"{m.cell.impl} {m.status}"
            for m in self.measurements
        )


class Worker:
    """A worker process for one device, started at the first request; a context manager.

    entry    the function that the process runs
    timeout  seconds that one announced step may take; compiling may take five times as long
    log      file that takes what the process prints, "" for none
    folders  variables that name the compilers' caches (`caches.fresh`), None for the lab's own
    cancel   a pipe to read from: once its other end is closed, every wait ends with Cancelled

    `seconds` says where the time went, by what the process had said that it was about to do.
    """

    def __init__(
        self,
        entry: Entry,
        device: str,
        timeout: float = 120.0,
        log: str = "",
        folders: Mapping[str, str] | None = None,
        cancel: Connection | None = None,
    ) -> None:
        self._entry, self._device, self._timeout, self._log = entry, device, timeout, log
        self._folders, self._cancel = folders, cancel
        self._served = 0
        self._process: Any = None
        self._pipe: Connection | None = None
        self._busy = False
        self.environment: dict[str, Any] = {}
        self.seconds: dict[str, float] = defaultdict(float)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, *request: Any) -> Reply:
        """Send one request and wait for everything it brings; a dead worker is replaced later."""
        reply = self._ask(request)
        # Death between two requests is nobody's fault: a fresh worker takes over, once.
        return self._ask(request) if reply.idle else reply

    def _ask(self, request: tuple[Any, ...]) -> Reply:
        self._busy = True
        pipe = self._pipe or self._start()
        with contextlib.suppress(OSError):
            pipe.send(request)
        reply = self._listen(pipe)
        if reply.death is not None:
            self.close()
        self._busy = False
        self._served += 1
        if self._served >= GROUPS:
            self.close()
        return reply

    def close(self) -> None:
        """End the process and all that it started; an idle one ends by itself."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
        if process is not None:
            if not self._busy:
                process.join(GRACE_S)
            _kill_group(process)
        if self._pipe is not None:
            self._alive.close()
            self._pipe = None

    def _start(self) -> Connection:
        try:
            folders = caches.variables() if self._folders is None else self._folders
        except caches.CacheError as error:
            raise WorkerError(f"no worker for {self._device}: {error}") from error
        context = starts.context()
        self._pipe, theirs = context.Pipe()
        watched, self._alive = context.Pipe(duplex=False)
        process = context.Process(
            target=_enter,
            args=(
                *(variables.current() | dict(folders), self._entry.__module__),
                *(self._entry.__qualname__, theirs, watched, self._device, self._log),
            ),
            daemon=False,
        )
        with _interrupts_blocked():
            process.start()
            self._process = process  # close() may come at any moment, and joins only what runs
        self._served = 0
        theirs.close()
        watched.close()
        reply = self._listen(self._pipe, START_S)
        if reply.death is not None:
            self.close()
            where = f"; its log is {self._log}" if self._log else ""
            raise WorkerError(f"no worker for {self._device}: {reply.death.reason}{where}")
        return self._pipe

    def _listen(self, pipe: Connection, seconds: float = 0.0) -> Reply:
        impl, phase, heard = "", "the start", False
        results: list[Any] = []
        since = monotonic()
        deadline = since + (seconds or self._timeout)
        while (event := self._next(pipe, deadline)) is not None:
            kind, *rest = event
            heard, now = True, monotonic()
            self.seconds[phase] += now - since
            since = now
            if kind == "start":
                impl, phase = rest
                deadline = monotonic() + self._patience(phase)
            elif kind == "result":
                results.append(rest[0])
            elif kind == "fatal":
                return Reply(tuple(results), Death(*rest))
            elif kind == "ready":
                self.environment = rest[0]
                return Reply(())
            else:
                return Reply(tuple(results))
        self.seconds[phase] += monotonic() - since
        death = self._obituary(impl, phase)
        return Reply(tuple(results), death, not heard and death.status is Status.CRASHED)

    def _next(self, pipe: Connection, deadline: float) -> tuple[Any, ...] | None:
        """Return the next event, or None from a process that ended or is late."""
        while True:
            watched = [pipe, self._process.sentinel, *([self._cancel] if self._cancel else [])]
            if self._cancel in wait(watched, max(0.0, deadline - monotonic())):
                raise Cancelled
            try:
                if pipe.poll():
                    event: tuple[Any, ...] = pipe.recv()
                    return event
            except (EOFError, OSError):
                self._process.join(GRACE_S)
                return None
            if not self._process.is_alive() or monotonic() >= deadline:
                return None

    def _patience(self, phase: str) -> float:
        return self._timeout * (COMPILE_FACTOR if phase == "compile" else 1)

    def _obituary(self, impl: str, phase: str) -> Death:
        """Return how the process ended; one that still lives is past its deadline and killed."""
        if self._process.is_alive():
            where = self._stacks()
            _kill_group(self._process)
            limit = f"{self._patience(phase):g} s"
            return Death(impl, Status.TIMEOUT, f"no answer within {limit} during {phase}{where}")
        return Death(impl, Status.CRASHED, f"{_ending(self._process.exitcode)} during {phase}")

    def _stacks(self) -> str:
        """Have the process write all its stacks to the log; return the main thread's place."""
        if not self._log:
            return ""
        log = Path(self._log)
        with contextlib.suppress(OSError):
            before = log.stat().st_size
            os.kill(self._process.pid, signal.SIGUSR1)
            self._process.join(DUMP_S)
            with log.open("rb") as file:
                file.seek(before)
                found = _INNERMOST.search(file.read().decode(errors="replace"))
            if found:
                file_name, line, function = found.groups()
                return f", in {function} ({Path(file_name).name}:{line}); stacks in {log.name}"
        return ""


def spread(
    starts: Sequence[Callable[[Connection], Worker]], serve: Callable[[Worker], Iterable[T]]
) -> Generator[T, None, None]:
    """Yield what `serve` makes with each of several workers at once, in the order it comes.

    starts  each makes a worker, whose `cancel` is the pipe that it is given
    serve   called in a thread for each worker; what it raises is raised here

    Closing the generator ends the workers, whatever they do.
    """
    done: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    cancel, stop = Pipe(duplex=False)

    def work(start: Callable[[Connection], Worker]) -> None:
        try:
            with start(cancel) as worker:
                for made in serve(worker):
                    done.put(("made", made))
        except Cancelled:
            pass
        except BaseException as error:
            done.put(("raised", error))
        finally:
            done.put(("ended", None))

    with cancel, ThreadPoolExecutor(len(starts)) as pool, stop:
        for start in starts:
            pool.submit(work, start)
        left = len(starts)
        while left:
            kind, what = done.get()
            if kind == "made":
                yield what
            elif kind == "raised":
                raise what
            else:
                left -= 1


def run(groups: Iterable[Group], worker: Worker) -> Iterator[Step]:
    """Yield each group when it is measured, by as many processes as its precision wants."""
    for group in groups:
        found = [_measure(group, worker)]
        for _ in range(LEVELS[group.precision].processes - 1):
            worker.close()
            found.append(_measure(group, worker))
        measured = tuple(pool(those) for those in zip(*found, strict=True))
        yield Step(group, measured, worker.environment)


def _measure(group: Group, worker: Worker) -> tuple[Measurement, ...]:
    found: dict[str, Measurement] = {}
    skip: set[str] = set()
    while left := tuple(impl for impl in group.impls if impl not in skip):
        reply = worker.ask("group", replace(group, impls=left), tuple(skip))
        if reply.death is None:
            found |= {result.cell.impl: result for result in reply.results}
            break
        culprit = reply.death.impl
        # Without a name, or named a second time, the blame is on all that is left.
        blamed = left if culprit in skip or not culprit else (culprit,)
        skip |= set(blamed)
        for impl in set(blamed) & set(left):
            cell = group.cell(impl)
            dead = Measurement(cell, reply.death.status, reply.death.reason)
            found[impl] = group.whole(dead)
    return tuple(found[impl] for impl in group.impls)


def _enter(wanted: Mapping[str, str], module: str, name: str, *arguments: Any) -> None:
    """Run the entry in the new process, with its environment in place before it is imported.

    Importing torch's compiler reads its settings from the environment and makes its cache folder.
    """
    variables.impose(wanted)
    getattr(importlib.import_module(module), name)(*arguments)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Have the processes that are started leave a terminal's Ctrl-C, sent to all, to this one."""
    # The tracker, which every start wants, would unblock the signal when it starts itself.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_group(process: Any) -> None:
    """End the process and its children: politely first, then for certain."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        process.join(GRACE_S)
    if process.is_alive():
        process.kill()
        process.join(GRACE_S)


def _ending(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"process ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "unknown"
    hint = ", perhaps by the kernel for want of memory," if -exitcode == signal.SIGKILL else ""
    return f"killed by signal {-exitcode} ({name}){hint}"
