"""Plug-ins of distributions outside the tree: those of docs/plugins.md, and broken ones."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuselab import environment, plugins, rivals
from fuselab.commands import select
from fuselab.commands.measuring import doctor
from fuselab.commands.measuring.selftest import BAD, GOOD
from fuselab.records import columns
from fuselab.storage.store import Store
from fuselab.worker.implementations import baselines
from fuselab.worker.operators import specs

tomllib = pytest.importorskip("tomllib")
PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
BROKEN = """
import os
from fuselab.metric import Metric
RAISES = Metric("raises", "", "fault", collect=lambda subject: 1 / 0, title="raises")
ENDS = Metric("ends", "", collect=lambda subject: os._exit(7), title="ends")
NONSENSE = Metric("nonsense", "", collect=lambda subject: -1.0, title="nonsense")
TAKEN = Metric("median_us", "", collect=lambda subject: 1.0)
NOTHING = Metric("nothing", "")
WORDS = Metric("two words", "", collect=lambda subject: 1.0)
"""
UNFIT = """
from dataclasses import replace
from fuselab.rivals.rival import Rival
from fuselab_demo.spec import SPEC
RIVAL = Rival("unfit", "rms_norm", None, "torch", bind=lambda module: None)
SPECS = [replace(SPEC, name="a/b")]
TWICE = [replace(SPEC, name="twin"), replace(SPEC, name="twin")]
"""
COLLECTING = ("raises", "ends", "nonsense")
ENTRIES = {
    plugins.METRICS: {name: f"fuselab_broken:{name.upper()}" for name in COLLECTING}
    | {
        "taken": "fuselab_broken:TAKEN",
        "nothing": "fuselab_broken:NOTHING",
        "words": "fuselab_broken:WORDS",
    },
    plugins.RIVALS: {
        "absent": "fuselab_absent:RIVAL",
        "other": "fuselab_broken:RAISES",
        "nameless": "fuselab_unfit:RIVAL",
    },
    plugins.SPECS: {
        "taken": "fuseline.ops.softmax.spec:SPEC",
        "slash": "fuselab_unfit:SPECS",
        "twins": "fuselab_unfit:TWICE",
    },
}
LEFT_OUT = {
    "fuselab.metrics: taken": "the name 'median_us' is taken",
    "fuselab.metrics: nothing": "collect: got None, expected a function",
    "fuselab.rivals: absent": "ModuleNotFoundError: No module named 'fuselab_absent'",
    "fuselab.rivals: other": "got Metric, expected Rival or several",
    "fuselab.metrics: words": "name: got 'two words', expected a word of letters, digits and _",
    "fuselab.rivals: nameless": "package: got None, expected a text without '/'",
    "fuselab.specs: taken": "the name 'softmax' is taken",
    "fuselab.specs: slash": "operator 'a/b', expected a text without '/'",
    "fuselab.specs: twins": "got 2 with 1 names, expected one each",
}

Lab = Callable[..., "subprocess.CompletedProcess[str]"]


def install(folder: Path, name: str, version: str, entries: dict[str, dict[str, str]]) -> None:
    """Write what an installer would leave of a distribution, beside its modules."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(head)
    groups = (
        "\n".join((f"[{group}]", *(f"{key} = {value}" for key, value in those.items())))
        for group, those in entries.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example of the page, where new processes find it; return its folder."""
    folder, page = tmp_path / "site", PAGE.read_text()
    for name, text in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page, re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (project,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    told = tomllib.loads(project)["project"]
    install(folder, told["name"], told["version"], told["entry-points"])
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder


@pytest.fixture
def broken(demo: Path) -> None:
    """Install another distribution beside it, of which nothing works."""
    (demo / "fuselab_broken.py").write_text(BROKEN)
    (demo / "fuselab_unfit.py").write_text(UNFIT)
    install(demo, "fuselab-broken", "0.2", ENTRIES)


def forget() -> None:
    for known in (plugins._points, columns.plugged, rivals.plugged, specs.load):
        known.cache_clear()
    for module in [name for name in sys.modules if name.startswith("fuselab_")]:
        del sys.modules[module]
    plugins._given.clear()
    plugins._refused.clear()


@pytest.fixture
def here(demo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have this process find what is installed."""
    monkeypatch.syspath_prepend(str(demo))
    forget()
    yield demo
    forget()


def test_the_example_is_measured_exported_and_reported_beside_broken_ones(
    broken: None, here: Path, lab_here: Lab, tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    wanted = ["--device", "cpu", "--dtype", "fp32", "--direction", "fwd", "--out", out]
    wanted += ["--impl", "eager", "--impl", "demo", "--metrics", "page_faults"]
    collecting = [word for name in COLLECTING for word in ("--metrics", name)]
    for of_one in (["rms_norm", "--case", "4x128x32"], ["demo_silu", *collecting]):
        done = lab_here("run", *of_one, "--suite", "quick", *wanted)
        assert done.returncode == 0, done.stderr

    done = lab_here("export", out, "--format", "csv")
    assert done.returncode == 0, done.stderr
    rows = [r for r in csv.DictReader(io.StringIO(done.stdout)) if r["role"] != "ceiling"]
    assert {(row["op"], row["impl"]) for row in rows} == {
        (op, impl) for op in ("rms_norm", "demo_silu") for impl in ("eager", "demo")
    }
    for row in rows:
        assert float(row["page_faults"]) >= 0
        assert [row[name] for name in COLLECTING] == [""] * 3
        missing = dict(line.split(": ", 1) for line in row["not_counted"].splitlines())
        if row["op"] == "rms_norm":
            assert not missing
            continue
        for name, why in (
            ("raises", "ZeroDivisionError: division by zero"),
            ("ends", "the child ended with exit code 7"),
            ("nonsense", "metric 'nonsense': got -1.0, expected a finite number from 0 on"),
        ):
            assert missing[name].startswith("fuselab-broken 0.2: ")
            assert why in missing[name]
    rival = next(row for row in rows if (row["op"], row["impl"]) == ("rms_norm", "demo"))
    assert (rival["role"], rival["version"]) == ("rival", "fuselab-demo 0.1")
    assert float(rival["median_us"]) > 0

    with Store.open_readonly(out) as store:
        (found,) = store.environment()
        counts = [m.counts["page_faults"] for m in store.measurements() if m.counts]
    assert found["plugins"] == {"fuselab-demo": "0.1", "fuselab-broken": "0.2"}
    assert {(c.unit, c.source) for c in counts} == {("fault", "fuselab-demo 0.1")}

    assert lab_here("report", out).returncode == 0
    told = Path(out, "report.md").read_text()
    assert "| minor faults (faults a call) |" in told
    assert "plugins.fuselab-demo" in Path(out, "report.html").read_text()


def test_a_run_is_told_where_its_plug_ins_are_not(here: Path, tmp_path: Path) -> None:
    metric = columns.known("page_faults")
    assert (metric.title, metric.unit) == ("minor faults", "fault")
    metric = columns.known("of_another", "furlong")
    assert (metric.title, metric.detail) == ("of_another", "furlong")


def test_each_broken_one_is_named_and_costs_itself(broken: None, here: Path, lab_here: Lab) -> None:
    done = lab_here("list", "demo_silu", "rms_norm", "softmax")
    assert done.returncode == 0, done.stderr
    assert "demo (fuselab-demo 0.1)" in done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    for entry, why in LEFT_OUT.items():
        if "metrics" in entry:  # these verbs need none
            continue
        (line,) = (line for line in lines if f"fuselab-broken 0.2, entry point {entry} = " in line)
        assert why in line


def test_the_doctor_names_all(here: Path, broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    items = list(doctor._plugins())
    good = [item.text for item in items if item.state == GOOD]
    assert [text for text in good if text.startswith("fuselab-demo 0.1, ")] == [
        f"fuselab-demo 0.1, entry point {entry}"
        for entry in (
            "fuselab.metrics: page_faults = fuselab_demo.metric:PAGE_FAULTS",
            "fuselab.rivals: demo = fuselab_demo.rival:RMS_NORM",
            "fuselab.specs: demo_silu = fuselab_demo.spec:SPEC",
        )
    ]
    bad = [item.text for item in items if item.state == BAD]
    for entry, why in LEFT_OUT.items():
        (text,) = (text for text in bad if f"entry point {entry} = " in text)
        assert why in text
    assert len(bad) == len(LEFT_OUT) == capsys.readouterr().err.count("warning: plug-in left out")


def test_a_rival_named_as_an_implementation_is_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = here / "fuselab_demo" / "rival.py"
    file.write_text(file.read_text().replace('name="demo"', 'name="eager"'))
    assert "eager" not in baselines.rivals_of(specs.load()["rms_norm"])
    assert "the name 'eager' is an implementation's of rms_norm" in capsys.readouterr().err


def test_a_cell_is_measured_again_when_its_plug_in_changes(here: Path) -> None:
    def codes() -> list[str]:
        forget()
        loaded = specs.load()
        return [select.row(loaded[op]).code for op in ("demo_silu", "rms_norm", "softmax")]

    before = codes()
    assert codes() == before
    for name in ("spec", "rival"):
        with (here / "fuselab_demo" / f"{name}.py").open("a") as file:
            file.write("# changed\n")
    assert [a == b for a, b in zip(before, codes(), strict=True)] == [False, False, True]


def test_without_plug_ins_an_environment_names_none() -> None:
    forget()
    assert "plugins" not in environment.collect("cpu")
