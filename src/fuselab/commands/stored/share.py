"""fuselab share: a run as one file, without what names a person or a machine."""

from __future__ import annotations

import getpass
import json
import platform
import re
from pathlib import Path
from typing import Any

from fuselab.commands import exits, paths
from fuselab.planning.plan import PlanError
from fuselab.storage import body
from fuselab.storage.store import BODY, SUFFIX, Store, file_of

# What a reason or a tool's message may quote: an absolute path, also of Windows, from its root on.
_PATH = re.compile(r"(?<![\w.:/\\])(?:/[\w.@+~-]+){2,}/?|\b[A-Za-z]:\\[^\s\"']+")
_SHORTEST = 3  # letters of a name that is looked for


def run(folder: str, file: str) -> int:
    """Write FILE; 3 if the run holds nothing, 2 if FILE is there already or has another ending."""
    target = Path(file)
    if target.suffix != SUFFIX:
        raise PlanError(f"FILE: got {file!r}, expected a name that ends in {SUFFIX}")
    paths.check_file("FILE", target)
    if target.exists():
        raise PlanError(f"FILE: got {file!r}, which exists; expected another name")
    names = [n for n in {_user(), platform.node()} if len(n) >= _SHORTEST]
    with Store.open_readonly(folder) as store:
        rows, environments = store.rows(), store.environment()
    if not rows:
        print(f"{file_of(folder)}: the run holds no cell")
        return exits.NO_DATA
    try:
        with Store.open(target) as shared:
            shared.take(
                [(*row[:BODY], _scrubbed(row[BODY], names), *row[BODY + 1 :]) for row in rows],
                [_clean(env, names) | {"id": env["id"]} for env in environments],
            )
            shared.pack()
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    print(f"{len(rows)} cells, {target.stat().st_size / 1024:.0f} KiB in {target}")
    return exits.OK


def _scrubbed(text: str, names: list[str]) -> str:
    return json.dumps(_clean(body.from_json(text), names))


def _clean(value: Any, names: list[str]) -> Any:
    """Return a value whose texts have neither paths nor names."""
    if isinstance(value, str):
        text = _PATH.sub("(a path)", value)
        for name in names:
            text = re.sub(rf"\b{re.escape(name)}\b", "(a name)", text)
        return text
    if isinstance(value, dict):
        return {key: _clean(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_clean(one, names) for one in value]
    return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this number
        return ""
