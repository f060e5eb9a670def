"""Originals outside the database: intents, and where their objects are.

Revision: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TEXT

from evidence_archive.store.migrations.walls import wall_by_org

revision = "0002"
down_revision = "0001"


def _integer() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the table of objects."""
    op.create_table(
        "objects",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("original_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("key", _text(), nullable=False),
        sa.Column("size_bytes", _integer(), nullable=False),
        sa.Column("part_bytes", _integer(), nullable=False),
        sa.Column("state", _text(), nullable=False),
        sa.Column("expires_at_us", _integer(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_objects_lapsed", "objects", ["org", "state", "expires_at_us"])
    op.create_index("ix_results_original", "results", ["org", "original_id"])
    wall_by_org("objects")
