"""What XLA made of an operator, as one HTML page that opens offline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuselab.hlo.record import Hlo
from fuselab.hlo.text import counts, facts
from fuselab.output.files import replace
from fuselab.output.page import environment


def write_page(found: Sequence[Hlo], folder: Path) -> Path:
    """Write DIR/hlo.html in one step and return its path."""
    template = environment(Path(__file__).with_name("templates")).get_template("hlo.html")
    html = template.render(found=found, facts=facts, counts=counts, Counter=Counter)
    return replace(folder / "hlo.html", html)
