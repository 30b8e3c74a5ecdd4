"""Watches the choice of an algorithm for a matrix product: ATen's or one of Triton's templates.

The selector is private to torch: `AlgorithmSelectorCache` of torch 2.10 on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch._inductor.codecache import PyCodeCache
from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller

from fuselab.candidates.record import Candidate, Kernel


@contextmanager
def watched(tunings: int) -> Iterator[list[Kernel]]:
    """Have every choice timed so many times; the selector goes by the first, as it would alone."""
    found: list[Kernel] = []
    timed: Callable[..., dict[Any, float]] = AlgorithmSelectorCache.benchmark_choices

    def again(_: type, choices: Sequence[Any], *args: Any, **kwargs: Any) -> dict[Any, float]:
        rounds = [timed(choices, *args, **kwargs) for _ in range(tunings)]
        found.append(kernel(rounds))
        return rounds[0]

    AlgorithmSelectorCache.benchmark_choices = classmethod(again)  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        AlgorithmSelectorCache.benchmark_choices = timed  # type: ignore[method-assign]


def kernel(rounds: Sequence[dict[Any, float]]) -> Kernel:
    """Return what the rounds say, without the choices that failed in one."""
    first = rounds[0]
    shapes = [tuple(map(int, node.get_size())) for node in next(iter(first)).input_nodes]
    ran = [choice for choice in first if all(math.isfinite(r[choice]) for r in rounds)]
    return Kernel(
        name=next(re.sub(r"^triton_|_\d+$", "", choice.name) for choice in first),
        heuristic="choice of algorithm",
        size_hints=" x ".join(map(str, shapes)),
        reduction_hint="none",
        candidates=tuple(_candidate(c, tuple(1e3 * r[c] for r in rounds)) for c in ran),
        kept=_text(min(first, key=first.__getitem__)),
    )


def _candidate(choice: Any, us: tuple[float, ...]) -> Candidate:
    if not isinstance(choice, TritonTemplateCaller):
        return Candidate(_text(choice), us, None, None, None)
    request = choice.bmreq
    module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    launcher = getattr(module, request.kernel_name).launchers[0]
    return Candidate(_text(choice), us, launcher.n_regs, launcher.n_spills, launcher.shared)


def _text(choice: Any) -> str:
    """Return a template's name with its tile (M, K, N), or the library's name for the others."""
    about = choice.info_dict() if isinstance(choice, TritonTemplateCaller) else {}
    if "tile_shape" not in about:
        return str(choice.name)
    tile, warps, stages = (about[k] for k in ("tile_shape", "num_warps", "num_stages"))
    return f"{choice.name}: tile {tile}, {warps} warps, {stages} stages"
