"""What is compiled: the formula of every operator, and the blocks that models are made of."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace

import torch

from fuselab.explain.target import Target, examples, load
from fuselab.planning.plan import unknown
from fuseline import table
from fuseline.core.specs.spec import OpSpec

BLOCKS = ("mlp_block", "attention_block", "norm_residual", "attention_pytorch")
# About 16 MB; operators without any of these are compiled in a case of the suite quick.
CASES = (
    *("1024x4096", "4x512x1024", "1024x128x128-causal", "1x32x512x64", "1024x1024x1024"),
    *("8192x1024x1024x1024", "8192x1024x1024x1024-gelu"),
    *("32x64x56x56-64-3x3-p1", "32x64x56x56-64-3x3-p1-training", "4096x1000-smooth0.1"),
)
SIZES = {"attention_pytorch": 1024}


def names() -> tuple[str, ...]:
    return (*table.load(), *BLOCKS)


def check(chosen: Sequence[str]) -> None:
    """Raise PlanError for a name that is no subject's."""
    for name in chosen:
        if name not in names():
            raise unknown("SUBJECT", name, names())


def subject(name: str, device: str) -> Target:
    """Return the target of an operator's formula in torch, or of a block."""
    if name in BLOCKS:
        target = load(examples()[name], name, device)
        return replace(target, sizes=(SIZES.get(name, target.sizes[-1]),))
    return _operator(table.load()[name], device)


def _operator(spec: OpSpec, device: str) -> Target:
    if spec.eager is None:
        raise ValueError(f"{spec.name} has no formula in torch")
    function = spec.eager.fn
    quick = next((c for c in spec.cases if "quick" in c.suites), spec.cases[0])
    case = next((c for c in spec.cases if c.name in CASES), quick)
    parameters = inspect.signature(function).parameters

    def inputs(_: object) -> tuple[object, ...]:
        generator = torch.Generator(device).manual_seed(0)
        found = spec.inputs(case, torch.float32, torch.device(device), generator)
        return tuple(found[name] for name in parameters if name in found)

    return Target(spec.name, function, inputs, (case.name,), inspect.getfile(function))
