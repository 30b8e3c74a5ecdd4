"""Eager calls in C++ give what those in Python give, bit for bit, and leave the rest to them."""

from __future__ import annotations

import gc
import os
import secrets
import subprocess
import sys
import sysconfig
import weakref
from itertools import product
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd_ad
from ops.forks import in_a_fork
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fuseline
from fuseline import table
from fuseline.core import host, native
from fuseline.core.selection.select import asked
from fuseline.testing.trial import floating

SPECS = table.load()
FRESH = str(secrets.randbits(32))
built = pytest.mark.skipif(isinstance(host.module(), str), reason=str(host.module()))


def eager_call(name: str, **inputs: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what eager code calls on a CPU, and the arguments that it gets there."""
    told = asked(_public(name), **inputs)
    return told.selector.calls["cpu", "cpu"], told.call


def drawn(name: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    spec, cpu = SPECS[name], torch.device("cpu")
    case = next(c for c in spec.cases if "check" in c.suites)
    return dict(spec.inputs(case, dtype, cpu, torch.Generator().manual_seed(7)))


def _public(name: str) -> Any:
    return getattr(fuseline, name)


def _served() -> list[str]:
    if isinstance(host.module(), str):
        return []
    found = []
    for name, spec in SPECS.items():
        if any(i.name == "cpu" for i in spec.implementations):
            call, _ = eager_call(name, **drawn(name))
            found += [name] * hasattr(call, "python")
    return found


SERVED = _served()
# Their gradients too.
DIFFERENTIABLE = (
    *("rms_norm", "layer_norm", "softmax", "log_softmax", "masked_softmax", "double_softmax"),
    *("norm_chain", "pointwise_chain", "horizontal_reduction_pointwise", "bias_gelu", "swiglu"),
    *("geglu", "rope", "cross_entropy", "bias_dropout_add"),
)


def test_a_build_from_source_holds_the_module() -> None:
    build = native.status().build
    has_headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    if build.get("torch_headers") != torch.__version__ or not has_headers:
        pytest.skip("the binary is another build's, or this Python has no headers")
    assert isinstance(host.module(), ModuleType)
    assert set(DIFFERENTIABLE) <= set(SERVED)


def _results(call: Any, args: tuple[Any, ...], wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """Return outputs and gradients; wanted: of which floating tensors."""
    inputs: list[Tensor] = []
    flags, given = iter(wanted), []
    for a in args:
        if isinstance(a, Tensor) and a.is_floating_point():
            a = a.detach().clone().requires_grad_(next(flags))
            inputs += [a] * a.requires_grad
        given.append(a)
    made = call(*given)
    outputs = [*made] if isinstance(made, tuple) else [made]
    live = [y for y in outputs if y.requires_grad]
    if not inputs:
        assert not live
        return outputs
    generator = torch.Generator().manual_seed(3)
    dys = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in live]
    grads = torch.autograd.grad(live, inputs, dys, allow_unused=True)
    return [*outputs, *grads]


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", SERVED)
def test_outputs_and_gradients_are_those_of_python(name: str, dtype: torch.dtype) -> None:
    if dtype not in SPECS[name].dtypes:
        pytest.skip("not one of its dtypes")
    inputs = drawn(name, dtype)
    call, args = eager_call(name, **inputs)
    tensors = sum(isinstance(a, Tensor) and a.is_floating_point() for a in args)
    forward_only = not SPECS[name].differentiable
    for wanted in product((False, True), repeat=tensors):
        if forward_only and any(wanted):
            continue
        mine, theirs = _results(call, args, wanted), _results(call.python, args, wanted)
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) == (b is None)
            assert a is None or (torch.equal(a, b) and a.stride() == b.stride()), wanted


@built
@pytest.mark.parametrize("shape", [(3, 40), (40,), (3, 1), ()], ids=str)
@pytest.mark.parametrize(("training", "p"), [(False, 0.5), (True, 0.3), (True, 0.0), (True, 1.0)])
def test_gradients_that_several_arguments_share(
    shape: tuple[int, ...], training: bool, p: float
) -> None:
    x, bias, residual = torch.randn(3, 40), torch.randn(shape), torch.randn(3, 40)
    inputs = {"x": x, "bias": bias, "residual": residual, "p": p, "training": training}
    call, args = eager_call("bias_dropout_add", **inputs, seed=7 if p else None)
    for wanted in product((False, True), repeat=3):
        mine, theirs = _results(call, args, wanted), _results(call.python, args, wanted)
        for a, b in zip(mine, theirs, strict=True):
            assert a is not None
            assert b is not None
            assert torch.equal(a, b), wanted


def _python_of(call: Any, *args: Any, **options: Any) -> set[str]:
    """Return the names of the Python functions that a call runs."""
    names: set[str] = set()
    sys.setprofile(lambda frame, event, arg: names.add(frame.f_code.co_name))
    try:
        call(*args, **options)
    finally:
        sys.setprofile(None)
    return names


@built
def test_public_functions_enter_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 40)
    fuseline.softmax(x)  # the first call decides what runs
    assert "_in_python" not in _python_of(fuseline.softmax, x)
    assert "_in_python" in _python_of(fuseline.softmax, x, impl="eager")
    assert "_in_python" in _python_of(fuseline.softmax, x.as_subclass(_Other))
    with pytest.raises(ValueError, match="dim is 2"):
        fuseline.softmax(x, 2)
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    assert "_in_python" in _python_of(fuseline.softmax, x)


def _in_cpp(y: Tensor) -> bool:
    # What Python knows only by its name.
    return y.grad_fn is not None and type(y.grad_fn).__name__ == "CppFunction"


def _first(made: Any) -> Tensor:
    y: Tensor = made[0] if isinstance(made, tuple) else made
    return y


@built
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_made_in_cpp_and_can_be_differentiated(name: str) -> None:
    inputs = drawn(name, torch.float64)
    own = tuple(n for n in SPECS[name].differentiable if n != "mask")
    for n in own:
        inputs[n] = None if inputs[n] is None else inputs[n].clone().requires_grad_()

    def call(*tensors: Tensor) -> Any:
        return _public(name)(**inputs | dict(zip(own, tensors, strict=True)))

    given = tuple(inputs[n] for n in own if inputs[n] is not None)
    assert _in_cpp(_first(call(*given)))
    assert torch.autograd.gradcheck(call, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, fast_mode=True)


def _x(*shape: int) -> Tensor:
    return torch.randn(*(shape or (3, 40)), requires_grad=True)


@built
def test_a_gradient_that_the_kernels_do_not_give_is_left_to_python() -> None:
    x, w, b = _x().bfloat16(), _x(40), _x(40).bfloat16()
    assert not _in_cpp(fuseline.layer_norm(x, w, b))  # of two dtypes
    assert _in_cpp(fuseline.layer_norm(x, w, b.float()))
    x, mask = _x(), _x()
    assert not _in_cpp(fuseline.softmax(x, mask=mask))
    assert _in_cpp(fuseline.softmax(x, mask=mask.detach()))


class _Sees(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class _Other(Tensor):
    """A subclass without a dispatch of its own."""


@built
def test_whatever_looks_on_sees_the_operator() -> None:
    x = _x()
    with _Sees() as seen:
        fuseline.softmax(x)
    assert "fuseline::softmax" in seen.names or "fuseline::_softmax" in seen.names
    assert type(fuseline.softmax(x.detach().as_subclass(_Other))) is _Other
    batched = torch.vmap(fuseline.softmax)(x.detach())
    assert torch.equal(batched, fuseline.softmax(x.detach()))
    with fwd_ad.dual_level():
        dual = fwd_ad.make_dual(x.detach(), torch.ones_like(x))
        assert fwd_ad.unpack_dual(fuseline.softmax(dual)).tangent is not None
    y = fuseline.softmax(x)
    dy = torch.randn(5, *y.shape)
    (batch,) = torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)
    (alone,) = torch.autograd.grad(y, x, dy[2])
    assert torch.equal(batch[2], alone)


@built
def test_what_is_saved_goes_through_hooks_and_is_let_go() -> None:
    x, w = _x(), _x(40)
    packed: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t.double()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
        y = fuseline.rms_norm(x, w, 1e-6)
    assert [t.shape for t in packed] == [x.shape, w.shape, x.shape[:1]]
    (expected,) = torch.autograd.grad(fuseline.rms_norm(x, w, 1e-6).sum(), x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    again = checkpoint(fuseline.rms_norm, x, w, 1e-6, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again.sum(), x)[0], expected)

    saved = fuseline.softmax(x)
    dies = weakref.ref(saved)
    out = saved * 2
    del saved
    out.sum().backward()
    del out
    gc.collect()
    assert dies() is None


@built
def test_a_long_chain_is_let_go_without_a_deep_stack() -> None:
    y = x = _x(1, 8)
    for _ in range(30_000):
        y = fuseline.softmax(y)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.shape == x.shape
    del y


@built
def test_anomaly_mode_names_the_node() -> None:
    x = _x()
    with torch.autograd.detect_anomaly(check_nan=True):
        y = fuseline.rms_norm(x, None, 1e-6)
        with pytest.raises(RuntimeError, match="'RmsNormBackward' returned nan values"):
            y.backward(torch.full_like(y, torch.nan))


@built
def test_an_input_that_was_written_over_is_found() -> None:
    x = _x()
    h = x * 1
    y = fuseline.rms_norm(h, None, 1e-6)
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@built
def test_an_output_without_a_gradient_counts_as_zero() -> None:
    x = _x()
    total, _ = fuseline.horizontal_reduction_reduction(x)
    assert _in_cpp(total)
    (grad,) = torch.autograd.grad(total.sum(), x)
    (expected,) = torch.autograd.grad(x.sum(), x)
    torch.testing.assert_close(grad, expected)


@built
def test_errors_are_those_of_python() -> None:
    call, _ = eager_call("rms_norm", x=_x(), weight=None)
    for args in ((_x(), _x(7), 1e-6), (_x(), None), (_x(), None, "no"), (_x().int(), None, 1e-6)):
        with pytest.raises(Exception) as mine:
            call(*args)
        with pytest.raises(type(mine.value)) as theirs:
            call.python(*args)
        assert str(mine.value) == str(theirs.value)
    with pytest.raises(ValueError, match="weight has shape"):
        fuseline.rms_norm(_x(), _x(7))


@built
def test_an_error_of_the_formula_keeps_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    y = fuseline.softmax(x := _x())

    def refuse(*args: Any, **options: Any) -> Any:
        raise LookupError("no such formula")

    monkeypatch.setattr(torch.Tensor, "sum", refuse)
    with pytest.raises(LookupError, match="no such formula"):
        torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)


@built
@pytest.mark.parametrize("seed", ["11", FRESH], ids=["fixed", "fresh"])
def test_hostile_arguments_get_the_answers_of_python(seed: str) -> None:
    in_a_fork({}, "ops.hostile_host", "check", seed, "1500")


@built
def test_threads_differentiate_side_by_side() -> None:
    x = _x(64, 512)
    (expected,) = torch.autograd.grad(fuseline.softmax(x).square().sum(), x)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(50):
            (grad,) = torch.autograd.grad(fuseline.softmax(x).square().sum(), x)
            if not torch.equal(grad, expected):
                wrong.append("differs")

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@built
def test_compiled_autograd_calls_the_same_kernels() -> None:
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    x, w = _x(), _x(40)
    expected = torch.autograd.grad(fuseline.rms_norm(x, w, 1e-6).square().sum(), (x, w))

    def compiler(graph: Any) -> Any:
        return torch.compile(graph, backend="eager")

    loss = fuseline.rms_norm(x, w, 1e-6).square().sum()
    with compiled_autograd._enable(compiler):
        loss.backward()
    assert x.grad is not None
    assert w.grad is not None
    torch.testing.assert_close((x.grad, w.grad), expected)


@built
def test_an_environment_variable_keeps_the_module_out() -> None:
    code = (
        "import torch, fuseline; from fuseline.core import host; print(host.module()); "
        "x = torch.randn(3, 5, requires_grad=True); "
        "print(type(fuseline.softmax(x).grad_fn).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, host.OFF: "python"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n")[0] == "FUSELINE_HOST is python", done.stderr
    assert "SoftmaxBackward" in done.stdout


def test_floating_inputs_are_what_gradients_are_of() -> None:
    assert all(set(SPECS[n].differentiable) <= set(floating(drawn(n))) for n in SERVED)
