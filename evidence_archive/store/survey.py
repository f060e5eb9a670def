"""Rows by their key alone, whatever is in them: what a verification reads, with the keys or without."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import bindparam, select, tuple_

from evidence_archive.errors import SealBrokenError
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
    Seen,
    SessionRow,
    ShredRow,
)
from evidence_archive.store import statements as q
from evidence_archive.store import tables as t
from evidence_archive.store.rows import Shape
from evidence_archive.store.sql import SqlReader

__all__ = ["SqlSurvey"]

R = TypeVar("R")

_S, _R, _O = t.SESSIONS.c, t.RESULTS.c, t.OBJECTS.c

_SHAPES: dict[type, Shape[Any]] = {
    OrgRow: q.ORG,
    ScopeRow: q.SCOPE,
    SessionRow: q.SESSION,
    ResultRow: q.RESULT,
    ObjectRow: q.OBJECT,
    BatchRow: q.BATCH,
    PostingRow: q.POSTING,
    HeadRow: q.HEAD,
    HoldRow: q.HOLD,
    ShredRow: q.SHRED,
    CheckpointRow: q.CHECKPOINT,
    CustodyRow: q.CUSTODY,
}
_SELECT_ONE = {shape: q.selecting(shape.table, *shape.key) for shape in _SHAPES.values()}


def _paging(table: Any, *conditions: Any, by: Sequence[str], after: bool = False, only: Sequence[str] = ()) -> Any:
    """Rows of an org by key, from behind a key and some more on."""
    columns = table.c
    chosen = [columns[name] for name in only] or [table]
    behind = (columns[by[0]] > bindparam("after"),) if after else ()
    core = (
        select(*chosen)
        .where(columns.org == bindparam("org"), *behind, *conditions)
        .order_by(*(columns[name] for name in by))
        .limit(bindparam("count"))
        .offset(bindparam("skip"))
    )
    return q.Statement(core, "org", *(("after",) if after else ()), "count", "skip")


def _no_session(table: Any) -> Any:
    return ~select(_S.org).where(_S.org == table.c.org, _S.scope_id == table.c.scope_id).exists()


def _no_result(table: Any) -> Any:
    return ~select(_R.org).where(_R.org == table.c.org, _R.original_id == table.c.original_id).exists()


_PAGES: dict[Shape[Any], Any] = {
    shape: (
        _paging(shape.table, by=shape.key),
        _paging(shape.table, by=shape.key, after=True),
    )
    for shape in (q.SESSION, q.SCOPE, q.OBJECT, q.HOLD, q.SHRED, q.CHECKPOINT)
}
_OF_SCOPE: dict[Shape[Any], Any] = {
    shape: q.Statement(
        select(shape.table)
        .where(shape.table.c.org == bindparam("org"), shape.table.c.scope_id == bindparam("scope_id"))
        .order_by(*(shape.table.c[name] for name in shape.key)),
        "org",
        "scope_id",
    )
    for shape in (q.RESULT, q.BATCH)
}
_POSTINGS_AFTER = q.Statement(
    select(t.POSTINGS)
    .where(
        t.POSTINGS.c.org == bindparam("org"),
        t.POSTINGS.c.scope_id == bindparam("scope_id"),
        tuple_(t.POSTINGS.c.book, t.POSTINGS.c.seq) > tuple_(bindparam("book"), bindparam("seq")),
    )
    .order_by(t.POSTINGS.c.book, t.POSTINGS.c.seq)
    .limit(bindparam("count")),
    "org",
    "scope_id",
    "book",
    "seq",
    "count",
)
_STRAYS: dict[Shape[Any], Any] = {
    **{
        shape: _paging(shape.table, _no_session(shape.table), by=shape.key)
        for shape in (q.SCOPE, q.RESULT, q.BATCH, q.POSTING)
    },
    q.OBJECT: _paging(t.OBJECTS, _O.state == q.STORED, _no_result(t.OBJECTS), by=q.OBJECT.key),
}
_STRAY_ORIGINALS = _paging(t.ORIGINALS, _no_result(t.ORIGINALS), by=["original_id"], only=["original_id"])
_LEAVES_AFTER = _paging(t.AUDIT_LEAVES, by=["seq"], after=True, only=["seq", "leaf"])


class SqlSurvey:
    """One org's rows as they lie there; see :class:`evidence_archive.ports.Survey`."""

    def __init__(self, reader: SqlReader, row_key: bytes | None) -> None:
        self._all, self._one = reader._all, reader._one
        self._row_key = row_key
        self.in_keeping = reader.in_keeping

    def _seen(self, shape: Shape[Any], stored: Sequence[Any]) -> Seen[Any]:
        named = dict(zip((column.name for column in shape.table.c), stored, strict=True))
        try:
            row = shape.unchecked(stored)
        except SealBrokenError:
            return Seen(named, None, None if self._row_key is None else False)
        return Seen(named, row, None if self._row_key is None else shape.is_sealed(self._row_key, stored))

    def one(self, kind: type[R], *key: object) -> Seen[R] | None:
        """The row with this key, which the org begins and is not part of."""
        shape = _SHAPES[kind]
        stored = self._one(_SELECT_ONE[shape], *key)
        return None if stored is None else self._seen(shape, stored)

    def rows(self, kind: type[R], after: R | None, skip: int, count: int) -> list[Seen[R]]:
        """Up to ``count`` rows behind this row and ``skip`` more, by their key; not of results and batches."""
        shape = _SHAPES[kind]
        first, behind = _PAGES[shape]
        if after is None:
            found = self._all(first, count, skip)
        else:
            found = self._all(behind, getattr(after, shape.key[0]), count, skip)
        return [self._seen(shape, stored) for stored in found]

    def of_scope(self, kind: type[R], scope_id: bytes) -> list[Seen[R]]:
        """All results or batches of a session, by their key."""
        shape = _SHAPES[kind]
        return [self._seen(shape, stored) for stored in self._all(_OF_SCOPE[shape], scope_id)]

    def postings(self, scope_id: bytes, after: tuple[str, int], count: int) -> list[Seen[PostingRow]]:
        """Up to ``count`` postings of a session behind a book and sequence number, in that order."""
        rows = self._all(_POSTINGS_AFTER, scope_id, *after, count)
        return [self._seen(q.POSTING, stored) for stored in rows]

    def strays(self, kind: type[R], skip: int, count: int) -> list[Seen[R]]:
        """Scope keys, results, batches and postings without a session, and places of objects that no result names."""
        shape = _SHAPES[kind]
        return [self._seen(shape, stored) for stored in self._all(_STRAYS[shape], count, skip)]

    def stray_originals(self, skip: int, count: int) -> list[object]:
        """The ids of envelopes that no result names."""
        return [original_id for (original_id,) in self._all(_STRAY_ORIGINALS, count, skip)]

    def envelope(self, original_id: bytes) -> object:
        """The stored envelope, ``None`` for none; not even its type is checked."""
        row = self._one(q.SELECT_ENVELOPE, original_id)
        return None if row is None else row[0]

    def leaves(self, after: int, count: int) -> list[tuple[object, object]]:
        """Up to ``count`` audit leaves behind a sequence number, as ``(seq, leaf)``."""
        return [(seq, leaf) for seq, leaf in self._all(_LEAVES_AFTER, after, count, 0)]
