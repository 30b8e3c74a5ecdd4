"""How the lab starts processes that need torch."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from typing import Any

# Bytes of a Unix socket's path, less the zero at its end.
LONGEST_SOCKET = 107
# A fork server's message holds 256 descriptors, a few of which are its own.
MOST_DESCRIPTORS = 240


def context(descriptors: int = 0) -> Any:
    """Return the way to start processes: a fork server that has torch loaded, else spawn.

    descriptors  how many the arguments of a process hold: one for each memory that is shared
    """
    # The server listens at pymp-XXXXXXXX/listener-XXXXXXXX in the temporary folder.
    short = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_SOCKET - 32
    known = "forkserver" in multiprocessing.get_all_start_methods()
    if not (short and known) or descriptors > MOST_DESCRIPTORS:
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["torch"])
    return found
