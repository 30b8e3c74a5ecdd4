"""Torch's compile caches, which outlive a process, serve no graph of other code or rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fuseline
from fuseline.core import native
from fuseline.core.registration import fingerprint
from fuseline.core.selection import tuned

# Prints what ran (names of operators, a result), whether the cache served it, and the tags before.
CHILD = """
import json, sys
import torch, fuseline
from fuseline.core.registration.fingerprint import fingerprint
from torch._dynamo.utils import counters
from torch.profiler import profile

x = torch.linspace(-1, 1, 288).reshape(2, 4, 6, 6)
weight = torch.linspace(1, 2, 144).reshape(4, 4, 3, 3)
functions = {
    "softmax": lambda: fuseline.softmax(x),
    "conv_bn": lambda: fuseline.conv_bn(x, weight, *[None] * 5, training=True),
    "rms_norm": lambda: fuseline.rms_norm(x.cuda(), impl="triton"),
    "double_softmax": lambda: fuseline.double_softmax(x),
}
before = torch.compiler.config.cache_key_tag, fingerprint.cache_info().currsize
options = fuseline.compile_options() if sys.argv[1] == "double_softmax" else None
compiled = torch.compile(functions[sys.argv[1]], options=options)
with profile() as profiled:
    y = compiled()
names = sorted({e.name for e in profiled.events() if e.name.startswith("fuseline::")})
hits = counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps([names, y.abs().max().item(), hits, before]))
"""


# Forks for each line it reads, since all that it imports here takes a process seconds of its own.
PARENT = """
import json, os, sys, traceback
import torch._dynamo, torch._inductor.compile_fx, torch.profiler
from torch._inductor.codecache import torch_key
torch_key()  # a hash of torch's sources
for line in sys.stdin:
    variables, code, argument, said = json.loads(line)
    if (pid := os.fork()) == 0:
        os.environ |= variables
        sys.argv[1:] = [argument]
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        failed = 1
        try:
            exec(code, {})
            sys.stdout.flush()
            failed = 0
        except BaseException:
            traceback.print_exc()
        os._exit(failed)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process with torch's compiler, but nothing of ours, loaded."""
    plain = ("TORCHINDUCTOR_VEC_ISA_OK", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS")
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PARENT],
        env=os.environ | dict.fromkeys(plain, "0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


@pytest.fixture
def child(parent: subprocess.Popen[str], tmp_path: Path) -> Callable[..., Any]:
    """Compile a call of an operator in a new process, with one folder of caches for all."""
    tables, said = tmp_path / "tuned", tmp_path / "said"
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches"), tuned.FOLDER: str(tables)}

    def run(op: str, package: Path | None = None) -> Any:
        code = CHILD if package is None else f"{FROM_COPY.format(folder=str(package))}{CHILD}"
        assert parent.stdin is not None
        assert parent.stdout is not None
        print(json.dumps([variables, code, op, str(said)]), file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "0\n", said.read_text()
        return json.loads(said.read_text().splitlines()[-1])

    run.tables = tables  # type: ignore[attr-defined]
    return run


# Past the finder of an editable install, which comes before sys.path.
FROM_COPY = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "_editable" not in type(f).__module__]
sys.path.insert(0, {folder!r})
"""


@pytest.mark.slow
def test_a_warm_cache_does_not_keep_what_rules_said_before(child: Any) -> None:
    names, _, hits, (tag, made) = child("softmax")
    assert (tag, made) == ("", 0)  # before the first compilation nothing is hashed
    assert not hits
    assert not any("aten" in name for name in names)
    assert child("softmax")[2] == 1  # as nothing has changed
    rule = {"direction": "fwd", "where": {}, "impl": ["aten"], "evidence": {"run": "none"}}
    file = child.tables / "softmax" / "rules" / "cpu.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"machine": "cpu", "rules": [rule]}))
    names, _, hits, _ = child("softmax")
    assert "fuseline::_softmax__aten" in names
    assert not hits
    assert child("softmax")[2] == 1


@pytest.mark.long  # the rules' tables, above, are read and hashed by the same code
def test_a_warm_cache_does_not_keep_what_tables_of_formulas_said_before(child: Any) -> None:
    names, *_ = child("double_softmax")
    assert any("double_softmax" in name for name in names)
    assert child("double_softmax")[2] == 1  # with a pass of ours torch caches too
    rule = {"direction": "fwd", "where": {}, "impl": ["eager"], "evidence": {"run": "none"}}
    file = child.tables / "double_softmax" / "inlining" / "cpu.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"machine": "cpu", "rules": [rule]}))
    _, _, hits, _ = child("double_softmax")
    assert not hits


# An operator, a file that its graphs are traced through, and an edit that doubles its result.
EDITS = [
    ("conv_bn", "impl_aten.py", "geometry.placed(y,", "geometry.placed(2 * y,"),
    pytest.param(
        *("rms_norm", "impl_triton.py", "y.to(y_ptr.dtype", "(2 * y).to(y_ptr.dtype"),
        marks=pytest.mark.gpu,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "name", "old", "new"), EDITS)
def test_a_warm_cache_does_not_keep_the_code_of_another_version(
    child: Any, tmp_path: Path, op: str, name: str, old: str, new: str
) -> None:
    package = tmp_path / "copy" / "fuseline"
    shutil.copytree(Path(fuseline.__file__).parent, package)
    binary = native.status().path
    if binary is not None and not (package / binary.name).exists():  # there if it is installed
        (package / binary.name).symlink_to(binary)
    _, before, _, _ = child(op, package.parent)
    file = package / "ops" / op / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    _, after, hits, _ = child(op, package.parent)
    assert after == pytest.approx(2 * before)
    assert not hits
    assert child(op, package.parent)[2] == 1


def test_the_hash_is_added_to_a_users_tag_once() -> None:
    mine = f"fuseline-{fingerprint.fingerprint()}"
    x = torch.randn(3, 5)
    with torch.compiler.config.patch(cache_key_tag="a user's"):
        for dim in (0, 1):
            torch.compile(fuseline.log_softmax, backend="aot_eager")(x, dim)
            assert torch.compiler.config.cache_key_tag == f"a user's {mine}"
        torch.compiler.config.cache_key_tag = "another"
        torch._dynamo.reset()
        torch.compile(fuseline.log_softmax, backend="aot_eager")(x)
        assert torch.compiler.config.cache_key_tag == f"another {mine}"


def test_without_a_compiler_the_tag_is_left_alone() -> None:
    with torch.compiler.config.patch(cache_key_tag=""):
        fuseline.softmax(torch.randn(3, 5, device="meta"))
        assert torch.compiler.config.cache_key_tag == ""


def test_every_part_changes_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary, package, user = tmp_path / "libfuseline.so", tmp_path / "package", tmp_path / "user"
    status = native.Native("loaded", path=binary)
    monkeypatch.setattr(native, "status", lambda: status)
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    monkeypatch.setenv(tuned.FOLDER, str(user))
    files = [
        binary,
        package / "ops" / "rms_norm" / "impl_triton.py",
        package / "ops" / "rms_norm" / "tuned" / "nvidia-h200.json",
        user / "rms_norm" / "nvidia-h200.json",
        user / "softmax" / "rules" / "sm_90.json",
    ]
    seen = []
    for text in ("one", "another"):
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if all(f.exists() for f in files):
                seen.append(fingerprint.fingerprint.__wrapped__())
    assert len(seen) == len(set(seen)) == len(files) + 1
    assert fingerprint.fingerprint.__wrapped__() == seen[-1]
    (package / "new.py").write_text("")
    assert fingerprint.fingerprint.__wrapped__() not in seen
