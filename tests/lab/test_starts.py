"""How processes that need torch are started."""

from __future__ import annotations

import tempfile

import pytest

from fuselab.processes import starts


def test_a_fork_server_serves_unless_its_socket_or_its_messages_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def method(descriptors: int = 0) -> str:
        return str(starts.context(descriptors).get_start_method())

    assert method() == method(starts.MOST_DESCRIPTORS) == "forkserver"
    assert method(starts.MOST_DESCRIPTORS + 1) == "spawn"
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/" + "x" * 80)
    assert method() == "spawn"
