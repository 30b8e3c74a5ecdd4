"""Rivals: other projects' kernels for our operators, measured where they are installed.

A file a project, none of which is imported before a worker measures it; plug-ins add more.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache

from fuselab import plugins
from fuselab.plugins import Given, Unfit
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


@cache
def plugged() -> Mapping[Hashable, Given[Rival]]:
    """Return the rivals of plug-ins by operator and name."""
    return plugins.load(plugins.RIVALS, Rival, _checked, {_key(rival) for rival in ALL})


def of(op: str) -> dict[str, Rival]:
    """Return the rivals of an operator by name, installed or not."""
    every = (*ALL, *(given.value for given in plugged().values()))
    return {rival.name: rival for rival in every if rival.op == op}


def _checked(rival: Rival) -> tuple[str, str]:
    for field in ("name", "op", "package", "module"):
        text = getattr(rival, field)
        if not isinstance(text, str) or not text or "/" in text:
            raise Unfit(f"{field}: got {text!r}, expected a text without '/'")
    return _key(rival)


def _key(rival: Rival) -> tuple[str, str]:
    return rival.op, rival.name
