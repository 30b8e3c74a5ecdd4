"""Options that verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click


class Share(click.ParamType):  # type: ignore[type-arg]
    """A percentage, with or without its sign, as a share of 1."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            share = float(str(value).removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"got {value!r}, expected a percentage from 0% to 100%", param, ctx)
        return share


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, as 24GiB or 512MiB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i)?B", str(value))
        if not found or not float(found[1]):
            self.fail(f"got {value!r}, expected a size such as 24GiB or 512MiB", param, ctx)
        return int(float(found[1]) * 1024 ** ("KMGT".index(found[2][0]) + 1 if found[2] else 0))


def words(context: click.Context, *without: str) -> list[str]:
    """Return what a command was given, as the words of another call, but for some options."""
    found: list[str] = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params[str(parameter.name)]
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            found += values
        elif name not in without and value is not None and value is not False:
            option = parameter.opts[0]
            flag = isinstance(parameter, click.Option) and parameter.is_flag
            found += [option] if flag else [w for v in values for w in (option, str(v))]
    return found


def gate(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which a comparison is a gate of somebody's CI."""
    for option in (
        click.option(
            "--annotate",
            type=click.Choice(["github", "azure"]),
            help="Print the worst cells as lines that this service turns into annotations.",
        ),
        click.option("--markdown", metavar="PATH", help="Write what a pull request shows."),
        click.option("--junit", metavar="PATH", help="Write JUnit's XML: a cell is a test."),
        click.option(
            "--fail-on",
            type=click.Choice(["slower", "undecided", "nothing"]),
            multiple=True,
            help="Exit code 1 if a cell is slower, 3 if too few are decided; may be repeated, "
            "default both.",
        ),
        click.option(
            "--baseline",
            metavar="FILE",
            help="What A, given alone, is held against: a run or an export.",
        ),
        click.option(
            "--allow",
            type=Share(),
            default=0.0,
            metavar="PERCENT",
            help="Share of the decided cells that may be slower, as 1%; default none.",
        ),
    ):
        verb = option(verb)
    return verb


shard = click.option(
    "--shard",
    metavar="I/N",
    help="Measure one part of N, by the names of the cells; auto or auto/N: the part of this task "
    "of torchrun, a Slurm array or an indexed job of Kubernetes.",
)
gpus = click.option(
    "--gpus",
    metavar="all|N,...",
    help="A process on each of these GPUs at once: it takes the next cells when it is done.",
)
jobs = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="A part in each of N jobs of Slurm, by submitit, in DIR/job-I; then all of them in DIR.",
)
job_options = click.option(
    "--job-option",
    "job_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of these jobs: slurm_partition=gpu, gpus_per_node=1, timeout_min=90, cluster=local.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
device = click.option("--device", metavar="cpu|cuda|cuda:N", help="Default: cuda if there is one.")
timeout = click.option(
    "--timeout",
    type=click.IntRange(min=1, max=86400),
    default=120,
    show_default=True,
    help="Seconds one step may take; compiling may take 5 times as long.",
)
