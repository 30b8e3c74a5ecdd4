"""What the README shows works: its table, its examples in Python, its operator in the checker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import column_table  # noqa: E402
import marked  # noqa: E402
import operator_table  # noqa: E402


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("tool", [operator_table, column_table], ids=lambda tool: tool.__name__)
def test_a_generated_table_is_what_its_tool_makes(tool: Any) -> None:
    found = marked.written(tool.PAGE, tool.BEGIN, tool.END)
    assert found == tool.render(), f"run: python tools/{tool.__name__}.py --write"


def test_the_table_has_no_cell_for_an_operator_without_that_backend() -> None:
    row = next(line for line in operator_table.render().splitlines() if "`rms_norm_fp8`" in line)
    assert "bwd" not in row
    row = next(line for line in operator_table.render().splitlines() if "`softmax`" in line)
    assert "fwd + bwd" in row


def test_the_call_in_the_readme_runs(tmp_path: Path) -> None:
    (call,) = (code for code in examples("README.md") if "OpSpec" not in code)
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("page", "op"), [("README.md", "silu"), ("docs/your-own-operator.md", "swiglu")]
)
def test_an_operator_of_your_own_passes_the_checker(
    page: str, op: str, tmp_path: Path, lab_here: Any
) -> None:
    (spec,) = (code for code in examples(page) if "OpSpec" in code)
    file = tmp_path / "my_ops.py"
    file.write_text(spec)
    done = lab_here("check", str(file), "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{op} +mine +\d+ checks ok$", done.stdout, re.MULTILINE), done.stdout


def _rows(markdown: str) -> dict[str, list[str]]:
    """Return the rows of all tables by their first cell; of several alike, all cells in order."""
    rows: dict[str, list[str]] = {}
    for line in markdown.splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
            rows.setdefault(name, []).extend(cells)
    return rows


def test_the_times_in_the_readme_are_those_of_the_file_it_cites() -> None:
    readme = _rows((ROOT / "README.md").read_text())
    cited = (ROOT / "results/h100/week12-2026-11-25/week12.md").read_text()
    cells = _rows(cited)["8x4096x4096"]
    # eager, torchscript, compile, native, liger, quack, cpu, triton, cuda, two ratios; backward
    for name, bytes_moved, times in (
        ("forward, us", 2 * 2**27 * 2, cells[:9]),
        ("backward, us", 3 * 2**27 * 2, cells[11:20]),
    ):
        expected = [float(times[i]) for i in (0, 2, 3, 4, 5, 7, 8)]
        assert readme[name] == [f"{us:.0f}" for us in expected]
        shares = (
            readme["share of DRAM peak"][:7] if name[0] == "f" else readme["share of DRAM peak"][7:]
        )
        assert shares == [f"{bytes_moved / us / 3.35e6 * 100:.0f} %" for us in expected]


def test_the_ratios_in_the_readme_are_those_of_the_file_it_cites() -> None:
    readme = _rows((ROOT / "README.md").read_text())
    cited = _rows((ROOT / "results/h200/fusion-2026-11-27/summary.md").read_text())
    for k, op in enumerate(
        ["softmax", "log_softmax", "layer_norm", "double_softmax", "bias_gelu", "norm_chain"]
    ):
        _, _, _, _, cells, _, _, ratio, share, _, slower = cited[op]
        assert cells in ("99", "100")
        assert readme["time of torch.compile over ours, geometric mean from 4 MB"][k] == ratio
        assert readme["bandwidth from 256 MB, % of a copy"][k] == share.replace(" to ", "-").strip(
            " %"
        )
        assert readme["sizes slower than torch.compile"][k] == slower.split(":")[0]
