"""SQLite: which durability a file gives, and how the errors of file, disk and lock become ours.

SQLite's journal mode is chosen by the version that is *linked*: 3.7.0 to 3.51.2 can lose committed transactions in
WAL mode with several connections (fixed in 3.51.3, 3.50.7 and 3.44.6; https://sqlite.org/wal.html#walresetbug), so
older ones run TRUNCATE with synchronous=EXTRA. Every PRAGMA is read back.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool

from evidence_archive.errors import SealBrokenError, StoreBusyError, StoreError, StoreUnavailableError
from evidence_archive.store.engine import POOL_CONNECTIONS_MAX, SqlEngine

SCRUB_WAIT_MS = 1_000
"""How long emptying the log waits for readers, in milliseconds."""

__all__ = ["SqliteEngine", "database_path", "journal_rules", "translated"]

_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SAYS = {
    sqlite3.SQLITE_FULL: "The disk or the database is full: free space and try again; nothing was half written.",
    sqlite3.SQLITE_READONLY: "The database is read-only here: check the file's and the folder's permissions.",
    sqlite3.SQLITE_CANTOPEN: "The database file cannot be opened: check that it exists and its permissions.",
    sqlite3.SQLITE_IOERR: "The disk reported an I/O error: check the disk; nothing was half written.",
    sqlite3.SQLITE_CORRUPT: "The database file is damaged: keep a copy of it and restore a backup.",
    sqlite3.SQLITE_NOTADB: "The file is not a SQLite database: check the URL.",
    sqlite3.SQLITE_PERM: "The database file may not be opened: check its permissions.",
}


def journal_rules(version: tuple[int, int, int]) -> tuple[str, int]:
    """Journal mode and ``synchronous`` level for a linked SQLite: ``("wal", 2)`` or ``("truncate", 3)``.

    Args:
        version: such as ``(3, 40, 1)``.
    """
    fixed = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0)
    return ("wal", 2) if fixed else ("truncate", 3)


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever the driver raises into an error of ours, without its text.

    Raises:
        StoreBusyError: the database is locked for longer than the caller may wait.
        StoreUnavailableError: file, disk or permissions are not as they should be.
        SealBrokenError: a stored text is not text.
        StoreError: anything else the database refused.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        if isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode"):
            # It is Python that could not decode a stored text, not SQLite that failed.
            raise SealBrokenError("A stored row is not what was written: a text in it is not text.") from error
        code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            raise StoreBusyError("The database is locked by another writer: try again.") from error
        said = _SAYS.get(code)
        if said is None:
            raise StoreError("The database refused the operation; nothing was half written.") from error
        raise StoreUnavailableError(said) from error
    except UnicodeDecodeError as error:  # SQLite quoted damaged bytes in a message of its own
        raise StoreUnavailableError(_SAYS[sqlite3.SQLITE_CORRUPT]) from error
    except SQLAlchemyError as error:  # a pool that is exhausted, a connection that was invalidated
        raise StoreUnavailableError("No connection to the database could be had: try again.") from error


class _NoText(bytes):
    """What is stored as a text and is none: of no type that is ever written, so that it passes for nothing."""


def _text_or_not(data: bytes) -> str | _NoText:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _NoText(data)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (POSIX.1-2017, ``fsync``)."""
    target = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(target)
    finally:
        os.close(target)


def database_path(url: URL) -> Path:
    """The file that a URL names.

    Raises:
        StoreError: it names none, or more than a file.
    """
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise StoreError("Name a file, such as sqlite:///evidence.db: a database in memory keeps nothing.")
    if url.host or url.port or url.username or url.password or url.query:
        raise StoreError("The URL names more than a file: write three slashes and a path, sqlite:///evidence.db.")
    if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in url.database):
        raise StoreError("The path in the URL holds a NUL or a lone surrogate: write another name.")
    return Path(url.database).absolute()


class SqliteEngine(SqlEngine):
    """Connections to one SQLite file, with its durability rules; the org of a transaction is in its statements.

    Args:
        url: ``sqlite:///path``; an in-memory database is refused, because it keeps nothing.
        create: make the file (0600) where it does not exist.

    Raises:
        StoreError: the URL names no file.
        StoreUnavailableError: the file is missing or cannot be opened.
    """

    version_table_sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'evidence_archive_version'"

    def __init__(self, url: URL, *, create: bool) -> None:
        self.path = database_path(url)
        self.beside = self.path.with_name(f"{self.path.name}.objects")
        super().__init__()
        self._opening = threading.local()
        self.journal_mode, self.synchronous = journal_rules(sqlite3.sqlite_version_info)
        if create:
            self._make_file()
        elif not self._holds_anything():
            raise StoreUnavailableError(
                "There is no database at this URL: check the path, or let a program create it."
            )
        self.engine: Engine = create_engine(
            "sqlite+pysqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=POOL_CONNECTIONS_MAX,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )  # whatever transaction a connection is in, the pool rolls it back before anybody has it again
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "checkout", self._on_checkout)

    def _holds_anything(self) -> bool:
        """Whether there is a file that is more than a name: SQLite would take an empty one for a new database."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def _make_file(self) -> None:
        if not os.path.exists(self.path):  # Path.exists raises for a name too long
            for log in (f"{self.path}-wal", f"{self.path}-journal"):
                if os.path.exists(log) and os.path.getsize(log):
                    # SQLite would delete it, or play it into the new file, and what is only there would be gone.
                    raise StoreUnavailableError(
                        "The database file is gone and its log is still there: put it back, or move the log away."
                    )
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            if os.path.getsize(self.path) == 0:
                # A log whose database has no durable name would look, after a power cut, like that of one removed.
                _sync_folder(self.path.parent)
        except OSError as error:
            if error.errno in _NOT_WRITABLE and os.path.exists(self.path):
                raise StoreUnavailableError(_SAYS[sqlite3.SQLITE_READONLY]) from error
            raise StoreUnavailableError(
                "The database file cannot be created: check that the folder exists and can be written."
            ) from error

    def _connect(self) -> sqlite3.Connection:
        identity = self._identity()
        connection = None
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode=rw",
                uri=True,
                timeout=self._opening.wait_ms / 1_000,  # reading the first page already waits for a lock
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            connection.execute("PRAGMA journal_mode").fetchone()  # the file is opened lazily: fail here, not later
            self._set(connection, "journal_mode", self.journal_mode)
            self._set(connection, "synchronous", self.synchronous)
            self._set(connection, "foreign_keys", 1)
            self._set(connection, "trusted_schema", 0)
            self._set(connection, "secure_delete", 1)
            self._set(connection, "temp_store", 2)
            connection.execute("PRAGMA fullfsync=ON")  # a no-op outside macOS
            if self._identity() != identity:
                raise StoreUnavailableError("The database file was replaced while it was opened: try again.")
            self._opening.identity = identity
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    @staticmethod
    def _set(connection: sqlite3.Connection, pragma: str, value: str | int) -> None:
        if connection.execute(f"PRAGMA {pragma}").fetchone() == (value,):
            return
        connection.execute(f"PRAGMA {pragma}={value}")
        if connection.execute(f"PRAGMA {pragma}").fetchone() != (value,):
            raise StoreError(f"SQLite does not accept {pragma}={value}, which durability needs.")

    def scrub(self) -> None:
        """The log is emptied into the file, so that what was deleted is in neither; never raises.

        Deleted content is overwritten by ``secure_delete``; in WAL mode the log still holds it until it is truncated
        (https://sqlite.org/pragma.html#pragma_secure_delete, #pragma_wal_checkpoint).
        """
        if self.journal_mode == "wal":
            with suppress(StoreError), self.connection(SCRUB_WAIT_MS) as connection:
                self.cursor(connection).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _on_connect(self, _connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["identity"] = self._opening.identity

    def _on_checkout(self, connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if record.info["identity"] != self._identity():
            if self.journal_mode == "wal":
                # Whoever opens the new file deletes the log beside it, or takes it for its own: the old file gets
                # now what of it is still only there (https://sqlite.org/howtocorrupt.html, section 1.4).
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Open descriptors still point at the old file: what they commit, nobody will ever read.
            self.engine.dispose()
            record.invalidate()
            raise StoreUnavailableError("The database file was replaced while open: its connections were given up.")

    def _identity(self) -> tuple[int, int]:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise StoreUnavailableError(
                "The database file is gone or cannot be reached: put it back; nothing is lost that the messages hold."
            ) from error
        return stat.st_dev, stat.st_ino

    def translated(self) -> AbstractContextManager[None]:
        """Turns whatever SQLite raises into an error of ours; see :func:`translated`."""
        return translated()

    def _ready(self, wait_ms: int) -> None:
        self._identity()
        self._opening.wait_ms = wait_ms

    def _tuned(self, connection: PoolProxiedConnection, wait_ms: int) -> None:
        if connection.info.get("wait_ms") != wait_ms:
            driver: Any = connection.driver_connection
            driver.execute(f"PRAGMA busy_timeout={int(wait_ms)}")
            connection.info["wait_ms"] = wait_ms

    def peeking(self, wait_ms: int, org: str = "") -> AbstractContextManager[PoolProxiedConnection]:
        """A connection for one statement, which SQLite runs as a transaction of its own."""
        return self.connection(wait_ms)

    @contextmanager
    def reading(self, wait_ms: int, org: str = "") -> Iterator[PoolProxiedConnection]:
        """A consistent snapshot for several statements."""
        with self.connection(wait_ms) as connection:
            yield from self._transaction(connection, "BEGIN")

    @contextmanager
    def surveying(self, wait_ms: int, org: str = "") -> Iterator[PoolProxiedConnection]:
        """As :meth:`reading`; a text that is no UTF-8 comes as :class:`_NoText`, and hides no other row."""
        with self.reading(wait_ms, org) as connection:
            driver: Any = connection.driver_connection
            driver.text_factory = _text_or_not
            try:
                yield connection
            finally:
                driver.text_factory = str

    @contextmanager
    def writing(self, wait_ms: int, org: str = "") -> Iterator[PoolProxiedConnection]:
        """The write lock, taken at once; committed when the block ends, rolled back when it raises."""
        with self.connection(wait_ms) as connection:
            yield from self._transaction(connection, "BEGIN IMMEDIATE")

    def _transaction(self, connection: PoolProxiedConnection, begin: str) -> Iterator[PoolProxiedConnection]:
        driver: Any = connection.driver_connection
        try:
            driver.execute(begin)
            yield connection
            if connection.info.get("identity") != self._identity():
                raise StoreUnavailableError(
                    "The database file was replaced during the operation; nothing was written."
                )
            driver.execute("COMMIT")
        except BaseException:
            try:
                if driver.in_transaction:
                    driver.execute("ROLLBACK")
            except sqlite3.Error:  # whatever state it is in, nobody shall use it again
                connection.invalidate()
            raise

    @contextmanager
    def administering(self, wait_ms: int) -> Iterator[Connection]:
        """SQLAlchemy's own connection under the write lock, for migrations."""
        self._opening.wait_ms = wait_ms
        with translated(), self.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(wait_ms)}")
            connection.info["wait_ms"] = wait_ms
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                driver: Any = connection.connection.driver_connection
                if driver.in_transaction:
                    driver.execute("ROLLBACK")
                raise
