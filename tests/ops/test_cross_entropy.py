"""What is peculiar to cross_entropy: torch's function, rows that are ignored, targets that are no
class, few digits to lose."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.instruction_sets import for_instruction_set
from torch import Tensor
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.cross_entropy.op import CONTRACT
from fuseline.testing.oracle.accuracy import errors
from fuseline.testing.poison import filled_memory

OPS = torch.ops.fuseline
SPEC = table.load()["cross_entropy"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
REDUCTIONS = ["mean", "sum", "none"]
IGNORED = -100

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def drawn(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    logits = torch.randn(shape, dtype=torch.float64, device=device) * 3
    return logits.to(dtype).requires_grad_(), torch.randint(shape[-1], shape[:-1], device=device)


def both(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), grad


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for op, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{op}{schema}")
        assert getattr(OPS, op).default._schema == wanted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_torchs_with_the_classes_last(dtype: torch.dtype, reduction: str, device: str) -> None:
    """Of (batch, token, class): torch's of (batch, class, token), in fp32 of half types."""
    logits, target = drawn((4, 5, 61), dtype, device)
    target[0, 1:3] = IGNORED
    wide = torch.promote_types(dtype, torch.float32)
    weight = torch.rand(61, dtype=wide, device=device)
    for of, smoothing in product((None, weight), (0.0, 0.1)):
        how: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "weight": of}
        ours = both(fuseline.cross_entropy(logits, target, **how), logits)
        theirs = both(F.cross_entropy(logits.to(wide).mT, target, **how), logits)
        eps = torch.finfo(wide).eps
        torch.testing.assert_close(ours[0], theirs[0], rtol=16 * eps, atol=16 * eps)
        own = torch.finfo(dtype).eps
        torch.testing.assert_close(ours[1], theirs[1], rtol=2 * own, atol=16 * eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_z_loss_is_added_to_each_row_that_counts(reduction: str, device: str) -> None:
    logits, target = drawn((7, 40), torch.float64, device)
    target[2] = IGNORED
    kept = target != IGNORED
    square = torch.where(kept, torch.logsumexp(logits, -1).square(), 0.0)
    plain = fuseline.cross_entropy(logits, target, reduction=reduction)
    whole = fuseline.cross_entropy(logits, target, reduction=reduction, z_loss=0.25)
    term = {"none": square, "sum": square.sum(), "mean": square.sum() / kept.sum()}[reduction]
    ours, right = both(whole, logits), both(plain + 0.25 * term, logits)
    torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ignored_rows_are_zero_whatever_their_logits(dtype: torch.dtype, device: str) -> None:
    """Any ignore_index, a class too; and the loss of the others does not change."""
    for n, ignored in product((5, 3000), (IGNORED, 3)):
        logits, target = drawn((4, n), dtype, device)
        target[:] = torch.tensor([1, ignored, 2, ignored])
        for reduction, smoothing in product(REDUCTIONS, (0.0, 0.2)):
            how: Any = {"ignore_index": ignored, "reduction": reduction, "z_loss": 0.1}
            how |= {"label_smoothing": smoothing}
            with torch.no_grad():
                logits[1::2] = torch.nan
            loss, grad = both(fuseline.cross_entropy(logits, target, **how), logits)
            of_others = logits.detach()[::2].requires_grad_()
            others = fuseline.cross_entropy(of_others, target[::2], **how)
            want, dothers = both(others, of_others)
            assert torch.equal(loss[::2] if reduction == "none" else loss, want)
            assert torch.equal(grad[::2], dothers)
            assert not grad[1::2].any()
            if reduction == "none":
                assert not loss[1::2].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", [[IGNORED, IGNORED], []])
def test_a_mean_of_nothing_is_nan(target: list[int], device: str) -> None:
    logits = torch.randn(len(target), 5, device=device, requires_grad=True)
    given = torch.tensor(target, dtype=torch.int64, device=device)
    loss, grad = both(fuseline.cross_entropy(logits, given), logits)
    assert loss.isnan()
    assert not grad.any()
    assert fuseline.cross_entropy(logits, given, reduction="sum") == 0


@pytest.mark.parametrize("value", [-1, 5, 2**40, -(2**40)])
def test_a_target_that_is_no_class_is_named(value: int) -> None:
    logits, target = torch.randn(3, 5), torch.tensor([0, value, 1])
    with pytest.raises(RuntimeError, match=rf"target has {value} in row 1, expected 0 to 4"):
        fuseline.cross_entropy(logits, target)
    stats, total = torch.zeros(3, 2), torch.ones(2, dtype=torch.float64)
    how = (None, stats, total, IGNORED, "mean", 0.0, 0.0, None)
    with pytest.raises(RuntimeError, match=f"target has {value} in row 1"):
        OPS._cross_entropy_bwd(torch.ones(()), logits, target, *how)
    wide = logits.requires_grad_()
    loss = CONTRACT.decomposed(wide, target, None, IGNORED, "none", 0.0, 0.0, None)
    assert loss.isnan().tolist() == [False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("value", [-1, 5, 2**40])
def test_a_target_that_is_no_class_makes_nan_on_a_gpu(value: int) -> None:
    logits, _ = drawn((3, 5), device="cuda")
    target = torch.tensor([0, value, 1], device="cuda")
    assert fuseline.cross_entropy(logits, target).isnan()
    loss, grad = both(fuseline.cross_entropy(logits, target, reduction="none"), logits)
    assert loss.isnan().tolist() == [False, True, False]
    assert grad.isnan().all(1).tolist() == [False, True, False]
    assert not grad[::2].isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target_dtype", [torch.int32, torch.int64])
def test_targets_of_any_layout(target_dtype: torch.dtype, device: str) -> None:
    logits, target = drawn((3, 4, 7), device=device)
    want = fuseline.cross_entropy(logits, target, reduction="none")
    given = target.to(target_dtype)
    apart = torch.stack((given, given), -1)[..., 0]
    for laid in (given, apart, given.t().contiguous().t()):
        assert torch.equal(fuseline.cross_entropy(logits, laid, reduction="none"), want)
    alone = fuseline.cross_entropy(logits[0, 0], given[0, 0], reduction="none")
    assert torch.equal(alone, want[0, 0])


@pytest.mark.parametrize("device", DEVICES)
def test_targets_are_copied_into_memory_that_is_filled(device: str) -> None:
    """As the checker fills it: what has no NaN gets another value."""
    logits, target = drawn((64, 7), device=device)
    want = fuseline.cross_entropy(logits, target, reduction="none")
    apart = torch.stack((target, target), -1)[..., 0]
    before = native.copies()
    with filled_memory():
        got = fuseline.cross_entropy(logits, apart, reduction="none")
    assert native.copies() > before
    assert torch.equal(got, want)


@pytest.mark.parametrize("device", DEVICES)
def test_large_logits_keep_their_digits(device: str) -> None:
    """Relative to the largest, the loss and the gradient are those of logits near 0."""
    for dtype, n in product((torch.float32, torch.float64), (61, 5003)):
        logits, target = drawn((6, n), dtype, device)
        far = (logits.detach() + 1024).requires_grad_()
        given = {"logits": far, "target": target, "weight": None, "z_loss": 0.0}
        given |= {"ignore_index": IGNORED, "reduction": "none", "softcap": None}
        given |= {"label_smoothing": 0.1}
        found = both(fuseline.cross_entropy(far, target, None, IGNORED, "none", 0.1), far)
        ones = torch.ones_like(found[0])
        of_loss = errors(SPEC, given, "fwd", {"out0": found[0]})["out0"]
        of_grad = errors(SPEC, given, "bwd", {"logits": found[1]}, (ones,))["logits"]
        assert of_loss.max_ulp <= 4
        assert of_grad.scaled <= 4


def test_gradients_of_every_order() -> None:
    logits, target = drawn((3, 6), torch.float64)
    target[1] = IGNORED
    weight = torch.rand(6, dtype=torch.float64)
    for reduction in REDUCTIONS:
        for how in ((None, 0.0, 0.0, None), (weight, 0.1, 0.2, 2.0)):

            def loss(x: Tensor, how: Any = how, reduction: str = reduction) -> Tensor:
                return fuseline.cross_entropy(x, target, how[0], IGNORED, reduction, *how[1:])

            assert torch.autograd.gradcheck(loss, (logits,), check_forward_ad=True)
            assert torch.autograd.gradgradcheck(loss, (logits,))


def test_a_weight_has_the_formulas_gradient() -> None:
    logits, target = drawn((5, 6), torch.float64)
    weight = torch.rand(6, dtype=torch.float64, requires_grad=True)

    def loss(w: Tensor) -> Tensor:
        return fuseline.cross_entropy(logits.detach(), target, w, label_smoothing=0.1)

    assert torch.autograd.gradcheck(loss, (weight,))


# opcheck takes one NaN for another number, which the mean of no rows is.
SHAPES = [(reduction, shape) for reduction in REDUCTIONS for shape in ((8,), (3, 8), (2, 3, 6))]


@pytest.mark.parametrize(("reduction", "shape"), [*SHAPES, ("sum", (0, 8)), ("none", (0, 8))])
def test_opcheck(reduction: str, shape: tuple[int, ...]) -> None:
    logits, target = drawn(shape)
    how = (IGNORED, reduction, 0.1, 0.2, 3.0)
    opcheck(OPS.cross_entropy, (logits, target, None, *how))
    weight = torch.rand(shape[-1])
    loss, *saved = OPS._cross_entropy_fwd(logits.detach(), target, weight, *how)
    given = (torch.ones_like(loss), logits.detach(), target, weight, *saved, *how)
    opcheck(OPS._cross_entropy_bwd, given)


def test_raw_operators_name_what_is_wrong() -> None:
    logits, target = torch.randn(3, 8), torch.tensor([1, 2, 3])
    how: dict[str, Any] = {"ignore_index": -1, "reduction": "mean"}
    how |= {"label_smoothing": 0.0, "z_loss": 0.0, "softcap": None}
    for change, words in (
        ({"reduction": "max"}, "reduction is max"),
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5"),
        ({"z_loss": -1.0}, "z_loss is -1"),
        ({"softcap": 0.0}, "softcap is 0"),
    ):
        with pytest.raises(RuntimeError, match=words):
            OPS._cross_entropy(logits, target, None, **how | change)
    for given, words in (
        ((logits[:, :0], target, None), "1 to 2.31 - 1 classes"),
        ((logits, target.float(), None), "target must be Long"),
        ((logits, target[:2], None), r"target has shape \[2\]"),
        ((logits, target, torch.ones(7)), r"weight has shape \[7\]"),
    ):
        with pytest.raises(RuntimeError, match=words):
            OPS._cross_entropy(*given, **how)
    saved = {"stats": torch.zeros(3, 2), "total": torch.ones(2, dtype=torch.float64)}
    for name, bad in (
        ("stats", torch.zeros(3, 3)),
        ("total", torch.ones(2)),
        ("dloss", torch.ones(3)),
    ):
        of = {"dloss": torch.ones(()), **saved, name: bad}
        given = (of["dloss"], logits, target, None, of["stats"], of["total"])
        with pytest.raises(RuntimeError, match=f"{name} is"):
            OPS._cross_entropy_bwd(*given, **how)


def test_compiled_without_a_break_and_under_vmap() -> None:
    logits, target = drawn((4, 3, 20))
    logits = logits.detach()
    weight = torch.rand(20)
    for reduction in REDUCTIONS:

        def loss(
            x: Tensor, t: Tensor, w: Tensor | None = None, reduction: str = reduction
        ) -> Tensor:
            return fuseline.cross_entropy(x, t, w, 7, reduction, 0.1, 0.2, 3.0)

        want = loss(logits, target, weight)
        compiled = torch.compile(loss, fullgraph=True)(logits, target, weight)
        assert torch.equal(compiled, want)
        for w, dim in ((None, None), (weight, None), (torch.rand(4, 20), 0)):
            each = torch.vmap(loss, in_dims=(0, 0, dim))(logits, target, w)
            apart = [loss(logits[i], target[i], w if dim is None else w[i]) for i in range(4)]
            torch.testing.assert_close(each, torch.stack(apart), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ["default", "avx2", "avx512"])
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "import torch, ops.test_cross_entropy as t\n"
    code += "t.test_large_logits_keep_their_digits('cpu')\n"
    code += "t.test_gradients_of_every_order()\n"
    code += "for dtype in t.DTYPES:\n"
    code += "    t.test_is_torchs_with_the_classes_last(dtype, 'mean', 'cpu')\n"
    code += "    t.test_ignored_rows_are_zero_whatever_their_logits(dtype, 'cpu')\n"
    for_instruction_set(isa, code)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [7, 130])
def test_a_softcap_below_all_numbers_is_not_none(classes: int, dtype: torch.dtype) -> None:
    logits = torch.randn(5, classes, dtype=dtype, requires_grad=True)
    logits.data[0, 0] = 0
    loss = fuseline.cross_entropy(logits, torch.arange(5), reduction="none", softcap=1e-320)
    torch.testing.assert_close(loss, torch.full_like(loss, math.log(classes)))
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert grad.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [3, 13, 130, 1001])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_gradient_over_the_logits_is_the_gradient(
    dtype: torch.dtype, classes: int, device: str
) -> None:
    """In rows of neighbours with something between them, which stays as it is."""
    rows, how = 70, (-100, "mean", 0.1, 0.01, 3.0)
    memory = torch.randn(rows, classes + 5, device=device).to(dtype)
    logits, before = memory[:, :classes], memory.clone()
    target = torch.randint(classes, (rows,), device=device)
    target[::7] = -100
    loss, *saved = OPS._cross_entropy_fwd(logits, target, None, *how)
    wanted = OPS._cross_entropy_bwd(loss, logits, target, None, *saved, *how)
    OPS._cross_entropy_bwd_(loss, logits, target, None, *saved, *how)
    assert torch.equal(logits, wanted)
    assert torch.equal(memory[:, classes:], before[:, classes:])


def test_logits_that_cannot_be_written_over_are_refused() -> None:
    target, how = torch.zeros(4, dtype=torch.int64), (-100, "mean", 0.0, 0.0, None)
    for logits in (torch.randn(1, 8).expand(4, 8), torch.randn(8, 4).t()):
        loss, *saved = OPS._cross_entropy_fwd(logits, target, None, *how)
        with pytest.raises(RuntimeError, match=r"logits has strides .*, expected rows"):
            OPS._cross_entropy_bwd_(loss, logits, target, None, *saved, *how)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_backward_writes_over_logits_where_it_is_permitted(reduction: str, device: str) -> None:
    wide = torch.randn(33, 257, device=device, dtype=torch.float64)
    hidden, target = wide.bfloat16().requires_grad_(), torch.randint(257, (33,), device=device)
    places: list[int] = []

    def through(**how: Any) -> tuple[Tensor, Tensor, int]:
        logits = hidden * 2
        logits.register_hook(lambda grad: places.append(grad.data_ptr()))
        loss = fuseline.cross_entropy(logits, target, reduction=reduction, softcap=5.0, **how)
        return *both(loss, hidden), logits.data_ptr()

    loss, grad, place = through(inplace_backward=True)
    wanted_loss, wanted, other = through()
    assert torch.equal(loss, wanted_loss)
    assert torch.equal(grad, wanted)
    assert places[0] == place
    assert places[1] != other


def test_backward_writes_over_no_leaf_no_gaps_and_nothing_that_is_traced() -> None:
    leaf, target = drawn((5, 9))
    before = leaf.detach().clone()
    fuseline.cross_entropy(leaf, target, inplace_backward=True).backward()
    assert torch.equal(leaf, before)
    gaps = (leaf * 2)[:, :7]
    fuseline.cross_entropy(gaps, target % 7, inplace_backward=True).backward()
    assert torch.equal(gaps, 2 * before[:, :7])

    def loss(x: Tensor) -> Tensor:
        return fuseline.cross_entropy(x * 2, target, inplace_backward=True)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for wanted, got in zip(both(loss(leaf), leaf), both(compiled(leaf), leaf), strict=True):
        assert torch.equal(wanted, got)
    torch.autograd.gradgradcheck(loss, leaf.detach().double().requires_grad_())


def test_logits_that_others_saved_are_not_written_over_in_silence() -> None:
    leaf, target = drawn((5, 9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fuseline.cross_entropy(leaf.tanh(), target, inplace_backward=True).backward()
    loss = fuseline.cross_entropy(leaf * 2, target, inplace_backward=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match="target has shape"):
        fuseline.cross_entropy(leaf * 2, target[:3], inplace_backward=True)
