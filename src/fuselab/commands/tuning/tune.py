"""fuselab tune: the launch parameters of an operator for the machine that is there, in a file.

Tiles are implementations of a group like any other: checked, compiled in parallel, timed cold and
interleaved, stored a group at a time; so a command that was stopped goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import Any

from fuselab import environment, runner
from fuselab.commands import exits, paths, select
from fuselab.commands.measuring import prepare
from fuselab.commands.progress import Steps
from fuselab.commands.tuning import landscapes
from fuselab.commands.tuning.tiles import Choice, Found, Slot, time_us
from fuselab.landscape import write as drawn
from fuselab.machine.lock import device_lock
from fuselab.model import Group, Status
from fuselab.output.plain import say
from fuselab.planning.plan import Filters, PlanError, check_names
from fuselab.processes import caches
from fuselab.runner import Worker
from fuselab.statistics import comparison, stats
from fuselab.statistics.comparison import Pair, Verdict
from fuselab.storage.store import Store
from fuselab.worker import entry
from fuselab.worker.operators import specs
from fuseline.core.selection import tuned
from fuseline.core.selection.tuned import Entry, Key, Table, Tile
from fuseline.core.specs.spec import OpSpec, Tuning

PRECISION = "quick"
# Of the time left, for what is compiled in parallel before it is measured.
COMPILING = 0.5
# Of all the time, to prove what was chosen.
PROVING = 0.15
# One stands for all of its size.
DTYPES = ("bfloat16", "float32", "float64")


def run(
    target: str,
    filters: Filters,
    *,
    device: str | None = None,
    budget: float = 300.0,
    out: str | None = None,
    landscape: str | None = None,
    fresh: bool = False,
    timeout: float = 120.0,
    as_json: bool = False,
) -> int:
    """Measure for `budget` seconds, write the table, say what changed; 3 if nothing is measured."""
    chosen = select.device_of(device)
    paths.check_folder("--landscape", landscape)
    source, spec, tuning = _target(target)
    paths.check_file("--out", _file(out, spec.name, ""))
    filters = replace(filters, device=chosen)
    check_names([select.row(spec, source)], filters)
    reason = spec.implementation(tuning.impl).unavailable(chosen.split(":")[0])
    if reason:
        raise PlanError(f"device: got {chosen!r}, which {target} cannot be tuned on: {reason}")
    with device_lock(chosen), Worker(entry.main, chosen, timeout) as worker:
        worker.ask("environment")
        end = monotonic() + budget  # not before: it must get somewhere even where a start is slow
        gpu = str(worker.environment.get("gpu") or worker.environment.get("cpu", "cpu"))
        present = specs.present_table(spec.name, tuning, gpu)
        slots = _slots(spec, tuning, present, source, filters)
        with Store.open(_folder(spec.name, gpu)) as store:
            _measure(slots, store, worker, end - PROVING * budget, timeout, fresh)
            choices = list(_proven(_choices(slots, store), store, worker, end, timeout))
            lands = [landscapes.of(choice, store) for choice in choices] if landscape else []
    if not choices:
        say("no class is measured yet; the same command with a larger --budget goes on")
        return exits.NO_DATA
    file = _file(out, spec.name, gpu)
    tuned.save(_table(present, gpu, tuning, choices), file)
    if landscape:
        asked = {"source": source, "op": spec.name, "device": chosen}
        drawn.write(
            landscapes.with_kernels(lands, choices, asked, timeout),
            f"{spec.name} on {gpu}",
            Path(landscape),
        )
        say(f"landscape in {landscape}")
    print(_as_json(file, choices) if as_json else _as_text(choices))
    say(f"{len(choices)} of {len(slots)} classes measured; table in {file}")
    if len(choices) < len(slots):
        say("the same command goes on with the others")
    return exits.OK


def _file(out: str | None, op: str, gpu: str) -> Path:
    """Return the file to write; PlanError where none is named and there is no home folder."""
    folder = tuned.user_folder(op)
    if not out and folder is None:
        raise PlanError("--out: got nothing, expected FILE: there is no home folder to write to")
    return Path(out) if out else Path(folder or "", tuned.file_name(gpu))


def _target(target: str) -> tuple[str, OpSpec, Tuning]:
    """Return the source and the operator with its tuning; PlanError if it has none."""
    ((source, found),) = select.specs_of([target]).items()
    able = [(spec, spec.tuning) for spec in found if spec.tuning is not None]
    if len(able) > 1:
        names = ", ".join(spec.name for spec, _ in able)
        raise PlanError(
            f"target: {target} has {len(able)} operators to tune, {names}; expected one"
        )
    if not able:
        shipped = ", ".join(name for name, spec in specs.load().items() if spec.tuning)
        raise PlanError(
            f"target: nothing in {target} can be tuned: no OpSpec of it has a `tuning`, which "
            f"says what launch parameters there are; of ours {shipped} can"
        )
    return (source, *able[0])


def _folder(op: str, gpu: str) -> Path:
    """Return where measurements are kept: other software makes other code of the same kernel."""
    software = "-".join(f"{name}{environment.version(name)}" for name in ("torch", "triton"))
    return caches.root() / "tune" / f"{op}-{Path(tuned.file_name(gpu)).stem}-{software}"


def _slots(
    spec: OpSpec, tuning: Tuning, present: Table, source: str, filters: Filters
) -> list[Slot]:
    """Return the entries to find, those first that most will use."""
    code = environment.code(spec.name, source, tables=False)
    wanted = select.dtype_names(filters.dtypes) or DTYPES
    names = [str(dtype).removeprefix("torch.") for dtype in spec.dtypes]
    sizes = {name: size for name, size in zip(names, _sizes(spec), strict=True) if name in wanted}
    if len(set(sizes.values())) < len(sizes):
        raise PlanError(f"dtype: got {', '.join(sizes)}, expected one of each size")
    directions = filters.directions or (("fwd", "bwd") if spec.differentiable else ("fwd",))

    def slot(direction: str, dtype: str, row: int | None) -> Slot:
        key = (direction, sizes[dtype])
        tiles = tuning.tiles(key, row, present)
        group = Group(
            *(spec.name, "", dtype, direction, "contiguous", filters.device, tuple(tiles)),
            *(specs.TILES + source, code, PRECISION),
        )
        cases, proofs = (
            tuple(replace(group, case=case.name) for case in some(row))
            for some in (tuning.cases, tuning.proofs)
        )
        return Slot(key, dtype, row, tiles, cases, proofs)

    return [
        slot(direction, dtype, row)
        for dtype in sorted(sizes, key=lambda name: sizes[name])
        for direction in directions
        for row in tuning.classes
    ]


def _sizes(spec: OpSpec) -> list[int]:
    return [dtype.itemsize for dtype in spec.dtypes]


def _measure(
    slots: Sequence[Slot],
    store: Store,
    worker: Worker,
    deadline: float,
    timeout: float,
    fresh: bool,
) -> None:
    """Measure what is not stored yet, one direction and dtype after the other, until the time."""
    for (direction, size), some in groupby(slots, key=lambda slot: slot.key):
        todo = [g for slot in some for g in slot.groups if fresh or store.missing(g)]
        if not todo or monotonic() >= deadline:
            continue
        tiles = sum(len(group.impls) for group in todo)
        say(f"{direction}, {size} bytes: {tiles} tiles to time in {len(todo)} problems")
        until = monotonic() + COMPILING * (deadline - monotonic())
        prepare.run(todo, todo[0].device, timeout, "", until)
        with Steps(len(todo)) as steps:
            for step in runner.run(_in_time(todo, deadline), worker):
                _write(store, step)
                best = [stats.median(m.samples_us) for m in step.measurements if m.samples_us]
                steps.step(step.group.key, f"best {min(best):.4g} us" if best else "none ran")


def _in_time(groups: Sequence[Group], deadline: float) -> Iterator[Group]:
    for group in groups:
        if monotonic() >= deadline:
            return
        yield group


def _write(store: Store, step: runner.Step) -> None:
    store.set_environment(step.environment)
    store.write(step.group, step.measurements)


def _choices(slots: Sequence[Slot], store: Store) -> list[Choice]:
    """Return a choice for every class of which all problems are measured."""
    stored = {m.cell: m for m in store.measurements()}
    ready = [s for s in slots if not any(store.missing(group) for group in s.groups)]
    return [
        _choice(s, {g.case: {i: stored[g.cell(i)] for i in g.impls} for g in s.groups})
        for s in ready
    ]


def _choice(slot: Slot, found: Mapping[str, Found]) -> Choice:
    """Return the tile that is faster somewhere, slower nowhere, and the fastest such on the whole.

    Where the present one does not run, anything that does will do.
    """
    others = [name for name in slot.tiles if name != slot.present]
    broken = [c for c, ms in found.items() if not ms[slot.present].status.has_number]
    if broken:
        runs = [n for n in others if all(ms[n].status is Status.OK for ms in found.values())]
        why = found[broken[0]][slot.present].reason
        best = min(runs, key=lambda n: _mean(found, n), default=slot.present)
        return _chosen(slot, best, found, f"the present one does not run: {why}")
    pairs = [
        Pair((ms[slot.present].cell, ms[name].cell), ms[slot.present], ms[name])
        for name in others
        for ms in found.values()
    ]
    verdicts = iter(comparison.compare(pairs, together=True))
    better = {}
    for name in others:
        those = [next(verdicts) for _ in found]
        kinds = {one.verdict for one in those}
        if Verdict.FASTER in kinds and kinds <= {Verdict.FASTER, Verdict.SAME}:
            better[name] = math.prod(one.ratio or 1.0 for one in those)
    return _chosen(slot, min(better, key=lambda n: better[n], default=slot.present), found)


def _chosen(slot: Slot, name: str, found: Mapping[str, Found], reason: str = "") -> Choice:
    times = {c: (time_us(ms[slot.present]), time_us(ms[name])) for c, ms in found.items()}
    return Choice(slot, name, times, reason)


def _mean(found: Mapping[str, Found], name: str) -> float:
    return math.prod(time_us(ms[name]) or math.inf for ms in found.values())


def _proven(
    choices: Sequence[Choice], store: Store, worker: Worker, end: float, timeout: float
) -> Iterator[Choice]:
    """Yield the choices; a new tile that is wrong on lengths within its class does not get in.

    What is not proven when the time ends is left out.
    """
    asked = [
        [replace(group, impls=(c.name,)) for group in c.slot.proofs] if c.changed else []
        for c in choices
    ]
    todo = [group for groups in asked for group in groups if store.missing(group)]
    if todo:
        prepare.run(todo, todo[0].device, timeout, "", end)
    for step in runner.run(_in_time(todo, end), worker):
        _write(store, step)
    for choice, groups in zip(choices, asked, strict=True):
        if not any(store.missing(group) for group in groups):
            yield _judged(choice, groups, store)


def _judged(choice: Choice, asked: Sequence[Group], store: Store) -> Choice:
    stored = {m.cell: m for m in store.measurements()}
    for group in asked:
        proof = stored[group.cell(choice.name)]
        if not proof.status.has_number:
            times = {case: (before, before) for case, (before, _) in choice.times.items()}
            why = f"{choice.name} is {proof.status} on {group.case}: {proof.reason}"
            return Choice(choice.slot, choice.slot.present, times, why)
    return choice


def _table(present: Table, gpu: str, tuning: Tuning, choices: Sequence[Choice]) -> Table:
    """Return the present table with the chosen tiles in it."""
    chosen = {(c.slot.key, c.slot.row): c.slot.tiles[c.name] for c in choices if c.changed}
    about = {
        "measured": date.today().isoformat(),
        "how": f"fuselab tune, torch {environment.version('torch')}, "
        f"triton {environment.version('triton')}",
    }
    entries = {}
    for key, before in present.entries.items():
        rows = {*tuning.rows, *(entry.row for entry in before if entry.row)}
        bounds = (*sorted(rows), None)
        entries[key] = tuned.merged(
            [Entry(row, _tile(key, row, present, tuning, chosen)) for row in bounds]
        )
    return Table(gpu, entries, about)


def _tile(
    key: Key,
    row: int | None,
    present: Table,
    tuning: Tuning,
    chosen: Mapping[tuple[Key, int | None], Tile],
) -> Tile:
    """Return the tile chosen for the class of a row length, the present one where there is none."""
    home = next((r for r in tuning.rows if row is not None and row <= r), None)
    beyond = 1 + max(tuning.rows[-1], *(e.row or 0 for e in present.entries[key]))
    return chosen.get((key, home)) or present.tile(*key, row or beyond)


def _as_text(choices: Sequence[Choice]) -> str:
    """Return the classes that changed, a line a problem; us before and after."""
    changed = [choice for choice in choices if choice.changed or choice.reason]
    lines = [f"{len(choices) - len(changed)} classes stay as they are"] if choices else []
    for choice in changed:
        slot = choice.slot
        rows = f"rows up to {slot.row}" if slot.row else "longer rows"
        move = f"{slot.tiles[slot.present]} -> {slot.tiles[choice.name]}"
        lines.append(f"{slot.key[0]} {slot.dtype} {rows}: {move}")
        lines += [f"    {case:<14} {_pair(*times)}" for case, times in choice.times.items()]
        lines += [f"    {choice.reason}"] if choice.reason else []
    return "\n".join(lines)


def _pair(before: float | None, after: float | None) -> str:
    told = ["-" if us is None else f"{us:8.2f} us" for us in (before, after)]
    ratio = f"  x {after / before:.3f}" if before and after else ""
    return f"{told[0]} -> {told[1]}{ratio}"


def _as_json(file: Path, choices: Sequence[Choice]) -> str:
    classes: list[dict[str, Any]] = [
        {
            "direction": choice.slot.key[0],
            "dtype": choice.slot.dtype,
            "row": choice.slot.row,
            "before": str(choice.slot.tiles[choice.slot.present]),
            "after": str(choice.slot.tiles[choice.name]),
            "us": {case: list(times) for case, times in choice.times.items()},
            "reason": choice.reason,
        }
        for choice in choices
    ]
    return json.dumps({"table": str(file), "classes": classes})
