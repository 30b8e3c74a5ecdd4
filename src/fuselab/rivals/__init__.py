"""Rivals: other projects' kernels for our operators, measured where they are installed.

A file a project, none of which is imported before a worker measures it.
"""

from __future__ import annotations

from fuselab.rivals import cce, flash_attn, flex, liger, quack, xformers, xla
from fuselab.rivals.rival import Rival

ROLE = "rival"
ALL = (
    *(liger.RMS_NORM, quack.RMS_NORM, liger.LAYER_NORM, liger.SOFTMAX, *quack.PRODUCTS),
    *(liger.CROSS_ENTROPY, quack.CROSS_ENTROPY, liger.GEGLU, liger.ROPE, liger.SWIGLU),
    *(liger.LINEAR_CROSS_ENTROPY, cce.LINEAR_CROSS_ENTROPY),
    *(*flash_attn.ALL, flex.ATTENTION, xformers.ATTENTION),
    *xla.ALL,
)


def of(op: str) -> dict[str, Rival]:
    """Return the rivals of one of our operators by name, installed or not."""
    return {rival.name: rival for rival in ALL if rival.op == op}
