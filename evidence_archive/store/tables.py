"""The tables, and which of their columns a row seal covers.

Every primary key starts with ``org``, so that no row is ever found without it. The covered columns are read off this
metadata: a column is covered unless it declares ``unsealed_because``; the seal column itself is neither.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import TEXT
from sqlmodel import Field, SQLModel

__all__ = [
    "AUDIT_HEADS",
    "AUDIT_LEAVES",
    "BATCHES",
    "CHECKPOINTS",
    "CUSTODY",
    "HOLDS",
    "NO_ORG",
    "OBJECTS",
    "ORGS",
    "ORG_NAMES",
    "ORIGINALS",
    "POSTINGS",
    "RESULTS",
    "SCOPES",
    "SESSIONS",
    "SHREDS",
    "AuditHead",
    "AuditLeaf",
    "Batch",
    "CheckpointRecord",
    "CustodyRecord",
    "Hold",
    "ObjectRecord",
    "Org",
    "OrgName",
    "Original",
    "Posting",
    "Result",
    "ScopeKey",
    "SessionRecord",
    "Shred",
    "sealed_columns",
]


NO_ORG = "\x01"
"""No org can have this name. Its one row in the table of objects says that others may have some, and the names of all
orgs are under it: row-level security hides those."""


def _text(*, key: bool = False, null: bool = False) -> Any:
    # By code points, as SQLite orders and compares, whatever the locale of the database is.
    kind = Text().with_variant(TEXT(collation="C"), "postgresql")
    return Field(sa_column=Column(kind, primary_key=key, nullable=null))


def _bytes(*, key: bool = False, null: bool = False, unsealed_because: str | None = None) -> Any:
    info = {"unsealed_because": unsealed_because} if unsealed_because else {}
    return Field(sa_column=Column(LargeBinary, primary_key=key, nullable=null, info=info))


def _int(*, key: bool = False, null: bool = False, unsealed_because: str | None = None) -> Any:
    info = {"unsealed_because": unsealed_because} if unsealed_because else {}
    return Field(
        sa_column=Column(
            BigInteger().with_variant(Integer, "sqlite"),
            primary_key=key,
            nullable=null,
            autoincrement=False,
            info=info,
        )
    )


def _added_int() -> Any:
    """A column that a migration added to sealed rows: 0 in those, and left out of the seal while it is."""
    kind = BigInteger().with_variant(Integer, "sqlite")
    return Field(sa_column=Column(kind, nullable=False, server_default="0", info={"unsealed_while": 0}))


def _added_text() -> Any:
    kind = Text().with_variant(TEXT(collation="C"), "postgresql")
    return Field(sa_column=Column(kind, nullable=False, server_default="", info={"unsealed_while": ""}))


_IS_SEAL = "it is the seal"
_STRICT = {"sqlite_strict": True, "sqlite_with_rowid": False}
_STRICT_ROWID = {"sqlite_strict": True}


class Org(SQLModel, table=True):
    """An org, its random deployment id and its wrapped auxiliary key."""

    __tablename__ = "orgs"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    deployment: bytes = _bytes()
    aux_wrapped: bytes = _bytes()
    kek_version: int = _int()
    kek_fingerprint: bytes = _bytes()
    generation: int = _int()
    created_at_us: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class ScopeKey(SQLModel, table=True):
    """A session's key, wrapped under the org's key-encryption key."""

    __tablename__ = "scope_keys"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    scope_id: bytes = _bytes(key=True)
    wrapped: bytes = _bytes()
    kek_version: int = _int()
    kek_fingerprint: bytes = _bytes()
    generation: int = _int()
    created_at_us: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class SessionRecord(SQLModel, table=True):
    """A session: owner, counters, suspension."""

    __tablename__ = "sessions"
    __table_args__ = (UniqueConstraint("org", "scope_id", name="uq_sessions_scope"), _STRICT)
    org: str = _text(key=True)
    session_id: str = _text(key=True)
    scope_id: bytes = _bytes()
    subject: str = _text()
    dialect: str = _text()
    tag: str = _text()
    version: int = _int()
    next_number: int = _int()
    suspended: str | None = _text(null=True)
    batches: int = _int()
    restores: int = _int()
    tokens_saved: int = _int()
    created_at_us: int = _int()
    stamp: bytes = _bytes()
    books: str = _added_text()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class Result(SQLModel, table=True):
    """A tool result; once archived, also its sealed key and note."""

    __tablename__ = "results"
    __table_args__ = (
        Index("ix_results_version", "org", "scope_id", "version"),
        Index("ix_results_original", "org", "original_id", unique=True),
        Index("ix_results_retention", "org", "retention_until_us"),
        _STRICT,
    )
    org: str = _text(key=True)
    scope_id: bytes = _bytes(key=True)
    number: int = _int(key=True)
    version: int = _int()
    seen: int = _int()
    call_id: bytes = _bytes()
    tool_name: bytes = _bytes()
    result_tool_name: bytes | None = _bytes(null=True)
    own: str | None = _text(null=True)
    kind: str | None = _text(null=True)
    sensitivity: str = _text()
    media_type: str = _text()
    size_chars: int = _int()
    size_bytes: int = _int()
    tokens: int = _int()
    labelled: int = _int()
    observed_at_us: int = _int()
    observed_by: str = _text()
    content_tag: bytes = _bytes()
    labelled_tag: bytes | None = _bytes(null=True)
    origin: int | None = _int(null=True)
    part: bytes | None = _bytes(null=True)
    state: str = _text()
    note_tag: bytes | None = _bytes(null=True)
    rendering: str | None = _text(null=True)
    live_ask: str | None = _text(null=True)
    note_tokens: int = _int()
    batch_id: bytes | None = _bytes(null=True)
    original_id: bytes | None = _bytes(null=True)
    dek_id: bytes | None = _bytes(null=True)
    envelope_sha256: bytes | None = _bytes(null=True)
    sealed_size: int | None = _int(null=True)
    closed: bytes | None = _bytes(null=True)
    archived_at_us: int | None = _int(null=True)
    retention_until_us: int | None = _int(null=True)
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class Original(SQLModel, table=True):
    """The envelope of one original; with rowids, so that large values stay out of the key's pages."""

    __tablename__ = "originals"
    __table_args__ = _STRICT_ROWID
    org: str = _text(key=True)
    original_id: bytes = _bytes(key=True)
    envelope: bytes = _bytes(
        unsealed_because="written once; its digest is in the result's sealed row and its context binds org and place"
    )


class ObjectRecord(SQLModel, table=True):
    """The objects of an envelope that lies outside the database: first an intent, then where they are."""

    __tablename__ = "objects"
    __table_args__ = (Index("ix_objects_lapsed", "org", "state", "expires_at_us"), _STRICT)
    org: str = _text(key=True)
    original_id: bytes = _bytes(key=True)
    key: str = _text()
    size_bytes: int = _int()
    part_bytes: int = _int()
    state: str = _text()
    expires_at_us: int = _int()
    created_at_us: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class Batch(SQLModel, table=True):
    """An accepted batch and its receipt."""

    __tablename__ = "batches"
    __table_args__ = (
        Index("ix_batches_request", "org", "scope_id", "request_tag"),
        UniqueConstraint("org", "scope_id", "idempotency_key", name="uq_batches_idempotency"),
        _STRICT,
    )
    org: str = _text(key=True)
    scope_id: bytes = _bytes(key=True)
    batch_id: bytes = _bytes(key=True)
    request_tag: bytes = _bytes()
    idempotency_key: str | None = _text(null=True)
    receipt: str = _text()
    created_at_us: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class Posting(SQLModel, table=True):
    """Something that a session put down in one of its books; triggers refuse every change and every removal."""

    __tablename__ = "postings"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    scope_id: bytes = _bytes(key=True)
    book: str = _text(key=True)
    seq: int = _int(key=True)
    closed: bytes = _bytes()
    created_at_us: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class AuditHead(SQLModel, table=True):
    """The head of an org's log: where its writers queue."""

    __tablename__ = "audit_heads"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    size: int = _int()
    frontier: bytes = _bytes()
    last_leaf_hash: bytes = _bytes()
    policy_digest: str | None = _text(null=True)
    custody_version: int = _added_int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class AuditLeaf(SQLModel, table=True):
    """One decision, as the canonical bytes that were hashed."""

    __tablename__ = "audit_leaves"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    seq: int = _int(key=True)
    leaf: bytes = _bytes(unsealed_because="hashed into the sealed head of the log")


class Hold(SQLModel, table=True):
    """A legal hold on an org, a session or an original; released ones stay."""

    __tablename__ = "holds"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    hold_id: bytes = _bytes(key=True)
    scope_id: bytes | None = _bytes(null=True)
    number: int | None = _int(null=True)
    reason: bytes = _bytes()
    placed_by: str = _text()
    placed_at_us: int = _int()
    released_by: str | None = _text(null=True)
    released_at_us: int | None = _int(null=True)
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class Shred(SQLModel, table=True):
    """A session or an original whose keys were destroyed here; complete when no older key version opens a backup."""

    __tablename__ = "shreds"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    shred_id: bytes = _bytes(key=True)
    scope_id: bytes | None = _bytes(null=True)
    number: int | None = _int(null=True)
    kek_version: int = _int()
    requested_by: str = _text()
    requested_at_us: int = _int()
    completed_at_us: int | None = _int(null=True)
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class CheckpointRecord(SQLModel, table=True):
    """A signed head of an org's log."""

    __tablename__ = "checkpoints"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    size: int = _int(key=True)
    note: str = _text()
    frontier: bytes = _bytes()
    created_at_us: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class CustodyRecord(SQLModel, table=True):
    """What an org has in keeping, and below which version no wrapped key is believed.

    The head of the log holds its version, so that an older row is not believed.
    """

    __tablename__ = "custody"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    kek_floor: int = _int()
    originals: int = _int()
    original_bytes: int = _int()
    holds: int = _int()
    version: int = _int()
    seal: bytes = _bytes(unsealed_because=_IS_SEAL)


class OrgName(SQLModel, table=True):
    """The name of an org, under no org: row-level security hides the orgs from each other.

    No org's key could seal it; it says which orgs to look at, and what is found there is sealed.
    """

    __tablename__ = "org_names"
    __table_args__ = _STRICT
    org: str = _text(key=True)
    name: str = _text(key=True)


def _table(model: type[SQLModel]) -> Table:
    table = model.__table__  # type: ignore[attr-defined]  # SQLModel adds it to classes declared with table=True
    assert isinstance(table, Table)  # noqa: S101 - narrows the type, cannot be false
    return table


ORGS = _table(Org)
SCOPES = _table(ScopeKey)
SESSIONS = _table(SessionRecord)
RESULTS = _table(Result)
ORIGINALS = _table(Original)
OBJECTS = _table(ObjectRecord)
BATCHES = _table(Batch)
POSTINGS = _table(Posting)
AUDIT_HEADS = _table(AuditHead)
AUDIT_LEAVES = _table(AuditLeaf)
HOLDS = _table(Hold)
SHREDS = _table(Shred)
CHECKPOINTS = _table(CheckpointRecord)
CUSTODY = _table(CustodyRecord)
ORG_NAMES = _table(OrgName)


def sealed_columns(table: Table) -> tuple[str, ...]:
    """The columns a row seal covers, in the table's order; empty when the table has no seal.

    Args:
        table: one of this module's tables.
    """
    if "seal" not in table.c:
        return ()
    return tuple(column.name for column in table.c if "unsealed_because" not in column.info)
