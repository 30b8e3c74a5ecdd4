"""Checks of what bad input gets."""

from __future__ import annotations

from collections.abc import Iterator

from fuseline.core.specs.spec import ErrorCase
from fuseline.testing.report import Finding
from fuseline.testing.trial import Trial


def errors(trial: Trial) -> Iterator[Finding]:
    """Check that every error case raises its error with the right words, the device still usable.

    Asked of our own implementations only: others owe us no wording.
    """
    if trial.impl.role != "ours":
        return
    for case in trial.spec.error_cases:
        yield trial.finding("errors", _misreported(trial, case), case.name)
    if trial.spec.error_cases:
        yield trial.finding("errors", trial.wrong(trial.inputs(), "fwd"), "a good call afterwards")


def _misreported(trial: Trial, case: ErrorCase) -> str | None:
    inputs = case.make(trial.device)
    try:
        trial.impl.fn(**inputs)
    except case.error as error:
        missing = [word for word in case.match if word not in str(error)]
        return f"the message {str(error)!r} lacks {missing}" if missing else None
    except Exception as error:
        return f"{type(error).__name__}({error}) came, {case.error.__name__} was expected"
    return f"no error came, {case.error.__name__} was expected"
