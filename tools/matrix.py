"""One wheel with several versions of torch, on this machine's CPU: does it load, do its tests pass?

python tools/matrix.py --wheel dist/fuseline-*.whl                    # all of VERSIONS
python tools/matrix.py --wheel ... --torch 2.11 newest                # these
python tools/matrix.py --wheel ... --report FILE -- tests/ops/test_rope.py  # arguments of pytest

Each version has a virtual environment, build/matrix/VERSION, which is made where it is missing and
kept: torch as the package index has it (2.14: the last 2.14.x, newest: the last of all), Triton as
that torch wants it, all else of constraints.txt, and the wheel, not a source tree. There the tests
run, one version after the other or --jobs at a time, with the canaries of private names
(tests/versions) in a run of their own. Prints a table, writes it with --report; exits 1 where
anything failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import venv
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
VERSIONS = ("2.10", "2.11", "2.13", "2.14", "newest")
MARKS = ("-m", "not gpu and not browser and not long and not slow")
TESTS = ("tests/ops", "tests/primitives")
CANARIES = ("tests/versions",)
NEEDS = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest", "scipy"),
    *("transformers", "triton"),
)
# Whether the binary is there, what it was built with, and what the tests run on.
ASK = """
import json, os, platform, sys, torch, fuseline
from fuseline.core import host, native
from fuselab.environment import version
state = native.status()
assert "site-packages" in fuseline.__file__, f"{fuseline.__file__} is not the wheel's"
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__, "triton": version("triton"),
    "loads": state.state == "loaded" and state.has("cpu"), "why": state.why_not("cpu"),
    "built with": state.build.get("torch_headers"), "in Python": isinstance(host.module(), str),
    "processor": torch.backends.cpu.get_cpu_capability(),
}))
"""


@dataclass
class Tests:
    """What pytest said: tests by outcome, which failed, and how many were skipped for what."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether some passed and none failed."""
        return self.counts["passed"] > 0 and not self.failed


@dataclass
class Version:
    """A version that was asked for, and what became of it."""

    asked: str
    about: dict[str, object] = field(default_factory=dict)
    error: str = ""
    tests: Tests = field(default_factory=Tests)
    canaries: Tests = field(default_factory=Tests)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the binary loaded and all tests and canaries passed."""
        return not self.error and self.tests.good and self.canaries.good


class Environment:
    """The virtual environment of one version."""

    def __init__(self, asked: str) -> None:
        self.folder = FOLDER / asked
        self.python = self.folder / "bin" / "python"
        self.asked = asked

    def prepare(self, wheel: Path) -> None:
        """Make it, and install torch, what the tests need, and the wheel."""
        if not self.python.exists():
            venv.create(self.folder, with_pip=True)
        wanted = ["--upgrade", "torch"] if self.asked == "newest" else [f"torch=={self.asked}.*"]
        self.pip(*wanted)
        # torch's own requirement of Triton stands; of a build without one that of constraints.txt.
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        others = [line for line in lines if not line.startswith(("torch=", "triton="))]
        if not self.ask("import triton; print(triton.__version__)"):
            others += [line for line in lines if line.startswith("triton=")]
        torch = self.ask("from importlib.metadata import version; print(version('torch'))")
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join([*others, f"torch=={torch}"]) + "\n")
        self.pip("-c", str(constraints), *NEEDS, f"fuseline[lab] @ {wheel.as_uri()}")
        self.pip("--force-reinstall", "--no-deps", str(wheel))

    def pip(self, *arguments: str) -> None:
        self.run("-m", "pip", "install", "-q", *arguments, check=True)

    def run(self, *arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run its Python in the source tree, whose packages are not importable there."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        # Threads that wait do not spin: another version's tests, or other work, may run beside.
        env = os.environ | {"PATH": path, "OMP_WAIT_POLICY": "passive"}
        env.pop("PYTHONPATH", None)
        with (self.folder / "log.txt").open("a") as log:
            print("$ python", *arguments, file=log, flush=True)
            return subprocess.run(
                [self.python, *arguments], cwd=ROOT, env=env, check=check, encoding="utf-8",
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def ask(self, code: str) -> str:
        """Return the last line that a script prints; "" where it fails or prints nothing."""
        done = subprocess.run([self.python, "-c", code + "\nprint()"], cwd=self.folder,
                              capture_output=True, encoding="utf-8")  # fmt: skip
        with (self.folder / "log.txt").open("a") as log:
            print(done.stdout, done.stderr, file=log)
        lines = done.stdout.split("\n") if done.returncode == 0 else []
        return next((line for line in reversed(lines) if line), "")

    def pytest(self, arguments: tuple[str, ...], name: str) -> Tests:
        """Run pytest; return what it counted."""
        file = self.folder / f"{name}.xml"
        file.unlink(missing_ok=True)
        self.run("-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={file}", *MARKS, *arguments)
        return read(file) if file.exists() else Tests(failed=["pytest wrote no results"])


def read(file: Path) -> Tests:
    """Return what a file in JUnit's form has."""
    found = Tests()
    for case in ElementTree.parse(file).iter("testcase"):
        kinds = {child.tag for child in case}
        failed = bool(kinds & {"failure", "error"})
        outcome = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
        found.counts[outcome] += 1
        name = f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}"
        if outcome == "failed":
            found.failed.append(name)
        for child in case.iter("skipped"):
            found.skipped[child.get("message", "")] += 1
    return found


def examine(asked: str, wheel: Path, tests: tuple[str, ...]) -> Version:
    """Return what becomes of the wheel with one version of torch; nothing is raised."""
    found, began = Version(asked), time.monotonic()
    environment = Environment(asked)
    environment.folder.mkdir(parents=True, exist_ok=True)
    (environment.folder / "log.txt").unlink(missing_ok=True)
    try:
        environment.prepare(wheel)
    except subprocess.CalledProcessError as error:
        found.error = f"not installed: {error}; see {environment.folder / 'log.txt'}"
        return found
    found.about = json.loads(environment.ask(ASK) or "{}")
    if not found.about.get("loads"):
        found.error = f"does not load: {found.about.get('why', 'the import failed')}"
        return found
    found.tests = environment.pytest(tests, "tests")
    found.canaries = environment.pytest(CANARIES, "canaries")
    found.seconds = time.monotonic() - began
    return found


def table(versions: list[Version]) -> str:
    """Return the versions as a table in Markdown, and below it what failed and was skipped."""
    lines = [
        "| torch | Triton | Python | loads | passed | failed | skipped | canaries | minutes |",
        "|---|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for v in versions:
        about, tests, canaries = v.about, v.tests.counts, v.canaries.counts
        names = [str(about.get(key) or "") for key in ("torch", "triton", "python")]
        counts = [str(tests[outcome]) for outcome in ("passed", "failed", "skipped")]
        names[0] = names[0] or v.asked
        canary = f"{canaries['passed']} of {canaries['passed'] + canaries['failed']}"
        cells = [*names, "no" if v.error else "yes", *counts, canary, f"{v.seconds / 60:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    wrong = [f"- {v.asked}: {v.error}" for v in versions if v.error]
    wrong += [f"- {v.asked}: `{name}`" for v in versions for t in (v.tests, v.canaries)
              for name in t.failed]  # fmt: skip
    left = [f"- {v.asked}: {count}: {reason}" for v in versions for t in (v.tests, v.canaries)
            for reason, count in t.skipped.items()]  # fmt: skip
    failed = ["Failed:", "", *wrong] if wrong else ["Nothing failed."]
    return "\n".join([*lines, "", *failed, *(["", "Skipped:", "", *left] if left else [])])


def page(versions: list[Version], wheel: Path, tests: tuple[str, ...]) -> str:
    """Return the page that --report writes."""
    build = next((v.about for v in versions if v.about), {})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    quoted = " ".join(f'"{t}"' if " " in t else t for t in (*MARKS, *tests))
    return "\n".join([
        "# One binary with several versions of torch",
        "",
        f"`make matrix`; {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores,",
        f"{build.get('processor')}. One wheel, `{wheel.name}`,",
        f"sha256 {digest[:16]}, built with torch {build.get('built with')}; eager calls go through",
        "Python, as a release's do. Each version in a virtual environment of its own; tests:",
        "",
        f"    pytest {quoted}",
        "",
        table(versions),
        "",
    ])  # fmt: skip


def main() -> int:
    """Run it from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--wheel", type=Path, required=True, help="the one binary")
    parser.add_argument("--jobs", type=int, default=1, help="versions at a time")
    parser.add_argument("--report", type=Path, help="a file for the table, in Markdown")
    parser.add_argument("tests", nargs="*", default=TESTS, help="pytest's arguments, behind --")
    given = parser.parse_args()
    if not given.wheel.is_file():
        parser.error(f"--wheel: there is no file {given.wheel}; `make wheel` builds one")
    found, tests, wheel = [], tuple(given.tests), given.wheel.resolve()
    with ThreadPoolExecutor(given.jobs) as pool:
        for version in pool.map(partial(examine, wheel=wheel, tests=tests), given.torch):
            found.append(version)
            print(f"torch {version.asked}: {'good' if version.good else 'failed'}", flush=True)
            if given.report:
                given.report.parent.mkdir(parents=True, exist_ok=True)
                given.report.write_text(page(found, wheel, tests))
    print(table(found))
    return 0 if all(v.good for v in found) else 1


if __name__ == "__main__":
    sys.exit(main())
