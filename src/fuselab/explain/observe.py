"""Runs the function in each mode and notes what torch.compile did."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map

from fuselab.explain.randomness import Randomness, Sources, eagers_numbers
from fuselab.explain.record import AS_IS, DYNAMIC, STATIC, Break, Explanation, Mode, Size
from fuselab.explain.target import Target
from fuselab.fusion.compiler import Watch
from fuselab.fusion.ledger import Ledger
from fuselab.machine.load import OtherLoad, told
from fuselab.statistics import stats

# Rounding of fp32, and of the halves, relative to the largest value.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Later calls are timed for so many seconds: a load of others is not seen in less.
LATER, MOST_LATER, LATER_S = 5, 10_000, 0.1
_API = ("cuda", "cuLaunch")
_NUMBERS = (torch.Tensor, bool, int, float, complex)


def explain(target: Target, device: str, backend: str = "inductor") -> Explanation:
    """Return the function's modes: as it is, compiled for each size, compiled for any size."""
    # The same values for all modes: made once, copied for each call.
    arguments = [tuple(target.inputs(size)) for size in target.sizes]
    tolerance = _tolerance(arguments)
    modes, expected = [], None
    for name, function in _modes(target.function, backend):
        mode, results = observe(name, function, target.sizes, arguments, expected, device)
        modes.append(mode)
        if modes[0].error:
            break  # what raises as it is has nothing to be compared with

        def call(i: int, function: Callable[..., Any] = function) -> Any:
            return _timed(function, arguments[i], device)[1]

        if expected is None:
            expected = results
            sources = Sources(function, device)
            found = Randomness(call, len(arguments), sources, partial(_differ, tolerance))
        elif found.random:
            modes[-1] = _under_one_seed(mode, call, found)
    return Explanation(
        function=target.name,
        place=target.place,
        device=device,
        torch=torch.__version__,
        modes=tuple(modes),
        tolerance=tolerance,
        random="" if modes[0].error else found.told,
    )


def _under_one_seed(mode: Mode, call: Callable[[int], Any], found: Randomness) -> Mode:
    """Return the mode with the differences that remain where both sides draw the same numbers."""
    away = replace(mode, sizes=tuple(replace(size, compared=False) for size in mode.sizes))
    if mode.error or not found.seeded:
        return away
    sizes = []
    with Watch(), warnings.catch_warnings(), eagers_numbers():
        warnings.simplefilter("ignore")
        try:
            for i, size in enumerate(mode.sizes):
                call(i)  # compiles
                difference = _difference(found.seeded_call(call, i), found.expected[i])
                sizes.append(replace(size, difference=difference))
        except Exception:  # torch's own of an operator that has no such code
            return away
    return replace(mode, sizes=tuple(sizes))


def _differ(tolerance: float, a: Any, b: Any) -> bool:
    difference = _difference(a, b)
    return difference is None or difference > tolerance


def _modes(function: Callable[..., Any], backend: str) -> Iterable[tuple[str, Callable[..., Any]]]:
    yield AS_IS, function
    # Compiling is lazy: what was compiled for one mode is forgotten before the next.
    yield STATIC, torch.compile(function, dynamic=False, backend=backend)
    yield DYNAMIC, torch.compile(function, dynamic=True, backend=backend)


def observe(
    name: str,
    function: Callable[..., Any],
    sizes: Sequence[Any],
    arguments: Sequence[tuple[Any, ...]],
    expected: list[Any] | None,
    device: str,
) -> tuple[Mode, list[Any]]:
    """Return one mode and its results by size; `expected` are eager's, None for eager itself.

    A result is what the call returned and its arguments afterwards.
    """
    results: list[Any] = []
    seen: list[Size] = []
    mode = Mode(name)
    with Watch() as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for i, (size, given) in enumerate(zip(sizes, arguments, strict=True)):
                first, later, out, noise = _times(function, given, device)
                results.append(out)
                difference = 0.0 if expected is None else _difference(out, expected[i])
                seen.append(Size(str(size), first, 1e6 * later, difference, noise))
            mode = replace(mode, peak=_peak(function, arguments[-1], device))
        except Exception as error:
            text = str(error).strip().splitlines()
            mode = replace(mode, error=f"{type(error).__name__}: {text[0] if text else ''}")
        mode = replace(
            mode,
            breaks=_breaks(watch),
            recompiles=watch.recompiles(),
            limits=watch.limits(),
            phases=watch.seconds(),
            sizes=tuple(seen),
        )
        if not mode.error:
            mode = _kernels(mode, watch, function, arguments[-1], device)
    return mode, results


def _kernels(
    mode: Mode, watch: Watch, function: Callable[..., Any], given: tuple[Any, ...], device: str
) -> Mode:
    """Add the kernels of one call, by who made them, and on a GPU its launches."""
    ready = _copies(given)
    with Ledger() as ledger:
        watch.ledger = ledger
        function(*ready)
    watch.ledger = None
    kernels: dict[str, tuple[str, ...]] = {}
    for kernel in ledger.kernels:
        kernels[kernel.maker] = (*kernels.get(kernel.maker, ()), kernel.name)
    names = [kernel.name for kernel in ledger.kernels]
    unfused = tuple(f"{names[u.first]} | {names[u.second]}: {u.reason}" for u in ledger.unfused)
    launches = _launches(function, given) if device.startswith("cuda") else {}
    return replace(mode, kernels=kernels, unfused=unfused, graphs=ledger.graphs, launches=launches)


def _launches(function: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, int]:
    ready = _copies(given)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        function(*ready)
        torch.cuda.synchronize()
    names = Counter(event.name for event in recorded.events() or [])
    return {name: count for name, count in sorted(names.items()) if name.startswith(_API)}


def _breaks(watch: Watch) -> tuple[Break, ...]:
    texts, hints = watch.breaks(), watch.hints()
    parts = [text.partition(" | ") for text in texts]
    padded = [*hints, *[""] * (len(texts) - len(hints))]
    return tuple(Break(p[0], p[2], hint) for p, hint in zip(parts, padded, strict=False))


def _times(
    function: Callable[..., Any], given: tuple[Any, ...], device: str
) -> tuple[float, float, Any, str]:
    """Return seconds of the first and of a later call, the first result, what makes them noisy."""
    threads = torch.get_num_threads() if device == "cpu" else 1
    with OtherLoad(threads) as before:
        first, out = _timed(function, given, device)
    later: list[float] = []
    with OtherLoad(threads) as load:
        end = perf_counter() + LATER_S
        while len(later) < LATER or (perf_counter() < end and len(later) < MOST_LATER):
            later.append(_timed(function, given, device)[0])
    noise = told(before.disturbance, load.disturbance, stats.scatter(later))
    return first, stats.median(later), out, noise


def _timed(function: Callable[..., Any], given: tuple[Any, ...], device: str) -> tuple[float, Any]:
    ready = _copies(given)
    _wait(device)
    begin = perf_counter()
    out = function(*ready)
    _wait(device)
    return perf_counter() - begin, (out, ready)  # it may write to its arguments


def _peak(function: Callable[..., Any], given: tuple[Any, ...], device: str) -> int:
    """Return bytes of torch's allocator beyond what was there before the call."""
    ready = _copies(given)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(*ready)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        out = function(*ready)
    del out  # not before: the peak may be at the end
    events = (e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]")
    steps = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    most: int = max(accumulate(steps, initial=0))
    return most


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _copies(given: tuple[Any, ...]) -> tuple[Any, ...]:
    copied: tuple[Any, ...] = tree_map(_copy, given)
    return copied


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, torch.nn.Module):
        return deepcopy(leaf)
    if isinstance(leaf, torch.Generator):
        return leaf.clone_state()
    if not isinstance(leaf, torch.Tensor):
        return leaf
    copied = leaf.detach().clone()
    dense = leaf.layout is torch.strided and type(leaf) is torch.Tensor
    if dense and copied.stride() != leaf.stride() and 0 not in leaf.stride():
        copied = torch.empty_strided(
            leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
        ).copy_(copied)
    return copied.requires_grad_(leaf.requires_grad)


def _difference(out: Any, expected: Any) -> float | None:
    """Return the largest difference over the largest value, None if the shapes differ."""
    ours, theirs = (
        [torch.as_tensor(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, _NUMBERS)]
        for tree in (out, expected)
    )
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        return None
    pairs = zip(ours, theirs, strict=True)
    return max((_off(_reals(a), _reals(b)) for a, b in pairs if a.numel()), default=0.0)


def _reals(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return torch.view_as_real(t.to(torch.complex128)) if t.is_complex() else t.double()


def _off(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference over the largest finite |b|; infinite if NaN or Inf differ."""
    same = (a == b) | (a.isnan() & b.isnan())
    gap = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    largest = b.abs().nan_to_num(nan=0.0, posinf=0.0).max()
    return (gap.max() / largest.clamp_min(1e-30)).item()


def _tolerance(arguments: Sequence[tuple[Any, ...]]) -> float:
    found = [
        TOLERANCE[t.dtype]
        for t in tree_leaves(arguments)
        if isinstance(t, torch.Tensor) and t.dtype in TOLERANCE
    ]
    return max(found, default=TOLERANCE[torch.float32])
