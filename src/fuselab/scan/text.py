"""A scan as text, and as the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fuselab.output.files import replace
from fuselab.output.page import environment
from fuselab.output.plain import plain
from fuselab.scan.forecast import COMPILE
from fuselab.scan.rank import BY_NAME
from fuselab.scan.record import Row, Scan, Served

JSON, PAGE = "scan.json", "scan.html"
# Rows that the text shows; the page and the record have all.
SHOWN = 20
WAYS = {
    "patch": "fuseline.patch",
    "enable": "fuseline.enable",
    BY_NAME: "by its name alone: nothing applies it",
}
BOUND = {
    "operators": "operators on the CPU",
    "kernels": "kernels of the GPU",
    "launches": "the host, which launches them",
}


def to_text(found: Scan) -> Iterator[str]:
    """Yield the lines of a scan: the step, its rows, what is served, forecast and outcome."""
    yield plain(f"{found.script} on {found.device}: a step is {found.steps}")
    yield (
        f"{found.step_us / 1e3:.4g} ms a step; of no operator {found.rest_us / 1e3:.3g} ms; "
        f"times by operator are the profiler's to {found.disagreement:.1%}"
    )
    yield ""
    yield f"{'lost, ms':>9} {'ms':>9} {'calls':>7}  operator"
    for row in found.rows[:SHOWN]:
        yield plain(_row(row))
    if len(found.rows) > SHOWN:
        yield f"and {len(found.rows) - SHOWN} more rows"
    yield ""
    for one in found.served:
        yield plain(_served(one))
    yield from _forecast(found)
    yield from (plain(f"note: {note}") for note in found.notes)


def write(found: Scan, folder: Path, about: Mapping[str, Any]) -> Path:
    """Write DIR/scan.json and DIR/scan.html, each in one step; return the page's path."""
    record = {"environment": about, "scan": found.to_record()}
    replace(folder / JSON, json.dumps(record, indent=1))
    template = environment(Path(__file__).with_name("templates")).get_template("scan.html")
    page = template.render(
        scan=found,
        machine=about.get("gpu") or about.get("cpu") or about.get("device"),
        torch=about.get("torch"),
        ways=WAYS,
        bound=BOUND,
        compile=COMPILE,
    )
    return replace(folder / PAGE, page)


def _row(row: Row) -> str:
    lost = "-" if row.lost_us is None else f"{row.lost_us / 1e3:.3f}"
    mark = " (served)" if row.served else ""
    return (
        f"{lost:>9} {row.us / 1e3:>9.3f} {row.calls:>7g}  {row.name}{mark} {row.phase} {row.shapes}"
    )


def _served(one: Served) -> str:
    now = sum(one.now_us.values())
    head = f"{one.op} {one.case}, {one.calls:g} calls a step, {WAYS[one.way]}"
    if not now and not one.lacking:
        times = ", ".join(
            f"{name} {time.us:.4g} us"
            for name, time in one.times.get("fwd", {}).items()
            if time.us is not None
        )
        return f"{one.op} {one.case}, {one.calls:g} calls: {times}"
    if one.lacking:
        return f"{head}: {now / 1e3:.3f} ms now; not measured: {one.lacking}"
    ours = now - one.saved_us(one.impl)
    line = f"{head}: {now / 1e3:.3f} ms now, {ours / 1e3:.3f} ms by {one.impl}"
    if any(COMPILE in times for times in one.times.values()):
        compiled = now - one.saved_us(COMPILE)
        line += f", {compiled / 1e3:.3f} ms compiled"
    return line


def _forecast(found: Scan) -> Iterator[str]:
    said, compared = found.forecast, found.compared
    if said is None:
        return
    yield ""
    ways = " and ".join(WAYS[way] for way in found.ways)
    line = f"forecast with {ways}: {said.ms:.4g} ms a step for {said.plain_ms:.4g} ms now"
    if said.compiled_ms is not None:
        line += f"; with these calls compiled {said.compiled_ms:.4g} ms"
    yield f"{line}; it waits for {BOUND[said.bound]}"
    if compared is not None:
        yield (
            f"applied: {compared.patched_ms:.4g} ms a step for {compared.plain_ms:.4g} ms, "
            f"{compared.speedup:.3f} x; the forecast is off by {compared.off:+.1%}"
        )
