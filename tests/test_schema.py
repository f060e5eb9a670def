"""The schema: migrations give exactly the tables the code reads, and a newer database is refused."""

import dataclasses
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Table, create_engine
from sqlmodel import SQLModel

from evidence_archive import Archive, UnsupportedVersionError, ports
from evidence_archive.errors import StoreError
from evidence_archive.store import migrations, open_store, schema, tables

TABLES = sorted(SQLModel.metadata.tables.values(), key=lambda table: table.name)
ROWS = {
    tables.ORGS: (ports.OrgRow, True),
    tables.SCOPES: (ports.ScopeRow, False),
    tables.SESSIONS: (ports.SessionRow, False),
    tables.RESULTS: (ports.ResultRow, False),
    tables.OBJECTS: (ports.ObjectRow, False),
    tables.BATCHES: (ports.BatchRow, False),
    tables.POSTINGS: (ports.PostingRow, False),
    tables.AUDIT_HEADS: (ports.HeadRow, False),
}
VERSIONS = Path(migrations.__file__).parent / "versions"


def migrated(folder: Path) -> Path:
    path = folder / "evidence.db"
    open_store(f"sqlite:///{path}").close()
    return path


def described(path: Path) -> dict[str, object]:
    """Every table with its columns, keys, options and indexes, as SQLite itself tells them."""
    with sqlite3.connect(path) as connection:
        found: dict[str, object] = {}
        for _, name, _, _, without_rowid, strict in connection.execute("PRAGMA table_list").fetchall():
            if name.startswith(("sqlite_", "evidence_archive_version")):
                continue
            indexes = []
            for _, index, unique, origin, _ in connection.execute(f"PRAGMA index_list({name})").fetchall():
                columns = tuple(row[2] for row in connection.execute(f"PRAGMA index_info({index})"))
                indexes.append((index if origin == "c" else origin, unique, columns))
            columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
            found[name] = (columns, without_rowid, strict, sorted(indexes))
    connection.close()
    return found


def test_the_migrations_make_exactly_the_tables_of_the_metadata(tmp_path: Path) -> None:
    path = migrated(tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path}/straight.db")
    SQLModel.metadata.create_all(engine)
    assert described(path) == described(tmp_path / "straight.db")
    engine.dispose()

    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "evidence_archive_version"})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()


def test_a_column_that_a_migration_forgot_would_be_found(tmp_path: Path) -> None:
    path = migrated(tmp_path)
    before = described(path)
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE sessions ADD COLUMN forgotten TEXT")
    connection.close()
    assert described(path) != before


def test_every_table_is_strict(tmp_path: Path) -> None:
    strict = {name: facts[2] for name, facts in described(migrated(tmp_path)).items()}  # type: ignore[index]
    assert strict == dict.fromkeys(strict, 1)
    assert set(strict) == {table.name for table in TABLES}


def test_migration_files_are_numbered_in_a_row_and_the_newest_is_the_one_the_code_knows() -> None:
    names = sorted(path.name for path in VERSIONS.glob("m*.py"))
    numbers = []
    previous = None
    for name in names:
        match = re.fullmatch(r"m(\d{4})_[a-z0-9_]+\.py", name)
        assert match, name
        numbers.append(match[1])
        text = (VERSIONS / name).read_text()
        assert f'revision = "{match[1]}"' in text
        assert f"down_revision = {previous!r}".replace("'", '"') in text
        previous = match[1]
    assert numbers == [f"{at:04}" for at in range(1, len(numbers) + 1)]
    assert numbers[-1] == schema.SCHEMA_REVISION
    assert tuple(numbers) == schema._KNOWN


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_primary_key_starts_with_the_org(table: Table) -> None:
    assert next(iter(table.primary_key.columns)).name == "org"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_index_and_unique_constraint_starts_with_the_org(table: Table) -> None:
    for index in table.indexes:
        assert next(iter(index.columns)).name == "org"
    for constraint in table.constraints:
        if not isinstance(constraint, CheckConstraint):
            assert next(iter(constraint.columns)).name == "org"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_under_the_row_seal_or_says_why_not(table: Table) -> None:
    sealed = set(tables.sealed_columns(table))
    for column in table.c:
        reason = column.info.get("unsealed_because")
        covered = column.name in sealed or (not sealed and column.primary_key)
        assert covered != bool(reason), f"{table.name}.{column.name}"


def test_tables_without_a_seal_hold_only_a_key_and_at_most_one_value_that_is_bound_elsewhere() -> None:
    without = {table.name: [column.name for column in table.c] for table in TABLES if "seal" not in table.c}
    assert without == {
        "originals": ["org", "original_id", "envelope"],
        "audit_leaves": ["org", "seq", "leaf"],
        "org_names": ["org", "name"],
    }


@pytest.mark.parametrize("table", ROWS, ids=lambda table: table.name)
def test_the_rows_of_the_ports_have_the_columns_of_their_table_in_order(table: Table) -> None:
    row, holds_org = ROWS[table]
    fields = [field.name for field in dataclasses.fields(row)]
    columns = [column.name for column in table.c]
    assert columns == [*([] if holds_org else ["org"]), *fields, "seal"]


@pytest.mark.parametrize("revision", ["0005", "9999", "something else"])
def test_a_database_that_a_newer_version_wrote_is_refused_and_left_alone(tmp_path: Path, revision: str) -> None:
    path = migrated(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE evidence_archive_version SET version_num = ?", (revision,))
    connection.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedVersionError, match="upgrade the library"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_opening_an_existing_database_again_writes_nothing(tmp_path: Path) -> None:
    path = migrated(tmp_path)
    before = path.read_bytes()
    open_store(f"sqlite:///{path}").close()
    assert path.read_bytes() == before


def test_a_migration_that_fails_half_way_leaves_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evidence_archive.store.migrations.versions import m0001_first_schema

    original = m0001_first_schema.op.create_table
    made = []

    def failing(name: str, *columns: object, **options: object) -> object:
        if name == "batches":
            raise OSError("made up")
        made.append(name)
        return original(name, *columns, **options)

    monkeypatch.setattr("alembic.op.create_table", failing)
    path = tmp_path / "evidence.db"
    with pytest.raises(OSError, match="made up"):
        open_store(f"sqlite:///{path}")
    assert made, "the migration has to have begun"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    monkeypatch.undo()
    open_store(f"sqlite:///{path}").close()


def test_a_table_of_somebody_else_is_a_typed_error_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "evidence.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE batches (theirs TEXT)")
    connection.close()
    with pytest.raises(StoreError):
        open_store(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("batches",)]
    connection.close()


_OPENING = """
import sys
from evidence_archive.store import open_store
sys.stdin.readline()
open_store(sys.argv[1], wait_ms=20_000).close()
"""


def test_processes_that_race_to_open_first_make_one_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/evidence.db"
    racers = [
        subprocess.Popen([sys.executable, "-c", _OPENING, url], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    ended = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    for racer in racers:
        _, stderr = racer.communicate(timeout=60)
        ended.append((racer.returncode, stderr))
    assert ended == [(0, b"")] * 4
    straight = tmp_path / "straight"
    straight.mkdir()
    assert described(tmp_path / "evidence.db") == described(migrated(straight))


def test_an_archive_refuses_a_newer_database_too(tmp_path: Path) -> None:
    from evidence_archive.keys import new_keys

    new_keys(tmp_path / "evidence.keys")
    path = migrated(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE evidence_archive_version SET version_num = '0005'")
    connection.close()
    with pytest.raises(UnsupportedVersionError):
        Archive.open(f"sqlite:///{path}", keys=tmp_path / "evidence.keys")
