"""The command line: verbs, their options, and one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import get_completion_class

from fuselab.command_line import completion, inside, stored, streams
from fuselab.command_line.options import (
    as_json,
    device,
    gpus,
    job_options,
    jobs,
    shard,
    timeout,
    words,
)
from fuselab.command_line.selection import directions, filters, target, targets
from fuselab.command_line.verbs import Verbs
from fuselab.errors import LabError
from fuselab.planning.plan import Filters
from fuselab.precision import LEVELS

INTERRUPTED = 130
RESUMED = ("run", "tune")

Command = Callable[..., Any]


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fuseline", prog_name="fuselab")
def cli() -> None:
    """Check, measure and compare operators: ours, or your own from a Python file."""


def command(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (sys.argv by default) and return its exit code.

    0 ok, 1 failed, 2 usage, 3 no data, or a file or stream that cannot be written, 130 interrupted,
    141 closed pipe.
    """
    try:
        code = _command(arguments)
        sys.stdout.flush()
        return code
    except (streams.ClosedPipeError, BrokenPipeError):
        streams.settle()
        return streams.CLOSED_PIPE
    except OSError as error:  # a file that cannot be written, a full disk
        return _fail(f"error: {error}", 3)
    except (click.Abort, KeyboardInterrupt):
        verb = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        then = "; the same command goes on from here" if verb in RESUMED else ""
        return _fail(f"interrupted{then}", INTERRUPTED)


def _command(arguments: Sequence[str] | None) -> int:
    try:
        return int(cli.main(arguments, prog_name="fuselab", standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LabError as error:
        return _fail(f"error: {error}", error.code)


def _fail(said: str, code: int) -> int:
    """Say why on standard error, as far as that goes, and return the code."""
    with suppress(OSError):
        click.echo(said, err=True)
    streams.settle()
    return code


@cli.command("list")
@targets
@as_json
def list_(targets: tuple[str, ...], as_json: bool) -> int:
    """List operators with their implementations, suites, dtypes and cases."""
    from fuselab.commands import list as verb

    return verb.run(targets, as_json=as_json)


@cli.command()
@targets
@filters
@device
@click.option("--level", type=click.Choice(["quick", "standard"]), default="standard")
@timeout
@as_json
def check(
    targets: tuple[str, ...],
    impls: tuple[str, ...],
    dtypes: tuple[str, ...],
    cases: tuple[str, ...],
    **options: Any,
) -> int:
    """Check implementations against fp64 references, in every direction and layout."""
    from fuselab.commands.measuring import check as verb

    return verb.run(targets, Filters(impls=impls, dtypes=dtypes, cases=cases), **options)


@cli.command()
@targets
@filters
@click.option(
    "--suite",
    metavar="NAME",
    help="Default: quick where the operator has it; all: every suite but check and wild; "
    "FILE.json: the calls that fuselab scan recorded.",
    shell_complete=completion.suites,
)
@click.option("--seed", type=int, metavar="N", help="Of the problems that suite wild draws.")
@click.option(
    "--cells",
    type=click.IntRange(min=1),
    metavar="N",
    help="Problems that suite wild draws of each operator; default 200.",
)
@directions
@click.option("--out", metavar="DIR", default="out/run", show_default=True, help="Where to store.")
@click.option("--fresh", is_flag=True, help="Measure again what DIR already has.")
@click.option(
    "--precision",
    type=click.Choice(list(LEVELS)),
    help="How well the median must be known; default: quick for the suite quick, else standard.",
)
@click.option(
    "--timer",
    metavar="NAME",
    help="GPU: cupti (kernel time, default), graph, events, host. CPU: wall.",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Each implementation in a process of its own, timed and checked from outside.",
)
@click.option(
    "--metrics",
    "slow",
    metavar="fast|all|NAME",
    multiple=True,
    help="Slow counters too, for 64 named cells at most: all, or the columns of these names.",
)
@shard
@gpus
@jobs
@job_options
@device
@timeout
@as_json
def run(
    targets: tuple[str, ...],
    impls: tuple[str, ...],
    dtypes: tuple[str, ...],
    cases: tuple[str, ...],
    suite: str | None,
    seed: int | None,
    cells: int | None,
    directions: tuple[str, ...],
    precision: str | None,
    timer: str | None,
    isolate: bool,
    gpus: str | None,
    jobs: int | None,
    job_options: tuple[str, ...],
    **options: Any,
) -> int:
    """Measure implementations, and resume where an earlier run of the same DIR stopped."""
    from fuselab.commands.measuring import run as verb
    from fuselab.model import ISOLATED
    from fuselab.planning.wild import CELLS, SUITE

    if isolate and timer not in (None, ISOLATED):
        raise click.UsageError(f"--isolate times from outside of the process, got --timer {timer}")
    if suite != SUITE and (seed, cells) != (None, None):
        got = f"--suite {suite}" if suite else "no suite"
        raise click.UsageError(f"--seed and --cells are of --suite {SUITE}, got {got}")
    if gpus is not None and options["device"]:
        raise click.UsageError("--gpus names devices: expected no --device with it")
    if jobs is not None or job_options:
        return _in_jobs(jobs, job_options, options)
    filters = Filters(
        *(suite, impls, dtypes, cases, directions),
        precision=precision or "",
        timer=(ISOLATED if isolate else timer) or "",
        seed=seed or 0,
        cells=cells or CELLS,
    )
    return verb.run(targets, filters, on=gpus, **options)


def _in_jobs(jobs: int | None, job_options: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Run this command in parts, in jobs of a cluster."""
    from fuselab.commands.measuring import jobs as array

    if jobs is None:
        raise click.UsageError("--job-option: expected --jobs with it")
    if options["shard"] or options["as_json"]:
        raise click.UsageError("--jobs: expected no --shard or --json with it")
    kept = ("jobs", "job_options", "shard", "out", "as_json")
    return array.run(words(click.get_current_context(), *kept), options["out"], jobs, job_options)


@cli.command()
@target
@click.option("--dtype", "dtypes", multiple=True, help="Of one size each; default: all sizes.")
@directions
@click.option(
    "--budget",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Rerun the same command to resume.",
)
@click.option("--out", metavar="FILE", help="Default: where the operator looks for it.")
@click.option(
    "--landscape", metavar="DIR", help="Write every tile's time there: heat maps, tables."
)
@click.option("--fresh", is_flag=True, help="Measure again what was measured before.")
@click.option(
    "--from",
    "measured",
    metavar="RUN",
    help="Write rules for impl='auto' instead, from what RUN (of fuselab run) measured.",
)
@click.option(
    "--by",
    multiple=True,
    metavar="FACT",
    help="With --from: what tells classes of calls apart; default: all but what results must not "
    "depend on.",
)
@device
@timeout
@as_json
def tune(
    target: str,
    dtypes: tuple[str, ...],
    directions: tuple[str, ...],
    measured: str | None,
    by: tuple[str, ...],
    **options: Any,
) -> int:
    """Find launch parameters on this GPU and write them to a file that the operator reads."""
    from fuselab.commands.tuning import learn
    from fuselab.commands.tuning import tune as verb

    if measured is not None:
        return learn.run(target, measured, by, options["out"], as_json=options["as_json"])
    if by:
        raise click.UsageError("--by is of --from")
    return verb.run(target, Filters(dtypes=dtypes, directions=directions), **options)


@cli.command()
@target
@click.option(
    "--impl",
    metavar="NAME",
    required=True,
    help="Implementation.",
    shell_complete=completion.implementations,
)
@click.option(
    "--case",
    metavar="NAME",
    required=True,
    help="Problem size.",
    shell_complete=completion.cases,
)
@click.option(
    "--dtype",
    metavar="NAME",
    help="Default: bf16 on a GPU, fp32 on a CPU.",
    shell_complete=completion.dtypes,
)
@click.option("--direction", metavar="fwd|bwd", help="Default: both.")
@click.option("--out", metavar="DIR", default="out/profile", show_default=True)
@click.option("--fresh", is_flag=True, help="Measure and count again what DIR already has.")
@click.option("--precision", type=click.Choice(list(LEVELS)), help="Default: standard.")
@device
@timeout
@as_json
def profile(
    target: str,
    impl: str,
    case: str,
    dtype: str | None,
    direction: str | None,
    precision: str | None,
    **options: Any,
) -> int:
    """Print all counters of one cell, by kernel, and where it stands under its roofs."""
    from fuselab.commands.measuring import profile as verb

    filters = Filters(
        impls=(impl,),
        cases=(case,),
        dtypes=(dtype,) if dtype else (),
        directions=(direction,) if direction else (),
        precision=precision or "",
    )
    return verb.run(target, filters, **options)


@cli.command()
@device
@as_json
def doctor(**options: Any) -> int:
    """Say what works on this machine, what does not, why, and what would mend it."""
    from fuselab.commands.measuring import doctor as verb

    return verb.run(**options)


@cli.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_(shell: str) -> int:
    """Print the script by which Tab completes operators, cases and options in a shell.

    bash and zsh: eval it in the shell's start-up file. fish: write it to the file below.
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "fuselab", "_FUSELAB_COMPLETE").source())
    return 0


for _verb in (*stored.VERBS, *inside.VERBS):
    cli.add_command(_verb)
