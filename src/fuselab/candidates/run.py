"""Has two processes compile the subjects, one with max-autotune off and one with it on."""

from __future__ import annotations

from collections.abc import Sequence

from fuselab.candidates.record import Tuned, from_record
from fuselab.processes import caches, child


def run(subjects: Sequence[str], device: str, seconds: float) -> list[Tuned]:
    """Return what was tried for each subject, off and on, by a process of so many seconds each."""
    off, on = (_tuned(subjects, device, which, seconds) for which in (False, True))
    return [one for pair in zip(off, on, strict=True) for one in pair]


def _tuned(subjects: Sequence[str], device: str, max_autotune: bool, seconds: float) -> list[Tuned]:
    question = {"subjects": subjects, "device": device, "max_autotune": max_autotune}
    with caches.fresh() as env:
        answers, why = child.ask("fuselab.candidates.child", question, seconds, env)
    found = {one.subject: one for one in map(from_record, answers)}
    return [found.get(name, Tuned(name, max_autotune, error=why)) for name in subjects]
