"""ATen's operators on our kernels: right for all that ATen takes, counted, and given back."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import DEVICES, MARKS, calls, gradients
from torch import Tensor

import fuseline
from fuseline import table, takeover
from fuseline.testing import check
from fuseline.testing.oracle.accuracy import ulp

FWD, BWD = "_fused_rms_norm", "_fused_rms_norm_backward"
pytestmark = MARKS


def dispatch(name: str) -> str:
    return str(torch._C._dispatch_dump_table(f"aten::{name}"))


@pytest.mark.parametrize("device", DEVICES)
def test_the_checker_finds_nothing_in_torchs_own_operator(device: str) -> None:
    before = calls(device, FWD), calls(device, BWD)
    with fuseline.enabled():
        report = check(table.load()["rms_norm"], ["native"], device=device, level="quick")
    assert report.ok, str(report)
    assert calls(device, FWD) > before[0] + 1000
    assert calls(device, BWD) > before[1] + 500


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eps", [None, 0.0, 1e-5, -1e-3])
@pytest.mark.parametrize(
    ("shape", "count"), [((5,), 1), ((3, 61), 1), ((2, 3, 4, 5), 2), ((4, 5), 2), ((0, 8), 1)]
)
def test_all_that_aten_takes(
    device: str, dtype: torch.dtype, eps: float | None, shape: tuple[int, ...], count: int
) -> None:
    x = torch.randn(shape, device=device).to(dtype).requires_grad_()
    weight = torch.randn(shape[-count:], device=device).to(dtype).requires_grad_()
    # Without a value ATen takes the epsilon of the type that it computes in.
    least = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    wanted = F.rms_norm(exact[0], shape[-count:], exact[1], least if eps is None else eps)
    with fuseline.enabled():
        found = F.rms_norm(x, shape[-count:], weight, eps)
        assert found.numel() == 0 or "FusedRmsNorm" in str(found.grad_fn)
        grads = gradients(found, x, weight)
    assert (found.dtype, found.shape) == (dtype, x.shape)
    gap = (found.double() - wanted).abs() / ulp(wanted, dtype)
    # What fp64 is held against is fp64 as well; the checker has better.
    limit = {torch.float64: 32, torch.float32: 4}.get(dtype, 0.51)
    assert gap.numel() == 0 or gap.max() < limit
    tolerance = 64 * torch.finfo(dtype).eps
    for grad, good in zip(grads, gradients(wanted, *exact), strict=True):
        torch.testing.assert_close(grad.double(), good, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_whose_mean_is_less_than_a_negative_eps_are_nan_as_in_torch(device: str) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.tensor([[0.1, -0.1], [1.0, 2.0], [1.0, -1.0]], device=device, dtype=dtype)
        for eps in (-1.0, -1e9):
            with fuseline.enabled():
                found = F.rms_norm(x, (2,), None, eps)
            torch.testing.assert_close(found, F.rms_norm(x, (2,), None, eps), equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_odd_layouts_of_inputs_and_gradients(device: str) -> None:
    x = torch.randn(6, 4, 5, device=device).transpose(0, 2).requires_grad_()
    weight = torch.randn(8, device=device)[::2].requires_grad_()
    with fuseline.enabled():
        narrow = F.rms_norm(x[..., :4], (4,), weight)
        wide = F.rms_norm(x, (4, 6))
    for y, leaves in ((narrow, (x, weight)), (wide, (x,))):
        for dy in (torch.ones((), device=device).expand(y.shape), torch.randn_like(y).mT.mT):
            grads = torch.autograd.grad(y, leaves, dy, retain_graph=True)
            again = F.rms_norm(x[..., :4], (4,), weight) if y is narrow else F.rms_norm(x, (4, 6))
            for a, b in zip(grads, torch.autograd.grad(again, leaves, dy), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_it_nests_and_gives_back_what_was_there(device: str) -> None:
    fuseline.enable()
    fuseline.disable()  # from here on ATen's backward for the CPU is ours to stay
    before = dispatch(FWD), dispatch(BWD)
    x = torch.randn(3, 8, device=device)

    def served() -> bool:
        count = calls(device, FWD)
        F.rms_norm(x, (8,))
        return calls(device, FWD) > count

    assert not served()
    with fuseline.enabled(), fuseline.enabled(["rms_norm"]):
        fuseline.enable("rms_norm")
        assert served()
    assert (dispatch(FWD), dispatch(BWD)) == before
    with pytest.raises(KeyError), fuseline.enabled():
        raise KeyError
    assert not served()
    assert (dispatch(FWD), dispatch(BWD)) == before
    fuseline.enable()
    with fuseline.enabled():
        pass
    assert served(), "the inner one found it enabled, and leaves it so"
    with fuseline.enabled():
        fuseline.disable()
        assert not served()
    assert served()


def test_what_is_slower_for_it_is_taken_over_by_name_alone() -> None:
    def on() -> set[tuple[str, str]]:
        return {(s.op, s.device) for s in fuseline.status().served if s.enabled}

    known = {(s.op, s.device) for s in fuseline.status().served}
    with fuseline.enabled():
        assert on() == known - takeover.BY_NAME.keys()
        with fuseline.enabled(op for op, _ in takeover.BY_NAME):
            assert on() == known
    assert on() == set()


def test_status_says_what_is_left_to_aten_and_why() -> None:
    status = fuseline.status()
    known = {(s.op, s.device) for s in status.served}
    unless_named = {(s.op, s.device) for s in status.left if "unless it is named" in s.calls}
    assert unless_named == known & takeover.BY_NAME.keys()
    # An operator on a kind of device that torch has kernels for is served, or left with a reason.
    devices = {"cpu", "cuda"} if torch.backends.cuda.is_built() else {"cpu"}
    everywhere = {(op, device) for op in takeover.TAKEOVERS for device in devices}
    wholly = {(s.op, s.device) for s in status.left if s.calls == "all calls"}
    assert (known | wholly, known & wholly) == (everywhere, set())
    lines = str(status).splitlines()
    for left in status.left:
        assert left.why
        assert str(left) in lines
    with fuseline.enabled():
        assert not unless_named & {(s.op, s.device) for s in fuseline.status().served if s.enabled}


@pytest.mark.parametrize("device", DEVICES)
def test_graphs_outlive_it_and_differentiate_twice(device: str) -> None:
    x = torch.randn(3, 8, device=device, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, device=device, dtype=torch.float64, requires_grad=True)
    with fuseline.enabled():
        y = F.rms_norm(x, (8,), weight)
        assert torch.autograd.gradcheck(lambda a, b: F.rms_norm(a, (8,), b), (x, weight))
        assert torch.autograd.gradgradcheck(lambda a, b: F.rms_norm(a, (8,), b), (x, weight))
        dot = torch.func.jvp(lambda a: F.rms_norm(a, (8,)), (x,), (torch.ones_like(x),))[1]
        many = torch.vmap(lambda a: F.rms_norm(a, (8,), weight))(x.expand(2, 3, 8))
    wanted = F.rms_norm(x, (8,), weight)
    torch.testing.assert_close(many[1], wanted)
    plain = torch.func.jvp(lambda a: F.rms_norm(a, (8,)), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(dot, plain)
    for a, b in zip(gradients(y, x, weight), gradients(wanted, x, weight), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast(device: str) -> None:
    x = torch.randn(3, 8, device=device, dtype=torch.bfloat16)
    weight = torch.randn(8, device=device)

    def run() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return F.rms_norm(x, (8,), weight.bfloat16())

    with fuseline.enabled():
        found = run()
    wanted = run()
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_modules_run_on_it_and_compiled_code_does_not(device: str) -> None:
    module = torch.nn.RMSNorm(8, eps=1e-6, device=device)
    x = torch.randn(3, 8, device=device)
    wanted = module(x)
    with fuseline.enabled():
        before = calls(device, FWD)
        torch.testing.assert_close(module(x), wanted)
        assert calls(device, FWD) == before + 1
        compiled = torch.compile(module)
        compiled(x)
        before = calls(device, FWD)
        torch.testing.assert_close(compiled(x), wanted)
        assert calls(device, FWD) == before
    assert "torch.compile" in str(fuseline.status())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.rms_norm(torch.ones(3, 8, dtype=torch.int32), (8,)), "x must be float64"),
        (lambda: torch.ops.aten._fused_rms_norm(torch.ones(3, 8), (7,), None, None), "[7]"),
        (lambda: torch.ops.aten._fused_rms_norm(torch.ones(3, 8), (), None, None), "[]"),
        (
            lambda: torch.ops.aten._fused_rms_norm(torch.ones(8), (2, 4), None, None),
            "has shape [8]",
        ),
        (
            lambda: torch.ops.aten._fused_rms_norm(torch.ones(2, 4), (2, 4), torch.ones(8), None),
            "weight has shape [8]",
        ),
    ],
)
def test_what_no_kernel_takes_is_named(call: Any, words: str) -> None:
    with fuseline.enabled(), pytest.raises(RuntimeError) as caught:
        call()
    assert words in str(caught.value)


def test_another_torch_or_no_binary_is_refused_before_anything_changes(monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match="ops: got 'relu', expected names among: rms_norm, layer"):
        fuseline.enable(["softmax", "relu"])
    with monkeypatch.context() as patch:
        patch.setattr(takeover, "TAKEOVERS", {"rms_norm": {FWD: "aten::other() -> ()"}})
        with pytest.raises(RuntimeError, match=r"torch .*found aten::_fused.*expected aten::other"):
            fuseline.enable()
    with monkeypatch.context() as patch:
        missing = takeover.native.Native("missing", "no libfuseline.so", "rebuild it")
        patch.setattr(takeover.native, "status", lambda: missing)
        with pytest.raises(RuntimeError, match=r"missing.*rebuild it"):
            fuseline.enable()
        assert fuseline.status().served == ()
        assert {left.op for left in fuseline.status().left} == set(takeover.TAKEOVERS)
        assert "rebuild it" in str(fuseline.status())
    assert not any(s.enabled for s in fuseline.status().served)


QUIET = """
import sys, warnings, torch, fuseline
warnings.simplefilter("error")
for _ in range(2):
    with fuseline.enabled():
        torch.nn.functional.rms_norm(torch.randn(3, 8, device=sys.argv[1]), (8,))
"""


@pytest.mark.parametrize("device", DEVICES)
def test_torch_says_nothing_of_an_overridden_kernel(device: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET, device], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_opens_no_file_and_leaves_stderr_alone() -> None:
    code = """
import os, resource
import torch, fuseline
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
before = os.fstat(2)
with fuseline.enabled():
    assert os.fstat(2) == before
    print(fuseline.status().served[0].enabled)
"""
    environment = {**os.environ, "TMPDIR": "/nowhere", "HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.gpu
def test_a_captured_graph_replays_on_new_contents() -> None:
    x, weight = torch.randn(64, 1027, device="cuda"), torch.randn(1027, device="cuda")
    with fuseline.enabled():
        F.rms_norm(x, (1027,), weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = F.rms_norm(x, (1027,), weight)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, F.rms_norm(x, (1027,), weight))


@pytest.mark.gpu
def test_torchs_own_kernel_is_back_bit_by_bit() -> None:
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = F.rms_norm(x, (4096,))
        with fuseline.enabled():
            F.rms_norm(x, (4096,))
        after = F.rms_norm(x, (4096,))
    assert torch.equal(before, after)
    assert torch.equal(*(gradients(y, x)[0] for y in (before, after)))
