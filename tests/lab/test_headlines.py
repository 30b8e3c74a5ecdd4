"""What a report says above its tables: only what good numbers show, in compare's words."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fuselab.model import Accuracy, Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING, ceiling_group
from fuselab.records.metrics import records
from fuselab.report.build import build
from fuselab.report.html import to_html
from fuselab.report.sections.headline import title
from fuselab.report.sections.standing import Standings
from fuselab.report.sections.tables import chart
from fuselab.report.shown import Shown
from fuselab.report.text import to_markdown, to_terminal
from fuselab.report.view import Chart
from fuselab.statistics.comparison import Verdict, compare, pair, summary

BUSY = "other processes kept 1.0 of 2 cores busy while it was timed"
WIDTHS = (1e-3, 1e-3, 0.05, 0.6)
NAMES = ("eager", "native", "cpu", "mine")


def cell(impl: str, us: float, case: str = "4x32", *, width: float = 1e-4, **fields) -> Measurement:
    group = Group("norm", case, "float32", "fwd", "contiguous", "cpu", (impl,))
    proof = Proof(role="ours" if impl == "mine" else None)
    return Measurement(
        group.cell(impl),
        fields.pop("status", Status.OK),
        timer="wall",
        samples_us=tuple(us * (1 + width * step / 15) for step in range(-15, 16)),
        ideal_bytes=1_000_000,
        proof=fields.pop("proof", proof),
        **fields,
    )


def noisy(found: Measurement) -> Measurement:
    return replace(found, status=Status.NOISY, reason=BUSY)


def ceiling(us: float, case: str = "4x32") -> Measurement:
    return cell(CEILING, us, case, proof=Proof(mix="1R1W", role=CEILING))


def shown(*found: Measurement):
    view = build(found, [])
    return view, " ".join(view.sections[0].summary), to_markdown(view)


def bandwidth(found: list[Measurement]) -> Chart:
    rows = [row for row in records(found) if row["op"] == "norm"]
    limits = [row for row in rows if row["role"] == CEILING]
    drawn = chart("", [row for row in rows if row["role"] != CEILING], limits)
    assert drawn
    return drawn


def page_of(*found: Measurement, environments: Sequence[Mapping[str, str]] = ()) -> str:
    return to_html([Shown("A", "out/run", found, environments)])


def marked(view) -> list[list[str]]:
    (table,) = view.sections[0].times
    names = [column.name for column in table.columns]
    return [[n for n, v in zip(names, row, strict=True) if v.kind == "best"] for row in table.rows]


def test_the_fastest_is_named_and_marked_and_is_no_device() -> None:
    view, said, _ = shown(cell("eager", 40.0), cell("cpu", 10.0), cell("native", 20.0))
    assert said.startswith("C++ (cpu) is fastest in 1 of 1 problems.")
    assert "The best own implementation is 4 times as fast as eager" in said
    assert marked(view) == [["cpu"]]
    assert [(tile.label, tile.value) for tile in view.tiles[1:]] == [("norm forward on cpu", "4x")]
    assert view.notices == ()


def test_a_run_whose_times_are_all_noisy_says_so_first_and_concludes_nothing() -> None:
    found = [cell("eager", 177.0), cell("cpu", 10.0), ceiling(4.0)]
    view, said, markdown = shown(*map(noisy, found))
    (notice,) = view.notices
    assert notice == (
        f"All times are noisy ({BUSY}): no headline is drawn from them; measure again on a quiet "
        "machine."
    )
    assert said == "Who is fastest is open in 1 of 1: times are noisy."
    assert [tile.value for tile in view.tiles] == ["0 / 2"]
    assert marked(view) == [[]]
    assert markdown.splitlines()[2] == f"**{notice}**"
    assert to_terminal(view).startswith(notice)
    page = page_of(*map(noisy, found))
    assert page.index(notice) < page.index('class="tile"')
    for text in (markdown, to_terminal(view), page[page.index("<body>") :]):
        said = text.partition('<section id="map"')[0]
        assert not re.search(r"\d ?%|17\.7", said.replace("95 % interval", ""))
        assert "177.000" in text, "a noisy time is shown"


def test_a_noisy_cell_leaves_the_headlines_of_the_others() -> None:
    view, said, _ = shown(
        *(cell("eager", 40.0, "a"), cell("cpu", 10.0, "a")),
        *(cell("eager", 900.0, "b"), noisy(cell("cpu", 1.0, "b"))),
        *(noisy(cell("eager", 900.0, "c")), cell("cpu", 1.0, "c")),
    )
    assert view.notices[0].startswith(f"2 of 6 times are noisy ({BUSY}): they are shown")
    assert "is fastest in 1 of 3 problems." in said
    assert "open in 2 of 3: times are noisy." in said
    assert "4 times as fast as eager (geometric mean of 1 of 3 problems" in said
    assert marked(view) == [["cpu"], [], []]
    assert view.tiles[1].value == "4x"
    assert all(row["speedup_vs_eager"] is None for row in records([noisy(cell("eager", 9.0))]))


def test_one_implementation_alone_is_not_the_fastest() -> None:
    view, said, markdown = shown(cell("mine", 5.0, "a"), cell("mine", 5.0, "b"))
    assert said == "In 2 of 2 only mine has a time: nothing to compare it with."
    assert marked(view) == [[], []]
    assert "fastest" not in markdown


def test_a_tie_within_the_margin_is_said_as_a_tie() -> None:
    view, said, _ = shown(cell("eager", 40.0), cell("cpu", 10.0), cell("mine", 10.2))
    assert said.startswith("C++ (cpu) and mine are equally fast in 1 of 1.")
    assert "is fastest" not in said
    assert marked(view) == [["cpu", "mine"]]
    (table,) = view.sections[0].times
    assert table.rows[0][0].detail == "C++ (cpu) = mine 10 us"


def test_what_chance_may_have_done_is_undecided() -> None:
    view, said, _ = shown(cell("eager", 10.0, width=0.9), cell("cpu", 9.0, width=0.9))
    assert said.startswith("Who is fastest is undecided in 1 of 1 (among C++ (cpu), eager).")
    assert "How fast it is beside eager is undecided in 1." in said
    assert marked(view) == [[]]
    assert len(view.tiles) == 1


@pytest.mark.parametrize("limit", [None, noisy(ceiling(4.0))])
def test_without_a_good_ceiling_there_is_no_percentage(limit: Measurement | None) -> None:
    found = [cell("eager", 40.0), cell("cpu", 10.0)]
    view, said, _ = shown(*found, *([limit] if limit else []))
    assert "ceiling" not in said
    (table,) = view.sections[0].times
    assert table.rows[0][-1].text == "n/a"
    assert table.notes[table.rows[0][-1].note - 1] == "the group's ceiling has no good time"
    drawn = bandwidth(found + ([limit] if limit else []))
    assert drawn.ceiling.points == ()
    assert drawn.peak is None


def test_a_noisy_fixed_recipe_is_no_yardstick() -> None:
    copy = replace(noisy(cell("copy", 9.0)), cell=ceiling_group("cpu").cell("copy"))
    view, _, _ = shown(copy, cell("eager", 40.0), cell("cpu", 10.0), ceiling(4.0))
    assert not [tile for tile in view.tiles if "GB/s" in tile.value]
    assert bandwidth([copy, cell("eager", 40.0), cell("cpu", 10.0), ceiling(4.0)]).peak is None


def test_more_than_the_ceiling_is_explained_where_it_stands() -> None:
    _, said, markdown = shown(cell("eager", 40.0), cell("cpu", 10.0), ceiling(12.0))
    assert "120% of the ceiling" in said
    assert "Over 100 % is possible: the ceiling is a copy of as many bytes" in said
    assert re.search(r"120% \[\d\]", markdown)
    assert "over 100 %: the ceiling is a copy" in markdown
    _, said, markdown = shown(cell("eager", 40.0), cell("cpu", 10.0), ceiling(8.0))
    assert "80% of the ceiling" in said
    assert "ver 100 %" not in said + markdown


def drawn(seed: int) -> list[Measurement]:
    """Return a run of 12 problems whose times are near and far, narrow and wide, good and noisy."""
    draw = random.Random(seed)
    found = []
    for number in range(12):
        base = 10 ** draw.uniform(0, 4)
        for name in NAMES:
            us, width = base * draw.choice((0.7, 0.96, 1.0, 1.02, 1.3)), draw.choice(WIDTHS)
            one = cell(name, us, f"c{number}", width=width)
            if draw.random() < 0.8:
                found.append(noisy(one) if draw.random() < 0.05 else one)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_each_claim_is_what_compare_says_of_the_same_run(seed: int) -> None:
    found = drawn(seed)
    standings = Standings(found, NAMES)
    by_name = {name: [m for m in found if m.cell.impl == name] for name in NAMES}

    def verdict(a: str, b: str, case: str) -> Verdict:
        both = pair(by_name[a], by_name[b], across=True)
        told = {c.case: c.verdict for c in compare(both, together=True)}
        return told[case]

    claims = {"one": 0, "tie": 0, "open": 0}
    for row in records(found):
        standing, case = standings.of(row), row["case"]
        timed = [m.cell.impl for m in found if m.cell.case == case]
        first, *same = standing.fastest or ("",)
        claims["tie" if same else "one" if first else "open"] += 1
        if not first:
            continue
        assert len(timed) > 1
        for other in set(timed) - {first}:
            wanted = Verdict.SAME if other in same else Verdict.SLOWER
            assert verdict(first, other, case) is wanted
    assert claims["one"], claims
    assert claims["open"], claims


def test_the_speedup_is_the_mean_that_compare_prints() -> None:
    found = [m for m in drawn(7) if m.cell.impl in ("eager", "mine")]
    view = build(found, [])
    sides = [[m for m in found if m.cell.impl == name] for name in ("eager", "mine")]
    told = summary(compare(pair(*sides, across=True), together=True))
    assert told.ratio
    assert view.tiles[1].value == f"{1 / told.ratio:.3g}x"
    assert view.tiles[1].detail == f"eager / best own, {told.n} problems"
    wanted = f"geometric mean of {told.n} of {len({m.cell.case for m in found})} problems"
    assert wanted in " ".join(view.sections[0].summary)


def test_a_page_of_any_width_begins_with_who_is_fastest_and_by_how_much() -> None:
    found = [cell("eager", 40.0), cell("cpu", 10.0), ceiling(8.0)]
    _, _, markdown = shown(*found)
    page = page_of(*found)
    table = page[page.index('id="section-1"') :]
    head = r"<th scope=\"col\"(?: class=\"n\")?>\s*(?:<i[^>]*></i>)?([^<\s][^<]*)"
    heads = re.findall(head, table)
    assert [name.strip() for name in heads[:5]] == [
        *("case", "speedup", "of ceiling", "eager", "C++ (cpu)")
    ]
    assert "4x32<small>C++ (cpu) 10 us</small></th>" in table
    cells = re.findall(r"<td[^>]*>([^<]+)", table)
    assert cells[:4] == ["4.000", "80%", "40.000", "10.000"]
    line = next(line for line in markdown.splitlines() if line.startswith("| case"))
    assert line.index("eager") < line.index("speedup"), "the seeds' order stays in Markdown"


def test_products_have_a_rate_and_what_auto_took() -> None:
    """Of 256 MFLOPs and a megabyte in 4 us: 64 TFLOP/s, and no share of a copy's ceiling."""
    told = Proof(role="ours", chosen="triton, the first in order that can (triton)")
    found = [cell("eager", 40.0, flops=256_000_000), ceiling(1.0)]
    found.append(cell("auto", 4.0, flops=256_000_000, proof=told))
    view, summary, markdown = shown(*found)
    assert "64 TFLOP/s in 4x32 float32 (auto)" in summary
    assert "ceiling" not in summary
    assert "| TFLOP/s (best own) |" in markdown
    assert "1. auto: triton, the first in order that can (triton)" in markdown
    assert "auto: triton" in view.sections[0].times[0].lead


def test_the_result_comes_before_the_metadata() -> None:
    environment = {"id": "e", "cpu": "EPYC", "torch": "2"}
    page = page_of(cell("eager", 4.0), cell("cpu", 1.0), environments=[environment])
    places = [page.index(text) for text in ('class="tile"', "is fastest", 'id="section-1"')]
    assert max(places) < page.index('<dl class="facts">')


def test_the_title_says_what_where_and_when() -> None:
    rows = records([cell("eager", 4.0)])
    gpu, cpu = {"device": "cuda", "gpu": "H200", "cpu": "Xeon"}, {"device": "cpu", "cpu": "EPYC"}
    day = ("2026-01-02T03:04:05+00:00", "2026-01-02T04:04:05+00:00")
    assert title(rows, [gpu], day) == "norm on H200, 2026-01-02"
    assert title(rows, [cpu, cpu], None) == "norm on EPYC (CPU)"
    later = (day[0], "2026-01-09T00:00:00+00:00")
    assert title(rows, [gpu, cpu], later) == "norm on H200, EPYC (CPU), 2026-01-02 to 2026-01-09"
    many = [{**rows[0], "op": f"op{i}"} for i in range(4)]
    assert title(many, [], None) == "4 operators"
    assert title([], [], None) == "Nothing measured"


def test_gradients_are_shown_in_the_unit_they_are_judged_in() -> None:
    good = cell("cpu", 1.0, accuracy=Accuracy(1e-3, 1e-5, 2.19e6, 0.75, 3.5))
    there = replace(good, cell=replace(good.cell, direction="bwd"))
    forward, backward = (build([m], []).accuracy for m in (good, there))
    assert [c.text for c in backward.columns][6:8] == [
        "max ULP",
        "max error (eps x largest value)",
    ]
    assert [v.text for v in backward.rows[0]][6:8] == ["2.19e+06", "3.5"]
    assert backward.rows[0][6].note == 1
    assert "not judged in ULP" in backward.notes[0]
    assert forward.notes == ()


def test_of_many_operators_there_is_a_line_each() -> None:
    found = []
    for op in ("a", "b", "c", "d"):
        ours = 10.0 if op != "d" else 80.0
        for impl, us in (("eager", 40.0), ("compile", 20.0), ("cpu", ours), (CEILING, 8.0)):
            proof = Proof(mix="1R1W", role=CEILING) if impl == CEILING else Proof()
            one = cell(impl, us, proof=proof)
            found.append(replace(one, cell=replace(one.cell, op=op)))
    assert build([one for one in found if one.cell.op < "d"], []).overview is None
    view = build(found, [])
    assert view.overview is not None
    assert [[value.text for value in row] for row in view.overview.rows] == [
        *([f"{op} forward on cpu", "1", "4.00", "2.00", "0", "80%", "C++ (cpu), in 1"]
          for op in "abc"),
        ["d forward on cpu", "1", "0.50", "0.25", "1", "10%", "compile, in 1"],
    ]  # fmt: skip
    assert [tile.label for tile in view.tiles] == ["cells with a good number"]
    page = page_of(*found)
    summary = page[page.index('<section id="summary"') : page.index('<section id="map"')]
    assert "is fastest" not in summary
    assert "is fastest" in page[page.index('id="section-1"') :]
