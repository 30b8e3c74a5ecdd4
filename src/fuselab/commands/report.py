"""fuselab report: one HTML page, the same tables as Markdown, and a picture on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuselab import metrics
from fuselab.commands import exits, paths
from fuselab.metrics import Record
from fuselab.model import Measurement
from fuselab.plan import CEILING, DTYPE_ALIASES, PlanError, unknown
from fuselab.report import build, html, plots, text
from fuselab.report import grid as grids
from fuselab.report.files import replace
from fuselab.store import FILE_NAME, Store, StoreError, file_of


def run(
    folder: str,
    *,
    page: str | None = None,
    markdown: str | None = None,
    picture: str | None = None,
    op: str | None = None,
    dtype: str | None = None,
    grid: str | None = None,
    as_json: bool = False,
) -> int:
    """Write the report of a run and print where it is; 3 if the run holds nothing."""
    file = file_of(folder)
    beside = file.with_name("report") if file.name == FILE_NAME else file.with_suffix("")
    files = {
        "--html": Path(page or f"{beside}.html"),
        "--markdown": Path(markdown or f"{beside}.md"),
        **({"--picture": Path(picture)} if picture else {}),
    }
    _check(files, file)
    paths.check_folder("--grid", grid)
    with Store.open_readonly(folder) as store:
        measured = list(store.measurements())
        view = build.build(measured, store.environment(), store.span())
    if not measured:
        print(f"{folder}: the run holds no cell", file=sys.stderr)
        return exits.NO_DATA
    tables = _grids(measured, Path(grid)) if grid else []
    if picture:
        records = metrics.records(measured)
        drawn = [row for row in records if row["role"] != CEILING and plots.drawable(row)]
        op, dtype = _one_of("op", op, drawn), _one_of("dtype", dtype, drawn)
        plots.save_svg(records, picture, op=op, dtype=dtype)
    html.write_html(view, files["--html"])
    replace(files["--markdown"], text.to_markdown(view))
    written = {option.removeprefix("--"): path for option, path in files.items()}
    written |= {f"grid/{path.name}": path for path in tables}
    if as_json:
        print(json.dumps({name: str(path) for name, path in written.items()}))
    else:
        print("\n".join(str(path) for path in written.values()))
    return exits.OK


def _grids(measured: Sequence[Measurement], folder: Path) -> list[Path]:
    try:
        return grids.write(measured, folder)
    except grids.NoGrid as error:
        raise StoreError(f"--grid: {error}") from error


def _check(files: Mapping[str, Path], run: Path) -> None:
    """Raise PlanError for a file that is to be written over another, or over the run itself."""
    names = (run.with_name(run.name + end) for end in ("", "-wal", "-shm"))
    taken = {name.resolve(): "the run's own file" for name in names}
    for option, path in files.items():
        paths.check_file(option, path)
        if found := taken.get(path.resolve()):
            raise PlanError(f"{option}: got {str(path)!r}, {found}; expected another file")
        taken[path.resolve()] = f"the file of {option}"
    picture = files.get("--picture")
    if picture and picture.suffix.lower() != ".svg":
        raise PlanError(f"--picture: got {str(picture)!r}, expected a name that ends in .svg")


def _one_of(column: str, name: str | None, records: Sequence[Record]) -> str:
    """Return the requested name, or the first there is; PlanError if it has no bandwidth."""
    have = list(dict.fromkeys(str(record[column]) for record in records))
    if not have:
        raise StoreError("--picture: no cell has a bandwidth to draw")
    wanted = DTYPE_ALIASES.get(name, name) if name else have[0]
    if wanted not in have:
        raise unknown(column, wanted, have)
    return wanted
