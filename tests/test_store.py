"""The store: a transaction is all or nothing, and the audit log never forks, in threads or in processes."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import TABLES, Desk
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    SealBrokenError,
    StoreBusyError,
    StoreError,
)
from evidence_archive.ports import BatchRow, OrgRow, ResultRow, ScopeRow, SessionRow, StoredOriginal
from evidence_archive.proof.merkle import leaf_hash, root_of
from evidence_archive.store import open_store, statements
from evidence_archive.store import sql as store_sql
from evidence_archive.store.sql import SqlOrgStore, SqlStore

ROW_KEY = bytes(range(32))
WAIT_MS = 5_000
SCOPE = b"s" * 16


def org_row(org: str = "north-clinic") -> OrgRow:
    return OrgRow(org, b"d" * 16, b"wrapped", 1, b"f" * 16, 1, 0)


def leaf_of(text: bytes) -> Callable[[int], bytes]:
    return lambda seq: b"%d|" % seq + text


def scope_row(scope_id: bytes = SCOPE) -> ScopeRow:
    return ScopeRow(scope_id, b"wrapped", 1, b"f" * 16, 1, 0)


def session_row(session_id: str = "case", scope_id: bytes = SCOPE) -> SessionRow:
    return SessionRow(session_id, scope_id, "owner", "chat", "9f3c", 0, 1, None, 0, 0, 0, 0)


def result_row(number: int, version: int = 1, **named: Any) -> ResultRow:
    row = ResultRow(
        scope_id=SCOPE,
        number=number,
        version=version,
        seen=1,
        call_id=b"call",
        tool_name=b"logs.search",
        result_tool_name=None,
        own=None,
        kind=None,
        sensitivity="",
        media_type="text/plain",
        size_chars=1,
        size_bytes=1,
        tokens=1,
        labelled=0,
        observed_at_us=0,
        observed_by="first_view",
        content_tag=b"t" * 32,
        labelled_tag=None,
        origin=None,
        part=None,
        state="live",
    )
    for name, value in named.items():
        setattr(row, name, value)
    return row


@pytest.fixture
def store(desk: Desk) -> Iterator[SqlStore]:
    opened = open_store(desk.url)
    yield opened
    opened.close()


@pytest.fixture
def org(store: SqlStore) -> SqlOrgStore:
    return store.scoped(store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")]), ROW_KEY)


@pytest.fixture
def session(org: SqlOrgStore) -> SqlOrgStore:
    with org.writing(WAIT_MS, audited=False) as writer:
        writer.insert_session(session_row(), scope_row())
    return org


def rows_of(desk: Desk) -> dict[str, list[tuple[Any, ...]]]:
    return {name: desk.rows(name) for name in TABLES}


def chain_holds(org: SqlOrgStore) -> int:
    """How many leaves there are, once they are in order and hash to the head."""
    with org.reading(WAIT_MS) as reader:
        head, leaves = reader.head(), reader.leaves(0, 10_000)
    assert [seq for seq, _ in leaves] == list(range(head.size))
    assert all(leaf.startswith(b"%d|" % seq) for seq, leaf in leaves)
    hashes = [leaf_hash(leaf) for _, leaf in leaves]
    assert head.last_leaf_hash == hashes[-1]
    from evidence_archive.proof.merkle import Frontier

    assert Frontier.from_bytes(head.size, head.frontier).root() == root_of(hashes)
    return head.size


# --- transactions -----------------------------------------------------------------------------------------------


class MadeUpError(Exception):
    """Stands for whatever goes wrong in the middle."""


def everything(writer: Any, fail_at: int) -> None:
    steps: list[Callable[[], None]] = [
        lambda: writer.insert_session(session_row("other", b"o" * 16), scope_row(b"o" * 16)),
        lambda: writer.insert_results([result_row(1), result_row(2)]),
        lambda: writer.insert_originals([StoredOriginal(b"1" * 16, b"envelope")]),
        lambda: writer.update_results([result_row(1, 2, state="archived")]),
        lambda: writer.insert_batch(BatchRow(SCOPE, b"b" * 16, b"r" * 32, None, "{}", 0)),
        lambda: writer.update_session(session_row()),
        lambda: writer.append([leaf_of(b"batch")], "digest"),
    ]
    for at, step in enumerate(steps):
        if at == fail_at:
            raise MadeUpError
        step()
    if fail_at == len(steps):
        raise MadeUpError


@pytest.mark.parametrize("fail_at", range(8))
def test_a_transaction_that_fails_anywhere_leaves_nothing(desk: Desk, session: SqlOrgStore, fail_at: int) -> None:
    before = rows_of(desk)
    with pytest.raises(MadeUpError), session.writing(WAIT_MS, audited=True) as writer:
        everything(writer, fail_at)
    assert rows_of(desk) == before


def test_a_transaction_that_does_not_fail_leaves_everything(desk: Desk, session: SqlOrgStore) -> None:
    before = rows_of(desk)
    with session.writing(WAIT_MS, audited=True) as writer:
        everything(writer, -1)
    after = rows_of(desk)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"sessions", "scope_keys", "results", "originals", "batches", "audit_leaves", "audit_heads"}


def test_an_autocommit_writer_would_leave_half_of_it(desk: Desk, session: SqlOrgStore) -> None:
    before = rows_of(desk)

    def written() -> None:
        with session._engine.connection(WAIT_MS) as connection:
            if desk.server is not None:
                connection.driver_connection.execute("SET evidence_archive.org = 'north-clinic'")
            everything(store_sql.SqlWriter(session._engine, connection, "north-clinic", ROW_KEY, None), 3)

    with pytest.raises(MadeUpError):
        written()
    assert rows_of(desk) != before


def test_a_reader_sees_one_moment_while_others_commit(desk: Desk, session: SqlOrgStore) -> None:
    with session.reading(WAIT_MS) as reader:
        assert reader.results(SCOPE, -1) == []
        # In a rollback journal a writer waits, elsewhere it gets through: in all, this reader sees one moment.
        with desk.straight() as other, suppress(sqlite3.OperationalError):
            if desk.server is None:
                other.execute("PRAGMA busy_timeout=50")
            other.execute("UPDATE sessions SET version = 9")
        seen = reader.session("case")
        assert seen is not None
        assert replace(seen, stamp=b"") == session_row()


def test_an_update_of_a_row_that_is_not_there_is_an_error_that_says_how_many(session: SqlOrgStore) -> None:
    with session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_results([result_row(1)])
    with pytest.raises(StoreError, match="1 of 2 rows of results"), session.writing(WAIT_MS, audited=False) as writer:
        writer.update_results([result_row(1, 2), result_row(2, 2)])
    with session.reading(WAIT_MS) as reader:
        assert [row.version for row in reader.results(SCOPE, -1)] == [1]
    with pytest.raises(StoreError, match="0 of 1"), session.writing(WAIT_MS, audited=False) as writer:
        writer.update_session(session_row("nobody"))


def test_nothing_to_write_is_no_statement_and_no_error(desk: Desk, session: SqlOrgStore) -> None:
    before = rows_of(desk)
    with session.writing(WAIT_MS, audited=True) as writer:
        writer.insert_results([])
        writer.update_results([])
        writer.insert_originals([])
        writer.append([])
    assert rows_of(desk) == before


@pytest.mark.parametrize("what", ["session", "result", "original", "batch"])
def test_a_second_row_under_the_same_key_is_refused(desk: Desk, session: SqlOrgStore, what: str) -> None:
    def insert() -> None:
        with session.writing(WAIT_MS, audited=False) as writer:
            {
                "session": lambda: writer.insert_session(session_row(), scope_row(b"x" * 16)),
                "result": lambda: writer.insert_results([result_row(7)]),
                "original": lambda: writer.insert_originals([StoredOriginal(b"7" * 16, b"envelope")]),
                "batch": lambda: writer.insert_batch(BatchRow(SCOPE, b"b" * 16, b"r" * 32, "key", "{}", 0)),
            }[what]()

    if what != "session":
        insert()
    before = rows_of(desk)
    with pytest.raises(StoreError):
        insert()
    assert rows_of(desk) == before


def test_two_batches_may_not_share_an_idempotency_key(session: SqlOrgStore) -> None:
    with session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_batch(BatchRow(SCOPE, b"a" * 16, b"r" * 32, "key", "{}", 0))
        writer.insert_batch(BatchRow(SCOPE, b"b" * 16, b"r" * 32, None, "{}", 0))
        writer.insert_batch(BatchRow(SCOPE, b"c" * 16, b"r" * 32, None, "{}", 0))
    with pytest.raises(StoreError), session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_batch(BatchRow(SCOPE, b"d" * 16, b"q" * 32, "key", "{}", 0))


# --- reading back -----------------------------------------------------------------------------------------------


def test_envelopes_of_every_size_and_number_come_back_as_they_were_written(session: SqlOrgStore) -> None:
    originals = [StoredOriginal(bytes([at]) * 16, bytes([at]) * (at * 37)) for at in range(1, 121)]
    with session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_originals(originals)
    with session.reading(WAIT_MS) as reader:
        assert [reader.envelope(one.original_id) for one in originals] == [one.envelope for one in originals]


class Lying:
    """A driver connection that hands back other bytes than were written."""

    def __init__(self, driver: Any, lie: Callable[[list[Any]], list[Any]]) -> None:
        self._driver, self._lie = driver, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def execute(self, sql: str, *values: Any) -> Any:
        found = self._driver.execute(sql, *values)
        if sql.startswith("SELECT") and "envelope" in sql:
            return self._lie(found.fetchall())
        return found


LIES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "one bit": lambda rows: [(rows[0][0], bytes([rows[0][1][0] ^ 1]) + rows[0][1][1:]), *rows[1:]],
    "cut short": lambda rows: [(rows[0][0], rows[0][1][:-1]), *rows[1:]],
    "swapped": lambda rows: [(rows[0][0], rows[1][1]), (rows[1][0], rows[0][1])],
    "left out": lambda rows: rows[1:],
    "nothing": lambda rows: [],
    "null": lambda rows: [(rows[0][0], None), *rows[1:]],
    "text": lambda rows: [(rows[0][0], rows[0][1].decode("latin-1")), *rows[1:]],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_database_that_returns_other_bytes_than_were_written_archives_nothing(
    desk: Desk, session: SqlOrgStore, lie: str
) -> None:
    originals = [StoredOriginal(b"1" * 16, b"first envelope"), StoredOriginal(b"2" * 16, b"second envelope")]
    with pytest.raises(SealBrokenError, match="nothing was archived"):
        _insert_through(session, originals, LIES[lie])
    assert rows_of(desk)["originals"] == []
    _insert_through(session, originals, lambda rows: rows)  # the same connection without the lie
    assert len(rows_of(desk)["originals"]) == 2


def _insert_through(
    session: SqlOrgStore, originals: list[StoredOriginal], lie: Callable[[list[Any]], list[Any]]
) -> None:
    with session.writing(WAIT_MS, audited=False) as writer:
        cursor = writer._cursor
        writer._cursor = lambda: Lying(cursor(), lie)
        writer.insert_originals(originals)


# --- the log ----------------------------------------------------------------------------------------------------


def test_an_org_begins_with_its_first_leaves_and_a_second_creation_changes_nothing(
    desk: Desk, store: SqlStore
) -> None:
    assert store.org("north-clinic") is None
    assert store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")]) == org_row()
    before = rows_of(desk)
    loser = OrgRow("north-clinic", b"x" * 16, b"other", 1, b"f" * 16, 1, 1)
    assert store.create_org(loser, b"k" * 32, [leaf_of(b"again")]) == org_row()
    assert rows_of(desk) == before
    assert chain_holds(store.scoped(org_row(), ROW_KEY)) == 1


def test_an_org_row_that_was_removed_is_not_made_anew(desk: Desk, store: SqlStore, org: SqlOrgStore) -> None:
    desk.execute("DELETE FROM orgs")
    with pytest.raises(SealBrokenError, match="removed"):
        store.create_org(org_row(), ROW_KEY, [leaf_of(b"created")])


class MeanwhileReader(store_sql.SqlReader):
    """Somebody else makes the org right after the first look for it."""

    other: ClassVar[SqlStore]
    org = "north-clinic"

    def _one(self, statement: Any, *values: Any) -> Any:
        row = super()._one(statement, *values)
        if statement is statements.SELECT_ORG:
            with suppress(StoreBusyError), pytest.MonkeyPatch.context() as patch:
                patch.setattr(store_sql, "SqlReader", MeanwhileReader.__base__)
                self.other.create_org(org_row(self.org), ROW_KEY, [leaf_of(b"created")])
        return row


def test_an_org_made_between_two_looks_does_not_pass_for_a_removed_one(
    desk: Desk, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    MeanwhileReader.other = open_store(desk.url, wait_ms=50)
    monkeypatch.setattr(store_sql, "SqlReader", MeanwhileReader)
    assert store.org("north-clinic") is None
    # The control: the same two looks, each on its own.
    monkeypatch.setattr(MeanwhileReader, "org", "south-clinic")
    monkeypatch.setattr(store._engine, "reading", store._engine.peeking)
    with pytest.raises(SealBrokenError, match="removed"):
        store.org("south-clinic")
    MeanwhileReader.other.close()


@pytest.mark.parametrize("row_key", [b"k" * 32, ROW_KEY[::-1]])
def test_an_org_whose_row_carries_another_seal_is_not_opened(
    store: SqlStore, org: SqlOrgStore, row_key: bytes
) -> None:
    with pytest.raises(SealBrokenError):
        store.scoped(org_row(), row_key)


def test_an_org_that_is_not_there_is_not_opened(store: SqlStore) -> None:
    with pytest.raises(SealBrokenError):
        store.scoped(org_row("south-clinic"), ROW_KEY)


def test_a_leaf_knows_its_place_and_the_policy_digest_moves_with_the_head(org: SqlOrgStore) -> None:
    for digest in ("one", None, "two"):
        with org.writing(WAIT_MS, audited=True) as writer:
            writer.append([leaf_of(b"x"), leaf_of(b"y")], digest)
    with org.reading(WAIT_MS) as reader:
        assert reader.head().policy_digest == "two"
    assert chain_holds(org) == 7


def test_a_transaction_that_did_not_lock_the_log_may_not_append_to_it(org: SqlOrgStore) -> None:
    with pytest.raises(StoreError, match="lock"), org.writing(WAIT_MS, audited=False) as writer:
        writer.append([leaf_of(b"x")])


def test_a_sequence_number_is_given_once(desk: Desk, org: SqlOrgStore) -> None:
    with pytest.raises(Exception, match=r"UNIQUE|audit_leaves_pkey"):
        desk.execute("INSERT INTO audit_leaves VALUES ('north-clinic', 0, x'00')")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO audit_leaves VALUES ('north-clinic', 3, x'00')",
        "DELETE FROM audit_leaves WHERE seq = 2",
        "UPDATE audit_leaves SET leaf = x'00' WHERE seq = 2",
        "UPDATE audit_leaves SET seq = 9 WHERE seq = 2",
        "DELETE FROM audit_leaves",
    ],
)
def test_nobody_appends_to_a_log_whose_end_is_not_what_the_head_names(
    desk: Desk, org: SqlOrgStore, statement: str
) -> None:
    with org.writing(WAIT_MS, audited=True) as writer:
        writer.append([leaf_of(b"x"), leaf_of(b"y")])
    desk.execute(statement)
    with pytest.raises(AuditBrokenError), org.writing(WAIT_MS, audited=True) as writer:
        writer.append([leaf_of(b"z")])


def appending(append: Callable[[], None], threads: int = 4, times: int = 12) -> list[BaseException]:
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def work() -> None:
        start.wait()
        for _ in range(times):
            try:
                append()
            except BaseException as error:
                errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


def test_threads_that_append_at_once_never_fork_the_log(org: SqlOrgStore) -> None:
    def append() -> None:
        with org.writing(30_000, audited=True) as writer:
            writer.append([leaf_of(b"x")])

    assert appending(append) == []
    assert chain_holds(org) == 1 + 48


def test_an_appender_that_looks_before_it_locks_forks_the_log(desk: Desk, org: SqlOrgStore) -> None:
    both_looked = threading.Barrier(2)

    def append() -> None:
        with org.reading(WAIT_MS) as reader:
            head = reader.head()
        both_looked.wait()
        with org._engine.writing(WAIT_MS, "north-clinic") as connection:
            store_sql.SqlWriter(org._engine, connection, "north-clinic", ROW_KEY, head).append([leaf_of(b"x")])

    if desk.server is None:  # without the primary key as a second wall
        desk.execute("CREATE TABLE copy (org TEXT, seq INTEGER, leaf BLOB)")
        desk.execute("INSERT INTO copy SELECT * FROM audit_leaves")
        desk.execute("DROP TABLE audit_leaves")
        desk.execute("ALTER TABLE copy RENAME TO audit_leaves")
    else:
        desk.execute("ALTER TABLE audit_leaves DROP CONSTRAINT audit_leaves_pkey")
    assert appending(append, threads=2, times=1) == []
    twice = desk.execute("SELECT seq FROM audit_leaves GROUP BY seq HAVING count(*) > 1")
    assert twice == [(1,)], "the control has to fork"
    with pytest.raises(AssertionError):
        chain_holds(org)


def test_the_unique_sequence_number_stops_a_fork_that_the_lock_did_not(org: SqlOrgStore) -> None:
    both_looked = threading.Barrier(2)

    def append() -> None:
        with org.reading(WAIT_MS) as reader:
            head = reader.head()
        both_looked.wait()
        with org._engine.writing(WAIT_MS, "north-clinic") as connection:
            store_sql.SqlWriter(org._engine, connection, "north-clinic", ROW_KEY, head).append([leaf_of(b"x")])

    errors = appending(append, threads=2, times=1)
    assert [type(error) for error in errors] == [StoreError]
    assert chain_holds(org) == 2


_APPENDING = """
import sys
from test_store import ROW_KEY, leaf_of, open_store, org_row
store = open_store(sys.argv[1])
org = store.scoped(org_row(), ROW_KEY)
sys.stdin.readline()
for _ in range(15):
    with org.writing(30_000, audited=True) as writer:
        writer.append([leaf_of(b"x"), leaf_of(b"y")])
store.close()
"""


def test_processes_that_append_at_once_never_fork_the_log(desk: Desk, org: SqlOrgStore) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _APPENDING, desk.url],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parent,
        )
        for _ in range(3)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    assert [(worker.communicate(timeout=60)[1], worker.returncode) for worker in workers] == [(b"", 0)] * 3
    assert chain_holds(org) == 1 + 3 * 30


# --- looking ----------------------------------------------------------------------------------------------------


def test_sessions_are_paged_by_id_without_gap_or_repeat(org: SqlOrgStore) -> None:
    ids = sorted(["a", "a b", "ab", "b/../c", "case-1", "case-10", "case-2", "\u00fc", "\U0001f600", "~"])
    with org.writing(WAIT_MS, audited=False) as writer:
        for at, name in enumerate(ids):
            writer.insert_session(session_row(name, bytes([at]) * 16), scope_row(bytes([at]) * 16))
    for count in (1, 3, 10, 100):
        found: list[str] = []
        with org.reading(WAIT_MS) as reader:
            while page := reader.sessions(found[-1] if found else "", count):
                assert len(page) <= count
                found += [row.session_id for row in page]
        assert found == sorted(ids, key=lambda name: name.encode())


def test_leaves_are_paged_without_gap_or_repeat(org: SqlOrgStore) -> None:
    with org.writing(WAIT_MS, audited=True) as writer:
        writer.append([leaf_of(b"x")] * 24)
    with org.reading(WAIT_MS) as reader:
        whole = reader.leaves(0, 1_000)
        paged = [leaf for start in range(0, 25, 7) for leaf in reader.leaves(start, 7)]
        assert paged == whole
        assert len(whole) == 25
        assert reader.leaves(25, 7) == []


def test_only_results_that_changed_since_a_version_are_read_in_the_order_of_their_numbers(
    session: SqlOrgStore,
) -> None:
    with session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_results([result_row(3, 1), result_row(1, 2), result_row(2, 3)])
    with session.reading(WAIT_MS) as reader:
        assert [row.number for row in reader.results(SCOPE, -1)] == [1, 2, 3]
        assert [row.number for row in reader.results(SCOPE, 1)] == [1, 2]
        assert [row.number for row in reader.results(SCOPE, 3)] == []
        assert reader.results(b"o" * 16, -1) == []


def test_a_batch_is_found_by_its_request_or_by_its_key_never_across_sessions(session: SqlOrgStore) -> None:
    plain = BatchRow(SCOPE, b"a" * 16, b"r" * 32, None, "{}", 0)
    keyed = BatchRow(SCOPE, b"b" * 16, b"q" * 32, "key", "{}", 0)
    with session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_batch(plain)
        writer.insert_batch(keyed)
    with session.reading(WAIT_MS) as reader:
        assert reader.batch(SCOPE, b"r" * 32, None) == plain
        assert reader.batch(SCOPE, b"anything", "key") == keyed
        assert reader.batch(SCOPE, b"z" * 32, None) is None
        assert reader.batch(SCOPE, b"r" * 32, "no such key") is None
        assert reader.batch(b"o" * 16, b"r" * 32, None) is None
        assert reader.batch(b"o" * 16, b"q" * 32, "key") is None


def test_nothing_of_one_org_is_found_through_another(store: SqlStore, session: SqlOrgStore) -> None:
    with session.writing(WAIT_MS, audited=False) as writer:
        writer.insert_results([result_row(1)])
        writer.insert_originals([StoredOriginal(b"1" * 16, b"envelope")])
        writer.insert_batch(BatchRow(SCOPE, b"a" * 16, b"r" * 32, None, "{}", 0))
    other = store.scoped(store.create_org(org_row("south-clinic"), ROW_KEY, [leaf_of(b"created")]), ROW_KEY)
    with other.reading(WAIT_MS) as reader:
        assert reader.session("case") is None
        assert reader.scope(SCOPE) is None
        assert reader.results(SCOPE, -1) == []
        assert reader.find("case", 1) is None
        assert reader.envelope(b"1" * 16) is None
        assert reader.batch(SCOPE, b"r" * 32, None) is None
        assert reader.sessions("", 10) == []
        assert len(reader.leaves(0, 10)) == 1


_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@settings(max_examples=40)
@given(
    st.lists(st.binary(max_size=2_000), min_size=1, max_size=4),
    st.one_of(st.none(), st.binary(max_size=50)),
    st.integers(0, 2**63 - 1),
    _NAMES,
)
def test_every_value_a_row_can_hold_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, blobs: list[bytes], maybe: bytes | None, number: int, name: str
) -> None:
    folder = tmp_path_factory.mktemp("store")
    with closing(open_store(f"sqlite:///{folder}/evidence.db")) as store:
        org = store.scoped(store.create_org(org_row(name), ROW_KEY, [leaf_of(b"created")]), ROW_KEY)
        session = session_row(name)
        rows = [
            result_row(at, call_id=blob, tool_name=blob, part=maybe, tokens=number, kind=name, sensitivity=name)
            for at, blob in enumerate(blobs, 1)
        ]
        with org.writing(WAIT_MS, audited=False) as writer:
            writer.insert_session(session, scope_row())
            writer.insert_results(rows)
        with org.reading(WAIT_MS) as reader:
            assert reader.results(SCOPE, -1) == rows
            assert reader.find(name, 1) == (session, scope_row(), rows[0])


def test_every_failure_of_the_store_is_of_the_tree(session: SqlOrgStore) -> None:
    with pytest.raises(EvidenceArchiveError) as caught, session.writing(WAIT_MS, audited=False) as writer:
        writer._cursor().execute("SELECT * FROM nowhere")
    assert "nowhere" not in str(caught.value)
