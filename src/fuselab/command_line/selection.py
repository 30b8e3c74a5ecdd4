"""The arguments and options that choose operators and cells, with what a shell's Tab offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fuselab.command_line import completion

Command = Callable[..., Any]

targets = click.argument(
    "targets", metavar="[OP_OR_FILE]...", nargs=-1, shell_complete=completion.targets
)
target = click.argument("target", metavar="OP_OR_FILE", shell_complete=completion.targets)
directions = click.option(
    "--direction",
    "directions",
    multiple=True,
    help="fwd or bwd; default both.",
    shell_complete=completion.directions,
)


def filters(verb: Command) -> Command:
    """Add the options that choose cells."""
    for name, complete, text in (
        ("case", completion.cases, "Problem size by name; may be repeated."),
        (
            *("dtype", completion.dtypes),
            "fp64, fp32, fp16, bf16 or torch's name; may be repeated.",
        ),
        ("impl", completion.implementations, "Implementation by name; may be repeated."),
    ):
        option = click.option(
            f"--{name}", f"{name}s", multiple=True, help=text, shell_complete=complete
        )
        verb = option(verb)
    return verb
