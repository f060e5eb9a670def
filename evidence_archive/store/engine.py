"""What every engine shares: a pool, turns at it, and the kinds of transactions the store asks for."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import PoolProxiedConnection

from evidence_archive.errors import MisuseError, StoreBusyError, StoreError

__all__ = ["POOL_CONNECTIONS_MAX", "SqlEngine", "Turn", "open_engine"]

POOL_CONNECTIONS_MAX = 16
"""Connections per process; a thread beyond them waits for one, at most as long as for a lock."""


class Turn:
    """One use of a connection, and what has to be given back after it."""

    __slots__ = ("connection",)

    def __init__(self) -> None:
        self.connection: PoolProxiedConnection | None = None


class SqlEngine(ABC):
    """Connections to one database; a subclass says how a transaction begins and what an error means.

    Statements are written with SQLAlchemy, but run on the driver's connection out of SQLAlchemy's pool: what its
    execution layer adds to each would cost more than the database itself.
    """

    engine: Engine
    """SQLAlchemy's: the pool, and the dialect statements are compiled for."""

    version_table_sql: str
    """Gives a row that is not NULL where the table ``evidence_archive_version`` is there."""

    beside: Path | None = None
    """The directory for large originals that goes with the database, where it is a file."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._turns: set[Turn] = set()
        self._turns_changed = threading.Condition()

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Turns whatever the driver raises into an error of ours, without its text."""

    @abstractmethod
    def peeking(self, wait_ms: int, org: str = "") -> AbstractContextManager[PoolProxiedConnection]:
        """A connection for one single statement that reads.

        Args:
            wait_ms: bound on waiting for a lock, or for a turn, in milliseconds.
            org: the only one whose rows the statement may meet.
        """

    @abstractmethod
    def reading(self, wait_ms: int, org: str = "") -> AbstractContextManager[PoolProxiedConnection]:
        """A consistent snapshot for several statements; arguments as for :meth:`peeking`."""

    @abstractmethod
    def writing(self, wait_ms: int, org: str = "") -> AbstractContextManager[PoolProxiedConnection]:
        """A transaction: committed when the block ends, rolled back when it raises; arguments as for `peeking`."""

    @abstractmethod
    def administering(self, wait_ms: int) -> AbstractContextManager[Connection]:
        """SQLAlchemy's own connection in a transaction that no other migration runs beside."""

    def surveying(self, wait_ms: int, org: str = "") -> AbstractContextManager[PoolProxiedConnection]:
        """As :meth:`reading`; what is stored as a text and is none comes as another type, instead of an error."""
        return self.reading(wait_ms, org)

    def scrub(self) -> None:  # noqa: B027 - not all can
        """What was deleted leaves the files, as far as the database can do that now; never raises."""

    def cursor(self, connection: PoolProxiedConnection) -> Any:
        """The driver's cursor on a connection, for statements compiled with their parameters by position."""
        driver: Any = connection.driver_connection
        return driver.cursor()

    @abstractmethod
    def _ready(self, wait_ms: int) -> None:
        """Called in a turn, before a connection is taken."""

    def _tuned(self, connection: PoolProxiedConnection, wait_ms: int) -> None:  # noqa: B027 - not all need it
        """Called for every connection that is taken."""

    @contextmanager
    def connection(self, wait_ms: int) -> Iterator[PoolProxiedConnection]:
        """A connection in autocommit mode, had within ``wait_ms`` milliseconds.

        Raises:
            MisuseError: the archive was opened in another process, or is closed.
            StoreBusyError: it waited that long for a connection, or for a lock.
            StoreUnavailableError: the database cannot be reached or used.
        """
        with self._held(Turn(), wait_ms) as connection:
            yield connection

    @contextmanager
    def _held(self, turn: Turn, wait_ms: int) -> Iterator[PoolProxiedConnection]:
        if os.getpid() != self._pid:
            raise MisuseError("This archive was opened in another process: open it again after fork.")
        if self._closed:
            raise MisuseError("This archive was closed: open it again.")
        with self.translated():
            try:
                try:
                    yield self._begun(turn, wait_ms)
                finally:
                    self._ended(turn)
            except BaseException:
                self._ended(turn)  # an interrupt may have fallen into the first time
                raise

    def _begun(self, turn: Turn, wait_ms: int) -> PoolProxiedConnection:
        with self._turns_changed:
            if not self._turns_changed.wait_for(self._has_turns, wait_ms / 1_000):
                raise StoreBusyError("All connections to the database are in use: try again.")
            self._turns.add(turn)
        self._ready(wait_ms)
        connection = turn.connection = self.engine.raw_connection()
        self._tuned(connection, wait_ms)
        return connection

    def _has_turns(self) -> bool:
        return len(self._turns) < POOL_CONNECTIONS_MAX

    def _ended(self, turn: Turn) -> None:
        """Give everything back; a second time changes nothing."""
        if turn.connection is not None:
            if self._closed:  # the pool it came from is gone
                turn.connection.invalidate()
            turn.connection.close()
        with self._turns_changed:
            self._turns.discard(turn)
            self._turns_changed.notify()

    def close(self) -> None:
        """Close all connections; those in use are closed when their use ends."""
        if os.getpid() == self._pid:
            self._closed = True
            self.engine.dispose()


def open_engine(url: str, *, create: bool) -> SqlEngine:
    """The engine for a database URL.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://user@host/database``.
        create: make an SQLite file where it does not exist; a PostgreSQL database is made by its operator.

    Raises:
        StoreError: the URL cannot be used, or the database is not safe to use.
        StoreUnavailableError: the database cannot be reached.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # a port that is no number is a ValueError
        raise StoreError("The database URL cannot be read: write, for example, sqlite:///evidence.db.") from error
    engine: Any
    if parsed.drivername == "sqlite" or parsed.drivername.startswith("sqlite+"):
        from evidence_archive.store.sqlite import SqliteEngine as engine  # noqa: N813 - whichever it is
    elif parsed.drivername in ("postgresql", "postgresql+psycopg"):
        try:
            import psycopg  # noqa: F401 - asks whether it is there
        except ImportError as error:
            raise StoreError("PostgreSQL needs a driver: install evidence-archive[postgres].") from error
        from evidence_archive.store.postgres import PostgresEngine as engine  # noqa: N813
    else:
        raise StoreError("Name SQLite or PostgreSQL: sqlite:///evidence.db or postgresql://user@host/database.")
    opened: SqlEngine = engine(parsed, create=create)
    return opened
