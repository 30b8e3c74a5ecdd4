"""Writing a file in one step."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: str | os.PathLike[str], text: str) -> Path:
    """Write text to `path` (folders made) so that a reader sees the old file or the new one."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
