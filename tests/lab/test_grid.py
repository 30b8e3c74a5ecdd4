"""Grids of ratios by size: from anybody's run on any device, and a reason where there is none."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Group, Measurement, Status
from fuselab.report.pictures import grid
from fuselab.storage.store import Store


def cell(impl: str, us: float, case: str, device: str = "cpu", noisy: bool = False) -> Measurement:
    group = Group("my op", case, "float32", "fwd", "contiguous", device, (impl,))
    return Measurement(
        group.cell(impl),
        Status.NOISY if noisy else Status.OK,
        "others were busy" if noisy else "",
        timer="wall",
        samples_us=tuple(us * (1 + 1e-5 * step) for step in range(-10, 11)),
        host_us=us,
        ideal_bytes=1000,
    )


def failed(impl: str, case: str) -> Measurement:
    return Measurement(cell(impl, 1.0, case).cell, Status.OUT_OF_MEMORY, "no memory")


RUN = [
    *(cell("eager", 40.0, "128x64"), cell("compile", 5.0, "128x64"), cell("cpu", 10.0, "128x64")),
    *(cell("eager", 90.0, "4x8x256"), cell("compile", 60.0, "4x8x256")),
    *(cell("mine", 30.0, "4x8x256"), cell("cpu", 31.0, "4x8x256")),
    *(cell("eager", 7.0, "32x64"), cell("cpu", 1.0, "32x64", noisy=True)),
    cell("eager", 7.0, "tiny"),
]  # fmt: skip


def test_a_grid_has_the_best_own_and_only_good_times(tmp_path: Path) -> None:
    written = grid.write(RUN, tmp_path)
    names = ["summary.md", "my-op-fwd-float32-cpu.md", "my-op-fwd-float32-cpu.svg"]
    assert [path.name for path in written] == names
    page = written[1].read_text()
    assert page.startswith("# my op fwd float32 cpu: wall time with a cold cache\n")
    eager, compiled, between = page.split("\n\n| M")[1:]
    assert eager.splitlines()[2:5] == ["| 32 |  |  |", "| 4x8 |  | 3.00 |", "| 128 | 4.00 |  |"]
    assert compiled.splitlines()[4] == "| 128 | 0.50 |  |"
    assert between.splitlines()[4] == "| 128 | 8.00 |  |"
    head, _, line = written[0].read_text().splitlines()
    found = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert found["cells"] == "2"
    assert found["eager / ours"] == "3.46"
    assert found["slower than a rival |"] == "1: 128x64 |"
    names = {element.tag.split("}")[1] for element in ElementTree.parse(written[2]).iter()}
    assert "text" in names


def test_devices_have_a_grid_each(tmp_path: Path) -> None:
    both = [
        cell(impl, us, "2x4", device)
        for device in ("cuda:0", "cuda:1")
        for impl, us in (("eager", 9.0), ("cuda", 3.0))
    ]
    names = {path.name for path in grid.write(both, tmp_path)}
    assert {"my-op-fwd-float32.md", "my-op-fwd-float32-cuda-1.md"} <= names


def test_own_times_alone_have_no_heat_map(tmp_path: Path) -> None:
    (_, page) = grid.write([cell("cpu", 1.0, "2x4")], tmp_path)
    assert "No other implementation has a good time." in page.read_text()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([cell("eager", 1.0, "tiny"), cell("cpu", 1.0, "tiny")], "no case is named by its sizes"),
        ([cell("cpu", 1.0, "2x4", noisy=True)], "no own implementation has a good time: 1 of 1"),
        ([cell("eager", 1.0, "2x4")], "no own implementation has a good time: 0 of 1 are noisy"),
    ],
)
def test_without_a_grid_there_is_a_reason_and_exit_3(
    found: list[Measurement], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Store.open(tmp_path / "run") as store:
        for m in found:
            c = m.cell
            store.write(
                Group(c.op, c.case, c.dtype, c.direction, c.layout, c.device, (c.impl,)), [m]
            )
    out = tmp_path / "grid"
    assert command(["report", str(tmp_path / "run"), "--grid", str(out)]) == 3
    assert words in capfd.readouterr().err
    assert not out.exists()


def test_the_folder_of_the_grids_is_no_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Store.open(tmp_path) as store:
        c = RUN[0].cell
        store.write(Group(c.op, c.case, c.dtype, c.direction, c.layout, c.device, ()), [RUN[0]])
    (tmp_path / "file").write_text("x")
    assert command(["report", str(tmp_path), "--grid", str(tmp_path / "file")]) == 2
    assert "--grid: got" in capfd.readouterr().err


STUDY = [
    *(cell("eager", 100.0, "1x32x128x64-causal"), cell("compile", 60.0, "1x32x128x64-causal")),
    *(cell("flash", 20.0, "1x32x128x64-causal"), cell("triton", 10.0, "1x32x128x64-causal")),
    *(cell("triton", 11.0, "2x32x128x64-causal"), cell("flash", 22.0, "2x32x128x64-causal")),
    failed("eager", "2x32x128x64-causal"),
    *(failed("compile", "32x32x8192x64-causal"), failed("flash", "32x32x8192x64-causal")),
    *(cell("eager", 8.0, "2x16x256x128"), cell("triton", 4.0, "2x16x256x128")),
    *(cell("eager", 6.0, "8x8x16x8192"), cell("triton", 3.0, "8x8x16x8192")),
]


def test_attention_is_in_the_studys_layout(tmp_path: Path) -> None:
    of_attention = [replace(m, cell=replace(m.cell, op="attention")) for m in STUDY]
    written = {path.name: path for path in grid.write(of_attention, tmp_path)}
    page = written["attention-fwd-float32-cpu-32-heads-of-64-causal.md"].read_text()
    assert page.startswith("# attention fwd float32 cpu 32 heads of 64, causal: wall time")
    speeds = page.split("What it calls triton is compile here.\n\n")[1]
    assert speeds.split("\n\n") == [
        "compile / eager",
        "| batch \\ sequence | 128 | 8192 |\n|---|---|---|\n| 1 | 166.67% |  |\n"
        "| 2 | eager out_of_memory |  |\n| 32 |  | compile out_of_memory |",
        "flash / compile",
        "| batch \\ sequence | 128 | 8192 |\n|---|---|---|\n| 1 | 300.00% |  |\n"
        "| 2 |  |  |\n| 32 |  | compile out_of_memory, flash out_of_memory |",
        "flash / eager",
        "| batch \\ sequence | 128 | 8192 |\n|---|---|---|\n| 1 | 500.00% |  |\n"
        "| 2 | eager out_of_memory |  |\n| 32 |  | flash out_of_memory |",
        "triton / eager",
        "| batch \\ sequence | 128 | 8192 |\n|---|---|---|\n| 1 | 1000.00% |  |\n"
        "| 2 | eager out_of_memory |  |\n| 32 |  |  |",
        "flash / triton",
        "| batch \\ sequence | 128 | 8192 |\n|---|---|---|\n| 1 | 50.00% |  |\n"
        "| 2 | 50.00% |  |\n| 32 |  | flash out_of_memory |\n",
    ]
    first = written["attention-fwd-float32-cpu-batch-8-8-heads.md"].read_text()
    assert "| embedding \\ sequence | 16 |\n|---|---|\n| 65536 | 2.00 |" in first
    assert "attention-fwd-float32-cpu-16-heads-of-128.md" in written


def test_modules_of_attention_are_in_that_of_its_first_version(tmp_path: Path) -> None:
    cases = [("8x16x128-8heads", 2.0), ("8x32x65536-8heads", 4.0)]
    found = [
        replace(m, cell=replace(m.cell, op="multihead_attention"))
        for case, us in cases
        for m in (cell("eager", 8.0, case), cell("triton", us, case))
    ]
    written = {path.name: path for path in grid.write(found, tmp_path)}
    page = written["multihead_attention-fwd-float32-cpu-batch-8-8-heads.md"].read_text()
    assert "| embedding \\ sequence | 16 | 32 |\n" in page
    assert "| 128 | 400.00% |  |\n| 65536 |  | 200.00% |" in page


def test_products_have_a_grid_for_each_k(tmp_path: Path) -> None:
    cases = ("128x256x1024", "64x256x1024", "128x256x1024-t", "128x256x512")
    found = [
        replace(m, cell=replace(m.cell, op="matmul_relu"))
        for case in cases
        for m in (cell("eager", 9.0, case), cell("auto", 6.0, case))
    ]
    written = {path.name: path for path in grid.write(found, tmp_path)}
    stem = "matmul_relu-fwd-float32-cpu-K-"
    assert {f"{stem}{of}.md" for of in ("1024", "1024-b-transposed", "512")} <= set(written)
    page = written[f"{stem}1024.md"].read_text()
    assert "| M \\ N | 256 |\n|---|---|\n| 64 | 1.50 |\n| 128 | 1.50 |\n" in page
    assert "Speed" not in page
    assert " K 1024, b transposed |" in written["summary.md"].read_text()
