"""The process that trains a variant."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fuselab.processes import child
from fuselab.training.variants import train


def main() -> None:
    asked = child.question()
    found: dict[str, Any]
    try:
        found = {"trained": asdict(train(**asked))}
    except ImportError as error:
        extra = "; pip install 'fuseline[jax]'" if asked["variant"] == "jax" else ""
        found = {"missing": f"{error}{extra}", "failed": False}
    except Exception as error:
        found = {"missing": child.told(error), "failed": True}
    child.answer(found)


if __name__ == "__main__":
    main()
