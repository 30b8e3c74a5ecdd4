"""Where the worker's process begins: commands name this, and load nothing of what measures."""

from __future__ import annotations

import importlib
from multiprocessing.connection import Connection


def main(pipe: Connection, alive: Connection, device: str, log: str) -> None:
    """Load the worker, with torch's compiler, and serve requests."""
    importlib.import_module("fuselab.worker.process").main(pipe, alive, device, log)
