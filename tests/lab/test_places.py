"""No home, somebody else's, one that cannot be written: a private folder elsewhere, or one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fuselab.commands import paths
from fuselab.planning.plan import PlanError
from fuselab.processes import caches

NAMELESS = "import pwd\ndef none(*_): raise KeyError('uid not found')\npwd.getpwuid = none\n"
NO_FOLDERS = ("/proc/no-home", "/dev/null", "/proc")
CHECK = ("check", "pointwise_chain", "--impl", "eager", "--dtype", "fp32", "--level", "quick")
CALL = ("trace", "F.relu(x)", "--device", "cpu")


def nobody(uid: int) -> None:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders go; nothing else is known of the user's folders."""
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", *caches.FOLDERS):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    caches._say_once.cache_clear()
    return place


def private(place: Path) -> Path:
    return place / f"fuselab-{os.geteuid()}"


@pytest.mark.parametrize("home", [None, *NO_FOLDERS])
def test_the_cache_goes_to_a_private_folder_elsewhere(
    home: str | None, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if home is None:
        monkeypatch.setattr("pwd.getpwuid", nobody)
    else:
        monkeypatch.setenv("HOME", home)
    assert caches.root() == caches.root() == private(temporary)
    assert private(temporary).stat().st_mode & 0o777 == 0o700
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"; using {private(temporary)}")
    assert caches.variables()["TMPDIR"] == str(private(temporary) / "tmp")


@pytest.mark.parametrize("planted", ["link", "open"])
def test_what_somebody_else_may_have_put_there_is_refused(
    planted: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", NO_FOLDERS[0])
    if planted == "link":
        private(temporary).symlink_to(temporary)
    else:
        private(temporary).mkdir()
        private(temporary).chmod(0o777)
    with pytest.raises(caches.CacheError, match="expected a folder of our own with mode 0700"):
        caches.root()


def test_a_folder_that_cannot_be_written_is_not_used(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    usual = caches.root()
    assert usual == tmp_path / "cache" / "fuselab"
    # As of a file system that is mounted to read only.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != usual)
    assert caches.root() == private(temporary)


@pytest.mark.parametrize("home", [None, NO_FOLDERS[0]])
@pytest.mark.parametrize("verb", [CHECK, CALL], ids=lambda verb: verb[0])
def test_verbs_work_without_a_home(
    home: str | None, verb: tuple[str, ...], lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if home:
        monkeypatch.setenv("HOME", home)
    done = lab(*verb, before="" if home else NAMELESS)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("; using ") == (1 if verb is CHECK else 0)


def test_tune_without_a_home_asks_for_a_file(lab: Any, tmp_path: Path) -> None:
    file = str(Path(__file__).parent / "tuned_ops.py")
    done = lab("tune", file, "--device", "cpu", before=NAMELESS)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --out: got nothing, expected FILE")


@pytest.mark.parametrize("path", ["a-file/below", "a-file"])
def test_where_nothing_can_be_written_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("")
    with pytest.raises(PlanError, match=r"^--out: got '"):
        paths.check_folder("--out", path)
    paths.check_folder("--out", "new/folder")
    paths.check_file("--out", "new/file")
    with pytest.raises(PlanError, match="a folder; expected a file"):
        paths.check_file("--out", tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PlanError, match=r"^--out: got 'new/folder', but '.*' cannot be written$"):
        paths.check_folder("--out", "new/folder")
