"""Kills a running sweep again and again, and looks at the store after each time.

python tools/kill_sweep.py [--kills 200] [--minutes 60] [--out DIR]

Each kill is a SIGKILL to the whole command at a random moment of the second that follows the first
group it finishes. Whatever a command had printed as finished must then be in the store, and
whatever was there before must be there unchanged. At the end the sweep runs to its end. Exit code 1
if a cell was lost, changed, doubled or is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

from fuselab.model import Measurement, Status
from fuselab.storage.store import Store

# More than two quick cores finish before a kill, so that there is always something left to do.
GROUPS_A_KILL = 20
WINDOW_S = 1.0
CELLS = 3
OPERATOR = """
import torch
from fuseline.testing import Case, Implementation, OpSpec


def eager(x):
    return x * 2


def twice(x):
    return x + x


def make_inputs(case, dtype, device, generator):
    return {{"x": torch.randn(64, dtype=dtype, device=device, generator=generator)}}


SPEC = OpSpec(
    name="twice",
    formula="y = 2 x",
    reference=eager,
    implementations=(Implementation("eager", eager, role="eager"), Implementation("twice", twice)),
    make_inputs=make_inputs,
    cases=tuple(Case(f"c{{i}}", {{}}) for i in range({cases})),
    dtypes=(torch.float32,),
)
"""

Cells = dict[str, Measurement]


class Lost(RuntimeError):
    """The store is not what the sweep had said it is; the text says where."""


@dataclass(frozen=True)
class Kill:
    """What one kill met: groups the command had said to be finished, and cells in the store."""

    said: int
    unsaid: int
    cells: int


class Sweep:
    """A sweep of many tiny groups into one store."""

    def __init__(self, folder: Path, cases: int) -> None:
        self.out, self.cases = folder / "run", cases
        file = folder / "twice_ops.py"
        file.write_text(OPERATOR.format(cases=cases))
        self._command = [sys.executable, "-m", "fuselab", "run", str(file), "--out", str(self.out)]
        self._command += ["--device", "cpu", "--impl", "eager", "--impl", "twice"]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def kill(self, moment: float) -> list[str] | None:
        """Return the groups that a run had finished when it was killed; None if it ended before."""
        process = self.start()
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("["):
                break
        reader = Thread(target=lines.extend, args=(process.stderr,))
        reader.start()
        sleep(moment)
        ended = process.poll()
        if ended is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        if ended not in (None, 0):
            raise Lost(f"the sweep ended by itself with exit code {ended}: {''.join(lines[-5:])}")
        # A line without its end was not said.
        finished = [ln.split()[1] for ln in lines if ln.startswith("[") and ln.endswith("\n")]
        return None if ended == 0 else finished

    def stored(self) -> Cells:
        """Open the store as the next run would, and return its cells."""
        with Store.open(self.out, create=False) as store:  # looks for damage too
            found = list(store.measurements())
        cells = {m.cell.key: m for m in found}
        if len(cells) != len(found):
            raise Lost(f"{len(found) - len(cells)} cells are stored twice")
        return cells


def compare(before: Cells, after: Cells, finished: Sequence[str]) -> int:
    """Return how many groups are new and were not said to be; Lost if what was is not there."""
    for key, measurement in before.items():
        if after.get(key) != measurement:
            raise Lost(f"{key}: {'measured again' if key in after else 'lost'}")
    fresh = [m.cell for key, m in after.items() if key not in before]
    groups: dict[str, int] = {}
    for cell in fresh:
        place = (cell.op, cell.direction, cell.case, cell.dtype, cell.layout, cell.device)
        groups["/".join(place)] = groups.get("/".join(place), 0) + 1
    for group in finished:
        if group not in groups:
            raise Lost(f"{group}: finished, but not in the store")
    for group, count in groups.items():
        if count != (2 if group.startswith("ceiling/") else CELLS):
            raise Lost(f"{group}: stored in part, {count} cells")
    return len(groups.keys() - set(finished))


def batter(sweep: Sweep, kills: int, seconds: float) -> list[Kill]:
    """Kill the sweep so many times, or until the time is up or nothing is left to do."""
    done: list[Kill] = []
    cells: Cells = {}
    end = monotonic() + seconds
    while len(done) < kills and monotonic() < end:
        finished = sweep.kill(random.uniform(0, WINDOW_S))
        if finished is None:
            break
        after = sweep.stored()
        unsaid = compare(cells, after, finished)
        cells = after
        done.append(Kill(len(finished), unsaid, len(cells)))
        print(f"\r{len(done)} kills, {len(cells)} cells", end="", file=sys.stderr, flush=True)
    return done


def finish(sweep: Sweep) -> Cells:
    """Let the sweep end, and return its cells; Lost if they are not all there with a number."""
    before = sweep.stored()
    process = sweep.start()
    _, stderr = process.communicate()
    if process.returncode != 0:
        raise Lost(f"the last run ended with exit code {process.returncode}: {stderr[-500:]}")
    after = sweep.stored()
    compare(before, after, [])
    expected = CELLS * sweep.cases + 2
    if len(after) != expected:
        raise Lost(f"{len(after)} cells at the end, expected {expected}")
    bad = [m for m in after.values() if m.status not in (Status.OK, Status.NOISY)]
    if bad:
        raise Lost(f"{bad[0].cell.key}: {bad[0].status}: {bad[0].reason}")
    return after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60, help="no further kill after these")
    parser.add_argument("--out", help="a new folder to keep; default: a temporary one")
    options = parser.parse_args()
    begin = monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.out or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sweep = Sweep(folder, GROUPS_A_KILL * options.kills)
        try:
            kills = batter(sweep, options.kills, 60 * options.minutes)
            cells = finish(sweep)
        except Lost as error:
            print(f"\nFAILED: {error}")
            return 1
    said, unsaid = sum(kill.said for kill in kills), sum(kill.unsaid for kill in kills)
    print(f"\n{len(kills)} kills in {monotonic() - begin:.0f} s; the store opened every time")
    print(f"{said} groups said to be finished before a kill, 0 lost, 0 changed")
    print(f"{unsaid} groups more were stored when the kill came before their line")
    print(f"{kills[-1].cells if kills else 0} cells after the last kill")
    print(f"{len(cells)} cells at the end: all that were asked for, each once, each with a time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
