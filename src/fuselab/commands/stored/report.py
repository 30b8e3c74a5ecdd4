"""fuselab report: one HTML page of a run, or of several beside the first; tables as Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuselab.commands import exits, paths
from fuselab.model import Measurement
from fuselab.output.files import replace
from fuselab.planning.plan import PlanError
from fuselab.published.tables import PREFIX, load
from fuselab.report import html, text
from fuselab.report.pictures import grid as grids
from fuselab.report.shown import Beside, Shown
from fuselab.storage.store import FILE_NAME, Store, StoreError, file_of

NAMES = "ABCD"


def run(
    folders: Sequence[str],
    *,
    page: str | None = None,
    markdown: str | None = None,
    grid: str | None = None,
    beside: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Write the report of a run, or of several, and print where it is; 3 if one holds nothing.

    beside: names of what others published, whose ratios the maps show.

    Of several there is the page alone: Markdown is what `fuselab compare --markdown` writes.
    """
    if len(folders) > len(NAMES):
        raise PlanError(f"RUN: got {len(folders)} runs, expected at most {len(NAMES)}")
    files = _files(folders, page, markdown)
    _check(files, [file_of(folder) for folder in folders])
    paths.check_folder("--grid", grid)
    if grid and len(folders) > 1:
        raise PlanError("--grid: got several runs, expected one")
    published = [_published(name) for name in beside]
    runs = [_shown(name, folder) for name, folder in zip(NAMES, folders, strict=False)]
    for shown in runs:
        if not shown.measured:
            print(f"{shown.folder}: the run holds no cell", file=sys.stderr)
            return exits.NO_DATA
    tables = _grids(runs[0].measured, Path(grid)) if grid else []
    html.write_html(runs, files["--html"], published)
    if "--markdown" in files:
        replace(files["--markdown"], text.to_markdown(runs[0].view))
    written = {option.removeprefix("--"): path for option, path in files.items()}
    written |= {f"grid/{path.name}": path for path in tables}
    if as_json:
        print(json.dumps({name: str(path) for name, path in written.items()}))
    else:
        print("\n".join(str(path) for path in written.values()))
    return exits.OK


def _files(folders: Sequence[str], page: str | None, markdown: str | None) -> dict[str, Path]:
    """Return what is to be written, by its option; by default it is beside the last run."""
    file = file_of(folders[-1])
    whole = file.name == FILE_NAME
    if len(folders) > 1:
        if markdown:
            raise PlanError("--markdown: got several runs; fuselab compare --markdown writes it")
        name = "-".join(("report", *(Path(folder).resolve().stem for folder in folders)))
        return {"--html": Path(page) if page else file.with_name(f"{name}.html")}
    beside = file.with_name("report") if whole else file.with_suffix("")
    return {
        "--html": Path(page or f"{beside}.html"),
        "--markdown": Path(markdown or f"{beside}.md"),
    }


def _shown(name: str, folder: str) -> Shown:
    with Store.open_readonly(folder) as store:
        return Shown(name, folder, list(store.measurements()), store.environment(), store.span())


def _published(name: str) -> Beside:
    if not name.startswith(PREFIX):
        raise PlanError(f"--beside: got {name!r}, expected {PREFIX}NAME")
    found = load(name.removeprefix(PREFIX))
    return Beside(found.name, f"{found.source}: {found.gpu}, {found.software}", found.ratios())


def _grids(measured: Sequence[Measurement], folder: Path) -> list[Path]:
    try:
        return grids.write(measured, folder)
    except grids.NoGrid as error:
        raise StoreError(f"--grid: {error}") from error


def _check(files: Mapping[str, Path], runs: Sequence[Path]) -> None:
    """Raise PlanError for a file that is to be written over another, or over a run itself."""
    names = (run.with_name(run.name + end) for run in runs for end in ("", "-wal", "-shm"))
    taken = {name.resolve(): "the run's own file" for name in names}
    for option, path in files.items():
        paths.check_file(option, path)
        if found := taken.get(path.resolve()):
            raise PlanError(f"{option}: got {str(path)!r}, {found}; expected another file")
        taken[path.resolve()] = f"the file of {option}"
