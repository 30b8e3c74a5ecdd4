"""Tensors of 2^32 elements and more, forward and backward, against fp64 in chunks of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fuseline import table
from fuseline.core.spec import Case, Direction, Inputs, OpSpec
from fuseline.testing import accuracy

OPS = (
    "softmax", "log_softmax", "double_softmax", "softmax_backward", "layer_norm", "norm_chain",
    "pointwise_chain", "horizontal_reduction_pointwise", "horizontal_reduction_reduction",
    "bias_gelu", "bias_dropout_add",
)  # fmt: skip
SQUARE, MANY, LONG = (65536, 65536), ((1 << 25) + 3, 128), (5, (1 << 29) + 61)
TRIED = [(SQUARE, "fwd"), (SQUARE, "bwd"), (MANY, "fwd"), (LONG, "fwd")]
YARDSTICK = 1 << 26  # elements by which eager's own error is judged
TENSORS = 8  # of the largest that are there at once: inputs, results, and what chunks take

pytestmark = [pytest.mark.gpu, pytest.mark.long]


def rows_of(spec: OpSpec, inputs: Inputs, cut: slice) -> Inputs:
    """The inputs with some of their rows."""
    return {n: v[cut] if n in spec.row_inputs and v is not None else v for n, v in inputs.items()}


def eager_errors(
    spec: OpSpec, inputs: Inputs, direction: Direction, dys: tuple[Tensor, ...] | None, rows: int
) -> dict[str, accuracy.ErrorFigures]:
    """What eager errs by on the first rows, of results that have rows."""
    assert spec.eager is not None
    some = rows_of(spec, inputs, slice(rows))
    seeds = None if dys is None else tuple(dy[:rows] for dy in dys)
    results = accuracy.run(spec.eager.fn, spec, some, direction, seeds)
    found = accuracy.errors(spec, some, direction, results, seeds)
    return {n: f for n, f in found.items() if direction == "fwd" or n in spec.row_inputs}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("shape", "direction"), TRIED, ids=lambda v: str(v).replace(" ", ""))
def test_huge(name: str, shape: tuple[int, int], direction: Direction) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < TENSORS * 4 * shape[0] * shape[1]:
        pytest.skip(f"{free >> 30} GiB of memory are free")
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
    rows = max(1, YARDSTICK // shape[1])
    eager = eager_errors(spec, inputs, direction, dys, rows)
    for result, figures in accuracy.errors(spec, inputs, direction, results, dys).items():
        budget = spec.budget.held_by("ours")
        reason = accuracy.over_budget(budget, torch.float32, direction, figures, eager.get(result))
        print(f"{name} {direction} {shape} {result}: {figures}, eager {eager.get(result)}")
        assert reason is None, f"{result}: {reason}"
