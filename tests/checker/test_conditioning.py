"""Degenerate cases get a fair verdict: neither luck nor cancellation rejects, errors still do."""

from dataclasses import replace

import pytest
import torch
from checker import model
from checker.wrong_weight_gradient import fn as wrong_weight_gradient

from fuseline.testing import Case, accuracy, check, make_dys
from fuseline.testing.conditioning import Recheck

CASES = (Case("7x1", {"shape": (7, 1)}), Case("3x2", {"shape": (3, 2)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_draw_moves_every_input_by_one_rounding(dtype):
    spec = model.spec(model.RMSNorm.call)
    generator = torch.Generator().manual_seed(5)
    inputs = model.make_inputs(CASES[0], dtype, torch.device("cpu"), generator)
    dys = make_dys([inputs["x"]], generator)
    draws = list(Recheck(spec, model.eager, inputs, dys, generator).draws(dtype))
    assert len(draws) > 1
    for moved, (dy,) in draws:
        for before, after in ((inputs["x"], moved["x"]), (dys[0], dy)):
            ratio = (after.double() / before.double() - 1).abs() / torch.finfo(dtype).eps
            assert bool((ratio >= 0.49).all())
            assert bool((ratio <= 2.01).all())
        assert moved["eps"] == inputs["eps"]


def test_cancelled_sum_is_judged_by_what_rounding_its_terms_does():
    dy = torch.tensor([[1.0], [1.0], [-2.0 + 2.0**-10]], dtype=torch.float64)
    inputs = {"x": torch.rand(3, 1, dtype=torch.float64) + 1e3, "weight": dy[0], "eps": 1e-6}
    spec = model.spec(model.RMSNorm.call)
    exact = accuracy.oracle(spec, inputs, "bwd", (dy,))["weight"]
    look = Recheck(spec, model.eager, inputs, (dy,), torch.Generator().manual_seed(5))
    for off, fine in ((4 * 2.0**-52, True), (64 * 2.0**-52, False)):
        mine = accuracy.errors(spec, inputs, "bwd", {"weight": exact + off}, (dy,))["weight"]
        assert mine.scaled > 2000
        eager = replace(mine, scaled=0.5)
        assert (look.over_budget("weight", torch.float64, mine, eager) is None) == fine


def test_short_rows_pass():
    report = check(replace(model.spec(model.RMSNorm.call), cases=CASES), level="quick")
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_wrong_gradient_of_short_rows_is_still_rejected(dtype):
    spec = replace(model.spec(wrong_weight_gradient), cases=CASES[1:])
    report = check(spec, ["tried"], dtypes=[dtype], level="quick")
    assert "gradient:weight" in {f.check for f in report.failures}
