"""The checker lets the right operator pass and rejects every wrong one for its named reason.

A new wrong implementation is one file: `wrong_<what>.py` with its `fn`, the `CHECK` that must find
it and, if only some dtypes show it, `DTYPES`.
"""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checker import model

from fuseline.testing import check

WRONG = sorted(path.stem for path in Path(__file__).parent.glob("wrong_*.py"))


def failed_checks(report):
    return {finding.check for finding in report.failures}


@pytest.mark.parametrize("fn", [model.RMSNorm.call, model.eager], ids=["by hand", "eager"])
def test_right_implementation_passes(fn):
    report = check(model.spec(lambda **inputs: fn(**inputs)), ["tried"], level="quick")
    assert report.ok, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_implementation_passes_allclose(name):
    fn = importlib.import_module(f"checker.{name}").fn
    generator = torch.Generator().manual_seed(7)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((8, 128), (128,)))
    expected = model.eager(x, weight, 1e-5)
    assert torch.allclose(fn(x, weight, 1e-5), expected, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_implementation_is_rejected_for_its_reason(name, ask_only):
    module = importlib.import_module(f"checker.{name}")
    ask_only(module.CHECK.partition(":")[0])

    def tried(x, weight, eps):
        return module.fn(x, weight, eps)

    # One dtype for values and the one that finite differences take, unless only others show it.
    dtypes = getattr(module, "DTYPES", (torch.float64, torch.float32))
    report = check(model.spec(tried), ["tried"], dtypes=dtypes, level="quick")
    assert module.CHECK in failed_checks(report), str(report)
    assert all(finding.reason for finding in report.failures)


def test_at_least_eight_wrong_implementations():
    assert len(WRONG) >= 8


def test_a_spec_with_defaults_is_asked_about_layouts_and_told_what_was_not_asked(ask_only):
    ask_only("layouts")

    def ignores_strides(x, weight, eps):
        return model.eager(x.as_strided(x.shape, x.new_empty(x.shape).stride()), weight, eps)

    spec = replace(model.spec(ignores_strides), relayout=None, row_inputs=())
    report = check(spec, ["tried"], level="quick")
    assert "layouts" in failed_checks(report)
    assert any("row_inputs" in finding.reason for finding in report.skipped)


def test_a_narrow_input_does_not_widen_the_budget_of_a_wide_gradient(ask_only):
    ask_only("gradient")

    class Rough(model.RMSNorm):
        @staticmethod
        def backward(ctx, dy):
            dx, dweight, _ = model.RMSNorm.backward(ctx, dy)
            return dx, dweight * 1.001, None

    def mixed(*args):
        inputs = model.make_inputs(*args)
        return {**inputs, "weight": inputs["weight"].float()}

    spec = replace(model.spec(Rough.call), make_inputs=mixed)
    report = check(spec, ["tried"], dtypes=[torch.bfloat16], level="quick")
    assert "gradient:weight" in failed_checks(report)


def test_only_a_spec_that_promises_contiguous_results_demands_them(ask_only):
    ask_only("layouts")
    for promised in (False, True):
        spec = replace(model.spec(model.eager), contiguous=promised)
        assert ("layouts" in failed_checks(check(spec, ["tried"], level="quick"))) == promised


def test_to_refuse_other_lengths_is_no_fault_and_to_refuse_values_is(ask_only):
    own = {case.args["shape"][-1] for case in model.CASES}

    def one_length(x, weight, eps):
        if x.shape[-1] not in own:
            raise ValueError("no kernel for this length")
        return model.eager(x, weight, eps)

    def afraid_of_zeros(x, weight, eps):
        if (x == 0).all(-1).any():
            raise ValueError("a row of zeros")
        return model.eager(x, weight, eps)

    assert check(model.spec(one_length), ["tried"], level="quick").ok
    ask_only("zeros")
    assert "zeros" in failed_checks(check(model.spec(afraid_of_zeros), ["tried"], level="quick"))
