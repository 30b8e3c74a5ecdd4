"""Suites of products, convolutions and attention hold the study's grids; `all` holds them all."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from fuselab.commands import select
from fuselab.planning.plan import Filters
from fuseline import table
from fuseline.ops.attention import reference

PRODUCTS = ("matmul_add", "matmul_relu", "matmul_add_relu", "matmul_add_gelu")
POWERS = [1 << k for k in range(7, 17)]


def of_suite(op: str, suite: str) -> set[str]:
    groups = select.groups(select.specs_of([op]), Filters(suite=suite, directions=("fwd",)))
    return {group.case for group in groups}


@pytest.mark.parametrize("op", PRODUCTS)
def test_products_have_the_studys_grid_of_m_and_n(op: str) -> None:
    assert of_suite(op, "fusion") == {f"{m}x{n}x1024" for m, n in product(POWERS, POWERS)}
    assert {"8192x1024x1024", "8192x2048x1024"} < of_suite(op, "matmul")


def test_attention_has_the_studys_grids() -> None:
    lengths = [1 << k for k in range(7, 14)]
    heads = {"32": "64", "16": "128"}
    assert of_suite("attention", "attention") == {
        f"{1 << k}x{h}x{n}x{d}{causal}"
        for k, n, (h, d), causal in product(range(6), lengths, heads.items(), ("", "-causal"))
    }
    first = product((1 << k for k in range(4, 14)), POWERS)
    assert of_suite("attention", "mha") == {f"8x8x{n}x{width // 8}" for n, width in first}


@pytest.mark.parametrize("op", ["conv_add", "conv_relu", "conv_add_relu", "conv_bn"])
def test_convolutions_have_both_layouts(op: str) -> None:
    large = [case for case in table.load()[op].cases if "conv" in case.suites]
    names = {
        last: {case.name.replace("-contiguous", "") for case in large if case.args["last"] is last}
        for last in (True, False)
    }
    assert names[True] == names[False]
    assert len(large) == 2 * len(names[True])


def test_all_is_every_suite_with_its_dtypes_once() -> None:
    ops = ["conv_add", "attention", "softmax"]
    found = select.specs_of(ops)
    groups = select.groups(found, Filters(suite="all", directions=("fwd",)))
    assert len({group.key for group in groups}) == len(groups)
    wanted = {
        (spec.name, case.name, str(dtype).removeprefix("torch."))
        for spec in (table.load()[op] for op in ops)
        for case in spec.cases
        for suite in case.suites
        if suite != "check"
        for dtype in spec.suite_dtypes.get(suite, spec.dtypes)
    }
    assert {(group.op, group.case, group.dtype) for group in groups} == wanted
    assert {group.precision for group in groups} == {"standard"}


def test_all_of_an_operator_without_suites_is_all_its_cases(tmp_path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\n"
        "from fuseline.testing import Case, Implementation, OpSpec\n"
        "def same(x): return x.clone()\n"
        "def make(case, dtype, device, generator):\n"
        "    return {'x': torch.randn(3, dtype=dtype, device=device, generator=generator)}\n"
        "SPEC = OpSpec(name='same', reference=same, make_inputs=make,\n"
        "    implementations=(Implementation('eager', same, role='eager'),),\n"
        "    cases=(Case('a', {}), Case('b', {})))\n"
    )
    groups = select.groups(select.specs_of([str(file)]), Filters(suite="all"))
    assert [group.case for group in groups] == ["a", "b"]


@pytest.mark.parametrize("at_once", [5, 3 * 19 * 23])
@pytest.mark.parametrize(("shared", "window"), [(1, None), (2, (3, 1))])
def test_the_oracle_of_many_scores_is_that_of_few(
    shared: int, window: tuple[int, int] | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(5)
    q, dout = (torch.randn(2, 4, 19, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    k, v = (
        torch.randn(2, 4 // shared, 23, 8, dtype=torch.float64, generator=generator)
        for _ in range(2)
    )
    given = [t.requires_grad_() for t in (q, k, v)]
    found = []
    for most in (1 << 25, at_once):
        monkeypatch.setattr(reference, "_AT_ONCE", most)
        out = reference.attention(*given, causal=True, window=window)
        found.append([out.detach(), *torch.autograd.grad(out, given, dout)])
    torch.testing.assert_close(*found, rtol=1e-13, atol=1e-13)
