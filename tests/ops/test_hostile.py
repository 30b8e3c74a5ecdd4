"""Whatever a raw operator is given, it gives the right result or refuses by the argument's name.

hostile.py draws the arguments and makes the calls, in a child that may die of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ops.hostile_results import compare
from torch import Tensor

import fuseline  # noqa: F401

CHILD = Path(__file__).with_name("hostile.py")
SEED = os.environ.get("FUSELINE_HOSTILE_SEED")
FRESH = random.SystemRandom().randrange(1 << 32)
DEATHS = 5

# Refusals of torch's own: of the schema's parser and the dispatcher before an operator of ours is
# asked, of memory, and of its nested and inference tensors. Where one argument is fake, its mode
# asserts what it wants of the others before we see them.
OF_TORCH = re.compile(
    r"\(\) Expected a value of type"
    r"|There were no tensor arguments to this function"
    r"|from the 'QuantizedMeta' backend"  # has no name under which one could register a refusal
    r"|\"neg_conj_cpu\" not implemented for 'ComplexHalf'"
    r"|DefaultCPUAllocator: can't allocate memory"
    r"|std::bad_alloc"
    r"|Storage size calculation overflowed"
    r"|Multiple dispatch failed for 'torch\._ops\.fuseline"
    r"|^fuseline\.\w+\.default$"  # a jagged tensor made in inference mode
    r"|quantized nyi in meta tensors"
    r"|already associated to a python object of type FakeTensor"
    r"|NestedTensorImpl doesn't support sizes"  # of a fake mode, which makes all fake
    r"|unsupported operand type\(s\) for @: '(Plain|FakeTensor)' and '(Plain|FakeTensor)'"
    r"|its data is not allocated yet"  # of a subclass whose storage was freed
    r"|Inference tensors cannot be saved for backward"
    r"|Cannot set version_counter for inference tensor"
)
# Of a C++ check, torch says where it stands.
PLACE = re.compile(r"^\w+, fuseline/[\w/.]+:\d+, ")


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        # One in some 100,000 calls finds a refusal of torch's own that OF_TORCH does not know: too
        # many for a suite that everybody runs.
        pytest.param(32, 8_000, marks=pytest.mark.slow),
        pytest.param(FRESH, 100_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
    ids=["fixed", "fresh"],
)
def test_hostile_arguments(seed: int, count: int, tmp_path: Path) -> None:
    seed = int(SEED or seed)
    faults = list(_faults(seed, count, tmp_path / "log"))
    repeat = f"repeat one: python tests/ops/hostile.py {seed} NUMBER 1 LOG"
    assert not faults, "\n".join([*faults[:20], f"{len(faults)} of {count}; {repeat}"])


def _faults(seed: int, count: int, log: Path) -> Iterator[str]:
    """What is wrong with the calls, each by its number and in words."""
    yield from _deaths(seed, count, log)
    words: dict[int, str] = {}
    ended = 0
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        number = entry["number"]
        words[number] = entry.get("call", words.get(number, ""))
        ended += "call" not in entry and "made" not in entry
        if fault := _fault(words[number], entry):
            yield f"{number}: {words[number]}: {fault}"
    if ended < count - DEATHS:
        yield f"{ended} calls ended, expected {count}"


def _deaths(seed: int, count: int, log: Path) -> Iterator[str]:
    """Make the calls in one child after the other, and say which call each of them died of."""
    first = 0
    for _ in range(DEATHS):
        command = [sys.executable, str(CHILD), str(seed), str(first), str(count - first), str(log)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        assert log.exists(), done.stderr
        last = json.loads(log.read_text().splitlines()[-1])
        yield f"{last}: died of signal {-done.returncode}: {done.stderr[-2000:]}"
        first = last["number"] + 1


def _fault(words: str, entry: dict[str, Any]) -> str | None:
    if "broken" in entry or entry.get("wrong"):
        return entry.get("broken") or entry["wrong"]
    if "refused" not in entry or OF_TORCH.search(entry["words"]):
        return None
    if "] fake" in words and entry["refused"] == "AssertionError":
        return None
    name = words.split(": ")[0].removeprefix("fuseline::")
    op = getattr(torch.ops.fuseline, name).default
    arguments = "|".join(a.name for a in op._schema.arguments)
    own = name.partition("__")[0].removeprefix("_")
    ours = rf"({own}|{re.sub('_(fwd|bwd)$', '', own)}): (({arguments}) |impl '\w+' cannot run)"
    said = PLACE.sub("", entry["words"])
    return None if re.match(ours, said) else f"refused by {entry['refused']}: {said}"


def test_the_words_of_a_refusal_are_judged() -> None:
    def fault(error: str) -> str | None:
        entry = {"number": 1, "refused": "RuntimeError", "words": error}
        return _fault("fuseline::_rms_norm_bwd__triton: [0] flat", entry)

    assert fault("check_kind, fuseline/core/cpp/norm_args.h:9, rms_norm: dy must be x") is None
    assert fault("rms_norm: weight has shape (3,), expected (4,)") is None
    assert fault("rms_norm: a tensor is of another shape") is not None
    assert fault("index out of range") is not None


def _added_in_another_order(a: Tensor, b: Tensor, change: Callable[[Tensor], Tensor]) -> str | None:
    """What is said of changed results of a product whose terms were added in another order."""
    op, bias = torch.ops.fuseline.matmul_add__aten.default, torch.zeros(b.shape[1])
    order = torch.arange(a.shape[1]).view(2, -1).T.flatten()
    result = change(op(a[:, order], b[order], bias))
    return compare("matmul_add__aten", op, [a, b, bias], (result,))


def test_sums_in_another_order_are_judged_by_the_size_of_their_terms() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 20), torch.randn(20, 5)
    twice, against = torch.cat((a, a + 1e-6), 1), torch.cat((b, -b))  # they cancel
    kept = _added_in_another_order(twice, against, lambda y: y)
    assert kept is None
    assert _added_in_another_order(twice, against, lambda y: y + 1e-3) is not None
    assert _added_in_another_order(a, b, lambda y: y) is None
    assert _added_in_another_order(a, b, lambda y: y + 1e-3) is not None


def test_what_overflows_is_nothing_in_particular_and_inf_is() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 20), torch.randn(20, 5)
    nan = lambda y: torch.full_like(y, torch.nan)  # noqa: E731
    assert _added_in_another_order(torch.full_like(a, 3e38), b, nan) is None
    assert _added_in_another_order(torch.full_like(a, 3e38), b * 1e-3, nan) is not None
    a[0, 0] = torch.inf
    assert _added_in_another_order(a, b, lambda y: y) is None
    assert _added_in_another_order(a, b, nan) is not None
