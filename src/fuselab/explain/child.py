"""The process that explains a function."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from fuselab.explain.target import load
from fuselab.planning.plan import PlanError
from fuselab.processes import child


def main() -> None:
    asked = child.question()
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        target = load(Path(asked["file"]), asked["name"], asked["device"])
        # Torch's compiler takes seconds to load: not before there is something to explain.
        explain = importlib.import_module("fuselab.explain.observe").explain
        answer: dict[str, Any] = {"found": explain(target, asked["device"]).to_record()}
    except PlanError as error:
        answer = {"usage": str(error)}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    child.answer(answer)


if __name__ == "__main__":
    main()
