"""What the import linter cannot see: folders, includes, light imports, budgets of size."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fuseline import ops, table

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "src" / "fuseline"
LAB = ROOT / "src" / "fuselab"
OPS = sorted(p for p in (LIBRARY / "ops").iterdir() if (p / "__init__.py").exists())
SOURCES = [
    p
    for package in (LIBRARY, LAB)
    for p in sorted(package.rglob("*"))
    if "__pycache__" not in p.parts
]
PYTHON = [p for p in SOURCES if p.suffix == ".py"]
NATIVE = [p for p in SOURCES if p.suffix in (".cpp", ".cu", ".h", ".cuh")]
# Folders of more than twelve files, and how many they have.
LARGER = {
    # CMake finds the kernels of an operator by their names in its folder.
    "fuseline/ops/attention": 14,
    "fuseline/ops/bias_dropout_add": 15,
    "fuseline/ops/bias_gelu": 15,
    "fuseline/ops/cross_entropy": 14,
    "fuseline/ops/horizontal_reduction_pointwise": 13,
    "fuseline/ops/horizontal_reduction_reduction": 13,
    "fuseline/ops/layer_norm": 20,
    "fuseline/ops/masked_softmax": 13,
    "fuseline/ops/norm_chain": 13,
    "fuseline/ops/pointwise_chain": 13,
    "fuseline/ops/rms_norm": 14,
    # Every operator includes its headers, by paths that also stand in messages of the binary.
    "fuseline/core/cpp": 14,
}
# The module for one torch and one Python; all else is of the binary, or compiled where it is used.
HOST = LIBRARY / "core" / "host"
STABLE = [p for p in NATIVE if HOST not in p.parents]
HEADERS = LIBRARY / "primitives" / "include" / "fuseline"
# The folders of HEADERS, bottom to top, and which others each includes; a new folder must be named
# here. The norms and their backward are one layer: the kernels of both are instantiated together.
FOLDERS = {
    ".": set(),
    "cpu/vectors": set(),
    "cpu": {".", "cpu/vectors"},
    "cpu/fp8": {".", "cpu"},
    "cpu/gated": {".", "cpu"},
    "cuda": set(),
    "cuda/rows": {"cuda"},
    "cuda/launch": {"cuda", "cuda/rows"},
    "cuda/columns": {"cuda", "cuda/rows", "cuda/launch"},
    "cuda/pointwise": {".", "cuda"},
    "cuda/norm/backward": {"cuda", "cuda/columns", "cuda/norm"},
    "cuda/norm": {"cuda", "cuda/rows", "cuda/launch", "cuda/norm/backward"},
}


def _names(paths: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT / "src")) for p in paths]


@pytest.mark.parametrize("folder", OPS, ids=lambda p: p.name)
def test_an_operator_folder_has_the_required_files_and_no_others(folder: Path) -> None:
    names = {p.name for p in folder.iterdir() if p.is_file()}
    required = {"__init__.py", "op.py", "reference.py", "spec.py", "impl_eager.py", "README.md"}
    assert required <= names
    for name in names - required:
        assert re.fullmatch(r"impl_[a-z0-9_]+\.(py|cpp|cu|cuh|h)", name), name


def test_folders_exports_and_table_name_the_same_operators() -> None:
    assert [p.name for p in OPS] == sorted(ops.__all__) == list(table.load())


def test_folders_stay_small() -> None:
    files = Counter(str(p.parent.relative_to(ROOT / "src")) for p in SOURCES if p.is_file())
    assert {folder: count for folder, count in files.items() if count > 12} == LARGER


def _includes(path: Path) -> list[str]:
    return re.findall(r'#include\s+[<"]([^>"]+)[>"]', path.read_text())


def _folders(path: Path) -> set[str]:
    """Return the folders of HEADERS that a file includes headers of."""
    found = {HEADERS.parent / include for include in _includes(path)}
    return {str(p.parent.relative_to(HEADERS)) for p in found if p.exists()}


def test_headers_include_those_of_folders_below() -> None:
    found: dict[str, set[str]] = {}
    for path in NATIVE:
        if path.is_relative_to(HEADERS):
            folder = str(path.parent.relative_to(HEADERS))
            found[folder] = found.get(folder, set()) | _folders(path) - {folder}
    assert found == FOLDERS


@pytest.mark.parametrize("path", NATIVE, ids=_names(NATIVE))
def test_host_code_and_device_code_have_headers_of_their_own(path: Path) -> None:
    other = "cpu" if path.suffix in (".cu", ".cuh") else "cuda"
    if not path.is_relative_to(HEADERS):
        assert [f for f in _folders(path) if f.startswith(other)] == []


def test_the_host_module_and_the_binary_include_nothing_of_each_other() -> None:
    for path in NATIVE:
        ours = [i for i in _includes(path) if i.startswith("fuseline/")]
        of_host = [i for i in ours if i.startswith("fuseline/core/host/")]
        assert of_host == (ours if HOST in path.parents else []), path


@pytest.mark.parametrize("path", STABLE, ids=_names(STABLE))
def test_native_code_includes_only_stable_headers(path: Path) -> None:
    allowed = re.compile(
        r"torch/(headeronly|csrc/stable|csrc/inductor/aoti_torch/c)/|fuseline/|impl_|(tensor|takeover|isa)\.h"
        # No part of the binary, compiled where it is used: fuseline/jax/handlers.cpp.
        r"|kernels\.h|xla/ffi/|build_info\.h|cuda|cooperative_groups\.h|sys/mman\.h|dlfcn\.h|immintrin\.h|[a-z_]+$|c[a-z]+$"
    )
    for include in _includes(path):
        assert allowed.match(include), include


@pytest.mark.parametrize(
    ("module", "absent"),
    [("fuseline", "triton"), ("fuseline.table", "triton"), ("fuselab.report", "torch"),
     ("fuselab.planning.plan", "torch"), ("fuselab.storage.store", "torch"),
     ("fuselab.records.metrics", "torch")],
)  # fmt: skip
def test_imports_stay_light(module: str, absent: str) -> None:
    code = f"import {module}, sys; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_import_leaves_cuda_alone() -> None:
    code = "import fuseline, torch, sys; sys.exit(torch.cuda.is_initialized())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", PYTHON + NATIVE, ids=_names(PYTHON + NATIVE))
def test_files_stay_short(path: Path) -> None:
    limit = 600 if path.name.startswith("impl_") else 400
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", PYTHON, ids=_names(PYTHON))
def test_functions_stay_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            # Of a Triton kernel the signature alone has ten lines.
            kernel = any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
            limit = 150 if kernel or path.name.startswith("impl_") else 60
            assert node.end_lineno - node.lineno < limit, node.name


def test_only_the_contract_registers_operators() -> None:
    users = [p for p in PYTHON if p.is_relative_to(LIBRARY) and "torch.library" in p.read_text()]
    assert _names(users) == ["fuseline/core/registration/contract.py"]
