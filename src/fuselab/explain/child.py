"""The process that explains: python -m fuselab.explain.child REQUEST ANSWER, both JSON files."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from fuselab.explain.observe import explain
from fuselab.explain.target import load
from fuselab.plan import PlanError


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        target = load(Path(request["file"]), request["name"], request["device"])
        answer: dict[str, Any] = {"found": explain(target, request["device"]).to_record()}
    except PlanError as error:
        answer = {"usage": str(error)}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
