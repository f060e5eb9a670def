"""Originals outside the database: intents, and where their objects are.

Revision: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def _integer() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table of objects."""
    op.create_table(
        "objects",
        sa.Column("org", sa.Text(), primary_key=True, nullable=False),
        sa.Column("original_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("size_bytes", _integer(), nullable=False),
        sa.Column("part_bytes", _integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("expires_at_us", _integer(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_objects_lapsed", "objects", ["org", "state", "expires_at_us"])
