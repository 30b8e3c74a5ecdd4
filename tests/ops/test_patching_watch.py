"""What a patched module watches, and the strides and the kinds of x that it serves."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops.norm_variants import C
from torch import Tensor, nn

import fuseline
from fuseline.core import native

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


class Norm(nn.Module):
    """Gemma's way: a helper, and a factor that the class has."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(C))
        self.eps = 1e-6

    def normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.normed(x) * self.weight * self.factor


def twice(self: Any, x: Tensor) -> Tensor:
    return x * 2.0


def test_a_helper_replaced_on_the_instance_ends_the_proof() -> None:
    norm, x = Norm(), torch.randn(5, C)
    own = copy.deepcopy(norm)
    fuseline.patch(norm)
    torch.testing.assert_close(norm(x), own(x))
    for module in (norm, own):
        vars(module)["normed"] = lambda x: 2.0 * x
    torch.testing.assert_close(norm(x), own(x))
    assert "its normed was replaced after patch" in str(fuseline.patch_status(norm))


@pytest.mark.parametrize(
    ("name", "value"), [("factor", 3.0), ("forward", twice), ("normed", twice)]
)
def test_a_class_that_changes_ends_the_proof(name: str, value: Any) -> None:
    kind: Any = type("OwnNorm", (Norm,), {})
    setattr(kind, name, getattr(Norm, name))
    norm, x = kind(), torch.randn(5, C)
    own = copy.deepcopy(norm)
    fuseline.patch(norm)
    torch.testing.assert_close(norm(x), own(x))
    setattr(kind, name, value)
    torch.testing.assert_close(norm(x), own(x))
    fuseline.unpatch(norm)
    fuseline.patch(norm)
    torch.testing.assert_close(norm(x), own(x))


def test_an_attribute_that_hides_one_of_the_class_ends_the_proof() -> None:
    norm, x = Norm(), torch.randn(5, C)
    y = norm(x)
    fuseline.patch(norm)
    norm.factor = 2.0
    torch.testing.assert_close(norm(x), 2 * y)
    (calls,) = fuseline.patch_status(norm).modules
    assert calls.own == {"its factor was changed after patch": 1}


class OfOneClass(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if type(self) is OfOneClass else x


class Endless(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super(type(self), self).forward(x)  # type: ignore[misc]


@pytest.mark.parametrize("kind", [OfOneClass, Endless])
def test_a_forward_that_asks_for_its_class_is_left_alone(kind: Any) -> None:
    norm = kind()
    assert not fuseline.patch(norm).replaced
    assert type(norm) is kind


class Final(Norm):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("no subclasses")


class Sealed(type):
    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        if name.startswith("Fuseline"):
            raise RuntimeError("sealed")
        return super().__new__(cls, name, bases, members)


class SealedNorm(Norm, metaclass=Sealed):
    pass


def test_a_class_that_refuses_subclasses() -> None:
    net = nn.Sequential(Final(), SealedNorm())
    report = fuseline.patch(net)
    assert report.replaced == (("0", "Final"),)
    why = "a subclass of SealedNorm raises RuntimeError: sealed"
    assert report.kept == (("1", "SealedNorm", why),)


class Reduced(Norm):
    def __reduce__(self) -> Any:
        return type(self), (), vars(self)


@pytest.mark.parametrize("made_by", [copy.copy, copy.deepcopy, lambda m: _pickled(m)])
def test_copies_of_a_class_with_its_own_reduce(made_by: Callable[[Any], Any]) -> None:
    norm, x = Reduced(), torch.randn(3, C)
    wanted = norm(x)
    fuseline.patch(norm)
    made = made_by(norm)
    torch.testing.assert_close(made(x), wanted)
    assert fuseline.patch_status(made).modules
    assert fuseline.unpatch(made) == 1
    assert type(made) is Reduced


def _pickled(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))  # noqa: S301 -- what was written the line before


def test_a_forward_that_was_bound_before_unpatch_still_runs() -> None:
    norm, x = Norm(), torch.randn(3, C)
    wanted = norm(x)
    fuseline.patch(norm)
    forward = norm.forward
    fuseline.unpatch(norm)
    torch.testing.assert_close(forward(x), wanted)


SHARED_ORDER = [
    lambda: torch.randn(7, C)[:, :],
    lambda: torch.randn(4, 3 * C)[:, C : 2 * C],
    lambda: torch.randn(1, C).expand(5, C),
    lambda: torch.randn(3, 4, 2 * C)[:, ::2, ::2],
]
OTHER_ORDER = [
    lambda: torch.randn(4, 6, C).transpose(0, 1),
    lambda: torch.randn(2, C, 4, 3).permute(0, 2, 3, 1),
    lambda: torch.randn(C, 7).t(),
    lambda: torch.randn(2, 3, 5, C).contiguous(memory_format=torch.channels_last),
    lambda: torch.randn(2, 5, 3, C).permute(2, 0, 1, 3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Norm, nn.RMSNorm, nn.LayerNorm])
def test_the_result_has_the_strides_that_the_module_gives(kind: Any, dtype: torch.dtype) -> None:
    own = (kind() if kind is Norm else kind(C)).to(dtype)
    patched = copy.deepcopy(own)
    fuseline.patch(patched, impl="cpu")
    for make in SHARED_ORDER + OTHER_ORDER:
        x = make().to(dtype)
        y, wanted = patched(x), own(x)
        assert y.stride() == wanted.stride(), x.stride()
        torch.testing.assert_close(y, wanted)
    (calls,) = fuseline.patch_status(patched).modules
    assert calls.served >= len(SHARED_ORDER), calls


def test_nested_tensors_run_the_modules_own_forward() -> None:
    norm = nn.LayerNorm(C)
    x = torch.nested.nested_tensor([torch.randn(3, C), torch.randn(5, C)])
    wanted = norm(x).to_padded_tensor(0.0)
    fuseline.patch(norm, impl="cpu")
    torch.testing.assert_close(norm(x).to_padded_tensor(0.0), wanted)


class LazyNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.UninitializedParameter(), 1e-6


class Empty(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))


@pytest.mark.parametrize(
    ("norm", "why"),
    [
        (LazyNorm(), "its parameters are not initialized: call it once first"),
        (Empty(), "its weight is empty"),
        (nn.LayerNorm(0), "its normalized_shape is (0,)"),
        (nn.RMSNorm((3, 0)), "its normalized_shape is (3, 0)"),
        (nn.RMSNorm([]), "its normalized_shape is ()"),
    ],
)
def test_a_norm_of_nothing_is_left_alone(norm: nn.Module, why: str) -> None:
    assert [reason for _, _, reason in fuseline.patch(nn.Sequential(norm)).kept] == [why]
