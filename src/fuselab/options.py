"""Options that verbs share."""

from __future__ import annotations

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
device = click.option("--device", metavar="cpu|cuda|cuda:N", help="Default: cuda if there is one.")
timeout = click.option(
    "--timeout",
    type=click.IntRange(min=1, max=86400),
    default=120,
    show_default=True,
    help="Seconds one step may take; compiling may take 5 times as long.",
)
