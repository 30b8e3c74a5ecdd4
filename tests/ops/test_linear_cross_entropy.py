"""What is peculiar to linear_cross_entropy: chunks, memory, gradients that the forward makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.linear_cross_entropy import impl_chunks

OPS = torch.ops.fuseline
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
REDUCTIONS = ["mean", "sum", "none"]
IGNORED = -100
chunks = partial(fuseline.linear_cross_entropy, impl="chunks")
NEEDED, NOTHING = (True, True, True), (False, False, False)

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def drawn(
    rows: int,
    columns: int = 24,
    classes: int = 61,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> tuple[list[Tensor], Tensor]:
    """Return hidden, weight and bias, which want gradients, and a target."""
    shapes = ((rows, columns), (classes, columns), (classes,))
    given = [torch.randn(shape, dtype=torch.float64, device=device) for shape in shapes]
    given[1] *= columns**-0.5
    target = torch.randint(classes, (rows,), device=device)
    return [t.to(dtype).requires_grad_() for t in given], target


def both(loss: Tensor, given: list[Tensor], dloss: Tensor | None = None) -> list[Tensor]:
    """Return the loss and its gradients."""
    dloss = torch.ones_like(loss) if dloss is None else dloss
    return [loss.detach(), *torch.autograd.grad(loss, given, dloss)]


class Largest(TorchDispatchMode):
    """Notes the shapes of what operators give, and the most elements."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(t.shape) for t in tree_leaves(found) if isinstance(t, Tensor)}
        return found

    @property
    def most(self) -> int:
        return max(torch.Size(shape).numel() for shape in self.shapes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 700, 1500])
def test_is_torchs_whatever_the_chunks(rows: int, reduction: str, device: str) -> None:
    given, target = drawn(rows, device=device)
    target[: rows // 5] = IGNORED
    hidden, weight, bias = given
    how: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    ours = chunks(hidden, weight, target, bias, **how)
    theirs = F.cross_entropy(F.linear(hidden, weight, bias), target, **how)
    dloss = torch.randn_like(theirs)
    pairs = zip(both(ours, given, dloss), both(theirs, given, dloss), strict=True)
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12, equal_nan=True)


def test_chunks_are_equal_and_in_whole_tiles() -> None:
    def of(rows: int, columns: int, classes: int = 9, device: str = "cpu") -> int:
        with FakeTensorMode():
            shapes = ((rows, columns), (classes, columns))
            hidden, weight = (torch.empty(s, device=device, dtype=torch.bfloat16) for s in shapes)
            return impl_chunks.rows_of_chunk(hidden, weight)

    assert [of(rows, 64, 2048) for rows in (0, 7, 257, 8192)] == [1, 7, 256, 256]
    assert of(8192, 768, 2048) == 384  # half of the weight's memory
    assert of(2**16, 64) == 2**15  # 1 MiB
    if torch.cuda.is_available():  # as much memory as fp32 sums of dweight, or 1 GiB
        assert of(8192, 4096, 128256, "cuda") == 8192
        assert of(8193, 4096, 128256, "cuda") == 4224  # and 3969
        assert of(8192, 768, 50257, "cuda") == 8192


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_tensor_is_as_large_as_all_logits(dtype: torch.dtype, reduction: str) -> None:
    rows, columns, classes = 1100, 24, 2000
    (hidden, weight, bias), target = drawn(rows, columns, classes, dtype)
    how = (IGNORED, reduction, 0.0, 0.0, None, *NEEDED)
    given = (hidden.detach(), weight.detach(), target, bias.detach())
    with Largest() as seen:
        loss, *saved = impl_chunks.forward(*given, *how)
        impl_chunks.backward(torch.ones_like(loss), *given, *saved, *how)
    assert seen.most <= 256 * classes, sorted(seen.shapes)[-3:]


def test_what_needs_no_gradient_is_not_made() -> None:
    (hidden, weight, bias), target = drawn(300)
    how = (IGNORED, "mean", 0.0, 0.0, None)
    given = (hidden.detach(), weight.detach(), target, bias.detach())
    for needs in product((False, True), repeat=3):
        _, *_, dhidden, dweight, dbias = impl_chunks.forward(*given, *how, *needs)
        assert [t.numel() > 0 for t in (dhidden, dweight, dbias)] == list(needs)
    weight.requires_grad_(False)
    bias.requires_grad_(False)
    loss = chunks(hidden, weight, target, bias)
    assert sum(t is not None and t.shape == weight.shape for t in saved_by(loss)) == 1
    (found,) = torch.autograd.grad(loss, [hidden])
    wanted = F.cross_entropy(F.linear(hidden, weight, bias), target)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, hidden)[0])


def saved_by(loss: Tensor) -> tuple[Tensor | None, ...]:
    node: Any = loss.grad_fn
    return tuple(node.saved_tensors)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_backward_multiplies_as_often_as_it_is_called(reduction: str) -> None:
    given, target = drawn(300)
    hidden, weight, bias = given
    loss = chunks(hidden, weight, target, bias, reduction=reduction)
    one = torch.autograd.grad(loss, given, retain_graph=True)
    many = torch.autograd.grad(loss, given, torch.full((), -3.0).double(), retain_graph=True)
    again = torch.autograd.grad(loss, given)
    for a, b, c in zip(one, many, again, strict=True):
        assert torch.equal(a, c)
        torch.testing.assert_close(b, -3 * a)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_gradient_is_added_up_in_fp32(dtype: torch.dtype, device: str) -> None:
    """All rows draw one class down: a sum of half types would stop growing."""
    rows, classes = 8192, 5
    hidden = torch.rand(rows, 24, device=device).add_(0.5).to(dtype)
    weight = torch.zeros(classes, 24, dtype=dtype, device=device, requires_grad=True)
    target = torch.zeros(rows, dtype=torch.int64, device=device)
    loss = chunks(hidden, weight, target, reduction="sum")
    (found,) = torch.autograd.grad(loss, weight, torch.tensor(2.0**-8, device=device))
    dz = torch.full((classes,), 0.2, device=device).to(dtype).double()
    dz[0] = torch.tensor(-0.8).to(dtype).double()
    wanted = dz.unsqueeze(1) * hidden.double().sum(0) * 2.0**-8
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=0.51 * eps, atol=0.0)


def test_a_mean_of_many_rows_leaves_fp16_its_gradients() -> None:
    """Divided by the number of rows before the products, most of dz would be 0."""
    given, target = drawn(2000, 16, 3000, torch.float16)
    wide = [t.detach().double().requires_grad_() for t in given]
    ours = fuseline.linear_cross_entropy(given[0], given[1], target, given[2])
    found = both(ours, given, torch.tensor(2.0**11))
    wanted = both(F.cross_entropy(F.linear(*wide), target), wide, torch.tensor(2.0**11).double())
    eps = torch.finfo(torch.float16).eps
    for name, a, b in zip(("hidden", "weight", "bias"), found[1:], wanted[1:], strict=True):
        gap = (a.double() - b).abs().max() / b.abs().max()
        assert gap < 4 * eps, (name, float(gap / eps))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_do_not_count(device: str) -> None:
    given, target = drawn(300, device=device)
    hidden, weight, bias = given
    target[:] = IGNORED
    loss = chunks(hidden, weight, target, bias)
    assert loss.isnan()
    for dloss in (1.0, torch.nan):
        seed = torch.tensor(dloss, dtype=torch.float64, device=device)
        dhidden, *others = torch.autograd.grad(loss, given, seed, retain_graph=True)
        assert not dhidden.any()
        assert dloss != 1.0 or not any(t.any() for t in others)
    assert chunks(hidden, weight, target, bias, reduction="sum") == 0


def test_a_target_that_is_no_class_is_refused() -> None:
    (hidden, weight, _), target = drawn(300)
    target[299] = 61
    with pytest.raises(RuntimeError, match="linear_cross_entropy: target has 61 in row 299"):
        fuseline.linear_cross_entropy(hidden, weight, target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_gradient_of_a_gradient_is_the_formulas(reduction: str) -> None:
    given, target = drawn(9, 5, 7)

    def second(loss: Tensor) -> list[Tensor]:
        dloss = torch.linspace(1, 2, loss.numel()).double().view(loss.shape)
        grads = torch.autograd.grad(loss, given, dloss, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), given))

    ours = chunks(given[0], given[1], target, given[2], reduction=reduction)
    theirs = F.cross_entropy(F.linear(*given), target, reduction=reduction)
    torch.testing.assert_close(second(ours), second(theirs))


@pytest.mark.parametrize("impl", ["auto", "chunks", "eager"])
def test_autocast_casts_as_of_a_linear_layer(impl: str) -> None:
    given, target = drawn(300, dtype=torch.float32)
    hidden, weight, bias = given
    with torch.autocast("cpu", torch.bfloat16):
        loss = fuseline.linear_cross_entropy(hidden, weight.bfloat16(), target, bias, impl=impl)
        theirs = F.cross_entropy(F.linear(hidden, weight, bias).float(), target)
    assert loss.dtype == torch.float32
    for found, wanted in zip(both(loss, given), both(theirs, given), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=2.0**-6, atol=2.0**-8)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool, reduction: str) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
    def step(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        return chunks(hidden * 2, weight, target, bias, reduction=reduction)

    for rows in (300, 517) if dynamic else (300,):
        given, target = drawn(rows, dtype=torch.float32)
        wanted = F.cross_entropy(F.linear(given[0] * 2, *given[1:]), target, reduction=reduction)
        found = step(*given, target)
        for ours, theirs in zip(both(found, given), both(wanted, given), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_operators_keep_their_word(reduction: str) -> None:
    (hidden, weight, bias), target = drawn(9, 5, 7, torch.float32)
    how = (IGNORED, reduction, 0.1, 0.2, 3.0)
    given = (hidden.detach(), weight.detach(), target, bias.detach())
    for suffix in ("", "__chunks"):
        op = getattr(OPS, f"linear_cross_entropy{suffix}")
        opcheck(op, (hidden, weight, target, bias, *how, *NOTHING))
    for needs in (NEEDED, NOTHING, (True, False, True)):
        opcheck(OPS._linear_cross_entropy_fwd__chunks, (*given, *how, *needs))
        loss, *saved = OPS._linear_cross_entropy_fwd__chunks(*given, *how, *needs)
        opcheck(OPS._linear_cross_entropy_bwd__chunks, (loss, *given, *saved, *how, *needs))


def test_raw_operators_check_what_they_are_given() -> None:
    (hidden, weight, _), target = drawn(9, 5, 7, torch.float32)
    given, how = (hidden.detach(), weight.detach(), target, None), (IGNORED, "mean", 0.0, 0.0, None)
    loss, *saved = OPS._linear_cross_entropy_fwd__chunks(*given, *how, True, True, False)
    with pytest.raises(ValueError, match=r"dbias has shape \(0,\)"):
        OPS._linear_cross_entropy_bwd__chunks(loss, *given, *saved, *how, *NEEDED)
    with pytest.raises(ValueError, match=r"target has shape \(8,\), expected \(9,\)"):
        OPS.linear_cross_entropy(*given[:2], target[:8], None, *how, *NOTHING)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_vmap_is_a_call_each(reduction: str) -> None:
    (hidden, weight, bias), target = drawn(6, 5, 7)
    many = [torch.stack([t.detach(), -t.detach()]) for t in (hidden, weight, bias)]

    def one(h: Tensor, w: Tensor, t: Tensor, b: Tensor) -> Tensor:
        return chunks(h, w, t, b, reduction=reduction)

    for dims in ((0, None, None, None), (0, 0, None, 0), (None, 0, 0, None)):
        batches = (many[0], many[1], torch.stack([target, target.flip(0)]), many[2])
        alone = (many[0][0], many[1][0], target, many[2][0])
        given = [b if d == 0 else a for a, b, d in zip(alone, batches, dims, strict=True)]
        wanted = [
            one(*(t[i] if d == 0 else t for t, d in zip(given, dims, strict=True)))
            for i in range(2)
        ]
        found = torch.vmap(one, in_dims=dims)(*given)
        torch.testing.assert_close(found, torch.stack(wanted))


def test_few_logits_on_a_cpu_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(impl_chunks, "_Layer", refused)
    for reduction, dtype in product(REDUCTIONS, (torch.float32, torch.bfloat16)):
        (hidden, weight, bias), target = drawn(300, dtype=dtype)
        target[:40] = IGNORED
        how: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
        loss = fuseline.linear_cross_entropy(hidden, weight, target, bias, **how)
        assert loss.dtype == torch.float32
        theirs = F.cross_entropy(F.linear(hidden, weight, bias).float(), target, **how)
        eps = torch.finfo(dtype).eps
        given = [hidden, weight, bias]
        for a, b in zip(both(loss, given), both(theirs, given), strict=True):
            torch.testing.assert_close(a, b, rtol=8 * eps, atol=8 * eps)
    told = fuseline.explain_choice(fuseline.linear_cross_entropy, hidden, weight, target, bias)
    assert told.op == "cross_entropy"
    for rows, dtype in ((300, torch.float16), (2**15, torch.float32)):  # 2^15 * 61 logits
        (hidden, weight, bias), target = drawn(rows, dtype=dtype)
        with pytest.raises(NotImplementedError):
            fuseline.linear_cross_entropy(hidden, weight, target, bias)


@pytest.mark.parametrize("rows", [7, 2**15])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("weight", lambda t: t[0], "weight has shape"),
        ("weight", lambda t: t.double(), "weight"),
        ("bias", lambda t: t[:1], "bias has shape"),
        ("target", lambda t: t[1:], "target has shape"),
        ("hidden", lambda t: t[0, 0], "hidden"),
        ("hidden", lambda t: t.long(), "hidden"),
    ],
)
def test_few_or_many_the_words_of_a_refusal_are_the_same(
    rows: int, name: str, change: Callable[[Tensor], Tensor], words: str
) -> None:
    tensors, target = drawn(rows, dtype=torch.float32)
    given = dict(zip(("hidden", "weight", "bias"), tensors, strict=True), target=target)
    given[name] = change(given[name].detach())
    with pytest.raises((TypeError, ValueError), match=f"linear_cross_entropy: {words}"):
        fuseline.linear_cross_entropy(**given)


def test_torchs_own_by_chunks_is_beside_it() -> None:
    spec = table.load()["linear_cross_entropy"]
    case = next(case for case in spec.cases if "quick" in case.suites)
    inputs = spec.make_inputs(case, torch.float32, torch.device("cpu"), torch.Generator())
    torchs = spec.implementation("native")
    if torchs.unavailable("cpu"):
        assert "2.13" in str(torchs.unavailable("cpu"))
        return
    torch.testing.assert_close(torchs.fn(**inputs), fuseline.linear_cross_entropy(**inputs))
    assert "no z_loss" in str(torchs.unsupported("fwd", inputs | {"z_loss": 0.5}))
