"""enable(), disable() and status() beside kernels that others registered over ATen's."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import MARKS, calls

import fuseline
from fuseline.core.registration.overrides import Override

pytestmark = [*MARKS, pytest.mark.usefixtures("given_back")]
NAME = "_fused_rms_norm"
HERE = "test_takeover_overrides.py"
X = torch.randn(4, 64)
REGISTRY = importlib.util.find_spec("torch._native")
of_torch = pytest.mark.skipif(REGISTRY is None, reason="torch has such a registry since 2.13")


def overridden() -> list[Override]:
    return [o for o in fuseline.status().overridden if o.device == "cpu"]


def enabled(op: str) -> bool:
    return any(s.enabled for s in fuseline.status().served if (s.op, s.device) == (op, "cpu"))


@pytest.fixture
def library() -> Iterator[Callable[[], list[int]]]:
    """Register over ATen's softmax: library() returns what notes the calls."""
    made = []

    def register() -> list[int]:
        noted: list[int] = []

        def kernel(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
            noted.append(dim)
            return torch.zeros_like(x)

        made.append(torch.library.Library("aten", "IMPL", "CPU"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made[-1].impl("_softmax", kernel, "CPU")
        return noted

    yield register
    for one in made:
        one._destroy()


def served(op: str, name: str, call: Callable[[], object]) -> int:
    """Return how many calls of ATen's operator our kernels serve in a call."""
    before = calls("cpu", name)
    call()
    return calls("cpu", name) - before


def softmax() -> torch.Tensor:
    return torch.softmax(X, 1)


def test_a_kernel_of_another_library_is_named_and_comes_back(library: Any) -> None:
    assert overridden() == []
    noted = library()
    (found,) = overridden()
    assert (found.name, found.by, found.above) == ("_softmax", HERE, False)
    assert f"aten::_softmax on cpu is {HERE}'s kernel: it serves what" in str(fuseline.status())
    fuseline.enable("softmax")
    assert served("softmax", "_softmax", softmax) == 1
    assert noted == []
    fuseline.disable()
    assert served("softmax", "_softmax", softmax) == 0
    assert noted == [1]


def test_what_is_registered_after_enable_is_said_and_taken_over_again(library: Any) -> None:
    fuseline.enable("softmax")
    noted = library()
    assert served("softmax", "_softmax", softmax) == 0
    assert noted == [1]
    assert not enabled("softmax")
    assert [o.above for o in overridden()] == [True]
    assert "registered after enable(), it serves the calls" in str(fuseline.status())
    fuseline.enable("softmax")
    assert served("softmax", "_softmax", softmax) == 1
    assert enabled("softmax")
    assert [o.above for o in overridden()] == [False]
    fuseline.disable()
    assert served("softmax", "_softmax", softmax) == 0
    assert noted == [1, 1]


def test_a_block_inside_of_one_comes_on_top_too(library: Any) -> None:
    with fuseline.enabled("softmax"):
        library()
        with fuseline.enabled("softmax"):
            assert served("softmax", "_softmax", softmax) == 1


@pytest.fixture
def vendored() -> Iterator[list[int]]:
    """A kernel in torch's own registry, for rows of less than 65 elements, as cutedsl's is."""
    registry = importlib.import_module("torch._native.registry")
    noted: list[int] = []

    def kernel(x: Any, shape: Any, weight: Any, eps: Any) -> Any:
        noted.append(x.shape[-1])
        return torch.zeros_like(x), torch.zeros(*x.shape[:-1], 1)

    few = lambda x, *rest: x.shape[-1] < 65  # noqa: E731
    registry.register_op_override("cutedsl", "aten", NAME, "CPU", few, kernel)
    kernels().enable_operations(NAME)
    yield noted
    kernels().disable_operations(NAME)
    for key in [key for key in registry._graphs if NAME in key]:
        del registry._graphs[key]
    kernels().enable_operations(NAME)


def kernels() -> Any:
    return importlib.import_module("torch.backends.python_native")


def rms_norm(x: torch.Tensor = X) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-5)


def _is_right(x: torch.Tensor) -> bool:
    wanted = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return torch.allclose(rms_norm(x), wanted, atol=1e-5)


@of_torch
def test_torchs_own_override_is_named(vendored: list[int]) -> None:
    (found,) = overridden()
    assert (found.name, found.above) == (NAME, False)
    assert found.by.startswith("torch's cutedsl")
    assert served("rms_norm", NAME, rms_norm) == 0
    assert vendored == [64]
    said = f"aten::{NAME} on cpu is torch's cutedsl's kernel: it serves what fuseline does not"
    assert said in str(fuseline.status())
    with fuseline.enabled("rms_norm"):
        assert served("rms_norm", NAME, rms_norm) == 1
    assert vendored == [64]


@of_torch
@pytest.mark.parametrize("again", [True, False])
def test_torchs_own_registers_again_over_ours(vendored: list[int], again: bool) -> None:
    fuseline.enable("rms_norm")
    kernels().cutedsl.disable()
    assert served("rms_norm", NAME, rms_norm) == 1
    kernels().cutedsl.enable()
    assert not enabled("rms_norm")
    assert served("rms_norm", NAME, rms_norm) == 0
    wide = torch.randn(3, 100)
    assert served("rms_norm", NAME, lambda: rms_norm(wide)) == 1, "what theirs hands on is ours"
    if again:
        fuseline.enable("rms_norm")
        assert served("rms_norm", NAME, rms_norm) == 1
        assert _is_right(X)
    fuseline.disable()
    vendored.clear()
    assert served("rms_norm", NAME, rms_norm) == 0
    assert vendored == [64]
    # The kernel that theirs handed on to was ours, and is gone.
    assert _is_right(wide)


BOUND_AT_IMPORT = """
import importlib, torch
registry = importlib.import_module("torch._native.registry")
kernels = importlib.import_module("torch.backends.python_native")
registry.register_op_override("cutedsl", "aten", "_softmax", "CPU", lambda *args: True,
                              lambda x, dim, half: torch.zeros_like(x))
kernels.enable_operations("_softmax")
import fuseline
x = torch.randn(3, 5)
assert not fuseline.softmax(x, impl="aten").any()
with fuseline.enabled("softmax"):
    kernels.cutedsl.disable()
    try:
        fuseline.softmax(x, impl="aten")
    except RuntimeError as error:
        print(error)
y = fuseline.softmax(x, impl="aten")
torch.testing.assert_close(y, x.double().softmax(1).float())
assert torch.equal(y, fuseline.softmax(x, impl="aten"))
"""


@of_torch
def test_impl_aten_outlives_torchs_override() -> None:
    command = [sys.executable, "-W", "ignore", "-c", BOUND_AT_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch has registered another kernel of aten::_softmax on cpu since" in done.stdout
