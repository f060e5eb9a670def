"""Faults of stores that users of comparable systems reported: what is written, read back, kept and collected.

The id at the head of a docstring is the fault's number; the name says what is right. Sweeps over every place such a
fault can fall on are in ``sweeps``; here is the whole story of one, on each engine.
"""

import errno
import io
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import UNANSWERED, UNCOMMITTED, Characters, Flaky, listen_to, policy_of

import evidence_archive.objects.directory as directory_module
import evidence_archive.store.sqlite as sqlite_module
from evidence_archive import (
    Archive,
    BatchRejectedError,
    EvidenceArchiveError,
    IntegrityError,
    Policy,
    Principal,
    SealBrokenError,
)
from evidence_archive.archiving import Archiving
from evidence_archive.cli import main
from evidence_archive.envelopes import INTENT_SECONDS, Envelopes
from evidence_archive.errors import StoreUnavailableError
from evidence_archive.keys import open_provider
from evidence_archive.objects.directory import DirectoryObjects
from evidence_archive.ports import OBJECT_BYTES_MAX
from evidence_archive.restoring import Restoring
from evidence_archive.store import open_store
from evidence_archive.testing import FrozenClock
from evidence_archive.testing.faults import FaultyStore

OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
LONG = "2026-11-30 worker 7: nothing to report\n" * 40
MIB = 1 << 20


def opened(
    desk: Desk, objects: Any = None, *, store: Any = None, policy: Policy | None = None, clock: Any = None
) -> Any:
    """An archive that needs no migration and no tokenizer; with objects, every original lies there."""
    return Archive(
        store or open_store(desk.url),
        keys=open_provider(desk.keys),
        policy=policy or policy_of(),
        counter=Characters(),
        clock=clock,
        objects=objects,
        inline_size_max=0,
    )


def objects_of(desk: Desk) -> DirectoryObjects:
    return DirectoryObjects(desk.folder / "objects", create=True)


def files_of(desk: Desk) -> list[Path]:
    """The objects in the folder."""
    return sorted(path for path in (desk.folder / "objects").glob("??/*"))


def read(archive: Archive, *contents: Any, session_id: str = "case") -> tuple[Any, Conversation]:
    """A session that has seen these results, and its conversation."""
    session, talk = archive.session(session_id, OWNER), Conversation()
    for content in contents:
        talk.tool(content)
    talk.say()
    session.view(talk.messages)
    return session, talk


def noise(size_bytes: int) -> str:
    """Text that a compressor does not take to less than half."""
    return random.Random(size_bytes).randbytes(size_bytes // 2).hex()


# --- C. a crash between object and row --------------------------------------------------------------------------


_KILLED = """
import json, os, sys
from pathlib import Path
from conftest import Desk
from evidence_archive.envelopes import Envelopes
from evidence_archive.objects.directory import DirectoryObjects
from evidence_archive.testing import FrozenClock
from test_regressions_store import OWNER, objects_of, opened, row_before_object
folder, url, point = sys.argv[1:]
desk = Desk(Path(folder), url)
archive = opened(desk, objects_of(desk), clock=FrozenClock())
session = archive.session("case", OWNER)
session.view(json.load(sys.stdin))
def die(*_):
    os._exit(9)
put = DirectoryObjects.put
if point == "before the first object":
    DirectoryObjects.put = die
elif point == "after the first object":
    DirectoryObjects.put = lambda *given: (put(*given), die())
elif point == "before the row":
    Envelopes.keep = staticmethod(die)
else:
    row_before_object()
try:
    session.archive([("r1", "one"), ("r2", "two")])
finally:
    os._exit(9)
"""


def row_before_object() -> None:
    """A naive order: the batch's transaction names objects that are put after it."""

    def planned(self: Envelopes, outside: Any) -> None:
        outside.envelope_sha256 = sha256(b"".join(outside.pieces)).digest()

    Envelopes._put = planned  # type: ignore[method-assign]


def wedged_after(desk: Desk, point: str) -> list[str]:
    """What does not come back, or cannot be archived again, after a process was killed at a point of a batch."""
    with opened(desk, objects_of(desk)) as archive:
        _, talk = read(archive, LONG, LONG[::-1])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(desk.folder), desk.url, point],
        input=json.dumps(talk.messages),
        text=True,
        capture_output=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    wedged, clock = [], FrozenClock()
    with opened(desk, objects_of(desk), clock=clock) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        live = [info.id for info in session.results() if info.state == "live"]
        if live:
            session.archive([(result_id, "again") for result_id in live])
        for _ in range(2):
            clock.advance(2 * INTENT_SECONDS)
            archive.collect(principal=OWNER)
        for result_id, content in (("r1", LONG), ("r2", LONG[::-1])):
            try:
                assert archive.restore("case", result_id, principal=OWNER).content == content
            except EvidenceArchiveError as error:
                wedged.append(f"{result_id}: {type(error).__name__}")
    if not wedged:
        assert len(files_of(desk)) == 2, "what the killed process left is gone, and nothing else"
        assert desk.execute("SELECT DISTINCT state FROM objects") == [("stored",)]
    return wedged


@pytest.mark.parametrize("point", ["before the first object", "after the first object", "before the row"])
def test_a_kill_between_an_object_and_its_row_wedges_nothing_and_what_it_left_is_collected(
    desk: Desk, point: str
) -> None:
    """C22, S60"""
    assert wedged_after(desk, point) == []


def test_must_fail_control_a_row_before_its_object_is_wedged_by_a_kill(sqlite_desk: Desk) -> None:
    """C22"""
    assert wedged_after(sqlite_desk, "naive") == ["r1: ObjectNotFoundError", "r2: ObjectNotFoundError"]


# --- G. sizes, starts, two writers ------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True], ids=["in-a-row", "in-objects"])
@pytest.mark.parametrize("size_bytes", [5 * MIB, 64 * MIB], ids=["5-mib", "64-mib"])
def test_large_originals_come_back_exactly_and_an_archive_that_holds_them_opens_without_reading_them(
    desk: Desk, size_bytes: int, outside: bool
) -> None:
    """G4: what lies in a row is the largest that may"""
    content = noise(size_bytes)
    assert len(content) == size_bytes
    with opened(desk, objects_of(desk) if outside else None) as archive:
        session, _ = read(archive, content)
        session.archive([("r1", "large")])
    assert desk.execute("SELECT count(*) FROM originals") == [(0 if outside else 1,)]
    with opened(desk, objects_of(desk)) as archive:
        assert not touched(archive, lambda: archive.session("case", OWNER)) & {"originals", "objects"}
        assert touched(archive, lambda: archive.restore("case", "r1", principal=OWNER)) >= {"originals"}
        assert archive.restore("case", "r1", principal=OWNER).content == content


def touched(archive: Archive, work: Callable[[], Any]) -> set[str]:
    """The tables that are named by the statements of a work."""
    heard: list[str] = []
    listen_to(archive, heard.append)
    work()
    names = {"orgs", "scope_keys", "sessions", "results", "originals", "objects", "batches", "audit_leaves"}
    said = " ".join(heard)
    return {name for name in names if f"{name} " in said or f"{name}\n" in said}


def statements_of_a_start(desk: Desk) -> list[str]:
    """The statements that run between opening an archive and having a session, in their order, without values."""
    heard: list[str] = []
    with opened(desk) as archive:
        listen_to(archive, heard.append)
        archive.session("case", OWNER)
    return [statement.split(" WHERE ")[0] for statement in heard if statement.startswith(("SELECT", "INSERT"))]


def test_a_start_runs_the_same_few_statements_however_many_records_there_are(desk: Desk) -> None:
    """G5: with 10,000 records, none of which is read before the first view"""
    costs = []
    for size in (10, 10_000):
        with opened(desk) as archive:
            session, _ = read(archive, *(f"{number} is normal" for number in range(size)))
            assert len(session.results()) == size
        costs.append(statements_of_a_start(desk))
    assert costs[0] == costs[1]
    assert 1 <= len(costs[0]) <= 6
    assert not [statement for statement in costs[0] if "FROM results" in statement or "FROM originals" in statement]
    with opened(desk) as archive:  # the control: the first use of the records is heard
        session = archive.session("case", OWNER)
        assert "results" in touched(archive, session.results)


def held_meanwhile(desk: Desk, work: Callable[[threading.Event], Any]) -> Any:
    """What a work returns that begins while another writer holds the store; it lets go when the event is set."""
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with desk.locked():
            holding.set()
            let_go.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert holding.wait(60)
        return work(let_go)
    finally:
        let_go.set()
        other.join()


def test_a_writer_waits_for_another_as_long_as_it_may_and_succeeds(desk: Desk) -> None:
    """G6"""
    with opened(desk, policy=policy_of(store_wait_ms_max=60_000)) as archive:
        session, _ = read(archive, LONG)
        timers = []

        def archive_it(let_go: threading.Event) -> Any:
            timers.append(threading.Timer(0.3, let_go.set))
            timers[0].start()
            return session.archive([("r1", "waited")])

        assert held_meanwhile(desk, archive_it).result_ids == ("r1",)
        timers[0].join()
        assert session.restore("r1").content == LONG


def test_a_writer_that_may_not_wait_is_refused_whole_with_a_typed_error_and_succeeds_when_asked_again(
    desk: Desk,
) -> None:
    """G6, and the control of the claim above: the lock is a real one"""
    with opened(desk, policy=policy_of(store_wait_ms_max=50, view_wait_ms_max=50)) as archive:
        session, talk = read(archive, LONG)
        before = session.view(talk.messages)

        def archive_it(_let_go: threading.Event) -> None:
            with pytest.raises(BatchRejectedError, match="try again"):
                session.archive([("r1", "too early")])

        held_meanwhile(desk, archive_it)
        assert desk.rows("batches") == desk.rows("originals") == []
        assert session.view(talk.messages) == before
        assert session.archive([("r1", "later")]).result_ids == ("r1",)


# --- S. SQLite's version ----------------------------------------------------------------------------------------

AFFECTED = [(3, 7, 0), (3, 40, 1), (3, 44, 5), (3, 45, 0), (3, 46, 1), (3, 50, 6), (3, 51, 0), (3, 51, 2)]
FIXED = [(3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 52, 0)]
WAL, ROLLBACK = b"\x02\x02", b"\x01\x01"
"""Bytes 18 and 19 of a database file: what it takes to write and to read it (https://sqlite.org/fileformat.html)."""


def kinds_of_file(desk: Desk, monkeypatch: pytest.MonkeyPatch, versions: list[tuple[int, int, int]]) -> list[bytes]:
    """What an archive makes of one database under these versions of SQLite, one after the other, while it works."""
    kinds = []
    for number, version in enumerate(versions):
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        with opened(desk) as archive:
            session, _ = read(archive, LONG, session_id=f"case {number}")
            session.archive([("r1", "n")])
            kinds.append(desk.database.read_bytes()[18:20])
    return kinds


def test_no_affected_version_of_sqlite_ever_writes_a_log_that_it_may_lose(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S50: not even where a newer version left the database in that mode; looked up in the file itself"""
    versions = [version for affected in AFFECTED for version in (FIXED[0], affected)] + FIXED
    kinds = kinds_of_file(sqlite_desk, monkeypatch, versions)
    assert kinds == [WAL, ROLLBACK] * len(AFFECTED) + [WAL] * len(FIXED)


def test_must_fail_control_an_engine_that_does_not_ask_for_the_version_is_caught(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S50"""
    monkeypatch.setattr(sqlite_module, "journal_rules", lambda version: ("wal", 2))
    assert set(kinds_of_file(sqlite_desk, monkeypatch, AFFECTED)) == {WAL}


def test_the_version_that_counts_is_that_of_the_library_which_is_loaded() -> None:
    """S50: not the one that Python was built against"""
    with closing(sqlite3.connect(":memory:")) as connection:
        (loaded,) = connection.execute("SELECT sqlite_version()").fetchone()
    assert tuple(map(int, loaded.split("."))) == sqlite3.sqlite_version_info


def test_a_database_that_another_program_keeps_in_the_wrong_mode_is_not_used(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S50: what was set is read back on every connection"""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", FIXED[0])
    with opened(sqlite_desk) as archive:
        read(archive, LONG)
    monkeypatch.setattr(sqlite3, "sqlite_version_info", AFFECTED[-1])
    with closing(sqlite3.connect(sqlite_desk.database, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM orgs").fetchone()
        with pytest.raises(EvidenceArchiveError), opened(sqlite_desk) as archive:
            archive.session("case", OWNER)
        other.execute("ROLLBACK")
    with opened(sqlite_desk) as archive:
        archive.session("case", OWNER)
    assert sqlite_desk.database.read_bytes()[18:20] == ROLLBACK


# --- S. checked before it is released ---------------------------------------------------------------------------


class Failing:
    """An object store that gives up in the middle of an original."""

    def __init__(self, inner: DirectoryObjects, good: int) -> None:
        self._inner = inner
        self._left = good

    def get(self, key: str) -> bytes | None:
        self._left -= 1
        if self._left < 0:
            raise StoreUnavailableError("The object store is away: try again.")
        return self._inner.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def released_in_part(desk: Desk, trouble: str, file: io.BytesIO) -> int:
    """How many bytes get into a file from a restore whose original is damaged, or cannot be read to its end."""
    content = noise(2 * OBJECT_BYTES_MAX + 5 * MIB)
    with opened(desk, objects_of(desk)) as archive:
        session, _ = read(archive, content)
        session.archive([("r1", "large")])
    files = files_of(desk)
    assert len(files) == 2
    objects: Any = objects_of(desk)
    if trouble == "fails":
        objects = Failing(objects, 1)
    else:
        last = files[-1].read_bytes()
        files[-1].write_bytes(last[:-1] + bytes([last[-1] ^ 1]) if trouble == "changed" else last[: len(last) // 2])
    with opened(desk, objects) as archive:
        with pytest.raises(StoreUnavailableError if trouble == "fails" else SealBrokenError):
            archive.restore_to(file, "case", "r1", principal=OWNER)
        events = [entry.event for entry in archive.audit(principal=OWNER).entries]
    assert "restore.granted" not in events
    return len(file.getvalue())


@pytest.mark.parametrize("trouble", ["changed", "cut", "fails"])
def test_nothing_of_an_original_is_released_that_was_not_checked_to_its_last_byte(desk: Desk, trouble: str) -> None:
    """S52: neither damage nor a failure in the middle passes for an end"""
    assert released_in_part(desk, trouble, io.BytesIO()) == 0


def test_must_fail_control_a_restore_that_releases_while_it_reads_is_caught(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S52"""
    file = io.BytesIO()
    monkeypatch.setattr(
        Restoring, "looked_at", lambda self, principal, found: self._read(principal, found, file.write)
    )
    assert released_in_part(sqlite_desk, "changed", file) > 0


def test_what_is_called_intact_is_the_log_and_only_a_restore_says_that_an_original_is_whole(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    """S53: no check passes for more than what it read; what opens originals is the restore itself"""
    with opened(desk) as archive:
        session, _ = read(archive, LONG, LONG + "!")
        session.archive([("r1", "n"), ("r2", "n")])
        whole = archive.restore("case", "r2", principal=OWNER)
        desk.execute("DELETE FROM originals WHERE original_id = (SELECT original_id FROM results WHERE number = 1)")
        asked = [
            "audit",
            "log",
            "--url",
            desk.url,
            "--keys",
            str(desk.keys),
            "--org",
            OWNER.org,
            "--subject",
            "auditor",
        ]
        assert main(asked) == 0
        told = capsys.readouterr().out
        assert "INTACT: the entries and the head agree" in told
        assert "original" not in told.rpartition("INTACT")[2]
        with pytest.raises(SealBrokenError, match="gone"):
            archive.restore("case", "r1", principal=OWNER)
        assert archive.restore("case", "r2", principal=OWNER).content == whole.content


def test_damage_is_never_exit_code_0_and_all_of_it_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S54: the report goes on after its first finding; a log that is whole is the control"""
    with opened(desk) as archive:
        session, _ = read(archive, LONG, LONG + "!")
        session.archive([("r1", "n"), ("r2", "n")])
    asked = ["audit", "log", "--url", desk.url, "--keys", str(desk.keys), "--org", OWNER.org, "--subject", "auditor"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    for seq in (1, 3):
        desk.execute("UPDATE audit_leaves SET leaf = x'00' WHERE seq = ?", seq)
    assert main([*asked, "--json"]) == 32
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [any(f"{seq}" in finding for finding in findings) for seq in (1, 3)] == [True, True]


def test_looking_at_damage_and_resuming_after_it_throws_nothing_away(desk: Desk) -> None:
    """S55: whole originals beside it are given out, and what was damaged is as good as before once it is put back"""
    with opened(desk) as archive:
        session, talk = read(archive, LONG, LONG + "!")
        session.archive([("r1", "n"), ("r2", "n")])
        before = {name: desk.rows(name) for name in ("originals", "results", "batches", "scope_keys", "orgs")}
        ((original_id, envelope),) = desk.execute(
            "SELECT original_id, envelope FROM originals WHERE original_id = "
            "(SELECT original_id FROM results WHERE number = 1)"
        )
        desk.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", bytes(len(envelope)), original_id)
        for _ in range(2):
            with pytest.raises(SealBrokenError):
                session.restore("r1")
            session.view(talk.messages)
            archive.audit(principal=OWNER)
            archive.resume("case", principal=OWNER)
            archive.collect(principal=OWNER)
        assert session.restore("r2").content == LONG + "!"
        desk.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", bytes(envelope), original_id)
        assert session.restore("r1").content == LONG
        assert {name: desk.rows(name) for name in before} == before


@pytest.mark.parametrize("seal", [b"", bytes(32)], ids=["none", "zeros"])
@pytest.mark.parametrize("table", ["orgs", "scope_keys", "sessions", "results", "audit_heads", "objects"])
def test_a_row_without_a_seal_is_an_attack_and_never_an_old_format(desk: Desk, table: str, seal: bytes) -> None:
    """S56"""
    with opened(desk, objects_of(desk)) as archive:
        session, _ = read(archive, LONG)
        session.archive([("r1", "n")])
        assert archive.restore("case", "r1", principal=OWNER).content == LONG  # the control
    desk.execute(f"UPDATE {table} SET seal = ?", seal)
    with opened(desk, objects_of(desk)) as archive, pytest.raises(IntegrityError):
        archive.restore("case", "r1", principal=OWNER)


# --- S. no room -------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk of objects with room for so many more writes."""
    room, write = [1_000], directory_module._write

    def bounded(target: int, data: bytes) -> None:
        room[0] -= 1
        if room[0] < 0:
            os.write(target, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no room")
        write(target, data)

    monkeypatch.setattr(directory_module, "_write", bounded)
    return room


def lost_for_want_of_room(desk: Desk, room: list[int]) -> list[str]:
    """What was acknowledged on a disk of objects that fills up in a batch, and cannot be had."""
    contents = [LONG, LONG + "!", LONG[::-1]]
    promised: list[str] = []
    with opened(desk, objects_of(desk)) as archive:
        session, talk = read(archive, *contents)
        before = session.view(talk.messages)
        room[0] = 1
        try:
            promised += session.archive([("r1", "n"), ("r2", "n")]).result_ids
        except BatchRejectedError as refused:
            told = str(refused)
        room[0] = 1_000
        if not promised:  # it all has to be written again, whatever the first try left
            assert "is full: free space" in told
            assert session.view(talk.messages) == before
            promised += session.archive([("r1", "n"), ("r2", "n")]).result_ids
        promised += session.archive([("r3", "n")]).result_ids
    assert promised == ["r1", "r2", "r3"]
    lost = []
    with opened(desk, objects_of(desk)) as archive:
        for result_id, content in zip(promised, contents, strict=True):
            try:
                assert archive.restore("case", result_id, principal=OWNER).content == content
            except EvidenceArchiveError as error:
                lost.append(f"{result_id}: {type(error).__name__}")
    return lost


def test_a_disk_of_objects_that_fills_up_in_a_batch_refuses_it_whole_and_loses_nothing(
    desk: Desk, full: list[int]
) -> None:
    """S57"""
    assert lost_for_want_of_room(desk, full) == []


def test_must_fail_control_a_store_that_trusts_what_it_once_tried_to_write_loses_an_original(
    sqlite_desk: Desk, full: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S57: writes are skipped on the word of a cache, and nothing is read back"""
    put = DirectoryObjects.put

    def trusting(self: DirectoryObjects, key: str, data: bytes) -> None:
        with suppress(StoreUnavailableError):
            put(self, key, data)

    def unread(self: Envelopes, outside: Any) -> None:
        data = b"".join(outside.pieces)
        self._vault.objects.put(f"{outside.row.key}.00000", data)
        outside.envelope_sha256 = sha256(data).digest()

    monkeypatch.setattr(DirectoryObjects, "put", trusting)
    monkeypatch.setattr(Envelopes, "_put", unread)
    assert lost_for_want_of_room(sqlite_desk, full) == ["r2: ObjectNotFoundError"]


def test_an_equal_original_is_written_again_wherever_an_earlier_one_went(desk: Desk) -> None:
    """S57: nothing is skipped because it is believed to be there already"""
    with opened(desk, objects_of(desk)) as archive:
        for name in ("first", "second"):
            session, _ = read(archive, LONG, LONG, session_id=name)
            session.archive([("r1", "n"), ("r2", "n")])
            if name == "first":
                for file in files_of(desk):
                    file.unlink()
        assert len(files_of(desk)) == 2
        assert [archive.restore("second", result, principal=OWNER).content for result in ("r1", "r2")] == [LONG, LONG]


# --- S. intents -------------------------------------------------------------------------------------------------
#
# S58, a claim that is looked at again in the commit, and of S60 intents before objects and puts that come late:
# test_large_originals.py, "intents". Here is the rest of S60: nobody tidies up after a commit that seemed to fail.


def left_wrong_after_a_commit(desk: Desk, fault: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What does not come back of a batch whose commit was reported as failed, or is left of one that never was."""
    clock, switch, keep = FrozenClock(), Flaky(), Envelopes.keep

    def kept(writer: Any, outsides: Any) -> None:
        keep(writer, outsides)
        if fault == UNANSWERED:
            switch.plan.error("store.commit.after", times=1)
        else:
            switch.fault = fault

    monkeypatch.setattr(Envelopes, "keep", staticmethod(kept))
    store = FaultyStore(open_store(desk.url), switch.plan)
    with opened(desk, objects_of(desk), store=store, clock=clock) as archive:
        session, _ = read(archive, LONG, LONG + "!")
        if fault == UNANSWERED:
            assert session.archive([("r1", "n"), ("r2", "n")]).result_ids == ("r1", "r2")
        else:
            with pytest.raises(BatchRejectedError):
                session.archive([("r1", "n"), ("r2", "n")])
        switch.fault = None
        for _ in range(3):
            clock.advance(INTENT_SECONDS)
            archive.collect(principal=OWNER)
        if fault != UNANSWERED:
            return [path.name for path in files_of(desk)]
        return [result_id for result_id in ("r1", "r2") if not comes_back(archive, result_id)]


def comes_back(archive: Archive, result_id: str) -> bool:
    try:
        return bool(archive.restore("case", result_id, principal=OWNER).content)
    except EvidenceArchiveError:
        return False


@pytest.mark.parametrize("fault", [UNANSWERED, UNCOMMITTED])
def test_objects_of_a_commit_that_seemed_to_fail_are_kept_if_it_took_place_and_collected_if_not(
    desk: Desk, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S60: nothing is deleted to make up for a failure"""
    assert left_wrong_after_a_commit(desk, fault, monkeypatch) == []


def test_must_fail_control_deleting_the_objects_of_a_failure_deletes_what_was_acknowledged(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S60"""
    commit = Archiving._commit

    def compensating(self: Archiving, *given: Any, **named: Any) -> Any:
        try:
            return commit(self, *given, **named)
        except StoreUnavailableError:
            for one in given[-1].values():
                self._records.vault.objects.delete(f"{one.row.key}.00000")
            raise

    monkeypatch.setattr(Archiving, "_commit", compensating)
    assert left_wrong_after_a_commit(sqlite_desk, UNANSWERED, monkeypatch) == ["r1", "r2"]
