"""What the checker does besides finding wrong numbers."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from checker import model

from fuseline.core import native
from fuseline.testing import Case, ErrorCase, Implementation, OpSpec, check

SPEC = model.spec(model.RMSNorm.call)
ONE = {"cases": ["5x61"], "dtypes": [torch.float32], "level": "quick"}


def test_smallest_spec_of_a_user():
    def make_inputs(case, dtype, device, generator):
        return {"x": torch.randn(case.args["n"], generator=generator, device=device, dtype=dtype)}

    spec = OpSpec(
        name="double",
        reference=lambda x: x * 2,
        implementations=(Implementation("add", lambda x: x + x),),
        make_inputs=make_inputs,
        cases=(Case("9", {"n": 9}),),
    )
    assert check(spec).ok
    wrong = replace(spec, implementations=(Implementation("square", lambda x: x * x),))
    assert {f.check for f in check(wrong).failures} >= {"forward", "stale"}


def test_unavailable_is_skipped_with_its_reason_and_is_no_pass():
    absent = Implementation("absent", model.eager, unavailable=lambda device: f"no {device} here")
    report = check(replace(SPEC, implementations=(absent,)), **ONE)
    assert [(f.impl, f.reason) for f in report.skipped] == [("absent", "no cpu here")]
    assert not report.failures
    assert not report.ok


def test_crash_is_a_finding_of_each_check_that_met_it():
    def crashes(x, weight, eps):
        raise ZeroDivisionError("row 3")

    report = check(model.spec(crashes), ["tried"], **ONE)
    forward = next(f for f in report.failures if f.check == "forward")
    assert "ZeroDivisionError: row 3" in forward.reason
    assert forward.impl == "tried"


def test_error_of_the_reference_is_raised():
    def broken(**inputs):
        raise ZeroDivisionError("reference")

    with pytest.raises(ZeroDivisionError, match="reference"):
        check(replace(SPEC, reference=broken), **ONE)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (None, "no error came"),
        (TypeError("x"), "TypeError(x) came, ValueError was expected"),
        (ValueError("x is bad"), "lacks ['int64']"),
        (ValueError("x is int64"), None),
    ],
)
def test_error_cases(raised, told):
    def fn(x, weight, eps):
        if x.dtype == torch.int64 and raised is not None:
            raise raised
        return model.RMSNorm.call(x.to(weight.dtype), weight, eps)

    def make(device):
        return {"x": torch.arange(1, 5), "weight": torch.rand(4), "eps": 0.1}

    spec = replace(model.spec(fn), error_cases=(ErrorCase("int_x", make, ValueError, ("int64",)),))
    failures = [f for f in check(spec, ["tried"], **ONE).failures if f.check == "errors"]
    assert len(failures) == (told is not None)
    assert told is None or told in failures[0].reason


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"impls": ["cudda"]}, KeyError, ("cudda", "tried", "eager")),
        ({"cases": ["6x61"]}, ValueError, ("6x61", "5x61")),
        ({"level": "slow"}, ValueError, ("slow", "standard", "quick")),
    ],
)
def test_unknown_names_list_what_exists(arguments, error, words):
    with pytest.raises(error) as caught:
        check(SPEC, **arguments)
    assert all(word in str(caught.value) for word in words)


def test_findings_say_where_and_how_far():
    report = check(SPEC, ["tried"], **ONE)
    (finding,) = (f for f in report.findings if f.check == "gradient:weight")
    assert (finding.case, finding.dtype, finding.layout) == ("5x61", "float32", "contiguous")
    assert 0.0 < finding.figures["weight"].scaled < 2.0


def test_every_implementation_gets_the_same_inputs():
    seen = []

    def fn(x, weight, eps):
        seen.append(x.detach().sum().item())
        return model.RMSNorm.call(x, weight, eps)

    check(model.spec(fn), ["tried"], **ONE)
    first = sorted(s for s in seen if not math.isnan(s))
    seen.clear()
    check(model.spec(fn), ["tried"], **ONE)
    assert first == sorted(s for s in seen if not math.isnan(s))


def test_own_allocations_are_filled_while_asked_for_stale_memory(monkeypatch):
    switched = []
    monkeypatch.setattr(native, "debug_fill", switched.append, raising=False)
    check(SPEC, ["tried"], **ONE)
    assert switched
    assert switched == [True, False] * (len(switched) // 2)


def test_settings_are_given_back():
    check(SPEC, ["tried"], **ONE)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_checker_and_all_specs_need_no_test_framework_and_nothing_slow_to_import():
    code = "import sys, fuseline.testing; from fuseline import table; table.load(); "
    code += "print({'pytest', 'sympy', 'triton', 'torch._dynamo'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
