"""Runs the folders of framework-internals, and writes the index of what they made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, time

from fuselab import environment
from fuselab.machine.load import OtherLoad
from fuselab.output.files import replace
from fuselab.output.page import environment as templates
from fuselab.processes import child

SHOWN = (".html", ".md", ".svg", ".txt", ".json")


@dataclass(frozen=True)
class Ran:
    """A folder: what its page says it is, seconds, exit code, and the files that it made.

    noise  what others took from the CPU meanwhile, so that times in the files are not to be relied
           on, or ""
    """

    name: str
    about: str
    seconds: float
    code: int
    files: tuple[str, ...]
    noise: str = ""


def scripts(folder: Path) -> dict[str, Path]:
    """Return the folders' scripts by name."""
    return {path.parent.name: path for path in sorted(folder.glob("*/run.py"))}


def run(script: Path, out: Path) -> Ran:
    """Run one script with DIR/NAME to write to."""
    name = script.parent.name
    begin, since = perf_counter(), time() - 1  # a file system's clock is coarse
    command = [sys.executable, str(script.resolve()), "--out", str(out / name)]
    with OtherLoad() as load, child.running(command) as process:
        code = process.wait()
    found = (f for f in (out / name).rglob("*") if f.suffix in SHOWN and f.is_file())
    files = sorted(str(f.relative_to(out)) for f in found if f.stat().st_mtime >= since)
    seconds = perf_counter() - begin
    return Ran(name, _about(script), seconds, code, tuple(files), load.disturbance)


def _about(script: Path) -> str:
    """Return the heading of the folder's page."""
    page = script.with_name("README.md")
    first = page.read_text(encoding="utf-8").partition("\n")[0] if page.is_file() else ""
    return first.removeprefix("# ").partition(": ")[2] or first


def write_index(ran: Sequence[Ran], out: Path) -> Path:
    """Write DIR/index.html in one step and return its path."""
    page = templates(Path(__file__).with_name("templates")).get_template("internals.html")
    html = page.render(ran=ran, torch=environment.version("torch"))
    return replace(out / "index.html", html)
