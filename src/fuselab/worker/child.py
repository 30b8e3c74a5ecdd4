"""A plain process that makes one measurement of a few cells and writes it as JSON.

`python -m fuselab.worker.child MODE REQUEST ANSWER`, started by `fuselab.counters.launch`.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.utils.benchmark import Timer

from fuselab import environment
from fuselab.counters import durations, energy, ncu, perf_event, traffic
from fuselab.counters.launch import LOADED
from fuselab.metric import Subject
from fuselab.model import Group
from fuselab.records import columns
from fuselab.timers import Call
from fuselab.worker.implementations import baselines
from fuselab.worker.measuring.rounds import scrubber
from fuselab.worker.measuring.timing import Arena
from fuselab.worker.protocol import describe, synchronize
from fuselab.worker.tensors.inputs import COLD_FACTOR, cache_bytes
from fuselab.worker.tensors.problem import Problem, build, rotation

WARM_CALLS = 3
COUNTED_CALLS = 10
# Callgrind is fifty times as slow as the call, and always counts the same.
WATCHED_CALLS = 2
CHUNK_S = 0.02
ROUNDS = 5

Task = dict[str, Any]
Figures = dict[str, float]

_open = ExitStack()  # as long as the process


def main(mode: str, request: str, answer: str) -> None:
    """Answer every task of the request: figures by name, or the error."""
    answers: list[dict[str, Any]] = []
    for index, task in enumerate(json.loads(Path(request).read_text())):
        try:
            with baselines.around(task["impl"]):
                answers.append(MODES[mode](task, index))
        except (Exception, SystemExit) as error:
            answers.append({"error": describe(error)})
    Path(answer).write_text(json.dumps(answers))


def compile_time(task: Task, index: int) -> Figures:
    """Return the seconds from before the implementation is made to the end of its first call."""
    problem = _problem(task)
    importlib.import_module("torch._dynamo")  # seconds that are no compilation
    synchronize(problem.device)
    begin = perf_counter()
    fn = baselines.make(problem.spec, task["impl"], problem.device.type)
    problem.call_on(fn, problem.first)()
    synchronize(problem.device)
    return {"seconds": perf_counter() - begin}


def instructions(task: Task, index: int) -> Figures:
    """Return the instructions of one call by perf_event, on one thread."""
    torch.set_num_threads(1)
    with perf_event.Event(perf_event.HARDWARE, perf_event.INSTRUCTIONS) as event:
        (call,) = _calls(task, 1)
        _repeat(call, WARM_CALLS)
        before = event.read()
        _repeat(call, COUNTED_CALLS)
        return {"instructions": (event.read() - before) / COUNTED_CALLS}


def callgrind(task: Task, index: int) -> Figures:
    """Return the instructions of one call by callgrind, in a process that Timer starts."""
    setup = f"from fuselab.worker import child\ncall = child.single({json.dumps(task)!r})"
    try:
        stats = Timer("call()", setup).collect_callgrind(
            WATCHED_CALLS, repeats=None, collect_baseline=False, retain_out_file=False
        )
    except OSError as error:
        raise RuntimeError(_why_callgrind(str(error))) from error
    return {"instructions": stats.counts() / WATCHED_CALLS}


def _why_callgrind(said: str) -> str:
    """Return what stopped callgrind, from all that it printed."""
    if "Unrecognised instruction" in said:
        return "it executes an instruction that callgrind does not know (AVX-512, as a rule)"
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def single(task: str) -> Call:
    """Return a call on the first input set that can run any number of times."""
    asked = json.loads(task)
    _open.enter_context(baselines.around(asked["impl"]))
    return _calls(asked, 1)[0]


def memory_traffic(task: Task, index: int) -> Figures:
    """Return the bytes that the machine moved per call, in the quietest of a few rounds."""
    calls = _calls(task)
    _each(calls)
    found = []
    with traffic.Meter(traffic.READS) as reads, traffic.Meter(traffic.WRITES) as writes:
        for _ in range(ROUNDS):
            before = reads.read(), writes.read()
            _each(calls)
            found.append((reads.read() - before[0], writes.read() - before[1]))
    read, written = min(found, key=sum)
    return {"dram_read_bytes": read / len(calls), "dram_write_bytes": written / len(calls)}


def joules(task: Task, index: int) -> Figures:
    """Return the energy of one call, from back-to-back calls over rotating inputs."""
    device = _device(task)
    library = environment.nvml()
    if library is None:
        raise RuntimeError("NVML does not start; is the driver's libnvidia-ml installed?")
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    handle = library.nvmlDeviceGetHandleByUUID(uuid)
    calls = _calls(task)
    _each(calls)
    synchronize(device)
    begin = perf_counter()
    _each(calls)
    synchronize(device)
    turns = max(1, int(CHUNK_S / (perf_counter() - begin)))

    def chunk() -> int:
        for _ in range(turns):
            _each(calls)
        synchronize(device)
        return turns * len(calls)

    return {
        "joules": energy.joules_per_call(
            chunk, lambda: int(library.nvmlDeviceGetTotalEnergyConsumption(handle))
        )
    }


def ranges(task: Task, index: int) -> Figures:
    """Run one call with cold caches inside an NVTX range, for ncu, which does the counting.

    The range is of the process: the backward runs on a thread of autograd's.
    """
    problem = _problem(task)
    fn = baselines.make(problem.spec, task["impl"], problem.device.type)
    for _ in range(WARM_CALLS):
        problem.call_on(fn, problem.first)()
    call = problem.call_on(fn, problem.first)
    _empty_cache(problem.device)
    synchronize(problem.device)
    opened = torch.cuda.nvtx.range_start(ncu.RANGE.format(index))
    call()
    synchronize(problem.device)
    torch.cuda.nvtx.range_end(opened)
    return {}


def block(task: Task, index: int) -> Figures:
    """Run a block of calls as the lab's rounds do, some of them inside NVTX ranges, for ncu."""
    gc.collect()
    torch.cuda.empty_cache()
    problem = _problem(task)
    fn = baselines.make(problem.spec, task["impl"], problem.device.type)
    for _ in range(WARM_CALLS):
        problem.call_on(fn, problem.first)()
    problem.grow(task["sets"])
    scrub = scrubber(Arena(problem.device, task["sets"], problem.first.nbytes))
    calls = problem.calls(fn, task["calls"], task["sets"])
    numbers = durations.ranges(index, task["calls"], task["watched"])
    scrub()
    # Results stay alive, so that each call writes to memory which is not in the cache.
    results = [_in_range(call, numbers.get(place)) for place, call in enumerate(calls)]
    synchronize(problem.device)
    return {"calls": len(results)}


def _in_range(call: Call, number: int | None) -> object:
    if number is None:
        return call()
    opened = torch.cuda.nvtx.range_start(ncu.RANGE.format(number))
    result = call()
    torch.cuda.nvtx.range_end(opened)
    return result


def collected(task: Task, index: int) -> Figures:
    """Return what the metric of a plug-in makes of a call, once it has been made."""
    name, problem = task["metric"], _problem(task)
    metric = columns.known(name)
    if metric.collect is None:
        raise RuntimeError(f"metric {name!r}: its plug-in cannot be loaded here")
    fn = baselines.make(problem.spec, task["impl"], problem.device.type)
    call = problem.call_on(fn, problem.first, keep=True)
    _repeat(call, WARM_CALLS)
    value = metric.collect(Subject(call, problem.first.inputs, str(problem.device)))
    if not 0 <= value < math.inf:
        raise ValueError(f"metric {name!r}: got {value!r}, expected a finite number from 0 on")
    return {name: float(value)}


MODES: dict[str, Callable[[Task, int], Figures]] = {
    "compile": compile_time,
    "perf_event": instructions,
    "callgrind": callgrind,
    "traffic": memory_traffic,
    "energy": joules,
    "ranges": ranges,
    "durations": block,
    "collect": collected,
}


def _problem(task: Task) -> Problem:
    found = task["group"]
    group = Group(**{**found, "impls": tuple(found["impls"])})
    if group.device.startswith("cuda"):
        torch.cuda.set_device(_device(task))
    problem = build(group, lambda *event: None)
    torch.set_grad_enabled(problem.direction == "bwd")
    return problem


def _device(task: Task) -> torch.device:
    return torch.device(task["group"]["device"])


def _calls(task: Task, sets: int = 0) -> list[Call]:
    """Return a call on each of so many input sets (0: as many as make it cold), to repeat."""
    problem = _problem(task)
    # A compiled backward may otherwise write over what it must keep here.
    torch._functorch.config.donated_buffer = False
    fn = baselines.make(problem.spec, task["impl"], problem.device.type)
    problem.grow(sets or rotation(problem, sys.maxsize))
    return [problem.call_on(fn, turn, keep=True) for turn in problem.sets]


def _empty_cache(device: torch.device) -> None:
    scratch = torch.rand(COLD_FACTOR * cache_bytes(device) // 4, device=device)
    scratch.sum()


def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def _each(calls: list[Call]) -> None:
    for call in calls:
        call()


if __name__ == "__main__":
    # What implementations print goes to where the errors go; nobody reads it.
    os.dup2(2, 1)
    Path(sys.argv[2]).with_name(LOADED).touch()
    sys.stdin.read()  # until the others of its batch are loaded too
    main(*sys.argv[1:])
