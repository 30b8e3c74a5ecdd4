"""The operators' FLOPs beside two counters that are not ours: torch's and XLA's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fuseline import table
from fuseline.core.specs.spec import Case, OpSpec
from fuseline.testing.oracle.accuracy import as_tuple, gradient_names

SPECS = table.load()
CPU = torch.device("cpu")
FP8 = [op for op in SPECS if "_fp8" in op]
# The model is the least work: what a formula written down as it is does not save.
LESS_THAN_WRITTEN = {
    "norm_chain": "a sum to the seventh power, once a row, in place of three passes",
    "matmul_matmul": "weights first, where that takes fewer operations",
    "attention_varlen": "no padding, and half of the scores where it is causal",
    "rope": "no gradients of the tables, which XLA's backward has",
    **dict.fromkeys(FP8, "forward alone; XLA counts the steps of a conversion"),
}
# By five products in place of four: the scores are computed again rather than kept.
RECOMPUTED = ("attention", "multihead_attention")
PRODUCTS = [
    op for op, spec in SPECS.items() if op.startswith(("matmul", "mlp", "conv", "att", "mul"))
]


def problem(spec: OpSpec) -> tuple[Case, torch.dtype, dict[str, Any]]:
    case = next((case for case in spec.cases if "quick" in case.suites), spec.cases[0])
    dtype = torch.float32 if torch.float32 in spec.dtypes else spec.dtypes[0]
    return case, dtype, spec.make_inputs(case, dtype, CPU, torch.Generator().manual_seed(0))


def counted(spec: OpSpec, inputs: dict[str, Any]) -> tuple[int, int]:
    """Return what torch counts of eager's forward and backward: products and convolutions alone."""
    (eager,) = (i.fn for i in spec.implementations if i.role == "eager")
    names = gradient_names(spec, inputs)
    leaves = {name: inputs[name].detach().requires_grad_() for name in names}
    with FlopCounterMode(display=False) as forward:
        outputs = [y for y in as_tuple(eager(**{**inputs, **leaves})) if y.requires_grad]
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(outputs, list(leaves.values()), [torch.randn_like(y) for y in outputs])
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("op", [op for op in PRODUCTS if op not in LESS_THAN_WRITTEN])
def test_products_have_the_flops_that_torch_counts(op: str) -> None:
    spec = SPECS[op]
    _, _, inputs = problem(spec)
    assert spec.cost is not None
    forward, backward = counted(spec, inputs)
    assert spec.cost(inputs, "fwd").flops == forward > 0
    ours = spec.cost(inputs, "bwd").flops
    if op not in RECOMPUTED:
        assert ours == backward
    else:
        assert backward < ours <= 1.25 * backward


@pytest.mark.slow
@pytest.mark.parametrize("op", SPECS)
def test_xla_counts_about_as_many(op: str) -> None:
    """Within a factor of two: XLA counts a comparison, and each transcendental function apart; and
    one more a row, which ours leaves out.
    """
    record = pytest.importorskip("fuselab.hlo.record")
    spec = SPECS[op]
    case, dtype, inputs = problem(spec)
    assert spec.cost is not None
    rows = max(t.numel() // max(t.shape[-1], 1) for t in inputs.values() if torch.is_tensor(t))
    for direction in ("fwd", "bwd") if op not in FP8 else ("fwd",):
        ours = spec.cost(inputs, direction).flops
        found = record.compile_one(spec, case, dtype, direction, "cpu")
        theirs = found.flops + found.transcendentals
        if op in LESS_THAN_WRITTEN:
            assert 0 < ours <= theirs
        else:
            assert ours / 2 - rows <= theirs <= 2 * ours + rows, (direction, ours, theirs)
