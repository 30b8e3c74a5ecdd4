"""The command line of what reads runs that are stored: report, export, compare, ..."""

from __future__ import annotations

from typing import Any

import click

from fuselab.command_line.options import Bytes, as_json, gate
from fuselab.command_line.selection import directions, filters
from fuselab.planning.plan import DTYPE_ALIASES


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--html", "page", metavar="PATH", help="Default: RUN/report.html.")
@click.option("--markdown", metavar="PATH", help="Default: RUN/report.md.")
@click.option("--grid", metavar="DIR", help="Ratios by size: tables and heat maps, a file each.")
@click.option(
    "--beside",
    multiple=True,
    metavar="published:NAME",
    help="A map of the runs' ratios over those that others published; may be repeated.",
)
@as_json
def report(runs: tuple[str, ...], **options: Any) -> int:
    """Write the report of a run: one HTML page and its tables as Markdown.

    Of several runs, up to four: one page, with each beside the first.
    """
    from fuselab.commands.stored import report as verb

    return verb.run(runs, **options)


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("picture", metavar="FILE.svg|FILE.png")
@click.option("--op", help="Operator; default: the first.")
@click.option("--dtype", help="Dtype; default: the first.")
def plot(run: str, picture: str, op: str | None, dtype: str | None) -> int:
    """Draw bandwidth over size of one operator and dtype, for a README or a paper."""
    from fuselab.commands.stored import plot as verb

    return verb.run(run, picture, op, DTYPE_ALIASES.get(dtype or "", dtype))


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet", "baseline"]),
    default="jsonl",
    show_default=True,
)
@click.option("--samples", is_flag=True, help="With the raw samples; jsonl and parquet only.")
@click.option("--out", metavar="FILE", help="Write there; parquet needs it.")
def export(run: str, form: str, samples: bool, out: str | None) -> int:
    """Print one flat record a cell; baseline: short lines to review and to compare with."""
    from fuselab.commands.stored import export as verb

    return verb.run(run, form, samples=samples, out=out)


@click.command()
@click.argument("a", metavar="A")
@click.argument("others", metavar="[B]", nargs=-1)
@filters
@click.option("--op", "ops", multiple=True, help="Operator by name; may be repeated.")
@directions
@click.option("--impl-a", metavar="NAME", help="Implementation of A; beside --impl-b.")
@click.option("--impl-b", metavar="NAME", help="Implementation of B, or of A without B.")
@gate
@as_json
def compare(
    a: str,
    others: tuple[str, ...],
    ops: tuple[str, ...],
    impls: tuple[str, ...],
    dtypes: tuple[str, ...],
    cases: tuple[str, ...],
    directions: tuple[str, ...],
    **options: Any,
) -> int:
    """Say where B is faster or slower than A: runs, or exports with samples; 1 if slower.

    A may be published:NAME, numbers that others published; up to four runs then stand beside them.
    """
    from fuselab.commands.stored import compare as verb

    wanted = {"op": ops, "impl": impls, "dtype": dtypes, "case": cases, "direction": directions}
    gate = verb.Gate(**{name: options.pop(name) for name in verb.Gate.__dataclass_fields__})
    return verb.run(a, others, wanted, gate=gate, **options)


@click.command()
@click.argument("out", metavar="OUT")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
def merge(out: str, runs: tuple[str, ...]) -> int:
    """Put the cells of several runs, of shards or machines, into one run in the folder OUT.

    A cell that two runs measured differently is an error; of the ceilings, which every run
    measures, the first is kept.
    """
    from fuselab.commands.stored import merge as verb

    return verb.run(out, runs)


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("file", metavar="FILE.sqlite")
def share(run: str, file: str) -> int:
    """Write a run as one file for others, without paths and names of this machine.

    compare, report, export, merge and tune take it in place of a run's folder.
    """
    from fuselab.commands.stored import share as verb

    return verb.run(run, file)


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--op", "ops", multiple=True, help="Operator by name; may be repeated.")
@click.option("--dtype", "dtypes", multiple=True, help="By torch's name; may be repeated.")
@directions
@click.option(
    "--against",
    metavar="NAME",
    help="Whose time is over ours; default: compile where it was measured, else eager.",
)
@click.option(
    "--memory-limit",
    type=Bytes(),
    metavar="BYTES",
    help="Show instead who would fit into so much memory, as 24GiB, by the memory of each call.",
)
def show(
    run: str,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    directions: tuple[str, ...],
    against: str | None,
    memory_limit: int | None,
) -> int:
    """Draw the heat maps of a run in the terminal: how much faster the best of ours is, by size."""
    from fuselab.commands.stored import show as verb

    dtypes = tuple(DTYPE_ALIASES.get(name, name) for name in dtypes)
    if memory_limit is not None and against is not None:
        raise click.UsageError("--memory-limit: expected no --against beside it")
    wanted = {"op": ops, "dtype": dtypes, "direction": directions}
    return verb.run(run, wanted, against, memory_limit)


VERBS = (report, show, plot, export, compare, merge, share)
