"""Copies of a whole store while others write to it, and a database filled from such a copy.

A copy is an SQLite file of this schema, whatever the store is on: of SQLite by its online backup
(https://sqlite.org/backup.html), of PostgreSQL row by row, each org in one snapshot of its own.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Table, insert, make_url, select
from sqlalchemy.exc import ArgumentError
from sqlmodel import SQLModel

from evidence_archive.errors import StoreBusyError, StoreError, StoreUnavailableError
from evidence_archive.store import tables as t
from evidence_archive.store.engine import SqlEngine, open_engine
from evidence_archive.store.schema import prepare_schema
from evidence_archive.store.sqlite import SqliteEngine, database_path, translated

__all__ = ["check_vacant", "copy_store", "fill_store", "path_of", "sync_path"]

STEP_PAGES = 1_000
"""Pages copied at once; between two steps others write."""

RESTARTS_MAX = 5
"""How often a writer may have the copy of an SQLite file begin anew, before it is made in one step instead."""

BUSY_SLEEP_MS = 20

_ROWS = {t.ORIGINALS.name: 1, t.AUDIT_LEAVES.name: 20}
"""Rows in memory at once, where they may be large."""
_ROWS_ELSEWHERE = 200


class _Restarted(Exception):  # noqa: N818 - nothing went wrong
    """Writers keep having the copy begin anew."""


def path_of(url: str) -> Path | None:
    """The file that a database URL names; ``None`` for a database that is no file.

    Raises:
        StoreError: the URL cannot be used.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise StoreError("The database URL cannot be read: write, for example, sqlite:///evidence.db.") from error
    return database_path(parsed) if parsed.get_backend_name() == "sqlite" else None


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable (POSIX.1-2017, ``fsync``)."""
    target = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(target)
    finally:
        os.close(target)


def copy_store(engine: SqlEngine, path: Path, *, wait_ms: int) -> None:
    """The whole store, in a new SQLite file of mode 0600, durable when this returns.

    Args:
        engine: of the store; others may write to it meanwhile.
        path: of the copy; must not exist.
        wait_ms: bound on waiting for a lock, in milliseconds.

    Raises:
        StoreBusyError: the database was locked for longer than that.
        StoreUnavailableError: the database cannot be read, or is damaged.
        OSError: the copy cannot be written.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    if isinstance(engine, SqliteEngine):
        _copy_file(engine, path, wait_ms)
    else:
        _copy_rows(engine, path, wait_ms)
    sync_path(path)
    sync_path(path.parent)


def _copy_file(engine: SqliteEngine, path: Path, wait_ms: int) -> None:
    with engine.connection(wait_ms) as connection, closing(sqlite3.connect(path, isolation_level=None)) as copy:
        source: Any = connection.driver_connection
        try:
            source.backup(
                copy, pages=STEP_PAGES, progress=_watched(wait_ms, RESTARTS_MAX), sleep=BUSY_SLEEP_MS / 1_000
            )
        except _Restarted:
            source.backup(copy, pages=-1, progress=_watched(wait_ms, None), sleep=BUSY_SLEEP_MS / 1_000)
        if copy.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise StoreUnavailableError("The database file is damaged: keep a copy of it and restore a backup.")


def _watched(wait_ms: int, restarts_max: int | None) -> Any:
    """Ends a copy that waits for too long, or that begins anew too often."""
    waited_since = time.monotonic()
    left: int | None = None
    restarts = 0

    def progress(status: int, remaining: int, _total: int) -> None:
        nonlocal waited_since, left, restarts
        now = time.monotonic()
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            if (now - waited_since) * 1_000 > wait_ms:
                raise StoreBusyError("The database is locked by another writer: try again.")
            return
        waited_since = now
        if left is not None and remaining >= left:  # every step copies something, unless it began anew
            restarts += 1
            if restarts_max is not None and restarts > restarts_max:
                raise _Restarted
        left = remaining

    return progress


def _copy_rows(engine: SqlEngine, path: Path, wait_ms: int) -> None:
    copy = open_engine(f"sqlite:///{path}", create=True)
    try:
        prepare_schema(copy, wait_ms=wait_ms)
        with engine.reading(wait_ms, t.NO_ORG) as source:
            driver: Any = source.driver_connection
            names = select(t.ORG_NAMES.c.name).where(t.ORG_NAMES.c.org == t.NO_ORG)
            orgs = [name for (name,) in driver.execute(_sql(names, engine), [t.NO_ORG]).fetchall()]
        for org in (t.NO_ORG, *orgs):
            with engine.reading(wait_ms, org) as source, copy.writing(wait_ms) as sink:
                for table in _tables():
                    for rows in _rows_of(engine, source.driver_connection, table, org):
                        _insert(copy, sink.driver_connection, table, rows)
    finally:
        copy.close()


def _rows_of(engine: SqlEngine, driver: Any, table: Table, org: str) -> Iterator[list[Any]]:
    """An org's rows of a table, some at a time, by a cursor of the server."""
    count = _ROWS.get(table.name, _ROWS_ELSEWHERE)
    with driver.cursor(name="evidence_archive_copy") as cursor:
        cursor.execute(_sql(select(table).where(table.c.org == org), engine), [org], binary=True)
        while rows := cursor.fetchmany(count):
            yield rows


def fill_store(engine: SqlEngine, path: Path, *, wait_ms: int) -> None:
    """A database on a server, filled with a copy in one transaction: all of it or nothing.

    Args:
        engine: of a database that is not a file, without any org in it.
        path: of the copy.
        wait_ms: bound on waiting for a lock, in milliseconds.

    Raises:
        StoreError: the database is a file, or holds something already.
        StoreUnavailableError: one of both cannot be used.
    """
    if isinstance(engine, SqliteEngine):
        raise StoreError("A database that is a file is put back as a file.")
    with (
        translated(),
        closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as copy,
        engine.writing(wait_ms, t.NO_ORG) as sink,
    ):
        driver: Any = sink.driver_connection
        check_vacant(engine, driver)
        orgs = [name for (name,) in copy.execute(f"SELECT name FROM {t.ORG_NAMES.name}")]  # noqa: S608 - our own name
        for org in (t.NO_ORG, *orgs):
            driver.execute("SELECT set_config('evidence_archive.org', %s, true)", [org])
            for table in _tables():
                names = ", ".join(column.name for column in table.c)
                rows_of = f"SELECT {names} FROM {table.name} WHERE org = ?"  # noqa: S608 - our own names
                with closing(copy.execute(rows_of, (org,))) as cursor:
                    while rows := cursor.fetchmany(_ROWS.get(table.name, _ROWS_ELSEWHERE)):
                        _insert(engine, driver, table, rows)


def check_vacant(engine: SqlEngine, driver: Any) -> None:
    """Return only if a database holds no org, and never used objects; asked in a transaction under no org.

    Raises:
        StoreError: it does.
    """
    for table in (t.ORG_NAMES, t.OBJECTS):
        if driver.execute(_sql(select(table.c.org).where(table.c.org == t.NO_ORG), engine), [t.NO_ORG]).fetchone():
            raise StoreError("This database holds something already: a backup is put back into an empty one only.")


def _insert(engine: SqlEngine, driver: Any, table: Table, rows: list[Any]) -> None:
    with closing(driver.cursor()) as cursor:
        cursor.executemany(_sql(insert(table), engine), rows)


def _sql(statement: Any, engine: SqlEngine) -> str:
    """A statement with its parameters by position."""
    compiled: Any = statement.compile(dialect=engine.engine.dialect)
    return str(compiled)


def _tables() -> list[Table]:
    """All tables, as the rows of one never need those of a later one."""
    return list(SQLModel.metadata.sorted_tables)
