"""Holds, shreds, checkpoints, the version floor and the use of each org, and the names of all orgs.

Revision: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TEXT

from evidence_archive.store.migrations.walls import wall_by_org

revision = "0003"
down_revision = "0002"

_NO_ORG = "\x01"


def _integer() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the tables, and list the orgs that are there."""
    op.create_table(
        "holds",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("hold_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), nullable=True),
        sa.Column("number", _integer(), nullable=True),
        sa.Column("reason", sa.LargeBinary(), nullable=False),
        sa.Column("placed_by", _text(), nullable=False),
        sa.Column("placed_at_us", _integer(), nullable=False),
        sa.Column("released_by", _text(), nullable=True),
        sa.Column("released_at_us", _integer(), nullable=True),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "shreds",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("shred_id", sa.LargeBinary(), primary_key=True, nullable=False),
        sa.Column("scope_id", sa.LargeBinary(), nullable=True),
        sa.Column("number", _integer(), nullable=True),
        sa.Column("kek_version", _integer(), nullable=False),
        sa.Column("requested_by", _text(), nullable=False),
        sa.Column("requested_at_us", _integer(), nullable=False),
        sa.Column("completed_at_us", _integer(), nullable=True),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "checkpoints",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("size", _integer(), primary_key=True, nullable=False),
        sa.Column("note", _text(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.Column("created_at_us", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "custody",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("kek_floor", _integer(), nullable=False),
        sa.Column("originals", _integer(), nullable=False),
        sa.Column("original_bytes", _integer(), nullable=False),
        sa.Column("holds", _integer(), nullable=False),
        sa.Column("version", _integer(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "org_names",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("name", _text(), primary_key=True, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    _add_custody_version()
    # One result names an original. SQLite takes an index that is not unique for no better than the org alone.
    op.drop_index("ix_results_original", "results")
    op.create_index("ix_results_original", "results", ["org", "original_id"], unique=True)
    op.create_index("ix_results_retention", "results", ["org", "retention_until_us"])
    _list_orgs()
    for table in ("holds", "shreds", "checkpoints", "custody", "org_names"):
        wall_by_org(table)


def _add_custody_version() -> None:
    """The column before the seal. A table of a server keeps its owner and grants: there it stands last."""
    added = sa.Column("custody_version", _integer(), nullable=False, server_default="0")
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("audit_heads", added)
        return
    op.rename_table("audit_heads", "audit_heads_before")
    op.create_table(
        "audit_heads",
        sa.Column("org", _text(), primary_key=True, nullable=False),
        sa.Column("size", _integer(), nullable=False),
        sa.Column("frontier", sa.LargeBinary(), nullable=False),
        sa.Column("last_leaf_hash", sa.LargeBinary(), nullable=False),
        sa.Column("policy_digest", _text(), nullable=True),
        added,
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    names = "org, size, frontier, last_leaf_hash, policy_digest, seal"
    op.execute(f"INSERT INTO audit_heads ({names}) SELECT {names} FROM audit_heads_before")  # noqa: S608 - our own names
    op.drop_table("audit_heads_before")


def _list_orgs() -> None:
    """The names of the orgs that are there; their owner may see all of them for as long as this transaction lasts."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    if is_postgresql:
        op.execute("ALTER TABLE orgs NO FORCE ROW LEVEL SECURITY")
    orgs = sa.table("orgs", sa.column("org"))
    names = sa.table("org_names", sa.column("org"), sa.column("name"))
    listed = sa.select(sa.literal(_NO_ORG, sa.Text()), orgs.c.org)
    op.execute(sa.insert(names).from_select(["org", "name"], listed))
    if is_postgresql:
        op.execute("ALTER TABLE orgs FORCE ROW LEVEL SECURITY")
