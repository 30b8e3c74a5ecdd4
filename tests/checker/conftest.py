"""Lets the tests here import their neighbours, keeps them on one core and their questions few."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def ask_only(monkeypatch):
    """Have the checker ask one question: what the others say of a wrong operator nobody reads."""
    module = importlib.import_module("fuseline.testing.check")  # `check` there is the function

    def only(name):
        for questions in (module.ON_EVERY_CASE, module.ON_SMALL_CASES, module.ONCE):
            for other in questions.keys() - {name}:
                monkeypatch.delitem(questions, other)

    return only
