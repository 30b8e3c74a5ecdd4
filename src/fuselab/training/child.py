"""The process that trains: python -m fuselab.training.child VARIANT SIZE STEPS DEVICE ANSWER."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuselab.training.variants import train


def main() -> None:
    variant, size, steps, device, answer = sys.argv[1:]
    found: dict[str, Any]
    try:
        found = {"trained": asdict(train(variant, size, int(steps), device))}
    except ImportError as error:
        extra = "; pip install 'fuseline[jax]'" if variant == "jax" else ""
        found = {"missing": f"{error}{extra}"}
    except Exception as error:
        found = {"missing": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
