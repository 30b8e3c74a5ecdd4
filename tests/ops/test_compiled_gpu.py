"""Every operator of the table under torch.compile on a GPU, forward and backward, beside eager.

One function calls an operator on a case of each kind that its spec checks (masks, weights, flags),
so that an implementation is compiled once a mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from fuseline import table
from fuseline.core.specs.spec import Case, Inputs, OpSpec
from fuseline.testing.oracle.accuracy import gradient_names

# Of products, whose cases have no one shape, see test_matmul_gpu.py.
SPECS = {n: s for n, s in table.load().items() if "shape" in s.cases[0].args}
CELLS = [
    (name, impl.name)
    for name, spec in SPECS.items()
    for impl in spec.implementations
    if impl.role == "ours" and impl.name != "cpu"
]
ROWS = (9, 5, 7)  # of the cases that have so many; the first is compiled for

pytestmark = pytest.mark.gpu


def _cases(spec: OpSpec) -> list[Case]:
    """One case of several odd rows for each kind of arguments."""
    kinds: dict[Any, Case] = {}
    for case in spec.cases:
        shape = case.args["shape"]
        if "check" in case.suites and 20 < torch.Size(shape).numel() < 10000:
            rest = str({k: v for k, v in case.args.items() if k != "shape"})
            kinds[rest] = case
    return list(kinds.values())


def _inputs(spec: OpSpec, case: Case, rows: int, device: str) -> Inputs:
    """The inputs of a case, of which rows and their classes are the first `rows`."""
    where = torch.device(device)
    dtype = torch.float32 if torch.float32 in spec.dtypes else spec.dtypes[0]
    drawn = spec.make_inputs(case, dtype, where, torch.Generator(where).manual_seed(7))
    shape = case.args["shape"]
    return {
        n: v[:rows].clone()
        if n in spec.row_inputs
        and isinstance(v, Tensor)
        and len(shape) > 1
        and v.shape in (shape, shape[:-1])
        else v
        for n, v in drawn.items()
    }


def _step(fn: Callable[..., Any], given: Sequence[Inputs], train: bool, spec: OpSpec) -> Any:
    """The outputs of all calls and, if wanted, the gradients of their leaves."""
    names = [gradient_names(spec, inputs) if train else () for inputs in given]
    leaves = [
        {**inputs, **{n: inputs[n].detach().clone().requires_grad_() for n in own}}
        for inputs, own in zip(given, names, strict=True)
    ]
    torch.compiler.cudagraph_mark_step_begin()
    with torch.set_grad_enabled(train):
        outputs = fn(leaves)
    found = {f"call {i} out{j}": y for i, ys in enumerate(outputs) for j, y in enumerate(ys)}
    if train:
        generator = torch.Generator(next(iter(found.values())).device).manual_seed(11)
        live = [y for y in found.values() if y.requires_grad]
        dys = [torch.randn(y.shape, generator=generator, device=y.device).to(y) for y in live]
        wanted = {f"call {i} d{n}": leaves[i][n] for i, own in enumerate(names) for n in own}
        grads = torch.autograd.grad(live, list(wanted.values()), dys)
        found |= dict(zip(wanted, grads, strict=True))
    return {name: t.detach().float().clone() for name, t in found.items()}


def _off(got: dict[str, Tensor], want: dict[str, Tensor]) -> list[str]:
    wrong = []
    for name, right in want.items():
        finite = right[right.isfinite()]
        limit = 16 * torch.finfo(torch.float32).eps * (finite.abs().max() if len(finite) else 1)
        same = (got[name] == right) | (got[name].isnan() & right.isnan())
        off = torch.where(same, 0.0, (got[name] - right).abs()).max()
        if not off <= limit:
            wrong.append(f"{name} off by {off:.3g}, limit {limit:.3g}")
    return wrong


def compiled_beside_eager(name: str, impl: str, mode: str, dynamic: bool, device: str) -> list[str]:
    """What went wrong, a line each."""
    spec = SPECS[name]
    fn = spec.implementation(impl).fn

    def calls(given: Sequence[Inputs]) -> list[tuple[Tensor, ...]]:
        outputs = [fn(**inputs) for inputs in given]  # not by as_tuple, which torch cannot trace
        return [(y,) if isinstance(y, Tensor) else tuple(y) for y in outputs]

    cases, wrong = _cases(spec), []
    for train in (False, True):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(calls, mode=mode, dynamic=dynamic, fullgraph=True)
        for rows in ROWS if dynamic else ROWS[:1]:
            given = [_inputs(spec, case, rows, device) for case in cases]
            if train and not any(gradient_names(spec, inputs) for inputs in given):
                continue
            want = _step(calls, given, train, spec)
            for _ in range(3):  # a CUDA graph is recorded in the second call
                found = _off(_step(compiled, given, train, spec), want)
            wrong += [f"train={train} {rows} rows: {reason}" for reason in found]
        graphs, skips = counters["stats"]["unique_graphs"], counters["inductor"]["cudagraph_skips"]
        if graphs > 1 + dynamic:
            wrong.append(f"train={train}: {graphs} graphs")
        if mode == "reduce-overhead" and skips:
            wrong.append(f"train={train}: {skips} CUDA graphs skipped")
    return wrong


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize(("name", "impl"), CELLS)
def test_compiled_equals_eager(
    name: str, impl: str, mode: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inductor lays convolutions out anew, which then take other kernels: of TF32, by default.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if reason := SPECS[name].implementation(impl).unavailable("cuda"):
        pytest.skip(reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wrong = compiled_beside_eager(name, impl, mode, dynamic, "cuda")
        except Exception as error:
            wrong = [f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}"]
    if wrong:
        pytest.fail("\n".join(wrong[:6]), pytrace=False)
