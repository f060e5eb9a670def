"""The engine: durable by the rules of the linked SQLite, and every failure of file, disk or lock is a typed error.

Each fault is made under an open archive. What was acknowledged is still there afterwards, what failed can be tried
again, and the same objects go on without a restart.
"""

import errno
import gc
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from sqlalchemy import event, make_url
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from evidence_archive import Archive, BatchRejectedError, Principal
from evidence_archive.errors import (
    EvidenceArchiveError,
    MisuseError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from evidence_archive.model import Limits
from evidence_archive.policy import Policy
from evidence_archive.store import open_store
from evidence_archive.store.engine import POOL_CONNECTIONS_MAX, SqlEngine, open_engine
from evidence_archive.store.sqlite import SqliteEngine, journal_rules, translated

SECRET = "a-made-up-finding-that-must-stay-inside " * 40
WAIT_MS = 120
ENGINE_FILES = {kind.__init__.__code__.co_filename for kind in (SqlEngine, SqliteEngine)}


@pytest.fixture
def desk(sqlite_desk: Desk) -> Desk:
    """What is tried here is SQLite; PostgreSQL has tests of its own."""
    return sqlite_desk


@contextmanager
def opened(desk: Desk) -> Iterator[SqliteEngine]:
    engine = open_engine(desk.url, create=True)
    try:
        yield engine
    finally:
        engine.close()


def run(connection: Any, statement: str, values: tuple[Any, ...] = ()) -> Any:
    return connection.driver_connection.execute(statement, values).fetchone()


def engine_of(archive: Archive) -> SqliteEngine:
    engine: SqliteEngine = archive._around.store._engine  # type: ignore[attr-defined]
    return engine


def hasty() -> Policy:
    """The default policy with waits short enough for a test."""
    limits = f"[limits]\nview_wait_ms_max = {WAIT_MS}\nstore_wait_ms_max = {WAIT_MS}\n"
    policy = Policy.loads('[policy]\nname = "hasty"\nversion = 1\ndefault = "allow"\n' + limits)
    assert policy.limits.store_wait_ms_max == WAIT_MS
    return policy


def hygienic(error: BaseException) -> None:
    """The words of an error are ours: no SQL, no parameters, no evidence."""
    text = f"{error!s} {error!r} {error.args!r}"
    for word in ("SELECT", "INSERT", "UPDATE", "PRAGMA", "BEGIN", "sqlite3.", "[SQL", "parameters", SECRET[:20]):
        assert word not in text


# --- durability -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        ((3, 6, 23), "truncate"),
        ((3, 7, 0), "truncate"),
        ((3, 34, 1), "truncate"),
        ((3, 40, 1), "truncate"),
        ((3, 44, 5), "truncate"),
        ((3, 44, 6), "wal"),
        ((3, 44, 99), "wal"),
        ((3, 45, 0), "truncate"),
        ((3, 50, 6), "truncate"),
        ((3, 50, 7), "wal"),
        ((3, 51, 0), "truncate"),
        ((3, 51, 2), "truncate"),
        ((3, 51, 3), "wal"),
        ((3, 52, 0), "wal"),
        ((4, 0, 0), "wal"),
    ],
)
def test_the_journal_mode_follows_the_linked_version(version: tuple[int, int, int], mode: str) -> None:
    assert journal_rules(version) == {"wal": ("wal", 2), "truncate": ("truncate", 3)}[mode]


def test_the_pragmas_that_durability_needs_hold_on_a_real_connection(desk: Desk) -> None:
    mode, synchronous = journal_rules(sqlite3.sqlite_version_info)
    with opened(desk) as engine, engine.connection(250) as connection:
        read = {
            name: run(connection, f"PRAGMA {name}")[0]
            for name in (
                *("journal_mode", "synchronous", "foreign_keys", "trusted_schema", "secure_delete"),
                *("temp_store", "busy_timeout"),
            )
        }
    assert read == {
        "journal_mode": mode,
        "synchronous": synchronous,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "secure_delete": 1,
        "temp_store": 2,
        "busy_timeout": 250,
    }


def test_both_journal_modes_work_and_a_database_changes_from_one_to_the_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ((3, 51, 3), (3, 40, 1), (3, 51, 3)):
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        with desk.open() as archive:
            archive.session("case", Principal(org="o", subject="s")).results()
            with engine_of(archive).connection(100) as connection:
                assert run(connection, "PRAGMA journal_mode")[0] == journal_rules(version)[0]


def test_a_pragma_that_does_not_take_is_refused() -> None:
    class Deaf:
        def execute(self, _statement: str) -> Any:
            return self

        def fetchone(self) -> tuple[str]:
            return ("memory",)

    with pytest.raises(StoreError, match="durability"):
        SqliteEngine._set(Deaf(), "journal_mode", "truncate")  # type: ignore[arg-type]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_database_and_its_journal_are_readable_by_their_owner_only(desk: Desk, umask: int) -> None:
    before = os.umask(umask)
    try:
        with opened(desk) as engine, engine.writing(100) as connection:
            run(connection, "CREATE TABLE t (x)")
            names = sorted(path.name for path in desk.folder.glob("evidence.db*"))
            modes = {stat.S_IMODE((desk.folder / name).stat().st_mode) for name in names}
    finally:
        os.umask(before)
    assert len(names) >= 2, "a journal has to be there during a transaction"
    assert modes == {0o600}


# --- what is no database file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        *("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"),
        *("sqlite:///file:x?mode=memory", "postgresql://127.0.0.1:1", "mysql://localhost/x", "nonsense", "", "://"),
    ],
)
def test_a_url_that_names_no_file_is_refused_because_it_would_keep_nothing(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_engine(url, create=True)
    hygienic(caught.value)


@pytest.mark.parametrize(
    "driver", ["postgresql://user:s3cr3t@127.0.0.1:1/db", "mysql://user:s3cr3t@host/db", "s3cr3t@@://"]
)
def test_a_refused_url_is_not_repeated_in_the_error(driver: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_engine(driver, create=True)
    assert "s3cr3t" not in str(caught.value)


def test_a_missing_file_is_not_made_where_only_looking_was_asked_for(desk: Desk) -> None:
    with pytest.raises(StoreUnavailableError, match="no database"):
        desk.open(create=False)
    assert sorted(path.name for path in desk.folder.iterdir()) == ["evidence.keys"]


def test_a_missing_folder_is_a_typed_error(desk: Desk) -> None:
    with pytest.raises(StoreUnavailableError, match="folder"):
        Archive.open(f"sqlite:///{desk.folder}/nowhere/evidence.db", keys=desk.keys)


def test_a_folder_in_the_place_of_the_file_is_a_typed_error(desk: Desk) -> None:
    desk.database.mkdir()
    for create in (True, False):
        with pytest.raises(StoreUnavailableError):
            desk.open(create=create)


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read " * 30, b"\x00" * 4096])
def test_a_file_that_is_no_database_is_a_typed_error_and_is_left_alone(desk: Desk, content: bytes) -> None:
    desk.database.write_bytes(content)
    with pytest.raises(StoreUnavailableError) as caught:
        desk.open()
    hygienic(caught.value)
    assert desk.database.read_bytes() == content


# --- faults while it is open ------------------------------------------------------------------------------------


class Work:
    """One conversation with an archived original, and more to do."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.archive = desk.open(policy=hasty())
        self.principal = Principal(org="north-clinic", subject="triage-agent")
        self.session = self.archive.session("case", self.principal)
        self.talk = Conversation()
        self.talk.tool(SECRET + "1")
        self.talk.say()
        self.view()
        self.session.archive([("r1", "first looked normal")])
        self.talk.tool(SECRET + "2")
        self.talk.say()
        self.view()

    def view(self) -> list[Any]:
        return self.session.view(self.talk.messages)

    def fails(self, kind: type[EvidenceArchiveError] = StoreUnavailableError, *, readable: bool = False) -> None:
        """Every verb fails typed and promptly, nothing is lost from view, and nothing is half done.

        Where the store can still be read, notes stand: what they stand for is known to be there.
        """
        began = time.monotonic()
        with pytest.raises(kind) as restoring:
            self.session.restore("r1")
        hygienic(restoring.value)
        with pytest.raises(BatchRejectedError) as archiving:
            self.session.archive([("r2", "second looked normal")])
        assert archiving.value.reason == "store_unavailable"
        hygienic(archiving.value)
        self.talk.tool(SECRET + "new while away")
        shown = [message["content"] for message in self.view() if message["role"] == "tool"]
        if readable:
            assert shown[0].startswith("[archived r1 ")
        else:
            assert shown[0].endswith(SECRET + "1"), "an outage shows every original that the messages hold"
        assert shown[-1] == SECRET + "new while away"
        assert time.monotonic() - began < 5

    def goes_on(self) -> None:
        """The same objects work again, and what was acknowledged is there."""
        assert self.session.restore("r1").content == SECRET + "1"
        self.talk.say()
        shown = [message["content"] for message in self.view() if message["role"] == "tool"]
        assert shown[0].startswith("[archived r1 ")
        self.session.archive([("r2", "second looked normal")])
        assert self.archive.restore("case", "r2", principal=self.principal).content == SECRET + "2"
        assert self.archive.audit(principal=self.principal).intact


@pytest.fixture
def work(desk: Desk) -> Iterator[Work]:
    working = Work(desk)
    yield working
    working.archive.close()


def test_a_file_that_is_gone_while_open_is_a_typed_error_until_it_is_back(work: Work, tmp_path: Path) -> None:
    away = tmp_path / "away.db"
    work.desk.database.rename(away)
    work.fails()
    assert not work.desk.database.exists(), "nothing may be made in its place"
    away.rename(work.desk.database)
    work.goes_on()


def test_a_file_that_was_replaced_while_open_is_given_up_and_then_opened_anew(work: Work, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(work.desk.database, copy)
    os.replace(copy, work.desk.database)
    with pytest.raises(StoreUnavailableError, match="replaced"):
        work.session.restore("r1")
    work.goes_on()


def test_all_connections_to_a_replaced_file_are_given_up_at_once(desk: Desk, tmp_path: Path) -> None:
    with opened(desk) as engine:
        held = [engine.connection(100) for _ in range(4)]
        for one in held:
            one.__enter__()
        for one in held:
            one.__exit__(None, None, None)
        copy = tmp_path / "copy.db"
        shutil.copy(desk.database, copy)
        os.replace(copy, desk.database)
        failures = 0
        for _ in range(4):
            try:
                with engine.writing(100) as connection:
                    run(connection, "CREATE TABLE IF NOT EXISTS t (x)")
            except StoreUnavailableError:
                failures += 1
        assert failures == 1
        with closing(sqlite3.connect(desk.database)) as straight:
            assert straight.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]


def test_a_commit_into_a_file_that_was_replaced_meanwhile_is_not_acknowledged(desk: Desk, tmp_path: Path) -> None:
    with opened(desk) as engine:

        def written_while_replaced() -> None:
            with engine.writing(100) as connection:
                run(connection, "CREATE TABLE t (x)")
                copy = tmp_path / "copy.db"
                copy.write_bytes(b"")
                os.replace(copy, desk.database)

        with pytest.raises(StoreUnavailableError, match="replaced"):
            written_while_replaced()
        with closing(sqlite3.connect(desk.database)) as straight:
            assert straight.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_a_file_that_is_replaced_while_a_connection_is_made_is_not_taken_for_the_new_one(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(desk) as engine:
        connect = sqlite3.connect

        def slowly(*given: Any, **named: Any) -> sqlite3.Connection:
            connection = connect(*given, **named)
            connection.execute("PRAGMA journal_mode").fetchone()  # the old file is open
            monkeypatch.setattr(sqlite3, "connect", connect)
            shutil.copy(desk.database, tmp_path / "copy.db")
            os.replace(tmp_path / "copy.db", desk.database)
            return connection

        monkeypatch.setattr(sqlite3, "connect", slowly)
        with pytest.raises(StoreUnavailableError, match="replaced"), engine.connection(100):
            pass
        with engine.connection(100) as connection:
            assert run(connection, "SELECT 1") == (1,)


def test_a_connection_that_cannot_roll_back_is_never_used_again(desk: Desk) -> None:
    with opened(desk) as engine:

        def broken() -> None:
            with engine.writing(100) as connection:
                connection.driver_connection.close()  # type: ignore[union-attr]
                raise ZeroDivisionError

        with pytest.raises((ZeroDivisionError, StoreError)):
            broken()
        with engine.writing(100) as connection:
            assert run(connection, "SELECT 1") == (1,)


def test_whatever_the_pool_raises_is_a_typed_error() -> None:
    with pytest.raises(StoreUnavailableError, match="No connection") as caught, translated():
        raise PoolTimeoutError("QueuePool limit of size 16 [SQL: SELECT made_up]")
    hygienic(caught.value)


def test_a_naive_writer_would_acknowledge_what_nobody_will_ever_read(desk: Desk, tmp_path: Path) -> None:
    with closing(sqlite3.connect(desk.database, isolation_level=None)) as naive:
        naive.execute("CREATE TABLE t (x)")
        copy = tmp_path / "copy.db"
        shutil.copy(desk.database, copy)
        naive.execute("BEGIN IMMEDIATE")
        naive.execute("INSERT INTO t VALUES (1)")
        os.replace(copy, desk.database)
        naive.execute("COMMIT")  # no error
    with closing(sqlite3.connect(desk.database)) as straight:
        assert straight.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_read_only_database_still_restores_nothing_unaudited_and_goes_on_afterwards(work: Work) -> None:
    engine = engine_of(work.archive).engine

    def read_only(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA query_only=ON")

    event.listen(engine, "checkout", read_only)
    with pytest.raises(StoreUnavailableError, match="read-only"):
        work.session.restore("r1")
    with pytest.raises(BatchRejectedError, match="read-only"):
        work.session.archive([("r2", "second looked normal")])
    event.remove(engine, "checkout", read_only)
    event.listen(engine, "checkout", lambda connection, *_: connection.execute("PRAGMA query_only=OFF"))
    work.goes_on()


def test_a_full_database_archives_nothing_and_goes_on_once_there_is_room(work: Work) -> None:
    engine = engine_of(work.archive).engine
    pages_max = [1]

    def bounded(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages_max[0]}")

    event.listen(engine, "checkout", bounded)
    with closing(sqlite3.connect(work.desk.database)) as straight:
        before = straight.execute("SELECT count(*) FROM originals").fetchone()
        while straight.execute("PRAGMA freelist_count").fetchone() != (0,):
            straight.execute("CREATE TABLE IF NOT EXISTS filler (x)")
            straight.execute("INSERT INTO filler VALUES (zeroblob(4000))")
            straight.commit()
    incompressible = os.urandom(60_000).hex()
    work.talk.tool(incompressible)
    work.talk.say()
    work.view()
    with pytest.raises(BatchRejectedError, match="full") as caught:
        work.session.archive([("r3", "a large one")])
    hygienic(caught.value)
    with closing(sqlite3.connect(work.desk.database)) as straight:
        assert straight.execute("SELECT count(*) FROM originals").fetchone() == before
        assert straight.execute("SELECT count(*) FROM results WHERE state = 'archived'").fetchone() == (1,)
    assert incompressible in work.view()[-2]["content"]
    pages_max[0] = 1_000_000
    work.session.archive([("r3", "a large one")])
    assert work.session.restore("r3").content == incompressible
    work.goes_on()


def test_a_lock_held_elsewhere_is_busy_within_the_bound_and_goes_on_afterwards(work: Work) -> None:
    with closing(sqlite3.connect(work.desk.database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        work.fails(StoreBusyError)
        other.execute("ROLLBACK")
    work.goes_on()


def test_a_first_connection_waits_for_a_lock_no_longer_than_it_may(desk: Desk) -> None:
    with opened(desk) as engine, closing(sqlite3.connect(desk.database, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(StoreBusyError), engine.connection(WAIT_MS) as connection:
            run(connection, "SELECT 1")
        assert time.monotonic() - began < 2


def test_a_caller_beyond_the_last_connection_waits_no_longer_than_it_may(desk: Desk) -> None:
    with opened(desk) as engine:
        held = [engine.connection(100) for _ in range(POOL_CONNECTIONS_MAX)]
        for one in held:
            one.__enter__()
        began = time.monotonic()
        with pytest.raises(StoreBusyError, match="in use"), engine.connection(WAIT_MS):
            pass
        assert time.monotonic() - began < 2
        for one in held:
            one.__exit__(None, None, None)
        with engine.connection(WAIT_MS) as connection:
            assert run(connection, "SELECT 1")[0] == 1


def test_a_writer_waits_for_the_one_before_it_instead_of_failing(desk: Desk) -> None:
    with opened(desk) as engine:
        with engine.writing(100) as connection:
            run(connection, "CREATE TABLE t (x INTEGER)")
        errors: list[BaseException] = []

        def add() -> None:
            try:
                for _ in range(10):
                    with engine.writing(5_000) as connection:
                        seen = run(connection, "SELECT count(*) FROM t")[0]
                        run(connection, "INSERT INTO t VALUES (?)", (seen,))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        with engine.reading(100) as connection:
            assert run(connection, "SELECT count(DISTINCT x), count(*) FROM t") == (40, 40)


@pytest.mark.parametrize("place", ["header", "middle"])
def test_a_damaged_file_is_a_typed_error_and_a_backup_put_back_goes_on(
    work: Work, place: str, tmp_path: Path
) -> None:
    backup = work.desk.database.read_bytes()
    with work.desk.database.open("r+b") as file:
        file.seek(0 if place == "header" else 100)
        file.write(b"\xff" * (64 if place == "header" else len(backup) - 100))
    # A page cache may still answer; what reads the file anew must not.
    with pytest.raises(StoreUnavailableError) as caught, work.desk.open(policy=hasty(), create=False) as again:
        again.session("case", work.principal).restore("r1")
    hygienic(caught.value)
    restored = tmp_path / "backup.db"
    restored.write_bytes(backup)
    os.replace(restored, work.desk.database)
    with work.desk.open(policy=hasty()) as again:
        assert again.restore("case", "r1", principal=work.principal).content == SECRET + "1"


_CHILD_PRELUDE = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from conftest import Desk
from test_engine import Work, StoreUnavailableError
"""


def in_own_mounts(tmp_path: Path, body: str) -> None:
    """Run a script in a mount namespace of its own, where it may mount without touching anybody else."""
    unshare = shutil.which("unshare")
    probe = 'mount -t tmpfs -o size=1m none "$1" && umount "$1"'
    if (
        unshare is None
        or subprocess.run([unshare, "-m", "sh", "-c", probe, "sh", tmp_path], capture_output=True).returncode
    ):
        pytest.skip("mounting needs root: a read-only and a full file system were NOT tried")
    code = _CHILD_PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [unshare, "-m", sys.executable, "-c", code, tmp_path, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "went on"), done.stderr


def test_a_file_system_that_turns_read_only_is_survived(tmp_path: Path) -> None:
    in_own_mounts(
        tmp_path,
        """
        folder = Path(sys.argv[1])
        assert os.system(f"mount -t tmpfs -o size=16m none '{folder}'") == 0
        from evidence_archive.keys import new_keys
        new_keys(folder / "evidence.keys")
        work = Work(Desk(folder))
        assert os.system(f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}'") == 0
        work.fails(readable=True)
        assert os.system(f"umount '{folder}'") == 0
        work.goes_on()
        print("went on")
        """,
    )


def test_a_file_system_that_is_full_is_survived(tmp_path: Path) -> None:
    in_own_mounts(
        tmp_path,
        """
        folder = Path(sys.argv[1])
        assert os.system(f"mount -t tmpfs -o size=2m none '{folder}'") == 0
        from evidence_archive.keys import new_keys
        new_keys(folder / "evidence.keys")
        work = Work(Desk(folder))
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                pass
        work.fails(readable=True)
        filler.unlink()
        work.goes_on()
        print("went on")
        """,
    )


# --- interrupts ---------------------------------------------------------------------------------------------------


class Interrupt:
    """Raises at the ``at``-th line that is executed in some functions, and counts the lines."""

    def __init__(self, at: int, kind: type[BaseException], codes: set[Any] | None) -> None:
        self.at, self.kind, self.codes, self.lines = at, kind, codes, 0

    def _call(self, frame: Any, _event: str, _what: object) -> Any:
        code = frame.f_code
        traced = code.co_filename in ENGINE_FILES if self.codes is None else code in self.codes
        return self._line if traced else None

    def _line(self, _frame: Any, event: str, _what: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                sys.settrace(None)
                raise self.kind
        return self._line

    def during(self, operation: Any) -> BaseException | None:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            operation()
        except self.kind as interrupt:
            return interrupt  # with its traceback, as a debugger or a log keeps it
        finally:
            sys.settrace(before)
        return None


def write_one(engine: SqliteEngine) -> None:
    with engine.writing(WAIT_MS) as connection:
        run(connection, "INSERT INTO kept VALUES (1)")


def read_one(engine: SqliteEngine) -> None:
    with engine.reading(WAIT_MS) as connection:
        run(connection, "SELECT count(*) FROM kept")


def look_once(engine: SqliteEngine) -> None:
    with engine.connection(WAIT_MS * 2) as connection:
        run(connection, "SELECT count(*) FROM kept")


def interrupted_at_every_line(
    desk: Desk, operation: Any, make: type[SqliteEngine], codes: set[Any] | None = None, *, fresh: bool
) -> list[str]:
    """What is wrong after an interrupt at each line in turn."""
    found = []
    with closing(sqlite3.connect(desk.database)) as other:
        other.execute("CREATE TABLE IF NOT EXISTS kept (number INTEGER)")
    for kind in (KeyboardInterrupt, MemoryError):
        at, engine = 0, make(make_url(desk.url), create=True)
        while True:
            at += 1
            if fresh:
                engine.close()
                engine = make(make_url(desk.url), create=True)
            interrupt = Interrupt(at, kind, codes)
            raised = interrupt.during(lambda used=engine: operation(used))
            if interrupt.lines < at:
                break
            with closing(sqlite3.connect(desk.database, timeout=0, isolation_level=None)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                    other.execute("ROLLBACK")
                except sqlite3.OperationalError as error:
                    found.append(f"line {at}, {kind.__name__}: another writer finds {error}")
            try:
                with ExitStack() as stack:
                    for _ in range(POOL_CONNECTIONS_MAX if fresh or at % 10 == 0 else 1):
                        stack.enter_context(engine.connection(1))
                write_one(engine)
            except StoreError as error:
                found.append(f"line {at}, {kind.__name__}: the engine says {error}")
                engine.close()
                engine = make(make_url(desk.url), create=True)
            del raised
        assert at > 3
        with ExitStack() as stack:
            for taken in range(POOL_CONNECTIONS_MAX):
                try:
                    stack.enter_context(engine.connection(1))
                except StoreBusyError:
                    found.append(f"{kind.__name__}: only {taken} connections are left")
                    break
        engine.close()
    return found


# An interrupt can fall between opening a connection and knowing it; the garbage collector then closes it, loudly.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("operation", [write_one, read_one, look_once])
@pytest.mark.parametrize("fresh", [False, True], ids=["pooled", "fresh"])
def test_an_interrupt_at_any_line_leaves_no_lock_and_loses_no_connection(
    desk: Desk, operation: Any, fresh: bool
) -> None:
    assert interrupted_at_every_line(desk, operation, SqliteEngine, fresh=fresh) == []
    gc.collect()


class BeginningOutside(SqliteEngine):
    """Begins before it is ready to roll back, and the pool trusts it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.engine.pool._reset_on_return = None  # type: ignore[assignment]

    def _transaction(self, connection: Any, begin: str) -> Iterator[Any]:
        connection.driver_connection.execute(begin)
        try:
            yield connection
            connection.driver_connection.execute("COMMIT")
        except BaseException:
            connection.driver_connection.execute("ROLLBACK")
            raise


class CountingOutside(SqliteEngine):
    """Takes a turn before it is ready to give it back."""

    @contextmanager
    def connection(self, wait_ms: int) -> Iterator[Any]:
        turn: Any = threading.Event()
        connection = self._begun(turn, wait_ms)
        try:
            yield connection
        finally:
            self._ended(turn)


@pytest.mark.parametrize(
    ("naive", "codes", "symptom"),
    [
        (BeginningOutside, {BeginningOutside._transaction.__code__}, "database is locked"),
        (CountingOutside, {CountingOutside.connection.__wrapped__.__code__}, "connections are left"),  # type: ignore[attr-defined]
    ],
)
def test_an_engine_that_begins_before_it_can_undo_would_be_caught(
    desk: Desk, naive: type[SqliteEngine], codes: set[Any], symptom: str
) -> None:
    found = interrupted_at_every_line(desk, write_one, naive, codes, fresh=False)
    assert any(symptom in line for line in found), found


def test_a_transaction_that_somebody_left_open_is_rolled_back_before_anybody_else_has_the_connection(
    desk: Desk,
) -> None:
    with opened(desk) as engine:
        with engine.connection(WAIT_MS) as connection:
            run(connection, "BEGIN IMMEDIATE")
        with closing(sqlite3.connect(desk.database, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")


# --- processes and the end --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_archive_that_crossed_a_fork_is_refused_in_the_child_and_works_in_the_parent(work: Work) -> None:
    gc.collect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - measured in the parent
        told = []
        for verb in (
            work.view,
            lambda: work.session.restore("r1"),
            lambda: work.archive.session("another", work.principal),
            lambda: work.archive.restore("case", "r1", principal=work.principal),
            lambda: work.archive.audit(principal=work.principal),
        ):
            try:
                verb()
                told.append("worked")
            except BaseException as error:
                told.append(type(error).__name__)
        work.archive.close()
        os.write(writer, ",".join(told).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    told = os.read(reader, 1_000).decode()
    os.close(reader)
    assert told.split(",") == [MisuseError.__name__] * 5
    work.goes_on()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_a_lock_is_held_is_refused_instead_of_waiting_for_it(work: Work) -> None:
    gc.collect()
    vault = work.archive._vault(work.principal)
    with work.archive._lock, vault._lock:
        child = os.fork()
        if child == 0:  # pragma: no cover - measured in the parent
            signal.alarm(10)  # the end of a child that waits
            refused = 0
            for verb in (
                vault.usable,
                lambda: work.archive.session("another", work.principal),
                lambda: work.archive.restore("case", "r1", principal=work.principal),
                lambda: work.archive.results("case", principal=work.principal),
                lambda: work.archive.audit(principal=work.principal),
                lambda: work.archive.resume("case", principal=work.principal),
            ):
                try:
                    verb()
                except MisuseError:
                    refused += 1
            work.archive.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 6
    work.goes_on()


def test_closing_twice_is_the_same_as_closing_once(desk: Desk) -> None:
    engine = open_engine(desk.url, create=True)
    engine.close()
    engine.close()


def test_the_limits_of_the_engine_are_those_of_the_policy() -> None:
    assert hasty().limits != Limits()


@pytest.mark.parametrize("log", ["-wal", "-journal"])
def test_no_new_file_is_made_beside_the_log_of_one_that_is_gone(tmp_path: Path, log: str) -> None:
    path = tmp_path / "evidence.db"
    left = tmp_path / f"evidence.db{log}"
    left.write_bytes(b"what was acknowledged last")
    with pytest.raises(StoreUnavailableError, match="its log is still there"):
        open_store(f"sqlite:///{path}")
    assert not path.exists()
    assert left.read_bytes() == b"what was acknowledged last"
    left.write_bytes(b"")
    open_store(f"sqlite:///{path}").close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_file_that_may_not_be_written_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "evidence.db"
    path.write_bytes(b"SQLite format 3\0")

    def refuse(*_: Any) -> int:
        raise OSError(number, "refused")

    monkeypatch.setattr("evidence_archive.store.sqlite.os.open", refuse)
    with pytest.raises(StoreUnavailableError, match="read-only here: check the file's and the folder's permissions"):
        open_store(f"sqlite:///{path}")
    path.unlink()
    with pytest.raises(StoreUnavailableError, match="cannot be created"):
        open_store(f"sqlite:///{path}")
