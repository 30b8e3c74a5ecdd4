"""Where a verb is to write, looked at before the work that it would lose."""

from __future__ import annotations

import os
from pathlib import Path

from fuselab.planning.plan import PlanError


def check_folder(option: str, path: str | Path | None) -> None:
    """Raise PlanError where no folder of that name can be made or written to."""
    if path is None:
        return
    if os.path.exists(path) and not os.path.isdir(path):
        raise PlanError(f"{option}: got {str(path)!r}, a file; expected a folder")
    _check_writable(option, Path(path))


def check_file(option: str, path: str | Path | None) -> None:
    """Raise PlanError where no file of that name can be written."""
    if path is None:
        return
    if os.path.isdir(path):
        raise PlanError(f"{option}: got {str(path)!r}, a folder; expected a file")
    _check_writable(option, Path(path).parent)


def _check_writable(option: str, folder: Path) -> None:
    """Look at the folder, or at the nearest one above it that is there."""
    there = next((p for p in (folder, *folder.absolute().parents) if os.path.exists(p)), folder)
    if not os.path.isdir(there):
        raise PlanError(f"{option}: got {str(folder)!r}, but {str(there)!r} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PlanError(f"{option}: got {str(folder)!r}, but {str(there)!r} cannot be written")
