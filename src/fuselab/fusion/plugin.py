"""The pytest plugin: the fixture `assert_fused` and the marker `fused`. Torch waits until used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MARK = "fused"
TERMS = "kernels=1, traffic=1.05, breaks=0, recompiles=1, peak=None"
CALLED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}({TERMS}): terms of the fixture assert_fused in this test, which must call it",
    )


@pytest.fixture
def assert_fused(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call fuselab.assert_fused with the terms of the test's marks; a call's own come first."""
    from fuselab.fusion.assertion import assert_fused as plain

    terms = _terms(request.node)

    def check(fn: Callable[..., Any], *inputs: Any, **own: Any) -> Any:
        __tracebackhide__ = True
        request.node.stash[CALLED] = True
        return plain(fn, *inputs, **{**terms, **own})

    return check


@pytest.hookimpl(trylast=True)  # after the test has run
def pytest_runtest_call(item: pytest.Item) -> None:
    if item.get_closest_marker(MARK) and not item.stash.get(CALLED, False):
        pytest.fail(f"marked {MARK}, but the test never called the fixture assert_fused", False)


def _terms(node: pytest.Item) -> dict[str, Any]:
    """Return the terms of all marks of a test; the closest wins."""
    terms: dict[str, Any] = {}
    for mark in node.iter_markers(MARK):
        if mark.args:
            raise pytest.UsageError(f"{MARK}: got {mark.args}, expected terms by name: {TERMS}")
        terms = {**mark.kwargs, **terms}
    return terms
