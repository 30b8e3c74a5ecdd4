"""The process that runs tiles once and notes their kernels, with an answer a tile."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from fuselab.landscape.record import Kernel
from fuselab.processes import child
from fuselab.worker.operators import specs
from fuseline.core.selection.tuned import Tile
from fuseline.core.specs.spec import OpSpec, Tuning


def main() -> None:
    asked = child.question()
    spec = specs.load(asked["source"])[asked["op"]]
    assert spec.tuning
    for slot in asked["slots"]:
        for tile in slot["tiles"]:
            child.answer(_kernels(spec, spec.tuning, slot, tile, asked["device"]))


def _kernels(
    spec: OpSpec, tuning: Tuning, slot: dict[str, Any], tile: list[Any], device: str
) -> list[dict[str, Any]]:
    from fuseline.primitives.triton import resources

    (case,) = (c for c in tuning.cases(slot["row"]) if c.name == slot["case"])
    dtype = getattr(torch, slot["dtype"])
    inputs = spec.inputs(case, dtype, torch.device(device), torch.Generator(device))
    before = len(resources.kept())
    backward = slot["direction"] == "bwd"
    try:
        with torch.set_grad_enabled(backward):
            if backward:
                leaves = {n: t for n in spec.differentiable if (t := inputs[n]) is not None}
                inputs |= {n: t.requires_grad_() for n, t in leaves.items()}
            out = tuning.call(Tile(*tile))(**inputs)
            if backward:
                before = len(resources.kept())
                torch.autograd.backward(out, torch.ones_like(out))
    except Exception:  # what does not compile has no kernels, and no time either
        return []
    return [asdict(Kernel(*found)) for found in resources.kept()[before:]]


if __name__ == "__main__":
    main()
