"""The report: what it says, how it is laid out, and that no name can break it."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fuselab.model import Accuracy, Group, Measurement, Proof, Status
from fuselab.output import files
from fuselab.planning.plan import CEILING, ceiling_group
from fuselab.records.metrics import records
from fuselab.report.build import build
from fuselab.report.html import to_html, write_html
from fuselab.report.pictures.plots import save
from fuselab.report.sections.tables import chart
from fuselab.report.shown import Shown
from fuselab.report.text import to_markdown, to_terminal

IMPLS = ("eager", "torchscript", "native", "triton", "cuda")
ENVIRONMENT = {"id": "e1", "device": "cuda", "gpu": "H200", "torch": "2.13", "commit": "abc"}
SPAN = ("2026-01-02T03:04:05+00:00", "2026-01-02T04:04:05+00:00")


def ok(group: Group, impl: str, us: float, nbytes: int = 4_000_000, **proof):
    return Measurement(
        group.cell(impl),
        Status.OK,
        timer="cupti",
        samples_us=tuple(us * (1 + 1e-5 * step) for step in range(-5, 6)),
        host_us=7.5,
        accuracy=None if impl == CEILING else Accuracy(1e-3, 1e-5, 1.5, 0.75, 2.25),
        peak_bytes=1 << 20,
        buffer_bytes=1 << 21,
        ideal_bytes=nbytes,
        proof=Proof(kernels={f"{impl}_kernel<float>": 1}, launches=1, copies=0, **proof),
        environment="e1",
    )


def failed(group: Group, impl: str, status: Status, reason: str):
    return Measurement(group.cell(impl), status, reason, environment="e1")


def run(op="norm", cases=("4x32", "8x61"), directions=("fwd", "bwd"), dtype="float32"):
    """Two cases: triton wins the first, cuda the second; torchscript and native fail."""
    peak = ceiling_group("cuda")
    found = [ok(peak, "copy", 2000.0, 8 << 30), ok(peak, "add", 3000.0, 12 << 30)]
    for direction in directions:
        for size, case in enumerate(cases, 1):
            group = Group(op, case, dtype, direction, "contiguous", "cuda", (*IMPLS, CEILING))
            nbytes = 4_000_000 * size
            found += [
                ok(group, "eager", 40.0 * size, nbytes),
                failed(group, "torchscript", Status.UNSUPPORTED, "torch refuses to script it"),
                ok(group, "triton", 5.0 if size == 1 else 20.0, nbytes),
                ok(group, "cuda", 8.0, nbytes),
                ok(group, CEILING, 4.0 * size, nbytes, mix="1R1W", role=CEILING),
            ]
            if size == 1:
                found.append(failed(group, "native", Status.CRASHED, "signal 11"))
    return found


@pytest.fixture(scope="module")
def measured():
    return run()


@pytest.fixture(scope="module")
def view(measured):
    return build(measured, [ENVIRONMENT], SPAN)


def page_of(measured, environments=(), span=None):
    return to_html([Shown("A", "out/run", measured, environments, span)])


@pytest.fixture(scope="module")
def page(measured):
    return page_of(measured, [ENVIRONMENT], SPAN)


class Tags(HTMLParser):
    """Collects elements, their attributes and the text of a page; checks that all are closed."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def times(view, section=0):
    (table,) = view.sections[section].times
    return table


def test_a_table_is_the_seeds(view):
    table = times(view)
    assert [column.text for column in table.columns] == [
        *("case", "eager (us)", "torchscript (us)", "native (us)", "triton (us)", "cuda (us)"),
        *("speedup (eager / best own)", "of ceiling (ceiling / best own)"),
    ]
    assert [[value.text for value in row] for row in table.rows] == [
        ["4x32", "40.000", "unsupported", "crashed", "5.000", "8.000", "8.000", "80%"],
        ["8x61", "80.000", "unsupported", "not run", "20.000", "8.000", "10.000", "100%"],
    ]


def test_the_fastest_cell_is_marked(view):
    marked = [[v.text for v in row if v.kind == "best"] for row in times(view).rows]
    assert marked == [["5.000"], ["8.000"]]


def test_equal_reasons_share_a_footnote(view):
    table = times(view)
    assert table.notes == ("unsupported: torch refuses to script it", "crashed: signal 11")
    assert [[v.note for v in row if v.note] for row in table.rows] == [[1, 2], [1]]


def test_a_noisy_time_is_shown_with_its_reason():
    group = Group("norm", "4x32", "float32", "fwd", "contiguous", "cpu", ("fast",))
    noisy = replace(ok(group, "fast", 5.0), status=Status.NOISY, reason="wide")
    table = times(build([noisy], []))
    assert (table.rows[0][1].text, table.rows[0][1].note) == ("5.000", 1)
    assert table.notes == ("noisy: wide", "no own implementation has a good time")


def test_the_summary_says_who_wins_and_over_how_many(view):
    first, second, third = view.sections[0].summary
    assert first == "triton is fastest in 1 of 2 problems, CUDA (cuda) in 1."
    wanted = "8.94 times as fast as eager (geometric mean of 2 of 2 problems, 8.00 to 10.00: faster"
    assert wanted in second
    assert "90% of the ceiling (1R1W of the same bytes) in the median problem (2 of 2)" in third
    assert "100% in the largest (8x61 float32, CUDA (cuda))" in third


def test_the_header_says_what_ran_where_and_when(view):
    facts = dict(view.facts)
    assert facts["ran"].startswith("1 operator, 2 cases, 1 dtype; implementations eager,")
    assert facts["measured"] == " to ".join(SPAN)
    assert (facts["gpu"], facts["torch"], facts["commit"]) == ("H200", "2.13", "abc")
    assert dict(view.statuses) == {"ok": 12, "unsupported": 4, "crashed": 2}
    assert view.environments[0].cells == 24


def test_a_changed_source_tree_is_told(measured):
    assert "source" not in dict(build(measured, [{**ENVIRONMENT, "dirty": False}]).facts)
    facts = dict(build(measured, [{**ENVIRONMENT, "dirty": True}]).facts)
    assert facts["source"] == "differs from the commit"


def test_several_environments_are_told(measured):
    facts = dict(build(measured, [ENVIRONMENT, {"id": "e2", "torch": "2.11"}]).facts)
    assert facts["environments"].startswith("2;")
    assert facts["torch"] == "2.11"


def test_accuracy_costs_and_proof(view):
    accuracy = [[v.text for v in row] for row in view.accuracy.rows]
    wanted = ["norm", "forward", "float32", "cuda", "0.001", "1e-05", "1.5", "2.25", "0.75", "2"]
    assert wanted in accuracy
    costs = [[v.text for v in row] for row in view.costs.rows]
    wanted = [*("norm", "forward", "float32", "cuda"), *("7.50", "n/a", "8x61"), "7.6 MiB", "2 MiB"]
    assert [*wanted, "1 MiB", "0", "2"] in costs
    proofs = [[v.text for v in row] for row in view.proofs.rows]
    assert ["norm", "cuda", "forward", "float32", "cuda_kernel<float>", "1", "0"] in [
        row[:7] for row in proofs
    ]
    reasons = [[v.text for v in row] for row in view.unmeasured.rows]
    assert reasons[0] == ["norm", "torchscript", "unsupported", "torch refuses to script it", "4"]


def test_the_proof_of_a_rival_names_its_version():
    group = Group("norm", "4x32", "float32", "fwd", "contiguous", "cuda", ("liger",))
    rival = ok(group, "liger", 3.0, role="rival", version="liger-kernel 9.1")
    (record,) = records([rival])
    assert record["version"] == "liger-kernel 9.1"
    (line,) = build([rival], [ENVIRONMENT]).proofs.rows
    assert [value.text for value in line[:3]] == ["norm", "liger (liger-kernel 9.1)", "forward"]


def test_charts_have_the_ceiling_and_the_peak(measured):
    rows = [row for row in records(measured) if row["op"] == "norm" and row["direction"] == "fwd"]
    limits = [row for row in rows if row["role"] == CEILING]
    found = chart("fp32", [row for row in rows if row["role"] != CEILING], limits)
    assert [series.name for series in found.series] == ["eager", "triton", "cuda"]
    assert found.ceiling.points == ((4_000_000, 1000.0), (8_000_000, 1000.0))
    assert found.peak == pytest.approx((8 << 30) / 2000e3)


def test_no_speedup_column_without_an_own_implementation(measured):
    others = [m for m in measured if m.cell.impl not in ("triton", "cuda")]
    assert times(build(others, [])).columns[-1].name == "native"


def test_an_empty_run_still_makes_a_report():
    view = build([], [])
    assert "How this was measured" in page_of([])
    assert to_markdown(view)
    assert to_terminal(view)


def test_a_run_without_any_time_says_so():
    group = Group("norm", "4x32", "float32", "fwd", "contiguous", "cpu", ("eager",))
    found = [failed(group, "eager", Status.TIMEOUT, "60 s")]
    assert build(found, []).sections[0].summary == ("None of the 1 problems has a time.",)
    assert "timeout" in page_of(found)


def test_the_page_is_one_file_that_loads_nothing(page):
    tags = Tags(page)
    names = {name for name, _ in tags.found}
    assert not names & {"link", "img", "iframe", "object", "base", "form"}
    scripts = [attrs for name, attrs in tags.found if name == "script"]
    assert scripts == [{"type": "application/octet-stream", "id": "data"}, {}]
    before, code = page.split("<script>")
    code, after = code.split("</script>")
    assert "http" not in (before + after).replace("http-equiv", "")
    assert not re.search(r"url\((?!#)|@import", before + after)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|sourceMappingURL|eval\(", code)
    policy = next(a for n, a in tags.found if n == "meta" and "http-equiv" in a)["content"]
    assert policy.startswith("default-src 'none'")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert {"table", "details", "dialog"} <= names


def test_every_id_is_there_once_and_every_anchor_leads_to_one(page):
    tags = Tags(page)
    ids = [attrs["id"] for _, attrs in tags.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {
        attrs[key] for _, attrs in tags.found for key in ("href", "xlink:href") if key in attrs
    }
    targets |= {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", page)}
    assert targets
    assert {target[1:] for target in targets} <= set(ids)


def test_the_page_is_the_same_every_time(measured, page):
    assert page_of(measured, [ENVIRONMENT], SPAN) == page


PAYLOAD = (
    """x"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}$\\x_{1}$|`\x1b[31m&lt;"""
)


def hostile():
    group = Group(*(f"{name}{PAYLOAD}" for name in ("op", "c", "t", "fwd", "l", "cuda")), ())
    good = replace(
        ok(group, PAYLOAD, 4.0, role=PAYLOAD), timer=PAYLOAD, status=Status.NOISY, reason=PAYLOAD
    )
    good = replace(good, proof=replace(good.proof, role="ours", kernels={PAYLOAD: 1}))
    bad = Measurement(group.cell("b" + PAYLOAD), Status.ERROR, PAYLOAD, environment=PAYLOAD)
    eager = ok(group, "eager", 9.0)
    env = {"id": PAYLOAD, PAYLOAD: {PAYLOAD: [PAYLOAD]}, "gpu": PAYLOAD}
    found = [good, bad, eager]
    return Shown("A", PAYLOAD, found, [env], (PAYLOAD, PAYLOAD))


def test_a_payload_in_every_field_stays_text():
    tags = Tags(to_html([hostile()]))
    names = [name for name, _ in tags.found]
    assert "img" not in names
    assert names.count("script") == 2
    assert not [key for _, attrs in tags.found for key in attrs if key.startswith("on")]
    assert tags.text.count("<script>alert(1)</script>") > 20
    assert "{{7*7}}" in tags.text


def test_a_payload_stays_text_in_markdown_and_terminal():
    view = hostile().view
    markdown = to_markdown(view)
    assert "<script" not in markdown
    assert "\x1b" not in markdown + to_terminal(view)
    tables = re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE)
    assert len(tables) == 4
    for table in tables:
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(bars) == 1


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
def test_a_payload_in_a_picture_stays_text(tmp_path):
    rows = hostile().view.records
    path = tmp_path / "picture.svg"
    save(rows, path, op=rows[0]["op"], dtype=rows[0]["dtype"], directions=[f"fwd{PAYLOAD}"])
    names = {element.tag.split("}")[1] for element in ElementTree.parse(path).iter()}
    assert "script" not in names
    assert "text" in names


def test_markdown_is_laid_out_as_the_seeds(view):
    lines = to_markdown(view).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| case"))
    cells = [cell.strip() for cell in lines[head].strip("|").split("|")]
    assert cells == [column.text for column in times(view).columns]
    assert lines[head - 4 : head : 2] == [" ".join(view.sections[0].summary), "### float32"]
    assert re.fullmatch(r"\| -+ \|( -+: \|)+", lines[head + 1])
    assert "**5.000**" in lines[head + 2]
    assert "unsupported [1]" in lines[head + 2]
    assert "1. unsupported: torch refuses to script it" in lines
    assert len({len(line) for line in lines[head : head + 4]}) == 1


def test_the_terminal_table_is_a_grid(view):
    lines = to_terminal(view).splitlines()
    top = next(i for i, line in enumerate(lines) if line.startswith("+-"))
    grid = lines[top : top + 6]
    assert len({len(line) for line in grid}) == 1
    assert (grid[0], grid[2][0]) == (grid[5], "|")
    assert "*5.000" in grid[3]
    assert lines[top + 6] == "[1] unsupported: torch refuses to script it"


def test_the_file_is_replaced_in_one_step(measured, page, tmp_path, monkeypatch):
    path = tmp_path / "deep" / "report.html"
    assert write_html([Shown("A", "out/run", measured, [ENVIRONMENT], SPAN)], path) == path
    before = path.read_text()
    assert before == page

    def fail(source, target):
        assert path.read_text() == before
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_html([Shown("A", "out/run", [])], path)
    assert path.read_text() == before
    assert os.listdir(path.parent) == ["report.html"]


def test_the_picture_is_an_svg_with_a_legend_and_reproducible(measured, tmp_path):
    rows = records(measured)
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    save(rows, first, op="norm", dtype="float32")
    save(rows, second, op="norm", dtype="float32")
    assert first.read_bytes() == second.read_bytes()
    texts = {
        "".join(e.itertext()) for e in ElementTree.parse(first).iter() if e.tag.endswith("text")
    }
    assert {"CUDA (cuda)", "ceiling", "norm forward, float32", "norm backward, float32"} <= texts


def test_a_picture_of_nothing_is_refused(measured, tmp_path):
    rows = records(measured)
    with pytest.raises(ValueError, match="dtype='float99'"):
        save(rows, tmp_path / "a.svg", op="norm", dtype="float99")


def test_the_cold_rooms_load_no_torch():
    code = (
        "import sys, fuselab.planning.plan, fuselab.storage.store, fuselab.records.metrics;"
        "import fuselab.report.html, fuselab.report.text, fuselab.report.pictures.plots;"
        "print(sorted({'torch', 'triton', 'fuseline'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
