"""The compilers' caches: ours alone, or an error that says why not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuselab.processes import caches
from fuselab.processes.caches import CacheError


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in caches.FOLDERS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "fuselab"


def mode(folder: str | Path) -> int:
    return os.lstat(folder).st_mode & 0o777


def test_the_caches_are_made_for_us_alone_whatever_the_umask(base: Path) -> None:
    before = os.umask(0)
    try:
        found = caches.variables()
    finally:
        os.umask(before)
    assert found == {
        "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
        "TRITON_CACHE_DIR": str(base / "triton"),
        "TMPDIR": str(base / "tmp"),
    }
    assert {mode(folder) for folder in (base, base / "inductor", base / "triton")} == {0o700}
    assert caches.variables() == found


def test_without_xdg_or_with_a_relative_one_they_lie_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert caches.root() == tmp_path / "home" / ".cache" / "fuselab"


def as_symlink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


def as_dangling_symlink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.symlink_to(folder.with_name("nowhere"))


def as_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("")


def with_mode(bits: int) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        folder.chmod(bits)

    return make


def of_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


REFUSED = [
    (as_symlink, "is a symbolic link, expected a folder of our own with mode 0700"),
    (as_dangling_symlink, "cannot be made"),
    (as_file, "cannot be made"),
    (with_mode(0o755), "has mode 0755"),
    (with_mode(0o777), "has mode 0777"),
    (with_mode(0o710), "has mode 0710"),
    (of_another, f"belongs to user {os.geteuid()}"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_a_folder_that_is_not_ours_alone_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch, make: Any, words: str
) -> None:
    make(base, monkeypatch)
    with pytest.raises(CacheError) as caught:
        caches.variables()
    assert str(caught.value).startswith(f"cache folder: {base} {words}")


@pytest.mark.parametrize("name", caches.FOLDERS)
def test_one_below_it_is_looked_at_too(base: Path, name: str) -> None:
    caches.variables()
    (base / caches.FOLDERS[name]).chmod(0o750)
    with pytest.raises(CacheError, match=f"{caches.FOLDERS[name]} has mode 0750"):
        caches.variables()


@pytest.mark.parametrize("name", caches.FOLDERS)
def test_a_users_folder_is_kept_if_it_is_private(
    base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "mine"
    monkeypatch.setenv(name, str(mine))
    assert caches.variables()[name] == str(mine)
    assert mode(mine) == 0o700
    mine.chmod(0o755)
    with pytest.raises(CacheError, match=f"^{name}: {mine} has mode 0755"):
        caches.variables()


def test_with_both_set_by_the_user_ours_are_not_made(
    base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in caches.FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / name))
    caches.variables()
    assert [folder.name for folder in base.iterdir()] == ["tmp"]


def test_what_torch_writes_there_itself_is_not_the_users_word(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path(tempfile.gettempdir()) / "torchinductor_someone"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared / "triton" / "0"))
    assert caches.variables()["TORCHINDUCTOR_CACHE_DIR"] == str(base / "inductor")
    assert caches.variables()["TRITON_CACHE_DIR"] == str(base / "triton")


def test_fresh_caches_are_empty_private_and_gone_afterwards(base: Path) -> None:
    with caches.fresh() as first, caches.fresh() as second:
        folders = [Path(found[name]) for found in (first, second) for name in caches.FOLDERS]
        assert len(set(folders)) == 4
        assert first.keys() == second.keys() == caches.variables().keys()
        for folder in folders:
            assert mode(folder) == mode(folder.parent) == 0o700
            assert not list(folder.iterdir())
        (folders[0] / "kernel.py").write_text("")
    assert not any(folder.parent.exists() for folder in folders)


@pytest.mark.slow
def test_what_is_compiled_stays_out_of_the_shared_folder(
    base: Path, lab: Any, toy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")  # three compilations that say no more
    done = lab(
        *("run", toy, "--out", str(tmp_path / "run"), "--device", "cpu", "--dtype", "fp32"),
        *("--direction", "fwd", "--impl", "compile"),
    )
    assert "compile " in done.stderr, done.stderr
    assert list(base.glob("inductor/*/*.py"))
    left = [file for file in shared.rglob("torchinductor_*/**/*") if file.is_file()]
    assert not left
