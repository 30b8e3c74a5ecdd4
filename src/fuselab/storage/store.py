"""The store of one run: SQLite, one file, one transaction a group."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from fuselab import precision
from fuselab.errors import LabError
from fuselab.model import ISOLATED, Group, Measurement
from fuselab.output.plain import plain
from fuselab.storage import body

SUFFIX = ".sqlite"
FILE_NAME = f"run{SUFFIX}"
APPLICATION_ID = 0x46534C42  # "FSLB"
SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 30.0
LONGEST = 300  # characters of an error that may quote what somebody else wrote

# What reading raises for what somebody else wrote, or a disk spoiled.
_UNREADABLE = (
    *(struct.error, ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)
_SCHEMA = (
    """CREATE TABLE environment (
        id TEXT PRIMARY KEY,
        body TEXT NOT NULL
    )""",
    """CREATE TABLE cell (
        key TEXT PRIMARY KEY,
        op TEXT NOT NULL,
        impl TEXT NOT NULL,
        direction TEXT NOT NULL,
        "case" TEXT NOT NULL,
        dtype TEXT NOT NULL,
        layout TEXT NOT NULL,
        device TEXT NOT NULL,
        status TEXT NOT NULL,
        environment TEXT REFERENCES environment (id),
        written_at TEXT NOT NULL,
        body TEXT NOT NULL,
        samples_us BLOB NOT NULL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
# An update keeps the row's place, so the order of the cells survives a second measurement.
_UPSERT = """INSERT INTO cell VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET
        status = excluded.status, environment = excluded.environment,
        written_at = excluded.written_at, body = excluded.body, samples_us = excluded.samples_us"""
_SELECT = """SELECT op, impl, direction, {case}, dtype, layout, device,
    status, environment, body, samples_us FROM cell ORDER BY rowid"""
# A cell as it is stored, and places in it.
Row = tuple[Any, ...]
KEY, NAMES, WRITTEN, BODY = 0, slice(1, 8), 10, 11
# Up to schema 1 the column of the case had another name.
_CASE_COLUMN = {1: "problem"}
_FROM_1 = (
    'ALTER TABLE cell RENAME COLUMN problem TO "case"',
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class StoreError(LabError, RuntimeError):
    """A folder that is missing, not a run, of a newer schema or corrupt; the text says which."""

    code = 3


class Store:
    """The measurements of one run, in DIR/run.sqlite or a file of its own; a context manager.

    Open with `Store.open(folder)` to write or `Store.open_readonly(folder)` to read; a name that
    ends in .sqlite is the file.
    """

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self._connection = connection
        self._file = file
        self._environment: str | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, create: bool = True) -> Store:
        """Open a run for writing, new if there is none; StoreError if it cannot be one."""
        file = file_of(folder)
        if create:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"{folder}: cannot be a run's folder: {error}") from error
        else:
            _check_exists(file)
        return cls._connected(str(file), file, Store._prepare)

    @classmethod
    def open_readonly(cls, folder: str | os.PathLike[str]) -> Store:
        """Open a run that exists for reading, also while another process writes it."""
        file = file_of(folder)
        _check_exists(file)
        return cls._connected(_readonly_uri(file), file, Store._check)

    @classmethod
    def _connected(cls, target: str, file: Path, prepare: Callable[[Store], None]) -> Store:
        with _errors_name(file):
            connection = sqlite3.connect(
                target,
                uri=target.startswith("file:"),
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
            )
            store = cls(connection, file)
            try:
                prepare(store)
            except BaseException:
                connection.close()
                raise
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def set_environment(self, env: Mapping[str, Any]) -> None:
        """Name the environment of every following `write`; equal environments are stored once."""
        text = json.dumps(env, sort_keys=True)
        self._environment = hashlib.sha256(text.encode()).hexdigest()[:12]
        with self._transaction() as sql:
            sql.execute(
                "INSERT OR IGNORE INTO environment VALUES (?, ?)", (self._environment, text)
            )

    def environment(self) -> list[dict[str, Any]]:
        """Return the distinct environments, each with its "id", the oldest first."""
        with _errors_name(self._file):
            rows = self._connection.execute(
                "SELECT id, body FROM environment ORDER BY rowid"
            ).fetchall()
            return [{**body.from_json(text), "id": key} for key, text in rows]

    def span(self) -> tuple[str, str] | None:
        """Return when the oldest and the newest cell were written (UTC, ISO 8601), if any."""
        with _errors_name(self._file):
            first, last = self._connection.execute(
                "SELECT min(written_at), max(written_at) FROM cell"
            ).fetchone()
            if first is None:
                return None
            if not isinstance(first, str) or not isinstance(last, str):
                raise TypeError(f"written_at: got {first!r} to {last!r}, expected text")
            return first, last

    def missing(self, group: Group) -> tuple[str, ...]:
        """Return the implementations of the group that have no cell as the group wants it.

        That is one measured with its code, at its precision or a better one.
        """
        found = self._bodies(group)
        with _errors_name(self._file):
            return tuple(impl for impl, old in found.items() if not old or not _serves(old, group))

    def outdated(self, group: Group) -> int:
        """Return how many cells of the group are stored, but were measured with other code."""
        bodies = self._bodies(group).values()
        return sum(bool(old) and old.get("code", "") != group.code for old in bodies)

    def _bodies(self, group: Group) -> dict[str, dict[str, Any]]:
        """Return what is stored of each cell; empty where there is none."""
        bodies: dict[str, dict[str, Any]] = {}
        with _errors_name(self._file):
            for cell in group.cells:
                found = self._connection.execute(
                    "SELECT body FROM cell WHERE key = ?", (cell.key,)
                ).fetchone()
                bodies[cell.impl] = body.from_json(found[0]) if found else {}
        return bodies

    def done(self, group: Group) -> bool:
        """Say whether every cell of the group is stored."""
        return not self.missing(group)

    def write(self, group: Group, measurements: Iterable[Measurement]) -> None:
        """Store cells of one group in one transaction; a cell already there is replaced.

        A measurement of another group is a ValueError; one of an implementation that the group
        does not list (the ceiling) is welcome.
        """
        written_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        rows = []
        for measurement in measurements:
            cell = measurement.cell
            if cell != group.cell(cell.impl):
                raise ValueError(f"measurements: got {cell.key}, expected a cell of {group.key}")
            environment = measurement.environment or self._environment
            rows.append(_row(measurement, environment, written_at))
        with self._transaction() as sql:
            sql.executemany(_UPSERT, rows)

    def measurements(self) -> Iterator[Measurement]:
        """Yield every measurement, in the order in which its cell was first written."""
        with _errors_name(self._file):
            case = _CASE_COLUMN.get(self._version(), '"case"')
            rows = self._connection.execute(_SELECT.format(case=case))
            for *names, status, environment, text, samples in rows:
                try:
                    found = body.read(names, status, environment, text, samples)
                except _UNREADABLE as error:
                    raise ValueError(f"{'/'.join(map(str, names))}: {error}") from error
                yield found

    def rows(self) -> list[Row]:
        """Return all cells as they are stored, in the order in which they were first written."""
        with _errors_name(self._file):
            return self._connection.execute("SELECT * FROM cell ORDER BY rowid").fetchall()

    def take(self, rows: Iterable[Row], environments: Iterable[Mapping[str, Any]]) -> None:
        """Store cells of other runs as they are, in one transaction, with their environments."""
        known = [
            (env["id"], json.dumps({n: v for n, v in env.items() if n != "id"}, sort_keys=True))
            for env in environments
        ]
        with self._transaction() as sql:
            sql.executemany("INSERT OR IGNORE INTO environment VALUES (?, ?)", known)
            sql.executemany(_UPSERT, rows)

    def pack(self) -> None:
        """Leave one file, as small as it can be, of which nothing is beside it."""
        with _errors_name(self._file):
            self._connection.execute("PRAGMA journal_mode = DELETE")
            self._connection.execute("VACUUM")

    def _prepare(self) -> None:
        sql = self._connection
        if sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._check()
        self._write_ahead()
        # One fsync a group is nothing beside measuring it, and keeps a stored group through a
        # power cut as well; NORMAL would keep it through a killed process only.
        sql.execute("PRAGMA synchronous = FULL")
        sql.execute("PRAGMA foreign_keys = ON")
        with self._transaction() as transaction:
            for statement in {0: _SCHEMA, 1: _FROM_1}.get(self._version(), ()):
                transaction.execute(statement)

    def _write_ahead(self) -> None:
        """Take the journal of several writers. SQLite itself does not wait for who opens it too."""
        end = monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or monotonic() > end:
                    raise
                sleep(0.01)
            else:
                return

    def _version(self) -> int:
        """Return the schema's version, 0 of a file without one; another process may raise it."""
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _check(self) -> None:
        sql = self._connection
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        version = self._version()
        if application != APPLICATION_ID:
            raise StoreError(f"{self._file}: not a run of fuselab")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._file}: schema {version}, expected at most {SCHEMA_VERSION}; "
                "a newer fuselab wrote it"
            )
        found = sql.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreError(f"{self._file}: corrupt: {found}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _errors_name(self._file):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def file_of(run: str | os.PathLike[str]) -> Path:
    """Return the file of a run that is named by its folder, or by the file itself."""
    path = Path(run)
    return path if path.suffix == SUFFIX and not path.is_dir() else path / FILE_NAME


@contextmanager
def _errors_name(file: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, *_UNREADABLE) as error:
        why = plain(str(error))[:LONGEST]
        raise StoreError(f"{file}: cannot be read or written: {why}") from error


def _serves(old: Mapping[str, Any], group: Group) -> bool:
    """Say whether what is stored of a cell was measured as the group wants it."""
    # A cell without a time has no timer either, and another one would not change its status; but
    # for what an implementation does to its own process.
    same_timer = group.timer in ("", old.get("timer", "")) or not old.get("timer")
    isolated = bool(old.get("proof", {}).get("isolated"))
    same_timer = same_timer and isolated == (group.timer == ISOLATED)
    same_code = bool(old.get("code", "") == group.code)
    enough = precision.serves(old.get("precision", ""), group.precision)
    return same_code and same_timer and enough


def _check_exists(file: Path) -> None:
    if not file.parent.is_dir():
        raise StoreError(f"{file.parent}: no such folder, expected the folder of a run")
    if not file.is_file():
        raise StoreError(f"{file.parent}: not a run, it has no {file.name}")


def _readonly_uri(file: Path) -> str:
    """Return the URI to read `file`; a folder nobody can write to needs SQLite's `immutable`."""
    log = file.with_name(file.name + "-wal")
    frozen = not os.access(file.parent, os.W_OK) and not log.exists()
    return f"{file.resolve().as_uri()}?mode=ro{'&immutable=1' if frozen else ''}"


def _row(measurement: Measurement, environment: str | None, written_at: str) -> tuple[Any, ...]:
    cell = measurement.cell
    return (
        *(cell.key, cell.op, cell.impl, cell.direction, cell.case, cell.dtype, cell.layout),
        *(cell.device, str(measurement.status), environment, written_at),
        body.to_json(measurement),
        body.samples_to_bytes(measurement),
    )
