"""One part of N of a run: which groups it has, and which part a task of a cluster is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fuselab.errors import LabError
from fuselab.model import Group

AUTO = "auto"
_EXPECTED = "expected I/N with I from 1 to N, auto or auto/N"


class ShardError(LabError, ValueError):
    """A part that does not exist; the text says what does."""

    code = 2


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def has(self, group: Group) -> bool:
        """Whether a group is measured here: by its names, on whatever device, so that a part stays
        the same when others are added to the plan.
        """
        names = (group.op, group.case, group.dtype, group.direction, group.layout)
        digest = hashlib.sha256("\0".join(names).encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


def parse(text: str, variables: Mapping[str, str]) -> Shard:
    """Return the part that a text names; "auto": that of this task, by its variables.

    These are torchrun's RANK and WORLD_SIZE, a Slurm array's SLURM_ARRAY_TASK_ID with its _MIN and
    _COUNT, and JOB_COMPLETION_INDEX of Kubernetes, which does not tell the count. Raises ShardError
    for what is no part, and for "auto" where nothing tells which.
    """
    found = re.fullmatch(rf"(\d+|{AUTO})(?:/(\d+))?", text)
    if found is None or (found[1] != AUTO and not found[2]):
        raise ShardError(f"shard: got {text!r}, {_EXPECTED}")
    index, count = int(found[1]) if found[1] != AUTO else 0, int(found[2] or 0)
    if found[1] == AUTO:
        index, told, by = _task(variables)
        if count and told and count != told:
            raise ShardError(f"shard: got {text!r}, but {by} tells of {told} parts")
        count = count or told
        if not count:
            raise ShardError(f"shard: got {text!r}, expected auto/N: {by} tells no count")
    if not 1 <= index <= count:
        raise ShardError(f"shard: got part {index} of {count}, {_EXPECTED}")
    return Shard(index, count)


def _task(variables: Mapping[str, str]) -> tuple[int, int, str]:
    """Return the part (from 1), how many there are (0: not told) and what tells it."""

    def number(name: str, default: int = 0) -> int:
        value = variables.get(name, str(default))
        if not value.isdecimal():
            raise ShardError(f"{name}: got {value!r}, expected a number")
        return int(value)

    if "RANK" in variables and "WORLD_SIZE" in variables:
        return number("RANK") + 1, number("WORLD_SIZE"), "torchrun"
    if "SLURM_ARRAY_TASK_ID" in variables:
        first = number("SLURM_ARRAY_TASK_MIN")
        count = number("SLURM_ARRAY_TASK_COUNT")
        return number("SLURM_ARRAY_TASK_ID") - first + 1, count, "the Slurm array"
    if "JOB_COMPLETION_INDEX" in variables:
        return number("JOB_COMPLETION_INDEX") + 1, 0, "the indexed job"
    raise ShardError(
        f"shard: got {AUTO}, expected RANK and WORLD_SIZE, SLURM_ARRAY_TASK_ID or "
        "JOB_COMPLETION_INDEX among the variables"
    )
