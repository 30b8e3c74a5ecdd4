"""The process that compiles, with an answer a subject, as it is done.

Seconds of the first compiled call, with the caches that there are; if cold, the modes "as it is"
and "static" too, for which caches are off, and microseconds of a call of each. `noise` says why the
times are not to be relied on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any

import torch
from torch.utils.benchmark import Timer

from fuselab.compiling.subjects import subject
from fuselab.explain.observe import observe
from fuselab.explain.record import AS_IS, STATIC
from fuselab.machine.load import OtherLoad, told
from fuselab.processes import child
from fuselab.statistics import stats

TIMED_S = 0.2


def main() -> None:
    asked = child.question()
    device = asked["device"]
    logging.getLogger("torch").setLevel(logging.ERROR)
    # What the first compilation of a process takes (imports, precompiled headers) is no subject's.
    torch.compile(torch.cos, dynamic=False)(torch.randn(8, device=device))
    for name in asked["subjects"]:
        child.answer({"subject": name} | _one(name, device, asked["cold"]))


def _one(name: str, device: str, all_of_it: bool) -> dict[str, Any]:
    torch._dynamo.reset()
    try:
        target = subject(name, device)
        given = [tuple(target.inputs(size)) for size in target.sizes]
        with OtherLoad(_threads(device)) as load:
            first_s = _first(target.function, given[0], device)
        if not all_of_it:
            return {"first_s": first_s, "noise": load.disturbance}
        torch._dynamo.reset()
        eager, expected = observe(AS_IS, target.function, target.sizes, given, None, device)
        compiled = torch.compile(target.function, dynamic=False)
        static, _ = observe(STATIC, compiled, target.sizes, given, expected, device)
        times = [_us(f, given[0], device) for f in (target.function, compiled)]
    except Exception as error:
        return {"error": child.told(error)}
    return {
        "first_s": first_s,
        "modes": [asdict(eager), asdict(static)],
        "us": [us for us, _ in times],
        "noise": told(load.disturbance, *(noise for _, noise in times)),
    }


def _threads(device: str) -> int:
    return torch.get_num_threads() if device == "cpu" else 1


def _first(function: Callable[..., Any], given: tuple[Any, ...], device: str) -> float:
    """Return seconds of the first call of the compiled function."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    begin = perf_counter()
    torch.compile(function, dynamic=False)(*given)
    wait()
    return perf_counter() - begin


def _us(function: Callable[..., Any], given: tuple[Any, ...], device: str) -> tuple[float, str]:
    """Return microseconds of a call among its like, and what makes them noisy.

    On a GPU the calls do not wait for each other.
    """
    names = {"function": function, "given": given}
    timer = Timer("function(*given)", globals=names, num_threads=torch.get_num_threads())
    with OtherLoad(_threads(device)) as load:
        found = timer.blocked_autorange(min_run_time=TIMED_S)
    return 1e6 * found.median, told(load.disturbance, stats.scatter(found.times))


if __name__ == "__main__":
    main()
