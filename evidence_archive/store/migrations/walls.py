"""Row-level security by org, and tables that only grow: what migrations put around tables."""

from alembic import op

__all__ = ["append_only", "wall_by_org"]


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


def append_only(table: str, *key: str) -> None:
    """Let rows of a table be inserted only: whoever changes or removes one gets an error, and nothing is changed.

    On PostgreSQL this holds for ``TRUNCATE`` too. Whoever owns the table can take the triggers away; for that reason
    what is stored is also sealed, counted and in the audit log
    (https://www.postgresql.org/docs/current/sql-createtrigger.html, https://sqlite.org/lang_createtrigger.html).

    Args:
        table: whose rows stay.
        key: its primary key. SQLite asks no trigger about a row that ``INSERT OR REPLACE`` removes, so that a row
            with a key that is taken is refused as well.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE FUNCTION {table}_only_grow() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{table} only grow' USING ERRCODE = 'restrict_violation'; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_only_grow BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_only_grow()"
        )
        return
    for what in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_only_grow_{what.lower()} BEFORE {what} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} only grow'); END"
        )
    taken = " AND ".join(f"{name} = NEW.{name}" for name in key)
    there = f"EXISTS (SELECT 1 FROM {table} WHERE {taken})"  # noqa: S608 - our own names
    op.execute(
        f"CREATE TRIGGER {table}_only_grow_insert BEFORE INSERT ON {table} WHEN {there} "
        f"BEGIN SELECT RAISE(ABORT, '{table} only grow'); END"
    )
