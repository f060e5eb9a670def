"""The store on SQL: every statement there is, each carrying the org.

Reads check each row's seal before handing it out. Writes run in one transaction under the write lock; appending to
the audit log locks the org's head row first, which is what keeps the log from forking.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.pool import PoolProxiedConnection

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
from evidence_archive.store import statements as q
from evidence_archive.store import tables as t
from evidence_archive.store.copying import check_vacant, copy_store, fill_store
from evidence_archive.store.engine import SqlEngine, open_engine
from evidence_archive.store.rows import Shape
from evidence_archive.store.schema import prepare_schema

__all__ = ["SqlOrgStore", "SqlReader", "SqlStore", "SqlWriter", "open_store"]

NO_LEAF = hashlib.sha256(b"").digest()
"""Stands for "the last leaf" of an empty log."""

_NO_HEAD = "The audit log of this org has no head: it was removed outside this library."
_ORG_REMOVED = "The row of this org was removed outside this library: put it back."
_STAMP_BYTES = 16
_VERSION_BYTES = 7


class SqlReader:
    """One org's rows over one connection; see :class:`evidence_archive.ports.Reader`."""

    _session_statement, _find_statement = q.SELECT_SESSION, q.FIND

    def __init__(self, engine: SqlEngine, connection: PoolProxiedConnection, org: str, row_key: bytes) -> None:
        self._dialect = engine.engine.dialect
        # A cursor for each statement, held by nobody: one that an exception kept would keep its statement's lock.
        self._cursor: Callable[[], Any] = partial(engine.cursor, connection)
        self._org = org
        self._row_key = row_key

    def _all(self, statement: q.Statement, *values: Any) -> list[Any]:
        sql, ordered = statement.on(self._dialect)
        rows: list[Any] = self._cursor().execute(sql, ordered((self._org, *values))).fetchall()
        return rows

    def _one(self, statement: q.Statement, *values: Any) -> Any:
        rows = self._all(statement, *values)
        return rows[0] if rows else None

    def session(self, session_id: str) -> SessionRow | None:
        """The session of this id; in a writer it is locked until the transaction ends."""
        row = self._one(self._session_statement, session_id)
        return None if row is None else q.SESSION.opened(self._row_key, row)

    def sessions(self, after: str, count: int) -> list[SessionRow]:
        """Up to ``count`` sessions with ids above ``after``, by id."""
        return [q.SESSION.opened(self._row_key, row) for row in self._all(q.SELECT_SESSIONS, after, count)]

    def scope(self, scope_id: bytes) -> ScopeRow | None:
        """A wrapped scope key."""
        row = self._one(q.SELECT_SCOPE, scope_id)
        return None if row is None else q.SCOPE.opened(self._row_key, row)

    def results(self, scope_id: bytes, after_version: int) -> list[ResultRow]:
        """Results of a session that changed after a session version, by number."""
        rows = self._all(q.SELECT_RESULTS, scope_id, after_version)
        return [q.RESULT.opened(self._row_key, row) for row in rows]

    def find(self, session_id: str, number: int) -> tuple[SessionRow, ScopeRow, ResultRow] | None:
        """A result with its session and key, in one statement whether or not it is there; a writer locks them."""
        row = self._one(self._find_statement, session_id, number)
        if row is None:
            return None
        scope_at = len(t.SESSIONS.c)
        result_at = scope_at + len(t.SCOPES.c)
        return (
            q.SESSION.opened(self._row_key, row[:scope_at]),
            q.SCOPE.opened(self._row_key, row[scope_at:result_at]),
            q.RESULT.opened(self._row_key, row[result_at:]),
        )

    def envelope(self, original_id: bytes) -> bytes | None:
        """The stored envelope.

        Raises:
            SealBrokenError: it is not even bytes.
        """
        row = self._one(q.SELECT_ENVELOPE, original_id)
        if row is None:
            return None
        if type(row[0]) is not bytes:
            raise SealBrokenError("A stored original is not an envelope: it was changed outside this library.")
        return row[0]

    def object(self, original_id: bytes) -> ObjectRow | None:
        """Where the envelope lies that is not in the database."""
        row = self._one(q.SELECT_OBJECT, original_id)
        return None if row is None else q.OBJECT.opened(self._row_key, row)

    def lapsed_objects(self, now_us: int, count: int) -> list[ObjectRow]:
        """Up to ``count`` rows not ``stored`` whose time is over and that no archived result names, oldest first."""
        rows = self._all(q.SELECT_LAPSED, q.STORED, now_us, q.ARCHIVED, count)
        return [q.OBJECT.opened(self._row_key, row) for row in rows]

    def named(self, original_id: bytes) -> ResultRow | None:
        """The result that names this original."""
        row = self._one(q.SELECT_NAMED, original_id)
        return None if row is None else q.RESULT.opened(self._row_key, row)

    def batch(self, scope_id: bytes, request_tag: bytes, idempotency_key: str | None) -> BatchRow | None:
        """The accepted batch with this idempotency key if one is given, else with this request tag."""
        if idempotency_key is None:
            row = self._one(q.SELECT_BATCH, scope_id, request_tag)
        else:
            row = self._one(q.SELECT_BATCH_BY_KEY, scope_id, idempotency_key)
        return None if row is None else q.BATCH.opened(self._row_key, row)

    def postings(self, scope_id: bytes, book: str, after: int, count: int) -> list[PostingRow]:
        """Up to ``count`` postings of a book with sequence numbers above ``after``, in order."""
        rows = self._all(q.SELECT_POSTINGS, scope_id, book, after, count)
        return [q.POSTING.opened(self._row_key, row) for row in rows]

    def posted(self, scope_id: bytes, book: str) -> tuple[int, int]:
        """How many postings a book has, and the highest sequence number, 0 for none; no seal is checked.

        Raises:
            SealBrokenError: one has no number there.
        """
        count, highest = self._one(q.COUNT_POSTINGS, scope_id, book)
        if type(highest) is not int:
            raise SealBrokenError(
                "A posting stands at a place that there is not: it was changed outside this library."
            )
        return int(count), highest

    def scopes(self, after: bytes, count: int) -> list[ScopeRow]:
        """Up to ``count`` scope keys with ids above ``after``, by id."""
        return [q.SCOPE.opened(self._row_key, row) for row in self._all(q.SELECT_SCOPES, after, count)]

    def scopes_below(self, kek_version: int) -> int:
        """How many session keys are wrapped under an older version; no seal is checked."""
        return int(self._one(q.COUNT_BELOW, kek_version, b"")[0])

    def expired(self, now_us: int, count: int) -> list[ResultRow]:
        """Up to ``count`` archived results whose retention is over, the longest over first."""
        return [q.RESULT.opened(self._row_key, row) for row in self._all(q.SELECT_EXPIRED, now_us, q.ARCHIVED, count)]

    def holds(self) -> list[HoldRow]:
        """All holds, released ones included, by time."""
        return [q.HOLD.opened(self._row_key, row) for row in self._all(q.SELECT_HOLDS)]

    def shreds(self) -> list[ShredRow]:
        """All shreds, by time."""
        return [q.SHRED.opened(self._row_key, row) for row in self._all(q.SELECT_SHREDS)]

    def checkpoint(self) -> CheckpointRow | None:
        """The latest signed head."""
        row = self._one(q.SELECT_CHECKPOINT, 1)
        return None if row is None else q.CHECKPOINT.opened(self._row_key, row)

    def checkpoints(self, after: int, count: int) -> list[CheckpointRow]:
        """Up to ``count`` signed heads of logs with more than ``after`` entries, by size."""
        return [q.CHECKPOINT.opened(self._row_key, row) for row in self._all(q.SELECT_CHECKPOINTS, after, count)]

    def custody(self) -> CustodyRow | None:
        """What the org has in keeping, as the head of the log knows it; ``None`` where that was never counted.

        Raises:
            SealBrokenError: the row was removed, or is an older one that was put back.
            AuditBrokenError: the head is gone.
        """
        found = self._one(q.SELECT_CUSTODY)
        if found is None:
            raise AuditBrokenError(_NO_HEAD)
        at = len(t.AUDIT_HEADS.c)
        head = q.HEAD.opened(self._row_key, found[:at])
        row = None if found[at] is None else q.CUSTODY.opened(self._row_key, found[at:])
        if (0 if row is None else row.version) != self._custody_version(head):
            raise SealBrokenError("What this org has in keeping is not what its log knows: the row was put back.")
        return row

    def _custody_version(self, stored: HeadRow) -> int:
        return stored.custody_version

    def in_keeping(self) -> tuple[int, int]:
        """How many originals can be restored, and their bytes, counted anew; no seal is checked."""
        count, size_bytes = self._one(q.COUNT_KEPT, q.ARCHIVED)
        return int(count), int(size_bytes)

    def org_row(self) -> OrgRow:
        """The org's own row.

        Raises:
            SealBrokenError: it is gone.
        """
        row = self._one(q.SELECT_ORG)
        if row is None:
            raise SealBrokenError(_ORG_REMOVED)
        return q.ORG.opened(self._row_key, row)

    def head(self, *, lock: bool = False) -> HeadRow:
        """The head of the audit log.

        Args:
            lock: until the transaction ends.

        Raises:
            AuditBrokenError: it is gone.
        """
        row = self._one(q.LOCK_HEAD if lock else q.SELECT_HEAD)
        if row is None:
            raise AuditBrokenError(_NO_HEAD)
        return q.HEAD.opened(self._row_key, row)

    def leaves(self, start: int, count: int) -> list[tuple[int, bytes]]:
        """Up to ``count`` leaves from sequence number ``start``, as ``(seq, leaf)``.

        Raises:
            AuditBrokenError: one is not even bytes.
        """
        rows = self._all(q.SELECT_LEAVES, start, count)
        for seq, leaf in rows:
            if type(leaf) is not bytes:
                raise AuditBrokenError(f"Audit entry {seq} is not in the form this library writes: it was changed.")
        return [(seq, leaf) for seq, leaf in rows]


class SqlWriter(SqlReader):
    """One transaction; see :class:`evidence_archive.ports.Writer`."""

    _session_statement, _find_statement = q.LOCK_SESSION, q.LOCK_FOUND

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

    def _many(self, statement: q.Statement, rows: Sequence[Any]) -> int:
        """Run a statement for every row; how many rows changed."""
        sql, ordered = statement.on(self._dialect)
        with closing(self._cursor()) as cursor:
            cursor.executemany(sql, map(ordered, rows))
            changed: int = cursor.rowcount
        return changed

    def _insert(self, shape: Shape[Any], rows: Sequence[Any]) -> None:
        if rows:
            self._many(q.INSERTS[shape], [shape.values(self._org, self._row_key, row) for row in rows])

    def _update(self, shape: Shape[Any], rows: Sequence[Any]) -> None:
        if rows:
            changed = self._many(q.UPDATES[shape], [shape.values(self._org, self._row_key, row) for row in rows])
            if changed != len(rows):
                raise StoreError(f"{changed} of {len(rows)} rows of {shape.table.name} were there to be changed.")

    def insert_session(self, session: SessionRow, scope: ScopeRow) -> None:
        """A new session with its key."""
        session.stamp = os.urandom(_STAMP_BYTES)
        self._insert(q.SCOPE, [scope])
        self._insert(q.SESSION, [session])

    def update_session(self, session: SessionRow) -> None:
        """New counters; exactly one row must change."""
        session.stamp = os.urandom(_STAMP_BYTES)
        self._update(q.SESSION, [session])

    def insert_results(self, rows: Sequence[ResultRow]) -> None:
        """New results."""
        self._insert(q.RESULT, rows)

    def update_results(self, rows: Sequence[ResultRow]) -> None:
        """Results with new facts or a new state; exactly these rows must change."""
        self._update(q.RESULT, rows)

    def insert_originals(self, originals: Sequence[StoredOriginal]) -> None:
        """Envelopes, read back and compared before this returns.

        Raises:
            SealBrokenError: what was read back is not what was written.
        """
        self._many(q.INSERT_ORIGINAL, [(self._org, one.original_id, one.envelope) for one in originals])
        for at in range(0, len(originals), q.READ_BACK_ROWS):
            written = {one.original_id: one.envelope for one in originals[at : at + q.READ_BACK_ROWS]}
            sql, ordered = q.SELECT_ENVELOPES.on(self._dialect)
            # A last chunk that is not full asks for its first id again and again: one statement serves all sizes.
            ids = [*written, *[next(iter(written))] * (q.READ_BACK_ROWS - len(written))]
            for original_id, envelope in self._cursor().execute(sql, ordered((self._org, *ids))):
                if written.pop(original_id, None) != envelope:
                    raise SealBrokenError(
                        "The database returned other bytes than were written: nothing was archived."
                    )
            if written:
                raise SealBrokenError("The database did not return all that was written: nothing was archived.")

    def insert_objects(self, rows: Sequence[ObjectRow]) -> None:
        """New intents."""
        self._insert(q.OBJECT, rows)

    def update_objects(self, rows: Sequence[ObjectRow]) -> None:
        """Intents with a new state or time; exactly these rows must change."""
        self._update(q.OBJECT, rows)

    def delete_objects(self, rows: Sequence[ObjectRow]) -> None:
        """No such rows any more; exactly these must go.

        Raises:
            StoreError: one of them is not there.
        """
        if rows:
            gone = self._many(q.DELETE_OBJECT, [(self._org, row.original_id) for row in rows])
            if gone != len(rows):
                raise StoreError(f"{gone} of {len(rows)} rows of {t.OBJECTS.name} were there to be deleted.")

    def insert_batch(self, row: BatchRow) -> None:
        """The batch, for idempotent answers."""
        self._insert(q.BATCH, [row])

    def insert_postings(self, rows: Sequence[PostingRow]) -> None:
        """New postings."""
        self._insert(q.POSTING, rows)

    def insert_holds(self, rows: Sequence[HoldRow]) -> None:
        """New holds."""
        self._insert(q.HOLD, rows)

    def update_holds(self, rows: Sequence[HoldRow]) -> None:
        """Holds that were released; exactly these rows must change."""
        self._update(q.HOLD, rows)

    def insert_shreds(self, rows: Sequence[ShredRow]) -> None:
        """New shreds."""
        self._insert(q.SHRED, rows)

    def update_shreds(self, rows: Sequence[ShredRow]) -> None:
        """Shreds that are complete; exactly these rows must change."""
        self._update(q.SHRED, rows)

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        """A signed head; nothing where one of this size is there already."""
        self._many(q.INSERT_CHECKPOINT, [q.CHECKPOINT.values(self._org, self._row_key, row)])

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
        if not self._many(q.UPDATES[q.CUSTODY], [q.CUSTODY.values(self._org, self._row_key, row)]):
            self._insert(q.CUSTODY, [row])

    def update_scopes(self, rows: Sequence[ScopeRow]) -> None:
        """Scope keys that were wrapped anew; exactly these rows must change."""
        self._update(q.SCOPE, rows)

    def update_org(self, row: OrgRow) -> None:
        """The org's auxiliary key, wrapped anew; exactly one row must change."""
        self._update(q.ORG, [row])

    def destroy_originals(self, original_ids: Sequence[bytes]) -> None:
        """No such envelopes any more; what is not there (because it lies in objects) is no error."""
        if original_ids:
            self._many(q.DESTROY_ORIGINAL, [(self._org, one) for one in original_ids])

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
        self._many(q.INSERT_LEAF, rows)
        self._head_waits = True
        self.settle()

    def _locked(self) -> HeadRow:
        if self._head is None:
            raise StoreError("This transaction did not lock the audit log.")
        return self._head

    def settle(self) -> None:
        """The head as this transaction changed it, written; asked before the commit."""
        if self._head is not None and self._head_waits:
            self._update(q.HEAD, [self._head])
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
            return SqlReader(self._engine, connection, t.NO_ORG, b"")._one(q.SELECT_OBJECT, b"") is not None

    def uses_objects(self) -> None:
        """Remember for good that an original is about to be put outside the database."""
        with self._engine.writing(self._wait_ms, t.NO_ORG) as connection:
            writer = SqlWriter(self._engine, connection, t.NO_ORG, b"", None)
            writer._many(q.MARK_OBJECTS, [(t.NO_ORG, b"", "", 0, 0, "used", 0, 0, b"")])

    def orgs(self) -> list[str]:
        """The names of all orgs, sorted."""
        with self._engine.peeking(self._wait_ms, t.NO_ORG) as connection:
            return [name for (name,) in SqlReader(self._engine, connection, t.NO_ORG, b"")._all(q.SELECT_ORG_NAMES)]

    def unlisted_orgs(self) -> list[str]:
        """See :class:`evidence_archive.ports.Surveyable`."""
        with self._engine.peeking(self._wait_ms, t.NO_ORG) as connection:
            return sorted(
                name for (name,) in SqlReader(self._engine, connection, t.NO_ORG, b"")._all(q.SELECT_UNLISTED)
            )

    def org(self, org: str) -> OrgRow | None:
        """An org's keys; what they are is checked by :meth:`scoped`.

        Raises:
            SealBrokenError: the org was there, and its row was removed.
        """
        # One snapshot: an org that is made between two looks must not pass for one whose row was removed.
        with self._engine.reading(self._wait_ms, org) as connection:
            reader = SqlReader(self._engine, connection, org, b"")
            row = reader._one(q.SELECT_ORG)
            if row is None and reader._one(q.SELECT_HEAD) is not None:
                raise SealBrokenError(_ORG_REMOVED)
        return None if row is None else q.ORG.unchecked(row)

    def create_org(self, row: OrgRow, row_key: bytes, leaves: Sequence[Callable[[int], bytes]]) -> OrgRow:
        """The org's row, created exclusively with its log's first leaves: the loser of a race gets the winner's.

        Raises:
            SealBrokenError: the org was there, and its row was removed.
            StoreError: the row vanished meanwhile.
        """
        # Before the org, in a transaction of its own: a name without an org does no harm.
        with self._engine.writing(self._wait_ms, t.NO_ORG) as connection:
            SqlWriter(self._engine, connection, t.NO_ORG, b"", None)._many(q.NAME_ORG, [(t.NO_ORG, row.org)])
        with self._engine.writing(self._wait_ms, row.org) as connection:
            head = HeadRow(0, b"", NO_LEAF, None)
            writer = SqlWriter(self._engine, connection, row.org, row_key, head)
            if writer._many(q.CLAIM_ORG, [q.ORG.values(row.org, row_key, row)]):
                if writer._one(q.SELECT_HEAD) is not None:
                    raise SealBrokenError(_ORG_REMOVED)
                writer._insert(q.HEAD, [head])
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
            stored = SqlReader(self._engine, connection, row.org, row_key)._one(q.SELECT_ORG)
        if stored is None or q.ORG.opened(row_key, stored) != row:
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
