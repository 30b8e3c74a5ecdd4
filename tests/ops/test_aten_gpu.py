"""aten on a GPU: torch's kernels on what our forward saves, and that it is they who run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from ops.on_a_gpu import kernels, misaligned
from torch import Tensor

import fuseline
from fuseline.core.selection import rules, tuned
from fuseline.ops.layer_norm.op import SELECTOR as LAYER_NORM
from fuseline.ops.log_softmax.op import SELECTOR as LOG_SOFTMAX
from fuseline.ops.rms_norm.op import SELECTOR as RMS_NORM
from fuseline.ops.softmax.op import SELECTOR as SOFTMAX

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SELECTORS = {s.op: s for s in (LAYER_NORM, LOG_SOFTMAX, RMS_NORM, SOFTMAX)}
PARAMETERS = {"softmax": (0,), "log_softmax": (0,), "rms_norm": (0, 1), "layer_norm": (0, 1, 2)}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture
def only_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have "auto" run our forward and torch's backward."""
    monkeypatch.setenv(tuned.FOLDER, str(tmp_path))
    one = {"direction": "bwd", "where": {}, "impl": ["aten"], "evidence": {"run": "none"}}
    for op, selector in SELECTORS.items():
        file = rules.user_file(op, rules.machine("cuda"))
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"rules": [one]}))
        selector._forget()
    yield
    monkeypatch.undo()
    for selector in SELECTORS.values():
        selector._forget()


def results(op: str, impl: str, dy: Tensor, *tensors: Tensor) -> list[Tensor]:
    given = [t.detach().requires_grad_() for t in tensors]
    y = getattr(fuseline, op)(*given, impl=impl)
    return [y, *torch.autograd.grad(y, given, dy)]


def are_ours(call: Callable[[], object]) -> set[bool]:
    """Return whether the kernels of a call are ours."""
    return {"fuseline" in name for name in kernels(call) if name.startswith("void")}


@pytest.mark.usefixtures("only_backward")
@pytest.mark.parametrize("impl", ["aten", "auto"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(SELECTORS))
def test_beside_fp64(op: str, dtype: torch.dtype, impl: str) -> None:
    for shape, offset in (((5, 77), 1), ((300, 1024), 0), ((7, 4099), 3), ((2, 3, 20001), 0)):
        x, dy = misaligned(shape, offset, dtype), misaligned(shape, offset, dtype)
        for count in PARAMETERS[op]:
            more = [torch.randn(shape[-1], dtype=dtype, device="cuda") for _ in range(count)]
            found = results(op, impl, dy, x, *more)
            expected = results(op, "cuda", dy.double(), x.double(), *(t.double() for t in more))
            for a, b in zip(found, expected, strict=True):
                assert a.dtype == dtype
                scale = b.abs().max().item()
                assert (a.double() - b).abs().max().item() <= 16 * torch.finfo(dtype).eps * scale


@pytest.mark.usefixtures("only_backward")
@pytest.mark.parametrize("op", list(SELECTORS))
def test_each_direction_runs_the_kernels_that_were_picked(op: str) -> None:
    x = torch.randn(64, 1000, device="cuda", requires_grad=True)
    public, dy = getattr(fuseline, op), torch.randn_like(x)
    y = public(x)
    assert are_ours(lambda: public(x)) == {True}
    assert are_ours(lambda: torch.autograd.grad(y, x, dy, retain_graph=True)) == {False}
    assert are_ours(lambda: public(x, impl="aten")) == {False}


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_parameters_of_another_dtype_are_refused(op: str) -> None:
    x, weight = torch.randn(4, 64, device="cuda").half(), torch.randn(64, device="cuda")
    with pytest.raises(RuntimeError, match="'aten' cannot run here: weight has dtype"):
        getattr(fuseline, op)(x, weight, impl="aten")


@pytest.mark.usefixtures("given_back")
@pytest.mark.parametrize("op", list(SELECTORS))
def test_it_stays_torchs_while_ours_takes_over(op: str) -> None:
    x, dy = torch.randn(9, 500, device="cuda"), torch.randn(9, 500, device="cuda")
    before = results(op, "aten", dy, x)
    fuseline.enable()
    served = fuseline.status().served
    assert all(map(torch.equal, results(op, "aten", dy, x), before))
    assert fuseline.status().served == served


@pytest.mark.usefixtures("only_backward")
def test_compiled_and_in_a_graph() -> None:
    x = torch.randn(64, 1000, device="cuda", requires_grad=True)
    call = torch.compile(fuseline.softmax, fullgraph=True)
    dy = torch.randn_like(x)
    grads = [torch.autograd.grad(fn(x), x, dy)[0] for fn in (call, fuseline.softmax)]
    assert torch.equal(*grads)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(fuseline.softmax(x), x, dy)[0]
    graph.replay()
    assert torch.equal(captured, grads[0])
