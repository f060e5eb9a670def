"""Every statement there is, each carrying the org, compiled once per database.

The shapes say how a port's row lies in its table; the statements take their parameters by position.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from sqlalchemy import LargeBinary, bindparam, delete, func, insert, literal_column, select, union, update
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

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
)
from evidence_archive.store import tables as t
from evidence_archive.store.rows import Shape

__all__ = [
    "ARCHIVED",
    "BATCH",
    "CHECKPOINT",
    "CLAIM_ORG",
    "COUNT_BELOW",
    "COUNT_KEPT",
    "COUNT_POSTINGS",
    "CUSTODY",
    "DELETE_OBJECT",
    "DESTROY_ORIGINAL",
    "FIND",
    "HEAD",
    "HOLD",
    "INSERTS",
    "INSERT_CHECKPOINT",
    "INSERT_LEAF",
    "INSERT_ORIGINAL",
    "LOCK_FOUND",
    "LOCK_HEAD",
    "LOCK_SESSION",
    "MARK_OBJECTS",
    "NAME_ORG",
    "OBJECT",
    "ORG",
    "POSTING",
    "READ_BACK_ROWS",
    "RESULT",
    "SCOPE",
    "SELECT_BATCH",
    "SELECT_BATCH_BY_KEY",
    "SELECT_CHECKPOINT",
    "SELECT_CHECKPOINTS",
    "SELECT_CUSTODY",
    "SELECT_ENVELOPE",
    "SELECT_ENVELOPES",
    "SELECT_EXPIRED",
    "SELECT_HEAD",
    "SELECT_HOLDS",
    "SELECT_LAPSED",
    "SELECT_LEAVES",
    "SELECT_NAMED",
    "SELECT_OBJECT",
    "SELECT_ORG",
    "SELECT_ORG_NAMES",
    "SELECT_POSTINGS",
    "SELECT_RESULTS",
    "SELECT_SCOPE",
    "SELECT_SCOPES",
    "SELECT_SESSION",
    "SELECT_SESSIONS",
    "SELECT_SHREDS",
    "SELECT_UNLISTED",
    "SESSION",
    "SHRED",
    "STORED",
    "UPDATES",
    "Statement",
    "inserting",
    "selecting",
    "updating",
]

ORG = Shape(t.ORGS, OrgRow, holds_org=True)
SCOPE = Shape(t.SCOPES, ScopeRow, "scope_id")
SESSION = Shape(t.SESSIONS, SessionRow, "session_id")
RESULT = Shape(t.RESULTS, ResultRow, "scope_id", "number")
OBJECT = Shape(t.OBJECTS, ObjectRow, "original_id")
BATCH = Shape(t.BATCHES, BatchRow, "scope_id", "batch_id")
POSTING = Shape(t.POSTINGS, PostingRow, "scope_id", "book", "seq")
HEAD = Shape(t.AUDIT_HEADS, HeadRow)
HOLD = Shape(t.HOLDS, HoldRow, "hold_id")
SHRED = Shape(t.SHREDS, ShredRow, "shred_id")
CHECKPOINT = Shape(t.CHECKPOINTS, CheckpointRow, "size")
CUSTODY = Shape(t.CUSTODY, CustodyRow)

STORED, ARCHIVED = "stored", "archived"
READ_BACK_ROWS = 50
"""Envelopes read back by one statement; they are compared one by one, never held together."""

_S, _K, _R, _O, _P = t.SESSIONS.c, t.SCOPES.c, t.RESULTS.c, t.OBJECTS.c, t.POSTINGS.c


class Statement:
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


def selecting(table: Any, *names: str, lock: bool = False) -> Statement:
    """Rows of a table by equality of the named columns, always with the org first."""
    columns = table.c
    core = select(table).where(columns.org == bindparam("org"), *(columns[name] == bindparam(name) for name in names))
    return Statement(core.with_for_update() if lock else core, "org", *names)


# SQLite locks the whole database at BEGIN IMMEDIATE, and FOR UPDATE compiles to nothing; PostgreSQL locks these rows.
# The order is the same in every transaction, so that none waits for another in a circle: the org's audit head, if it
# is audited; then the session; then that session's key and results. Nobody writes a session's rows without its lock.
# The head is locked by a statement of its own: what follows then sees everything that its last holder committed.
LOCK_HEAD = selecting(t.AUDIT_HEADS, lock=True)
LOCK_SESSION = selecting(t.SESSIONS, "session_id", lock=True)
SELECT_SESSION = selecting(t.SESSIONS, "session_id")
SELECT_SESSIONS = Statement(
    select(t.SESSIONS)
    .where(_S.org == bindparam("org"), _S.session_id > bindparam("after"))
    .order_by(_S.session_id)
    .limit(bindparam("count")),
    "org",
    "after",
    "count",
)
SELECT_SCOPE = selecting(t.SCOPES, "scope_id")
SELECT_RESULTS = Statement(
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
FIND = Statement(_FOUND, "org", "session_id", "number")
LOCK_FOUND = Statement(_FOUND.with_for_update(), "org", "session_id", "number")
SELECT_ENVELOPE = Statement(
    select(t.ORIGINALS.c.envelope).where(
        t.ORIGINALS.c.org == bindparam("org"), t.ORIGINALS.c.original_id == bindparam("original_id")
    ),
    "org",
    "original_id",
)
SELECT_ENVELOPES = Statement(
    select(t.ORIGINALS.c.original_id, t.ORIGINALS.c.envelope).where(
        t.ORIGINALS.c.org == bindparam("org"),
        t.ORIGINALS.c.original_id.in_([bindparam(f"id_{at}", type_=LargeBinary) for at in range(READ_BACK_ROWS)]),
    ),
    "org",
    *(f"id_{at}" for at in range(READ_BACK_ROWS)),
)
SELECT_OBJECT = selecting(t.OBJECTS, "original_id")
SELECT_LAPSED = Statement(
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
SELECT_NAMED = selecting(t.RESULTS, "original_id")
SELECT_BATCH = selecting(t.BATCHES, "scope_id", "request_tag")
SELECT_BATCH_BY_KEY = selecting(t.BATCHES, "scope_id", "idempotency_key")
SELECT_POSTINGS = Statement(
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
COUNT_POSTINGS = Statement(
    select(func.count(), func.coalesce(func.max(_P.seq), 0)).where(
        _P.org == bindparam("org"), _P.scope_id == bindparam("scope_id"), _P.book == bindparam("book")
    ),
    "org",
    "scope_id",
    "book",
)
SELECT_HEAD = selecting(t.AUDIT_HEADS)
SELECT_LEAVES = Statement(
    select(t.AUDIT_LEAVES.c.seq, t.AUDIT_LEAVES.c.leaf)
    .where(t.AUDIT_LEAVES.c.org == bindparam("org"), t.AUDIT_LEAVES.c.seq >= bindparam("start"))
    .order_by(t.AUDIT_LEAVES.c.seq)
    .limit(bindparam("count")),
    "org",
    "start",
    "count",
)
SELECT_ORG = selecting(t.ORGS)
SELECT_SCOPES = Statement(
    select(t.SCOPES)
    .where(_K.org == bindparam("org"), _K.scope_id > bindparam("after"))
    .order_by(_K.scope_id)
    .limit(bindparam("count")),
    "org",
    "after",
    "count",
)
SELECT_EXPIRED = Statement(
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
SELECT_HOLDS = Statement(
    select(t.HOLDS).where(t.HOLDS.c.org == bindparam("org")).order_by(t.HOLDS.c.placed_at_us, t.HOLDS.c.hold_id),
    "org",
)
SELECT_SHREDS = Statement(
    select(t.SHREDS)
    .where(t.SHREDS.c.org == bindparam("org"))
    .order_by(t.SHREDS.c.requested_at_us, t.SHREDS.c.shred_id),
    "org",
)
SELECT_CHECKPOINTS = Statement(
    select(t.CHECKPOINTS)
    .where(t.CHECKPOINTS.c.org == bindparam("org"), t.CHECKPOINTS.c.size > bindparam("after"))
    .order_by(t.CHECKPOINTS.c.size)
    .limit(bindparam("count")),
    "org",
    "after",
    "count",
)
SELECT_CHECKPOINT = Statement(
    select(t.CHECKPOINTS)
    .where(t.CHECKPOINTS.c.org == bindparam("org"))
    .order_by(t.CHECKPOINTS.c.size.desc())
    .limit(bindparam("count")),
    "org",
    "count",
)
SELECT_CUSTODY = Statement(
    select(t.AUDIT_HEADS, t.CUSTODY)
    .join_from(t.AUDIT_HEADS, t.CUSTODY, t.AUDIT_HEADS.c.org == t.CUSTODY.c.org, isouter=True)
    .where(t.AUDIT_HEADS.c.org == bindparam("org")),
    "org",
)
COUNT_BELOW = Statement(
    select(func.count()).where(
        _K.org == bindparam("org"),
        _K.kek_version < bindparam("kek_version"),
        _K.wrapped != bindparam("nothing", type_=LargeBinary),
    ),
    "org",
    "kek_version",
    "nothing",
)
COUNT_KEPT = Statement(
    select(func.count(), func.coalesce(func.sum(_R.size_bytes), 0)).where(
        _R.org == bindparam("org"), _R.state == bindparam("archived"), _R.original_id.is_not(None)
    ),
    "org",
    "archived",
)
SELECT_ORG_NAMES = Statement(
    select(t.ORG_NAMES.c.name).where(t.ORG_NAMES.c.org == bindparam("org")).order_by(t.ORG_NAMES.c.name), "org"
)

SELECT_UNLISTED = Statement(
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


def inserting(table: Any, *, ending: str = "") -> Statement:
    """INSERT of every column, in the table's order."""
    names = [column.name for column in table.c]
    return Statement(insert(table).values({name: bindparam(name) for name in names}), *names, ending=ending)


def updating(shape: Shape[Any]) -> Statement:
    """UPDATE of every column outside the key, by key; values in the table's order."""
    columns = shape.table.c
    key = ("org", *shape.key)
    core = (
        update(shape.table)
        .where(*(columns[name] == bindparam(f"key_{name}") for name in key))
        .values({name: bindparam(name) for name in (*shape.fields, "seal") if name not in key})
    )
    names = [f"key_{column.name}" if column.name in key else column.name for column in columns]
    return Statement(core, *names)


INSERTS = {
    shape: inserting(shape.table)
    for shape in (SCOPE, SESSION, RESULT, OBJECT, BATCH, POSTING, HEAD, HOLD, SHRED, CUSTODY)
}
UPDATES = {shape: updating(shape) for shape in (ORG, SCOPE, SESSION, RESULT, OBJECT, HEAD, HOLD, SHRED, CUSTODY)}
INSERT_CHECKPOINT = inserting(t.CHECKPOINTS, ending=" ON CONFLICT DO NOTHING")
NAME_ORG = inserting(t.ORG_NAMES, ending=" ON CONFLICT DO NOTHING")
DESTROY_ORIGINAL = Statement(
    delete(t.ORIGINALS).where(
        t.ORIGINALS.c.org == bindparam("org"), t.ORIGINALS.c.original_id == bindparam("original_id")
    ),
    "org",
    "original_id",
)
MARK_OBJECTS = inserting(t.OBJECTS, ending=" ON CONFLICT DO NOTHING")
DELETE_OBJECT = Statement(
    delete(t.OBJECTS).where(_O.org == bindparam("org"), _O.original_id == bindparam("original_id")),
    "org",
    "original_id",
)
CLAIM_ORG = inserting(t.ORGS, ending=" ON CONFLICT DO NOTHING")
"""Waits for another creator's end; changes no row where that one made the org."""
INSERT_LEAF = inserting(t.AUDIT_LEAVES)
INSERT_ORIGINAL = inserting(t.ORIGINALS)
