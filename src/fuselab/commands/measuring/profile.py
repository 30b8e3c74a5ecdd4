"""fuselab profile: all counters of one cell, per kernel, and where it stands under its roofs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuselab.commands import select
from fuselab.commands.measuring import count
from fuselab.commands.measuring.run import LOG, exit_code, measure
from fuselab.machine import roofs
from fuselab.machine.lock import device_lock
from fuselab.model import Group, Measurement
from fuselab.output.plain import plain, say
from fuselab.planning.plan import CEILING, Filters, PlanError
from fuselab.report import profile
from fuselab.report.pictures import roofline
from fuselab.report.pictures.roofline import Peak
from fuselab.report.profile import Profile
from fuselab.report.sections import counters
from fuselab.storage.store import Store
from fuseline.core.specs.spec import OpSpec

PICTURE = "roofline.svg"
# Without --dtype, the first of these that the operator has: what models are run in.
DTYPES = {"cuda": ("bfloat16", "float32"), "cpu": ("float32", "bfloat16")}


def run(
    target: str,
    filters: Filters,
    out: str,
    *,
    device: str | None = None,
    timeout: float = 120.0,
    fresh: bool = False,
    as_json: bool = False,
) -> int:
    """Measure and count the cells of one implementation and case; print all that is known of them.

    `filters` names both. 1 if a cell failed, 3 if none has a time.
    """
    chosen = select.device_of(device)
    groups = _groups(select.specs_of([target]), replace(filters, device=chosen))
    (impl,) = filters.impls
    with Store.open(out) as store:
        with device_lock(chosen):
            todo = [group for group in groups if fresh or store.missing(group)]
            measure(todo, store, chosen, timeout, str(Path(out) / LOG))
            alone = [replace(group, impls=(impl,)) for group in groups]
            count.run(alone, store, chosen, timeout, (count.ALL,))
        measured, environments = list(store.measurements()), store.environment()
    own = [m for group in groups for m in measured if m.cell == group.cell(impl)]
    profiles = [profile.build(measured, m.cell, _peak(m, environments)) for m in own]
    picture = roofline.save_svg([found.position for found in profiles], Path(out) / PICTURE)
    if as_json:
        found = [profile.to_dict(one) for one in profiles]
        print(json.dumps({"store": out, "picture": picture and str(picture), "cells": found}))
    else:
        _print(profiles, out, picture)
    return exit_code(own)


def _groups(found: Mapping[str, Sequence[OpSpec]], filters: Filters) -> tuple[Group, ...]:
    """Return the groups of the named cell: the implementation, eager and the ceiling."""
    (impl,) = filters.impls
    if impl == CEILING:
        raise PlanError(f"impl: got {CEILING!r}, expected an implementation to compare with it")
    select.groups(found, filters)  # names every mistake
    select.check_available(found, filters)
    eager = {spec.eager.name for those in found.values() for spec in those if spec.eager}
    groups = select.groups(found, replace(filters, impls=(impl, *eager)))
    groups = tuple(group for group in groups if impl in group.impls)
    return groups if filters.dtypes else _of_default_dtype(groups, filters.device)


def _of_default_dtype(groups: Sequence[Group], device: str) -> tuple[Group, ...]:
    """Return the groups of the dtype that each operator is profiled in unless another is named."""
    chosen: dict[str, str] = {}
    for op in dict.fromkeys(group.op for group in groups):
        have = [group.dtype for group in groups if group.op == op]
        usual = [dtype for dtype in DTYPES[device.split(":")[0]] if dtype in have]
        chosen[op] = (usual or have)[0]
        say(f"{op}: dtype {chosen[op]}; --dtype names another")
    return tuple(group for group in groups if group.dtype == chosen[group.op])


def _peak(measured: Measurement, environments: Sequence[Mapping[str, Any]]) -> Peak | None:
    """Return the compute roof that doctor measured where the cell was measured, if it did."""
    for environment in environments:
        if environment["id"] == measured.environment and (known := roofs.load(environment)):
            found = known.peak(measured.cell.dtype)
            return Peak(found[0], f"fuselab doctor, {found[1]}") if found else None
    return None


def _print(profiles: Sequence[Profile], out: str, picture: Path | None) -> None:
    for found in profiles:
        print(profile.to_terminal(found), end="\n\n")
    for line in counters.not_measured([found.record for found in profiles]):
        print(plain(f"{counters.NOT_MEASURED}: {line}"))
    print(f"stored in {out}" + (f", picture {picture}" if picture else ""))
