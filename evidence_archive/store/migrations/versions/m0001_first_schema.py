"""The first schema: orgs, keys, sessions, results, originals, batches, the audit log.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TEXT

from evidence_archive.store.migrations.walls import wall_by_org

revision = "0001"
down_revision = None


def _integer() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "orgs",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("deployment", sa.LargeBinary(), nullable=False),
        sa.Column("aux_wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("kek_version", _integer(), nullable=False),
        sa.Column("kek_fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("generation", _integer(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scope_keys",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("kek_version", _integer(), nullable=False),
        sa.Column("kek_fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("generation", _integer(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sessions",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("session_id", _text(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), nullable=False),
        sa.Column("subject", _text(), nullable=False),
        sa.Column("dialect", _text(), nullable=False),
        sa.Column("tag", _text(), nullable=False),
        sa.Column("version", _integer(), nullable=False),
        sa.Column("next_number", _integer(), nullable=False),
        sa.Column("suspended", _text()),
        sa.Column("batches", _integer(), nullable=False),
        sa.Column("restores", _integer(), nullable=False),
        sa.Column("tokens_saved", _integer(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("stamp", sa.LargeBinary(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("org", "scope_id", name="uq_sessions_scope"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "results",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("number", _integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("version", _integer(), nullable=False),
        sa.Column("seen", _integer(), nullable=False),
        sa.Column("call_id", sa.LargeBinary(), nullable=False),
        sa.Column("tool_name", sa.LargeBinary(), nullable=False),
        sa.Column("result_tool_name", sa.LargeBinary()),
        sa.Column("own", _text()),
        sa.Column("kind", _text()),
        sa.Column("sensitivity", _text(), nullable=False),
        sa.Column("media_type", _text(), nullable=False),
        sa.Column("size_chars", _integer(), nullable=False),
        sa.Column("size_bytes", _integer(), nullable=False),
        sa.Column("tokens", _integer(), nullable=False),
        sa.Column("labelled", _integer(), nullable=False),
        sa.Column("observed_at_us", _integer(), nullable=False),
        sa.Column("observed_by", _text(), nullable=False),
        sa.Column("content_tag", sa.LargeBinary(), nullable=False),
        sa.Column("labelled_tag", sa.LargeBinary()),
        sa.Column("origin", _integer()),
        sa.Column("part", sa.LargeBinary()),
        sa.Column("state", _text(), nullable=False),
        sa.Column("note_tag", sa.LargeBinary()),
        sa.Column("rendering", _text()),
        sa.Column("live_ask", _text()),
        sa.Column("note_tokens", _integer(), nullable=False),
        sa.Column("batch_id", sa.LargeBinary()),
        sa.Column("original_id", sa.LargeBinary()),
        sa.Column("dek_id", sa.LargeBinary()),
        sa.Column("envelope_sha256", sa.LargeBinary()),
        sa.Column("sealed_size", _integer()),
        sa.Column("closed", sa.LargeBinary()),
        sa.Column("archived_at_us", _integer()),
        sa.Column("retention_until_us", _integer()),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_results_version", "results", ["org", "scope_id", "version"])
    op.create_table(
        "originals",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("original_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "batches",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("batch_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("request_tag", sa.LargeBinary(), nullable=False),
        sa.Column("idempotency_key", _text()),
        sa.Column("receipt", _text(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("org", "scope_id", "idempotency_key", name="uq_batches_idempotency"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_batches_request", "batches", ["org", "scope_id", "request_tag"])
    op.create_table(
        "audit_heads",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("size", _integer(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.Column("last_leaf_hash", sa.LargeBinary(), nullable=False),
        sa.Column("policy_digest", _text()),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit_leaves",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("seq", _integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    for table in ("orgs", "scope_keys", "sessions", "results", "originals", "batches", "audit_heads", "audit_leaves"):
        wall_by_org(table)
