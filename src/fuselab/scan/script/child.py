"""The process that runs a script, as Python would, and records its steps."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from fuselab.processes import child
from fuselab.scan.script.stages import Enough, Stages
from fuselab.scan.script.steps import Steps


def main() -> None:
    # Ours, by which the outermost modules are found, in the first steps.
    warnings.filterwarnings("ignore", "Using `torch.compile.* when there are global hooks")
    asked, answer = child.question(), child.answering()
    stages = Stages(asked["stages"], Path(asked["folder"]), asked["ways"], answer)
    steps = Steps(asked["kind"], stages.began, stages.ended)
    stages.steps = steps
    with steps:
        ended = _run(asked["script"], asked["arguments"])
    if stages.over:
        ended = {"how": "stopped"}
    on_gpu = torch.cuda.is_initialized() and torch.cuda.max_memory_allocated() > 0
    answer({"ended": ended, "kind": steps.kind, "seen": steps.seen, "gpu": on_gpu})
    sys.stdout.flush()
    sys.stderr.flush()
    # What the script left running (threads, workers) is not waited for.
    os._exit(0)


def _run(script: str, arguments: list[str]) -> dict[str, Any]:
    """Run the script as `python SCRIPT ARGS` does; return how it ended."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except Enough:
        return {"how": "stopped"}
    except SystemExit as error:
        if error.code in (None, 0):
            return {"how": "done"}
        return {"how": "raised", "text": f"it left with exit code {error.code}"}
    except BaseException as error:
        traceback.print_exc()
        return {"how": "raised", "text": f"{type(error).__name__}: {error}"}
    return {"how": "done"}


if __name__ == "__main__":
    main()
