"""What the lab's test of itself on a device says: findings, and the tables of its roofs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fuselab.commands.measuring.count import counters
from fuselab.machine.roofs import Roofs

GOOD, NOTE, BAD = "ok", "note", "bad"
SLOPE_TOLERANCE = 0.01
QUIET = "stop other profilers and other load on the device, then run doctor again"

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One finding; `state` is ok, note (something is absent) or bad (something is broken)."""

    name: str
    state: str
    text: str
    remedy: str = ""


def findings(device: str, found: Facts) -> Iterator[Item]:
    """Yield what the worker's answer says of timers, repeatability, launches and counters."""
    if found["no_kernels"]:
        why, _, remedy = found["no_kernels"].partition("; ")
        yield Item("timers", NOTE, f"not tested on work of known length: {why}", remedy)
    for name, line in found["timers"].items():
        yield _timer(name, line)
    yield _again(found["again"])
    if found["load"]:
        yield Item("load", NOTE, found["load"], QUIET)
    if "disturbed" in found:
        why = f"not measured, and none kept: {found['disturbed']}"
        yield Item("roofs", NOTE, why, QUIET)
    if "launch" in found:
        yield _launch(found["launch"])
    for counter in counters(device):
        why, _, remedy = counter.obstacle().partition("; ")
        names = ", ".join(counter.names)
        yield Item("counters", NOTE if why else GOOD, f"{names}: {why or 'counted'}", remedy)


def _timer(name: str, line: Facts) -> Item:
    if "error" in line:
        return Item(f"timer {name}", BAD, line["error"], QUIET)
    low, high = min(line["lengths_us"]), max(line["lengths_us"])
    text = (
        f"reads work of {low} to {high} us with slope {line['slope']:.4f}"
        f" and offset {line['offset_us']:+.2f} us"
    )
    if abs(line["slope"] - 1) > SLOPE_TOLERANCE:
        wanted = f"; expected a slope within {SLOPE_TOLERANCE:.0%} of 1"
        return Item(f"timer {name}", BAD, text + wanted, QUIET)
    return Item(f"timer {name}", GOOD, text)


def _again(found: Facts) -> Item:
    if "error" in found:
        return Item("same again", BAD, found["error"], QUIET)
    ratio = f", ratio {found['ratio']:.4f}" if found["ratio"] else ""
    text = f"a copy beside the same copy: {found['verdict']}{ratio}"
    if found["verdict"] == "same":
        return Item("same again", GOOD, text)
    # Unknown is what a busy machine deserves; a difference is a lie.
    state = NOTE if found["verdict"] == "unknown" else BAD
    return Item("same again", state, text + (f" ({r})" if (r := found["reason"]) else ""), QUIET)


def _launch(found: Facts) -> Item:
    if "error" in found:
        return Item("launch", BAD, found["error"], QUIET)
    read = ", ".join(f"{name.removesuffix('_us')} {us:.2f} us" for name, us in found.items())
    return Item("launch", GOOD, f"the shortest kernel: {read}")


def tables(roofs: Roofs) -> str:
    """Return the roofs as text: GB/s by size and mix of streams, FLOP/s by what computes."""
    mixes = [mix for mix, sizes in roofs.memory.items() if sizes]
    lines = [f"{'MiB a call':>12}" + "".join(f"{mix:>16}" for mix in mixes)]
    for nbytes in roofs.memory[mixes[0]] if mixes else ():
        cells = ("/".join(f"{g:.4g}" for g in roofs.memory[mix][nbytes].values()) for mix in mixes)
        lines.append(f"{int(nbytes) >> 20:>12}" + "".join(f"{cell:>16}" for cell in cells))
    kernels = roofs.memory[mixes[0]][nbytes] if len(lines) > 1 else ()
    title = f"memory, GB/s, nothing in the cache ({' / '.join(kernels)} kernels)"
    compute = [f"  {name:<24} {flops / 1e12:8.4g} TFLOP/s" for name, flops in roofs.compute.items()]
    return "\n".join((title, *lines, "", "compute", *compute))
