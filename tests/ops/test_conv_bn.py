"""A convolution, batch norm and ReLU: what the checker does not ask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.convolutions import LAST, error
from torch import Tensor, nn

import fuseline
from fuseline import table
from fuseline.core.gradients import NEAR
from fuseline.testing.oracle import accuracy

VECTORS = ("bn_weight", "bn_bias", "running_mean", "running_var")


def drawn(
    dtype: torch.dtype = torch.float64, kind: torch.dtype | None = None, bias: bool = True
) -> dict[str, Any]:
    """Random arguments of 3 x 3 kernels; kind: the dtype of the norm's vectors."""
    x, weight = torch.randn(4, 8, 7, 6), torch.randn(16, 8, 3, 3) / 8
    found: dict[str, Any] = {"x": x.to(dtype), "weight": weight.to(dtype)}
    found["bias"] = torch.randn(16).to(dtype) if bias else None
    vectors = {name: torch.randn(16).to(kind or dtype) for name in VECTORS}
    vectors["running_var"] = vectors["running_var"].abs() + 0.5
    return found | vectors


def formula(training: bool, relu: bool = True, **given: Any) -> Tensor:
    h = F.conv2d(given["x"], given["weight"], given["bias"])
    running = (given["running_mean"], given["running_var"])
    y = F.batch_norm(h, *running, given["bn_weight"], given["bn_bias"], training, 0.3, 1e-3)
    return torch.relu(y) if relu else y


def ours(training: bool, relu: bool = True, impl: str = "auto", **given: Any) -> Tensor:
    return fuseline.conv_bn(
        **given, training=training, momentum=0.3, eps=1e-3, relu=relu, impl=impl
    )


def copied(given: dict[str, Any]) -> dict[str, Any]:
    return {n: None if t is None else t.detach().clone() for n, t in given.items()}


def gradients(call: Any, given: dict[str, Any]) -> list[Tensor]:
    names = [n for n in ("x", "weight", "bn_weight", "bn_bias") if given[n] is not None]
    leaves = {n: given[n].detach().requires_grad_() for n in names}
    y = call(**{**given, **leaves})
    return [y.detach(), *torch.autograd.grad(y, [*leaves.values()], y.detach().cos())]


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.float64, None), (torch.float32, None), (torch.bfloat16, torch.float32),
     (torch.float16, None)],
)  # fmt: skip
def test_running_statistics_move_as_torchs(dtype: torch.dtype, kind: torch.dtype | None) -> None:
    given = drawn(dtype, kind)
    mine, theirs = copied(given), copied(given)
    for _ in range(2):
        ours(True, **mine)
        formula(True, **theirs)
    # Torch's are of what the convolution rounded to x's dtype.
    coarse = torch.finfo(dtype).eps * 8
    for name in VECTORS:
        moved = name.startswith("running")
        assert torch.equal(mine[name], given[name]) != moved
        torch.testing.assert_close(mine[name], theirs[name], rtol=coarse, atol=coarse)


def test_no_statistics_are_needed_in_training() -> None:
    given = drawn() | {"running_mean": None, "running_var": None, "bn_weight": None}
    torch.testing.assert_close(ours(True, **given), formula(True, **given))


def test_the_bias_cancels_in_training_and_its_gradient_is_zero() -> None:
    given = drawn()
    bias = given["bias"].requires_grad_()
    y = ours(True, **given)
    (gradient,) = torch.autograd.grad(y, bias, torch.randn_like(y), retain_graph=True)
    assert torch.equal(gradient, torch.zeros(16, dtype=torch.float64))
    assert torch.equal(ours(True, **{**given, "bias": None}), y)
    given["bias"].grad = None
    y.sum().backward()  # as a bucket of gradients needs it
    assert bias.grad is not None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("impl", ["auto", "aten", "eager"])
def test_vectors_with_strides_are_read_where_they_lie(training: bool, impl: str) -> None:
    given = drawn()
    spread = {n: torch.full((32,), torch.nan).double()[::2].copy_(given[n]) for n in VECTORS}

    def call(**given: Any) -> Tensor:
        return ours(training, impl=impl, **copied(given) | {n: given[n] for n in given})

    wanted = gradients(lambda **g: formula(training, **g), copied(given))
    found = gradients(call, copied(given) | spread)
    torch.testing.assert_close(found, wanted)
    given["x"] = given["x"].contiguous(memory_format=LAST)
    torch.testing.assert_close(gradients(call, copied(given) | spread), wanted)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_folding_costs_few_roundings(relu: bool, kind: torch.dtype) -> None:
    for dtype in {torch.bfloat16, kind}:
        given = drawn(dtype, kind)
        exact = formula(False, relu, **{n: t.double() for n, t in given.items()})
        mine, theirs = ours(False, relu, **given), formula(False, relu, **given)
        assert error(mine, exact) <= 2 * error(theirs, exact) + 1


def test_autocast_rounds_the_folded_weight_once() -> None:
    given = drawn(torch.float32)
    x = given["x"] = given["x"].bfloat16().float()
    wide = {n: t.double() for n, t in given.items()}
    scale = wide["bn_weight"] * (wide["running_var"] + 1e-3).rsqrt()
    shift = (wide["bias"] - wide["running_mean"]) * scale + wide["bn_bias"]
    once = (wide["weight"] * scale.view(-1, 1, 1, 1)).bfloat16(), shift.bfloat16()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = ours(False, impl="aten", **given)
    assert torch.equal(found, torch.relu(F.conv2d(x.bfloat16(), *once)))


def test_a_call_that_was_checked_admits_no_other() -> None:
    given = drawn(torch.float32)
    half = {n: given[n].bfloat16() for n in ("x", "weight", "bias")}
    good = given | half
    ours(False, **good)
    with torch.autocast("cpu", torch.bfloat16):
        ours(False, **{**good, "weight": given["weight"]})
    bad: list[tuple[type[Exception], dict[str, Any]]] = [
        (TypeError, {"weight": given["weight"]}),
        (TypeError, {"relu": 1}),
        (TypeError, {"running_var": given["running_var"].double()}),
        (TypeError, {"bn_weight": given["bn_weight"].to_sparse()}),
        (ValueError, {"running_mean": None}),
        (ValueError, {"bn_bias": given["bn_bias"][:-1]}),
        (ValueError, {"eps": -1e-3}),
    ]
    for kind, change in bad:
        with pytest.raises(kind, match=f"conv_bn: {next(iter(change))}"):
            fuseline.conv_bn(**{**good, "relu": True, "eps": 1e-3, **change})


def test_what_is_folded_follows_statistics_without_a_version() -> None:
    """Torch's batch norm moves them so that their version stays what it was."""
    conv, norm = nn.Conv2d(8, 16, 3).eval(), nn.BatchNorm2d(16).train()
    x = torch.randn(4, 8, 7, 6)

    @torch.no_grad()
    def folded() -> Tensor:
        vectors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        return fuseline.conv_bn(x, conv.weight, conv.bias, *vectors)

    assert norm.running_mean is not None
    before, version = folded(), norm.running_mean._version
    norm(conv(x))
    assert norm.running_mean._version == version
    assert not torch.equal(folded(), before)
    norm.eval()
    torch.testing.assert_close(folded(), norm(conv(x)), rtol=1e-4, atol=1e-5)


def test_gradients_without_training_are_the_formulas() -> None:
    given = drawn(torch.float32)
    found = gradients(lambda **g: ours(False, **g), given)
    wanted = gradients(lambda **g: formula(False, **g), given)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("over", ["x", "weight", "bn_weight"])
def test_vmap_has_statistics_for_each(over: str) -> None:
    given = drawn() | {"running_mean": None, "running_var": None}
    batch = torch.stack([given[over], given[over].flip(0), given[over] * 2])
    found = torch.vmap(lambda t: ours(True, **{**given, over: t}))(batch)
    each = [formula(True, **{**given, over: t}) for t in batch]
    torch.testing.assert_close(found, torch.stack(each))


def test_compiled_training_moves_statistics() -> None:
    given = drawn()  # in fp32 one of 1280 results may be so small that ReLU's side differs
    mine, theirs = copied(given), copied(given)

    def step(**given: Any) -> Tensor:
        return ours(True, **given)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(
        gradients(compiled, mine), gradients(lambda **g: formula(True, **g), theirs)
    )
    torch.testing.assert_close(mine["running_var"], theirs["running_var"])


def test_autocast_leaves_the_norm_in_its_type() -> None:
    given = drawn(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(lambda **g: ours(True, **g), copied(given))
    assert [t.dtype for t in found] == [torch.bfloat16, *[torch.float32] * 4]


def test_gradients_are_drawn_where_relu_does_not_jump() -> None:
    spec = table.load()["conv_bn"]
    case = next(c for c in spec.cases if c.name.startswith("2x8x9x7"))
    generator = torch.Generator().manual_seed(torch.seed() % 2**62)
    inputs = spec.inputs(case, torch.bfloat16, torch.device("cpu"), generator)
    y = spec.reference(**inputs).bfloat16()
    (dy,) = accuracy.draw_dys(spec, inputs, (y,), generator)
    exact = {n: v.double() if isinstance(v, Tensor) else v for n, v in inputs.items()}
    near = spec.reference(**{**exact, "relu": False}).abs()
    assert dy.stride() == y.stride() != dy.contiguous().stride()
    # Of the argument in half precision, whose own roundings are a part of it.
    least = NEAR * torch.finfo(torch.bfloat16).eps * near.square().mean().sqrt()
    assert not dy[near < 0.8 * least].any()
    assert dy[near > 1.2 * least].all()
    assert (near < 0.8 * least).any()


def test_a_raw_backward_sums_up_in_float_whatever_the_layout_of_dy() -> None:
    """Of a width of 1 strides may be those of either format, and torch then sums in bfloat16."""
    torch.manual_seed(0)
    x = torch.randn(4, 4, 6, 1).bfloat16().to(memory_format=torch.channels_last)
    weight, vectors = torch.randn(8, 4, 1, 1).bfloat16(), (torch.rand(8) + 0.5, torch.randn(8))
    numbers = ([1, 1], [0, 0], [1, 1], 1)
    ops = torch.ops.fuseline
    y, mean, _, h, rstd = ops._conv_bn_fwd__aten(x, weight, None, *vectors, 1e-5, True, *numbers)
    dy = torch.randn(4, 8, 6, 1).bfloat16()
    last = dy.to(memory_format=torch.channels_last)
    for given in (dy, last, last.mT.contiguous().mT):
        *_, dbias = ops._conv_bn_bwd__aten(
            given, y, x, weight, *vectors, h, mean, rstd, True, *numbers, *(True,) * 4
        )
        wanted = dy.double().where(y > 0, 0.0).sum((0, 2, 3))
        torch.testing.assert_close(dbias.double(), wanted, rtol=1e-6, atol=1e-5)
