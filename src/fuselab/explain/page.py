"""An explanation as one HTML page that opens offline."""

from __future__ import annotations

from pathlib import Path

from fuselab.explain.record import MEANING, Explanation
from fuselab.explain.text import phases
from fuselab.explain.verdict import verdicts
from fuselab.output.files import replace
from fuselab.output.page import environment


def write_page(found: Explanation, folder: Path) -> Path:
    """Write DIR/explain-FUNCTION.html in one step and return its path."""
    template = environment(Path(__file__).with_name("templates")).get_template("explain.html")
    text = template.render(found=found, verdicts=verdicts(found), phases=phases, meaning=MEANING)
    return replace(folder / f"explain-{found.function}.html", text)
