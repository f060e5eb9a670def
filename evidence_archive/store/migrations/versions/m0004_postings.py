"""The books of sessions: postings that are never changed and never removed, and how many are in each book.

Revision: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TEXT

from evidence_archive.store.migrations.walls import append_only, wall_by_org

revision = "0004"
down_revision = "0003"


def _integer() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the table, and count what is in it."""
    op.create_table(
        "postings",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("book", _text(), primary_key=True, nullable=False),
        sa.Column("seq", _integer(), primary_key=True, nullable=False),
        sa.Column("closed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    _count_postings()
    wall_by_org("postings")
    append_only("postings", "org", "scope_id", "book", "seq")


def _count_postings() -> None:
    """The column before the seal. A table of a server keeps its owner and grants: there it stands last."""
    added = sa.Column("books", _text(), nullable=False, server_default="")
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("sessions", added)
        return
    op.rename_table("sessions", "sessions_before")
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
        sa.Column("suspended", _text(), nullable=True),
        sa.Column("batches", _integer(), nullable=False),
        sa.Column("restores", _integer(), nullable=False),
        sa.Column("tokens_saved", _integer(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("stamp", sa.LargeBinary(), nullable=False),
        added,
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("org", "scope_id", name="uq_sessions_scope"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    names = (
        "org, session_id, scope_id, subject, dialect, tag, version, next_number, suspended, batches, restores, "
        "tokens_saved, created_at_us, stamp, seal"
    )
    op.execute(f"INSERT INTO sessions ({names}) SELECT {names} FROM sessions_before")  # noqa: S608 - our own names
    op.drop_table("sessions_before")
