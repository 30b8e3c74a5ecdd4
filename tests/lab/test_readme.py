"""What the README shows works: its table, its examples in Python, its operator in the checker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import operator_table  # noqa: E402

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_table_of_operators_is_what_specs_and_dispatcher_say() -> None:
    expected = operator_table.render()
    assert operator_table.written() == expected, "run: python tools/operator_table.py --write"


def test_the_table_has_no_cell_for_an_operator_without_that_backend() -> None:
    row = next(line for line in operator_table.render().splitlines() if "`rms_norm_fp8`" in line)
    assert "bwd" not in row
    row = next(line for line in operator_table.render().splitlines() if "`softmax`" in line)
    assert "fwd + bwd" in row


def test_the_call_in_the_readme_runs(tmp_path: Path) -> None:
    (call,) = (code for code in EXAMPLES if "OpSpec" not in code)
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_operator_in_the_readme_passes_the_checker(tmp_path: Path) -> None:
    (spec,) = (code for code in EXAMPLES if "OpSpec" in code)
    (tmp_path / "my_ops.py").write_text(spec)
    command = [sys.executable, "-m", "fuselab", "check", "my_ops.py", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"silu +mine +\d+ checks ok$", done.stdout, re.MULTILINE), done.stdout
