"""fuselab doctor: what works on this machine, what does not, why, and the remedy."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from fuselab import environment, plugins, rivals
from fuselab.commands import exits, select
from fuselab.commands.measuring.selftest import BAD, GOOD, NOTE, QUIET, Item, findings, tables
from fuselab.machine import roofs
from fuselab.machine.lock import device_lock
from fuselab.machine.roofs import Roofs
from fuselab.records import columns
from fuselab.runner import Worker, WorkerError
from fuselab.worker import entry
from fuselab.worker.implementations import baselines
from fuselab.worker.operators import specs
from fuseline.core import host, native

# The binary holds a static CUDA 13 runtime, which needs this driver or a newer one.
DRIVER_FLOOR = 580
FLOOR = f"the CUDA 13 runtime in the binary needs NVIDIA driver {DRIVER_FLOOR} or newer"


def run(*, device: str | None = None, as_json: bool = False) -> int:
    """Print the findings; 1 if one of them is bad."""
    chosen = select.device_of(device)
    items = [*_binary(), *_software(), *_driver(), *_plugins()]
    facts: dict[str, Any] = {}
    measured: Roofs | None = None
    try:
        with device_lock(chosen), Worker(entry.main, chosen) as worker:
            reply = worker.ask("selftest")
            facts = worker.environment
    except WorkerError as error:
        items.append(Item("worker", BAD, str(error), "run again with --device cpu"))
    else:
        if reply.death or not reply.results:
            reason = reply.death.reason if reply.death else "the self-test gave no answer"
            items.append(Item("self-test", BAD, reason, QUIET))
        else:
            items += findings(chosen, reply.results[0])
            measured = _kept(facts, reply.results[0])
    if as_json:
        found = {"items": [asdict(item) for item in items], "environment": facts}
        print(json.dumps(found | ({"roofs": asdict(measured)} if measured else {})))
    else:
        _print(items, facts)
        if measured:
            print(f"\n{tables(measured)}")
    return exits.FAILED if any(item.state == BAD for item in items) else exits.OK


def _kept(facts: Mapping[str, Any], found: Mapping[str, Any]) -> Roofs | None:
    return roofs.save(facts, found["roofs"]) if "roofs" in found else None


def _binary() -> Iterator[Item]:
    found = native.status()
    if found.state != "loaded":
        state = BAD if found.state == "broken" else NOTE
        yield Item("binary", state, f"{found.state}: {found.cause}", found.remedy)
        return
    build = ", ".join(f"{name} {value}" for name, value in found.build.items() if value)
    yield Item("binary", GOOD, build)
    for kind in ("cpu", "cuda"):
        reason, _, remedy = (found.why_not(kind) or "").partition("; ")
        present = f"present; {FLOOR}" if kind == "cuda" else "present"
        yield Item(f"{kind} kernels", NOTE if reason else GOOD, reason or present, remedy)
    calls = host.module()
    absent = isinstance(calls, str)
    remedy = "in the source tree: pip install --no-build-isolation --no-deps ." if absent else ""
    yield Item("eager calls", GOOD, f"in Python: {calls}" if absent else "in C++", remedy)


def _software() -> Iterator[Item]:
    yield Item("torch", GOOD, f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")
    triton = environment.version("triton")
    absent = "not installed: the triton implementations are unsupported"
    yield Item(
        "triton", GOOD if triton else NOTE, triton or absent, "" if triton else "pip install triton"
    )
    yield _tool(
        "C++ compiler", ("c++", "g++", "clang++"), "install g++: torch.compile needs it on a CPU"
    )
    yield _tool("nvcc", ("nvcc",), "install the CUDA toolkit to build the cuda kernels")


def _tool(name: str, programs: tuple[str, ...], remedy: str) -> Item:
    for program in programs:
        path = shutil.which(program)
        if path is None:
            continue
        done = subprocess.run(
            [path, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=20
        )
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        line = next((x for x in lines if "release" in x), lines[0] if lines else program)
        return Item(name, GOOD, line.strip())
    return Item(name, NOTE, "not found", remedy)


def _plugins() -> Iterator[Item]:
    """Load all plug-ins; yield what was added, and what was left out."""
    loaded = specs.load().values()
    for spec in loaded:
        baselines.rivals_of(spec)
    added = (*columns.plugged().values(), *rivals.plugged().values(), *map(plugins.origin, loaded))
    for name in dict.fromkeys(given.entry for given in added if given):
        if name not in plugins.refused():
            yield Item("plug-in", GOOD, name)
    for name, why in plugins.refused().items():
        yield Item("plug-in", BAD, f"{name}: {why}", "mend it, or uninstall its distribution")


def _driver() -> Iterator[Item]:
    count = torch.cuda.device_count()
    version = environment.driver()
    if not count:
        yield Item("GPU", NOTE, "none visible: measurements run on the CPU")
        return
    yield Item("GPU", GOOD, f"{count} visible")
    if version is None:
        yield Item("driver", NOTE, "version unknown: NVML is missing", "pip install nvidia-ml-py")
        return
    enough = int(version.split(".")[0]) >= DRIVER_FLOOR
    remedy = "" if enough else "install a newer driver"
    yield Item("driver", GOOD if enough else BAD, f"{version}; {FLOOR}", remedy)


def _print(items: list[Item], facts: dict[str, Any]) -> None:
    for item in items:
        print(f"{item.state:<5} {item.name:<14} {item.text}")
        if item.remedy and item.state != GOOD:
            print(f"{'':<21}remedy: {item.remedy}")
    print("\nenvironment")
    for name, value in facts.items():
        print(f"  {name:<20} {value}")
