"""What compiled kernels take of a GPU: of those that `launch` keeps."""

from __future__ import annotations

from typing import NamedTuple

from fuseline.primitives.triton import launch


class Resources(NamedTuple):
    """A kernel: registers a thread, of which so many went to memory, and bytes of shared memory."""

    kernel: str
    registers: int
    spills: int
    shared: int


def kept() -> list[Resources]:
    """Return the kernels in the order in which they were first launched; none on a CPU."""
    compiled = [code.held[1] for code in launch._kept.values()]
    return [Resources(c.name, c.n_regs, c.n_spills, c.metadata.shared) for c in compiled]
