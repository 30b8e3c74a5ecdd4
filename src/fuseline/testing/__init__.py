"""The checker: is an operator right, ours or your own."""

from fuseline.core.specs.spec import (
    Budget,
    Case,
    Cost,
    Direction,
    ErrorCase,
    Implementation,
    Inputs,
    OpSpec,
)
from fuseline.testing.check import check
from fuseline.testing.oracle.accuracy import ErrorFigures, errors, make_dys, run
from fuseline.testing.oracle.judge import Judge
from fuseline.testing.report import CheckReport, Finding

__all__ = [
    "Budget",
    "Case",
    "CheckReport",
    "Cost",
    "Direction",
    "ErrorCase",
    "ErrorFigures",
    "Finding",
    "Implementation",
    "Inputs",
    "Judge",
    "OpSpec",
    "check",
    "errors",
    "make_dys",
    "run",
]
