"""Launches past Triton's binder: what they are kept under, when they are not used."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from fuseline.ops.rms_norm import impl_triton, op  # noqa: E402
from fuseline.primitives.triton import launch  # noqa: E402

INSTALLED = tuple(map(int, triton.__version__.split(".")[:2]))


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    index = 0

    def get_device(self) -> int:
        return self.index

    @property
    def is_cuda(self) -> bool:
        return True


def on_gpu(t: torch.Tensor, index: int = 0) -> Any:
    made = t.as_subclass(OnGpu)
    made.index = index
    return made


class CudaLauncher:
    """Triton 3.6's, as far as we look at it; `version` 3.7 gets that of 3.7 to 3.9."""

    def __init__(self, calls: list[Any], version: tuple[int, int]) -> None:
        self.launch = lambda *args: calls.append(args)
        self.global_scratch_size = self.profile_scratch_size = 0
        self.launch_cooperative_grid, self.launch_pdl = "coop", "pdl"
        if version > (3, 6):
            self.arg_annotations, self.kernel_signature = "annotations", "signature"


class Kernel:
    """A JITFunction that compiles nothing; `bound`: the launches that went through its binder."""

    arg_names = ("x_ptr", "w_ptr", "n", "BLOCK")

    def __init__(self, compiled: Any) -> None:
        self.compiled, self.pre_run_hooks, self.bound = compiled, [], []

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any, **meta: Any) -> Any:
            self.bound.append((grid, args, meta))
            return self.compiled

        return run


@pytest.fixture(params=[(3, 6), (3, 7), (3, 9)], ids=str)
def fake(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Triton of this version whose C function notes its arguments in `calls`."""
    device, calls = SimpleNamespace(index=0), []
    monkeypatch.setattr(launch.triton, "__version__", ".".join(map(str, request.param)) + ".0")
    monkeypatch.setattr(launch, "_kept", {})
    monkeypatch.setattr(launch, "_current_device", lambda: device.index)
    monkeypatch.setattr(launch, "_current_stream", lambda index: 7000 + index)
    hooks = SimpleNamespace(calls=[]), SimpleNamespace(calls=[])
    runtime = SimpleNamespace(launch_enter_hook=hooks[0], launch_exit_hook=hooks[1])
    monkeypatch.setattr(launch, "_HOOKS", runtime)

    @contextmanager
    def on(index: int) -> Any:
        before, device.index = device.index, index
        yield
        device.index = before

    monkeypatch.setattr(torch.cuda, "device", on)
    launcher = CudaLauncher(calls, request.param)
    compiled = SimpleNamespace(run=launcher, function="function", packed_metadata="packed")
    return SimpleNamespace(
        kernel=Kernel(compiled), calls=calls, device=device, runtime=runtime, launcher=launcher
    )


def run(fake: Any, x: Any, w: Any = None, n: int = 5, grid: Any = (3,), block: int = 64) -> None:
    launch.launch(fake.kernel, grid, (x, w, n), {"BLOCK": block, "num_warps": 4})


def test_the_second_launch_goes_past_the_binder_with_the_same_arguments(fake: Any) -> None:
    x, w = on_gpu(torch.zeros(8)), on_gpu(torch.zeros(8))
    run(fake, x, w)
    assert fake.kernel.bound == [((3,), (x, w, 5), {"BLOCK": 64, "num_warps": 4})]
    assert not fake.calls
    run(fake, x, w, n=6, grid=(2, 9))
    assert len(fake.kernel.bound) == 1
    start = (2, 9, 1, 7000, "function", "coop", "pdl")
    args = (x.data_ptr(), w.data_ptr(), 6, 64)
    if hasattr(fake.launcher, "arg_annotations"):
        rest = ("packed", None, None, None, None, None, "annotations", "signature", args)
    else:
        rest = (None, None, "packed", None, None, None, *args)
    assert fake.calls == [(*start, *rest)]


def test_descriptors_are_passed_as_they_are_and_kept_by_their_blocks(fake: Any) -> None:
    x = on_gpu(torch.zeros(16, 16))
    blocks = [TensorDescriptor.from_tensor(x, block) for block in ([4, 8], [8, 8], [4, 8])]
    for block in blocks:
        launch.launch(fake.kernel, (3,), (x, block, 5), {"BLOCK": 64})
    assert len(fake.kernel.bound) == 2
    (call,) = fake.calls
    given = call[-1] if hasattr(fake.launcher, "arg_annotations") else call[-4:]
    assert given[1] is blocks[2]


def wrapped(fake: Any, monkeypatch: pytest.MonkeyPatch, dtypes: list[str]) -> list[Any]:
    """What comes below the installed Triton's own wrapper of descriptors; a map is its makers'."""
    from triton.backends.nvidia import driver

    def encoded(*args: Any) -> Any:
        return "map", *map(str, args)

    names = ("fill_tma_descriptor", "fill_tma_descriptor_tiled")
    utils = SimpleNamespace(**dict.fromkeys(names, encoded))
    active = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setattr(driver.triton.runtime, "driver", active)
    seen: list[Any] = []
    how = {"swizzle": 3, "elem_size": 4, "elem_type": 7, "block_size": [4, 8], "fp4_padded": False}
    count = sum(dtype.startswith("tensordesc") for dtype in dtypes)
    fake.launcher.launch = driver.wrap_handle_tensordesc(
        lambda *args: seen.append(args), dict(enumerate(dtypes)), [how] * count
    )
    return seen


def test_descriptors_are_repeated_as_triton_passes_them(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hasattr(fake.launcher, "arg_annotations") != (INSTALLED > (3, 6)):
        pytest.skip("not the installed version")
    seen = wrapped(fake, monkeypatch, ["*fp32", "tensordesc<fp32[4,8]>", "i32", "constexpr"])

    def args() -> Any:
        x, y = on_gpu(torch.zeros(16, 16)), on_gpu(torch.zeros(16, 16))
        return x, TensorDescriptor.from_tensor(y, [4, 8]), 5

    first, second, meta = args(), args(), {"BLOCK": 64}
    for given in (first, second):
        launch.launch(fake.kernel, (3,), given, meta)
    again = launch.ready(fake.kernel, (3,), first, meta)
    assert again is not None
    for _ in range(2):
        assert again(second[0].data_ptr(), second[1].base.data_ptr())
    assert len(seen) == 3
    passed = [[*call[:-1], *call[-1]] if INSTALLED > (3, 6) else [*call] for call in seen]
    assert "map" in passed[0][-7]
    assert passed[0] == passed[1] == passed[2]
    fake.launcher.launch = print  # no wrapper
    monkeypatch.setattr(launch, "_kept", {})
    launch.launch(fake.kernel, (3,), first, meta)
    assert launch.ready(fake.kernel, (3,), first, meta) is None


def test_whatever_changes_the_code_goes_through_the_binder(fake: Any) -> None:
    flat = torch.zeros(64)
    aligned, odd = on_gpu(flat[:8]), on_gpu(flat[1:9])
    different = [
        lambda: run(fake, aligned),
        lambda: run(fake, aligned, aligned),
        lambda: run(fake, odd, aligned),
        lambda: run(fake, aligned, odd),
        lambda: run(fake, on_gpu(torch.zeros(8, dtype=torch.float16))),
        lambda: run(fake, aligned, n=1 << 40),
        lambda: run(fake, aligned, block=128),
        lambda: run(fake, on_gpu(flat[:8], index=1)),
    ]
    for count, call in enumerate(different, 1):
        call()
        assert len(fake.kernel.bound) == count
    for call in different:
        call()
    assert len(fake.kernel.bound) == len(different)
    assert len(fake.calls) == len(different)


def test_another_device_is_made_the_current_one_and_its_stream_taken(fake: Any) -> None:
    x = on_gpu(torch.zeros(8), index=2)
    run(fake, x)
    run(fake, x)
    assert fake.calls[0][3] == 7002
    assert fake.device.index == 0


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_who_listens_to_launches_hears_them(fake: Any, hook: str) -> None:
    x = on_gpu(torch.zeros(8))
    run(fake, x)
    chain = getattr(fake.runtime, hook)
    chain.calls.append(print)
    run(fake, x)
    assert (len(fake.kernel.bound), len(fake.calls)) == (2, 0)
    chain.calls.clear()
    run(fake, x)
    assert (len(fake.kernel.bound), len(fake.calls)) == (2, 1)
    setattr(fake.runtime, hook, None)  # an earlier Triton's, or a user's own in its place
    run(fake, x)
    assert (len(fake.kernel.bound), len(fake.calls)) == (3, 1)
    setattr(fake.runtime, hook, chain)
    fake.kernel.pre_run_hooks.append(print)
    run(fake, x)
    assert (len(fake.kernel.bound), len(fake.calls)) == (4, 1)


@pytest.mark.parametrize("unknown", ["version", "launcher", "scratch", "compiled", "gsan"])
def test_what_is_not_as_we_know_it_goes_through_the_binder(
    fake: Any, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unknown == "version":
        monkeypatch.setattr(launch.triton, "__version__", "3.10.0+git1234")
    elif unknown == "launcher":
        fake.kernel.compiled.run = SimpleNamespace(launch=None)
    elif unknown == "scratch":
        fake.launcher.profile_scratch_size = 16
    elif unknown == "gsan":
        fake.launcher.gsan_enabled = True
    else:
        fake.kernel.compiled = None
    x = on_gpu(torch.zeros(8))
    run(fake, x)
    run(fake, x)
    assert (len(fake.kernel.bound), len(fake.calls)) == (2, 0)
    assert launch.ready(fake.kernel, (3,), (x, None, 5), {"BLOCK": 64, "num_warps": 4}) is None


def test_the_installed_triton_is_as_we_read_it() -> None:
    """What the fakes stand for; fails where a new version must be read first."""
    import inspect

    from triton.backends.nvidia.driver import CudaLauncher as Real
    from triton.compiler import CompiledKernel

    assert launch._known_version()
    assert not launch._heard(impl_triton._fwd_kernel)
    source = inspect.getsource(Real)
    for name in vars(CudaLauncher([], (3, 6))):
        assert f"self.{name} = " in source
    tail = "*args)" if triton.__version__.startswith("3.6.") else "self.kernel_signature, args)"
    assert tail in source
    assert "self.packed_metadata = " in inspect.getsource(CompiledKernel)


def test_tensors_without_a_gpu_are_the_interpreters(fake: Any) -> None:
    for _ in range(2):
        run(fake, torch.zeros(8))
    assert (len(fake.kernel.bound), len(fake.calls)) == (2, 0)


@pytest.fixture
def operator(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The operator's forward on the fake."""
    monkeypatch.setattr(impl_triton, "_fwd_kernel", fake.kernel)
    monkeypatch.setattr(impl_triton, "_AGAIN", {})
    monkeypatch.setattr(torch, "empty_like", lambda x: on_gpu(x.new_empty(x.shape)))
    return fake


def test_a_call_like_one_before_is_repeated(operator: Any) -> None:
    x, w = on_gpu(torch.zeros(4, 6, 32)), on_gpu(torch.zeros(32))
    assert impl_triton.again(x, w, 1e-6) is None
    op._triton_run(x, w, 1e-6)
    assert len(operator.kernel.bound) == 1
    for _ in range(2):
        y = op._triton_run(on_gpu(torch.zeros(4, 6, 32)), w, 1e-6)
        assert y.shape == (4, 6, 32)
    assert (len(operator.kernel.bound), len(operator.calls)) == (1, 2)
    assert y.data_ptr() in operator.calls[-1] or y.data_ptr() in operator.calls[-1][-1]


def test_a_call_that_differs_is_looked_at_anew(operator: Any) -> None:
    flat = torch.zeros(4096)
    x, w = on_gpu(flat[:96].view(3, 32)), on_gpu(torch.zeros(64)[:32])
    op._triton_run(x, w, 1e-6)
    others = [
        (on_gpu(flat[1:97].view(3, 32)), w, 1e-6),
        (on_gpu(flat[:64].view(2, 32)), w, 1e-6),
        (on_gpu(flat[:96].view(32, 3).t()), w, 1e-6),
        (on_gpu(flat[:96].view(3, 32)._neg_view()), w, 1e-6),
        (x, on_gpu(torch.zeros(64)[1:33]), 1e-6),
        (x, on_gpu(torch.zeros(64)[::2]), 1e-6),
        (x, on_gpu(torch.zeros(32), index=1), 1e-6),
        (x, on_gpu(torch.zeros(32, dtype=torch.float64)), 1e-6),
        (x, None, 1e-6),
        (x, w, 1e-5),
        (on_gpu(flat[:96].view(3, 32), index=1), w, 1e-6),
    ]
    for other in others:
        assert impl_triton.again(*other) is None
    assert impl_triton.again(x, w, 1e-6, 1.0) is None
    assert impl_triton.again(x, w, 1e-6) is not None
    operator.runtime.launch_enter_hook.calls.append(print)
    assert impl_triton.again(x, w, 1e-6) is None
    operator.runtime.launch_enter_hook.calls.clear()
    operator.device.index = 1
    assert impl_triton.again(x, w, 1e-6) is None


def test_a_weight_of_the_wrong_length_is_still_refused(operator: Any) -> None:
    x = on_gpu(torch.zeros(3, 32))
    op._triton_run(x, on_gpu(torch.zeros(32)), 1e-6)
    with pytest.raises(ValueError, match="weight has shape"):
        op._triton_run(x, on_gpu(torch.zeros(31)), 1e-6)


def test_what_is_kept_of_calls_is_bounded(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_triton, "_MOST", 3)
    for rows in range(1, 9):
        op._triton_run(on_gpu(torch.zeros(rows, 32)), None, 1e-6)
    assert 0 < len(impl_triton._AGAIN) <= 3


def test_a_traced_call_and_one_with_a_tile_are_not_kept(operator: Any) -> None:
    x = on_gpu(torch.zeros(3, 32))
    op._triton_run(x, None, 1e-6, wrap=lambda kernel: kernel)
    op._triton_run(x, None, 1e-6, tile=impl_triton.Tile(64, 2))
    assert not impl_triton._AGAIN


def test_a_kernel_whose_code_depends_on_an_integer_is_refused(fake: Any) -> None:
    @triton.jit(do_not_specialize=["n"])
    def kernel(x_ptr, n, blocks):
        pass

    x = torch.zeros(3)
    with pytest.raises(TypeError, match="argument blocks is specialised"):
        launch.launch(kernel, (1,), (x, 5, 1), {}, wrap=lambda k: k)
    with pytest.raises(TypeError, match="argument blocks is specialised"):
        launch.launch(kernel, (1,), (on_gpu(x), 5, 1), {})


def test_tensors_lead(fake: Any) -> None:
    """So that what a launch depends on is found without a look at each number."""

    @triton.jit(do_not_specialize=["n"])
    def kernel(x_ptr, n, y_ptr):
        pass

    x = torch.zeros(3)
    with pytest.raises(TypeError, match="argument y_ptr is a tensor behind an integer"):
        launch.launch(kernel, (1,), (x, 5, x), {}, wrap=lambda k: k)


def test_a_launch_is_made_again_on_other_tensors_with_other_integers(fake: Any) -> None:
    def calls(aligned: bool) -> list[Any]:
        fake.calls.clear()
        made = launch.Launch(fake.kernel, (3,), (7,), {"BLOCK": 64, "num_warps": 4}, aligned)
        for t, n in zip(tensors, (4, 5, 6), strict=True):
            made((t,), n)
        return [call[-1] if nested else call[-4:] for call in fake.calls]

    nested = hasattr(fake.launcher, "arg_annotations")
    tensors = [on_gpu(torch.zeros(8)) for _ in range(3)]
    addresses = [t.data_ptr() for t in tensors]
    # The first compiles; the others go past what looks a launch up, or not.
    for aligned in (True, False):
        made = [(a, n, 7, 64) for a, n in zip(addresses, (4, 5, 6), strict=True)]
        assert calls(aligned) == made[1:] if aligned else made
        assert len(fake.kernel.bound) == 1
    seen: list[Any] = []
    launch.Launch(fake.kernel, (3,), (7,), {"BLOCK": 64}, True)(
        (tensors[0],), 4, wrap=lambda kernel: {(3,): lambda *args, **meta: seen.append(args)}
    )
    assert seen == [(tensors[0], 4, 7)]
