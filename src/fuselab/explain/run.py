"""Has a child explain a function, in fresh private caches, within a time."""

from __future__ import annotations

from fuselab.errors import LabError
from fuselab.explain.record import Explanation, from_record
from fuselab.explain.target import locate
from fuselab.planning.plan import PlanError
from fuselab.processes import caches, child


class ExplainError(LabError, RuntimeError):
    """The user's function could not be explained: it raised, crashed, or took too long."""


def run(text: str, device: str, seconds: float) -> Explanation:
    """Return the explanation of FILE.py:FUNCTION or of an example.

    Raises PlanError for what is no such function, ExplainError for one that fails.
    """
    file, name = locate(text)
    question = {"file": str(file), "name": name, "device": device}
    with caches.fresh() as env:
        answers, why = child.ask("fuselab.explain.child", question, seconds, env)
    if not answers:
        raise ExplainError(f"{text}: {why}")
    (said,) = answers
    if "usage" in said:
        raise PlanError(said["usage"])
    if "failed" in said:
        raise ExplainError(f"{text}: {said['failed']}")
    return from_record(said["found"])
