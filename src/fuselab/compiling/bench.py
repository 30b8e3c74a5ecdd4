"""Has two processes compile all subjects, one after the other, with the same caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuselab.compiling.record import Row, row
from fuselab.explain.record import mode_of
from fuselab.machine.load import told
from fuselab.processes import caches, child


def bench(subjects: Sequence[str], device: str, seconds: float) -> list[Row]:
    """Return a row a subject; both processes end after so many seconds."""
    with caches.fresh() as env:
        cold, why = _compiled(True, subjects, device, env, seconds)
        done = [name for name in subjects if "modes" in cold.get(name, {})]
        warm, _ = _compiled(False, done, device, env, seconds) if done else ({}, "")
    return [_row(name, cold.get(name, {"error": why}), warm.get(name, {})) for name in subjects]


def _compiled(
    cold: bool, subjects: Sequence[str], device: str, env: dict[str, str], seconds: float
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what was said of each subject, and why nothing of the others."""
    question = {"cold": cold, "subjects": subjects, "device": device}
    answers, why = child.ask("fuselab.compiling.child", question, seconds, env)
    return {said["subject"]: said for said in answers}, why


def _row(name: str, cold: dict[str, Any], warm: dict[str, Any]) -> Row:
    if "modes" not in cold:
        return Row(name, error=cold["error"])
    eager, compiled = map(mode_of, cold["modes"])
    noise = told(cold["noise"], warm.get("noise", ""))
    return row(name, (eager, compiled), cold["us"], cold["first_s"], warm.get("first_s"), noise)
