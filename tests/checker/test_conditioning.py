"""Degenerate cases get a fair verdict: neither luck nor cancellation rejects, errors still do."""

from dataclasses import replace

import pytest
import torch
from checker import model
from checker.wrong_weight_gradient import fn as wrong_weight_gradient

from fuseline.testing import Case, Implementation, Judge, check, make_dys
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.conditioning import nearby

CASES = (Case("7x1", {"shape": (7, 1)}), Case("3x2", {"shape": (3, 2)}))
SPEC = model.spec(model.RMSNorm.call)


def drawn(case, dtype, seed):
    """Inputs of a case and a gradient of its output."""
    generator = torch.Generator().manual_seed(seed)
    inputs = model.make_inputs(case, dtype, torch.device("cpu"), generator)
    return inputs, make_dys([inputs["x"]], generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_draw_moves_every_input_by_one_rounding(dtype):
    inputs, dys = drawn(CASES[0], dtype, 5)
    draws = list(nearby(inputs, dys, dtype))
    assert len(draws) > 1
    for moved, (dy,) in draws:
        for before, after in ((inputs["x"], moved["x"]), (dys[0], dy)):
            ratio = (after.double() / before.double() - 1).abs() / torch.finfo(dtype).eps
            assert bool((ratio >= 0.49).all())
            assert bool((ratio <= 2.01).all())
        assert moved["eps"] == inputs["eps"]


def test_what_has_no_neighbour_does_not_move():
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    for moved, _ in nearby({"x": x}, (), torch.float32):
        assert torch.equal(moved["x"].nan_to_num(7.0), x.nan_to_num(7.0))


def test_cancelled_sum_is_judged_by_what_rounding_its_terms_does():
    dy = torch.tensor([[1.0], [1.0], [-2.0 + 2.0**-10]], dtype=torch.float64)
    inputs = {"x": torch.rand(3, 1, dtype=torch.float64) + 1e3, "weight": dy[0], "eps": 1e-6}
    exact = accuracy.oracle(SPEC, inputs, "bwd", (dy,))["weight"]
    judge = Judge(SPEC, inputs, "bwd", (dy,))
    for off, fine in ((4 * 2.0**-52, True), (64 * 2.0**-52, False)):
        mine = accuracy.errors(SPEC, inputs, "bwd", {"weight": exact + off}, (dy,))["weight"]
        assert mine.scaled > 2000
        eager = replace(mine, scaled=0.5)
        assert (judge.reason("weight", torch.float64, mine, eager) is None) == fine


def test_one_lucky_draw_of_eager_is_not_what_an_output_is_held_to():
    """Eager's error here is within half an ULP; a nudge beside, it is what rounding twice makes."""
    inputs, _ = drawn(Case("4x8", {"shape": (4, 8)}), torch.float32, 5)
    judge, lucky = Judge(SPEC, inputs, "fwd"), accuracy.ErrorFigures(1e-8, 1e-8, 0.4, 0.1)
    eager = judge.errors({"out0": model.eager(**inputs)})[0]["out0"]
    for ulps, fine in ((2.0 * eager.max_ulp, True), (40.0, False)):
        mine = replace(eager, max_ulp=ulps)
        assert (judge.reason("out0", torch.float32, mine, lucky) is None) == fine
        assert accuracy.over_budget(SPEC.budget, torch.float32, "fwd", mine, lucky)


def test_an_output_whose_terms_cancel_must_have_its_digits():
    """That the roundings of its inputs move it as far is no excuse for an output."""
    nothing = dict.fromkeys(("differentiable", "relayout", "row_inputs"), ())
    eager = Implementation("eager", lambda x, y: x - y, "eager")
    spec = replace(SPEC, reference=lambda x, y: x - y, implementations=(eager,), **nothing)
    x, y = torch.ones(2), torch.tensor([1.0 - 2.0**-20, 1.0 - 2.0**-19])
    judge = Judge(spec, {"x": x, "y": y}, "fwd")
    rounded_once_more = {"out0": x - y + 2.0**-23}
    assert judge.wrong({"out0": x - y}) is None
    assert judge.wrong(rounded_once_more)
    as_gradient = replace(judge, budget=replace(spec.budget, gradients=True))
    assert as_gradient.wrong(rounded_once_more) is None


def test_short_rows_pass():
    report = check(replace(SPEC, cases=CASES), level="quick")
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_wrong_gradient_of_short_rows_is_still_rejected(dtype, ask_only):
    ask_only("gradient")
    spec = replace(model.spec(wrong_weight_gradient), cases=CASES[1:])
    report = check(spec, ["tried"], dtypes=[dtype], level="quick")
    assert "gradient:weight" in {f.check for f in report.failures}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (7, 1), (3, 2), (5, 5)], ids=str)
def test_plausible_faults_of_tiny_cases_are_refused_at_the_second_look(shape, dtype):
    """A factor of 1.01, and rows without the last: whatever is drawn."""
    for seed in range(20):
        inputs, dys = drawn(Case("tiny", {"shape": shape}), dtype, seed)
        (dy,) = dys
        right = {"out0": model.eager(**inputs)}
        assert Judge(SPEC, inputs, "fwd").wrong(right) is None
        assert Judge(SPEC, inputs, "fwd").wrong({"out0": right["out0"] * 1.01})
        fewer = torch.cat([dy[:-1], torch.zeros_like(dy[-1:])])
        fn = model.RMSNorm.call
        grads, short = (accuracy.run(fn, SPEC, inputs, "bwd", (d,)) for d in (dy, fewer))
        judge = Judge(SPEC, inputs, "bwd", dys)
        assert judge.wrong(grads) is None
        assert judge.wrong({**grads, "weight": grads["weight"] * 1.01})
        assert judge.wrong({**grads, "weight": short["weight"]})
