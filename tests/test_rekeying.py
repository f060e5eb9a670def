"""Key versions: everything is wrapped anew, nothing is unreadable at any moment, and nothing needed is destroyed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import patient

from evidence_archive import Archive, Principal, rekeying
from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    KeyNotFoundError,
    KeyringError,
    SealBrokenError,
    StoreBusyError,
    StoreUnavailableError,
    WrongKeyError,
)
from evidence_archive.keys import EnvironmentKeys, FileKeys, added_version, new_keys
from evidence_archive.store.sql import SqlReader

OFFICER = Principal(org="north-clinic", subject="key-officer", roles={"custodian"})
LINES = "a line of a log that is long enough\n" * 40


def filled(archive: Archive, owner: Principal, count: int = 5) -> dict[str, str]:
    """Sessions with an original each; what they hold."""
    held = {}
    for at in range(count):
        talk = Conversation()
        session = archive.session(f"case-{at}", owner)
        talk.tool(f"{at} {LINES}")
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", f"note {at}")])
        held[f"case-{at}"] = f"{at} {LINES}"
    return held


def all_restorable(desk: Desk, owner: Principal, held: dict[str, str], **named: Any) -> bool:
    """Whether an archive that is opened anew gives everything back."""
    with desk.open(**named) as archive:
        return all(archive.restore(name, "r1", principal=owner).content == text for name, text in held.items())


def wrapped(desk: Desk) -> set[bytes]:
    """Every wrapped key that is stored."""
    keys = {row[0] for row in desk.execute("SELECT wrapped FROM scope_keys")}
    return keys | {row[0] for row in desk.execute("SELECT aux_wrapped FROM orgs")}


# --- rotation -------------------------------------------------------------------------------------------------------


def test_a_rotation_wraps_everything_anew_and_touches_no_original(desk: Desk, owner: Principal):
    with desk.open() as archive:
        held = filled(archive, owner)
        before, originals = wrapped(desk), desk.rows("originals")
        closed = desk.execute("SELECT closed FROM results ORDER BY scope_id, number")
        rotation = archive.custody(OFFICER).rotate()
        assert (rotation.version, rotation.rewrapped) == (2, 6)
        assert rotation.census.counts == {2: 6}
        assert (rotation.census.floor, rotation.census.available) == (2, (1, 2))
        assert not before & wrapped(desk)
        assert desk.rows("originals") == originals
        assert desk.execute("SELECT closed FROM results ORDER BY scope_id, number") == closed
        assert archive.restore("case-1", "r1", principal=owner).content == held["case-1"]
        archive.session("case-new", owner)
        assert archive.custody(OFFICER).census().counts == {2: 7}
    assert all_restorable(desk, owner, held)
    with desk.open() as archive:
        assert archive.custody(OFFICER).rotate(new_version=False).rewrapped == 0
        archive.custody(OFFICER).retire(1)
        assert archive.custody(OFFICER).census().available == (2,)
    assert all_restorable(desk, owner, held)


def test_rotating_again_and_again_loses_nothing(desk: Desk, owner: Principal):
    with desk.open() as archive:
        held = filled(archive, owner, 3)
        for version in range(2, 6):
            custody = archive.custody(OFFICER)
            if version == 3:
                custody.shred(session_id="case-0", result_id="r1")
            assert custody.rotate().version == version
            custody.retire(version - 1)
    del held["case-0"]
    assert all_restorable(desk, owner, held)


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5, 6, 7])
def test_a_rotation_that_fails_at_any_write_leaves_everything_readable_and_can_go_on(
    desk: Desk, owner: Principal, failing: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rekeying, "SCOPES_PER_BATCH", 2)
    with desk.open() as archive:
        held = filled(archive, owner)
        custody = archive.custody(OFFICER)
        calls = 0
        real = type(custody._vault).transact

        def failing_one(self: Any, body: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise StoreUnavailableError("The store is away.")
            return real(self, body, **named)

        monkeypatch.setattr(type(custody._vault), "transact", failing_one)
        failed = False
        try:
            custody.rotate()
        except StoreUnavailableError:
            failed = True
        monkeypatch.setattr(type(custody._vault), "transact", real)
        assert failed == (failing <= calls)
    assert all_restorable(desk, owner, held)
    with desk.open() as archive:
        rotation = archive.custody(OFFICER).rotate(new_version=False)
        assert (rotation.census.counts, rotation.census.floor) == ({2: 6}, 2)
    assert all_restorable(desk, owner, held)


KILLED = """
import os, signal, sys
from evidence_archive import Archive, Principal, rekeying
from evidence_archive.store import sql
from evidence_archive.keys import roots
rekeying.SCOPES_PER_BATCH = 2
url, keys, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
passed = 0
def armed(kind, name):
    real = getattr(kind, name)
    def counted(*given, **named):
        global passed
        passed += 1
        if passed == at:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*given, **named)
        passed += 1
        if passed == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(kind, name, counted)
for name in ("update_scopes", "update_org", "append", "put_custody", "scopes", "scope"):
    armed(sql.SqlWriter, name)
armed(roots.FileKeys, "new_version")
armed(roots.FileKeys, "wrap")
with Archive.open(url, keys=keys) as archive:
    custody = archive.custody(Principal(org="north-clinic", subject="key-officer", roles={"custodian"}))
    custody.rotate()
    print(passed)
"""


def test_a_rotation_killed_at_any_of_its_steps_leaves_everything_readable_and_goes_on(desk: Desk, owner: Principal):
    with desk.open() as archive:
        held = filled(archive, owner)
    stored, keys = desk.saved(), desk.keys.read_bytes()

    def run(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KILLED, desk.url, str(desk.keys), str(at)],
            capture_output=True,
            text=True,
            check=False,
        )

    whole = run(0)
    assert whole.returncode == 0, whole.stderr
    steps = int(whole.stdout)
    assert steps >= 30
    for at in range(1, steps + 1, 4 if desk.server is None else 9):
        desk.put_back(stored)
        desk.keys.write_bytes(keys)
        assert run(at).returncode == -signal.SIGKILL
        assert all_restorable(desk, owner, held), at
        with desk.open() as archive:
            custody = archive.custody(OFFICER)
            current = custody.census().current
            rotation = custody.rotate(new_version=current == 1)
            assert rotation.census.counts == {2: 6}, at
            custody.retire(1)
        assert all_restorable(desk, owner, held), at


def test_must_fail_control_a_rotation_that_wraps_before_its_key_is_durable_loses_everything(
    sqlite_desk: Desk, owner: Principal
):
    """A version that is made in memory only, and a process that ends."""
    with sqlite_desk.open() as archive:
        held = filled(archive, owner)
    keys = sqlite_desk.keys.read_bytes()
    with sqlite_desk.open() as archive:
        archive.custody(OFFICER).rotate()
    sqlite_desk.keys.write_bytes(keys)  # as if the new version had never reached the disk
    with pytest.raises(KeyNotFoundError):
        all_restorable(sqlite_desk, owner, held)


def test_writers_that_run_meanwhile_lose_nothing(desk: Desk, owner: Principal):
    with desk.open(policy=patient()) as archive:
        held = filled(archive, owner)
        stop, problems = threading.Event(), []
        started: dict[str, str] = {}

        def work() -> None:
            with desk.open(policy=patient()) as mine:
                at = 0
                while not stop.is_set() and at < 40:
                    at += 1
                    talk = Conversation()
                    try:
                        session = mine.session(f"new-{at}", owner)
                        talk.tool(f"new {at} {LINES}")
                        talk.say()
                        session.view(talk.messages)
                        session.archive([("r1", "n")])
                        started[f"new-{at}"] = f"new {at} {LINES}"
                    except KeyringError:
                        continue  # asked again: nothing was archived
                    except EvidenceArchiveError as error:
                        problems.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(3):
            archive.custody(OFFICER).rotate()
        stop.set()
        thread.join()
        assert problems == []
        assert archive.custody(OFFICER).rotate(new_version=False).census.counts.keys() == {4}
    assert all_restorable(desk, owner, {**held, **started})


def test_two_rotations_at_once_end_with_one_version_for_all(desk: Desk, owner: Principal):
    with desk.open() as one, desk.open() as two:
        held = filled(one, owner)
        results: list[Any] = []

        def rotate(archive: Archive) -> None:
            try:
                results.append(archive.custody(OFFICER).rotate())
            except EvidenceArchiveError as error:
                results.append(error)

        threads = [threading.Thread(target=rotate, args=(archive,)) for archive in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(isinstance(result, rekeying.Rotation | KeyringError | StoreBusyError) for result in results)
        rotation = one.custody(OFFICER).rotate(new_version=False)
        assert len(rotation.census.counts) == 1
    assert all_restorable(desk, owner, held)


def test_a_version_that_does_not_unwrap_is_found_before_anything_is_wrapped_under_it(desk: Desk, owner: Principal):
    class Lying(FileKeys):
        """From version 2 on it wraps what nobody can unwrap."""

        def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
            return super().wrap(org, version, os.urandom(32) if version > 1 else key, context)

    with desk.open(keys=Lying(desk.keys)) as archive:
        held = filled(archive, owner)
        before = wrapped(desk)
        with pytest.raises(KeyringError, match="does not give back"):
            archive.custody(OFFICER).rotate()
        assert wrapped(desk) == before
        with pytest.raises(KeyringError):
            archive.session("case-new", owner)
    assert all_restorable(desk, owner, held)


def test_a_provider_that_makes_no_versions_says_what_to_do(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EVA_TEST_KEYS", desk.keys.read_text())
    with desk.open(keys="env:EVA_TEST_KEYS") as archive:
        held = filled(archive, owner)
        with pytest.raises(KeyringError):
            archive.custody(OFFICER).rotate()
        monkeypatch.setenv("EVA_TEST_KEYS", added_version(desk.keys.read_text()))
        rotation = archive.custody(OFFICER).rotate(new_version=False)
        assert rotation.census.counts == {2: 6}
        with pytest.raises(KeyringError):
            archive.custody(OFFICER).retire(1)
    assert all_restorable(desk, owner, held, keys=EnvironmentKeys("EVA_TEST_KEYS"))


# --- the floor ------------------------------------------------------------------------------------------------------


def test_an_older_wrapped_key_that_is_put_back_is_refused(desk: Desk, owner: Principal):
    with desk.open() as archive:
        filled(archive, owner)
        old = desk.rows("scope_keys")
        archive.custody(OFFICER).rotate()
    for row in old:
        desk.execute("DELETE FROM scope_keys WHERE scope_id = ?", row[1])
        desk.execute(f"INSERT INTO scope_keys VALUES ({', '.join('?' * len(row))})", *row)
    with desk.open() as archive, pytest.raises(SealBrokenError, match="older copy"):
        archive.restore("case-1", "r1", principal=owner)


def test_an_older_key_of_the_org_that_is_put_back_is_refused(desk: Desk, owner: Principal):
    with desk.open() as archive:
        filled(archive, owner, 1)
        (old,) = desk.rows("orgs")
        archive.custody(OFFICER).rotate()
    desk.execute("DELETE FROM orgs")
    desk.execute(f"INSERT INTO orgs VALUES ({', '.join('?' * len(old))})", *old)
    with desk.open() as archive, pytest.raises(SealBrokenError, match="older copy"):
        archive.session("case-0", owner)


class Slow(FileKeys):
    """Does not hear of new versions."""

    def current_version(self, org: str) -> int:
        return 1


def test_a_process_from_before_the_rotation_cannot_start_a_session_that_nobody_could_open(
    desk: Desk, owner: Principal
):
    with desk.open(keys=Slow(desk.keys)) as old, desk.open() as new:
        filled(old, owner, 2)
        new.custody(OFFICER).rotate()
        with pytest.raises(KeyringError, match="before a rotation"):
            old.session("case-new", owner)
        assert old.restore("case-0", "r1", principal=owner).content  # what is there it still opens
    with desk.open() as archive:
        assert set(archive.custody(OFFICER).census().counts) == {2}


@pytest.mark.parametrize("of", ["a session", "an original", "an original, without the row of its session"])
def test_what_was_shredded_and_put_back_is_not_wrapped_under_a_new_version(desk: Desk, owner: Principal, of: str):
    """It would open for good, and its shred would be called complete once the old version is gone."""
    with desk.open() as archive:
        filled(archive, owner, 2)
    old = {name: desk.rows(name) for name in ("sessions", "scope_keys", "results", "originals")}
    with desk.open() as archive:
        archive.custody(OFFICER).shred(session_id="case-0", result_id=None if of == "a session" else "r1")
    for name, rows in old.items():
        desk.execute(f"DELETE FROM {name}")
        for row in rows:
            desk.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", *row)
    if of.endswith("session") and of != "a session":
        desk.execute("DELETE FROM sessions WHERE session_id = 'case-0'")
    with desk.open() as archive:
        custody = archive.custody(OFFICER)
        with pytest.raises(SealBrokenError, match="from before a shred"):
            custody.rotate()
        with pytest.raises(KeyringError):
            custody.retire(1)
        assert [one.status for one in custody.shreds()] == ["pending"]


def test_what_was_shredded_and_put_back_is_not_sealed_anew_with_what_stays(desk: Desk, owner: Principal):
    tables = ("sessions", "scope_keys", "results", "originals")
    with desk.open() as archive:
        talk, session = Conversation(), archive.session("case-0", owner)
        for at in range(2):
            talk.tool(f"result {at}\n" * 40)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "one"), ("r2", "two")])
        old = {name: desk.rows(name) for name in tables}
        archive.custody(OFFICER).shred(session_id="case-0", result_id="r1")
    for name, rows in old.items():
        desk.execute(f"DELETE FROM {name}")
        for row in rows:
            desk.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", *row)
    with desk.open() as archive, pytest.raises(SealBrokenError, match="from before a shred"):
        archive.custody(OFFICER).shred(session_id="case-0", result_id="r2")


# --- retiring -------------------------------------------------------------------------------------------------------


def test_a_version_that_anything_needs_is_not_destroyed(desk: Desk, owner: Principal):
    with desk.open() as archive:
        held = filled(archive, owner)
        south = Principal(org="south-clinic", subject="officer", roles={"custodian"})
        archive.session("theirs", south)
        custody = archive.custody(OFFICER)
        with pytest.raises(FormatError):
            custody.retire(1)
        custody.rotate()
        with pytest.raises(KeyringError, match="wrapped under"):
            custody.retire(1)  # the other org needs it
        archive.custody(south).rotate(new_version=False)
        for version in (0, -1, True, "1", 2):
            with pytest.raises(FormatError):
                custody.retire(version)  # type: ignore[arg-type]
        custody.retire(1)
        assert FileKeys(desk.keys).versions("north-clinic") == (2,)
    assert all_restorable(desk, owner, held)


@pytest.mark.parametrize(
    "hidden",
    [
        "DELETE FROM org_names WHERE name = 'south-clinic'",
        "UPDATE orgs SET aux_wrapped = x'' WHERE org = 'south-clinic'",
        "DELETE FROM orgs WHERE org = 'south-clinic'; DELETE FROM audit_heads WHERE org = 'south-clinic'",
    ],
    ids=["off the list", "as if shredded", "as if never made"],
)
def test_an_org_that_was_hidden_in_the_database_is_not_left_out_of_the_census(
    sqlite_desk: Desk, owner: Principal, hidden: str
):
    """Whoever writes the database could otherwise have another org's keys destroyed for all its backups, too."""
    with sqlite_desk.open() as archive:
        filled(archive, owner, 1)
        archive.session("theirs", Principal(org="south-clinic", subject="officer", roles={"custodian"}))
        for statement in hidden.split("; "):
            sqlite_desk.execute(statement)
        custody = archive.custody(OFFICER)
        custody.rotate()
        with pytest.raises(SealBrokenError):
            custody.retire(1)
        assert FileKeys(sqlite_desk.keys).versions("south-clinic") == (1, 2)
        with pytest.raises(SealBrokenError):
            custody.backup(sqlite_desk.folder / "backup")


def test_an_org_that_was_shredded_or_is_only_named_keeps_no_version(sqlite_desk: Desk, owner: Principal):
    with sqlite_desk.open() as archive:
        filled(archive, owner, 1)
        south = Principal(org="south-clinic", subject="officer", roles={"custodian"})
        archive.session("theirs", south)
        archive.custody(south).shred()
        sqlite_desk.execute("INSERT INTO org_names VALUES (char(1), 'east-clinic')")
        archive.custody(OFFICER).rotate()
        archive.custody(OFFICER).retire(1)
        assert archive.custody(OFFICER).backup(sqlite_desk.folder / "backup").orgs[1].originals is None


def test_must_fail_control_a_census_of_one_org_would_destroy_what_another_needs(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    with desk.open() as archive:
        filled(archive, owner, 1)
        south = Principal(org="south-clinic", subject="officer", roles={"custodian"})
        archive.session("theirs", south)
        monkeypatch.setattr(Archive, "_censuses", lambda *_: {})
        archive.custody(OFFICER).rotate()
        archive.custody(OFFICER).retire(1)
    with desk.open() as archive, pytest.raises(KeyNotFoundError):
        archive.session("theirs", south)


def test_shreds_are_complete_when_the_last_version_that_wrapped_them_is_retired(desk: Desk, owner: Principal):
    with desk.open() as archive:
        filled(archive, owner)
        custody = archive.custody(OFFICER)
        custody.shred(session_id="case-0")
        custody.shred(session_id="case-1", result_id="r1")
        custody.rotate()
        custody.shred(session_id="case-2")
        custody.retire(1)
        assert [shred.status for shred in custody.shreds()] == ["complete", "complete", "pending"]
        events = [entry.event for entry in archive.audit(principal=OFFICER).entries]
        assert events.index("key.retired") < events.index("shred.completed")


def test_an_old_backup_of_what_was_shredded_opens_until_the_version_is_retired_and_not_after(
    sqlite_desk: Desk, owner: Principal, tmp_path: Path
):
    with sqlite_desk.open() as archive:
        held = filled(archive, owner, 2)
        backup = sqlite_desk.saved()
        custody = archive.custody(OFFICER)
        custody.shred(session_id="case-0")
        custody.rotate()
    (tmp_path / "old").mkdir()
    old = Desk(tmp_path / "old")
    old.database.write_bytes(backup)
    with old.open(keys=sqlite_desk.keys) as archive:  # pending is the truth
        assert archive.restore("case-0", "r1", principal=owner).content == held["case-0"]
    with sqlite_desk.open() as archive:
        archive.custody(OFFICER).retire(1)
    old.database.write_bytes(backup)
    with old.open(keys=sqlite_desk.keys) as archive, pytest.raises(KeyNotFoundError):
        archive.restore("case-0", "r1", principal=owner)


# --- checking -------------------------------------------------------------------------------------------------------


def test_keys_are_checked_against_everything_of_an_org(desk: Desk, owner: Principal, tmp_path: Path):
    with desk.open() as archive:
        filled(archive, owner)
        assert archive.custody(OFFICER).check_keys() == 6
    new_keys(tmp_path / "other.keys")
    with desk.open(keys=tmp_path / "other.keys") as archive, pytest.raises(WrongKeyError):
        archive.custody(OFFICER)


def test_every_act_on_keys_is_in_the_log(desk: Desk, owner: Principal):
    with desk.open() as archive:
        filled(archive, owner, 1)
        archive.custody(OFFICER).rotate()
        archive.custody(OFFICER).retire(1)
        entries = archive.audit(principal=OFFICER).entries
        acts = [
            (entry.event, entry.subject, dict(entry.details)) for entry in entries if entry.event.startswith("key.")
        ]
        assert acts[1:] == [
            ("key.rotated", "key-officer", {"version": 2}),
            ("key.floor", "key-officer", {"version": 2}),
            ("key.retired", "key-officer", {"version": 1}),
        ]


@pytest.mark.parametrize("step", ["rotate", "retire"])
def test_a_session_opened_between_the_census_and_the_floor_is_wrapped_anew_and_never_locked_out(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch, step: str
):
    raise_floor = rekeying.Rekeying._raise_floor
    with desk.open() as archive, desk.open() as other:
        held = filled(other, owner, 1)
        vault = other._vault(owner)
        early = vault.new_scope()  # wrapped before the rotation, and not yet in the store
        custody = archive.custody(OFFICER)

        def late(self: Any, version: int) -> bool:
            monkeypatch.setattr(rekeying.Rekeying, "_raise_floor", raise_floor)
            monkeypatch.setattr(vault, "new_scope", lambda: early)
            talk = Conversation()
            session = other.session("case-late", owner)
            talk.tool(f"late {LINES}")
            talk.say()
            session.view(talk.messages)
            session.archive([("r1", "note")])
            held["case-late"] = f"late {LINES}"
            return raise_floor(self, version)

        if step == "retire":  # a rotation that was killed right before its end
            monkeypatch.setattr(rekeying.Rekeying, "_raise_floor", lambda self, version: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                custody.rotate()
        monkeypatch.setattr(rekeying.Rekeying, "_raise_floor", late)
        if step == "retire":
            with pytest.raises(KeyringError, match="rotate first"):
                custody.retire(1)
            custody.rotate(new_version=False)
        else:
            custody.rotate()
        assert set(custody.census().counts) == {2}
        custody.retire(1)
    assert all_restorable(desk, owner, held)


def test_must_fail_control_a_floor_that_rises_without_another_look_locks_a_session_out(
    desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SqlReader, "scopes_below", lambda self, version: 0)
    with pytest.raises((AssertionError, SealBrokenError)):
        test_a_session_opened_between_the_census_and_the_floor_is_wrapped_anew_and_never_locked_out(
            desk, owner, monkeypatch, "rotate"
        )
