"""Private folders for what the lab keeps, and for what Inductor and Triton compile.

Both execute what they find in their caches, and Inductor unpickles it. Inductor's own default is a
folder of a known name in the shared /tmp, taken as it is found.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fuselab.output.plain import say

FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
# Inductor keeps precompiled C++ headers in the temporary folder wherever its cache is.
SUBFOLDERS = FOLDERS | {"TMPDIR": "tmp"}

_say_once = cache(say)


class CacheError(OSError):
    """A cache folder that is not ours alone or cannot be made; the text says which and why."""


class UnwritableError(CacheError):
    """A cache folder that this process may not make, or not write to."""


def root() -> Path:
    """Return the lab's cache folder, made where it is missing: in XDG_CACHE_HOME or ~/.cache.

    Where that cannot be written (no home, somebody else's, a read-only container): a folder of this
    user's among the temporary ones, and a line on stderr. CacheError if it is not ours alone.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The standard has a relative path count as none.
        usual = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "fuselab"
        return _private(usual, "cache folder")
    except UnwritableError as error:
        why = str(error)
    except RuntimeError:  # neither HOME nor an entry of this user in the password database
        why = "cache folder: there is no home folder"
    other = Path(tempfile.gettempdir()) / f"fuselab-{os.geteuid()}"
    _say_once(f"{why}; using {other}")
    return _private(other, "cache folder")


def variables() -> dict[str, str]:
    """Return the environment variables for private caches, which are made where missing.

    A folder that the user has set is kept if it is private too, else CacheError.
    """
    chosen = {name: Path(os.environ[name]) for name in FOLDERS if _set_by_user(name)}
    ours = {name: sub for name, sub in SUBFOLDERS.items() if name not in chosen}
    return _below(root(), ours) | {n: str(_private(folder, n)) for n, folder in chosen.items()}


@contextmanager
def fresh() -> Iterator[dict[str, str]]:
    """Yield the variables of empty private caches, which go with the context."""
    with tempfile.TemporaryDirectory(prefix="fuselab-", ignore_cleanup_errors=True) as folder:
        yield _below(Path(folder))


def _below(folder: Path, wanted: Mapping[str, str] = SUBFOLDERS) -> dict[str, str]:
    _private(folder, "cache folder")
    return {name: str(_private(folder / sub, "cache folder")) for name, sub in wanted.items()}


def _set_by_user(name: str) -> bool:
    """Say whether a variable is set, and not by torch: it writes its shared default there."""
    value = os.environ.get(name)
    if not value:
        return False
    shared = Path(tempfile.gettempdir()) / "torchinductor_"
    return not os.path.abspath(value).startswith(str(shared))


def _private(folder: Path, argument: str) -> Path:
    """Return the absolute folder, made if it is missing; CacheError if it is not ours alone."""
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        fault = _fault(folder.lstat())
    except FileExistsError as error:
        raise CacheError(f"{argument}: {folder} cannot be made: {error}") from error
    except OSError as error:
        raise UnwritableError(
            f"{argument}: {folder} cannot be made: {error.strerror or error}"
        ) from error
    if fault:
        raise CacheError(
            f"{argument}: {folder} {fault}, expected a folder of our own with mode 0700: what is "
            "in it gets executed"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnwritableError(f"{argument}: {folder} cannot be written")
    return folder


def _fault(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if found.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(found.st_mode):04o}"
    return ""
