"""From what the command line names to rows, groups and a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fuselab import environment
from fuselab.model import Group
from fuselab.planning import wild
from fuselab.planning.plan import (
    CEILING,
    DTYPE_ALIASES,
    Filters,
    OpRow,
    PlanError,
    check_names,
    kept,
    nothing_left,
    product,
    select,
)
from fuselab.precision import STANDARD
from fuselab.worker.implementations import baselines
from fuselab.worker.operators import recorded, specs, wild_inputs
from fuseline.core.specs.spec import OpSpec

DEFAULT_SUITE = "quick"
ALL = "all"
# For correctness alone.
CHECKED = "check"
LAYOUTS = ("contiguous",)


def specs_of(targets: Sequence[str]) -> dict[str, list[OpSpec]]:
    """Return the OpSpecs by source: the named operators of the table, and those of each file.

    Without a target: the whole table. An unknown operator raises PlanError.
    """
    files = [target for target in targets if target.endswith(".py")]
    names = [target for target in targets if not target.endswith(".py")]
    found = {str(Path(file).resolve()): list(specs.load(file).values()) for file in files}
    if names or not files:
        found[specs.TABLE] = [*select([*specs.load().values()], names)]
    return found


def found(
    targets: Sequence[str], filters: Filters
) -> tuple[Mapping[str, Sequence[OpSpec]], Filters]:
    """Return the OpSpecs of the targets by source, and the filters.

    Of a suite that is a file of recorded calls: its operators, those that are named.
    """
    if not (filters.suite and filters.suite.endswith(recorded.SUFFIX)):
        return specs_of(targets), filters
    source = recorded.SOURCE + str(Path(filters.suite).resolve())
    chosen = select([*specs.load(source).values()], targets)
    return {source: chosen}, replace(filters, suite=recorded.SUITE)


def row(
    spec: OpSpec,
    source: str = specs.TABLE,
    suite: str | None = None,
    asked: Sequence[str] = (),
) -> OpRow:
    """Return the planner's row of a spec, with baselines, rivals and ceiling as implementations.

    Rivals that are not installed are left out unless named.
    """
    dtypes = spec.suite_dtypes.get(suite, spec.dtypes) if suite else spec.dtypes
    return OpRow(
        name=spec.name,
        impls=(*baselines.names(spec, asked), CEILING),
        cases=tuple((case.name, case.suites) for case in spec.cases),
        dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in dtypes),
        directions=("fwd", "bwd") if spec.differentiable else ("fwd",),
        source=source,
        code=_code(spec, source),
        layouts=LAYOUTS,
    )


def _code(spec: OpSpec, source: str) -> str:
    """Return what stands for the code of an operator; of a recorded call, for its inputs too."""
    calls = recorded.source_text(source)
    where = specs.TABLE if calls else source
    return environment.code(spec.name, where, *baselines.versions(spec), *calls)


def groups(found: Mapping[str, Sequence[OpSpec]], filters: Filters) -> tuple[Group, ...]:
    """Return the groups to measure, each with the ceiling of its own bytes.

    Without a suite or case: the suite "quick" of the specs that have it, all cases of the others.
    Of the suite "all": what several suites have, once.
    """
    if filters.impls:
        filters = replace(filters, impls=(*filters.impls, CEILING))
    parts: dict[str | None, list[OpRow]] = {}
    for source, those in found.items():
        for spec in those:
            for suite in _suites(spec, filters):
                narrow = None if filters.dtypes else suite
                whole = row(spec, source, narrow, filters.impls)
                rows_of = _calls(spec, whole) or (whole, *_wild(spec, whole, filters))
                parts.setdefault(suite, []).extend(rows_of)
    every = filters.suite == ALL
    rows = [r for those in parts.values() for r in those]
    check_names(rows, replace(filters, suite=None) if every else filters)
    chosen = dict.fromkeys(
        group
        for suite, those in parts.items()
        for group in product(
            those,
            replace(
                filters,
                suite=suite,
                precision=filters.precision or (STANDARD if every else _level(suite)),
            ),
        )
    )
    if not chosen:
        raise PlanError(nothing_left(filters))
    return tuple(chosen)


def _suites(spec: OpSpec, filters: Filters) -> tuple[str | None, ...]:
    """Return the suites of a spec to measure; None: all its cases."""
    if filters.suite == ALL:
        return tuple(suite for suite in spec.suites if suite != CHECKED) or (None,)
    if filters.suite is None and not filters.cases and DEFAULT_SUITE in spec.suites:
        return (DEFAULT_SUITE,)
    return (filters.suite,)


def _calls(spec: OpSpec, whole: OpRow) -> tuple[OpRow, ...]:
    """Return a row for each recorded call: in its own dtype and directions alone."""
    calls = (recorded.call_of(case) for case in spec.cases)
    return tuple(
        replace(
            whole,
            cases=((call.name, (recorded.SUITE,)),),
            dtypes=(call.dtype,),
            directions=call.directions,
        )
        for call in calls
        if call is not None
    )


def _wild(spec: OpSpec, whole: OpRow, filters: Filters) -> Iterator[OpRow]:
    """Yield a row for each wild problem: those named, and those that the seed draws."""
    for name in filters.cases:
        if name.startswith(wild.PREFIX):
            specs.case(spec, name)  # refuses what the operator cannot have
            yield _with_case(whole, wild.parse(name))
    if filters.suite == wild.SUITE:
        check_names([whole], replace(filters, suite=None, impls=(), cases=()))
        drawn = wild.draw(
            *(spec.name, filters.seed, filters.cells),
            kept(whole.dtypes, dtype_names(filters.dtypes)),
            kept(whole.directions, filters.directions),
            dims=wild_inputs.takes_dim(spec),
            ranks=wild_inputs.ranks(spec),
            rows_of=wild_inputs.rows_of(spec),
            values=wild_inputs.values_of(spec),
        )
        for one in drawn:
            of_one = replace(whole, dtypes=(one.dtype,), directions=(one.direction,))
            yield _with_case(of_one, one.shape)


def _with_case(whole: OpRow, shape: wild.Shape) -> OpRow:
    return replace(whole, cases=((shape.name, (wild.SUITE,)),))


def check_available(found: Mapping[str, Sequence[OpSpec]], filters: Filters) -> None:
    """Raise PlanError where no named implementation can run on the device, before eager is timed.

    One that can is enough: cells of the others say why they cannot.
    """
    reasons: dict[str, str | None] = {}
    for spec in (spec for those in found.values() for spec in those):
        there = baselines.names(spec, filters.impls)
        for name in (name for name in filters.impls if name in there):
            reasons[name] = baselines.unavailable(spec, name, filters.device.split(":")[0])
            if not reasons[name]:
                return
    if reasons:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise PlanError(f"impl: nothing to measure on {filters.device}: {why}")


def _level(suite: str | None) -> str:
    """Return the precision of a suite unless another is named; quick is quick in both."""
    return "quick" if suite == DEFAULT_SUITE else STANDARD


def judged(found: Mapping[str, Sequence[OpSpec]]) -> set[tuple[str, str]]:
    """Return (operator, implementation) of what the operators answer for: their own and eager."""
    return {
        (spec.name, impl.name)
        for those in found.values()
        for spec in those
        for impl in spec.implementations
        if impl.role in ("ours", "eager")
    }


def device_of(name: str | None) -> str:
    """Return the device: the one named, else cuda if there is one, else cpu.

    Counting devices goes through NVML and leaves CUDA uninitialised.
    """
    count = torch.cuda.device_count()
    if name is None:
        return "cuda:0" if count else "cpu"
    have = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if name not in have:
        raise PlanError(f"device: got {name!r}, expected one of: {', '.join(have)}")
    return "cuda:0" if name == "cuda" else name


def dtype_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return full dtype names for short ones (fp32, bf16)."""
    return tuple(DTYPE_ALIASES.get(name, name) for name in names)
