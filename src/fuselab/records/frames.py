"""A stored run in Python, and its records as tables of others: pandas, Parquet (extra `data`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fuselab.errors import LabError
from fuselab.model import Measurement
from fuselab.records.columns import NAMED
from fuselab.records.metrics import COLUMNS, Record, records
from fuselab.storage.store import Store

_TEXTS = {"method"}  # of what is no metric
_LISTS = {"samples_us", "sm_mhz"}  # of records with samples, where sm_mhz is no median


@dataclass(frozen=True)
class Run:
    """A run that is stored.

    measurements  one a cell, with the raw samples and the proof
    environments  the machines and the software, by the "id" that measurements name
    """

    measurements: tuple[Measurement, ...]
    environments: tuple[Mapping[str, Any], ...]

    @cached_property
    def records(self) -> list[Record]:
        """One flat dict a cell, with the columns of `fuselab export`."""
        return records(self.measurements)

    def to_pandas(self) -> Any:
        """Return the records as a pandas.DataFrame (extra `data`)."""
        return to_pandas(self.records)


def read(run: str | os.PathLike[str]) -> Run:
    """Return a run by its folder, or by the file that `fuselab share` wrote; StoreError if it is
    none.
    """
    with Store.open_readonly(run) as store:
        return Run(tuple(store.measurements()), tuple(store.environment()))


class NoLibraryError(LabError, ImportError):
    """What writes this is not installed; the text says how to install it."""

    code = 2


def to_pandas(rows: Sequence[Record]) -> Any:
    """Return a DataFrame with a row a record and the columns of the export; None is NaN or None.

    Raises NoLibraryError without pandas.
    """
    try:
        import pandas
    except ImportError as error:
        raise NoLibraryError("pandas is not installed: pip install 'fuseline[data]'") from error
    return pandas.DataFrame(list(rows), columns=_columns(rows))


def to_parquet(rows: Sequence[Record]) -> bytes:
    """Return a Parquet file, whose columns have the same types whatever they hold.

    Raises NoLibraryError without pyarrow.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise NoLibraryError("pyarrow is not installed: pip install 'fuseline[data]'") from error
    lists = {name for name in _LISTS for row in rows[:1] if isinstance(row.get(name), list)}

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}

    def type_of(name: str) -> Any:
        if name in lists:
            return pyarrow.list_(types[float])
        kind = NAMED[name].kind if name in NAMED else str if name in _TEXTS else float
        return types[kind]

    schema = pyarrow.schema([(name, type_of(name)) for name in _columns(rows)])
    table = pyarrow.Table.from_pylist(list(rows), schema=schema)
    file = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, file, compression="zstd")
    made: bytes = file.getvalue().to_pybytes()
    return made


def _columns(rows: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys((*COLUMNS, *(name for row in rows[:1] for name in row))))
