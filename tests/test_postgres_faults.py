"""PostgreSQL under attack: backends killed, servers crashed, answers cut off, conflicts, a pooler in between.

After each fault all of a transaction is there or none of it, what the caller was told is true, and the same objects
go on without a restart.
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import patient, policy_of, telling
from postgres_server import Server, raw, servers, unprivileged
from sqlalchemy import URL, event, make_url
from test_processes import Nursery, promises_kept

from evidence_archive import Archive, BatchRejectedError, NotAvailableError, Principal
from evidence_archive.archiving import Archiving
from evidence_archive.errors import EvidenceArchiveError, StoreConflictError, StoreError, StoreUnavailableError
from evidence_archive.keys import new_keys
from evidence_archive.store import open_store

psycopg = pytest.importorskip("psycopg", reason="sweep: the driver psycopg is missing")

from evidence_archive.store import postgres as store_postgres  # noqa: E402 - only where there is a driver
from evidence_archive.store.postgres import PostgresEngine  # noqa: E402

OWNER = Principal(org="north-clinic", subject="owner")
STATEMENTS_MAX = 80
TRIES_MAX = 50


@pytest.fixture
def desk(postgresql_desk: Desk) -> Desk:
    return postgresql_desk


def finding(name: str, number: int) -> str:
    return f"finding {number} of {name}\r\n" * 60


class Case:
    """A session with three results that were viewed and read."""

    def __init__(self, desk: Desk, archive: Archive, name: str, *, viewed: bool = True) -> None:
        self.desk, self.archive, self.name = desk, archive, name
        self.session, self.talk = archive.session(name, OWNER), Conversation()
        for number in (1, 2, 3):
            self.talk.tool(finding(name, number))
        self.talk.say()
        if viewed:
            self.view()

    def view(self) -> list[str]:
        shown = self.session.view(self.talk.messages)
        return [message["content"] for message in shown if message["role"] == "tool"]

    def archive_all(self) -> str:
        """``all``, ``nothing`` or ``unknown``, as the caller is told; a rejection has to be for want of the store."""
        try:
            self.session.archive([(f"r{number}", f"note {number}") for number in (1, 2, 3)])
        except BatchRejectedError as error:
            return {"store_unavailable": "nothing", "unknown": "unknown"}[error.reason]
        return "all"

    def rows(self, state: str = "%") -> int:
        ((found,),) = self.desk.execute(
            "SELECT count(*) FROM results JOIN sessions USING (org, scope_id) WHERE session_id = ? AND state LIKE ?",
            self.name,
            state,
        )
        return int(found)

    def granted(self) -> int:
        entries = self.archive.audit(principal=OWNER).entries
        return sum((entry.event, entry.session_id) == ("restore.granted", self.name) for entry in entries)


# --- what is tried, and what is wrong after it ------------------------------------------------------------------


def archiving(case: Case) -> Callable[[], list[str]]:
    """Archive three results; a receipt means three, a rejection none, and "unknown" one of these."""
    told = case.archive_all()

    def wrong() -> list[str]:
        found, archived = [], case.rows("archived")
        if archived not in {"all": (3,), "nothing": (0,), "unknown": (0, 3)}[told]:
            found.append(f"told {told}, {archived} are archived")
        for _ in range(TRIES_MAX):
            if case.rows("archived") == 3 or case.archive_all() == "all":
                break
        found += [
            f"r{number} is not what it was"
            for number in (1, 2, 3)
            if case.archive.restore(case.name, f"r{number}", principal=OWNER).content != finding(case.name, number)
        ]
        return found

    return wrong


def restoring(case: Case) -> Callable[[], list[str]]:
    """Restore a result; what was released is in the log."""
    try:
        released = case.session.restore("r1").content == finding(case.name, 1)
    except StoreError:
        released = False

    def wrong() -> list[str]:
        found = [] if case.granted() >= released else ["released, and the log does not know"]
        if case.session.restore("r1").content != finding(case.name, 1):
            found.append("r1 is not what it was")
        return found

    return wrong


def viewing(case: Case) -> Callable[[], list[str]]:
    """View new results; all of them are registered or none, and each once."""
    shown = case.view()
    assert [text.endswith(finding(case.name, number)) for number, text in enumerate(shown, 1)] == [True] * 3

    def wrong() -> list[str]:
        ((counted,),) = case.desk.execute("SELECT next_number - 1 FROM sessions WHERE session_id = ?", case.name)
        found = []
        if case.rows() not in (0, 3) or counted != case.rows():
            found.append(f"{case.rows()} of 3 are registered, {counted} are counted")
        again = case.view()  # what was shown without a label stays without
        if case.rows() != 3 or not all(text.endswith(finding(case.name, at)) for at, text in enumerate(again, 1)):
            found.append(f"{case.rows()} are registered at last")
        return found

    return wrong


class Striker:
    """Strikes once, before the statement that is set, on an archive's connections."""

    def __init__(self, archive: Archive, strike: Callable[[Any], None]) -> None:
        self._strike = strike
        self.at: int | None = None
        self.seen = 0
        engine = archive._around.store._engine.engine  # type: ignore[attr-defined]
        engine.dispose()
        event.listen(engine, "connect", self._listen)

    def _listen(self, connection: Any, _record: object) -> None:
        connection.cursor_factory = telling(connection.cursor_factory, lambda _query: self._heard(connection))

    def _heard(self, connection: Any) -> None:
        if self.at is None:
            return
        self.seen += 1
        if self.seen == self.at:
            self._strike(connection)


def swept(
    desk: Desk, operation: Callable[[Case], Callable[[], list[str]]], strike: Callable[[Any], None]
) -> list[str]:
    """What is wrong after a strike before each statement of an operation in turn."""
    found = []
    with desk.open() as archive:
        striker = Striker(archive, strike)
        for at in range(1, STATEMENTS_MAX):
            case = Case(desk, archive, f"{operation.__name__} {at}", viewed=operation is not viewing)
            if operation is restoring:
                assert case.archive_all() == "all"
            striker.at, striker.seen = at, 0
            wrong = operation(case)
            through, striker.at = striker.seen < at, None
            found += [f"statement {at}: {line}" for line in wrong()]
            if through:
                break
        else:
            pytest.fail("the operation never came to its end")
        assert at > 5, "there have to be statements to strike at"
        assert archive.audit(principal=OWNER).intact
    ((originals, archived),) = desk.execute(
        "SELECT (SELECT count(*) FROM originals), (SELECT count(*) FROM results WHERE state = 'archived')"
    )
    if originals != archived:
        found.append(f"{originals} originals for {archived} notes")
    return found


def killing(desk: Desk) -> Callable[[Any], None]:
    def kill(connection: Any) -> None:
        desk.execute("SELECT pg_terminate_backend(?, 5000)", connection.info.backend_pid)

    return kill


def raising(state: str) -> Callable[[Any], None]:
    def fail(_connection: Any) -> None:
        raise psycopg.errors.lookup(state)("made up")

    return fail


OPERATIONS = pytest.mark.parametrize("operation", [archiving, restoring, viewing])


@OPERATIONS
def test_a_backend_that_is_killed_at_any_statement_leaves_all_or_nothing_and_the_next_call_works(
    desk: Desk, operation: Callable[[Case], Callable[[], list[str]]]
) -> None:
    assert swept(desk, operation, killing(desk)) == []


@OPERATIONS
@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_conflict_at_any_statement_leaves_all_or_nothing_and_the_next_call_works(
    desk: Desk, operation: Callable[[Case], Callable[[], list[str]]], state: str
) -> None:
    assert swept(desk, operation, raising(state)) == []


@pytest.mark.parametrize("operation", [archiving, viewing])
def test_an_engine_that_commits_each_statement_would_be_caught(
    desk: Desk, operation: Callable[[Case], Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(_engine: Any, pooled: Any, _level: str, _wait_ms: int, org: str, *, durable: bool) -> None:
        pooled.driver_connection.execute("SELECT set_config('evidence_archive.org', %s, false)", (org,))

    monkeypatch.setattr(PostgresEngine, "_begin", begin)
    monkeypatch.setattr(PostgresEngine, "_commit", staticmethod(lambda _pooled: None))
    try:
        found = swept(desk, operation, killing(desk))
    except (AssertionError, EvidenceArchiveError) as error:
        found = [repr(error)]  # so much is half done that even the next call fails
    assert found


def test_transactions_that_wait_for_each_other_end_with_one_conflict_and_one_success(desk: Desk) -> None:
    engine = PostgresEngine(make_url(desk.url), create=False)
    with engine.writing(5_000) as connection:
        driver: Any = connection.driver_connection
        driver.execute("CREATE TABLE kept (number int); INSERT INTO kept VALUES (1), (2)")
    met = threading.Barrier(2)
    told: list[str] = []

    def cross(first: int, second: int) -> None:
        try:
            with engine.writing(5_000) as connection:
                driver: Any = connection.driver_connection
                driver.execute("UPDATE kept SET number = number WHERE number = %s", (first,))
                met.wait(10)
                driver.execute("UPDATE kept SET number = number WHERE number = %s", (second,))
            told.append("done")
        except StoreError as error:
            told.append(type(error).__name__)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [StoreConflictError.__name__, "done"]
    engine.close()


# --- the server crashes -----------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Desk]:
    """A database on a server of this test's own."""
    new_keys(tmp_path / "evidence.keys")
    with servers() as server:
        url = server.database(server.role())
        made = Desk(tmp_path, url.render_as_string(hide_password=False), server)
        open_store(made.url).close()
        yield made


def crash(server: Server) -> None:
    """What ``pg_ctl stop -m immediate`` does, and a start that has to recover."""
    assert server.process is not None
    server.process.stop(signal.SIGQUIT)
    server.process.start()


def crashed(own: Desk, rounds: int) -> None:
    assert own.server is not None
    server, printed = own.server, 0
    nursery = Nursery(own)
    try:
        with own.open() as survivor:
            for number in range(rounds):

                def strike(child: int) -> None:
                    crash(server)
                    time.sleep(0.1)  # the worker may find the server again, and go on
                    with suppress(ProcessLookupError):  # or it gave up, as it may
                        os.kill(child, signal.SIGKILL)

                receipts = nursery.round(f"round {number}", kill_after=number, strike=strike)
                assert receipts, "the worker has to have come so far"
                promises_kept(own, f"round {number}", receipts)
                printed += len(receipts)
                assert Case(own, survivor, f"survivor {number}").archive_all() == "all", "the same archive goes on"
    finally:
        nursery.close()
    assert printed >= rounds


def test_no_receipt_that_was_printed_before_a_crash_of_the_server_is_lost(own: Desk) -> None:
    crashed(own, 5)


@pytest.mark.nightly
def test_no_receipt_that_was_printed_before_any_of_500_crashes_is_lost(own: Desk) -> None:
    crashed(own, 500)


def test_a_server_that_acknowledges_before_it_is_durable_would_be_caught(
    own: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own.server is not None
    assert own.server.process is not None
    own.server.process.settings["wal_writer_delay"] = "10s"
    crash(own.server)
    own.server.run(f"ALTER ROLE {make_url(own.url).username} SET synchronous_commit = off")
    begin = PostgresEngine._begin
    monkeypatch.setattr(
        PostgresEngine, "_begin", lambda *given, **named: begin(*given, **{**named, "durable": False})
    )
    with own.open() as archive:
        case = Case(own, archive, "case")
        own.server.run("CHECKPOINT")
        assert case.archive_all() == "all"
        crash(own.server)
        with pytest.raises(NotAvailableError):
            archive.restore("case", "r1", principal=OWNER)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_sync_is_refused(own: Desk, setting: str) -> None:
    assert own.server is not None
    assert own.server.process is not None
    with own.open() as archive:
        Case(own, archive, "case")
        own.server.process.settings[setting] = "off"
        crash(own.server)
        with pytest.raises(StoreError, match="before it is durable"):
            archive.session("another", OWNER)


def test_a_server_that_is_away_is_an_outage_until_it_is_back(own: Desk) -> None:
    assert own.server is not None
    assert own.server.process is not None
    with own.open() as archive:
        case = Case(own, archive, "case")
        assert case.archive_all() == "all"
        own.server.process.stop()
        with pytest.raises(StoreUnavailableError, match="reached"):
            case.session.restore("r1")
        assert case.view() == [finding("case", number) for number in (1, 2, 3)] or case.session.stats().outage
        own.server.process.start()
        assert case.session.restore("r1").content == finding("case", 1)
        assert all(text.startswith("[archived ") for text in case.view())


# --- the connection is cut at COMMIT ----------------------------------------------------------------------------

AT = b"INSERT INTO audit_leaves"
HARMS = ("before", "after", "between", "late", "silent")


class Proxy:
    """Passes everything on, and does harm once: at the COMMIT of a transaction that wrote to the log.

    ``before``: cut, the server never hears of it. ``after``: the server has committed, the answer is cut off.
    ``between``: passed on and cut at once. ``late``: cut, and the server hears of it only later. ``silent``: nothing
    is passed on any more, and nothing is closed.
    """

    def __init__(self, target: URL) -> None:
        self._target = target
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.harm: str | None = None
        self.struck = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            if select.select([self._door], [], [], 0.05)[0]:
                client, _ = self._door.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _dial(self) -> socket.socket:
        host = str(self._target.query.get("host", self._target.host))
        if not host.startswith("/"):
            return socket.create_connection((host, self._target.port or 5432))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{self._target.port or 5432}")
        return server

    def _serve(self, client: socket.socket) -> None:
        with client, self._dial() as server, suppress(OSError):
            writes = False
            while not self._over.is_set():
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    if ready is server:
                        client.sendall(data)
                        continue
                    writes = (writes and b"BEGIN ISOLATION" not in data) or AT in data
                    if self.harm and writes and b"COMMIT\0" in data:
                        harm, self.harm = self.harm, None
                        self.struck += 1
                        self._harm(harm, client, server, data)
                        return
                    server.sendall(data)

    def _harm(self, harm: str, client: socket.socket, server: socket.socket, data: bytes) -> None:
        if harm in ("after", "between"):
            server.sendall(data)
        if harm == "after":
            server.recv(1 << 16)
        if harm == "late":
            client.close()
            self._over.wait(0.2)
            server.sendall(data)
            server.recv(1 << 16)
        if harm == "silent":
            while not self._over.is_set() and not select.select([client], [], [], 0.05)[0]:
                pass  # until the client gives up and closes
            self._over.wait(0.1)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._door.close()


@pytest.fixture
def proxy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(store_postgres, "STATEMENT_MS_MAX", 700)
    monkeypatch.setattr(store_postgres, "ANSWER_MS_MAX", 300)
    made = Proxy(make_url(desk.url))
    yield made
    made.close()


def through(desk: Desk, port: int) -> Archive:
    url = make_url(desk.url)
    url = URL.create(
        "postgresql",
        url.username,
        url.password,
        "127.0.0.1",
        port,
        url.database,
        {"sslmode": "disable", "connect_timeout": "2"},
    )
    policy = policy_of(view_wait_ms_max=1_000, store_wait_ms_max=1_000, store_failures_max=100)
    return Archive.open(url.render_as_string(hide_password=False), keys=desk.keys, policy=policy)


def cut(desk: Desk, proxy: Proxy, harms: list[str]) -> list[str]:
    """What is wrong after an archive and a restore, each cut at its COMMIT in the ways that are named."""
    found = []
    with through(desk, proxy.port) as archive:
        for number, harm in enumerate(harms):
            case = Case(desk, archive, f"round {number}")
            for operation in (archiving, restoring):
                struck, proxy.harm = proxy.struck, harm
                began = time.monotonic()
                wrong = operation(case)
                if time.monotonic() - began > 20:
                    found.append(f"{harm}: waited without bound")
                proxy.harm = None
                assert proxy.struck == struck + 1, f"{operation.__name__}: the harm was not done"
                found += [f"{operation.__name__}, {harm}: {line}" for line in wrong()]
        assert archive.audit(principal=OWNER).intact
        entries = Counter(entry.event for entry in archive.audit(principal=OWNER).entries)
    counted = {name: len(desk.rows(name)) for name in ("originals", "batches")}
    if counted != {"originals": 3 * len(harms), "batches": len(harms)} or entries["batch.accepted"] != len(harms):
        found.append(f"{counted} and {entries['batch.accepted']} entries for {len(harms)} batches")
    return found


def test_whatever_happens_to_the_answer_to_a_commit_nothing_is_lost_doubled_or_told_wrongly(
    desk: Desk, proxy: Proxy
) -> None:
    assert cut(desk, proxy, list(HARMS) * 4) == []


@pytest.mark.nightly
def test_whatever_happens_to_500_commits_nothing_is_lost_doubled_or_told_wrongly(desk: Desk, proxy: Proxy) -> None:
    assert cut(desk, proxy, list(HARMS) * 100) == []


def test_an_archive_that_believes_a_failed_commit_would_be_caught(
    desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believing(self: Archiving, *_given: Any) -> None:
        self._ending = False

    monkeypatch.setattr(Archiving, "_committed", believing)
    assert any("told nothing, 3 are archived" in line for line in cut(desk, proxy, ["after"]))


def test_an_archive_that_looks_without_the_lock_would_be_caught(
    desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looking(self: Archiving, tag: bytes, key: str | None, call: Any) -> Any:
        self._ending = False
        return self._replayed(tag, key, call)

    monkeypatch.setattr(Archiving, "_committed", looking)
    monkeypatch.setattr(Case, "archive_all", told_before_the_end(Case.archive_all))
    found = cut(desk, proxy, ["late"])
    assert any("told nothing, 3 are archived" in line for line in found), found


def told_before_the_end(archive_all: Callable[[Case], str]) -> Callable[[Case], str]:
    """What was told, looked at once the late commit has come."""

    def told(case: Case) -> str:
        result = archive_all(case)
        time.sleep(0.5)
        return result

    return told


def test_a_server_that_falls_silent_in_a_transaction_is_given_up_within_the_bound(desk: Desk, proxy: Proxy) -> None:
    with through(desk, proxy.port) as archive:
        case = Case(desk, archive, "case")
        assert case.archive_all() == "all"
        proxy.harm = "silent"
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            case.session.restore("r1")
        assert time.monotonic() - began < 20


def test_a_server_that_is_silent_from_the_first_word_is_given_up_within_the_bound(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="reached"):
            through(desk, deaf.getsockname()[1])
        assert time.monotonic() - began < 30


# --- a pooler ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pooled(own: Desk) -> Iterator[Desk]:
    """The same database through pgbouncer in transaction mode, with two connections to the server."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("sweep: pgbouncer is missing")
    assert own.server is not None
    assert own.server.process is not None
    folder, url = own.server.process.folder / "pooler", make_url(own.url)
    folder.mkdir()
    to = unprivileged()
    if to:
        os.chown(folder, to["user"], to["group"])
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n{url.database} = host={own.server.process.folder} user={url.username}\n[pgbouncer]\n"
        f"unix_socket_dir = {folder}\nlisten_port = 6432\nauth_type = any\npool_mode = transaction\n"
        "default_pool_size = 2\nmax_client_conn = 100\n"
    )
    pooler = subprocess.Popen([program, "-q", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **to)
    try:
        through_it = url.update_query_dict({"host": str(folder)}).set(port=6432)
        for attempt in count():
            try:
                raw(through_it).close()
                break
            except psycopg.OperationalError:
                assert pooler.poll() is None, "pgbouncer ended"
                assert attempt < 500
                time.sleep(0.02)
        yield Desk(own.folder, through_it.render_as_string(hide_password=False), own.server)
    finally:
        pooler.terminate()
        pooler.wait(30)


def test_eight_threads_work_through_two_pooled_connections(pooled: Desk) -> None:
    errors: list[BaseException] = []

    def work(archive: Archive, number: int) -> None:
        try:
            for turn in range(4):
                case = Case(pooled, archive, f"case {number} {turn}")
                assert case.archive_all() == "all"
                assert case.session.restore("r2").content == finding(case.name, 2)
                assert all(text.startswith("[archived ") for text in case.view())
        except BaseException as error:
            errors.append(error)

    with pooled.open(policy=patient()) as archive:
        threads = [threading.Thread(target=work, args=(archive, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        report = archive.audit(principal=OWNER)
        assert report.intact
        assert sum(entry.event == "batch.accepted" for entry in report.entries) == 32
    assert len(pooled.rows("originals")) == 96
    assert pooled.server is not None
    name = make_url(pooled.url).database
    ((connected,),) = pooled.server.run(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND application_name NOT LIKE '%admin%' "
        f"AND usename <> 'postgres'"
    )
    assert connected <= 2


def orgs_seen_by_a_stranger(pooled: Desk) -> set[str]:
    """What clients that named no org find on the pooler's connections."""
    found = set()
    clients = [raw(make_url(pooled.url), prepare_threshold=None) for _ in range(2)]
    for client in clients:  # together they hold both connections to the server
        client.execute("BEGIN")
        found |= {row[0] for row in client.execute("SELECT org FROM sessions")}
    for client in clients:
        client.close()
    return found


def test_no_org_stays_behind_on_a_pooled_connection(pooled: Desk) -> None:
    with pooled.open() as archive:
        Case(pooled, archive, "case")
    assert orgs_seen_by_a_stranger(pooled) == set()
    with raw(make_url(pooled.url), prepare_threshold=None) as naive:
        naive.execute("SELECT set_config('evidence_archive.org', 'north-clinic', false)")
    assert orgs_seen_by_a_stranger(pooled) == {"north-clinic"}, "the control leaves its org behind"


def test_a_pooler_that_loses_the_server_is_survived(pooled: Desk) -> None:
    assert pooled.server is not None
    with pooled.open() as archive:
        case = Case(pooled, archive, "case")
        crash(pooled.server)
        for _ in range(TRIES_MAX):  # the pooler finds out connection by connection
            if case.rows("archived") or case.archive_all() == "all":
                break
            time.sleep(0.1)
        assert case.session.restore("r1").content == finding("case", 1)
        assert case.rows("archived") == 3
