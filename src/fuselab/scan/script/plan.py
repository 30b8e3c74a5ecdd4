"""Which steps of a script are for what: stages, in as many runs of the script as it takes."""

from __future__ import annotations

WARM, PROFILE, PLAIN, COVER = "warm", "profile", "plain", "cover"
PATCH, PATCHED, UNPATCH, AGAIN = "patch", "patched", "unpatch", "plain again"
# Of these each step is timed.
TIMED = (PLAIN, PATCHED, AGAIN)
# In these our operators are applied.
PATCHING = (PATCH, PATCHED, COVER)
# Before anything is recorded, and after a change.
WARM_STEPS, SETTLED = 3, 2

Run = tuple[tuple[str, int], ...]


def recording(steps: int, available: int | None = None) -> tuple[Run, ...]:
    """Return the stages of each run that records a script.

    steps      how many are timed
    available  how many steps a run of the script has; None: enough
    """
    # No profile right behind another: a user's annotation that ends in the second may be of the
    # first, which torch does not survive. Steps after a profile are slower: none of them is timed.
    whole = (
        *((WARM, WARM_STEPS), (PLAIN, steps), (PROFILE, 1), (WARM, 1), (PROFILE, 1), (WARM, 1)),
        *((PROFILE, 1), (PATCH, SETTLED), (COVER, 1)),
    )
    if available is None or available >= length(whole):
        return (whole,)
    stages = ((WARM, PROFILE, 1), (PATCH, COVER, 1), (WARM, PLAIN, steps))
    return tuple(_short(*stage, available) for stage in stages)


def comparing(steps: int, available: int | None = None) -> tuple[Run, ...]:
    """Return the stages of each run that compares plain and patched steps."""
    whole = (
        *((WARM, WARM_STEPS), (PLAIN, steps), (PATCH, SETTLED), (PATCHED, steps)),
        *((UNPATCH, SETTLED), (AGAIN, steps)),
    )
    if available is None or available >= length(whole):
        return (whole,)
    return _short(WARM, PLAIN, steps, available), _short(PATCH, PATCHED, steps, available)


def length(run: Run) -> int:
    """Return how many steps a run takes."""
    return sum(count for _, count in run)


def _short(before: str, name: str, count: int, available: int) -> Run:
    """Return a stage in a run of its own, the first of too few steps to warm up."""
    warm = min(SETTLED, available - 1)
    stages = ((before, warm), (name, min(count, available - warm)))
    return tuple(stage for stage in stages if stage[1])
