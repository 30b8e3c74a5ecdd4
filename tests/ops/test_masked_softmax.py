"""What is peculiar to masked_softmax: masks of any shape and layout, what is hidden, gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from ops.softmax_rows import WITHOUT_BINARY
from torch import Tensor
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.masked_softmax.op import CONTRACT, decomposed
from fuseline.testing import Judge

OPS = torch.ops.fuseline
SPEC = table.load()["masked_softmax"]
IMPLS = [
    ("cpu", "cpu"),
    *(pytest.param("cuda", impl, marks=pytest.mark.gpu) for impl in ("cuda", "triton")),
]
# Of x's, (2, 3, 5, n): all of it, rows, columns, some of it, elements in all orders.
MASKS = [(), (1,), (0,), (5, 0), (3, 1, 0), (2, 1, 1, 0), (2, 1, 5, 1), (2, 3, 5, 0), (1, 3, 5, 0)]

pytestmark = WITHOUT_BINARY


def masked(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """A mask of normal numbers, a seventh of them -Inf, whose columns lie apart."""
    mask = torch.randn((*shape, 2), device=device)
    mask[torch.rand_like(mask) < 1 / 7] = -math.inf
    return mask.to(dtype)[..., 0]


def right(impl: str, x: Tensor, mask: Tensor | None, **how: Any) -> None:
    """Output and gradients keep the budget; a mask's is no better than y, which was rounded."""
    given = {"x": x, "mask": mask, "causal": False, "scale": 1.0, "log": False} | how
    leaves = {k: v.detach().requires_grad_() for k, v in given.items() if isinstance(v, Tensor)}
    y = fuseline.masked_softmax(**given | leaves, impl=impl)
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, tuple(leaves.values()), dy)
    wrong = Judge(SPEC, given, "fwd").wrong({"out0": y.detach()})
    assert wrong is None, (x.dtype, how, wrong)
    wide = {k: v.detach().double().requires_grad_() for k, v in leaves.items()}
    want = torch.autograd.grad(SPEC.reference(**given | wide), tuple(wide.values()), dy.double())
    for name, got, expected in zip(leaves, grads, want, strict=True):
        assert (got.shape, got.dtype) == (leaves[name].shape, leaves[name].dtype)
        largest = max(t.nan_to_num().abs().max().item() for t in want)
        eps = max(torch.finfo(t.dtype).eps for t in leaves.values())
        close = partial(torch.testing.assert_close, rtol=0, atol=32 * eps * largest)
        close(got.double(), expected, equal_nan=True, msg=lambda m, n=name: f"{n} {how}: {m}")


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [1, 7, 61, 1027, 20001])
def test_every_way(n: int, device: str, impl: str) -> None:
    torch.manual_seed(n)
    for dtype in SPEC.dtypes:
        # So many rows that the worst error is no accident.
        x = torch.randn(1 + (n < 2000), 2 + 800 // n, 5, n, device=device).to(dtype)
        mask = masked((5, n), dtype, device)
        right(impl, x, None)
        right(impl, x, None, causal=True, scale=0.125)
        right(impl, x, mask, log=True)
        right(impl, x, mask, causal=True, scale=-1.5)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_a_mask_of_any_shape_is_read_where_it_lies(
    shape: tuple[int, ...], device: str, impl: str
) -> None:
    torch.manual_seed(len(shape))
    for dtype in (torch.float32, torch.bfloat16):
        for of in dict.fromkeys((dtype, torch.float32)):
            x = torch.randn(2, 3, 5, 70, device=device).to(dtype)
            mask = masked(tuple(n or 70 for n in shape), of, device)
            before = native.copies()
            right(impl, x, mask)
            right(impl, x, mask.contiguous(), scale=0.5)
            if mask.dim() > 1:
                right(impl, x, mask.transpose(-1, -2).contiguous().transpose(-1, -2))
            assert native.copies() == before


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (4, 9), (9, 9), (9, 4), (3, 300)])
def test_causal_hides_what_is_right_of_the_lower_right_diagonal(
    queries: int, keys: int, device: str, impl: str
) -> None:
    x = torch.randn(2, queries, keys, device=device)
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)
    for log in (False, True):
        ours = partial(fuseline.masked_softmax, causal=True, log=log, impl=impl)
        torch_s = torch.log_softmax if log else torch.softmax
        y, want = ours(x), torch_s(x.masked_fill(hidden, -math.inf), -1)
        torch.testing.assert_close(y, want, equal_nan=True)  # rows that see nothing included
        # It does not matter.
        assert torch.equal(ours(x.masked_fill(hidden, math.nan)).nan_to_num(), y.nan_to_num())


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_a_logarithm_of_rows_with_one_element_far_above(
    dtype: torch.dtype, causal: bool, device: str, impl: str
) -> None:
    """Such a row's sum rounds to 1, in whose digits the errors of results near 0 count."""
    for n, height in ((61, 12.0), (61, 30.0), (1027, 25.0), (300, 60.0)):
        x = torch.randn(7, n, device=device, dtype=torch.float32).to(dtype)
        x[:, n - 8] += height
        right(impl, x, None, causal=causal, log=True)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
def test_rows_that_torch_makes_nan(device: str, impl: str) -> None:
    mask = torch.zeros(4, 40, device=device)
    mask[0], mask[1, 3], mask[2, 3], mask[3, 5:] = -math.inf, math.nan, math.inf, -math.inf
    x = torch.randn(4, 40, device=device)
    for causal in (False, True):
        for log in (False, True):
            y = fuseline.masked_softmax(x, mask, causal, 1.0, log, impl)
            want = decomposed(x, mask, causal, 1.0, log)
            torch.testing.assert_close(y, want, equal_nan=True)


def test_the_softmaxes_take_a_mask() -> None:
    x, mask = torch.randn(3, 6, 6), torch.randn(6)
    for ours, log in ((fuseline.softmax, False), (fuseline.log_softmax, True)):
        want = fuseline.masked_softmax(x, mask, True, 0.5, log)
        for dim in (-1, 2):
            assert torch.equal(ours(x, dim, mask=mask, causal=True, scale=0.5), want)
        assert torch.equal(ours(x, scale=1.0, mask=None, causal=False), ours(x))
        for given in ({"mask": mask}, {"causal": True}, {"scale": 2.0}):
            with pytest.raises(ValueError, match="dim is 0, expected -1, the last"):
                ours(x, 0, **given)
    traced = torch.fx.symbolic_trace(lambda t: fuseline.log_softmax(t + 1, causal=True))
    assert torch.equal(traced(x), fuseline.log_softmax(x + 1, causal=True))


@pytest.mark.parametrize("log", [False, True])
def test_gradients_of_every_order(log: bool) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    for causal in (False, True):
        if causal and log:
            continue  # -Inf, of which no difference is taken
        for m in (None, mask, mask.detach()):
            ours = lambda x, m=m, causal=causal: fuseline.masked_softmax(x, m, causal, 0.5, log)  # noqa: E731
            args = (x,) if m is None or not m.requires_grad else (x, m)
            assert torch.autograd.gradcheck(ours, args, check_forward_ad=True)
            assert torch.autograd.gradcheck(ours, args, check_batched_grad=True)
            assert torch.autograd.gradgradcheck(ours, args)


def test_a_logarithm_under_causal_has_the_gradient_of_torch() -> None:
    x = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    dy = torch.randn_like(x)
    for create in (False, True):
        got, want = (
            torch.autograd.grad(of(x, None, True, 0.5, True), x, dy, create_graph=create)[0]
            for of in (fuseline.masked_softmax, decomposed)
        )
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x, mask = torch.randn(shape), torch.randn(shape[-1:])
    for m, causal in ((None, True), (mask, False)):
        how = (causal, 0.5, False)
        opcheck(OPS.masked_softmax, (x.clone().requires_grad_(), m, *how))
        y = OPS._masked_softmax(x, m, *how)
        opcheck(OPS._masked_softmax, (x, m, *how))
        opcheck(OPS._masked_softmax_bwd, (torch.randn_like(y), y, *how))


def test_raw_operators_name_what_is_wrong() -> None:
    x = torch.randn(3, 8)
    how = (False, 1.0, False)
    for args, word in (
        ((x, x[:2], *how), "mask has shape"),
        ((x, x.half(), *how), "mask must have the dtype of x or float32"),
        ((x.int(), None, *how), "x must be float64"),
        ((x[0], None, True, 1.0, False), "x has 1 dimension"),
        ((x, None, False, math.inf, False), "scale is inf"),
    ):
        with pytest.raises(RuntimeError, match=f"masked_softmax: {word}"):
            OPS.masked_softmax(*args)
    with pytest.raises(RuntimeError, match="masked_softmax: dy has shape"):
        OPS._masked_softmax_bwd(x[:2], x, *how)


def test_compiled_without_a_break_and_under_vmap() -> None:
    x, mask = torch.randn(5, 3, 4, 64), torch.randn(5, 1, 64)
    ours = partial(fuseline.softmax, causal=True, scale=0.5)
    want = torch.stack([ours(a, mask=m) for a, m in zip(x, mask, strict=True)])
    compiled = torch.compile(ours, fullgraph=True)
    assert torch.equal(compiled(x, mask=mask[:, None]), want)
    assert torch.equal(torch.vmap(lambda a, m: ours(a, mask=m))(x, mask), want)
    assert torch.equal(torch.vmap(lambda a: ours(a, mask=mask[0]))(x), ours(x, mask=mask[0]))
    grad = torch.func.grad(lambda m: ours(x[0], mask=m).square().sum())
    torch.testing.assert_close(torch.vmap(grad)(mask), torch.stack([grad(m) for m in mask]))


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "from ops import test_masked_softmax as t\n"
    code += "for n in (1, 61, 1027): t.test_every_way(n, 'cpu', 'cpu')\n"
    code += "for shape in t.MASKS: t.test_a_mask_of_any_shape_is_read_where_it_lies"
    code += "(shape, 'cpu', 'cpu')"
    for_instruction_set(isa, code)
