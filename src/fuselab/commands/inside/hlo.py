"""fuselab hlo: what XLA makes of an operator's formula."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import click

from fuselab.commands import exits, paths, select
from fuselab.planning.plan import Filters, PlanError, check_names, unknown
from fuselab.worker.operators import specs
from fuseline.core.specs.spec import Direction


def run(
    op: str,
    *,
    case: str | None = None,
    dtype: str | None = None,
    direction: str | None = None,
    device: str | None = None,
    out: str | None = None,
    as_json: bool = False,
) -> int:
    """Compile and print; with `out`, write the page DIR/hlo.html too."""
    if find_spec("jax") is None:
        raise PlanError("jax is not installed: pip install 'fuseline[jax]'")
    paths.check_folder("--out", out)
    from fuselab.hlo import page, record, text

    found = specs.load()
    if op not in found:
        raise unknown("operator", op, found)
    spec = found[op]
    where = select.device_of(device)
    filters = Filters(
        device=where,
        cases=(case,) if case else (),
        dtypes=(dtype,) if dtype else (),
        directions=(direction,) if direction else (),
    )
    check_names([select.row(spec, "")], filters)
    chosen = next(c for c in spec.cases if case in (None, c.name))
    wanted = select.dtype_names((dtype,)) if dtype else ("float32",)
    of = next((d for d in spec.dtypes if str(d).removeprefix("torch.") in wanted), spec.dtypes[0])
    able: tuple[Direction, ...] = ("fwd", "bwd") if spec.differentiable else ("fwd",)
    directions = [d for d in able if direction in (None, d)]
    try:
        made = [record.compile_one(spec, chosen, of, d, where.split(":")[0]) for d in directions]
    except RuntimeError as error:  # jax's own of a device that it does not have
        raise PlanError(f"device: got {where!r}, for which jax has no backend: {error}") from error
    printed = [text.to_text(hlo).rstrip() for hlo in made]
    click.echo(json.dumps(text.to_records(made)) if as_json else "\n\n".join(printed))
    if out is not None:
        click.echo(f"wrote {page.write_page(made, Path(out))}", err=True)
    return exits.OK
