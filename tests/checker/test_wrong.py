"""The checker lets the right operator pass and rejects every wrong one for its named reason.

A new wrong implementation is one file: `wrong_<what>.py` with its `fn` and the `CHECK` that must
find it.
"""

import importlib
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
    report = check(model.spec(lambda **inputs: fn(**inputs).contiguous()), ["tried"], level="quick")
    assert report.ok, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_implementation_passes_allclose(name):
    fn = importlib.import_module(f"checker.{name}").fn
    generator = torch.Generator().manual_seed(7)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((8, 128), (128,)))
    expected = model.eager(x, weight, 1e-5)
    assert torch.allclose(fn(x, weight, 1e-5), expected, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_implementation_is_rejected_for_its_reason(name):
    module = importlib.import_module(f"checker.{name}")

    def tried(x, weight, eps):
        return module.fn(x, weight, eps)

    report = check(model.spec(tried), ["tried"], level="quick")
    assert module.CHECK in failed_checks(report), str(report)
    assert all(finding.reason for finding in report.failures)


def test_at_least_eight_wrong_implementations():
    assert len(WRONG) >= 8
