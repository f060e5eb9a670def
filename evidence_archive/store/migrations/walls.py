"""Row-level security by org, for the migrations that make tables."""

from alembic import op

__all__ = ["wall_by_org"]


def wall_by_org(table: str) -> None:
    """On PostgreSQL, let a transaction meet only rows of the org it named; for the table's owner too.

    A statement that forgets its org then finds nothing and writes nothing
    (https://www.postgresql.org/docs/current/ddl-rowsecurity.html). SQLite has no such thing.

    Args:
        table: one whose first column is ``org``.
    """
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY {table}_by_org ON {table} "
        "USING (org = current_setting('evidence_archive.org', true)) "
        "WITH CHECK (org = current_setting('evidence_archive.org', true))"
    )
