"""The process that compiles, with an answer a subject.

The tuner is private to torch: `CachingAutotuner` of torch 2.10 on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from fuselab.candidates import choices
from fuselab.candidates.record import Candidate, Kernel, Tuned
from fuselab.compiling.subjects import subject
from fuselab.processes import child

TUNINGS = 10


def main() -> None:
    asked = child.question()
    logging.getLogger("torch").setLevel(logging.ERROR)
    for name in asked["subjects"]:
        child.answer(asdict(_tuned(name, asked["device"], asked["max_autotune"])))


def _tuned(name: str, device: str, max_autotune: bool) -> Tuned:
    torch._dynamo.reset()
    options: dict[str, str | int | bool | Any] = {"max_autotune": max_autotune}
    try:
        target = subject(name, device)
        compiled = torch.compile(target.function, dynamic=False, options=options)
        with choices.watched(TUNINGS) as chosen, _watched() as kernels:
            compiled(*target.inputs(target.sizes[-1]))
    except Exception as error:
        return Tuned(name, max_autotune, error=child.told(error))
    return Tuned(name, max_autotune, (*chosen, *kernels))


@contextmanager
def _watched() -> Iterator[list[Kernel]]:
    """Have every kernel's first launch time all its candidates before the tuner chooses."""
    found: list[Kernel] = []
    seen: set[int] = set()
    run: Callable[..., Any] = CachingAutotuner.run

    def watched(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        # The scheduler's trials of a fusion are no kernels of the program yet.
        trial = kwargs.get("benchmark_run") or "Placeholder" in _name(tuner)
        if id(tuner) in seen or trial:
            return run(tuner, *args, **kwargs)
        seen.add(id(tuner))
        tried = _candidates(tuner, args, {k: v for k, v in kwargs.items() if k != "stream"})
        out = run(tuner, *args, **kwargs)
        found.append(_kernel(tuner, tried))
        return out

    CachingAutotuner.run = watched  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        CachingAutotuner.run = run  # type: ignore[method-assign]


def _candidates(tuner: Any, args: Any, kwargs: Any) -> tuple[Candidate, ...]:
    if not tuner.launchers:
        tuner.precompile()
    launchers = list(tuner.launchers)
    rounds = [
        [1e3 * tuner.bench(each, *args, **kwargs) for each in launchers] for _ in range(TUNINGS)
    ]
    return tuple(
        Candidate(
            _text(launcher.config),
            us,
            getattr(launcher, "n_regs", None),
            getattr(launcher, "n_spills", None),
            getattr(launcher, "shared", None),
        )
        for launcher, us in zip(launchers, zip(*rounds, strict=True), strict=True)
    )


def _kernel(tuner: Any, tried: tuple[Candidate, ...]) -> Kernel:
    meta = tuner.inductor_meta
    return Kernel(
        name=_name(tuner),
        heuristic=str(getattr(tuner.heuristic_type, "name", tuner.heuristic_type)).lower(),
        size_hints=str(tuner.size_hints),
        reduction_hint=str(getattr(meta.get("reduction_hint"), "name", meta.get("reduction_hint"))),
        candidates=tried,
        kept=_text(tuner.launchers[0].config),
    )


def _name(tuner: Any) -> str:
    return str(tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__)


def _text(config: Any) -> str:
    blocks = ", ".join(f"{name} {value}" for name, value in config.kwargs.items())
    return ", ".join(
        filter(None, [blocks, f"{config.num_warps} warps", f"{config.num_stages} stages"])
    )


if __name__ == "__main__":
    main()
