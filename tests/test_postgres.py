"""PostgreSQL: the wall by org, durability that is checked, locks in one order, and every failure a typed error."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from conftest import TABLES, Conversation, Desk
from postgres_server import Server, raw
from sqlalchemy import make_url
from sqlalchemy.pool import PoolProxiedConnection
from sqlmodel import SQLModel
from test_engine import ENGINE_FILES, Interrupt, hygienic
from test_store import ROW_KEY, appending, chain_holds, leaf_of, org_row, result_row, scope_row, session_row

from evidence_archive import Archive, BatchRejectedError, Principal
from evidence_archive.errors import (
    EvidenceArchiveError,
    MisuseError,
    StoreBusyError,
    StoreConflictError,
    StoreError,
    StoreUnavailableError,
    UnsupportedVersionError,
)
from evidence_archive.store import open_store, statements
from evidence_archive.store import sql as store_sql
from evidence_archive.store.engine import POOL_CONNECTIONS_MAX, open_engine
from evidence_archive.store.sql import SqlOrgStore, SqlStore

psycopg = pytest.importorskip("psycopg", reason="sweep: the driver psycopg is missing")

from evidence_archive.store import postgres as store_postgres  # noqa: E402 - only where there is a driver
from evidence_archive.store.postgres import PostgresEngine  # noqa: E402

OWNER = Principal(org="north-clinic", subject="owner")
WAIT_MS = 5_000
SHORT_MS = 150
LONG = "2026-11-30 worker 7: nothing to report\n" * 40


@pytest.fixture
def desk(postgresql_desk: Desk) -> Desk:
    return postgresql_desk


@pytest.fixture
def engine(desk: Desk) -> Iterator[PostgresEngine]:
    with opened(desk) as found:
        yield found


@pytest.fixture
def store(desk: Desk) -> Iterator[SqlStore]:
    with closing(open_store(desk.url)) as found:
        yield found


@pytest.fixture
def org(store: SqlStore) -> SqlOrgStore:
    made = store.scoped(store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")]), ROW_KEY)
    with made.writing(WAIT_MS, audited=False) as writer:
        writer.insert_session(session_row(), scope_row())
    return made


@contextmanager
def opened(desk: Desk) -> Iterator[PostgresEngine]:
    engine = open_engine(desk.url, create=True)
    assert isinstance(engine, PostgresEngine)
    try:
        yield engine
    finally:
        engine.close()


def run(connection: PoolProxiedConnection, statement: str, *values: Any) -> Any:
    driver: Any = connection.driver_connection
    cursor = driver.execute(statement, values)
    return cursor.fetchone() if cursor.description else None


def filled(archive: Archive, name: str = "case", principal: Principal = OWNER) -> Any:
    session, talk = archive.session(name, principal), Conversation()
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "all quiet")])
    return session


# --- the wall by org --------------------------------------------------------------------------------------------


@pytest.fixture
def two_orgs(desk: Desk) -> Desk:
    with desk.open() as archive:
        filled(archive)
        filled(archive, principal=Principal(org="south-clinic", subject="owner"))
    for org in ("north-clinic", "south-clinic"):  # no large original is archived here, and nothing held or shredded
        desk.execute("INSERT INTO objects VALUES (?, x'00', 'key', 1, 1, 'stored', 0, 0, x'00')", org)
        desk.execute("INSERT INTO holds VALUES (?, x'00', NULL, NULL, x'00', 'x', 0, NULL, NULL, x'00')", org)
        desk.execute("INSERT INTO shreds VALUES (?, x'00', NULL, NULL, 1, 'x', 0, NULL, x'00')", org)
        desk.execute("INSERT INTO postings VALUES (?, x'00', 'card', 1, x'00', 0, x'00')", org)
    return desk


def orgs_seen(desk: Desk, org: str | None) -> dict[str, set[str]]:
    """What statements that forgot their WHERE find in every table, as the role the library uses."""
    with raw(make_url(desk.url)) as connection, connection.transaction():
        if org is not None:
            connection.execute("SELECT set_config('evidence_archive.org', %s, true)", (org,))
        return {name: {row[0] for row in connection.execute(f"SELECT org FROM {name}")} for name in TABLES}


def test_a_connection_that_forgets_the_org_finds_nothing_in_any_table(two_orgs: Desk) -> None:
    assert all(len(two_orgs.rows(name)) > 1 for name in TABLES), "there has to be something to find"
    assert orgs_seen(two_orgs, None) == {name: set() for name in TABLES}
    assert orgs_seen(two_orgs, "") == {name: set() for name in TABLES}


def test_a_statement_without_where_meets_rows_of_its_own_org_only(two_orgs: Desk) -> None:
    seen = {name: {"north-clinic"} for name in TABLES} | {"org_names": set()}  # which is of no org
    assert orgs_seen(two_orgs, "north-clinic") == seen
    two_orgs.execute("ALTER TABLE postings DISABLE TRIGGER USER")  # which lets nobody delete, whatever the wall does
    before = two_orgs.saved()
    with raw(make_url(two_orgs.url)) as connection, suppress(ZeroDivisionError), connection.transaction():
        connection.execute("SELECT set_config('evidence_archive.org', 'north-clinic', true)")
        for name in TABLES:
            assert connection.execute(f"DELETE FROM {name}").rowcount == sum(
                row[0] == "north-clinic" for row in before[name]
            )
        raise ZeroDivisionError
    assert two_orgs.saved() == before


@pytest.mark.parametrize("kind", ["peeking", "reading", "writing"])
def test_no_setting_of_a_transaction_stays_on_its_connection(engine: PostgresEngine, kind: str) -> None:
    names = ("evidence_archive.org", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    with getattr(engine, kind)(WAIT_MS, "north-clinic") as connection:
        driver: Any = connection.driver_connection
        server = driver.info.backend_pid
    again: Any = engine.engine.raw_connection()
    try:
        driver = again.driver_connection
        assert driver.info.backend_pid == server
        left = [driver.execute(f"SELECT current_setting('{name}', true)").fetchone()[0] for name in names]
    finally:
        again.close()
    assert left == ["", "0", "0", "0"]


def test_a_row_of_another_org_can_be_neither_written_nor_moved(two_orgs: Desk) -> None:
    for statement in (
        "INSERT INTO originals VALUES ('south-clinic', 'x', 'y')",
        "UPDATE originals SET org = 'south-clinic'",
    ):
        with raw(make_url(two_orgs.url)) as connection, connection.transaction():
            connection.execute("SELECT set_config('evidence_archive.org', 'north-clinic', true)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)


@pytest.mark.parametrize("gap", ["DROP POLICY {0}_by_org ON {0}", "ALTER TABLE {0} NO FORCE ROW LEVEL SECURITY"])
def test_a_table_without_its_wall_would_be_found(two_orgs: Desk, gap: str) -> None:
    two_orgs.execute(gap.format("originals"))
    if "DROP" in gap:
        two_orgs.execute("CREATE POLICY open ON originals USING (true)")
    assert orgs_seen(two_orgs, None)["originals"] == {"north-clinic", "south-clinic"}


@pytest.mark.parametrize(
    "name",
    ["o'; DROP TABLE orgs; --", "a\\b", "\\'", "%s %(org)s %%", '"', "\u00fc \U0001f600", "$$", "x" * 256, " "],
)
def test_an_org_of_any_name_finds_its_own_rows_and_no_others(two_orgs: Desk, name: str) -> None:
    with two_orgs.open() as archive:
        principal = Principal(org=name, subject="owner")
        assert filled(archive, principal=principal).restore("r1").content == LONG
        assert archive.audit(principal=principal).intact
    assert {row[0] for row in two_orgs.rows("originals")} == {"north-clinic", "south-clinic", name}
    assert orgs_seen(two_orgs, name)["originals"] == {name}


def test_every_table_of_the_schema_is_behind_the_wall(desk: Desk) -> None:
    walled = desk.execute(
        "SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid "
        "WHERE relrowsecurity AND relforcerowsecurity AND polcmd = '*'"
    )
    assert sorted(name for (name,) in walled) == TABLES


@pytest.mark.parametrize("attribute", ["SUPERUSER", "BYPASSRLS"])
def test_a_role_that_is_above_the_wall_is_refused(desk: Desk, attribute: str) -> None:
    assert desk.server is not None
    url = make_url(desk.url).set(username=desk.server.role(attribute))
    with pytest.raises(StoreError, match="row-level security") as caught:
        desk_at(desk, url).open()
    hygienic(caught.value)
    desk.open().close()  # the same database through a role that is not


def desk_at(desk: Desk, url: Any) -> Desk:
    return Desk(desk.folder, url.render_as_string(hide_password=False), desk.server)


def test_a_role_that_owns_nothing_works_with_four_grants_and_cannot_open_the_wall(desk: Desk) -> None:
    assert desk.server is not None
    role = desk.server.role()
    url = make_url(desk.url).set(username=role)
    with pytest.raises(StoreUnavailableError, match="grants"):
        desk_at(desk, url).open()
    desk.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    with desk_at(desk, url).open() as archive:
        assert filled(archive).restore("r1").content == LONG
    with raw(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("ALTER TABLE originals DISABLE ROW LEVEL SECURITY")


def test_an_archive_works_on_tables_that_are_partitioned_by_org(desk: Desk) -> None:
    owner = make_url(desk.url).username
    for name in TABLES:
        desk.execute(f"ALTER TABLE {name} RENAME TO whole_{name}")
        desk.execute(f"CREATE TABLE {name} (LIKE whole_{name} INCLUDING ALL) PARTITION BY HASH (org)")
        for at in range(4):
            desk.execute(f"CREATE TABLE {name}_{at} PARTITION OF {name} FOR VALUES WITH (MODULUS 4, REMAINDER {at})")
            desk.execute(f"ALTER TABLE {name}_{at} OWNER TO {owner}")
        desk.execute(f"ALTER TABLE {name} OWNER TO {owner}")
        desk.execute(f"DROP TABLE whole_{name}")
        desk.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
        desk.execute(f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY")
        desk.execute(
            f"CREATE POLICY {name}_by_org ON {name} USING (org = current_setting('evidence_archive.org', true))"
        )
    with desk.open() as archive:
        for org in ("north-clinic", "south-clinic", "east-clinic"):
            owner_there = Principal(org=org, subject="owner")
            assert filled(archive, principal=owner_there).restore("r1").content == LONG
            assert archive.audit(principal=owner_there).intact
    assert orgs_seen(desk, "north-clinic")["originals"] == {"north-clinic"}
    assert orgs_seen(desk, None)["originals"] == set()


# --- durability -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["ROLE {role}", "DATABASE {database}", "ROLE {role} IN DATABASE {database}"])
def test_a_server_that_acknowledges_before_it_is_durable_is_refused_at_any_time(desk: Desk, place: str) -> None:
    assert desk.server is not None
    url = make_url(desk.url)
    where = place.format(role=url.username, database=url.database)
    with desk.open() as archive:
        session = filled(archive)
        try:
            desk.server.run(f"ALTER {where} SET synchronous_commit = off")
            engine_of(archive).engine.dispose()  # a setting of a role counts for new connections
            with pytest.raises(StoreError, match="synchronous_commit"):
                session.restore("r1")
            with desk.open() as another, pytest.raises(StoreError, match="synchronous_commit"):
                another.session("another", OWNER)
        finally:
            desk.server.run(f"ALTER {where} RESET synchronous_commit")
        engine_of(archive).engine.dispose()
        assert session.restore("r1").content == LONG


def engine_of(archive: Archive) -> PostgresEngine:
    engine: PostgresEngine = archive._around.store._engine  # type: ignore[attr-defined]
    return engine


def test_weaker_words_for_durable_are_accepted(desk: Desk) -> None:
    assert desk.server is not None
    url = make_url(desk.url)
    desk.server.run(f"ALTER DATABASE {url.database} SET synchronous_commit = local")
    with desk.open() as archive:
        filled(archive)


def test_a_commit_of_a_transaction_in_which_a_statement_failed_is_an_error(engine: PostgresEngine) -> None:
    with engine.writing(WAIT_MS) as connection:
        run(connection, "CREATE TABLE kept (number int PRIMARY KEY)")

    def swallowed() -> None:
        with engine.writing(WAIT_MS) as connection:
            run(connection, "INSERT INTO kept VALUES (1)")
            with suppress(psycopg.Error):
                run(connection, "INSERT INTO kept VALUES (1)")

    with pytest.raises(StoreError, match="rolled back"):
        swallowed()
    with engine.reading(WAIT_MS) as connection:
        assert run(connection, "SELECT count(*) FROM kept") == (0,)
        # The control: the server itself says so in a word nobody has to read.
        driver: Any = connection.driver_connection
        with suppress(psycopg.Error):
            driver.execute("SELECT 1 / 0")
        assert driver.execute("COMMIT").statusmessage == "ROLLBACK"


# --- locks ------------------------------------------------------------------------------------------------------

_APPENDING = """
import sys
from test_store import ROW_KEY, appending, leaf_of, open_store, org_row
store = open_store(sys.argv[1])
org = store.scoped(org_row(), ROW_KEY)
def append():
    with org.writing(60_000, audited=True) as writer:
        writer.append([leaf_of(b"x")])
sys.stdin.readline()
failed = appending(append, threads=2, times=25)
store.close()
assert failed == [], failed
"""


def test_two_hundred_appends_of_threads_in_processes_never_fork_the_log(desk: Desk, org: SqlOrgStore) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _APPENDING, desk.url],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parent,
        )
        for _ in range(4)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    assert [(worker.communicate(timeout=120)[1], worker.returncode) for worker in workers] == [(b"", 0)] * 4
    assert chain_holds(org) == 1 + 200


LAST = "SELECT seq FROM audit_leaves WHERE org = 'north-clinic' ORDER BY seq DESC LIMIT 1"
HEAD = "SELECT size - 1 FROM audit_heads WHERE org = 'north-clinic' FOR UPDATE"


def forks(desk: Desk, look: str) -> bool:
    """Whether two appenders that look in this way before they append give one number twice.

    The second one looks while the first has looked and not yet committed.
    """
    desk.execute("ALTER TABLE audit_leaves DROP CONSTRAINT audit_leaves_pkey")
    append = "INSERT INTO audit_leaves VALUES ('north-clinic', %s, 'leaf')"
    with desk.straight() as first, desk.straight() as second:
        first.execute("BEGIN")
        (at,) = first.execute(look).fetchone()

        def follow() -> None:
            second.execute("BEGIN")
            (found,) = second.execute(look).fetchone()
            second.execute(append, (found + 1,))
            second.execute("UPDATE audit_heads SET size = size + 1")
            second.execute("COMMIT")

        follower = threading.Thread(target=follow)
        follower.start()
        follower.join(0.3)  # it has looked, or waits for the lock
        first.execute(append, (at + 1,))
        first.execute("UPDATE audit_heads SET size = size + 1")
        first.execute("COMMIT")
        follower.join(30)
    numbers = [seq for (seq,) in desk.execute("SELECT seq FROM audit_leaves")]
    return len(set(numbers)) != len(numbers)


@pytest.mark.parametrize(("look", "forked"), [(LAST, True), (f"{LAST} FOR UPDATE", True), (HEAD, False)])
def test_only_the_lock_of_the_head_keeps_the_log_from_forking(
    desk: Desk, org: SqlOrgStore, look: str, forked: bool
) -> None:
    assert forks(desk, look) is forked


def counted_together(org: SqlOrgStore, *, audited: tuple[bool, bool]) -> int:
    """The session's version after two transactions that each read it and write one more.

    They meet where both have begun, and once more where both have read it, unless a lock keeps them apart.
    """
    begun, read = threading.Barrier(2), threading.Barrier(2)

    def count(at: int) -> None:
        with org.writing(WAIT_MS, audited=audited[at]) as writer:
            begun.wait(10)
            row = writer.session("case")
            assert row is not None
            with suppress(threading.BrokenBarrierError):
                read.wait(0.3)
            row.version += 1
            writer.update_session(row)

    threads = [threading.Thread(target=count, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with org.reading(WAIT_MS) as reader:
        row = reader.session("case")
    assert row is not None
    return row.version


@pytest.mark.parametrize("audited", [(True, False), (False, False)])
def test_no_update_of_a_session_is_lost_between_transactions(org: SqlOrgStore, audited: tuple[bool, bool]) -> None:
    assert counted_together(org, audited=audited) == 2


def test_an_update_would_be_lost_where_the_session_is_read_without_its_lock(
    org: SqlOrgStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_sql.SqlWriter, "_session_statement", statements.SELECT_SESSION)
    assert counted_together(org, audited=(True, False)) == 1


def test_what_a_writer_finds_stays_as_it_is_until_its_transaction_ends(org: SqlOrgStore) -> None:
    with org.writing(WAIT_MS, audited=False) as writer:
        writer.insert_results([result_row(1)])
    with org.writing(WAIT_MS, audited=True) as writer:
        found = writer.find("case", 1)
        assert found is not None
        for change in (lambda other: other.session("case"), lambda other: other.find("case", 1)):
            with pytest.raises(StoreBusyError), org.writing(SHORT_MS, audited=False) as other:
                change(other)
        with org.reading(SHORT_MS) as reader:
            assert reader.find("case", 1) == found, "readers wait for nobody"


def test_a_session_that_registers_does_not_wait_for_the_log_of_its_org(org: SqlOrgStore) -> None:
    with org.writing(WAIT_MS, audited=True) as writer:
        writer.append([leaf_of(b"x")])
        with org.writing(SHORT_MS, audited=False) as other:
            other.session("case")
            other.insert_results([result_row(1)])
        with pytest.raises(StoreBusyError), org.writing(SHORT_MS, audited=True):
            pass


def test_creators_of_one_org_all_get_the_row_of_the_first(store: SqlStore) -> None:
    rows: list[Any] = []

    def create() -> None:
        mine = org_row()
        mine.deployment = os.urandom(16)
        rows.append(store.create_org(mine, ROW_KEY, [leaf_of(b"created")]))

    assert appending(create, threads=8, times=1) == []
    assert rows == [rows[0]] * 8
    assert chain_holds(store.scoped(rows[0], ROW_KEY)) == 1


def test_a_creator_that_looks_before_it_inserts_would_fail_where_another_is_faster(
    desk: Desk, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "CLAIM_ORG", statements.inserting(SQLModel.metadata.tables["orgs"]))
    store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")])
    with pytest.raises(StoreError):
        store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")])


def test_a_lock_that_another_holds_is_busy_within_the_bound(desk: Desk) -> None:
    with desk.open() as archive:
        session = filled(archive)
    from test_engine import hasty

    with desk.open(policy=hasty()) as archive:
        session = archive.session("case", OWNER)
        with desk.straight() as other:
            other.execute("BEGIN")
            other.execute("SELECT * FROM audit_heads FOR UPDATE")
            began = time.monotonic()
            with pytest.raises(StoreBusyError, match="locked") as caught:
                session.restore("r1")
            assert time.monotonic() - began < 5
            hygienic(caught.value)
            other.execute("ROLLBACK")
        assert session.restore("r1").content == LONG


def test_a_statement_that_runs_too_long_is_busy_within_the_bound(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_postgres, "STATEMENT_MS_MAX", 100)
    with pytest.raises(StoreBusyError, match="longer"), engine.reading(SHORT_MS) as connection:
        run(connection, "SELECT pg_sleep(60)")
    with engine.reading(SHORT_MS) as connection:
        assert run(connection, "SELECT 1") == (1,)


def test_a_caller_beyond_the_last_connection_waits_no_longer_than_it_may(engine: PostgresEngine) -> None:
    with ExitStack() as held:
        for _ in range(POOL_CONNECTIONS_MAX):
            held.enter_context(engine.peeking(WAIT_MS))
        began = time.monotonic()
        with pytest.raises(StoreBusyError, match="in use"), engine.peeking(SHORT_MS):
            pass
        assert time.monotonic() - began < 5
    with engine.peeking(SHORT_MS) as connection:
        assert run(connection, "SELECT 1") == (1,)


# --- order and plans --------------------------------------------------------------------------------------------


def test_sessions_come_in_the_order_of_their_code_points_in_a_database_of_any_locale(postgres: Server) -> None:
    try:
        url = postgres.database(
            postgres.role(), options="LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C' ENCODING 'UTF8'"
        )
    except psycopg.Error:
        pytest.skip("this server has no ICU: another locale was NOT tried")
    ids = ["B", "a", "C", "\u00fc", "b", "-z", "A", "_", "z"]
    with closing(open_store(url.render_as_string(hide_password=False))) as store:
        org = store.scoped(store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")]), ROW_KEY)
        with org.writing(WAIT_MS, audited=False) as writer:
            for at, name in enumerate(ids):
                writer.insert_session(session_row(name, bytes([at]) * 16), scope_row(bytes([at]) * 16))
        with org.reading(WAIT_MS) as reader:
            assert [row.session_id for row in reader.sessions("", 100)] == sorted(ids)
            assert [row.session_id for row in reader.sessions("B", 3)] == ["C", "_", "a"]
    naive = 'SELECT session_id FROM sessions ORDER BY session_id COLLATE "default"'
    assert [row[0] for row in postgres.run(naive, database=url.database)] != sorted(ids), (
        "the control sorts by locale"
    )
    postgres.drop(url.database)


def test_no_statement_reads_a_whole_table(desk: Desk, engine: PostgresEngine) -> None:
    fill = {
        "sessions": "org, id::text, int8send(id), '', '', '', 1, 1, NULL, 0, 0, 0, 0, '', '', ''",
        "postings": "org, int8send(id), 'book', 1, 'x', 0, ''",
        "scope_keys": "org, int8send(id), '', 1, '', 1, 0, ''",
        "originals": "org, int8send(id), 'x'",
        "batches": "org, int8send(id), '', int8send(id), id::text, '', 0, ''",
        "audit_leaves": "org, id, 'x'",
        "objects": "org, int8send(id), '', 1, 1, 'stored', id, 0, ''",
        "holds": "org, int8send(id), NULL, NULL, '', '', 0, NULL, NULL, ''",
        "shreds": "org, int8send(id), NULL, NULL, 1, '', 0, NULL, ''",
        "checkpoints": "org, id, '', '', 0, ''",
        "org_names": "org, id::text",
    }
    rows = "FROM generate_series(1, 800) AS id, (SELECT 'org' || n AS org FROM generate_series(1, 20) AS n) AS orgs"
    for name, columns in fill.items():
        desk.execute(f"INSERT INTO {name} SELECT {columns} {rows}")
    facts = ", ".join(
        {"TEXT": "''", "BYTEA": "int8send(id)"}.get(str(column.type.compile(engine.engine.dialect)).split()[0], "id")
        for column in SQLModel.metadata.tables["results"].c
        if column.name != "org"
    )
    desk.execute(f"INSERT INTO results SELECT org, {facts} {rows}")
    for name in ("orgs", "audit_heads", "custody"):
        columns = SQLModel.metadata.tables[name].c
        kinds = [str(column.type.compile(engine.engine.dialect)) for column in columns if column.name != "org"]
        values = ", ".join("''" if kind in ("BYTEA", 'TEXT COLLATE "C"') else "1" for kind in kinds)
        into = f"{name} ({', '.join(columns.keys())})"
        desk.execute(f"INSERT INTO {into} SELECT 'org' || n, {values} FROM generate_series(1, 5000) AS n")
    desk.execute("ANALYZE")
    looked_at = {
        name: value
        for name, value in vars(statements).items()
        if isinstance(value, statements.Statement) and name.startswith(("SELECT", "LOCK", "FIND"))
    }
    assert len(looked_at) > 10
    given: dict[str, Any] = {"org": "org7", "session_id": "5", "after": "5", "count": 2, "start": 5, "number": 5}
    given |= {"after_version": 790, "idempotency_key": "5", "stored": "stored", "now_us": 5}
    whole = {}
    for name, statement in looked_at.items():
        sql, ordered = statement.on(engine.engine.dialect)
        values = [given.get(parameter, (5).to_bytes(8, "big")) for parameter in statement._names]
        with engine.reading(WAIT_MS, "org7") if "LOCK" not in name else engine.writing(WAIT_MS, "org7") as connection:
            driver: Any = connection.driver_connection
            plan = "\n".join(row[0] for row in driver.execute(f"EXPLAIN {sql}", ordered(values)))
        if "Seq Scan" in plan:
            whole[name] = plan
    assert whole == {}
    assert "Seq Scan" in str(desk.execute("EXPLAIN SELECT * FROM results WHERE tokens = 5")), "the control reads all"


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("55P03", StoreBusyError),
        ("57014", StoreBusyError),
        ("40001", StoreConflictError),
        ("40P01", StoreConflictError),
        *(
            (state, StoreUnavailableError)
            for state in ("53100", "53200", "53300", "57P01", "57P02", "57P03", "25P03")
        ),
        *(
            (state, StoreUnavailableError)
            for state in ("08006", "08003", "08P01", "28P01", "28000", "3D000", "42501")
        ),
        *((state, StoreUnavailableError) for state in ("58030", "XX001", "25006")),
        *((state, StoreError) for state in ("22021", "23505", "42P01", "22003")),
    ],
)
def test_every_failure_of_the_server_is_typed_by_its_state_and_says_nothing_of_the_driver(
    engine: PostgresEngine, state: str, kind: type[StoreError]
) -> None:
    error = psycopg.errors.lookup(state)(f"SELECT made_up {LONG} [SQL")
    with pytest.raises(StoreError) as caught, engine.translated():
        raise error
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error
    hygienic(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("SELECT made_up"), StoreUnavailableError),
        (psycopg.InterfaceError("SELECT made_up"), StoreUnavailableError),
        (psycopg.DataError("SELECT made_up"), StoreError),
        (psycopg.ProgrammingError("SELECT made_up"), StoreError),
    ],
)
def test_a_failure_without_a_state_is_typed_by_its_kind(
    engine: PostgresEngine, error: Exception, kind: type[StoreError]
) -> None:
    with pytest.raises(StoreError) as caught, engine.translated():
        raise error
    assert type(caught.value) is kind
    hygienic(caught.value)


def test_text_that_no_database_takes_is_refused_and_nothing_is_written(org: SqlOrgStore, desk: Desk) -> None:
    before = desk.saved()
    with pytest.raises(StoreError), org.writing(WAIT_MS, audited=False) as writer:
        writer.insert_results([result_row(1, kind="a\0b")])
    assert desk.saved() == before


@pytest.mark.parametrize("create", [True, False])
def test_a_database_that_is_not_there_is_not_made(desk: Desk, create: bool) -> None:
    url = make_url(desk.url).set(database="eva_nowhere")
    with pytest.raises(StoreUnavailableError) as caught:
        desk_at(desk, url).open(create=create)
    hygienic(caught.value)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"query": {"no_such_parameter": "1"}}, StoreError),
        ({"database": ""}, StoreError),
        ({"query": {}, "host": "127.0.0.1", "port": 1}, StoreUnavailableError),
        ({"username": "eva_nobody"}, StoreUnavailableError),
        ({"drivername": "postgresql+asyncpg"}, StoreError),
    ],
)
def test_a_url_that_leads_nowhere_is_a_typed_error_that_does_not_repeat_it(
    desk: Desk, changed: dict[str, Any], kind: type[StoreError]
) -> None:
    url = make_url(desk.url).set(password="s3cr3t", **changed)
    if "query" in changed and not changed["query"]:
        url = url.difference_update_query(["host"])
    with pytest.raises(StoreError) as caught:
        desk_at(desk, url).open()
    assert type(caught.value) is kind
    hygienic(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_both_names_of_the_url_open_the_same_store(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    with desk_at(desk, make_url(desk.url).set(drivername="postgresql+psycopg")).open() as archive:
        assert archive.restore("case", "r1", principal=OWNER).content == LONG


def test_without_the_driver_the_error_says_what_to_install(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"install evidence-archive\[postgres\]"):
        desk.open()


def test_a_database_of_another_encoding_is_refused(postgres: Server) -> None:
    url = postgres.database(postgres.role(), options="ENCODING 'SQL_ASCII' LOCALE 'C'")
    with pytest.raises(StoreError, match="UTF-8"):
        open_store(url.render_as_string(hide_password=False))
    postgres.drop(url.database)


def test_a_database_that_is_read_only_restores_nothing_unaudited(desk: Desk) -> None:
    assert desk.server is not None
    with desk.open() as archive:
        session = filled(archive)
        desk.server.run(f"ALTER DATABASE {make_url(desk.url).database} SET default_transaction_read_only = on")
        engine_of(archive).engine.dispose()
        with pytest.raises(StoreUnavailableError, match="read-only"):
            session.restore("r1")
        with pytest.raises(BatchRejectedError):
            session.archive([("r1", "again")])


# --- the pool, forks, interrupts --------------------------------------------------------------------------------


def test_connections_that_died_in_the_pool_are_replaced_without_an_error(desk: Desk, engine: PostgresEngine) -> None:
    with ExitStack() as held:
        pids = {run(held.enter_context(engine.peeking(WAIT_MS)), "SELECT pg_backend_pid()")[0] for _ in range(4)}
    desk.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM unnest(ARRAY{sorted(pids)}) AS pid")
    with ExitStack() as held:
        anew = {run(held.enter_context(engine.writing(WAIT_MS)), "SELECT pg_backend_pid()")[0] for _ in range(4)}
    assert len(anew) == 4
    assert not anew & pids


def test_a_connection_that_dies_in_a_transaction_is_an_error_and_nothing_is_tried_again(
    desk: Desk, engine: PostgresEngine
) -> None:
    with engine.writing(WAIT_MS) as connection:
        run(connection, "CREATE TABLE kept (number int)")

    def dying() -> None:
        with engine.writing(WAIT_MS) as connection:
            run(connection, "INSERT INTO kept VALUES (1)")
            (pid,) = run(connection, "SELECT pg_backend_pid()")
            desk.execute("SELECT pg_terminate_backend(?, 5000)", pid)
            run(connection, "INSERT INTO kept VALUES (2)")

    with pytest.raises(StoreUnavailableError) as caught:
        dying()
    hygienic(caught.value)
    with engine.writing(WAIT_MS) as connection:
        assert run(connection, "SELECT count(*) FROM kept") == (0,)


def test_a_transaction_that_a_caller_leaves_idle_is_ended_by_the_server(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_postgres, "STATEMENT_MS_MAX", 50)

    def idle() -> None:
        with engine.writing(50) as connection:
            time.sleep(0.5)
            run(connection, "SELECT 1")

    with pytest.raises(StoreUnavailableError, match=r"idle|broke"):
        idle()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_engine_that_crossed_a_fork_is_refused_in_the_child_and_works_in_the_parent(
    desk: Desk, engine: PostgresEngine
) -> None:
    with engine.peeking(WAIT_MS) as connection:
        (pid,) = run(connection, "SELECT pg_backend_pid()")
    gc.collect()
    child = os.fork()
    if child == 0:  # pragma: no cover - measured in the parent
        code = 1
        try:
            with engine.peeking(WAIT_MS):
                pass
        except MisuseError:
            engine.close()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with engine.peeking(WAIT_MS) as connection:
        assert run(connection, "SELECT pg_backend_pid()") == (pid,), "the child closed nothing that is not its own"


def test_an_engine_that_was_closed_opens_nothing_for_who_comes_late(desk: Desk) -> None:
    with opened(desk) as engine:
        using = engine.peeking(WAIT_MS)
        connection: Any = using.__enter__()
        driver = connection.driver_connection
        engine.close()
        with pytest.raises(MisuseError), engine.peeking(WAIT_MS):
            pass
        using.__exit__(None, None, None)
        assert driver.closed


def write_one(engine: PostgresEngine) -> None:
    with engine.writing(WAIT_MS) as connection:
        run(connection, "INSERT INTO kept VALUES (1)")


def read_one(engine: PostgresEngine) -> None:
    with engine.reading(WAIT_MS) as connection:
        run(connection, "SELECT count(*) FROM kept")


class TracedInterrupt(Interrupt):
    """Raises in the engine's own lines."""

    def _call(self, frame: Any, _event: str, _what: object) -> Any:
        files = ENGINE_FILES | {store_postgres.__file__}
        traced = frame.f_code.co_filename in files if self.codes is None else frame.f_code in self.codes
        return self._line if traced else None


def interrupted_at_every_line(
    desk: Desk, operation: Callable[[PostgresEngine], None], make: type[PostgresEngine], codes: set[Any] | None = None
) -> list[str]:
    """What is wrong after an interrupt at each line in turn."""
    found = []
    desk.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
    desk.execute("GRANT ALL ON kept TO PUBLIC")
    open_ones = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{make_url(desk.url).username}'"
    for kind in (KeyboardInterrupt, MemoryError):
        at, engine = 0, make(make_url(desk.url), create=True)
        while True:
            at += 1
            interrupt = TracedInterrupt(at, kind, codes)
            try:
                raised = interrupt.during(lambda used=engine: operation(used))
            except StoreError as error:
                found.append(f"line {at}, {kind.__name__}: the engine says {error}")
                break
            if interrupt.lines < at:
                break
            # Nobody else waits for a lock of the interrupted one, although its traceback is kept.
            try:
                with desk.straight() as other:
                    other.execute("SET lock_timeout = 1000")
                    other.execute("BEGIN; LOCK TABLE kept IN ACCESS EXCLUSIVE MODE; ROLLBACK")
            except psycopg.errors.LockNotAvailable:
                found.append(f"line {at}, {kind.__name__}: another one waits for a lock")
            try:
                write_one(engine)
            except StoreError as error:
                found.append(f"line {at}, {kind.__name__}: the engine says {error}")
            del raised
        assert at > 3
        with ExitStack() as stack:
            for taken in range(POOL_CONNECTIONS_MAX):
                try:
                    stack.enter_context(engine.peeking(SHORT_MS))
                except StoreBusyError:
                    found.append(f"{kind.__name__}: only {taken} connections are left")
                    break
            ((connected,),) = desk.execute(open_ones)
            if connected > POOL_CONNECTIONS_MAX:
                found.append(f"{kind.__name__}: {connected} connections are open")
        engine.close()
    return found


# An interrupt can fall between opening a connection and knowing it; the garbage collector then closes it, loudly.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("operation", [write_one, read_one])
def test_an_interrupt_at_any_line_leaves_no_lock_and_loses_no_connection(
    desk: Desk, operation: Callable[[PostgresEngine], None]
) -> None:
    assert interrupted_at_every_line(desk, operation, PostgresEngine) == []
    gc.collect()


class Forgetful(PostgresEngine):
    """Takes a turn, and gives it back only where nothing went wrong."""

    @contextmanager
    def _held(self, turn: Any, wait_ms: int) -> Iterator[PoolProxiedConnection]:
        connection = self._begun(turn, wait_ms)
        yield connection
        self._ended(turn)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_forgets_its_turns_would_be_caught(desk: Desk) -> None:
    codes = {PostgresEngine._transaction.__code__, PostgresEngine._commit.__code__, PostgresEngine._begin.__code__}
    found = interrupted_at_every_line(desk, write_one, Forgetful, codes)
    assert any("connections are left" in line or "engine says" in line for line in found), found
    gc.collect()


def test_a_wait_that_is_interrupted_closes_its_connection_and_says_so_at_once(
    desk: Desk, engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_given: Any, **_named: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    drivers = []

    def waiting() -> None:
        with engine.writing(WAIT_MS) as connection:
            drivers.append(connection.driver_connection)
            monkeypatch.setattr(store_postgres.waiting, "wait", wait)
            run(connection, "SELECT pg_sleep(60)")

    with pytest.raises(KeyboardInterrupt):
        waiting()
    assert drivers[0].closed
    with engine.writing(WAIT_MS) as connection:
        assert run(connection, "SELECT 1") == (1,)


# --- the schema -------------------------------------------------------------------------------------------------


def test_the_migrations_make_exactly_the_tables_of_the_metadata(desk: Desk, engine: PostgresEngine) -> None:
    with engine.administering(WAIT_MS) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "evidence_archive_version"})
        assert compare_metadata(context, SQLModel.metadata) == []
        connection.exec_driver_sql("ALTER TABLE sessions ADD COLUMN forgotten text")
        assert len(compare_metadata(context, SQLModel.metadata)) == 1, "the control is found"
    collations = desk.execute(
        "SELECT DISTINCT collation_name FROM information_schema.columns "
        "WHERE table_name = ANY (?) AND data_type = 'text' AND column_name <> 'forgotten'",
        TABLES,
    )
    assert collations == [("C",)]


@pytest.fixture
def bare(postgres: Server) -> Iterator[Any]:
    """A database in which there is nothing."""
    url = postgres.database(postgres.role())
    yield url
    postgres.drop(url.database)


def open_at(url: Any, **named: Any) -> None:
    open_store(url.render_as_string(hide_password=False), **named).close()


def tables_of(postgres: Server, url: Any) -> list[str]:
    found = postgres.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database=url.database)
    return sorted(name for (name,) in found)


def test_a_migration_that_fails_half_way_leaves_no_table(
    postgres: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    original, made = op.create_table, []

    def failing(name: str, *columns: object, **options: object) -> object:
        if name == "batches":
            raise OSError("made up")
        made.append(name)
        return original(name, *columns, **options)

    monkeypatch.setattr("alembic.op.create_table", failing)
    with pytest.raises(OSError, match="made up"):
        open_at(bare)
    assert made, "the migration has to have begun"
    assert tables_of(postgres, bare) == []
    monkeypatch.undo()
    open_at(bare)
    assert tables_of(postgres, bare) == sorted([*TABLES, "evidence_archive_version"])


def test_a_table_of_somebody_else_is_a_typed_error_and_is_left_alone(postgres: Server, bare: Any) -> None:
    postgres.run("CREATE TABLE batches (theirs text)", database=bare.database)
    with pytest.raises(StoreError):
        open_at(bare)
    assert tables_of(postgres, bare) == ["batches"]


def test_a_database_that_a_newer_version_wrote_is_refused(desk: Desk) -> None:
    desk.execute("UPDATE evidence_archive_version SET version_num = '9999'")
    with pytest.raises(UnsupportedVersionError, match="upgrade the library"):
        desk.open()
    assert desk.execute("SELECT version_num FROM evidence_archive_version") == [("9999",)]


_OPENING = """
import sys
from evidence_archive.store import open_store
sys.stdin.readline()
open_store(sys.argv[1], wait_ms=60_000).close()
"""


def test_processes_that_race_to_open_first_make_one_schema(postgres: Server, bare: Any) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _OPENING, bare.render_as_string(hide_password=False)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    assert [(racer.communicate(timeout=120)[1], racer.returncode) for racer in racers] == [(b"", 0)] * 4
    assert tables_of(postgres, bare) == sorted([*TABLES, "evidence_archive_version"])


def test_a_migrator_waits_for_another_no_longer_than_it_may(postgres: Server, bare: Any) -> None:
    with raw(postgres.admin.set(database=bare.database)) as other:
        other.execute(f"SELECT pg_advisory_lock({store_postgres._MIGRATORS})")
        with pytest.raises(StoreBusyError):
            open_at(bare, wait_ms=SHORT_MS)
        assert tables_of(postgres, bare) == []
    open_at(bare)


def test_every_failure_is_of_the_tree(engine: PostgresEngine) -> None:
    with pytest.raises(EvidenceArchiveError) as caught, engine.writing(WAIT_MS) as connection:
        run(connection, "SELECT * FROM nowhere")
    assert "nowhere" not in str(caught.value)


def test_what_one_org_is_about_to_put_outside_is_known_behind_the_wall_too(two_orgs: Desk) -> None:
    with closing(open_store(two_orgs.url)) as store, closing(open_store(two_orgs.url)) as other:
        assert not other.has_used_objects()
        for _ in range(2):
            store.uses_objects()
            assert other.has_used_objects()
