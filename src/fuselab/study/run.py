"""Has one process measure the cells by every method, and Nsight Compute time them where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

import torch

from fuselab.counters import durations, ncu
from fuselab.counters.durations import Block
from fuselab.machine.load import OtherLoad
from fuselab.model import Group
from fuselab.planning.plan import PlanError
from fuselab.processes import caches, child
from fuselab.study.record import NCU, Record, Row, names
from fuseline import table
from fuseline.core.specs.spec import OpSpec

SUITE = "fusion"
IMPLS = ("eager", "compile")
# The most elements of a problem, by the kind of device.
MOST = {"cpu": 1 << 22, "cuda": 1 << 26}
# Calls of a block that ncu sees, of which it times some.
CALLS = 20
NCU_SECONDS = 30.0


def cases(spec: OpSpec, kind: str, count: int) -> list[str]:
    """Return so many sizes of the study's grid, evenly from the smallest to the largest."""
    named = [case.name for case in spec.cases if SUITE in case.suites]
    sized = {
        name: prod(map(int, name.split("x"))) for name in named if re.fullmatch(r"[\dx]+", name)
    }
    known = sorted((n for n in sized if sized[n] <= MOST[kind]), key=lambda n: (sized[n], n))
    if not known:
        raise PlanError(
            f"--op: got {spec.name!r}, expected an operator with sizes in suite {SUITE}"
        )
    if count > len(known):
        raise PlanError(f"--sizes: got {count}, expected at most {len(known)}")
    places = [round(i * (len(known) - 1) / max(1, count - 1)) for i in range(count)]
    return [known[i] for i in places]


def methods(
    op: str, device: str, sizes: int, repeats: int, seconds: float, facts: dict[str, Any]
) -> Record:
    """Return all methods' times of eager and torch.compile on so many sizes."""
    kind = device.partition(":")[0]
    chosen = cases(table.load()[op], kind, sizes)
    question = {"op": op, "cases": chosen, "device": device, "repeats": repeats}
    threads = torch.get_num_threads() if kind == "cpu" else 1
    with caches.fresh() as env, OtherLoad(threads) as load:
        answers, why = child.ask("fuselab.study.child", question, seconds, env)
    known = {said["case"]: said for said in answers}
    rows = [row for case in chosen for row in _rows(case, kind, known.get(case), why)]
    if kind == "cuda":
        rows += _by_ncu(op, {c: known.get(c, {}).get("sets", 1) for c in chosen}, device, repeats)
    return Record(op, device, facts, tuple(rows), load.disturbance)


def _rows(case: str, kind: str, said: Any, why: str) -> Iterator[Row]:
    """Yield a row for each method and function of a case."""
    found = {(method, name): tuple(us) for method, name, us in (said or {"us": ()})["us"]}
    errors = said["errors"] if said else {}
    for method, impl in product(names(kind), IMPLS):
        if method != NCU:
            us = found.get((method, impl), ())
            yield Row(case, impl, method, us, "" if us else errors.get(method, why))


def _by_ncu(op: str, sets: Mapping[str, int], device: str, repeats: int) -> list[Row]:
    """Return what Nsight Compute says of each cell, a number for each watched call.

    sets  by case, how many sets of inputs rotate
    """
    cells = list(product(sets, IMPLS))
    if not ncu.program():
        return [Row(case, impl, NCU, error=ncu.NO_NCU) for case, impl in cells]
    watched = min(repeats, CALLS)
    blocks = [
        Block(Group(op, case, "float32", "fwd", "contiguous", device, (impl,)), impl,
              CALLS, sets[case], watched)
        for case, impl in cells
    ]  # fmt: skip
    try:
        timed = durations.measure(blocks, NCU_SECONDS)
    except ncu.CounterError as error:
        return [Row(case, impl, NCU, error=str(error)) for case, impl in cells]
    return [
        Row(case, impl, NCU, found.us, found.reason)
        for (case, impl), found in zip(cells, timed, strict=True)
    ]
