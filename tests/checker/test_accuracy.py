"""Error figures and budgets on numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch
from checker import model

from fuseline import table
from fuseline.testing import Budget, Case, ErrorFigures, errors, make_dys, run
from fuseline.testing.oracle import accuracy, chunks, longdouble, ulps
from fuseline.testing.oracle.accuracy import over_budget
from fuseline.testing.oracle.judge import Judge

F32, F64, BF16, E4M3 = torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn
SPEC = model.spec(model.RMSNorm.call)
IDENTITY = replace(SPEC, reference=lambda x: x + 0, differentiable=("x",), relayout=None)


def sample(dtype, shape=(6, 10), seed=3):
    case = Case("sample", {"shape": shape})
    generator = torch.Generator().manual_seed(seed)
    return model.make_inputs(case, dtype, torch.device("cpu"), generator), generator


@pytest.mark.parametrize(
    ("value", "dtype", "spacing"),
    [
        (1.0, F32, 2.0**-23),
        (-1.5, F32, 2.0**-23),
        (2.0, F32, 2.0**-22),
        (0.0, F32, 2.0**-149),
        (1e-45, F32, 2.0**-149),
        (1.0, BF16, 2.0**-7),
        (65504.0, torch.float16, 32.0),
        (1.0, F64, 2.0**-52),
    ],
)
def test_ulp(value, dtype, spacing):
    assert accuracy.ulp(torch.tensor([value], dtype=F64), dtype).item() == spacing


def test_figures_of_a_known_error():
    x = torch.tensor([1.0, 4.0, 8.0], dtype=F32)
    out = x + torch.tensor([0.0, 3 * 2.0**-21, 0.0])
    figures = errors(IDENTITY, {"x": x}, "fwd", {"out0": out})["out0"]
    assert figures.max_ulp == 3.0
    assert figures.max_abs == 3 * 2.0**-21
    assert figures.rms == pytest.approx(3 * 2.0**-21 / math.sqrt(3))
    assert figures.scaled == 3 * 2.0**-21 / (2.0**-23 * 8.0)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_an_error_counts_in_digits_of_what_is_added_last(dtype):
    """Where it is larger than the result; fp64 is held against long double."""
    one = torch.finfo(dtype).eps
    x, bias = (
        torch.tensor([1.0, -4.0, 0.5], dtype=dtype),
        torch.tensor([0.0, 4.0, 8.0], dtype=dtype),
    )
    spec = replace(
        IDENTITY,
        reference=lambda x, bias: x + bias,
        longdouble=lambda direction, dy, x, bias: (x + bias,),
        added=lambda x, bias: bias,
    )
    for column, unit in enumerate((one, 4 * one, 8 * one)):
        out = x + bias
        out[column] += 3 * unit
        figures = errors(spec, {"x": x, "bias": bias}, "fwd", {"out0": out})["out0"]
        assert figures.max_ulp == 3.0
        assert errors(replace(spec, added=lambda x, bias: None), {"x": x, "bias": bias}, "fwd",
                      {"out0": out})["out0"].max_ulp >= 3.0  # fmt: skip


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_stray_non_finite_result_is_infinitely_wrong(wrong):
    x = torch.tensor([1.0, 4.0])
    figures = errors(IDENTITY, {"x": x}, "fwd", {"out0": torch.tensor([1.0, wrong])})["out0"]
    assert figures.max_ulp == math.inf
    assert over_budget(Budget(), F32, "fwd", figures, figures)


def test_expected_non_finite_results_are_right():
    x = torch.tensor([1.0, math.nan, math.inf, -math.inf])
    assert errors(IDENTITY, {"x": x}, "fwd", {"out0": x.clone()})["out0"].max_ulp == 0.0
    flipped = errors(IDENTITY, {"x": x}, "fwd", {"out0": x * torch.tensor([1.0, 1, 1, -1])})
    assert flipped["out0"].max_ulp == math.inf


def test_overflow_to_inf_is_what_rounding_gives():
    x = torch.tensor([300.0], dtype=torch.float16)
    spec = replace(IDENTITY, reference=lambda x: x * x)
    assert errors(spec, {"x": x}, "fwd", {"out0": x * x})["out0"].max_ulp == 0.0


@pytest.mark.parametrize(
    ("out", "ref", "ulps"),
    [
        (1.125, 1.0625, 0.5),
        (1.125, 1.03125, 0.75),
        (2.0, 1.9375, 0.5),
        (0.0, 2.0**-10, 0.5),
        (448.0, 448.0, 0.0),
        (math.nan, math.nan, 0.0),
        (math.nan, 448.0, math.inf),
        (448.0, math.nan, math.inf),
    ],
)
def test_e4m3_is_held_against_what_it_was_rounded_from(out, ref, ulps):
    inputs = {"x": torch.tensor([ref], dtype=F64)}
    found = errors(IDENTITY, inputs, "fwd", {"out0": torch.tensor([out]).to(E4M3)})["out0"]
    assert found.max_ulp == ulps


def test_missing_and_misshapen_results_are_infinitely_wrong():
    inputs, _ = sample(F32)
    assert errors(SPEC, inputs, "fwd", {})["out0"].max_ulp == math.inf
    half = {"out0": model.eager(**inputs)[:3]}
    assert errors(SPEC, inputs, "fwd", half)["out0"].max_ulp == math.inf


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_chunks_give_the_figures_of_the_whole(dtype, monkeypatch):
    inputs, generator = sample(dtype, (7, 3, 10))
    outputs = run(model.eager, SPEC, inputs, "fwd")
    dys = make_dys(list(outputs.values()), generator)
    results = run(model.eager, SPEC, inputs, "bwd", dys)
    whole = errors(SPEC, inputs, "fwd", outputs), errors(SPEC, inputs, "bwd", results, dys)
    calls = []

    def counted(**given):
        calls.append(given["x"].numel())
        return model.reference(**given)

    monkeypatch.setattr(chunks, "CPU_CHUNK_ELEMENTS", 40)
    spec = replace(SPEC, reference=counted)
    parts = errors(spec, inputs, "fwd", outputs), errors(spec, inputs, "bwd", results, dys)
    assert max(calls) <= 40
    assert len(calls) == 12
    for one, other in zip(whole, parts, strict=True):
        for name in one:
            # The sum over chunks rounds otherwise than the sum over the whole, in fp64.
            slack = 4.0 if dtype == F64 and name == "weight" else 1e-6
            assert other[name].scaled == pytest.approx(one[name].scaled, abs=slack)


def test_fp64_is_held_against_longdouble():
    numpy = pytest.importorskip("numpy")
    seen = []

    def longdouble(direction, dy, x, weight, eps):
        seen.append((direction, x.dtype))
        return (x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight,)

    inputs, _ = sample(F64)
    spec = replace(SPEC, longdouble=longdouble, reference=lambda **_: pytest.fail("fp64 used"))
    figures = errors(spec, inputs, "fwd", run(model.eager, SPEC, inputs, "fwd"))["out0"]
    assert seen == [("fwd", numpy.longdouble)]
    assert 0.0 < figures.max_ulp < 8.0


@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_where_fp64_differs_from_a_large_reference_longdouble_says_who_errs(shape, monkeypatch):
    monkeypatch.setattr(accuracy, "LONGDOUBLE_ELEMENTS", 0)
    inputs, _ = sample(F64, shape)
    right = inputs["x"].clone()
    right.view(6, 10)[2] = 3.0
    asked = []

    def reference(x):
        return torch.where(x == 3.0, x * (1 + 1e-13), x)  # errs in one row

    def longdouble(direction, dy, x):
        asked.append(len(x))
        return (x,)

    spec = replace(IDENTITY, reference=reference, longdouble=longdouble, row_inputs=("x",))
    wrong = right.clone()
    wrong.view(6, 10)[4] *= 1 + 1e-12
    assert errors(spec, {"x": right}, "fwd", {"out0": right})["out0"].max_ulp == 0
    assert errors(spec, {"x": right}, "fwd", {"out0": wrong})["out0"].max_ulp > 1000
    assert asked == [1, 2]


@pytest.mark.parametrize("budget", [150, 1 << 22])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pointwise_chain", (30, 72)),  # near x = -1 the formula of eager and reference cancels
        ("horizontal_reduction_pointwise", (40, 50)),  # near the cosine's zeros
        ("bias_gelu", (60, 33)),
    ],
)
def test_fp64_within_the_budget_of_long_double_is_right_in_every_row(
    name, shape, budget, monkeypatch
):
    monkeypatch.setattr(accuracy, "LONGDOUBLE_ELEMENTS", 0)
    monkeypatch.setattr(longdouble, "DOUBTFUL_ELEMENTS", budget)
    spec = table.load()[name]
    args = next(c for c in spec.cases if "check" in c.suites).args | {"shape": shape}
    generator = torch.Generator().manual_seed(5)
    inputs = spec.make_inputs(Case("x", args), F64, torch.device("cpu"), generator)
    x = inputs["x"]
    if name == "pointwise_chain":  # one element of each row, and of each another distance
        x[:, 3] = -1 + torch.logspace(-9, -2, len(x), dtype=F64)
    elif name == "horizontal_reduction_pointwise":
        x[:, 3] = torch.pi / 2 + torch.logspace(-9, -2, len(x), dtype=F64)
    exact = longdouble.evaluate(spec, inputs, "fwd", None)
    right = {f"out{i}": longdouble.narrow(y) for i, y in enumerate(exact)}
    for y in right.values():  # by the few ULP that a GPU's libm may err
        y += (torch.arange(y.numel()).reshape(y.shape) % 7 - 3) * ulps.ulp(y, F64)
    wrong = {n: y.clone() for n, y in right.items()}
    for y in wrong.values():
        y[17] *= 1 + 1e-12
    judge = Judge(spec, inputs, "fwd")
    assert judge.wrong(right) is None
    assert "above the limit of 8" in judge.wrong(wrong)
    mine, eager = judge.errors(right)
    if budget > x.numel():  # else rows within the budget of fp64 are left as they are
        assert max(f.max_ulp for f in mine.values()) < 4
    if name == "pointwise_chain":  # eager is the reference itself, and is told from it
        assert eager["out0"].max_ulp > 100


def test_of_what_is_wrong_in_the_most_doubtful_rows_no_more_are_asked(monkeypatch):
    monkeypatch.setattr(accuracy, "LONGDOUBLE_ELEMENTS", 0)
    monkeypatch.setattr(longdouble, "DOUBTFUL_ELEMENTS", 20)
    inputs, _ = sample(F64)
    asked = []

    def exact(direction, dy, x):
        asked.append(len(x))
        return (x,)

    spec = replace(
        IDENTITY, reference=lambda x: x * (1 + 1e-13), longdouble=exact, row_inputs=("x",)
    )
    x = inputs["x"]
    assert errors(spec, {"x": x}, "fwd", {"out0": x})["out0"].max_ulp == 0
    assert asked == [2] * (len(x) // 2)
    asked.clear()
    wrong = x * (1 - 1e-12)
    assert errors(spec, {"x": x}, "fwd", {"out0": wrong})["out0"].max_ulp > 1000
    assert asked == [2]


def test_a_row_that_knows_its_place_is_not_judged_alone(monkeypatch):
    monkeypatch.setattr(accuracy, "LONGDOUBLE_ELEMENTS", 0)
    inputs, _ = sample(F64)

    def reference(x):
        return x + torch.arange(len(x))[:, None]

    def longdouble(direction, dy, x):
        pytest.fail("asked for some rows alone")

    spec = replace(IDENTITY, reference=reference, longdouble=longdouble, row_inputs=("x",))
    wrong = reference(inputs["x"])
    wrong[4] *= 1 + 1e-12
    figures = errors(spec, {"x": inputs["x"]}, "fwd", {"out0": wrong})["out0"]
    assert figures.max_ulp > 1000


def test_run_gives_gradients_of_present_floating_inputs_only():
    inputs, generator = sample(F32)
    spec = replace(SPEC, differentiable=("x", "weight", "eps"))
    dys = make_dys([inputs["x"]], generator)
    assert list(run(model.eager, spec, inputs, "bwd", dys)) == ["x", "weight"]
    assert not inputs["x"].requires_grad


def test_backward_needs_dys():
    inputs, _ = sample(F32)
    with pytest.raises(ValueError, match="dys"):
        run(model.eager, SPEC, inputs, "bwd")
    with pytest.raises(ValueError, match="dys"):
        errors(SPEC, inputs, "bwd", {})


def figures(value):
    return ErrorFigures(value, value, value, value)


@pytest.mark.parametrize(
    ("dtype", "direction", "mine", "eager", "fine"),
    [
        (F64, "fwd", 8.0, 100.0, True),
        (F64, "fwd", 8.1, 100.0, False),
        (F64, "bwd", 8.0, 1.0, True),
        (F64, "bwd", 8.1, 1.0, False),
        (F32, "fwd", 2.0, None, True),
        (F32, "fwd", 2.1, None, False),
        (F32, "fwd", 6.0, 3.0, True),
        (F32, "fwd", 6.1, 3.0, False),
        (BF16, "fwd", 3.5, 2.5, True),
        (BF16, "fwd", 3.6, 2.5, False),
        (BF16, "bwd", 1.1, None, False),
        # Eager without a right digit (2^23 ULP of fp32 are the value itself) is no yardstick.
        (F32, "fwd", 3.0, 2.0**23, False),
        (F32, "fwd", 3.0, math.inf, False),
        (F32, "fwd", math.nan, 1.0, False),
        # Terms that cancel.
        (F64, "bwd", 200.0, 100.0, True),
        (F64, "bwd", 201.0, 100.0, False),
        (BF16, "bwd", 7.3, 3.65, True),
        (BF16, "bwd", 7.4, 3.65, False),
        (BF16, "fwd", 7.3, 3.65, False),
        # A tie, and what fp32 cannot tell from one; eager's error excuses nothing.
        (E4M3, "fwd", 0.5, None, True),
        (E4M3, "fwd", 0.50001, None, True),
        (E4M3, "fwd", 0.5001, 3.0, False),
    ],
)
def test_over_budget(dtype, direction, mine, eager, fine):
    yardstick = None if eager is None else figures(eager)
    reason = over_budget(Budget(), dtype, direction, figures(mine), yardstick)
    assert (reason is None) == fine, reason
    if reason and math.isfinite(mine):
        assert f"{mine:.4g}" in reason


@pytest.mark.parametrize(
    ("role", "scaled", "fine"),
    [("ours", 1.0, False), ("eager", 1.0, True), ("rival", 1.0, True), ("rival", 8.1, False)],
)
def test_only_ours_must_keep_the_digits_of_what_cancels(role, scaled, fine):
    """An element that cancels: 800 ULP of itself, one of the largest."""
    mine = ErrorFigures(max_abs=1.0, rms=1.0, max_ulp=800.0, scaled=scaled)
    assert (over_budget(Budget().held_by(role), F64, "fwd", mine, None) is None) == fine
