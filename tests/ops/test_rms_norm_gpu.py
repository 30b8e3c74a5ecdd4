"""RMSNorm on a GPU: which kernel ran, streams, graphs, devices, sizes, and Triton under compile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ops.on_a_gpu import kernels
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch.library import opcheck

import fuseline
from fuseline.core.selection import tuned
from fuseline.ops.rms_norm import reference

triton = pytest.importorskip("triton")

from fuseline.ops.rms_norm import impl_triton  # noqa: E402
from fuseline.primitives.triton import launch  # noqa: E402

OPS = torch.ops.fuseline
IMPLS = ["cuda", "triton"]

pytestmark = pytest.mark.gpu


def _assert_right(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None) -> None:
    expected = reference.rms_norm(x.double(), None if weight is None else weight.double(), 1e-6)
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(y.double(), expected, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize(
    ("n", "offset", "forward", "backward"),
    [
        (128, 0, "row_kernel<", "BwdShape<8, 1, false"),
        (512, 0, "row_kernel<", "BwdShape<8, 2, false"),
        (1024, 0, "row_kernel<", "BwdShape<8, 4, false"),
        (2048, 0, "row_kernel<", "BwdShape<8, 1, true"),
        (4096, 0, "row_kernel<", "BwdShape<8, 2, true, 512"),
        (8192, 0, "row_kernel<", "BwdShape<8, 2, true, 512"),
        (16384, 0, "row_kernel<", "BwdShape<8, 4, true, 512"),
        (32768, 0, "row_cluster_kernel", "bwd_grid_kernel<B, B"),
        (65536, 0, "row_cluster_kernel", "bwd_grid_kernel<B, B"),
        (131072, 0, "row_long_kernel", "bwd_grid_kernel<B, B"),
        (1 << 18, 0, "row_long_kernel", "bwd_grid_kernel<B, B"),
        (1 << 20, 0, "row_grid_kernel", "bwd_grid_kernel<B, B"),
        (1 << 22, 0, "row_grid_kernel", "bwd_long_sums_kernel"),
        (4096, 1, "row_short_kernel", "OddShape<8, 0, 512"),
        (1027, 0, "row_short_kernel", "OddShape<9, 128,"),
        (515, 0, "row_short_kernel", "OddShape<9, 128,"),
        (255, 0, "row_short_kernel", "OddShape<8, 32,"),
        (130, 0, "row_short_kernel", "OddShape<9, 16,"),
        (61, 0, "row_short_kernel", "OddShape<4, 16,"),
        (12001, 0, "row_short_kernel", "bwd_long_sums_kernel"),
        (40000, 1, "row_cluster_kernel", "bwd_long_sums_kernel"),
        (20000, 1, "row_cluster_kernel", "bwd_long_sums_kernel"),
    ],
)  # fmt: skip
def test_each_regime_runs_its_kernel_and_is_right(
    n: int, offset: int, forward: str, backward: str
) -> None:
    flat = torch.randn(5 * n + offset, device="cuda", dtype=torch.bfloat16)
    x = flat[offset:].view(5, n).requires_grad_()
    weight = torch.randn(n, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y = fuseline.rms_norm(x, weight, 1e-6, impl="cuda")
    _assert_right(y.detach(), x.detach(), weight.detach())
    dy = torch.randn_like(y)
    with torch.no_grad():
        assert any(forward in k for k in kernels(lambda: fuseline.rms_norm(x, weight, 1e-6)))
    names = kernels(lambda: torch.autograd.grad(y, (x, weight), dy, retain_graph=True))
    assert any(backward in k for k in names), names


@pytest.mark.parametrize("impl", IMPLS)
def test_runs_on_the_current_stream(impl: str) -> None:
    x = torch.randn(64, 4096, device="cuda")
    fuseline.rms_norm(x, None, 1e-6, impl=impl)
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        y = fuseline.rms_norm(late, None, 1e-6, impl=impl)
    torch.cuda.synchronize()
    _assert_right(y, x, None)


@pytest.mark.parametrize("impl", IMPLS)
def test_captured_graph_replays_on_new_contents(impl: str) -> None:
    x = torch.randn(33, 1024, device="cuda")
    weight = torch.randn(1024, device="cuda")
    fuseline.rms_norm(x, weight, 1e-6, impl=impl)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fuseline.rms_norm(x, weight, 1e-6, impl=impl)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        _assert_right(y, x, weight)


@pytest.mark.parametrize("impl", IMPLS)
def test_more_elements_than_an_int32_counts(impl: str) -> None:
    rows, n = 2**20 + 3, 2048 + 8
    x = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(n, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    xg = x.requires_grad_()
    y = fuseline.rms_norm(xg, weight, 1e-6, impl=impl)
    _assert_right(y[-5:].detach(), x[-5:].detach(), weight.detach())
    dx, dweight = torch.autograd.grad(y, (xg, weight), x.detach())
    part = x[-5:].detach().double().requires_grad_()
    expected = torch.autograd.grad(
        reference.rms_norm(part, weight.detach().double(), 1e-6), part, part.detach()
    )[0]
    torch.testing.assert_close(dx[-5:].double(), expected, rtol=0.02, atol=0.02)
    # dweight of dy = x is the sum of x * xhat, near rows for a normal x.
    torch.testing.assert_close(
        dweight.double() / rows, torch.ones_like(dweight, dtype=torch.double), rtol=0.03, atol=0.0
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("rows", "n"), [(1, 1 << 20), (1, (1 << 20) - 1), (3, 8209), (3, 32767), (1 << 20, 61)]
)
def test_like_terms_do_not_add_up_their_roundings(impl: str, rows: int, n: int) -> None:
    """All roundings of a long sum are then of one sign; random rows would hide it."""
    x = torch.full((rows, n), 0.7390851, device="cuda")
    weight = torch.ones(n, device="cuda", requires_grad=True)
    y = fuseline.rms_norm(x, weight, 0.0, impl=impl)
    eps = torch.finfo(x.dtype).eps
    assert ((y - 1).abs() <= 4 * eps).all()
    (dweight,) = torch.autograd.grad(y, weight, x)
    exact = x[0, 0].double() * rows
    assert ((dweight.double() / exact - 1).abs() <= 16 * eps).all()


ON_THE_SECOND = """
import sys, torch, fuseline
x = torch.randn(65, 1027, device="cuda:1", requires_grad=True)
fuseline.rms_norm(x, None, 1e-6, impl=sys.argv[1]).sum().backward()
torch.cuda.synchronize(1)
assert not torch._C._cuda_hasPrimaryContext(0)
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("impl", IMPLS)
def test_the_second_device_alone_makes_no_context_on_the_first(impl: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ON_THE_SECOND, impl], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("impl", IMPLS)
def test_second_device_while_the_first_is_current(impl: str) -> None:
    assert torch.cuda.current_device() == 0
    x = torch.randn(65, 1027, device="cuda:1", requires_grad=True)
    weight = torch.randn(1027, device="cuda:1", requires_grad=True)
    y = fuseline.rms_norm(x, weight, 1e-6, impl=impl)
    _assert_right(y.detach(), x.detach(), weight.detach())
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.device == weight.grad.device == torch.device("cuda:1")
    want = torch.nn.functional.rms_norm(x, (1027,), weight, 1e-6)
    for got, expected in zip(
        (x.grad, weight.grad), torch.autograd.grad(want.sum(), (x, weight)), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def binder(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that went through Triton's binder, by name."""
    went: list[str] = []
    run = triton.JITFunction.run

    def noted(self: Any, *args: Any, **meta: Any) -> Any:
        went.append(self.__name__)
        return run(self, *args, **meta)

    monkeypatch.setattr(triton.JITFunction, "run", noted)
    return went


def _forward_and_backward(x: torch.Tensor, weight: torch.Tensor | None) -> list[torch.Tensor]:
    with torch.no_grad():
        y = fuseline.rms_norm(x, weight, 1e-6, impl="triton")
    leaves = [t.detach().requires_grad_() for t in (x, weight) if t is not None]
    out = fuseline.rms_norm(leaves[0], *leaves[1:], eps=1e-6, impl="triton")
    return [y, *torch.autograd.grad(out, leaves, x.detach())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("n", [61, 1024, 4096, 40000])
@pytest.mark.parametrize(("offset", "weight_offset"), [(0, 0), (1, 0), (0, 1), (3, 5), (None, 0)])
def test_a_launch_past_the_binder_gives_the_same(
    n: int, offset: int | None, weight_offset: int, dtype: torch.dtype, binder: list[str]
) -> None:
    def fresh() -> tuple[torch.Tensor, torch.Tensor | None]:
        flat = torch.randn(6 * n + 8, device="cuda", dtype=dtype)
        w = torch.randn(n + 8, device="cuda", dtype=dtype)[weight_offset : n + weight_offset]
        if offset is None:
            return flat[: 6 * n].view(6, n)[::2], None
        return flat[offset : 6 * n + offset].view(2, 3, n), w

    _forward_and_backward(*fresh())
    binder.clear()
    for _ in range(3):
        x, w = fresh()
        y, *grads = _forward_and_backward(x, w)
        assert not binder
        _assert_right(y, x, w)
        impl_triton._AGAIN.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "_heard", lambda kernel: True)
            for got, want in zip((y, *grads), _forward_and_backward(x, w), strict=True):
                assert torch.equal(got, want)
        assert binder
        binder.clear()


def test_profilers_hear_of_every_launch() -> None:
    x = torch.randn(64, 256, device="cuda")
    heard: list[str] = []

    def hook(metadata: Any) -> None:
        heard.append(metadata.get()["name"])

    for _ in range(2):
        fuseline.rms_norm(x, None, 1e-6, impl="triton")
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        for _ in range(2):
            fuseline.rms_norm(x, None, 1e-6, impl="triton")
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    fuseline.rms_norm(x, None, 1e-6, impl="triton")
    assert heard == ["_fwd_kernel"] * 2


def test_repeated_launches_follow_stream_and_graph() -> None:
    x, weight = torch.randn(64, 4096, device="cuda"), torch.randn(4096, device="cuda")
    fuseline.rms_norm(x, weight, 1e-6, impl="triton")
    assert impl_triton.again(x, weight, 1e-6) is not None
    stream, late = torch.cuda.Stream(), torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        y = impl_triton.again(late, weight, 1e-6)
    torch.cuda.synchronize()
    assert y is not None
    _assert_right(y, x, weight)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device only")
def test_repeated_launches_follow_the_device() -> None:
    for _ in range(2):
        for index in (0, 1, 0):
            x = torch.randn(64, 256, device=f"cuda:{index}")
            y = fuseline.rms_norm(x, None, 1e-6, impl="triton")
            torch.cuda.synchronize(index)
            _assert_right(y, x, None)
            with torch.cuda.device(index):
                _assert_right(fuseline.rms_norm(x, None, 1e-6, impl="triton"), x, None)


@pytest.mark.slow
def test_tune_writes_a_table_that_the_operator_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(tuned.FOLDER, str(tmp_path / "tables"))
    command = [sys.executable, "-m", "fuselab", "tune", "rms_norm", "--dtype", "bf16"]
    done = subprocess.run(
        [*command, "--direction", "fwd", "--budget", "90"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (file,) = tuned.user_files("rms_norm")
    assert tuned.load(file).about["how"].startswith("fuselab tune")
    impl_triton.table.cache_clear()
    assert impl_triton.table(torch.device("cuda", 0)).gpu == torch.cuda.get_device_name()
    x = torch.randn(33, 1000, device="cuda", dtype=torch.bfloat16)
    _assert_right(impl_triton.fwd(x, None, 1e-6, False)[0], x, None)
    impl_triton.table.cache_clear()


def test_compiled_graphs_trace_through_triton() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return fuseline.rms_norm(x * 1.5, weight, 1e-6, impl="triton") + 1

    x = torch.randn(8, 256, device="cuda", requires_grad=True)
    weight = torch.randn(256, device="cuda", requires_grad=True)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    torch.compile(block, backend=backend, fullgraph=True)(x, weight).sum().backward()
    assert len(graphs) == 2
    for graph in graphs:
        assert triton_kernel_wrapper_functional in [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("dynamic", [False, True])
def test_triton_compiles_whole_forward_and_backward(dynamic: bool) -> None:
    torch._dynamo.reset()

    def block(x: torch.Tensor, weight: torch.Tensor, impl: str) -> torch.Tensor:
        return fuseline.rms_norm(x * 1.5, weight, 1e-6, impl) + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    for shape in ((8, 256), (5, 3, 512), (9, 1027)):
        x = torch.randn(shape, device="cuda", requires_grad=True)
        weight = torch.randn(shape[-1], device="cuda", requires_grad=True)
        y, expected = compiled(x, weight, "triton"), block(x, weight, "cuda")
        dy = torch.randn_like(y)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            torch.autograd.grad(y, (x, weight), dy), torch.autograd.grad(expected, (x, weight), dy)
        )


@pytest.mark.parametrize("weighted", [True, False])
def test_triton_operators_pass_opcheck(weighted: bool) -> None:
    for x in (torch.randn(4, 32, device="cuda"), torch.randn(32, 6, device="cuda").t()):
        weight = torch.randn(32, device="cuda") if weighted else None
        for op in (OPS.rms_norm__triton, OPS._rms_norm__triton, OPS._rms_norm_fwd__triton):
            opcheck(op, (x, weight, 1e-5))
        opcheck(OPS.rms_norm__triton, (x.detach().requires_grad_(), weight, 1e-5))
        _, rstd = OPS._rms_norm_fwd__triton(x, weight, 1e-5)
        opcheck(OPS._rms_norm_bwd__triton, (torch.randn_like(x), x, weight, rstd, True, weighted))


def test_the_context_survives_a_refused_call() -> None:
    x = torch.randn(4, 8, device="cuda")
    for bad in (torch.randn(7, device="cuda"), torch.randn(8)):
        with pytest.raises(ValueError, match="weight"):
            fuseline.rms_norm(x, bad)
    _assert_right(fuseline.rms_norm(x, None, 1e-6), x, None)
    torch.cuda.synchronize()
