"""Lets the tests here import their neighbours, and Triton's interpreter run loops."""

import sys
from pathlib import Path

import pytest

import fuseline

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def given_back():
    """Gives ATen's kernels back when the test has run."""
    yield
    fuseline.disable()


@pytest.fixture
def loop_bounds_under_numpy_2_4(monkeypatch):
    """triton 3.6 calls int() on arrays of one element, which numpy 2.4 refuses (triton #9171)."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
