"""Functions run in processes of their own that find torch loaded, which takes two seconds."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection

import pytest


def in_a_fork(variables: dict[str, str], module: str, function: str, *arguments: str) -> None:
    """Call a module's function in a process that has these variables before it imports that.

    It forks from multiprocessing's server. AssertionError with the trace of what it raises.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(writer, variables, module, function, arguments))
    process.start()
    writer.close()
    try:
        error = reader.recv()
    except EOFError:
        error = "it ended"
    process.join()
    assert (process.exitcode, error) == (0, ""), f"exit code {process.exitcode}: {error}"


def _run(
    writer: Connection,
    variables: dict[str, str],
    module: str,
    function: str,
    arguments: tuple[str, ...],
) -> None:
    os.environ |= variables
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except BaseException:
        writer.send(traceback.format_exc())
    else:
        writer.send("")


def run_cases(file: str) -> None:
    """Run the tests of a file."""
    with io.StringIO() as said, contextlib.redirect_stdout(said):
        code = pytest.main(["-q", "-W", "ignore::RuntimeWarning", file])
        assert code == 0, said.getvalue()[-5000:]
