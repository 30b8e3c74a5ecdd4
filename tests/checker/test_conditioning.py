"""Degenerate cases get a fair verdict: neither luck nor cancellation rejects, errors still do."""

from dataclasses import replace

import pytest
import torch
from checker import model
from checker.wrong_weight_gradient import fn as wrong_weight_gradient

from fuseline.testing import Case, check

CASES = (Case("7x1", {"shape": (7, 1)}), Case("3x2", {"shape": (3, 2)}))


def test_short_rows_pass():
    report = check(replace(model.spec(model.RMSNorm.call), cases=CASES), level="quick")
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_wrong_gradient_of_short_rows_is_still_rejected(dtype):
    spec = replace(model.spec(wrong_weight_gradient), cases=CASES[1:])
    report = check(spec, ["tried"], dtypes=[dtype], level="quick")
    assert "gradient:weight" in {f.check for f in report.failures}
