"""Where in the user's own code an error came from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch

_PACKAGE = Path(__file__).parents[1]
# Of Python, of what is installed, and of the two packages of this project.
_NOT_THE_USERS = (
    *(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib")),
    *(
        str(folder)
        for folder in (Path(torch.__file__).parent, _PACKAGE, _PACKAGE.with_name("fuselab"))
    ),
    "<",
)


def place(error: BaseException) -> str:
    """Return FILE:LINE of the innermost frame in the user's code, or "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THE_USERS):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


def told(error: BaseException) -> str:
    """Return one line: the error's type, its message, and where in the user's code it was."""
    try:
        # A syntax error's text repeats the place.
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        message = " ".join(text.split())[:300]
    except Exception:
        message = ""  # an exception of a user may be broken too
    line = ": ".join(filter(None, (type(error).__name__, message)))
    return f"{line} ({where})" if (where := place(error)) else line
