"""A run that a page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fuselab.model import Measurement
from fuselab.report.build import build
from fuselab.report.view import View


@dataclass(frozen=True)
class Shown:
    """A run on a page.

    name          how the page calls it, which is short and of this run alone
    folder        where it is stored, as it was given
    measured, environments, span  what the store says of it
    """

    name: str
    folder: str
    measured: Sequence[Measurement]
    environments: Sequence[Mapping[str, Any]] = ()
    span: tuple[str, str] | None = None

    @cached_property
    def view(self) -> View:
        """Its tables."""
        return build(self.measured, self.environments, self.span)


@dataclass(frozen=True)
class Beside:
    """Ratios that others published, which a page sets beside its runs.

    about   the source and the GPU, as text
    ratios  by "OP DIRECTION DTYPE" and "CASE above/below": above's time over below's
    """

    name: str
    about: str
    ratios: Mapping[str, Mapping[str, float]]
