"""Calls of the raw operators with arguments that no one means to give, by seed and number.

Run as a program it is the child that makes them: a line in the log before and after each call.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import resource
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from ops.hostile_results import compare
from ops.hostile_tensors import APART, LAST, MUTATIONS, leave_dual_level
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuseline import table
from fuseline.core import native
from fuseline.testing.oracle.accuracy import as_tuple, gradient_names

SMALLEST = 3
SECONDS = 60
MEMORY = 3 << 29

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, -2, 3, -7, 100, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**64, 0.0, 0.5, -0.0, 1e-6,
    1e300, -1e300, 1e-320, float("nan"), float("inf"), -float("inf"), True, False, None, "", "tanh",
    "none", "x", 1j, [], (1,),
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """An operator, its arguments, and in words what was done to them."""

    op: str
    args: list[Any]
    words: str

    def outcome(self) -> dict[str, Any]:
        """What became of it: refused with which words, or what is wrong with the results."""
        name = self.op.removeprefix("fuseline::")
        op = getattr(torch.ops.fuseline, name).default
        try:
            results = as_tuple(op(*self.args))
        except Exception as error:
            return {"refused": type(error).__name__, "words": str(error).split("\n")[0][:300]}
        return {"wrong": compare(name.removeprefix("_"), op, self.args, results)}


class Recorder(TorchDispatchMode):
    """Keeps the arguments of every operator of ours that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[list[Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "fuseline":
            kept = [a.detach().clone() if isinstance(a, Tensor) else a for a in args]
            self.calls.setdefault(func.name().split(".")[0], []).append(kept)
        return func(*args, **(kwargs or {}))


def good_calls() -> dict[str, list[list[Any]]]:
    """Arguments that each operator of ours takes, by its name: those of its smallest cases."""
    recorder = Recorder()
    for spec in table.load().values():
        public = next(
            i.fn for i in spec.implementations if i.role == "ours" and not i.unavailable("cpu")
        )
        cases = sorted(spec.cases, key=lambda c: _elements(spec, c))[:SMALLEST]
        for case in cases:
            for dtype in spec.dtypes:
                generator = torch.Generator().manual_seed(7)
                inputs = spec.make_inputs(case, dtype, torch.device("cpu"), generator)
                with recorder:
                    public(**inputs)
                names = gradient_names(spec, inputs)
                leaves = {n: inputs[n].clone().requires_grad_() for n in names}
                if leaves:
                    with recorder:
                        outputs = as_tuple(public(**{**inputs, **leaves}))
                        # A gradient of ones alone may cancel down to its rounding.
                        sum(y.cos().sum() for y in outputs if y.requires_grad).backward()
    alike: dict[str, list[list[Any]]] = {}
    for name, calls in recorder.calls.items():
        alike.setdefault(_family(name), []).extend(calls)
    return {name: alike[_family(name)] for name in sorted(native.operators())
            if name.startswith("fuseline::") and _family(name) in alike}  # fmt: skip


def _family(name: str) -> str:
    """What operators that take the same arguments have in common."""
    return name.removeprefix("fuseline::").removeprefix("_").partition("__")[0]


def _elements(spec: Any, case: Any) -> int:
    with torch._subclasses.FakeTensorMode():
        generator = torch.Generator().manual_seed(0)
        inputs = spec.make_inputs(case, spec.dtypes[0], torch.device("cpu"), generator)
    return max(v.numel() for v in inputs.values() if isinstance(v, Tensor))


class Calls:
    """The calls of a seed, each found from its number alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.good = good_calls()
        self.names = list(self.good)

    def call(self, number: int) -> Call:
        draw = random.Random(f"{self.seed}/{number}")
        torch.manual_seed(draw.getrandbits(32))
        op = draw.choice(self.names)
        args = list(draw.choice(self.good[op]))
        words: list[str] = []
        ended: set[int] = set()
        done: set[str] = set()
        for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
            at = draw.randrange(len(args))
            if at in ended:
                continue
            if not isinstance(args[at], Tensor) or draw.random() < 0.04:
                args[at] = draw.choice(NUMBERS)
                words.append(f"[{at}] = {args[at]!r}")
                continue
            name = draw.choice(sorted(MUTATIONS))
            if name in APART and done & (APART - {name}):
                continue
            try:
                args[at] = MUTATIONS[name](args[at], draw)
            except Exception:  # this tensor cannot be made so: torch's own refusal
                continue
            words.append(f"[{at}] {name}")
            done.add(name)
            if name in LAST:
                ended.add(at)
        return Call(op, args, f"{op}: {', '.join(words) or 'as it was'}")


def main(seed: int, first: int, count: int, log: str) -> None:
    warnings.simplefilter("ignore")
    gc.disable()
    faulthandler.enable()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    calls = Calls(seed)
    with open(log, "a", buffering=1) as out:
        for number in range(first, first + count):
            signal.alarm(SECONDS)
            try:
                out.write(json.dumps({"number": number, "made": False}) + "\n")
                made = calls.call(number)
                out.write(json.dumps({"number": number, "call": made.words}) + "\n")
                came = made.outcome()
            except Exception:
                came = {"broken": traceback.format_exc()}
            signal.alarm(0)
            leave_dual_level()
            out.write(json.dumps({"number": number, **came}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.stdout.flush()
    os._exit(0)
