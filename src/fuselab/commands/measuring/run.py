"""fuselab run: measure groups, one transaction each, and resume where a run stopped."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic

from fuselab import runner
from fuselab.commands import exits, select
from fuselab.commands.measuring import count, gpus, prepare
from fuselab.commands.progress import Steps
from fuselab.machine.lock import device_lock
from fuselab.model import Group, Measurement, Status
from fuselab.output.plain import say
from fuselab.planning import shards
from fuselab.planning.plan import Filters, PlanError, ceiling_group
from fuselab.precision import estimate_s
from fuselab.records import metrics
from fuselab.report import build, text
from fuselab.runner import Step, Worker
from fuselab.storage.store import Store

LOG = "worker.log"
FAILURES = (Status.INCORRECT, Status.INVALID, Status.TIMEOUT, Status.CRASHED, Status.ERROR)


def run(
    targets: Sequence[str],
    filters: Filters,
    out: str,
    *,
    device: str | None = None,
    timeout: float = 120.0,
    fresh: bool = False,
    slow: Sequence[str] = (),
    shard: str | None = None,
    on: str | None = None,
    as_json: bool = False,
) -> int:
    """Measure what is not stored yet, or was measured with other code; print the table.

    `fresh` measures all of it; `slow` names what slow counters count, too, on the first GPU;
    `shard`: one part of it; `on`: the GPUs that share it. 1 if a cell failed, 3 if none has a time,
    but for a shard that has no cell.
    """
    part = shards.parse(shard, os.environ) if shard else shards.Shard(1, 1)
    numbers = gpus.chosen(on)
    chosen = select.device_of(device)
    found, filters = select.found(targets, filters)
    wanted = tuple(filter(part.has, select.groups(found, replace(filters, device=chosen))))
    if not wanted:
        Store.open(out).close()
        say(f"shard {part} has none of these cells")
        return exits.OK
    select.check_available(found, replace(filters, device=chosen))
    if not targets and filters == Filters(precision=filters.precision, timer=filters.timer):
        raise PlanError(_too_much(wanted, chosen))
    if slow := tuple(name for name in slow if name != count.FAST):
        count.check(wanted, slow, chosen)
    plan = (ceiling_group(chosen, wanted[0].precision, wanted[0].timer), *wanted)
    with Store.open(out) as store:
        todo = _lacking(plan, store, fresh)
        _announce(plan, todo, store, out)
        with _locked(chosen, numbers) if todo or slow else nullcontext():
            # Who had the device until now may have measured the same for the same folder.
            todo = _lacking(plan, store, fresh)
            measure(todo, store, chosen, timeout, str(Path(out) / LOG), gpus.names(numbers))
            if slow:
                with gpus.first(numbers):
                    count.run(wanted, store, chosen, timeout, slow)
        stored = list(store.measurements())
        view = build.build(stored, store.environment(), store.span())
    cells = {cell for group in plan for cell in group.cells}
    asked = [m for m in stored if m.cell in cells]
    counts = Counter(str(m.status) for m in asked)
    if as_json:
        flat = [
            {name: metrics.finite(value) for name, value in record.items()}
            for record in metrics.records(stored)
        ]
        print(json.dumps({"store": out, "statuses": counts, "cells": flat}))
    else:
        print(text.to_terminal(view))
        print(", ".join(f"{n} {status}" for status, n in counts.most_common()), f"in {out}")
    return exit_code([m for m in asked if (m.cell.op, m.cell.impl) in select.judged(found)])


def _announce(plan: Sequence[Group], todo: Sequence[Group], store: Store, out: str) -> None:
    """Say what is stored, what is to be measured, and how long that may take."""
    total, missing = (sum(len(group.impls) for group in some) for some in (plan, todo))
    device = plan[0].device
    say(f"{total} cells on {device}; {total - missing} already in {out}, {missing} to measure")
    say(_estimate(missing, device, plan[0].precision))
    outdated = sum(store.outdated(group) for group in todo)
    if outdated:
        say(f"{outdated} of these are stored, but what they measured has changed since")


@contextmanager
def _locked(device: str, numbers: Sequence[int]) -> Iterator[None]:
    """Keep other measurements away from a device, or from the GPUs of these numbers."""
    names = [device] if device == "cpu" or not numbers else [f"cuda:{n}" for n in numbers]
    with ExitStack() as locks:
        for name in names:
            locks.enter_context(device_lock(name))
        yield


def _estimate(cells: int, device: str, level: str) -> str:
    seconds = estimate_s(cells, device.split(":")[0], level)
    about = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    return f"precision {level}: about {about}"


def _too_much(wanted: Sequence[Group], device: str) -> str:
    """Return what a run of everything would be, and how to ask for less, or for it."""
    cells = sum(len(group.impls) for group in wanted)
    minutes = estimate_s(cells, device.split(":")[0], wanted[0].precision) / 60
    return (
        f"OP_OR_FILE: got none: {cells} cells of {len({group.op for group in wanted})} operators, "
        f"at least {minutes:.0f} min; expected an operator (fuselab run softmax), a file, or a "
        f"suite of all operators (fuselab run --suite {select.DEFAULT_SUITE})"
    )


def _lacking(plan: Sequence[Group], store: Store, fresh: bool) -> list[Group]:
    # A group runs whole: its ratios hold only within one set of interleaved rounds.
    return [group for group in plan if fresh or store.missing(group)]


def measure(
    todo: Sequence[Group],
    store: Store,
    device: str,
    timeout: float,
    log: str,
    named: Sequence[str] = (),
) -> None:
    """Compile in parallel, then measure alone, and store a group at a time.

    On each of the GPUs of these names a worker takes the next group when it is done with one.
    """
    prepare.run(todo, device, timeout, log, names=named)
    left, crew, begin = iter(todo), [], monotonic()

    def serve(worker: Worker) -> Iterator[Step]:
        crew.append(worker)
        return runner.run(left, worker)

    starts = gpus.workers(min(len(named), len(todo)) or 1, device, timeout, log, named)
    with closing(runner.spread(starts, serve)) as found, Steps(len(todo)) as steps:
        for step in found:
            store.set_environment(step.environment)
            store.write(step.group, step.measurements)
            steps.step(step.group.key, step.outcome)
    if todo:
        say(_where_it_went(monotonic() - begin, crew))


def _where_it_went(seconds: float, crew: Sequence[Worker]) -> str:
    phases = sum((Counter(worker.seconds) for worker in crew), Counter())
    total = sum(phases.values())
    shares = ", ".join(
        f"{phase} {s / total:.0%}" for phase, s in phases.most_common() if s >= 0.005 * total
    )
    on = f" on {len(crew)} GPUs" if len(crew) > 1 else ""
    return f"measured in {seconds:.0f} s{on}: {shares}"


def exit_code(own: Sequence[Measurement]) -> int:
    """Judge the operators' own cells; a baseline that fails is a finding, not a failure."""
    if any(m.status in FAILURES for m in own):
        return exits.FAILED
    return exits.OK if any(m.status.has_number for m in own) else exits.NO_DATA
