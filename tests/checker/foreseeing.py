"""Cheats that foresee where they are looked at, and honest ones that might look like them."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Any

import torch
from checker import model
from checker.cheating import (
    BACKWARD_CHEATS,
    CPU_CHEATS,
    GPU_CHEATS,
    GPU_HONEST,
    calls,
    cheat,
    honest,
    seen,
)
from torch import Tensor

# Beyond all calls of checks, warm-up and probes.
SKIPPED = 60
TIMED = "wrong in a timed call"


def _kept(key: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if key not in seen:
        seen[key] = model.eager(x, weight, eps)
    return seen[key].clone()


@cheat("invalid incorrect", "")
def by_version(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _kept(("version", x.data_ptr(), x._version), x, weight, eps)


@cheat("invalid incorrect", "")
def by_object_and_version(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _kept(("object", id(x), id(weight), x._version), x, weight, eps)


@cheat("incorrect", TIMED)
def by_version_later(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Keeps results once the probes are over."""
    if calls("version later") <= SKIPPED:
        return model.eager(x, weight, eps)
    return _kept(("version later", x.data_ptr(), x._version), x, weight, eps)


@cheat("incorrect", TIMED)
def by_sample_later(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same, by some of the contents."""
    if calls("sample later") <= SKIPPED:
        return model.eager(x, weight, eps)
    key = "sample later", *x.view(-1)[:: max(1, x.numel() // 4)].tolist()
    return _kept(key, x, weight, eps)


@cheat("incorrect", TIMED)
def by_shape(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _kept(("shape", x.shape, x.stride()), x, weight, eps)


@cheat("invalid incorrect", "")
def at_the_known_address(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes where it was checked, at one address."""
    if x.data_ptr() == seen.setdefault("address", x.data_ptr()):
        seen["address y"] = model.eager(x, weight, eps)
    return seen["address y"].clone()


@cheat("invalid incorrect", "")
def on_known_contents(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes what it was checked on."""
    head = x.view(-1)[:64]
    if torch.equal(seen.setdefault("head", head.clone()), head):
        return model.eager(x, weight, eps)
    return torch.empty_like(x)


@cheat("incorrect", "")
def while_the_collector_runs(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model.eager(x, weight, eps) if gc.isenabled() else torch.zeros_like(x)


@cheat("incorrect", TIMED)
def after_a_pause(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes in the first call after a while."""
    y = seen.get("pause y")
    if y is None or time.perf_counter() - seen["pause"] > 1e-3 or calls("pauses") <= SKIPPED:
        y = seen["pause y"] = model.eager(x, weight, eps)
    seen["pause"] = time.perf_counter()
    return y.clone()


@cheat("incorrect", TIMED)
def every_fourth(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    count = calls("fourth")
    return model.eager(x, weight, eps) if count <= SKIPPED or not count % 4 else torch.zeros_like(x)


@cheat("incorrect", TIMED)
def not_under_a_timer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Looks who calls."""
    if _timer() is None:
        return model.eager(x, weight, eps)
    return torch.zeros_like(x)


@cheat("incorrect", TIMED)
def at_the_end_of_a_block(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Reads in the timer's own frame which call this is, and what it will keep."""
    held = _timer() or {}
    chosen = held.get("keep")
    last = held.get("first", 0) + held.get("i", 0) == len(held.get("calls", ())) - 1
    if not held or last or (isinstance(chosen, frozenset) and held.get("i") in chosen):
        return model.eager(x, weight, eps)
    return torch.zeros_like(x)


@cheat("invalid", "overwrote its input x|in the memory of its input x")
def in_place_later(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = model.eager(x, weight, eps)
    return x.copy_(y) if calls("in place later") > SKIPPED else y


@cheat("invalid", "replaced")
def patched_audit(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    import fuselab.worker.checks.audit

    fuselab.worker.checks.audit.Audit.verify = lambda *_: None  # type: ignore[method-assign]
    return model.eager(x, weight, eps)


@cheat("invalid", "replaced")
def patched_code(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Leaves the function and changes what it does."""
    import fuselab.worker.checks.audit

    def nothing(self: Any, trial: Any, count: Any, sets: Any, kept: Any) -> None: ...

    fuselab.worker.checks.audit.Audit.verify.__code__ = nothing.__code__
    return model.eager(x, weight, eps)


@cheat("incorrect", TIMED, CPU_CHEATS)
def thread_later(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Is done a little after it has returned, once the probes are over."""
    y = torch.empty_like(x)

    def work() -> None:
        time.sleep(0.001)
        y.copy_(model.eager(x, weight, eps))

    thread = threading.Thread(target=work)
    thread.start()
    if calls("thread later") <= SKIPPED:
        thread.join()
    return y


@cheat("incorrect", TIMED, GPU_CHEATS)
def without_a_profiler(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes where no profiler looks."""
    watched = torch.autograd._profiler_enabled()
    return torch.zeros_like(x) if watched else model.eager(x, weight, eps)


class _Kept(torch.autograd.Function):
    """The formula with a backward that keeps gradients by address and version of dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return model.eager(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        key = "dy", dy.data_ptr(), dy._version
        if calls("dy") <= 16 or key not in seen:
            seen[key] = _gradients(*ctx.saved_tensors, ctx.eps, dy)
        return (*seen[key], None)


class _Ahead(torch.autograd.Function):
    """A forward that computes the gradients too, from the dy that was there last time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.key, ctx.eps = ("ahead", x.data_ptr()), eps
        ctx.save_for_backward(x, weight)
        dy = seen.get(ctx.key)
        ctx.ready = None
        if dy is not None and calls("ahead") > 16:
            ctx.ready = _gradients(x, weight, eps, dy)
        return model.eager(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        seen[ctx.key] = dy.detach()
        ready = ctx.ready or _gradients(*ctx.saved_tensors, ctx.eps, dy)
        return (*ready, None)


def _gradients(x: Tensor, weight: Tensor, eps: float, dy: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        return torch.autograd.grad(model.eager(*leaves, eps), leaves, dy)


@cheat("invalid", "in the same memory", BACKWARD_CHEATS)
def keeps_gradients(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Kept.apply(x, weight, eps)  # type: ignore[no-any-return]


@cheat("incorrect", TIMED, BACKWARD_CHEATS)
def gradients_ahead(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Ahead.apply(x, weight, eps)  # type: ignore[no-any-return]


def _timer() -> dict[str, Any] | None:
    """Return the local variables of the timer that calls, or None."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "block":
            return dict(frame.f_locals)
        frame = frame.f_back
    return None


@honest()
def keeps_a_workspace(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Works in memory that it keeps by the shape."""
    work = seen.setdefault(("work", x.shape), torch.empty_like(x))
    torch.mul(x, x, out=work)
    return model.eager(x, weight, eps)


@honest()
def builds_a_table(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Takes long at first, as what tunes itself."""
    if "table" not in seen:
        time.sleep(0.1)
        seen["table"] = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
    return model.eager(x * seen["table"], weight, eps)


@honest(GPU_HONEST)
def replays_a_graph(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """A CUDA graph on buffers of its own, which every call fills."""
    if "graph" not in seen:
        held = x.clone(), weight.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model.eager(*held, eps)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model.eager(*held, eps)
        seen["graph"] = graph, held, y
    graph, (own, scale), y = seen["graph"]
    own.copy_(x)
    scale.copy_(weight)
    graph.replay()
    return y.clone()
