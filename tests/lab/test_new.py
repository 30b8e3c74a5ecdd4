"""fuselab new: names, what is written, nothing half-written; the packages build and pass (long)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.planning.plan import PlanError
from fuselab.scaffold import write
from fuselab.scaffold.name import LONGEST, checked

tomllib = pytest.importorskip("tomllib", reason="from Python 3.11")
styles = pytest.mark.parametrize("style", write.STYLES)


@pytest.mark.parametrize("name", ["d_sigmoid", "swish2", "my_op", "a" * LONGEST])
def test_names_that_all_take(name: str) -> None:
    assert checked(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "no such name"),
        ("D_sigmoid", "no such name"),
        ("d-sigmoid", "no such name"),
        ("2fast", "no such name"),
        ("_op", "no such name"),
        ("../op", "no such name"),
        ("op_", "pip"),
        ("a__b", "pip"),
        ("a" * (LONGEST + 1), "longer"),
        ("lambda", "Python"),
        ("match", "Python"),
        ("double", "C++"),
        ("json", "standard library"),
        ("torch", "exists"),
        ("aten", "exists"),
        ("setup", "exists"),
        ("eager", "exists"),
        ("mkldnn", "exists"),
        ("fuseline", "exists"),
    ],
)
def test_names_that_something_does_not_take(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["new", "--dir", str(tmp_path / "new"), "--", name]) == 2
    message = capsys.readouterr().err
    assert "NAME" in message
    assert repr(name) in message
    assert why in message
    assert not any(tmp_path.iterdir())


@styles
def test_all_files_are_of_this_name_and_parse(style: str, tmp_path: Path) -> None:
    files = write.create("my_op", style, tmp_path / "there" / "my_op")
    root = tmp_path / "there" / "my_op"
    assert files == sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file())
    texts = {file: (root / file).read_text() for file in files}
    for file, text in texts.items():
        assert "{=" not in text, file
        assert "{%" not in text, file
        assert "NAME" not in str(file)
        if file.suffix == ".py":
            ast.parse(text)
    project = tomllib.loads(texts[Path("pyproject.toml")])
    assert project["project"]["name"] == "my_op"
    wanted = {"README.md", "spec.py", "csrc/cpu.cpp", "csrc/kernel.cu", "csrc/formula.h"}
    wanted |= {"tests/test_my_op.py", "src/my_op/__init__.py", "src/my_op/_triton.py"}
    wanted |= {".github/workflows/ci.yml", ".gitignore"}
    wanted |= {"CMakeLists.txt"} if style == "stable" else {"setup.py", "csrc/pybind.cpp"}
    assert wanted <= {str(file) for file in files}
    assert list((tmp_path / "there").iterdir()) == [root]


@styles
def test_the_generated_python_is_clean(style: str, tmp_path: Path) -> None:
    write.create("my_op", style, tmp_path / "my_op")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=E,F,B"]
    subprocess.run([*ruff, "--line-length=100", str(tmp_path / "my_op")], check=True)


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(PlanError, match="--dir"):
        write.create("my_op", "stable", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert write.create("my_op", "stable", tmp_path / "empty")


def test_the_folder_that_one_is_in_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["new", "my_op", "--dir", "."]) == 0
    assert Path("pyproject.toml").exists()  # still the same folder


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert command(["new", "my_op", "--dir", str(tmp_path / "file/x")]) == 2
    assert "--dir" in capsys.readouterr().err


def test_no_namespace_of_torchs_is_a_name() -> None:
    code = "import torch; print(*torch._C._dispatch_get_all_op_names())"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for name in {op.partition("::")[0] for op in found.stdout.split()}:
        with pytest.raises(PlanError):
            checked(name)


def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = Path.write_text, 0

    def full(self: Path, *args: object, **kwargs: object) -> int:
        nonlocal written
        written += 1
        if written == 5:
            raise OSError(28, "No space left on device")
        return real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    assert command(["new", "my_op", "--dir", str(tmp_path / "my_op")]) == 3
    assert not any(tmp_path.iterdir())


def built(style: str, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A package in the folder, built and installed apart; the environment that finds it."""
    package, site = tmp_path / "my_op", tmp_path / "site"
    write.create("my_op", style, package)
    variables = {**os.environ, "CUDA_ARCHS": "90", "PYTHONPATH": str(site), "MAX_JOBS": "2"}
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", "dist", "."]
    subprocess.run(build, cwd=package, env=variables, check=True)
    wheels = list((package / "dist").glob("*.whl"))
    subprocess.run(
        [*pip, "install", "-q", "--no-deps", "--no-index", "--target", str(site), *wheels],
        env=variables,
        check=True,
    )
    return package, variables


@pytest.mark.long
@pytest.mark.timeout(900)
@styles
def test_it_builds_passes_its_tests_and_is_checked_and_measured(style: str, tmp_path: Path) -> None:
    package, variables = built(style, tmp_path)
    for arguments in (
        ["pytest"],
        ["fuselab", "check", "spec.py", "--level", "quick"],
        ["fuselab", "run", "spec.py", "--case", "64x1024", "--dtype", "fp32", "--out", "out/run"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=package, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    if style == "stable":
        assert list((package / "dist").glob("my_op-0.1.0-py3-none-*.whl"))
    else:  # the CPU's loops are shared among threads
        (binary,) = (tmp_path / "site/my_op").glob("_C*.so")
        assert b"GOMP_parallel" in binary.read_bytes()
