"""Patched modules after other hands: class swaps, hooked forwards, copies, threads, jit."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from ops.norm_variants import C, Norm, plain
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrize, prune

import fuseline
from fuseline.core import native
from fuseline.patching import Patched

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


class Mine(Norm):
    """A norm that can be pickled."""

    def __init__(self) -> None:
        super().__init__(plain)


class Doubled(Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


NORMS: dict[str, Callable[[], Any]] = {
    "RMSNorm": lambda: torch.nn.RMSNorm(C),
    "LayerNorm": lambda: torch.nn.LayerNorm(C),
    "Mine": Mine,
}
each_norm = pytest.mark.parametrize("name", NORMS)


def pair(name: str) -> tuple[Any, Any, Tensor]:
    """Return a norm, a patched copy of it, and an x."""
    own = NORMS[name]()
    with torch.no_grad():
        own.weight.uniform_(0.5, 1.5)
    patched = copy.deepcopy(own)
    assert len(fuseline.patch(patched, impl="cpu").replaced) == 1
    return own, patched, torch.randn(3, C)


def served(module: Module) -> int:
    return sum(m.served for m in fuseline.patch_status(module).modules)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@each_norm
def test_parametrized_after_patch(name: str) -> None:
    own, patched, x = pair(name)
    for module in (own, patched):
        parametrize.register_parametrization(module, "weight", Doubled())
    assert_close(patched(x), own(x))
    assert served(patched) == 1
    assert_close(copy.copy(patched)(x), own(x))
    assert_close(copy.deepcopy(patched)(x), own(x))
    assert fuseline.unpatch(patched) == 1
    assert isinstance(patched, type(NORMS[name]()))
    assert_close(patched(x), own(x))
    for module in (own, patched):
        parametrize.remove_parametrizations(module, "weight")
    assert_close(patched(x), own(x))
    assert fuseline.unpatch(patched) == 0
    assert type(patched) is type(own)
    assert fuseline.patch(patched, impl="cpu").replaced


@each_norm
def test_parametrized_before_patch_is_named(name: str) -> None:
    norm = NORMS[name]()
    parametrize.register_parametrization(norm, "weight", Doubled())
    ((_, kind, why),) = fuseline.patch(torch.nn.Sequential(norm)).kept
    assert kind == f"Parametrized{name}"
    assert why == "its weight was parametrized before"


@each_norm
def test_pruned_after_patch(name: str) -> None:
    own, patched, x = pair(name)
    for module in (own, patched):
        prune.l1_unstructured(module, "weight", amount=3)
    assert (patched.weight == 0).sum() == 3
    assert_close(patched(x), own(x))
    fuseline.unpatch(patched)
    assert_close(patched(x), own(x))


@each_norm
def test_a_class_that_is_swapped_for_another(name: str) -> None:
    own, patched, x = pair(name)
    halved = type("Halved", (type(own),), {"forward": lambda self, x: x / 2})
    patched.__class__ = halved
    assert torch.equal(patched(x), x / 2)
    assert fuseline.unpatch(patched) == 1
    assert type(patched) is halved
    assert torch.equal(patched(x), x / 2)


@each_norm
def test_a_class_over_ours_that_calls_it(name: str) -> None:
    own, patched, x = pair(name)
    base = type(patched)
    patched.__class__ = type(
        "Over", (base,), {"forward": lambda self, x: 3 * base.forward(self, x)}
    )
    assert_close(patched(x), 3 * own(x))
    assert fuseline.unpatch(patched) == 1
    assert type(patched).__name__ == "Over"
    assert_close(patched(x), 3 * own(x))
    assert served(patched) == 0


def hook_forward(module: Any) -> None:
    """Replace the forward on the instance, as accelerate's add_hook_to_module."""
    module._old_forward = module.forward

    def new_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module._old_forward(*args, **kwargs) + 1.0

    module.forward = functools.update_wrapper(
        functools.partial(new_forward, module), module._old_forward
    )


def unhook_forward(module: Any) -> None:
    module.forward = module._old_forward
    del module._old_forward


@each_norm
@pytest.mark.parametrize("first", ["patch", "hook"])
@pytest.mark.parametrize("last", ["unpatch", "unhook"])
def test_a_forward_that_is_hooked_on_the_instance(name: str, first: str, last: str) -> None:
    own, norm, x = pair(name)
    if first == "hook":
        fuseline.unpatch(norm)
        hook_forward(norm)
        assert len(fuseline.patch(norm, impl="cpu").replaced) == 1
    else:
        hook_forward(norm)
    assert_close(norm(x), own(x) + 1)
    assert served(norm) == 1
    if last == "unhook":
        unhook_forward(norm)
        assert_close(norm(x), own(x))
        assert served(norm) == 2
    assert fuseline.unpatch(norm) == 1
    assert type(norm) is type(own)
    assert_close(norm(x), own(x) + (last == "unpatch"))
    assert not isinstance(vars(norm).get("forward"), MethodType) or last == "unhook"
    assert fuseline.patch(norm, impl="cpu").replaced, "and once more"


def test_another_forward_on_the_instance_is_left_alone() -> None:
    norm = Mine()
    norm.forward = lambda x: x  # type: ignore[method-assign]
    ((_, _, why),) = fuseline.patch(norm).kept
    assert why == "its forward was replaced on the instance"


@each_norm
def test_copies(name: str) -> None:
    own, patched, x = pair(name)
    file = io.BytesIO()
    torch.save(patched, file)
    file.seek(0)
    copies = {
        "copy": copy.copy(patched),
        "deepcopy": copy.deepcopy(patched),
        "pickle": pickle.loads(pickle.dumps(patched)),  # noqa: S301
        "torch.save": torch.load(file, weights_only=False),
    }
    for how, made in copies.items():
        assert type(made) is type(patched), how
        assert isinstance(made, Patched), how
        assert_close(made(x), own(x))
        made.eps = 0.5
        changed = copy.copy(own)
        changed.eps = 0.5
        assert_close(made(x), changed(x))
        assert fuseline.unpatch(made) == 1
        assert type(made) is type(own), how
        assert_close(made(x), changed(x))
        assert_close(patched(x), own(x))
    assert isinstance(patched, Patched)
    empty = NORMS[name]()
    empty.load_state_dict(patched.state_dict())
    assert_close(empty(x), own(x))


def test_a_copy_of_what_was_unpatched_is_unpatched() -> None:
    _, patched, _ = pair("Mine")
    fuseline.unpatch(patched)
    assert type(copy.deepcopy(patched)) is Mine
    assert type(pickle.loads(pickle.dumps(patched))) is Mine  # noqa: S301


def test_jit() -> None:
    own, patched, x = pair("RMSNorm")
    own, patched = (torch.nn.Sequential(m, torch.nn.ReLU()) for m in (own, patched))
    with pytest.raises(RuntimeError, match=r"call fuseline\.unpatch\(model\) first"):
        torch.jit.script(patched)
    traced = torch.jit.trace(patched, (x,))
    assert_close(traced(x), own(x))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    assert b"fuseline" not in file.getvalue(), "it loads where fuseline is not"
    fuseline.unpatch(patched)
    assert_close(torch.jit.script(patched)(x), own(x))


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_symbolic_trace_keeps_torchs_modules_as_leaves(name: str) -> None:
    own, patched, x = pair(name)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(patched, torch.nn.ReLU()))
    assert [n.target for n in graph.graph.nodes if n.op == "call_module"] == ["0", "1"]
    assert_close(graph(x), own(x).relu())


def test_symbolic_trace_goes_into_other_modules() -> None:
    patched = Norm(lambda m, x: x * torch.rsqrt((x * x).mean(-1, True) + m.eps) * m.weight)
    wanted = patched(x := torch.randn(3, C))
    fuseline.patch(patched)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(patched))
    assert_close(graph(x), wanted)
    (calls,) = fuseline.patch_status(patched).modules
    assert calls.own == {"x is a Proxy": 1}


@each_norm
def test_compiled_calls_are_the_modules_own(name: str) -> None:
    own, patched, x = pair(name)
    torch._dynamo.reset()
    compiled = torch.compile(patched, fullgraph=True, backend="aot_eager")
    for to in (None, torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast("cpu", to, enabled=to is not None):
                y, wanted = compiled.to(dtype)(x.to(dtype)), own.to(dtype)(x.to(dtype))
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(y, wanted, rtol=4 * eps, atol=8 * eps)
    assert served(patched) == 0
    (graph,) = torch._dynamo.explain(patched)(x.bfloat16()).graphs
    assert "fuseline" not in str([n.target for n in graph.graph.nodes])
    torch._dynamo.reset()


def test_threads_that_run_a_model_while_it_is_patched_and_back() -> None:
    norms = [make() for make in NORMS.values()] * 2
    net = torch.nn.Sequential(*norms).eval()
    x = torch.randn(4, C)
    with torch.no_grad():
        wanted = net(x)
    calls, wrong, done = [0] * 2, [], threading.Event()

    def run(slot: int) -> None:
        while not done.is_set():
            try:
                with torch.no_grad():
                    if not torch.allclose(net(x), wanted, rtol=1e-4, atol=1e-5):
                        wrong.append("values")
            except Exception as error:
                wrong.append(repr(error))
            calls[slot] += 1

    threads = [threading.Thread(target=run, args=(slot,)) for slot in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert len(fuseline.patch(net, impl="cpu").replaced) == len(NORMS)
        assert fuseline.unpatch(net) == len(NORMS)
    done.set()
    for thread in threads:
        thread.join()
    assert min(calls) > 10
    assert not wrong, f"{len(wrong)} of {sum(calls)}: {set(wrong)}"
