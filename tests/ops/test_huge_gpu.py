"""Tensors of 2^32 elements and more, forward and backward, against fp64 in chunks of rows."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor

from fuseline import table
from fuseline.core.specs.spec import Case, Direction, Inputs, OpSpec
from fuseline.testing.oracle import accuracy

OPS = (
    "softmax", "log_softmax", "double_softmax", "softmax_backward", "layer_norm", "norm_chain",
    "pointwise_chain", "horizontal_reduction_pointwise", "horizontal_reduction_reduction",
    "bias_gelu", "bias_dropout_add",
)  # fmt: skip
SQUARE, MANY, LONG = (65536, 65536), ((1 << 25) + 3, 128), (5, (1 << 29) + 61)
TRIED = [(SQUARE, "fwd"), (SQUARE, "bwd"), (MANY, "fwd"), (LONG, "fwd")]
YARDSTICK = 1 << 26  # elements that eager makes at once
TENSORS = {"fwd": 6, "bwd": 8}  # that are there at once: inputs, results, and what chunks take

pytestmark = [pytest.mark.gpu, pytest.mark.long]


def rows_of(spec: OpSpec, inputs: Inputs, cut: slice) -> Inputs:
    """The inputs with some of their rows."""
    return {n: v[cut] if n in spec.row_inputs and v is not None else v for n, v in inputs.items()}


def eager_errors(
    spec: OpSpec, inputs: Inputs, direction: Direction, dys: tuple[Tensor, ...] | None, rows: int
) -> dict[str, accuracy.ErrorFigures]:
    """The worst that eager errs by on all rows, so many at a time, of results that have rows."""
    assert spec.eager is not None
    worst: dict[str, accuracy.ErrorFigures] = {}
    size = operator.attrgetter("max_ulp" if direction == "fwd" else "scaled")
    count = next(v for n, v in inputs.items() if n in spec.row_inputs).shape[0]
    for first in range(0, count, rows):
        cut = slice(first, first + rows)
        some = rows_of(spec, inputs, cut)
        seeds = None if dys is None else tuple(dy[cut] for dy in dys)
        results = accuracy.run(spec.eager.fn, spec, some, direction, seeds)
        for name, found in accuracy.errors(spec, some, direction, results, seeds).items():
            if direction == "fwd" or name in spec.row_inputs:
                worst[name] = max(worst.get(name, found), found, key=size)
    return worst


def complaints(name: str, shape: tuple[int, int], direction: Direction) -> list[str]:
    """What is wrong with an operator's results. Nothing large outlives the call."""
    spec = table.load()[name]
    model = next(c for c in spec.cases if "fusion" in c.suites)
    case = Case("huge", {**model.args, "shape": shape})
    generator = torch.Generator("cuda").manual_seed(7)
    inputs = spec.make_inputs(case, torch.float32, torch.device("cuda"), generator)
    ours = next(i for i in spec.implementations if i.name in ("cuda", "triton"))
    dys = None
    if direction == "bwd":
        with torch.no_grad():
            outputs = accuracy.as_tuple(ours.fn(**inputs))
        dys = accuracy.make_dys(outputs, generator)
        del outputs
    results = accuracy.run(ours.fn, spec, inputs, direction, dys)
    eager = eager_errors(spec, inputs, direction, dys, max(1, YARDSTICK // shape[1]))
    budget, found = spec.budget.held_by("ours"), []
    for result, figures in accuracy.errors(spec, inputs, direction, results, dys).items():
        reason = accuracy.over_budget(budget, torch.float32, direction, figures, eager.get(result))
        print(f"{name} {direction} {shape} {result}: {figures}, eager {eager.get(result)}")
        if reason is not None:
            found.append(f"{result}: {reason}")
    return found


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("shape", "direction"), TRIED, ids=lambda v: str(v).replace(" ", ""))
def test_huge(name: str, shape: tuple[int, int], direction: Direction) -> None:
    torch.cuda.empty_cache()
    total, needed = torch.cuda.mem_get_info()[1], TENSORS[direction] * 4 * shape[0] * shape[1]
    if total < needed:  # of a GPU that is large enough all of it is to be free
        pytest.skip(f"the GPU has {total >> 30} GiB of memory, expected {needed >> 30}")
    assert not complaints(name, shape, direction)
