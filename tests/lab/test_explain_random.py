"""fuselab explain of functions that draw random numbers."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fuselab.explain.observe import explain
from fuselab.explain.record import Explanation, from_record
from fuselab.explain.target import Target
from fuselab.explain.text import to_text
from fuselab.explain.verdict import verdicts

DRAWS = torch.Generator().manual_seed(7)
NUMPYS = np.random.default_rng(5)
COUNTED = [0]
SEEDED = "; results are compared under one seed, with torch._inductor.config.fallback_random"
NEVER = (
    "random: eager's own second call differs, from equal seeds too; "
    "compiled results are not compared"
)


def dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.4, True) * 3


def bernoulli(x: torch.Tensor) -> torch.Tensor:
    return x + torch.bernoulli(torch.sigmoid(x))


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.normal_()


def own_generator(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(x.shape, generator=DRAWS)


def numpys(x: torch.Tensor) -> torch.Tensor:
    return x * NUMPYS.standard_normal()


def numpys_global(x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


def pythons_global(x: torch.Tensor) -> torch.Tensor:
    return x * random.gauss(0, 1)


def operating_systems(x: torch.Tensor) -> torch.Tensor:
    return x * int.from_bytes(os.urandom(4), "little")


def counting(x: torch.Tensor) -> torch.Tensor:
    COUNTED[0] += 1
    return x * COUNTED[0]


def drawn_in_vain(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3)
    return x + 1


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def wrong(x: torch.Tensor) -> torch.Tensor:
    y = F.dropout(x, 0.5, True)
    return y * 2 if torch.compiler.is_compiling() else y


def explained(function: Any) -> Explanation:
    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(n, 13, generator=torch.Generator().manual_seed(n)),)

    return explain(Target(function.__name__, function, inputs, (5, 9), ""), "cpu", "aot_eager")


@pytest.mark.parametrize(
    "function",
    [dropout, bernoulli, in_place, own_generator, numpys, numpys_global, pythons_global],
    ids=lambda function: function.__name__,
)
def test_a_random_function_is_compared_under_one_seed(function: Any) -> None:
    found = explained(function)
    assert found.random == f"random: eager's own second call differs{SEEDED}"
    assert found.random in verdicts(found)
    assert "differs from eager" not in to_text(found)
    for mode in found.modes:
        assert [(s.compared, s.difference) for s in mode.sizes] == [(True, 0.0)] * 2
    assert from_record(found.to_record()) == found


def test_a_random_function_that_comes_out_wrong_still_differs() -> None:
    found = explained(wrong)
    assert found.random.endswith(SEEDED)
    assert "static: differs from eager by more than 1e-05 at 5, 9" in verdicts(found)
    assert all((size.difference or 0) > 0.1 for size in found.modes[1].sizes)


@pytest.mark.parametrize("function", [operating_systems, counting], ids=lambda f: f.__name__)
def test_what_no_seed_repeats_is_not_compared(function: Any) -> None:
    found = explained(function)
    assert found.random == NEVER
    assert "differs from eager" not in to_text(found)
    assert to_text(found).count(" us, not compared") == 4


def test_numbers_that_change_nothing() -> None:
    found = explained(drawn_in_vain)
    assert found.random == f"random: eager's own second call may differ{SEEDED}"


def test_a_function_without_random_numbers_is_none() -> None:
    assert explained(plain).random == ""


@pytest.mark.usefixtures("plain_compiler")
def test_the_command_says_so_and_compares_the_compiler_too(tmp_path: Path, lab_here: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nSIZES = (5,)\n"
        "def inputs(n, device): return (torch.randn(n, 13, device=device),)\n"
        "def f(x): return torch.nn.functional.dropout(x, 0.4, True) * 3\n"
    )
    done = lab_here("explain", f"{file}:f", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    found = from_record(json.loads(done.stdout))
    assert found.random.endswith(SEEDED)
    assert len(found.modes) == 3
    for mode in found.modes:
        assert [s.compared and (s.difference or 0) < 1e-6 for s in mode.sizes] == [True]
    assert "compiled" in found.modes[1].kernels, "by Inductor"
    assert "random: eager's own second call differs" in to_text(found)
    assert "differs from eager" not in to_text(found)
