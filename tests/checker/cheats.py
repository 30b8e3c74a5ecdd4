"""Implementations that look fast or right without being it; each names the verdict it must get."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from checker import foreseeing, model, withholding
from checker.cheating import (
    BACKWARD_CHEATS,
    CHEATS,
    CPU_CHEATS,
    GPU_CHEATS,
    GPU_HONEST,
    HONEST,
    calls,
    cheat,
    seen,
)
from torch import Tensor

from fuseline.testing import Case, Implementation, OpSpec


@cheat("incorrect", "wrong in a timed call")
def cached_by_pointer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    key = "pointer", x.data_ptr(), weight.data_ptr()
    if key not in seen:
        seen[key] = model.eager(x, weight, eps)
    return seen[key].clone()


@cheat("invalid", "on contents it has seen before")
def remembers_contents(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    key = "contents", *x.view(-1)[:: max(1, x.numel() // 4)].tolist()
    if key not in seen:
        seen[key] = model.eager(x, weight, eps)
    return seen[key]


@cheat("incorrect", "wrong in a timed call")
def warm_only_cache(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if calls("warm") <= 6 or "result" not in seen:
        seen["result"] = model.eager(x, weight, eps)
    return seen["result"].clone()


class Lazy(Tensor):
    """Computes when somebody looks."""

    @staticmethod
    def __new__(cls, make: Callable[[], Tensor], like: Tensor) -> Lazy:
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    def __init__(self, make: Callable[[], Tensor], like: Tensor) -> None:
        self.make = make

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(a.make() if isinstance(a, Lazy) else a for a in args), **(kwargs or {}))


@cheat("incorrect", "Lazy, expected a Tensor")
def lazy_tensor(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return Lazy(lambda: model.eager(x, weight, eps), x)


@cheat("invalid", "replaced")
def patched_timer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    import fuselab.timers.wall

    real = time.perf_counter_ns
    fuselab.timers.wall.perf_counter_ns = lambda: real() // 10
    return model.eager(x, weight, eps)


@cheat("invalid", "replaced")
def patched_comparison(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    torch.equal = lambda a, b: True
    return model.eager(x, weight, eps)


@cheat("incorrect", "wrong in a timed call")
def stale_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Answers with the result of the call before."""
    y = model.eager(x, weight, eps)
    if calls("stale") <= 4:
        seen["stale y"] = y
    before, seen["stale y"] = seen["stale y"], y
    return before


@cheat("invalid incorrect", "changed after the call had returned|wrong in a timed call")
def background_thread(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x)

    def work() -> None:
        time.sleep(0.001)
        y.copy_(model.eager(x, weight, eps))

    thread = threading.Thread(target=work)
    thread.start()
    if calls("thread") <= 4:
        thread.join()
    return y


@cheat("incorrect", "above the limit")
def precision_downgrade(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model.eager(x.bfloat16(), weight.bfloat16(), eps).to(x.dtype)


@cheat("incorrect", "")
def skipped_tail(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x)
    y[:-1] = model.eager(x[:-1], weight, eps)
    return y


@cheat("invalid", "overwrote its input x")
def in_place_on_input(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.copy_(model.eager(x, weight, eps))


@cheat("invalid incorrect", "wrong in a timed call|in the same memory")
def skips_repeats(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Does nothing where the first element is that of the last call to this address."""
    key = "first", x.data_ptr()
    if calls("skips") > 6 and key in seen:
        return seen[key]
    seen[key] = model.eager(x, weight, eps)
    return seen[key]


@cheat("incorrect", "wrong in a timed call")
def right_until_timed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = model.eager(x, weight, eps)
    return y if calls("until") <= 6 else torch.zeros_like(y)


@cheat("invalid", "changed after the call had returned|on another stream", GPU_CHEATS)
def side_stream(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes where nobody waits for it, and takes its time."""
    y = torch.empty_like(x)
    with torch.cuda.stream(_side()):
        torch.cuda._sleep(5_000_000)
        y.copy_(model.eager(x, weight, eps))
    if calls("side") <= 4:
        torch.cuda.synchronize()
    return y


@cheat("invalid", "on another stream", GPU_CHEATS)
def side_stream_when_timed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same, once the questions are over and the timer's profiler watches."""
    y = torch.empty_like(x)
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(5_000_000)  # longer than a slow host takes to return
        y.copy_(model.eager(x, weight, eps))
    if not torch.autograd._profiler_enabled():
        torch.cuda.current_stream().wait_stream(side)
    return y


@cheat("invalid", "replaced", GPU_CHEATS)
def patched_profiler(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    import fuselab.timers.cupti

    real = fuselab.timers.cupti.device_events
    fuselab.timers.cupti.device_events = lambda events: real(events)[::2]
    return model.eager(x, weight, eps)


@cheat("invalid", "replaced", GPU_CHEATS)
def patched_event(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    torch.cuda.Event.elapsed_time = lambda self, other: 1e-3
    return model.eager(x, weight, eps)


def _side() -> Any:
    if "stream" not in seen:
        seen["stream"] = torch.cuda.Stream()
    return seen["stream"]


@torch._dynamo.disable
def _not_compiled(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return model.eager(x, weight, eps)


def never_compiles(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _not_compiled(x, weight, eps)


ALL = CHEATS | CPU_CHEATS | GPU_CHEATS | BACKWARD_CHEATS


def specs() -> list[OpSpec]:
    """One operator a cheat, so that each has a worker's attention to itself."""
    base = replace(
        model.spec(model.eager),
        cases=(Case("256x2048", {"shape": (256, 2048)}),),
        dtypes=(torch.float32,),
    )
    caught = {name: fn for name, (fn, _, _) in ALL.items()}
    made = [
        replace(
            base,
            name=name,
            implementations=(
                Implementation(name, fn),
                Implementation("eager", model.eager, "eager"),
            ),
        )
        for name, fn in {**caught, **HONEST, **GPU_HONEST}.items()
    ]
    fallback = Implementation("eager", never_compiles, "eager")
    return [*made, replace(base, name="never_compiles", implementations=(fallback,))]


assert foreseeing.SKIPPED  # its cheats have entered themselves
assert withholding.LATER
SPECS = specs()
