"""Functions side by side: the worker's pipeline, group by group, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from fuselab import environment
from fuselab.commands.select import device_of
from fuselab.model import Group, Measurement, Status
from fuselab.notebook import arguments, functions
from fuselab.notebook.arguments import Functions
from fuselab.notebook.results import Results
from fuselab.notebook.session import Session
from fuselab.planning.plan import CEILING
from fuselab.worker import group as pipeline
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.protocol import Fatal
from fuseline.core.specs.spec import Budget, OpSpec


def compare(
    impls: Functions,
    make_inputs: Callable[..., Any],
    *,
    shapes: Iterable[Any],
    device: str | torch.device | None = None,
    dtypes: str | torch.dtype | Iterable[str | torch.dtype] = ("float32",),
    directions: str | Iterable[str] = ("fwd",),
    reference: Callable[..., Any] | None = None,
    compile: bool = False,
    precision: str = "quick",
    budget: Budget | None = None,
) -> Results:
    """Check functions against fp64, time them in interleaved rounds, return a table of it.

    It runs in this process, without the isolation of `fuselab run`. A function that fails costs
    its own row. The session's settings and random states are as before afterwards.

    impls        functions by name; the one named "eager", else the first, is the yardstick
    make_inputs  (shape, dtype, device) -> tensor, tuple of arguments, or dict of them by name.
                 Called again and again for new contents, after a torch.manual_seed of the lab's;
                 a parameter named `generator` receives a torch.Generator instead
    shapes       what `make_inputs` takes as its shape, one table row each for every function
    device       "cpu", "cuda", "cuda:N"; None: the first GPU, else the CPU
    dtypes       torch dtypes or their names; at least one floating input must have the dtype
    directions   "fwd", "bwd" or both. Gradients are those of the floating inputs that require
                 grad; of all floating inputs if none does
    reference    called like the others, with floating inputs in fp64: what is right. None: the
                 yardstick itself, so that its formula counts as right and its rounding as error
    compile      add torch.compile of the yardstick; resets what torch.compile has compiled
    precision    "quick" or "standard"
    budget       accuracy limits, a `fuseline.testing.Budget`. None: 16 times its defaults, as
                 for baselines, because nothing is known of how these functions are conditioned

    Raises TypeError or ValueError for a bad argument, before any of the functions runs.
    """
    arguments.check_functions(impls, make_inputs, reference)
    cases = arguments.cases_of(shapes)
    types = arguments.dtypes_of(dtypes)
    wanted = arguments.directions_of(directions)
    arguments.check_precision(precision)
    target = torch.device(device_of(None if device is None else str(device)))
    where = environment.collect(str(target))
    names = (*impls, *((COMPILE,) if compile else ()), CEILING)
    with Session(target) as session:
        spec = functions.build(impls, make_inputs, reference, cases, types, target, budget)
        if "bwd" in wanted and not spec.differentiable:
            raise ValueError("directions: got 'bwd', but make_inputs returns no floating tensor")
        groups = _groups(spec, wanted, names, str(target), precision)
        found = tuple(m for group in groups for m in _measure(group, spec, session))
    return Results(found, where)


def _groups(
    spec: OpSpec, directions: Iterable[str], names: tuple[str, ...], device: str, precision: str
) -> list[Group]:
    return [
        Group(
            *(spec.name, case.name, str(dtype).removeprefix("torch."), direction),
            *("contiguous", device, names),
            precision=precision,
        )
        for direction in directions
        for dtype in spec.dtypes
        for case in spec.cases
    ]


def _measure(group: Group, spec: OpSpec, session: Session) -> list[Measurement]:
    """Measure a group; one that a function breaks runs again without it."""
    found: dict[str, Measurement] = {}
    skip: set[str] = set()
    while set(left := tuple(name for name in group.impls if name not in skip)) - {CEILING}:
        death = _attempt(replace(group, impls=left), skip, spec, session, found)
        if death is None:
            break
        # Without a name, the blame is on all that is left.
        blamed = (death.impl,) if death.impl in left else left
        skip |= set(blamed)
        found |= {
            impl: Measurement(group.cell(impl), death.status, death.reason) for impl in blamed
        }
    return [
        replace(found[impl], precision=group.precision) for impl in group.impls if impl in found
    ]


def _attempt(
    group: Group, skip: set[str], spec: OpSpec, session: Session, found: dict[str, Measurement]
) -> Fatal | None:
    """Run a group once and add what it found; return what ended it early."""
    if session.fault:
        return Fatal("", Status.CRASHED, f"not run: {session.fault}")

    def emit(kind: str, *event: Any) -> None:
        if kind == "result":
            found[event[0].cell.impl] = event[0]

    death = None
    try:
        pipeline.run(group, frozenset(skip), emit, spec)
    except Fatal as fatal:
        # Without its traceback, which holds the tensors of the group.
        death = Fatal(fatal.impl, fatal.status, fatal.reason)
    session.recover()
    return death
