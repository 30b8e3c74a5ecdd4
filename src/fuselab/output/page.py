"""What all pages share: no script, no load from outside, every text escaped, one style."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(templates: Path) -> Environment:
    """Return the environment of a room's templates, which extend `page.html`."""
    return Environment(
        loader=FileSystemLoader([templates, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
