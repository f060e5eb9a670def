"""PostgreSQL: which durability a server gives, and how its errors become ours.

Every use of a connection is one transaction that carries all it needs (org, timeouts) in its first round trip, as
``SET LOCAL`` does, so that a pooler such as pgbouncer may hand each transaction another server connection. No wait is
without bound: the server has ``lock_timeout`` and ``statement_timeout``, the client a deadline for a peer that is
silent (https://www.postgresql.org/docs/current/runtime-config-client.html).
"""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from psycopg import pq, sql, waiting
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool

from evidence_archive.errors import StoreBusyError, StoreConflictError, StoreError, StoreUnavailableError
from evidence_archive.store.engine import POOL_CONNECTIONS_MAX, SqlEngine, Turn

__all__ = ["ANSWER_MS_MAX", "STATEMENT_MS_MAX", "PostgresEngine"]

STATEMENT_MS_MAX = 30_000
"""How long a statement may run, in milliseconds, beyond the time it may wait for a lock."""

ANSWER_MS_MAX = 5_000
"""How long a server may stay silent, in milliseconds, beyond the time its own timeouts leave it."""

_CONNECT_S_MAX = 10
_ALIVE = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds, the others are seconds
}
_MIGRATORS = 0x65_76_69_64  # an arbitrary key for pg_advisory_xact_lock, the same in every version

_BROKEN = "The connection to the database broke: what was not acknowledged is there whole, or not at all."
_SILENT = "The database does not answer: what was not acknowledged is there whole, or not at all."
_SAYS: dict[str, tuple[type[StoreError], str]] = {
    "55P03": (StoreBusyError, "The database is locked by another writer: try again."),
    "57014": (StoreBusyError, "The database took longer than it may: try again."),
    "40001": (StoreConflictError, "The transaction met another one and was rolled back: run it again."),
    "40P01": (StoreConflictError, "The transaction met another one and was rolled back: run it again."),
    "53100": (StoreUnavailableError, "The database's disk is full: free space and try again."),
    "53300": (StoreUnavailableError, "The server has no connection left: use a pooler, or raise max_connections."),
    "53": (StoreUnavailableError, "The server lacks memory or disk: free some and try again."),
    "57": (StoreUnavailableError, "The server is shutting down or starting: try again."),
    "58": (StoreUnavailableError, "The server reported an I/O error: check its disk."),
    "08": (StoreUnavailableError, _BROKEN),
    "25P03": (StoreUnavailableError, "The transaction was idle for too long and was rolled back: try again."),
    "25006": (StoreUnavailableError, "The database is read-only here: connect to the primary server."),
    "28": (StoreUnavailableError, "The server refused the login: check user, password and pg_hba.conf."),
    "3D000": (StoreUnavailableError, "There is no such database on the server: its operator makes it."),
    "42501": (StoreUnavailableError, "The role may not do this: check its grants and the row-level security."),
    "XX": (StoreUnavailableError, "The database reports damage: keep a copy of it and restore a backup."),
}


def _typed(error: psycopg.Error) -> StoreError:
    """An error of ours for one of the driver's, by its SQLSTATE (PostgreSQL, appendix A)."""
    if isinstance(error, _SilentError):
        return StoreUnavailableError(_SILENT)
    state = error.sqlstate or ""
    kind, said = _SAYS.get(state) or _SAYS.get(state[:2]) or (StoreError, "")
    if not said and not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return StoreUnavailableError(_BROKEN)
    return kind(said or "The database refused the operation; nothing was half written.")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise _typed(error) from error
    except DBAPIError as error:
        original = error.orig
        raise _typed(original if isinstance(original, psycopg.Error) else psycopg.Error()) from error
    except SQLAlchemyError as error:  # a pool that is exhausted, a connection that was invalidated
        raise StoreUnavailableError("No connection to the database could be had: try again.") from error


class _SilentError(psycopg.OperationalError):
    """The server did not answer in time."""


class _BoundedConnection(psycopg.Connection[Any]):
    """A connection whose peer is silent for no longer than ``answer_ms``, and that does not outlive an interrupt."""

    answer_ms = ANSWER_MS_MAX

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """What the driver's generator gives, within the bound; a connection that was silent is closed."""
        silent_s_max = self.answer_ms / 1_000 if timeout is None else timeout
        try:
            return waiting.wait(_heard(gen, silent_s_max), self.pgconn.socket, interval=interval)
        except BaseException as error:
            if isinstance(error, _SilentError) or not isinstance(error, Exception):
                self.pgconn.finish()  # an answer may still come, but to a question nobody asks any more
            raise


def _heard(gen: Generator[Any, Any, Any], silent_s_max: float) -> Generator[Any, Any, Any]:
    """The driver's generator, as long as bytes move in either direction now and then."""
    ready, last = None, time.monotonic()
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as stop:
            return stop.value
        ready = yield wanted
        if ready:
            last = time.monotonic()
        elif time.monotonic() - last > silent_s_max:
            raise _SilentError("no answer in time")


class PostgresEngine(SqlEngine):
    """Connections to one PostgreSQL database, each of their uses a transaction for one org.

    Args:
        url: ``postgresql://user@host/database``; its query holds libpq's parameters, such as ``sslmode``.
        create: of no meaning here: a database is made by its operator.

    Raises:
        StoreError: the URL holds what libpq does not know, the role passes row-level security, or the database is
            not in UTF-8.
        StoreUnavailableError: the server or the database cannot be reached.
    """

    version_table_sql = "SELECT 1 WHERE to_regclass('evidence_archive_version') IS NOT NULL"

    def __init__(self, url: URL, *, create: bool) -> None:
        del create
        if not url.database:
            raise StoreError("The URL names no database: write, for example, postgresql://user@host/database.")
        super().__init__()
        self._opening = threading.local()
        self._generation = 0
        self.engine: Engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=POOL_CONNECTIONS_MAX,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            paramstyle="format",
            use_native_hstore=False,
            hide_parameters=True,
        )
        _, named = self.engine.dialect.create_connect_args(url)
        self._named = {**_ALIVE, **named, "client_encoding": "UTF8"}
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "checkout", self._on_checkout)
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> _BoundedConnection:
        named = {"connect_timeout": min(max(-(-self._opening.wait_ms // 1_000), 2), _CONNECT_S_MAX), **self._named}
        try:
            # No statement is prepared in the server: behind a pooler the next transaction may meet another server.
            return _BoundedConnection.connect(autocommit=True, prepare_threshold=None, **named)
        except psycopg.ProgrammingError as error:
            raise StoreError("The database URL holds a parameter that PostgreSQL does not know.") from error
        except psycopg.OperationalError as error:
            if error.sqlstate:
                raise
            raise StoreUnavailableError(
                "The database cannot be reached: check the URL, the login, and that server and database are there."
            ) from error

    def _on_connect(self, _connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["generation"] = self._generation

    def _on_checkout(self, _connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if record.info["generation"] != self._generation:
            raise DisconnectionError  # the pool then opens another one

    def _check(self) -> None:
        with self.peeking(STATEMENT_MS_MAX) as connection:
            driver: Any = connection.driver_connection
            passes, encoding = driver.execute(
                "SELECT rolsuper OR rolbypassrls, current_setting('server_encoding') "
                "FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
        if passes:
            raise StoreError(
                "This role is above row-level security: make one that is neither SUPERUSER nor BYPASSRLS; "
                "docs/scaling.md has the statements."
            )
        if encoding != "UTF8":
            raise StoreError("The database is not in UTF-8: make one with ENCODING 'UTF8'.")

    def translated(self) -> AbstractContextManager[None]:
        """Turns whatever psycopg raises into an error of ours, by its SQLSTATE and without its text.

        Raises:
            StoreBusyError: a lock or a statement took longer than it may.
            StoreConflictError: the transaction met another one and was rolled back.
            StoreUnavailableError: the server cannot be reached, or is not as it should be.
            StoreError: anything else the database refused.
        """
        return _translated()

    @contextmanager
    def peeking(self, wait_ms: int, org: str = "") -> Iterator[PoolProxiedConnection]:
        """A transaction that reads, for one single statement."""
        yield from self._transaction("READ COMMITTED READ ONLY", wait_ms, org)

    @contextmanager
    def reading(self, wait_ms: int, org: str = "") -> Iterator[PoolProxiedConnection]:
        """A consistent snapshot for several statements."""
        yield from self._transaction("REPEATABLE READ READ ONLY", wait_ms, org)

    @contextmanager
    def writing(self, wait_ms: int, org: str = "") -> Iterator[PoolProxiedConnection]:
        """A transaction that sees at each statement what others have committed, and locks the rows it names.

        Raises:
            StoreError: the server would acknowledge commits before they are durable.
        """
        yield from self._transaction("READ COMMITTED", wait_ms, org, durable=True)

    def cursor(self, connection: PoolProxiedConnection) -> Any:
        """The driver's cursor, which takes values in binary: bytes as they are."""
        driver: Any = connection.driver_connection
        return driver.cursor(binary=True)

    def _transaction(
        self, level: str, wait_ms: int, org: str, *, durable: bool = False
    ) -> Iterator[PoolProxiedConnection]:
        turn = Turn()
        with self._held(turn, wait_ms):
            try:
                yield self._beginning(turn, level, wait_ms, org, durable=durable)
                self._commit(turn.connection)
            except BaseException:
                self._roll_back(turn.connection)
                raise

    def _beginning(self, turn: Turn, level: str, wait_ms: int, org: str, *, durable: bool) -> Any:
        """A connection in a transaction; one that died while it lay in the pool is replaced once."""
        pooled: Any = turn.connection
        try:
            self._begin(pooled, level, wait_ms, org, durable=durable)
        except psycopg.OperationalError as error:
            if not pooled.driver_connection.closed and (error.sqlstate or "")[:3] != "57P":
                raise
            self._generation += 1  # the others there died with it
            if isinstance(error, _SilentError):
                raise  # it waited long enough
            pooled.invalidate()
            pooled = turn.connection = self.engine.raw_connection()
            self._begin(pooled, level, wait_ms, org, durable=durable)  # nothing was done yet
        return pooled

    def _begin(self, pooled: Any, level: str, wait_ms: int, org: str, *, durable: bool) -> None:
        """Begin in one round trip; a pooler may let it wait for a server as long as for a lock."""
        driver: _BoundedConnection = pooled.driver_connection
        driver.answer_ms = wait_ms + ANSWER_MS_MAX
        statement_ms = wait_ms + STATEMENT_MS_MAX
        begun = driver.execute(
            f"BEGIN ISOLATION LEVEL {level};"
            f"SET LOCAL evidence_archive.org = {sql.quote(org, driver)};"
            f"SET LOCAL lock_timeout = {max(wait_ms, 1)};"
            f"SET LOCAL statement_timeout = {statement_ms};"
            f"SET LOCAL idle_in_transaction_session_timeout = {statement_ms};"
            "SELECT current_setting('synchronous_commit'), current_setting('fsync'), "
            "current_setting('full_page_writes')"
        )
        driver.answer_ms = statement_ms + ANSWER_MS_MAX
        while begun.nextset():
            pass
        settings: Any = begun.fetchone()
        if durable and "off" in settings:
            raise StoreError(
                "The server acknowledges before it is durable: set synchronous_commit, fsync and full_page_writes on."
            )

    @staticmethod
    def _commit(pooled: Any) -> None:
        # A server answers ROLLBACK to the COMMIT of a transaction in which a statement failed, and no error.
        if pooled.driver_connection.execute("COMMIT").statusmessage != "COMMIT":
            raise StoreError("The transaction was rolled back because a statement in it failed; nothing was written.")

    @staticmethod
    def _roll_back(pooled: Any) -> None:
        """Leave no transaction open; a connection in which that does not succeed is never used again."""
        driver: _BoundedConnection | None = pooled.driver_connection
        if driver is None or driver.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            return
        try:
            driver.answer_ms = ANSWER_MS_MAX
            driver.execute("ROLLBACK")
        except psycopg.Error:
            pooled.invalidate()

    @contextmanager
    def administering(self, wait_ms: int) -> Iterator[Connection]:
        """SQLAlchemy's own connection in a transaction, one migrator at a time."""
        self._opening.wait_ms = wait_ms
        with _translated(), self.engine.connect() as connection:
            pooled = connection.connection
            try:
                self._begin(pooled, "READ COMMITTED", wait_ms, "", durable=True)
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATORS})")
                yield connection
                self._commit(pooled)
            except BaseException:
                self._roll_back(pooled)
                raise

    def _ready(self, wait_ms: int) -> None:
        self._opening.wait_ms = wait_ms
