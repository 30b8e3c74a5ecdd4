"""The planner: rows times filters, and errors that list what exists."""

from __future__ import annotations

import pytest

from fuselab.planning.plan import CEILING, Filters, OpRow, PlanError, ceiling_group, expand, select

NORM = OpRow(
    "norm",
    ("eager", "compile", "triton"),
    (("4x32", ("quick", "seed")), ("8x61", ("seed",))),
    ("float32", "bfloat16"),
    ("fwd", "bwd"),
)
MINE = OpRow("mine", ("eager", "fast"), (("4x32", ("quick",)),), ("float32",), ("fwd",), "ops.py")


def test_everything_is_the_product_in_a_fixed_order():
    keys = [group.key for group in expand([NORM], Filters())]
    assert keys == [
        f"norm/{direction}/{case}/{dtype}/contiguous/cpu"
        for dtype in ("float32", "bfloat16")
        for direction in ("fwd", "bwd")
        for case in ("4x32", "8x61")
    ]


@pytest.mark.parametrize(
    ("device", "asked", "timer"),
    [("cpu", "", "wall"), ("cuda:0", "", "cupti"), ("cuda:0", "graph", "graph")],
)
def test_a_group_names_its_timer_and_the_ceiling_has_the_same(device, asked, timer):
    groups = expand([NORM], Filters(device=device, timer=asked))
    assert {group.timer for group in groups} == {timer}
    assert ceiling_group(device, timer=asked).timer == timer


def test_every_group_carries_its_implementations_in_the_order_of_the_row():
    groups = expand([NORM, MINE], Filters(impls=("triton", "eager")))
    assert {group.impls for group in groups if group.op == "norm"} == {("eager", "triton")}
    assert [group.impls for group in groups if group.op == "mine"] == [("eager",)]
    assert [group.source for group in groups if group.op == "mine"] == ["ops.py"]


@pytest.mark.parametrize(
    ("filters", "cases"),
    [
        (Filters(suite="quick"), {"4x32"}),
        (Filters(suite="seed"), {"4x32", "8x61"}),
        (Filters(cases=("8x61",)), {"8x61"}),
        (Filters(suite="seed", cases=("8x61", "8x61")), {"8x61"}),
    ],
)
def test_suite_and_cases(filters, cases):
    groups = expand([NORM], filters)
    assert {group.case for group in groups} == cases
    assert len(groups) == len({group.key for group in groups}) == 4 * len(cases)


def test_an_implementation_that_only_one_operator_has_skips_the_other():
    assert {group.op for group in expand([NORM, MINE], Filters(impls=("fast",)))} == {"mine"}


def test_dtypes_answer_to_their_short_names():
    (group,) = expand([NORM], Filters(suite="quick", dtypes=("bf16",), directions=("bwd",)))
    assert (group.dtype, group.direction) == ("bfloat16", "bwd")


@pytest.mark.parametrize(
    ("argument", "filters", "existing"),
    [
        ("suite", Filters(suite="nope"), "quick, seed"),
        ("impl", Filters(impls=("eager", "nope")), "eager, compile, triton, fast"),
        ("dtype", Filters(dtypes=("nope",)), "float32, bfloat16"),
        ("case", Filters(cases=("nope",)), "4x32, 8x61"),
        ("direction", Filters(directions=("nope",)), "fwd, bwd"),
        ("layout", Filters(layouts=("nope",)), "contiguous"),
        ("device", Filters(device="nope"), "cpu, cuda, cuda:N"),
    ],
)
def test_an_unknown_name_is_told_with_what_exists(argument, filters, existing):
    with pytest.raises(PlanError) as error:
        expand([NORM, MINE], filters)
    assert str(error.value) == f"{argument}: got 'nope', expected one of: {existing}"


def test_names_that_exist_but_never_together():
    with pytest.raises(PlanError, match=r"nothing to run.*8x61"):
        expand([NORM], Filters(suite="quick", cases=("8x61",)))


def test_select_operators():
    assert select([NORM, MINE], ()) == (NORM, MINE)
    assert select([NORM, MINE], ("mine",)) == (MINE,)
    with pytest.raises(PlanError, match="op: got 'nope', expected one of: norm, mine"):
        select([NORM, MINE], ("nope",))


def test_the_fixed_recipe_is_a_group_of_its_own():
    group = ceiling_group("cuda:1")
    assert (group.op, group.case, group.impls, group.device) == (
        *(CEILING, "4GiB", ("copy", "add")),
        "cuda:1",
    )
