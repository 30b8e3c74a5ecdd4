"""What a check found, one record per question asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseline.testing.oracle.accuracy import ErrorFigures

SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One check of one implementation.

    impl, check, case, dtype, layout  what was checked on what, by name
    ok                                whether it passed
    reason                            what was wrong, or why it was skipped
    figures                           output or input name -> its error

    An implementation that is unavailable has one finding, check "skipped", with the reason why.
    """

    impl: str
    check: str
    case: str
    dtype: str
    layout: str
    ok: bool
    reason: str = ""
    figures: Mapping[str, ErrorFigures] = field(default_factory=dict)

    def __str__(self) -> str:
        where = "/".join(filter(None, (self.impl, self.case, self.dtype, self.layout)))
        return f"{self.check} [{where}]: {self.reason or 'ok'}"


@dataclass(frozen=True)
class CheckReport:
    """What one call of `check` found.

    op        name of the operator
    findings  one for each check of each implementation, case, dtype and layout

    `ok` is true if something was checked and nothing failed; str() lists failures and skips.
    """

    op: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if not f.ok)

    @property
    def skipped(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.check == SKIPPED)

    def worst(self) -> dict[tuple[str, str], ErrorFigures]:
        """Return (dtype, output or input) -> figures of its largest error in the budget's unit."""
        worst: dict[tuple[str, str], ErrorFigures] = {}
        for finding in self.findings:
            unit = "scaled" if finding.check.startswith("gradient") else "max_ulp"
            for name, figures in finding.figures.items():
                known = worst.get((finding.dtype, name))
                if known is None or getattr(figures, unit) > getattr(known, unit):
                    worst[finding.dtype, name] = figures
        return worst

    @property
    def ok(self) -> bool:
        return len(self.findings) > len(self.skipped) and not self.failures

    def __str__(self) -> str:
        asked = len(self.findings) - len(self.skipped)
        head = f"{self.op}: {asked} checks, {len(self.failures)} failed"
        return "\n".join((head, *map(str, self.failures), *map(str, self.skipped)))
