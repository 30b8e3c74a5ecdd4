"""Memory traffic of one call on a CPU, from the counters of its memory controllers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuselab.counters import Counts, Task, counted, perf_event, uncounted
from fuselab.counters.launch import Answer, answers

SOURCE = "perf_event"
DEVICES = Path("/sys/bus/event_source/devices")
# Intel's names: servers, then desktops.
READS = ("cas_count_read", "data_reads")
WRITES = ("cas_count_write", "data_writes")
_UNITS = {"MiB": 1 << 20, "": 1}


@dataclass(frozen=True)
class Source:
    """One event of one memory controller; `scale` makes bytes of its ticks."""

    kind: int
    config: int
    cpu: int
    scale: float


class Traffic:
    """Bytes that all memory controllers moved, per call; the least of a few rounds."""

    names = ("dram_read_bytes", "dram_write_bytes")
    batch = 16

    def obstacle(self) -> str:
        reads, writes = sources(READS), sources(WRITES)
        if not reads or not writes:
            return "this machine shows no counters of its memory controllers (uncore_imc)"
        return perf_event.refusal(reads[0].kind, reads[0].config, reads[0].cpu)

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        return [self._counts(answer) for answer in answers("traffic", tasks, seconds)]

    def _counts(self, answer: Answer) -> Counts:
        if "error" in answer:
            return uncounted(self.names, answer["error"], SOURCE)
        return counted({name: answer[name] for name in self.names}, SOURCE)


class Meter:
    """The sum of some events in bytes; a context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        self._events = [
            (perf_event.Event(s.kind, s.config, s.cpu), s.scale) for s in sources(names)
        ]

    def read(self) -> float:
        return sum(event.read() * scale for event, scale in self._events)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        for event, _scale in self._events:
            event.close()


def sources(names: Sequence[str], devices: Path = DEVICES) -> list[Source]:
    """Return the first of the named events that each memory controller has, on each socket."""
    return [
        Source(
            int((device / "type").read_text()),
            _config(device, (device / "events" / name).read_text().strip()),
            cpu,
            _scale(device / "events", name),
        )
        for device in sorted(devices.glob("uncore_imc*"))
        for name in [n for n in names if (device / "events" / n).is_file()][:1]
        for cpu in _cpus((device / "cpumask").read_text())
    ]


def _config(device: Path, event: str) -> int:
    """Return the number that the kernel wants for a text such as "event=0x04,umask=0x03"."""
    config = 0
    for term in event.split(","):
        field, _, value = term.partition("=")
        bits = (device / "format" / field).read_text().strip().removeprefix("config:")
        config |= int(value or "1", 0) << int(bits.split("-")[0])
    return config


def _scale(events: Path, name: str) -> float:
    scale, unit = events / f"{name}.scale", events / f"{name}.unit"
    if not scale.is_file():
        return 64.0  # a tick is a burst of one cache line
    return float(scale.read_text()) * _UNITS[unit.read_text().strip() if unit.is_file() else ""]


def _cpus(mask: str) -> Iterator[int]:
    for part in mask.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
