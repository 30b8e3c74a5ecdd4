"""Writes a package from the templates of its style, all of it or nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fuselab.planning.plan import PlanError
from fuselab.scaffold.name import checked

# Each with what pip builds it with.
STYLES = {"stable": "scikit-build-core cmake ninja", "classic": "'setuptools>=77' ninja"}
_TEMPLATES = Path(__file__).with_name("templates")
_SUFFIX = ".jinja"
# In a path of a template: the package's name.
_NAME = "NAME"


def create(name: str, style: str, folder: Path) -> list[Path]:
    """Write the package `name` into `folder` and return its files, relative to it.

    The folder must not exist or be empty. Raises PlanError for a bad name or folder, before
    anything is written.
    """
    checked(name)
    _free(folder)
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}.") as temporary:
        made = Path(temporary) / name
        files = _render(name, style, made)
        if folder.exists():  # it may be where the user is
            for path in made.iterdir():
                shutil.move(path, folder)
        else:
            shutil.move(made, folder)
    return files


def _free(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    for parent in folder.parents:
        if parent.exists() and not parent.is_dir():
            raise PlanError(f"--dir: got {str(folder)!r}, but {str(parent)!r} is no folder")
    if folder.exists() or folder.is_symlink():
        raise PlanError(f"--dir: got {str(folder)!r}, which exists; expected a new or empty folder")


def _render(name: str, style: str, into: Path) -> list[Path]:
    files = []
    for part in ("both", style):
        # The files are code, not pages: nothing to escape.
        templates = Environment(
            loader=FileSystemLoader(_TEMPLATES / part),
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            # Launches have <<<, Actions {{, TOML [[.
            variable_start_string="{=",
            variable_end_string="=}",
        )
        for template in templates.list_templates():
            path = Path(template.removesuffix(_SUFFIX).replace(_NAME, name))
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            text = templates.get_template(template).render(
                name=name, style=style, built_with=STYLES[style]
            )
            target.write_text(text, encoding="utf-8")
            files.append(path)
    return sorted(files)
