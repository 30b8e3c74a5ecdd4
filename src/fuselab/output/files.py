"""Writing a file in one step."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write to `path` (folders made) so that a reader sees the old file or the new one.

    A link stays one, and what is no file (a pipe, /dev/stdout) is written to as it is.
    """
    target, data = Path(path), content.encode() if isinstance(content, str) else content
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(data)
        return target
    if target.is_symlink():
        target = target.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return Path(path)
