"""Options that verbs share."""

from __future__ import annotations

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


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
device = click.option("--device", metavar="cpu|cuda|cuda:N", help="Default: cuda if there is one.")
timeout = click.option(
    "--timeout",
    type=click.IntRange(min=1, max=86400),
    default=120,
    show_default=True,
    help="Seconds one step may take; compiling may take 5 times as long.",
)
