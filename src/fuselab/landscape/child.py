"""Runs tiles once and notes their kernels: python -m fuselab.landscape.child REQUEST ANSWER."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fuselab.landscape.record import Kernel
from fuselab.worker import specs
from fuseline.core.spec import OpSpec, Tuning
from fuseline.core.tuned import Tile


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    spec = specs.load(request["source"])[request["op"]]
    assert spec.tuning
    answer = [
        _kernels(spec, spec.tuning, one, tile, request["device"])
        for one in request["slots"]
        for tile in one["tiles"]
    ]
    Path(sys.argv[2]).write_text(json.dumps(answer))


def _kernels(
    spec: OpSpec, tuning: Tuning, slot: dict[str, Any], tile: list[Any], device: str
) -> list[dict[str, Any]]:
    from fuseline.primitives.triton import resources

    (case,) = (c for c in tuning.cases(slot["row"]) if c.name == slot["case"])
    dtype = getattr(torch, slot["dtype"])
    inputs = spec.make_inputs(case, dtype, torch.device(device), torch.Generator(device))
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
