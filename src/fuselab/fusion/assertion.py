"""The assertion: calls of a function, what they were seen to do, and the terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuselab.fusion import device, message
from fuselab.fusion.compiler import Watch
from fuselab.fusion.ledger import Ledger
from fuselab.fusion.record import Fusion, Kernel
from fuselab.fusion.regions import Regions, tensors
from fuselab.fusion.terms import Terms

Function = Callable[..., Any]
WARM_CALLS = 3
RESIZED = "a graph ran at other sizes than those at which Inductor counted its bytes"


def assert_fused(
    fn: Function,
    *inputs: Any,
    kernels: int | None = 1,
    traffic: float | None = 1.05,
    breaks: int | None = 0,
    recompiles: int | None = 1,
    peak: float | None = None,
) -> Fusion:
    """Assert that a call fn(*inputs) runs few kernels that move few bytes.

    fn          any function: eager, compiled by torch.compile, around kernels of Triton or CUDA.
                It is called `recompiles` + 2 times and then to be counted, on the same inputs
    kernels     most kernels of a call. CPU: those of torch.compile's scheduler, and operators that
                torch dispatched. GPU: kernels, copies and fills seen on the device
    traffic     most bytes moved, over the least: each distinct input read once, each result and
                each changed input written once
    breaks      most graph breaks, functions that torch.compile left to eager among them
    recompiles  most compilations of a function beyond its first
    peak        most bytes allocated at once, over those of the results: 1.0 is no other buffer

    None leaves a term out. Each assertion begins with `torch._dynamo.reset()`, compiles without
    caches, and ends with another reset.

    Returns what was seen. Raises AssertionError with the kernels, the scheduler's reasons, graph
    breaks and causes of recompilation if a term does not hold or could not be measured; TypeError
    or ValueError for a bad argument before fn is called.
    """
    __tracebackhide__ = True
    terms = Terms(kernels, traffic, breaks, recompiles, peak)
    found = measure(fn, *inputs, calls=(recompiles or 0) + 2, peak=peak is not None)
    verdicts = terms.verdicts(found)
    if not all(verdict.holds for verdict in verdicts):
        raise AssertionError(message.text(found, verdicts))
    return found


def measure(fn: Function, *inputs: Any, calls: int = WARM_CALLS, peak: bool = False) -> Fusion:
    """Return what a call fn(*inputs) does after so many others, without judging it."""
    if not callable(fn):
        raise TypeError(f"fn: got {type(fn).__name__}, expected a function")
    with Watch() as watch:

        def call() -> Any:
            return fn(*inputs)

        for _ in range(calls):
            results = call()
        breaks, recompiles = watch.breaks(), watch.recompiles()
        if _compiled(fn) is not None and not (watch.captured or breaks):
            breaks = ("torch.compile made no graph: all of it runs in eager",)
        place = _device(fn, inputs, results)
        del results

        with Ledger() as ledger:
            watch.ledger = ledger
            counted = call()
        watch.ledger = None
        planned = tuple(ledger.kernels)
        kernels = planned if place.type == "cpu" else device.kernels(call)
        unmeasured = RESIZED if ledger.resized else _unexplained(kernels, planned)
        return Fusion(
            name=_name(fn),
            kernels=kernels,
            planned=planned,
            moved=None if unmeasured else ledger.moved,
            least=ledger.least(counted),
            unmeasured=unmeasured,
            unfused=tuple(ledger.unfused),
            graphs=ledger.graphs,
            breaks=breaks,
            recompiles=recompiles,
            peak=device.peak(call, place) if peak else None,
            outputs=Regions(ledger.new(counted)).nbytes,
        )


def _unexplained(kernels: Sequence[Kernel], planned: Sequence[Kernel]) -> str:
    """Return why the bytes of kernels seen on a device are not known, or ""."""
    if len(kernels) == len(planned):
        return ""
    return (
        f"the device ran {len(kernels)} kernels and torch's operators and compiled graphs account "
        f"for {len(planned)}, so the bytes of the others are not known"
    )


def _device(fn: Function, *trees: Any) -> torch.device:
    """Return the device of the call: the GPU if a tensor of it is there."""
    owner = getattr(fn, "__self__", fn)
    held = list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []
    devices = {tensor.device for tensor in [*tensors(trees), *held]}
    strange = sorted({place.type for place in devices} - {"cpu", "cuda"})
    if strange:
        raise ValueError(f"inputs: got a tensor on {strange[0]}, expected cpu or cuda")
    return next((place for place in devices if place.type == "cuda"), torch.device("cpu"))


def _compiled(fn: Function) -> Any:
    """Return what torch.compile was given to make fn, or None."""
    return getattr(fn, "_torchdynamo_orig_callable", None) or getattr(fn, "_orig_mod", None)


def _name(fn: Function) -> str:
    inner = _compiled(fn) or fn
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))
