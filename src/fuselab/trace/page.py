"""A trace as one HTML page that opens offline."""

from __future__ import annotations

from pathlib import Path

from fuselab.output.files import replace
from fuselab.output.page import environment
from fuselab.trace.events import Kind
from fuselab.trace.record import Trace
from fuselab.trace.sentences import sentence
from fuselab.trace.text import COMPUTED, OBSERVED, facts, head


def to_html(trace: Trace) -> str:
    """Return the page: events indented as they ran, each opens to its keys and entries."""
    parts = (("Forward", trace.forward), ("Backward", trace.backward))
    return (
        environment(Path(__file__).with_name("templates"))
        .get_template("trace.html")
        .render(
            trace=trace,
            facts=list(facts(trace)),
            parts=[(title, [(row, head(row, trace)) for row in rows]) for title, rows in parts],
            sentence=sentence,
            observed=OBSERVED,
            computed=COMPUTED,
            Kind=Kind,
        )
    )


def write_page(trace: Trace, folder: Path) -> Path:
    """Write DIR/trace.html in one step and return its path."""
    return replace(folder / "trace.html", to_html(trace))
