"""Suite wild: a seed's problems, names that make them again, and inputs in every layout."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch

from fuselab.command_line.cli import command
from fuselab.commands import select
from fuselab.planning import wild
from fuselab.planning.plan import Filters
from fuselab.planning.wild import WildError
from fuselab.worker.operators import specs, wild_inputs
from fuseline import table
from fuseline.testing import Case, Implementation, Judge, OpSpec
from fuseline.testing.oracle import accuracy

CPU = torch.device("cpu")
DTYPES = ("bfloat16", "float16", "float32", "float64")
BYTES = {"float64": 8, "float32": 4}
OF_ROWS = sorted(name for name, spec in table.load().items() if spec.row_inputs)
MANY = wild.draw("softmax", 20261125, 3000, DTYPES, ("fwd", "bwd"), dims=True, values=wild.VALUES)


def test_a_seed_draws_the_same_problems_and_another_seed_others():
    again, other = (
        wild.draw("softmax", seed, 200, DTYPES, ("fwd", "bwd"), dims=True, values=wild.VALUES)
        for seed in (20261125, 20261126)
    )
    assert again == MANY[:200]
    assert len(set(other) - set(again)) > 150


def test_problems_differ_and_stay_within_the_limits():
    assert len(set(MANY)) == len(MANY) == 3000
    for one in MANY:
        sizes = one.shape.sizes
        assert 1 <= math.prod(sizes) * BYTES.get(one.dtype, 2) <= wild.MOST_BYTES, one
        assert max(sizes) <= wild.MOST_COLUMNS
        assert one.shape.dim is None or one.shape.dim < len(sizes) - 1, one


def test_a_name_makes_its_problem_again():
    for one in MANY:
        assert wild.parse(one.shape.name) == one.shape


def test_values_leave_a_seed_its_shapes():
    normal = wild.draw("softmax", 20261125, 200, DTYPES, ("fwd", "bwd"), dims=True)
    assert [replace(one.shape, values="") for one in MANY[:200]] == [one.shape for one in normal]
    found = Counter(one.shape.values for one in MANY)
    assert set(found) == {"", *wild.VALUES}
    assert 0.10 < 1 - found[""] / len(MANY) < 0.20


@pytest.mark.parametrize(("dim", "along"), [("", -1), (".dim0", 0)])
@pytest.mark.parametrize(("values", "filled"), [("masked", -math.inf), ("penalty", -1e4)])
def test_rows_end_in_what_a_mask_leaves(values, filled, dim, along):
    spec, case = specs.case(table.load()["softmax"], f"wild:40x50{dim}@transposed~{values}")
    x = spec.inputs(case, torch.float32, CPU, torch.Generator().manual_seed(5))["x"]
    hidden = x == filled
    kept = (~hidden).sum(along)
    assert kept.min() >= 1
    assert len(set(kept.tolist())) > 10
    assert hidden.movedim(along, -1).int().diff(dim=-1).min() >= 0
    assert x.stride() == (1, 40)


def test_the_mix_has_every_layout_rank_dtype_and_size():
    layouts = Counter(one.shape.layout.word or str(one.shape.layout)[:4] for one in MANY)
    for word in ("transposed", "permuted", "expanded", "step", "gap1", "offs", "cont"):
        assert layouts[word] > 20, word
    assert {len(one.shape.sizes) for one in MANY} == {1, 2, 3, 4}
    assert {one.shape.dim for one in MANY} == {None, 0, 1, 2}
    assert {(one.dtype, one.direction) for one in MANY} == {
        (dtype, direction) for dtype in DTYPES for direction in ("fwd", "bwd")
    }
    columns = Counter(one.shape.sizes[-1] for one in MANY)
    assert {577, 1500, 50257, 3, 10} <= set(columns)
    assert sum(n for c, n in columns.items() if c & (c - 1)) > 2000  # few powers of two


@pytest.mark.parametrize(
    "name",
    ["wild:", "wild:3x", "wild:3x5.dim2", "wild:3x5@gap0", "wild:3x5@step1", "wild:3@transposed",
     "wild:3x5@permuted", "wild:03x5", "wild:3x5@offset1.gap3", "wild:3x5@sideways",
     "wild:3x5~odd", "wild:3x5~", "wild:3x5~peaked@gap1", "3x5"],
)  # fmt: skip
def test_what_is_no_problem_is_refused(name):
    with pytest.raises(WildError, match="expected wild:SHAPE"):
        wild.parse(name)


@pytest.mark.parametrize(
    ("layout", "strides", "offset"),
    [
        ("", (15, 5, 1), 0),
        ("@offset3", (15, 5, 1), 3),
        ("@gap4", (27, 9, 1), 0),
        ("@gap4.offset1", (27, 9, 1), 1),
        ("@step2", (30, 10, 2), 0),
        ("@transposed", (15, 1, 3), 0),
        ("@expanded", (0, 5, 1), 0),
    ],
)
def test_the_layout_of_the_name(layout, strides, offset):
    spec, case = specs.case(table.load()["softmax"], f"wild:2x3x5{layout}")
    x = spec.inputs(case, torch.float32, CPU, torch.Generator().manual_seed(1))["x"]
    dense = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    assert (x.shape, x.stride(), x.storage_offset()) == (dense.shape, strides, offset)
    assert torch.equal(x, dense[:1].expand(2, 3, 5) if layout == "@expanded" else dense)


def test_nhwc_seen_as_nchw():
    spec, case = specs.case(table.load()["layer_norm"], "wild:2x3x4x5@permuted")
    x = spec.inputs(case, torch.float32, CPU, torch.Generator())["x"]
    assert x.shape == (2, 3, 4, 5)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_what_is_expanded_is_read_once():
    softmax = table.load()["softmax"]
    costs = []
    for name in ("wild:8x16", "wild:8x16@expanded"):
        spec, case = specs.case(softmax, name)
        inputs = spec.inputs(case, torch.float32, CPU, torch.Generator())
        assert spec.cost is not None
        costs.append(spec.cost(inputs, "fwd"))
    assert costs[0].bytes_read == 8 * costs[1].bytes_read
    assert costs[0].bytes_written == costs[1].bytes_written


@pytest.mark.parametrize(
    ("seed", "cells"),
    [(20261125, 10), pytest.param(secrets.randbits(30), 100, marks=pytest.mark.long)],
    ids=["fixed", "fresh"],
)
@pytest.mark.parametrize("op", OF_ROWS)
def test_every_operator_is_right(op, seed, cells):
    whole = table.load()[op]
    dtypes = [str(dtype).removeprefix("torch.") for dtype in whole.dtypes]
    directions = ("fwd", "bwd") if whole.differentiable else ("fwd",)
    dims = wild_inputs.takes_dim(whole)
    values = wild_inputs.values_of(whole)
    drawn = wild.draw(op, seed, 8 * cells, dtypes, directions, dims=dims, values=values)
    small = [one for one in drawn if math.prod(one.shape.sizes) <= 1 << 13][:cells]
    assert len(small) == cells
    for one in small:
        judge, results = asked(op, one.shape.name, getattr(torch, one.dtype), one.direction, 7)
        wrong = judge.wrong(results)
        assert wrong is None, f"seed {seed}, {one.shape.name}, {one.dtype}, {wrong}"


def asked(op, name, dtype, direction, seed):
    """The judge of a problem, and what the CPU makes of it."""
    spec, case = specs.case(table.load()[op], name)
    generator = torch.Generator().manual_seed(seed)
    inputs = spec.inputs(case, dtype, CPU, generator)
    outputs = accuracy.as_tuple(spec.reference(**inputs))
    dys = accuracy.make_dys([y.to(dtype) for y in outputs], generator)
    ours = [i for i in spec.implementations if i.role == "ours" and not i.unavailable("cpu")]
    fn = ours[0].fn
    results = accuracy.run(fn, spec, inputs, direction, dys)
    return Judge(spec, inputs, direction, dys), results


# Rows so short that a gradient is what eps leaves of it, 1e-5 of the terms.
CANCELLED = {("rms_norm", "7x1"), ("rms_norm", "2x1"), ("layer_norm", "3x2"), ("layer_norm", "1x2")}


@pytest.mark.parametrize("shape", ["7x1", "2x1", "3x2", "1x2", "5x5"])
@pytest.mark.parametrize("op", OF_ROWS)
def test_one_per_cent_too_much_is_refused_of_tiny_problems(op, shape):
    """By the second look too, which lets right results pass."""
    dtypes = {torch.float32, torch.float64}.intersection(table.load()[op].dtypes)
    for dtype, direction, seed in product(dtypes, ("fwd", "bwd"), range(3)):
        judge, results = asked(op, f"wild:{shape}", dtype, direction, seed)
        assert judge.wrong(results) is None
        for name, result in results.items():
            cancelled = direction == "bwd" and (op, shape) in CANCELLED and name == "x"
            if result.dtype == dtype and result.any() and not cancelled:
                assert judge.wrong({**results, name: 1.01 * result}), (dtype, direction, seed)


SPEC = OpSpec(
    name="halve",
    reference=lambda x, by: x / by,
    implementations=(Implementation("eager", lambda x, by: x / by, role="eager"),),
    make_inputs=lambda case, dtype, device, generator: {
        "x": torch.arange(case.args["n"] * 4.0, dtype=dtype, device=device).view(-1, 4),
        "by": torch.full((4,), 2.0, dtype=dtype, device=device),
    },
    cases=(Case("5", {"n": 5}),),
    row_inputs=("x",),
)


def test_an_operator_without_a_shape_keeps_its_rows_in_other_numbers():
    assert wild_inputs.rows_of(SPEC) == ((4,),)
    spec, case = specs.case(SPEC, "wild:9x4@gap2")
    inputs = spec.inputs(case, torch.float32, CPU, torch.Generator())
    x = inputs["x"]
    assert (x.shape, x.stride()) == ((9, 4), (6, 1))
    assert {tuple(row) for row in x.tolist()} <= {
        tuple(4.0 * i + j for j in range(4)) for i in range(5)
    }
    assert inputs["by"].tolist() == [2.0] * 4


def test_tensors_have_as_many_dims_as_those_of_the_cases():
    cases = (Case("a", {"shape": (3, 4)}), Case("b", {"shape": (5, 6)}))
    of_two = OpSpec(**{**vars(SPEC), "cases": cases})
    assert wild_inputs.ranks(of_two) == (2,)
    assert wild_inputs.ranks(table.load()["softmax"]) == wild.RANKS
    drawn = wild.draw("halve", 1, 50, ["float32"], ["fwd"], dims=False, ranks=(2,))
    assert {len(one.shape.sizes) for one in drawn} == {2}


def test_a_dim_of_an_operator_without_one_is_refused(tmp_path, capsys):
    arguments = ["run", "rms_norm", "--case", "wild:4x5.dim0", "--out", str(tmp_path)]
    assert command(arguments) == 2
    assert "expected no dim: rms_norm takes none" in capsys.readouterr().err


def test_minus_infinity_is_for_scores():
    with pytest.raises(WildError, match="rms_norm has no `scores`"):
        specs.case(table.load()["rms_norm"], "wild:3x5~masked")


def test_an_operator_without_rows_has_none():
    with pytest.raises(WildError, match="'halve': row_inputs: got none"):
        wild_inputs.rows_of(OpSpec(**{**vars(SPEC), "row_inputs": ()}))


def test_the_groups_of_a_run():
    found = select.specs_of(["softmax", "rms_norm"])
    wanted = Filters(suite="wild", seed=5, cells=30, impls=("cpu",), dtypes=("fp32",))
    groups = select.groups(found, wanted)
    assert Counter(group.op for group in groups) == {"softmax": 30, "rms_norm": 30}
    assert {group.dtype for group in groups} == {"float32"}
    assert groups == select.groups(found, wanted)
    (named,) = select.groups(
        select.specs_of(["softmax"]),
        Filters(cases=(groups[0].case,), dtypes=("fp32",), directions=("bwd",)),
    )
    assert (named.case, named.direction) == (groups[0].case, "bwd")


def test_a_problem_by_its_name_alone(tmp_path, capsys):
    name, out = "wild:5x7x3.dim1@gap2.offset1", str(tmp_path / "run")
    chosen = ["--case", name, "--dtype", "bf16", "--impl", "cpu", "--impl", "eager"]
    assert command(["run", "softmax", *chosen, "--precision", "quick", "--out", out]) == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "3"], "--suite wild"),
        (["--suite", "wild", "--cells", "0"], "--cells"),
        (["--cells", "3"], "got no suite"),
        (["--case", "wild:3x5@sideways"], "expected wild:SHAPE[.dimD][@LAYOUT]"),
        (["--suite", "wild", "--dtype", "int8"], "dtype"),
    ],
)
def test_what_cannot_be_asked_is_exit_2(tmp_path, capsys, arguments, said):
    assert command(["run", "softmax", *arguments, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
