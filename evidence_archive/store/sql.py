"""The store on SQL: every statement there is, each carrying the org.

Reads check each row's seal before handing it out. Writes run in one transaction under the write lock; appending to
the audit log locks the org's head row first, which is what keeps the log from forking.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import LargeBinary, bindparam, delete, func, insert, literal_column, select, union, update
from sqlalchemy.engine import Dialect
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.sql import ClauseElement

from evidence_archive.errors import AuditBrokenError, SealBrokenError, StoreError
from evidence_archive.ports import (
    BatchRow,
    CheckpointRow,
    CustodyRow,
    HeadRow,
    HoldRow,
    ObjectRow,
    OrgRow,
    PostingRow,
    ResultRow,
    ScopeRow,
    SessionRow,
    ShredRow,
    StoredOriginal,
    Survey,
)
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.store import tables as t
from evidence_archive.store.copying import check_vacant, copy_store, fill_store
from evidence_archive.store.engine import SqlEngine, open_engine
from evidence_archive.store.rows import Shape
from evidence_archive.store.schema import prepare_schema

__all__ = ["SqlOrgStore", "SqlReader", "SqlStore", "SqlWriter", "open_store"]

NO_LEAF = hashlib.sha256(b"").digest()
"""Stands for "the last leaf" of an empty log."""

_ORG = Shape(t.ORGS, OrgRow, holds_org=True)
_SCOPE = Shape(t.SCOPES, ScopeRow, "scope_id")
_SESSION = Shape(t.SESSIONS, SessionRow, "session_id")
_RESULT = Shape(t.RESULTS, ResultRow, "scope_id", "number")
_OBJECT = Shape(t.OBJECTS, ObjectRow, "original_id")
_BATCH = Shape(t.BATCHES, BatchRow, "scope_id", "batch_id")
_POSTING = Shape(t.POSTINGS, PostingRow, "scope_id", "book", "seq")
_HEAD = Shape(t.AUDIT_HEADS, HeadRow)
_HOLD = Shape(t.HOLDS, HoldRow, "hold_id")
_SHRED = Shape(t.SHREDS, ShredRow, "shred_id")
_CHECKPOINT = Shape(t.CHECKPOINTS, CheckpointRow, "size")
_CUSTODY = Shape(t.CUSTODY, CustodyRow)

_NO_HEAD = "The audit log of this org has no head: it was removed outside this library."
_ORG_REMOVED = "The row of this org was removed outside this library: put it back."
_STORED, _ARCHIVED = "stored", "archived"
_STAMP_BYTES = 16
_VERSION_BYTES = 7
_READ_BACK_ROWS = 50
"""Envelopes read back by one statement; they are compared one by one, never held together."""

_S, _K, _R, _O, _P = t.SESSIONS.c, t.SCOPES.c, t.RESULTS.c, t.OBJECTS.c, t.POSTINGS.c


class _Statement:
    """A statement, compiled once per database, that takes its parameters by position.

    Args:
        core: written in SQLAlchemy Core.
        names: its parameters, in the order callers give them.
        ending: what both databases understand and Core has no word for.
    """

    def __init__(self, core: ClauseElement, *names: str, ending: str = "") -> None:
        self._core = core
        self._ending = ending
        self._names = names
        self._compiled: dict[str, tuple[str, Callable[[Any], Any]]] = {}

    def on(self, dialect: Dialect) -> tuple[str, Callable[[Any], Any]]:
        """The SQL, and what brings a caller's values into its order."""
        found = self._compiled.get(dialect.name)
        if found is None:
            compiled: Any = self._core.compile(dialect=dialect)
            # A dialect may add parameters of its own (SQLite's OFFSET); their values stand behind the caller's.
            added = tuple(compiled.params[name] for name in compiled.positiontup if name not in self._names)
            known = [*self._names, *(name for name in compiled.positiontup if name not in self._names)]
            order = [known.index(name) for name in compiled.positiontup]
            text = f"{compiled}{self._ending}"
            if order == list(range(len(order))) and not added:
                found = text, tuple
            elif len(order) > 1 and not added:
                found = text, itemgetter(*order)
            else:
                found = text, lambda values: tuple([(*values, *added)[at] for at in order])
            self._compiled[dialect.name] = found
        return found


def _select(table: Any, *names: str, lock: bool = False) -> _Statement:
    """Rows of a table by equality of the named columns, always with the org first."""
    columns = table.c
    core = select(table).where(columns.org == bindparam("org"), *(columns[name] == bindparam(name) for name in names))
    return _Statement(core.with_for_update() if lock else core, "org", *names)


# SQLite locks the whole database at BEGIN IMMEDIATE, and FOR UPDATE compiles to nothing; PostgreSQL locks these rows.
# The order is the same in every transaction, so that none waits for another in a circle: the org's audit head, if it
# is audited; then the session; then that session's key and results. Nobody writes a session's rows without its lock.
# The head is locked by a statement of its own: what follows then sees everything that its last holder committed.
_LOCK_HEAD = _select(t.AUDIT_HEADS, lock=True)
_LOCK_SESSION = _select(t.SESSIONS, "session_id", lock=True)
_SELECT_SESSION = _select(t.SESSIONS, "session_id")
_SELECT_SESSIONS = _Statement(
    select(t.SESSIONS)
    .where(_S.org == bindparam("org"), _S.session_id > bindparam("after"))
    .order_by(_S.session_id)
    .limit(bindparam("count")),
    "org",
    "after",
    "count",
)
_SELECT_SCOPE = _select(t.SCOPES, "scope_id")
_SELECT_RESULTS = _Statement(
    select(t.RESULTS)
    .where(_R.org == bindparam("org"), _R.scope_id == bindparam("scope_id"), _R.version > bindparam("after_version"))
    .order_by(_R.number),
    "org",
    "scope_id",
    "after_version",
)
_FOUND = (
    select(t.SESSIONS, t.SCOPES, t.RESULTS)
    .join(t.SCOPES, (_K.org == _S.org) & (_K.scope_id == _S.scope_id))
    .join(t.RESULTS, (_R.org == _S.org) & (_R.scope_id == _S.scope_id))
    .where(_S.org == bindparam("org"), _S.session_id == bindparam("session_id"), _R.number == bindparam("number"))
)
_FIND = _Statement(_FOUND, "org", "session_id", "number")
_LOCK_FOUND = _Statement(_FOUND.with_for_update(), "org", "session_id", "number")
_SELECT_ENVELOPE = _Statement(
    select(t.ORIGINALS.c.envelope).where(
        t.ORIGINALS.c.org == bindparam("org"), t.ORIGINALS.c.original_id == bindparam("original_id")
    ),
    "org",
    "original_id",
)
_SELECT_ENVELOPES = _Statement(
    select(t.ORIGINALS.c.original_id, t.ORIGINALS.c.envelope).where(
        t.ORIGINALS.c.org == bindparam("org"),
        t.ORIGINALS.c.original_id.in_([bindparam(f"id_{at}", type_=LargeBinary) for at in range(_READ_BACK_ROWS)]),
    ),
    "org",
    *(f"id_{at}" for at in range(_READ_BACK_ROWS)),
)
_SELECT_OBJECT = _select(t.OBJECTS, "original_id")
_SELECT_LAPSED = _Statement(
    select(t.OBJECTS)
    .where(
        _O.org == bindparam("org"),
        _O.state < bindparam("stored"),  # all others are: a range of the index, which "not" is not
        _O.expires_at_us <= bindparam("now_us"),
        # What an archived result names is kept, even where somebody put an older intent back with its seal. The state
        # is no condition of the inner look, which would then read all results instead of one by the index.
        func.coalesce(
            select(_R.state)
            .where(_R.org == bindparam("org"), _R.original_id == _O.original_id)
            .limit(1)
            .scalar_subquery(),
            literal_column("''"),
        )
        != bindparam("archived"),
    )
    .order_by(_O.expires_at_us, _O.original_id)
    .limit(bindparam("count")),
    "org",
    "stored",
    "now_us",
    "archived",
    "count",
)
_SELECT_NAMED = _select(t.RESULTS, "original_id")
_SELECT_BATCH = _select(t.BATCHES, "scope_id", "request_tag")
_SELECT_BATCH_BY_KEY = _select(t.BATCHES, "scope_id", "idempotency_key")
_SELECT_POSTINGS = _Statement(
    select(t.POSTINGS)
    .where(
        _P.org == bindparam("org"),
        _P.scope_id == bindparam("scope_id"),
        _P.book == bindparam("book"),
        _P.seq > bindparam("after"),
    )
    .order_by(_P.seq)
    .limit(bindparam("count")),
    "org",
    "scope_id",
    "book",
    "after",
    "count",
)
_COUNT_POSTINGS = _Statement(
    select(func.count(), func.coalesce(func.max(_P.seq), 0)).where(
        _P.org == bindparam("org"), _P.scope_id == bindparam("scope_id"), _P.book == bindparam("book")
    ),
    "org",
    "scope_id",
    "book",
)
_SELECT_HEAD = _select(t.AUDIT_HEADS)
_SELECT_LEAVES = _Statement(
    select(t.AUDIT_LEAVES.c.seq, t.AUDIT_LEAVES.c.leaf)
    .where(t.AUDIT_LEAVES.c.org == bindparam("org"), t.AUDIT_LEAVES.c.seq >= bindparam("start"))
    .order_by(t.AUDIT_LEAVES.c.seq)
    .limit(bindparam("count")),
    "org",
    "start",
    "count",
)
_SELECT_ORG = _select(t.ORGS)
_SELECT_SCOPES = _Statement(
    select(t.SCOPES)
    .where(_K.org == bindparam("org"), _K.scope_id > bindparam("after"))
    .order_by(_K.scope_id)
    .limit(bindparam("count")),
    "org",
    "after",
    "count",
)
_SELECT_EXPIRED = _Statement(
    select(t.RESULTS)
    .where(
        _R.org == bindparam("org"),
        _R.retention_until_us <= bindparam("now_us"),
        _R.state == bindparam("archived"),
    )
    .order_by(_R.retention_until_us, _R.scope_id, _R.number)
    .limit(bindparam("count")),
    "org",
    "now_us",
    "archived",
    "count",
)
_SELECT_HOLDS = _Statement(
    select(t.HOLDS).where(t.HOLDS.c.org == bindparam("org")).order_by(t.HOLDS.c.placed_at_us, t.HOLDS.c.hold_id),
    "org",
)
_SELECT_SHREDS = _Statement(
    select(t.SHREDS)
    .where(t.SHREDS.c.org == bindparam("org"))
    .order_by(t.SHREDS.c.requested_at_us, t.SHREDS.c.shred_id),
    "org",
)
_SELECT_CHECKPOINTS = _Statement(
    select(t.CHECKPOINTS)
    .where(t.CHECKPOINTS.c.org == bindparam("org"), t.CHECKPOINTS.c.size > bindparam("after"))
    .order_by(t.CHECKPOINTS.c.size)
    .limit(bindparam("count")),
    "org",
    "after",
    "count",
)
_SELECT_CHECKPOINT = _Statement(
    select(t.CHECKPOINTS)
    .where(t.CHECKPOINTS.c.org == bindparam("org"))
    .order_by(t.CHECKPOINTS.c.size.desc())
    .limit(bindparam("count")),
    "org",
    "count",
)
_SELECT_CUSTODY = _Statement(
    select(t.AUDIT_HEADS, t.CUSTODY)
    .join_from(t.AUDIT_HEADS, t.CUSTODY, t.AUDIT_HEADS.c.org == t.CUSTODY.c.org, isouter=True)
    .where(t.AUDIT_HEADS.c.org == bindparam("org")),
    "org",
)
_COUNT_BELOW = _Statement(
    select(func.count()).where(
        _K.org == bindparam("org"),
        _K.kek_version < bindparam("kek_version"),
        _K.wrapped != bindparam("nothing", type_=LargeBinary),
    ),
    "org",
    "kek_version",
    "nothing",
)
_COUNT_KEPT = _Statement(
    select(func.count(), func.coalesce(func.sum(_R.size_bytes), 0)).where(
        _R.org == bindparam("org"), _R.state == bindparam("archived"), _R.original_id.is_not(None)
    ),
    "org",
    "archived",
)
_SELECT_ORG_NAMES = _Statement(
    select(t.ORG_NAMES.c.name).where(t.ORG_NAMES.c.org == bindparam("org")).order_by(t.ORG_NAMES.c.name), "org"
)

_SELECT_UNLISTED = _Statement(
    union(
        *(
            select(column).where(
                column != bindparam("org"),
                column.not_in(select(t.ORG_NAMES.c.name).where(t.ORG_NAMES.c.org == bindparam("org"))),
            )
            for column in (t.ORGS.c.org, _K.org)
        )
    ),
    "org",
)


def _inserting(table: Any, *, ending: str = "") -> _Statement:
    """INSERT of every column, in the table's order."""
    names = [column.name for column in table.c]
    return _Statement(insert(table).values({name: bindparam(name) for name in names}), *names, ending=ending)


def _updating(shape: Shape[Any]) -> _Statement:
    """UPDATE of every column outside the key, by key; values in the table's order."""
    columns = shape.table.c
    key = ("org", *shape.key)
    core = (
        update(shape.table)
        .where(*(columns[name] == bindparam(f"key_{name}") for name in key))
        .values({name: bindparam(name) for name in (*shape.fields, "seal") if name not in key})
    )
    names = [f"key_{column.name}" if column.name in key else column.name for column in columns]
    return _Statement(core, *names)


_INSERTS = {
    shape: _inserting(shape.table)
    for shape in (_SCOPE, _SESSION, _RESULT, _OBJECT, _BATCH, _POSTING, _HEAD, _HOLD, _SHRED, _CUSTODY)
}
_UPDATES = {
    shape: _updating(shape) for shape in (_ORG, _SCOPE, _SESSION, _RESULT, _OBJECT, _HEAD, _HOLD, _SHRED, _CUSTODY)
}
_INSERT_CHECKPOINT = _inserting(t.CHECKPOINTS, ending=" ON CONFLICT DO NOTHING")
_NAME_ORG = _inserting(t.ORG_NAMES, ending=" ON CONFLICT DO NOTHING")
_DESTROY_ORIGINAL = _Statement(
    delete(t.ORIGINALS).where(
        t.ORIGINALS.c.org == bindparam("org"), t.ORIGINALS.c.original_id == bindparam("original_id")
    ),
    "org",
    "original_id",
)
_MARK_OBJECTS = _inserting(t.OBJECTS, ending=" ON CONFLICT DO NOTHING")
_DELETE_OBJECT = _Statement(
    delete(t.OBJECTS).where(_O.org == bindparam("org"), _O.original_id == bindparam("original_id")),
    "org",
    "original_id",
)
_CLAIM_ORG = _inserting(t.ORGS, ending=" ON CONFLICT DO NOTHING")
"""Waits for another creator's end; changes no row where that one made the org."""
_INSERT_LEAF = _inserting(t.AUDIT_LEAVES)
_INSERT_ORIGINAL = _inserting(t.ORIGINALS)


class SqlReader:
    """One org's rows over one connection; see :class:`evidence_archive.ports.Reader`."""

    _session_statement, _find_statement = _SELECT_SESSION, _FIND

    def __init__(self, engine: SqlEngine, connection: PoolProxiedConnection, org: str, row_key: bytes) -> None:
        self._dialect = engine.engine.dialect
        # A cursor for each statement, held by nobody: one that an exception kept would keep its statement's lock.
        self._cursor: Callable[[], Any] = partial(engine.cursor, connection)
        self._org = org
        self._row_key = row_key

    def _all(self, statement: _Statement, *values: Any) -> list[Any]:
        sql, ordered = statement.on(self._dialect)
        rows: list[Any] = self._cursor().execute(sql, ordered((self._org, *values))).fetchall()
        return rows

    def _one(self, statement: _Statement, *values: Any) -> Any:
        rows = self._all(statement, *values)
        return rows[0] if rows else None

    def session(self, session_id: str) -> SessionRow | None:
        """The session of this id; in a writer it is locked until the transaction ends."""
        row = self._one(self._session_statement, session_id)
        return None if row is None else _SESSION.opened(self._row_key, row)

    def sessions(self, after: str, count: int) -> list[SessionRow]:
        """Up to ``count`` sessions with ids above ``after``, by id."""
        return [_SESSION.opened(self._row_key, row) for row in self._all(_SELECT_SESSIONS, after, count)]

    def scope(self, scope_id: bytes) -> ScopeRow | None:
        """A wrapped scope key."""
        row = self._one(_SELECT_SCOPE, scope_id)
        return None if row is None else _SCOPE.opened(self._row_key, row)

    def results(self, scope_id: bytes, after_version: int) -> list[ResultRow]:
        """Results of a session that changed after a session version, by number."""
        rows = self._all(_SELECT_RESULTS, scope_id, after_version)
        return [_RESULT.opened(self._row_key, row) for row in rows]

    def find(self, session_id: str, number: int) -> tuple[SessionRow, ScopeRow, ResultRow] | None:
        """A result with its session and key, in one statement whether or not it is there; a writer locks them."""
        row = self._one(self._find_statement, session_id, number)
        if row is None:
            return None
        scope_at = len(t.SESSIONS.c)
        result_at = scope_at + len(t.SCOPES.c)
        return (
            _SESSION.opened(self._row_key, row[:scope_at]),
            _SCOPE.opened(self._row_key, row[scope_at:result_at]),
            _RESULT.opened(self._row_key, row[result_at:]),
        )

    def envelope(self, original_id: bytes) -> bytes | None:
        """The stored envelope.

        Raises:
            SealBrokenError: it is not even bytes.
        """
        row = self._one(_SELECT_ENVELOPE, original_id)
        if row is None:
            return None
        if type(row[0]) is not bytes:
            raise SealBrokenError("A stored original is not an envelope: it was changed outside this library.")
        return row[0]

    def object(self, original_id: bytes) -> ObjectRow | None:
        """Where the envelope lies that is not in the database."""
        row = self._one(_SELECT_OBJECT, original_id)
        return None if row is None else _OBJECT.opened(self._row_key, row)

    def lapsed_objects(self, now_us: int, count: int) -> list[ObjectRow]:
        """Up to ``count`` rows not ``stored`` whose time is over and that no archived result names, oldest first."""
        rows = self._all(_SELECT_LAPSED, _STORED, now_us, _ARCHIVED, count)
        return [_OBJECT.opened(self._row_key, row) for row in rows]

    def named(self, original_id: bytes) -> ResultRow | None:
        """The result that names this original."""
        row = self._one(_SELECT_NAMED, original_id)
        return None if row is None else _RESULT.opened(self._row_key, row)

    def batch(self, scope_id: bytes, request_tag: bytes, idempotency_key: str | None) -> BatchRow | None:
        """The accepted batch with this idempotency key if one is given, else with this request tag."""
        if idempotency_key is None:
            row = self._one(_SELECT_BATCH, scope_id, request_tag)
        else:
            row = self._one(_SELECT_BATCH_BY_KEY, scope_id, idempotency_key)
        return None if row is None else _BATCH.opened(self._row_key, row)

    def postings(self, scope_id: bytes, book: str, after: int, count: int) -> list[PostingRow]:
        """Up to ``count`` postings of a book with sequence numbers above ``after``, in order."""
        rows = self._all(_SELECT_POSTINGS, scope_id, book, after, count)
        return [_POSTING.opened(self._row_key, row) for row in rows]

    def posted(self, scope_id: bytes, book: str) -> tuple[int, int]:
        """How many postings a book has, and the highest sequence number, 0 for none; no seal is checked.

        Raises:
            SealBrokenError: one has no number there.
        """
        count, highest = self._one(_COUNT_POSTINGS, scope_id, book)
        if type(highest) is not int:
            raise SealBrokenError("A posting stands at a place that there is not: it was changed outside this library.")
        return int(count), highest

    def scopes(self, after: bytes, count: int) -> list[ScopeRow]:
        """Up to ``count`` scope keys with ids above ``after``, by id."""
        return [_SCOPE.opened(self._row_key, row) for row in self._all(_SELECT_SCOPES, after, count)]

    def scopes_below(self, kek_version: int) -> int:
        """How many session keys are wrapped under an older version; no seal is checked."""
        return int(self._one(_COUNT_BELOW, kek_version, b"")[0])

    def expired(self, now_us: int, count: int) -> list[ResultRow]:
        """Up to ``count`` archived results whose retention is over, the longest over first."""
        return [_RESULT.opened(self._row_key, row) for row in self._all(_SELECT_EXPIRED, now_us, _ARCHIVED, count)]

    def holds(self) -> list[HoldRow]:
        """All holds, released ones included, by time."""
        return [_HOLD.opened(self._row_key, row) for row in self._all(_SELECT_HOLDS)]

    def shreds(self) -> list[ShredRow]:
        """All shreds, by time."""
        return [_SHRED.opened(self._row_key, row) for row in self._all(_SELECT_SHREDS)]

    def checkpoint(self) -> CheckpointRow | None:
        """The latest signed head."""
        row = self._one(_SELECT_CHECKPOINT, 1)
        return None if row is None else _CHECKPOINT.opened(self._row_key, row)

    def checkpoints(self, after: int, count: int) -> list[CheckpointRow]:
        """Up to ``count`` signed heads of logs with more than ``after`` entries, by size."""
        return [_CHECKPOINT.opened(self._row_key, row) for row in self._all(_SELECT_CHECKPOINTS, after, count)]

    def custody(self) -> CustodyRow | None:
        """What the org has in keeping, as the head of the log knows it; ``None`` where that was never counted.

        Raises:
            SealBrokenError: the row was removed, or is an older one that was put back.
            AuditBrokenError: the head is gone.
        """
        found = self._one(_SELECT_CUSTODY)
        if found is None:
            raise AuditBrokenError(_NO_HEAD)
        at = len(t.AUDIT_HEADS.c)
        head = _HEAD.opened(self._row_key, found[:at])
        row = None if found[at] is None else _CUSTODY.opened(self._row_key, found[at:])
        if (0 if row is None else row.version) != self._custody_version(head):
            raise SealBrokenError("What this org has in keeping is not what its log knows: the row was put back.")
        return row

    def _custody_version(self, stored: HeadRow) -> int:
        return stored.custody_version

    def in_keeping(self) -> tuple[int, int]:
        """How many originals can be restored, and their bytes, counted anew; no seal is checked."""
        count, size_bytes = self._one(_COUNT_KEPT, _ARCHIVED)
        return int(count), int(size_bytes)

    def org_row(self) -> OrgRow:
        """The org's own row.

        Raises:
            SealBrokenError: it is gone.
        """
        row = self._one(_SELECT_ORG)
        if row is None:
            raise SealBrokenError(_ORG_REMOVED)
        return _ORG.opened(self._row_key, row)

    def head(self, *, lock: bool = False) -> HeadRow:
        """The head of the audit log.

        Args:
            lock: until the transaction ends.

        Raises:
            AuditBrokenError: it is gone.
        """
        row = self._one(_LOCK_HEAD if lock else _SELECT_HEAD)
        if row is None:
            raise AuditBrokenError(_NO_HEAD)
        return _HEAD.opened(self._row_key, row)

    def leaves(self, start: int, count: int) -> list[tuple[int, bytes]]:
        """Up to ``count`` leaves from sequence number ``start``, as ``(seq, leaf)``.

        Raises:
            AuditBrokenError: one is not even bytes.
        """
        rows = self._all(_SELECT_LEAVES, start, count)
        for seq, leaf in rows:
            if type(leaf) is not bytes:
                raise AuditBrokenError(f"Audit entry {seq} is not in the form this library writes: it was changed.")
        return [(seq, leaf) for seq, leaf in rows]


class SqlWriter(SqlReader):
    """One transaction; see :class:`evidence_archive.ports.Writer`."""

    _session_statement, _find_statement = _LOCK_SESSION, _LOCK_FOUND

    def __init__(
        self,
        engine: SqlEngine,
        connection: PoolProxiedConnection,
        org: str,
        row_key: bytes,
        head: HeadRow | None,
    ) -> None:
        super().__init__(engine, connection, org, row_key)
        self._head = head
        self._head_waits = False

    def _many(self, statement: _Statement, rows: Sequence[Any]) -> int:
        """Run a statement for every row; how many rows changed."""
        sql, ordered = statement.on(self._dialect)
        with closing(self._cursor()) as cursor:
            cursor.executemany(sql, map(ordered, rows))
            changed: int = cursor.rowcount
        return changed

    def _insert(self, shape: Shape[Any], rows: Sequence[Any]) -> None:
        if rows:
            self._many(_INSERTS[shape], [shape.values(self._org, self._row_key, row) for row in rows])

    def _update(self, shape: Shape[Any], rows: Sequence[Any]) -> None:
        if rows:
            changed = self._many(_UPDATES[shape], [shape.values(self._org, self._row_key, row) for row in rows])
            if changed != len(rows):
                raise StoreError(f"{changed} of {len(rows)} rows of {shape.table.name} were there to be changed.")

    def insert_session(self, session: SessionRow, scope: ScopeRow) -> None:
        """A new session with its key."""
        session.stamp = os.urandom(_STAMP_BYTES)
        self._insert(_SCOPE, [scope])
        self._insert(_SESSION, [session])

    def update_session(self, session: SessionRow) -> None:
        """New counters; exactly one row must change."""
        session.stamp = os.urandom(_STAMP_BYTES)
        self._update(_SESSION, [session])

    def insert_results(self, rows: Sequence[ResultRow]) -> None:
        """New results."""
        self._insert(_RESULT, rows)

    def update_results(self, rows: Sequence[ResultRow]) -> None:
        """Results with new facts or a new state; exactly these rows must change."""
        self._update(_RESULT, rows)

    def insert_originals(self, originals: Sequence[StoredOriginal]) -> None:
        """Envelopes, read back and compared before this returns.

        Raises:
            SealBrokenError: what was read back is not what was written.
        """
        self._many(_INSERT_ORIGINAL, [(self._org, one.original_id, one.envelope) for one in originals])
        for at in range(0, len(originals), _READ_BACK_ROWS):
            written = {one.original_id: one.envelope for one in originals[at : at + _READ_BACK_ROWS]}
            sql, ordered = _SELECT_ENVELOPES.on(self._dialect)
            # A last chunk that is not full asks for its first id again and again: one statement serves all sizes.
            ids = [*written, *[next(iter(written))] * (_READ_BACK_ROWS - len(written))]
            for original_id, envelope in self._cursor().execute(sql, ordered((self._org, *ids))):
                if written.pop(original_id, None) != envelope:
                    raise SealBrokenError(
                        "The database returned other bytes than were written: nothing was archived."
                    )
            if written:
                raise SealBrokenError("The database did not return all that was written: nothing was archived.")

    def insert_objects(self, rows: Sequence[ObjectRow]) -> None:
        """New intents."""
        self._insert(_OBJECT, rows)

    def update_objects(self, rows: Sequence[ObjectRow]) -> None:
        """Intents with a new state or time; exactly these rows must change."""
        self._update(_OBJECT, rows)

    def delete_objects(self, rows: Sequence[ObjectRow]) -> None:
        """No such rows any more; exactly these must go.

        Raises:
            StoreError: one of them is not there.
        """
        if rows:
            gone = self._many(_DELETE_OBJECT, [(self._org, row.original_id) for row in rows])
            if gone != len(rows):
                raise StoreError(f"{gone} of {len(rows)} rows of {t.OBJECTS.name} were there to be deleted.")

    def insert_batch(self, row: BatchRow) -> None:
        """The batch, for idempotent answers."""
        self._insert(_BATCH, [row])

    def insert_postings(self, rows: Sequence[PostingRow]) -> None:
        """New postings."""
        self._insert(_POSTING, rows)

    def insert_holds(self, rows: Sequence[HoldRow]) -> None:
        """New holds."""
        self._insert(_HOLD, rows)

    def update_holds(self, rows: Sequence[HoldRow]) -> None:
        """Holds that were released; exactly these rows must change."""
        self._update(_HOLD, rows)

    def insert_shreds(self, rows: Sequence[ShredRow]) -> None:
        """New shreds."""
        self._insert(_SHRED, rows)

    def update_shreds(self, rows: Sequence[ShredRow]) -> None:
        """Shreds that are complete; exactly these rows must change."""
        self._update(_SHRED, rows)

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        """A signed head; nothing where one of this size is there already."""
        self._many(_INSERT_CHECKPOINT, [_CHECKPOINT.values(self._org, self._row_key, row)])

    def _custody_version(self, stored: HeadRow) -> int:
        return stored.custody_version if self._head is None else self._head.custody_version

    def put_custody(self, row: CustodyRow) -> None:
        """What the org has in keeping, in the place of what was there; the head of the log gets its new version.

        It is random: in a copy of the store that went another way, a count would be the same.

        Raises:
            StoreError: the transaction did not lock the log.
        """
        head = self._locked()
        head.custody_version = 1 + int.from_bytes(os.urandom(_VERSION_BYTES))
        row.version = head.custody_version
        self._head_waits = True
        if not self._many(_UPDATES[_CUSTODY], [_CUSTODY.values(self._org, self._row_key, row)]):
            self._insert(_CUSTODY, [row])

    def update_scopes(self, rows: Sequence[ScopeRow]) -> None:
        """Scope keys that were wrapped anew; exactly these rows must change."""
        self._update(_SCOPE, rows)

    def update_org(self, row: OrgRow) -> None:
        """The org's auxiliary key, wrapped anew; exactly one row must change."""
        self._update(_ORG, [row])

    def destroy_originals(self, original_ids: Sequence[bytes]) -> None:
        """No such envelopes any more; what is not there (because it lies in objects) is no error."""
        if original_ids:
            self._many(_DESTROY_ORIGINAL, [(self._org, one) for one in original_ids])

    def append(self, leaves: Iterable[Callable[[int], bytes]], policy_digest: str | None = None) -> None:
        """Audit leaves, each built from the sequence number it gets; the head moves with them.

        Raises:
            StoreError: the transaction did not lock the log.
        """
        head = self._locked()
        frontier = Frontier.from_bytes(head.size, head.frontier)
        rows = []
        for build in leaves:
            leaf = build(head.size)
            head.last_leaf_hash = leaf_hash(leaf)
            frontier.append(head.last_leaf_hash)
            rows.append((self._org, head.size, leaf))
            head.size += 1
        if not rows:
            return
        head.frontier = frontier.to_bytes()
        if policy_digest is not None:
            head.policy_digest = policy_digest
        self._many(_INSERT_LEAF, rows)
        self._head_waits = True
        self.settle()

    def _locked(self) -> HeadRow:
        if self._head is None:
            raise StoreError("This transaction did not lock the audit log.")
        return self._head

    def settle(self) -> None:
        """The head as this transaction changed it, written; asked before the commit."""
        if self._head is not None and self._head_waits:
            self._update(_HEAD, [self._head])
            self._head_waits = False


class SqlOrgStore:
    """The store as one org sees it; see :class:`evidence_archive.ports.OrgStore`."""

    def __init__(self, engine: SqlEngine, org: str, row_key: bytes) -> None:
        self._engine = engine
        self._org = org
        self._row_key = row_key

    @contextmanager
    def peeking(self, wait_ms: int) -> Iterator[SqlReader]:
        """A reader for one single statement, without a transaction around it."""
        with self._engine.peeking(wait_ms, self._org) as connection:
            yield SqlReader(self._engine, connection, self._org, self._row_key)

    @contextmanager
    def reading(self, wait_ms: int) -> Iterator[SqlReader]:
        """A consistent look that waits at most ``wait_ms`` milliseconds for a lock."""
        with self._engine.reading(wait_ms, self._org) as connection:
            yield SqlReader(self._engine, connection, self._org, self._row_key)

    def scrub(self) -> None:
        """What was destroyed leaves the files, as far as the database can do that now; never raises."""
        self._engine.scrub()

    @contextmanager
    def writing(self, wait_ms: int, *, audited: bool) -> Iterator[SqlWriter]:
        """A write transaction, committed when the block ends; an audited one has locked the org's head."""
        with self._engine.writing(wait_ms, self._org) as connection:
            reader = SqlReader(self._engine, connection, self._org, self._row_key)
            head = _locked_head(reader) if audited else None
            writer = SqlWriter(self._engine, connection, self._org, self._row_key, head)
            yield writer
            writer.settle()


def _locked_head(reader: SqlReader) -> HeadRow:
    """The head, locked, once the last leaf is the one it names and none stands behind it."""
    head = reader.head(lock=True)
    tail = reader.leaves(max(head.size - 1, 0), 2)
    found = leaf_hash(tail[0][1]) if len(tail) == 1 and tail[0][0] == head.size - 1 else NO_LEAF
    if len(tail) != min(head.size, 1) or found != head.last_leaf_hash:
        raise AuditBrokenError("The end of the audit log is not what its head names: the log was changed.")
    return head


class SqlStore:
    """The whole store; see :class:`evidence_archive.ports.Store`."""

    def __init__(self, engine: SqlEngine, *, wait_ms: int = 5_000) -> None:
        self._engine = engine
        self._wait_ms = wait_ms

    @property
    def beside(self) -> Path | None:
        """The directory for large originals that goes with the database, where it is a file."""
        return self._engine.beside

    def has_used_objects(self) -> bool:
        """Whether any org was about to put an original outside the database, ever."""
        with self._engine.peeking(self._wait_ms, t.NO_ORG) as connection:
            return SqlReader(self._engine, connection, t.NO_ORG, b"")._one(_SELECT_OBJECT, b"") is not None

    def uses_objects(self) -> None:
        """Remember for good that an original is about to be put outside the database."""
        with self._engine.writing(self._wait_ms, t.NO_ORG) as connection:
            writer = SqlWriter(self._engine, connection, t.NO_ORG, b"", None)
            writer._many(_MARK_OBJECTS, [(t.NO_ORG, b"", "", 0, 0, "used", 0, 0, b"")])

    def orgs(self) -> list[str]:
        """The names of all orgs, sorted."""
        with self._engine.peeking(self._wait_ms, t.NO_ORG) as connection:
            return [name for (name,) in SqlReader(self._engine, connection, t.NO_ORG, b"")._all(_SELECT_ORG_NAMES)]

    def unlisted_orgs(self) -> list[str]:
        """See :class:`evidence_archive.ports.Surveyable`."""
        with self._engine.peeking(self._wait_ms, t.NO_ORG) as connection:
            return sorted(
                name for (name,) in SqlReader(self._engine, connection, t.NO_ORG, b"")._all(_SELECT_UNLISTED)
            )

    def org(self, org: str) -> OrgRow | None:
        """An org's keys; what they are is checked by :meth:`scoped`.

        Raises:
            SealBrokenError: the org was there, and its row was removed.
        """
        # One snapshot: an org that is made between two looks must not pass for one whose row was removed.
        with self._engine.reading(self._wait_ms, org) as connection:
            reader = SqlReader(self._engine, connection, org, b"")
            row = reader._one(_SELECT_ORG)
            if row is None and reader._one(_SELECT_HEAD) is not None:
                raise SealBrokenError(_ORG_REMOVED)
        return None if row is None else _ORG.unchecked(row)

    def create_org(self, row: OrgRow, row_key: bytes, leaves: Sequence[Callable[[int], bytes]]) -> OrgRow:
        """The org's row, created exclusively with its log's first leaves: the loser of a race gets the winner's.

        Raises:
            SealBrokenError: the org was there, and its row was removed.
            StoreError: the row vanished meanwhile.
        """
        # Before the org, in a transaction of its own: a name without an org does no harm.
        with self._engine.writing(self._wait_ms, t.NO_ORG) as connection:
            SqlWriter(self._engine, connection, t.NO_ORG, b"", None)._many(_NAME_ORG, [(t.NO_ORG, row.org)])
        with self._engine.writing(self._wait_ms, row.org) as connection:
            head = HeadRow(0, b"", NO_LEAF, None)
            writer = SqlWriter(self._engine, connection, row.org, row_key, head)
            if writer._many(_CLAIM_ORG, [_ORG.values(row.org, row_key, row)]):
                if writer._one(_SELECT_HEAD) is not None:
                    raise SealBrokenError(_ORG_REMOVED)
                writer._insert(_HEAD, [head])
                writer.append(leaves)
        winner = self.org(row.org)
        if winner is None:
            raise StoreError("The org's row vanished while it was created.")
        return winner

    def scoped(self, row: OrgRow, row_key: bytes) -> SqlOrgStore:
        """The store as this org sees it, once the org's own row carries a valid seal.

        Raises:
            SealBrokenError: it does not.
        """
        with self._engine.peeking(self._wait_ms, row.org) as connection:
            stored = SqlReader(self._engine, connection, row.org, row_key)._one(_SELECT_ORG)
        if stored is None or _ORG.opened(row_key, stored) != row:
            raise SealBrokenError("The row of this org was changed outside this library: nothing in it is believed.")
        return SqlOrgStore(self._engine, row.org, row_key)

    @contextmanager
    def surveying(self, org: str, row_key: bytes | None, wait_ms: int) -> Iterator[Survey]:
        """A look at one org that hands out damaged rows, too; see :class:`evidence_archive.ports.Surveyable`."""
        from evidence_archive.store.survey import SqlSurvey  # which is written with what is above

        with self._engine.surveying(wait_ms, org) as connection:
            yield SqlSurvey(SqlReader(self._engine, connection, org, row_key or b""), row_key)

    def copy_to(self, path: Path) -> None:
        """See :class:`evidence_archive.ports.CopiedStore`."""
        copy_store(self._engine, path, wait_ms=self._wait_ms)

    def fill_from(self, path: Path) -> None:
        """See :class:`evidence_archive.ports.CopiedStore`."""
        fill_store(self._engine, path, wait_ms=self._wait_ms)

    def check_vacant(self) -> None:
        """See :class:`evidence_archive.ports.CopiedStore`."""
        with self._engine.reading(self._wait_ms, t.NO_ORG) as connection:
            check_vacant(self._engine, connection.driver_connection)

    def close(self) -> None:
        """Release connections; idempotent."""
        self._engine.close()


def open_store(url: str, *, create: bool = True, wait_ms: int = 5_000) -> SqlStore:
    """The store at a database URL, its schema made or brought up to date.

    Args:
        url: ``sqlite:///evidence.db`` or ``postgresql://user@host/database``.
        create: make an SQLite file where it does not exist; a PostgreSQL database is made by its operator.
        wait_ms: bound on waiting for a lock while opening, in milliseconds.

    Raises:
        StoreError: the URL cannot be used.
        StoreUnavailableError: the database cannot be reached, or is missing and ``create`` is false.
        StoreBusyError: it is locked for longer than ``wait_ms``.
        UnsupportedVersionError: a newer version of this library wrote its schema.
    """
    engine = open_engine(url, create=create)
    try:
        prepare_schema(engine, wait_ms=wait_ms)
    except BaseException:
        engine.close()
        raise
    return SqlStore(engine, wait_ms=wait_ms)
