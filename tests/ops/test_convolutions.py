"""Convolutions and what follows them: what the checker does not ask."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from ops.convolutions import LAST, OPS, computed, error, exact, tensors
from ops.layouts import laid_out
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.library import opcheck

import fuseline
from fuseline.core.selection.select import asked

DEFAULT = torch.contiguous_format
FORMS = [(a, b) for a in (DEFAULT, LAST) for b in (DEFAULT, LAST)]


def integers(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape).float()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_convolutions_of_small_integers_are_exact(op: str, impl: str) -> None:
    given = tensors(op)
    given = {n: integers(*t.shape).contiguous(memory_format=LAST) if t.dim() == 4 else t.round()
             for n, t in given.items()}  # fmt: skip
    numbers: dict[str, Any] = {"stride": 1}
    dy = integers(2, 16, 7, 5)
    for found, wanted in zip(
        computed(op, given, numbers, dy, impl), exact(op, given, numbers, dy), strict=True
    ):
        assert torch.equal(found.double(), wanted)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("shape", "kernel", "numbers"),
    [
        ((2, 4, 13), (3,), {"stride": 2, "padding": 1, "groups": 2}),
        ((1, 2, 4, 5, 6), (3, 1, 2), {"padding": (1, 0, 1), "dilation": (1, 2, 2)}),
        ((2, 4, 9, 8), (3, 2), {"stride": (2, 1), "padding": (0, 2), "dilation": [2]}),
    ],
)
def test_one_to_three_dimensions_and_a_number_for_each(
    op: str, shape: tuple[int, ...], kernel: tuple[int, ...], numbers: dict[str, Any]
) -> None:
    given = tensors(op, shape, 6, kernel, torch.float64, **numbers)
    numbers = {k: tuple(v) * 2 if v == [2] else v for k, v in numbers.items()}
    dy = torch.randn_like(exact(op, given, numbers)[0])
    for found, wanted in zip(
        computed(op, given, numbers, dy), exact(op, given, numbers, dy), strict=True
    ):
        assert error(found, wanted, dy) < 16


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_and_gradients_have_the_memory_format_of_torchs(
    op: str, dtype: torch.dtype
) -> None:
    for of_x, of_weight in FORMS:
        given = tensors(op, dtype=dtype)
        given["x"] = given["x"].contiguous(memory_format=of_x)
        given["weight"] = given["weight"].contiguous(memory_format=of_weight)
        wanted = torch.conv2d(*[*given.values()][:3])
        for impl in ("auto", "aten", "eager"):
            y, *gradients = computed(op, given, {}, torch.randn_like(wanted), impl)
            assert y.stride() == wanted.stride()
            images = [t for t in (*gradients[:2], *gradients[3:]) if impl != "eager"]
            last = LAST in (of_x, of_weight)
            assert all(t.is_contiguous(memory_format=LAST) == last for t in images)


def in_any_layout(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    dims = len(shape)
    form = {4: LAST, 5: torch.channels_last_3d}.get(dims, DEFAULT)
    order = tuple(random.sample(range(dims), dims))
    made = laid_out(tuple(shape), order, dtype, "cpu", random.choice((0, 0, 1)))
    return random.choice((made, made.to(memory_format=form), made.contiguous()))


def layout(t: Tensor) -> tuple[torch.memory_format, list[int]]:
    strides = zip(t.shape, t.stride(), strict=True)
    return suggest_memory_format(t), [stride for size, stride in strides if size > 1]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_ambiguous_strides_have_the_memory_format_of_torchs(dims: int, dtype: torch.dtype) -> None:
    """Kernels, images, batches and channels of one element, and what no format describes."""
    convolution = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
    for _ in range(100):
        kernel, groups = random.choices((1, 1, 3), k=dims), random.choice((1, 1, 2))
        c, k = (groups * random.randint(1, 3) for _ in range(2))
        sizes = [r + random.choice((0, 2)) for r in kernel]
        x = in_any_layout((random.randint(1, 3), c, *sizes), dtype)
        weight = in_any_layout((k, c // groups, *kernel), dtype)
        y, bias = convolution(x, weight, groups=groups), torch.randn(k).to(dtype)
        given = (x, weight, bias, 1, 0, 1, groups)
        found = [fuseline.conv_add(*given, impl=impl) for impl in ("auto", "aten", "eager")]
        with FakeTensorMode() as mode:
            made = (mode.from_tensor(t) for t in given[:3])
            found.append(fuseline.conv_add(*made, *given[3:]))
        wanted = layout(found.pop())
        assert all(layout(t) == wanted for t in found), given
        # Torch's own is another in one dimension, where oneDNN does not compute (in fp64, and in
        # three dimensions also in fp32), and with a strided weight of one channel or strided images
        # of one element: it asks again for the format of its dense copy, which may be either.
        other = dims == 1 or (dims == 3 and dtype != torch.bfloat16)
        other = other or (dtype == torch.float64 and groups > 1)
        other = other or (weight.shape[1] == 1 and not weight.is_contiguous())
        if not other and (x[0].numel() > 1 or x.is_contiguous()):
            assert layout(y) == wanted, given


@pytest.mark.parametrize("form", [DEFAULT, LAST])
def test_z_of_any_layout_and_x_itself(form: torch.memory_format) -> None:
    given = tensors("conv_add_relu", (2, 6, 5, 4), 6, (1, 1), form=form)
    z = given["z"]
    wide = torch.full((*z.shape[:3], 2 * z.shape[3]), float("nan"))[..., ::2].copy_(z)
    for other in (z.contiguous(), z.contiguous(memory_format=LAST), wide, given["x"]):
        before = other.clone()
        y = computed("conv_add_relu", {**given, "z": other}, {})[0]
        assert error(y, exact("conv_add_relu", {**given, "z": other}, {})[0]) < 4
        assert torch.equal(other, before)


@pytest.mark.parametrize("op", OPS)
def test_a_batch_of_none_has_gradients_of_zeros(op: str) -> None:
    given = tensors(op, (0, 8, 9, 7))
    y, *gradients = computed(op, given, {}, torch.randn(0, 16, 7, 5))
    assert y.shape == (0, 16, 7, 5)
    for name, gradient in zip(given, gradients, strict=True):
        assert gradient.shape == given[name].shape
        assert not gradient.any()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("impl", ["auto", "aten", "eager"])
def test_nan_and_inf_pass_through(op: str, impl: str) -> None:
    for bad in (torch.nan, torch.inf):
        given = tensors(op, form=LAST)
        given["x"][1, 3, 4, 4] = bad
        found, wanted = computed(op, given, {}, impl=impl)[0], exact(op, given, {})[0]
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.isinf(), wanted.isinf())


@pytest.mark.parametrize("op", OPS)
def test_autocast_lowers_what_torchs_convolution_lowers(op: str) -> None:
    given = tensors(op)
    with torch.autocast("cpu", torch.bfloat16):
        y, *gradients = computed(op, given, {}, torch.randn(2, 16, 7, 5))
        compiled = torch.compile(getattr(fuseline, op), backend="aot_eager", fullgraph=True)
        assert compiled(**given).dtype == y.dtype
    assert y.dtype == (torch.float32 if "z" in given else torch.bfloat16)  # that of the sum with z
    assert {t.dtype for t in gradients} == {torch.float32}


@pytest.mark.parametrize("op", OPS)
def test_vmap_over_each_argument(op: str) -> None:
    given = tensors(op, (2, 4, 5, 5), 4)
    batches = {n: torch.stack([t, 2 * t, t.flip(0)]) for n, t in given.items()}
    for over in (["x"], ["weight"], ["bias"], [*given], [*given][3:] or ["x"]):
        chosen = {n: batches[n] if n in over else t for n, t in given.items()}
        dims = tuple(0 if n in over else None for n in given)
        public = getattr(fuseline, op)
        found = torch.vmap(public, dims)(*chosen.values())
        for i in range(3):
            one = [t[i] if n in over else t for n, t in chosen.items()]
            torch.testing.assert_close(found[i], public(*one))


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str) -> None:
    given = tensors(op, (2, 4, 5, 5), 4, form=LAST)
    numbers = ([1, 1], [1, 1], [1, 1], 1)
    given |= {"z": torch.randn(2, 4, 5, 5)} if "z" in given else {}
    opcheck(
        getattr(torch.ops.fuseline, op), (*(t.requires_grad_() for t in given.values()), *numbers)
    )
    plain = [t.detach() for t in given.values()]
    y = torch.randn(2, 4, 5, 5)
    saved = () if op == "conv_add" else (y,)
    needs = (True,) * len(plain)
    bwd = getattr(torch.ops.fuseline, f"_{op}_bwd__aten")
    opcheck(bwd, (y, *saved, *plain[:2], *numbers, *needs))
    opcheck(getattr(torch.ops.fuseline, f"_{op}__aten"), (*plain, *numbers))


def test_what_was_good_once_does_not_let_other_arguments_pass() -> None:
    given = tensors("conv_add_relu")
    fuseline.conv_add_relu(**given)
    for change, words in (
        ({"z": given["z"][:, :1]}, "z has shape"),
        ({"bias": given["bias"][:1]}, "bias has shape"),
        ({"padding": 1}, "z has shape"),
    ):
        with pytest.raises(ValueError, match=rf"conv_add_relu: {words}"):
            fuseline.conv_add_relu(**{**given, **change})
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64"):
        fuseline.conv_add_relu(**{n: t.long() for n, t in given.items()})


def why_not(impl: str, op: str, given: dict[str, Tensor], **numbers: Any) -> str | None:
    """Why an implementation does not serve a call on the device that it is of."""
    there = {n: FakeTensor(FakeTensorMode(), t.to("meta"), torch.device("cuda"))
             for n, t in given.items()}  # fmt: skip
    told = asked(getattr(fuseline, op), **there, **numbers)
    refuse = told.selector.choice(impl).unsupported
    assert refuse is not None
    return refuse("fwd", *told.call)


@pytest.mark.parametrize("op", OPS[1:])
def test_cudnn_says_what_it_does_not_serve(op: str) -> None:
    assert why_not("cudnn", op, tensors(op)) is None
    wide = tensors(op, dtype=torch.float64)
    assert "float64" in str(why_not("cudnn", op, wide))
    assert why_not("cudnn", op, tensors(op, groups=2), groups=2) is None
    alone = tensors(op, groups=8)
    assert "single channels" in str(why_not("cudnn", op, alone, groups=8))
    volume = tensors(op, (1, 2, 4, 4, 4), 4, (2, 2, 2))
    assert "5 dimensions" in str(why_not("cudnn", op, volume))
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic" in str(why_not("cudnn", op, tensors(op)))
    finally:
        torch.use_deterministic_algorithms(False)


def test_onednn_adds_z_to_channels_last_and_keeps_nan() -> None:
    last, plain = tensors("conv_add_relu", form=LAST), tensors("conv_add_relu")
    assert fuseline.explain_choice(fuseline.conv_add_relu, **last).fwd.impl == "onednn"
    assert fuseline.explain_choice(fuseline.conv_add_relu, **plain).fwd.impl == "aten"
    with pytest.raises(RuntimeError, match="impl 'onednn' cannot run here: it adds z"):
        fuseline.conv_add_relu(**plain, impl="onednn")
    for dtype in (torch.float32, torch.bfloat16):
        given = {n: t.to(dtype) for n, t in last.items()}
        given["z"][0, 0, 0, 0] = torch.nan
        found = computed("conv_add_relu", given, {}, impl="onednn")[0]
        assert found.isnan().sum() == 1
        wanted = exact("conv_add_relu", given, {})[0]
        assert error(found.nan_to_num(), wanted.nan_to_num()) < 4
