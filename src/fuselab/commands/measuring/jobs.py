"""fuselab run --jobs: a part of a run in each job that submitit hands in, then one run of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuselab.commands import exits
from fuselab.commands.stored import merge
from fuselab.output.plain import say
from fuselab.planning.plan import PlanError

# Of a job that sets none; submitit's own would end a run after five minutes.
MINUTES = 12 * 60


def run(words: Sequence[str], out: str, count: int, options: Sequence[str]) -> int:
    """Run `fuselab run WORDS` in `count` jobs, with OUT/job-N as their folders, wait for them, and
    merge their cells into OUT.

    options: NAME=VALUE of submitit's `update_parameters`, and cluster=NAME. Where there is no Slurm
    the jobs are processes of this machine. A job that was killed goes on when the same command is
    given again. Returns the gravest of their exit codes.
    """
    folder = Path(out).absolute()
    executor = _executor(folder / "jobs", _parameters(options))
    parts = [str(folder / f"job-{i}") for i in range(1, count + 1)]
    with executor.batch():
        jobs = [
            executor.submit(measure, [*words, "--shard", f"{i}/{count}", "--out", part])
            for i, part in enumerate(parts, 1)
        ]
    for job, part in zip(jobs, parts, strict=True):
        say(f"{part}: job {job.job_id}, {job.paths.stderr}")
    try:
        codes = [_code(job, part) for job, part in zip(jobs, parts, strict=True)]
    except BaseException:
        for job in jobs:
            job.cancel(check=False)
        raise
    return merge.parts(out, parts, codes)


def measure(words: Sequence[str]) -> int:
    """Run one part, in its job, and return its exit code."""
    command = [sys.executable, "-m", "fuselab", "run", *words]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def _executor(folder: Path, parameters: Mapping[str, Any]) -> Any:
    try:
        from submitit import AutoExecutor
    except ImportError as error:
        raise PlanError(
            "--jobs needs submitit, which is not installed: pip install 'fuseline[cluster]'"
        ) from error
    chosen = dict(parameters)
    try:
        executor = AutoExecutor(folder=folder, cluster=chosen.pop("cluster", None))
        executor.update_parameters(**{"timeout_min": MINUTES, "name": "fuselab", **chosen})
    except (ValueError, TypeError, NameError, RuntimeError) as error:
        raise PlanError(f"--job-option: {error}") from error
    return executor


def _parameters(options: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise PlanError(f"--job-option: got {option!r}, expected NAME=VALUE")
        found[name] = int(value) if value.isdecimal() else value
    return found


def _code(job: Any, part: str) -> int:
    """Wait for a job and return its exit code; FAILED, with the reason, for one that was ended."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return int(job.result())
    except (FailedJobError, UncompletedJobError) as error:
        say(f"{part}: {str(error).splitlines()[0]}")
        return exits.FAILED
