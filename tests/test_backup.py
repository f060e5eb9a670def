"""Backups: consistent while others write, verified before they are called so, put back whole or not at all."""

import base64
import json
import os
import random
import re
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from backup_process import BackupProcess
from conftest import Conversation, Desk
from doubles import Characters, _migrated, patient

from evidence_archive import Archive, Policy, Principal, backup
from evidence_archive import register as register_module
from evidence_archive.backup import MANIFEST, NO_BACKUP, restore_backup
from evidence_archive.cli import main
from evidence_archive.disposal import Hold
from evidence_archive.errors import (
    AuditBrokenError,
    BatchRejectedError,
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    NotAvailableError,
    PolicyError,
    SealBrokenError,
    ShreddedError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    WrongKeyError,
)
from evidence_archive.keys import new_keys, open_provider
from evidence_archive.objects.directory import DirectoryObjects
from evidence_archive.register import Register
from evidence_archive.store import copying, open_store
from evidence_archive.store import sqlite as sqlite_module

KEEPER = Principal("north-clinic", "triage-agent", {"custodian"})
NEIGHBOUR = Principal("south-clinic", "triage-agent", {"custodian"})
INLINE_BYTES = 4_000
"""So that every third original lies in objects."""
YEARS_US = 10 * 365 * 86_400 * 1_000_000


def opened(desk: Desk, **named: Any) -> Archive:
    if desk.server is None and not desk.database.exists():
        desk.database.touch(0o600)
        desk.database.write_bytes(_migrated())
    return desk.open(**{"inline_size_max": INLINE_BYTES, "counter": Characters(), **named})


class Agent:
    """A session that archives one result after the other, and remembers what was acknowledged."""

    def __init__(self, archive: Archive, session_id: str, principal: Principal = KEEPER) -> None:
        self._session = archive.session(session_id, principal)
        self._talk = Conversation()
        self.session_id = session_id
        self.kept: dict[str, str] = {}

    def archive(self, count: int = 1) -> None:
        for _ in range(count):
            number = len(self.kept) + 1
            content = f"{self.session_id} {number} of the log\n" * (400 if number % 3 == 0 else 40)
            self._talk.tool(content)
            self._talk.say()
            for left in reversed(range(100)):  # others hold the lock now and then
                self._session.view(self._talk.messages)
                try:
                    self._session.archive([(f"r{number}", "seen")], idempotency_key=f"{number}")
                    break
                except BatchRejectedError:
                    if not left:
                        raise
            self.kept[f"r{number}"] = content


@pytest.fixture
def desk(sqlite_desk: Desk) -> Desk:
    return sqlite_desk


def back(desk: Desk, folder: Path, target: Path, *replays: object, **named: Any) -> Desk:
    """A backup put back, as a desk of its own with the same keys."""
    target.mkdir(exist_ok=True)
    copy = Desk(target)
    if not copy.keys.exists():
        shutil.copy2(desk.keys, copy.keys)
    restore_backup(
        folder,
        copy.url,
        **{
            "keys": open_provider(copy.keys),
            "policy": Policy.default(),
            "subject": "records",
            "roles": {"custodian"},
            "replays": [str(one) for one in replays],
            **named,
        },
    )
    return copy


def holds_of(archive: Archive) -> list[tuple[Any, ...]]:
    return sorted(
        (one.id, one.session_id, one.result_id, one.reason, one.placed_by, one.is_active)
        for one in archive.custody(KEEPER).holds()
    )


def differences(desk: Desk, expected: dict[tuple[str, str], str | None], holds: list[tuple[Any, ...]]) -> list[str]:
    """What a store that was put back has otherwise than it should: the same check for every drill and control.

    Args:
        expected: contents; ``None`` for what was shredded.
        holds: as :func:`holds_of` gives them.
    """
    found = []
    with opened(desk, create=False) as archive:
        for (session_id, result_id), content in expected.items():
            try:
                restored = archive.restore(session_id, result_id, principal=KEEPER).content
                word = "resurrected" if content is None else "" if restored == content else "changed"
            except ShreddedError:
                word = "" if content is None else "shredded"
            except EvidenceArchiveError as error:
                word = type(error).__name__
            found += [f"{session_id} {result_id}: {word}"] if word else []
        if holds_of(archive) != holds:
            found.append("other holds")
        if not archive.audit(principal=KEEPER).intact:
            found.append("the log is broken")
    return found


# --- drills ---------------------------------------------------------------------------------------------------------


@contextmanager
def writers(desk: Desk, count: int = 2) -> Iterator[list[Agent]]:
    """Agents that archive for as long as the block runs."""
    over = threading.Event()
    failures: list[BaseException] = []
    with opened(desk, policy=patient()) as archive:
        agents = [Agent(archive, f"writer-{number}") for number in range(count)]

        def write(agent: Agent) -> None:
            try:
                while not over.is_set() and len(agent.kept) < 60:
                    agent.archive()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=[agent]) for agent in agents]
        for thread in threads:
            thread.start()
        try:
            while not all(agent.kept for agent in agents) and not failures:
                over.wait(0.005)
            yield agents
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert failures == []


@dataclass
class Drill:
    """A store, a backup of it made while others wrote, and what was done to the store after that."""

    desk: Desk
    folder: Path
    register: Path
    expected: dict[tuple[str, str], str | None] = field(default_factory=dict)
    holds: list[tuple[Any, ...]] = field(default_factory=list)


def drilled(desk: Desk, tmp_path: Path, process: BackupProcess, dice: random.Random) -> Drill:
    """Fill, back up under writers with one backup killed on the way, then hold, release, keep longer and shred."""
    drill = Drill(desk, tmp_path / "backup", tmp_path / "register.jsonl")
    given = {"url": desk.url, "keys": str(desk.keys), "org": KEEPER.org, "subject": KEEPER.subject}
    with opened(desk, register=drill.register) as archive:
        agent, custody = Agent(archive, "base"), archive.custody(KEEPER)
        agent.archive(6)
        before = custody.hold("as counsel asked", session_id="base", result_id="r1")
    with writers(desk) as agents:
        _, moments = process(what="backup", folder=str(tmp_path / "measured"), **given)
        died = tmp_path / "died"
        ended, _ = process(what="backup", folder=str(died), die_at=dice.randrange(1, moments), **given)
        if ended == "killed":  # the writers decide how many moments there are: this time it may have had fewer
            with pytest.raises(FormatError, match=r"no backup, or not a whole one|There is no folder"):
                backup._read_manifest(died)
        acknowledged = [(agent, dict(agent.kept)) for agent in agents]
        assert process(what="backup", folder=str(drill.folder), **given)[0] == "done"
    contents = {("base", result_id): content for result_id, content in agent.kept.items()}
    contents |= {(one.session_id, result_id): text for one, kept in acknowledged for result_id, text in kept.items()}
    with opened(desk, register=drill.register) as archive:
        custody = archive.custody(KEEPER)
        gone = dice.sample(["r2", "r3", "r5", "r6"], dice.randrange(1, 4))
        for result_id in gone:
            custody.shred(session_id="base", result_id=result_id)
        custody.hold("after the backup", session_id="base", result_id="r4")
        if dice.random() < 0.5:
            custody.release(before.id)
        if dice.random() < 0.5:
            custody.retain("base", "r4", archive._around.clock.now_us() + YEARS_US)
        if dice.random() < 0.3:
            custody.shred(session_id="writer-1")
            gone_sessions = {"writer-1"}
        else:
            gone_sessions = set()
        drill.holds = holds_of(archive)
    drill.expected = {
        place: None if (place[0] == "base" and place[1] in gone) or place[0] in gone_sessions else content
        for place, content in contents.items()
    }
    return drill


def drill_once(desk: Desk, tmp_path: Path, process: BackupProcess, seed: int) -> list[str]:
    dice = random.Random(seed)
    drill = drilled(desk, tmp_path, process, dice)
    replays = [[str(drill.register)], [desk.url], [str(drill.register), desk.url]][seed % 3]
    given = {"what": "restore", "folder": str(drill.folder), "keys": str(desk.keys), "subject": "records"}
    measured, target = tmp_path / "measured-target", tmp_path / "target"
    for one in (measured, target):
        one.mkdir()
        shutil.copy2(desk.keys, one / "evidence.keys")
    ended, moments = process(url=Desk(measured).url, replays=replays, **given)
    assert ended == "done"
    copy = Desk(target)
    ended, _ = process(url=copy.url, replays=replays, die_at=dice.randrange(1, moments), **given)
    assert ended == "killed"
    if not copy.database.exists():
        assert process(url=copy.url, replays=replays, **given)[0] == "done"
    left = {path.name for path in target.iterdir()} - {"evidence.db", "evidence.db-journal", "evidence.db.objects"}
    assert left <= {"evidence.keys", "evidence.db.restoring"}
    return differences(copy, drill.expected, drill.holds)


@pytest.fixture(scope="module")
def process() -> Iterator[BackupProcess]:
    with BackupProcess() as started:
        yield started


@pytest.mark.parametrize("seed", range(9))
def test_a_drill_brings_back_every_original_every_hold_and_no_shredded_original(
    desk: Desk, tmp_path: Path, process: BackupProcess, seed: int
) -> None:
    assert drill_once(desk, tmp_path, process, seed) == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(9, 109))
def test_a_hundred_more_drills_do_too(desk: Desk, tmp_path: Path, process: BackupProcess, seed: int) -> None:
    assert drill_once(desk, tmp_path, process, seed) == []


def test_without_a_replay_a_shredded_original_is_back_and_the_drill_says_so(
    desk: Desk, tmp_path: Path, process: BackupProcess
) -> None:
    drill = drilled(desk, tmp_path, process, random.Random(1))
    found = differences(back(desk, drill.folder, tmp_path / "target"), drill.expected, drill.holds)
    assert any(one.endswith("resurrected") for one in found)
    assert "other holds" in found


# --- one store, one backup ------------------------------------------------------------------------------------------


@pytest.fixture
def filled(desk: Desk) -> Desk:
    """Two orgs, two sessions, three originals each, one of them in objects; a hold."""
    with opened(desk) as archive:
        Agent(archive, "base").archive(3)
        Agent(archive, "other").archive(3)
        Agent(archive, "base", NEIGHBOUR).archive(3)
        archive.custody(KEEPER).hold("as counsel asked", session_id="base", result_id="r1")
    return desk


def contents_of(desk: Desk) -> tuple[dict[tuple[str, str], str | None], list[tuple[Any, ...]]]:
    with opened(desk) as archive:
        found: dict[tuple[str, str], str | None] = {
            (session_id, f"r{number}"): archive.restore(session_id, f"r{number}", principal=KEEPER).content
            for session_id in ("base", "other")
            for number in (1, 2, 3)
        }
        return found, holds_of(archive)


def made(desk: Desk, folder: Path) -> backup.Backup:
    with opened(desk) as archive:
        return archive.custody(KEEPER).backup(folder)


def test_a_backup_comes_back_equal_with_all_its_orgs(filled: Desk, tmp_path: Path) -> None:
    expected, holds = contents_of(filled)
    told = made(filled, tmp_path / "backup")
    assert [(one.org, one.originals) for one in told.orgs] == [("north-clinic", 6), ("south-clinic", 3)]
    copy = back(filled, told.folder, tmp_path / "target")
    assert differences(copy, expected, holds) == []
    with opened(copy) as archive:
        assert archive.restore("base", "r3", principal=NEIGHBOUR).content
        for who in (KEEPER, NEIGHBOUR):
            entries = [entry.event for entry in archive.audit(principal=who).entries]
            assert entries.count("backup.restored") == 1
        Agent(archive, "new").archive(3)


def test_a_backup_in_wal_mode_has_what_only_the_log_holds(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "journal_rules", lambda version: ("wal", 2))
    with opened(desk) as archive, opened(desk) as other:
        agent = Agent(archive, "base")
        agent.archive(3)
        assert Path(f"{desk.database}-wal").stat().st_size
        told = other.custody(KEEPER).backup(tmp_path / "backup")
    assert sorted(path.name for path in told.folder.iterdir()) == ["evidence.db", "evidence.db.objects", MANIFEST]
    copy = back(desk, told.folder, tmp_path / "target")
    assert differences(copy, {("base", name): text for name, text in agent.kept.items()}, []) == []


def test_the_backup_is_in_the_log_and_private_and_says_what_is_in_it(filled: Desk, tmp_path: Path) -> None:
    told = made(filled, tmp_path / "backup")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in told.folder.rglob("*") if path.is_file()}
    assert (stat.S_IMODE(told.folder.stat().st_mode), modes) == (0o700, {0o600})
    manifest = json.loads((told.folder / MANIFEST).read_text())
    assert manifest["format"] == "evidence-archive/backup/1"
    assert sum(one["size_bytes"] for one in manifest["files"]) == told.size_bytes
    assert len(manifest["files"]) == told.files == 5
    with opened(filled) as archive:
        last = archive.audit(principal=KEEPER).entries[-1]
        log = {one["org"]: one for one in manifest["orgs"]}["north-clinic"]
        assert archive.custody(KEEPER).consistent(log["checkpoint"]).size == log["size"]
    assert last.event == "backup.made"
    assert last.details == {"orgs": 2, "originals": 6, "size": log["size"], "root": log["root"]}


def test_no_key_and_no_content_is_in_a_backup(filled: Desk, tmp_path: Path) -> None:
    folder = made(filled, tmp_path / "backup").folder
    with opened(filled) as archive:
        vault = archive._vault(KEEPER)
        with vault.store.reading(1_000) as reader:
            scopes = reader.scopes(b"", 10)
        secrets = [
            vault._keys.row,
            vault._keys.audit,
            vault._keys.signing,
            *(vault.scope_keys(s).key for s in scopes),
        ]
    roots = [base64.urlsafe_b64decode(one + "=") for one in re.findall(r'"([\w-]{43})"', filled.keys.read_text())]
    assert roots
    everything = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    assert b"north-clinic" in everything, "the search is blind"
    forms = [lambda one: one, lambda one: one.hex().encode(), base64.b64encode, base64.urlsafe_b64encode]
    assert [form(one) for one in (*secrets, *roots) for form in forms if form(one).rstrip(b"=") in everything] == []
    assert b"of the log" not in everything


def test_a_backup_is_a_store_that_opens_where_it_lies(filled: Desk, tmp_path: Path) -> None:
    folder = made(filled, tmp_path / "backup").folder
    copy = tmp_path / "opened"
    shutil.copytree(folder, copy)
    with Archive.open(f"sqlite:///{copy}/evidence.db", keys=filled.keys, create=False) as archive:
        assert archive.restore("base", "r3", principal=KEEPER).content


@pytest.mark.parametrize("there", ["a file", "a backup", "no folder"])
def test_a_backup_goes_into_a_new_or_empty_folder_only(filled: Desk, tmp_path: Path, there: str) -> None:
    folder = tmp_path / "backup"
    if there == "a backup":
        made(filled, folder)
    elif there == "a file":
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    else:
        folder.write_text("mine")
    with opened(filled) as archive, pytest.raises((FormatError, StoreUnavailableError)):
        archive.custody(KEEPER).backup(folder)


def test_the_folders_above_a_backup_are_made_and_private(filled: Desk, tmp_path: Path) -> None:
    folder = made(filled, tmp_path / "backups" / "week" / "monday").folder
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, *folder.parents[:2])] == [0o700] * 3
    back(filled, folder, tmp_path / "target")


def test_a_path_that_cannot_be_used_is_named(filled: Desk, tmp_path: Path) -> None:
    folder, absent = made(filled, tmp_path / "backup").folder, str(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=re.escape(absent)):
        back(filled, Path(absent), tmp_path / "target")
    with pytest.raises(StoreUnavailableError, match=re.escape(absent)):
        back(filled, folder, tmp_path / "target", absent)
    with pytest.raises(StoreUnavailableError, match=re.escape(absent)):
        restore_backup(
            folder,
            f"sqlite:///{absent}/evidence.db",
            keys=open_provider(filled.keys),
            policy=None,
            subject="records",
            roles={"custodian"},
        )
    with pytest.raises(StoreUnavailableError, match=re.escape(str(tmp_path / "file"))):
        made(filled, tmp_path / "file" / "monday")


def test_a_store_of_another_kind_is_told_to_be_backed_up_by_its_own_means(filled: Desk, tmp_path: Path) -> None:
    inner = open_store(filled.url)
    verbs = {name: getattr(inner, name) for name in ("org", "orgs", "create_org", "scoped", "close")}
    archive = Archive(SimpleNamespace(**verbs), keys=open_provider(filled.keys), policy=Policy.default())
    with archive, pytest.raises(StoreError, match="makes no copies"):
        archive.custody(KEEPER).backup(tmp_path / "backup")


# --- what is no backup ----------------------------------------------------------------------------------------------


def corrupt(desk: Desk) -> None:
    """One byte in the middle of a stored envelope, changed past this library."""
    query = "SELECT original_id, envelope FROM originals WHERE org = ? ORDER BY original_id"
    original_id, envelope = desk.execute(query, KEEPER.org)[0]
    middle = len(envelope) // 2
    changed = envelope[:middle] + bytes([envelope[middle] ^ 1]) + envelope[middle + 1 :]
    desk.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", changed, original_id)


def says_it_is_none(filled: Desk, folder: Path, target: Path) -> bool:
    with pytest.raises(FormatError, match="no backup, or not a whole one"):
        back(filled, folder, target)
    return (folder / NO_BACKUP).exists() and not (target / "evidence.db").exists()


def test_a_copy_with_one_changed_byte_is_not_called_a_backup(filled: Desk, tmp_path: Path) -> None:
    corrupt(filled)
    with pytest.raises(IntegrityError, match="it was changed"):
        made(filled, tmp_path / "backup")
    assert says_it_is_none(filled, tmp_path / "backup", tmp_path / "target")


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM results WHERE number = 2",
        "UPDATE results SET state = 'live' WHERE number = 2",
        "DELETE FROM scope_keys",
        "UPDATE scope_keys SET wrapped = x'00'",
        "UPDATE audit_leaves SET leaf = x'00' WHERE seq = 2",
        "DELETE FROM audit_leaves WHERE seq = 2",
        "DELETE FROM originals",
        "UPDATE sessions SET next_number = next_number + 1",
        "UPDATE holds SET released_at_us = 1",
    ],
)
def test_a_copy_of_a_store_that_was_changed_is_not_called_a_backup(filled: Desk, tmp_path: Path, damage: str) -> None:
    filled.execute(damage)
    with opened(filled) as archive, pytest.raises(EvidenceArchiveError):
        archive.custody(KEEPER).backup(tmp_path / "backup")
    assert says_it_is_none(filled, tmp_path / "backup", tmp_path / "target")


def test_a_backup_that_nobody_verified_brings_the_changed_byte_and_the_drill_says_so(
    filled: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, holds = contents_of(filled)
    corrupt(filled)
    looking = backup.verify_vault
    monkeypatch.setattr(backup, "verify_vault", lambda vault, level: looking(vault, level="seals", since_us=2**62))
    copy = back(filled, made(filled, tmp_path / "backup").folder, tmp_path / "target")
    assert any(one.endswith("SealBrokenError") for one in differences(copy, expected, holds))


def test_a_file_copied_while_others_write_is_not_called_a_backup(
    filled: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(filled) as writing, opened(filled) as archive:
        agent = Agent(writing, "busy")

        def copied_as_a_file(engine: Any, path: Path, *, wait_ms: int) -> None:
            """What ``cp`` does: one block after the other, with batches in between."""
            size = engine.path.stat().st_size
            with engine.path.open("rb") as source, path.open("xb") as copy:
                copy.write(source.read(size // 3))
                agent.archive(8)
                copy.write(source.read(size // 3))
                agent.archive(8)
                copy.write(source.read())

        monkeypatch.setattr("evidence_archive.store.sql.copy_store", copied_as_a_file)
        with pytest.raises(EvidenceArchiveError):
            archive.custody(KEEPER).backup(tmp_path / "backup")
    assert says_it_is_none(filled, tmp_path / "backup", tmp_path / "target")


def test_an_object_that_is_gone_ends_the_backup_and_one_that_was_shredded_meanwhile_does_not(
    filled: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(filled) as archive, opened(filled) as other:
        copies = 0
        copy_objects = backup._copy_objects

        def shredded_first(copy: Any, vault: Any, objects: Any) -> None:
            nonlocal copies
            copies += 1
            if copies == 1:
                other.custody(KEEPER).shred(session_id="other", result_id="r3")
            copy_objects(copy, vault, objects)

        monkeypatch.setattr(backup, "_copy_objects", shredded_first)
        assert archive.custody(KEEPER).backup(tmp_path / "backup").orgs[0].originals == 5
        assert copies == 3
        for path in (filled.folder / "evidence.db.objects").rglob("*.00000"):
            path.unlink()
        with pytest.raises(StoreUnavailableError, match="no backup was made"):
            archive.custody(KEEPER).backup(tmp_path / "second")
    assert says_it_is_none(filled, tmp_path / "second", tmp_path / "target")


def test_a_database_that_stays_locked_ends_the_backup_in_time(filled: Desk, tmp_path: Path) -> None:
    with opened(filled, policy=Policy.loads(LIMITED)) as archive:
        custody = archive.custody(KEEPER)
        with filled.locked(), pytest.raises(StoreBusyError):
            custody.backup(tmp_path / "backup")
    assert says_it_is_none(filled, tmp_path / "backup", tmp_path / "target")


LIMITED = '[policy]\nname = "test"\nversion = 1\ndefault = "allow"\n[limits]\nstore_wait_ms_max = 300\n'


def test_writers_that_never_stop_cannot_keep_a_copy_from_its_end(
    filled: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "STEP_PAGES", 1)
    straight = sqlite3.connect(filled.database, isolation_level=None, timeout=30)
    steps: list[int] = []
    watched = copying._watched

    def writing_between(wait_ms: int, restarts_max: int | None) -> Callable[[int, int, int], None]:
        progress = watched(wait_ms, restarts_max)

        def meanwhile(status: int, remaining: int, total: int) -> None:
            steps.append(remaining)
            if restarts_max is not None:
                straight.execute(f"PRAGMA user_version = {len(steps)}")
            progress(status, remaining, total)

        return meanwhile

    monkeypatch.setattr(copying, "_watched", writing_between)
    try:
        told = made(filled, tmp_path / "backup")
    finally:
        straight.close()
    assert steps[-1] == 0
    assert 3 < len(steps) < 30
    expected, holds = contents_of(filled)
    assert differences(back(filled, told.folder, tmp_path / "target"), expected, holds) == []


# --- putting back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["", "-wal", "-journal"])
def test_a_target_that_holds_a_database_or_the_log_of_one_is_refused(
    filled: Desk, tmp_path: Path, there: str
) -> None:
    folder, target = made(filled, tmp_path / "backup").folder, tmp_path / "target"
    target.mkdir()
    (target / f"evidence.db{there}").write_bytes(b"")
    with pytest.raises(StoreError, match="already"):
        back(filled, folder, target)
    assert (target / f"evidence.db{there}").read_bytes() == b""


def test_a_target_with_objects_of_another_store_is_refused(filled: Desk, tmp_path: Path) -> None:
    folder, target = made(filled, tmp_path / "backup").folder, tmp_path / "target"
    other = target / "evidence.db.objects" / "aa"
    other.mkdir(parents=True, mode=0o700)
    (other / f"{'0' * 30}.00000").write_bytes(b"x")
    with pytest.raises(StoreError, match="other objects at the target"):
        back(filled, folder, target)


@pytest.mark.parametrize("what", ["changed", "cut", "gone", "a pipe", "added", "manifest"])
def test_a_backup_in_which_a_file_was_changed_is_not_put_back(filled: Desk, tmp_path: Path, what: str) -> None:
    folder, target = made(filled, tmp_path / "backup").folder, tmp_path / "target"
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        broken = tmp_path / f"broken-{path.name}"
        shutil.copytree(folder, broken)
        victim, whole = broken / path.relative_to(folder), path.read_bytes()
        if what == "changed":
            victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        elif what == "cut":
            victim.write_bytes(whole[:-1])
        elif what == "gone":
            victim.unlink()
        elif what == "a pipe":
            victim.unlink()
            os.mkfifo(victim)  # opening it would wait for a writer
        elif what == "added":
            victim.with_name("more").write_bytes(b"x")
        else:
            told = json.loads((broken / MANIFEST).read_text())
            told["files"] = [one for one in told["files"] if one["path"] != path.relative_to(folder).as_posix()]
            (broken / MANIFEST).write_text(json.dumps(told))
        with pytest.raises((IntegrityError, FormatError)):
            back(filled, broken, target)
        assert left_at(target) == []


@pytest.mark.parametrize(
    "edit",
    [
        lambda told: told["orgs"].pop(),
        lambda told: told["orgs"][0].update(root="00" * 32),
        lambda told: told["orgs"][0].update(size=1),
        lambda told: told["orgs"][0].update(originals=None),
        lambda told: told["orgs"][0].update(checkpoint=told["orgs"][1]["checkpoint"]),
        lambda told: told.update(format="evidence-archive/backup/2"),
        lambda told: told.update(orgs=[{}]),
        lambda told: told["files"].append({"path": "../evidence.keys", "size_bytes": 1, "sha256": "00"}),
    ],
)
def test_a_manifest_that_was_edited_is_refused(filled: Desk, tmp_path: Path, edit: Callable[[Any], None]) -> None:
    folder = made(filled, tmp_path / "backup").folder
    told = json.loads((folder / MANIFEST).read_text())
    edit(told)
    (folder / MANIFEST).write_text(json.dumps(told))
    with pytest.raises((IntegrityError, FormatError)):
        back(filled, folder, tmp_path / "target")
    assert left_at(tmp_path / "target") == []


def test_an_older_whole_database_in_the_place_of_a_newer_one_is_refused(filled: Desk, tmp_path: Path) -> None:
    older = made(filled, tmp_path / "older").folder
    newer = made(filled, tmp_path / "newer").folder
    told = json.loads((newer / MANIFEST).read_text())
    told["files"] = json.loads((older / MANIFEST).read_text())["files"]
    shutil.rmtree(newer / "evidence.db.objects")
    shutil.copytree(older, newer, dirs_exist_ok=True)
    (newer / MANIFEST).write_text(json.dumps(told))
    with pytest.raises(AuditBrokenError):
        back(filled, newer, tmp_path / "target")


def test_other_keys_put_nothing_back(filled: Desk, tmp_path: Path) -> None:
    folder, keys = made(filled, tmp_path / "backup").folder, tmp_path / "other.keys"
    new_keys(keys)
    with pytest.raises(WrongKeyError):
        back(filled, folder, tmp_path / "target", keys=open_provider(keys))
    assert left_at(tmp_path / "target") == []
    back(filled, folder, tmp_path / "target")


def left_at(target: Path) -> list[str]:
    """What is at a target besides its keys."""
    return sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.name != "evidence.keys")


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a part of the same", "another folder"])
@pytest.mark.parametrize("fails", ["_revived", "_move", "put"])
def test_where_putting_back_fails_the_objects_it_put_go_again_and_nothing_that_was_there(
    filled: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, there: str
) -> None:
    folder, target = made(filled, tmp_path / "backup").folder, tmp_path / "target"
    target.mkdir()
    objects = target / ("elsewhere" if there == "another folder" else "evidence.db.objects")
    if there == "an empty folder":
        objects.mkdir(mode=0o700)
    elif there == "a part of the same":
        shutil.copytree(folder / "evidence.db.objects", objects)
        next(objects.glob("??/*")).unlink()
    before = left_at(target)

    def failing(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("made up")

    where = str(objects) if there == "another folder" else None
    with monkeypatch.context() as patch:
        if fails == "put":
            puts = iter([DirectoryObjects.put] * (1 if there == "a part of the same" else 2))
            patch.setattr(DirectoryObjects, "put", lambda *args: next(puts, failing)(*args))
        else:
            patch.setattr(backup, fails, failing)
        with pytest.raises(StoreUnavailableError, match="made up"):
            back(filled, folder, target, objects=where)
        assert left_at(target) == before
        patch.setattr(backup, "_empty_again", lambda *_: None)
        patch.setattr(DirectoryObjects, "delete", lambda *_: None)
        if there != "a part of the same":  # must-fail control: without that, something is left
            with pytest.raises(StoreUnavailableError):
                back(filled, folder, target, objects=where)
            assert left_at(target) != before
    with opened(back(filled, folder, target, objects=where), objects=where) as archive:
        assert archive.restore("base", "r2", principal=KEEPER).content


def test_before_all_was_verified_no_object_is_put(
    filled: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(filled, tmp_path / "backup").folder
    monkeypatch.setattr(DirectoryObjects, "put", lambda *_: pytest.fail("an object was put"))
    keys, register = tmp_path / "other.keys", tmp_path / "register.jsonl"
    new_keys(keys)
    register.write_text("no line\n")
    with pytest.raises(WrongKeyError):
        back(filled, folder, tmp_path / "one", keys=open_provider(keys))
    with pytest.raises(AuditBrokenError):
        back(filled, folder, tmp_path / "two", register)


def test_an_object_is_not_taken_back_from_a_database_that_names_it(filled: Desk, tmp_path: Path) -> None:
    folder, sync = made(filled, tmp_path / "backup").folder, backup._sync

    def failing(path: Path) -> None:
        if path == tmp_path / "target":
            raise OSError(5, "made up")
        sync(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "_sync", failing)
        with pytest.raises(StoreUnavailableError):
            back(filled, folder, tmp_path / "target")
    with opened(Desk(tmp_path / "target")) as archive:
        assert [archive.restore("base", f"r{number}", principal=KEEPER).content for number in (1, 2, 3)]
        assert archive.custody(KEEPER).verify("full").is_clean


def test_without_a_policy_the_default_has_to_be_the_one_of_every_org(filled: Desk, tmp_path: Path) -> None:
    folder = made(filled, tmp_path / "backup").folder
    back(filled, folder, tmp_path / "one", policy=None)
    (tmp_path / "own.toml").write_text('[policy]\nname = "own"\nversion = 1\ndefault = "allow"\n')
    own = Policy.load(tmp_path / "own.toml")
    with opened(filled, policy=own) as archive:
        archive.session("base", KEEPER)
    folder = made(filled, tmp_path / "under-another").folder
    with pytest.raises(PolicyError, match="name the policy"):
        back(filled, folder, tmp_path / "two", policy=None)
    assert left_at(tmp_path / "two") == []
    back(filled, folder, tmp_path / "two", policy=own)


def test_only_a_custodian_puts_back_and_backs_up(filled: Desk, tmp_path: Path) -> None:
    folder = made(filled, tmp_path / "backup").folder
    with pytest.raises(NotAvailableError):
        back(filled, folder, tmp_path / "target", roles={"agent"})
    with opened(filled) as archive, pytest.raises(NotAvailableError):
        archive.custody(Principal("north-clinic", "triage-agent", {"agent"}))


def test_two_processes_do_not_put_back_at_the_same_place_at_once(filled: Desk, tmp_path: Path) -> None:
    folder, target = made(filled, tmp_path / "backup").folder, tmp_path / "target"
    target.mkdir()
    with backup._staging_of(target / "evidence.db"), pytest.raises(StoreBusyError):
        back(filled, folder, target)
    back(filled, folder, target)


def test_a_shredded_org_comes_back_shredded(filled: Desk, tmp_path: Path) -> None:
    with opened(filled) as archive:
        archive.custody(NEIGHBOUR).shred()
    told = made(filled, tmp_path / "backup")
    assert [one.originals for one in told.orgs] == [6, None]
    with opened(back(filled, told.folder, tmp_path / "target")) as archive, pytest.raises(ShreddedError):
        archive.restore("base", "r1", principal=NEIGHBOUR)


# --- the register ---------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(filled: Desk, tmp_path: Path) -> tuple[Path, Path, Hold]:
    """A backup, a register of what was done after it, and the first hold of it."""
    folder, register = made(filled, tmp_path / "backup").folder, tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        custody = archive.custody(KEEPER)
        hold = custody.hold("after the backup", session_id="other", result_id="r1")
        custody.shred(session_id="base", result_id="r2")
        custody.shred(session_id="base", result_id="r3")
    return folder, register, hold


def entries_of(lines: list[str]) -> list[str]:
    """The entries in a register; the proofs around them lead to whichever head was the newest."""
    return [json.loads(line)["proof"].split("\n")[1] for line in lines]


def test_what_is_held_and_shredded_gets_its_line_before_the_act_returns(filled: Desk, tmp_path: Path) -> None:
    register = tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        custody = archive.custody(KEEPER)
        lines = [len(register.read_text().splitlines())]
        hold = custody.hold("held", session_id="base", result_id="r1")
        lines.append(len(register.read_text().splitlines()))
        custody.release(hold.id)
        lines.append(len(register.read_text().splitlines()))
        custody.retain("base", "r1", 2**60)
        lines.append(len(register.read_text().splitlines()))
        custody.shred(session_id="base", result_id="r2")
        lines.append(len(register.read_text().splitlines()))
        custody.gc(dry_run=False)
        assert entries_of(custody.register()) == entries_of(register.read_text().splitlines())
        assert custody.register(10_000) == []
    assert lines == [1, 2, 3, 4, 5], "the first is the hold that was there before there was a register"
    assert stat.S_IMODE(register.stat().st_mode) == 0o600
    assert b"held" not in register.read_bytes().replace(b"hold", b"")


def test_a_register_that_cannot_be_written_says_so_after_the_act_and_the_next_one_makes_up_for_it(
    filled: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "registers"
    folder.mkdir()
    register = folder / "register.jsonl"
    with opened(filled, register=register) as archive:
        custody = archive.custody(KEEPER)
        folder.rename(tmp_path / "away")
        with pytest.raises(StoreUnavailableError, match="took place and is in the log"):
            custody.shred(session_id="base", result_id="r2")
        with pytest.raises(ShreddedError):
            archive.restore("base", "r2", principal=KEEPER)
        (tmp_path / "away").rename(folder)
        custody.shred(session_id="base", result_id="r3")
    assert len(register.read_text().splitlines()) == 3


@pytest.mark.parametrize("what", ["a backup is put back", "the register is moved away"])
def test_a_process_that_goes_on_keeps_the_register_whole_when(filled: Desk, tmp_path: Path, what: str) -> None:
    """What it looked at before says nothing of another history, nor of another file."""
    register, away = tmp_path / "register.jsonl", tmp_path / "away"
    away.mkdir()
    with opened(filled, register=register) as archive:
        custody = archive.custody(KEEPER)
        folder = custody.backup(tmp_path / "backup").folder
        for _ in range(20):
            archive.restore("base", "r1", principal=KEEPER)
        custody.shred(session_id="base", result_id="r2")
        if what == "the register is moved away":
            register.rename(away / "register.jsonl")
        else:
            for path in filled.folder.glob("evidence.db*"):
                path.rename(away / path.name)
            back(filled, folder, filled.folder, register)
            with pytest.raises(StoreUnavailableError, match="replaced"):
                custody.holds()
        custody.shred(session_id="base", result_id="r3")
    events = [json.loads(line)["proof"].split("\n")[1] for line in register.read_text().splitlines()]
    with opened(filled) as archive:
        lines = archive.custody(KEEPER).register()
    assert entries_of(lines) == [one for one in events if one in entries_of(lines)]
    with opened(back(filled, folder, tmp_path / "target", register)) as archive:
        assert [one.result_id for one in archive.custody(KEEPER).shreds()] == ["r2", "r3"]


def test_a_line_that_was_cut_off_is_written_anew_and_not_believed(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    folder, register, _ = kept
    whole = register.read_bytes()
    register.write_bytes(whole[:-20])
    with opened(back(filled, folder, tmp_path / "cut", register)) as archive:
        assert archive.restore("base", "r3", principal=KEEPER).content, "its line was cut off"
    with opened(filled) as archive:
        assert archive.custody(KEEPER).append_to(Register(register)) == 1
    assert entries_of(register.read_text().splitlines()) == entries_of(whole.decode().splitlines())


def test_replaying_is_idempotent_and_takes_several_sources(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    folder, register, _ = kept
    copy = back(filled, folder, tmp_path / "target", register, register, filled.url)
    with opened(copy) as archive:
        assert [one.result_id for one in archive.custody(KEEPER).shreds()] == ["r2", "r3"]
        again = archive._vault(KEEPER)
        with register.open("rb") as lines:
            acts = backup.acts_in_register(again, lines)
        done = backup.replay(again, KEEPER, acts)
    assert (done.holds, done.shreds, done.already, done.not_here) == (0, 0, 4, 0)


def test_what_is_not_in_the_backup_is_counted_and_passed_by(filled: Desk, tmp_path: Path) -> None:
    folder, register = made(filled, tmp_path / "backup").folder, tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        Agent(archive, "later").archive(3)
        custody = archive.custody(KEEPER)
        custody.hold("later", session_id="later", result_id="r1")
        custody.retain("later", "r1", 2**60)
        custody.shred(session_id="later", result_id="r2")
    with pytest.raises(NotAvailableError), opened(back(filled, folder, tmp_path / "one", register)) as archive:
        archive.restore("later", "r1", principal=KEEPER)
    told = restore_backup(
        folder,
        f"sqlite:///{tmp_path}/two.db",
        keys=open_provider(filled.keys),
        policy=Policy.default(),
        subject="records",
        roles={"custodian"},
        replays=[str(register)],
    )
    assert [(one.org, one.not_here, one.shreds) for one in told.replayed] == [
        ("north-clinic", 3, 0),
        ("south-clinic", 0, 0),
    ]


def test_the_shred_of_a_session_and_of_an_org_are_done_again(filled: Desk, tmp_path: Path) -> None:
    folder, register = made(filled, tmp_path / "backup").folder, tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        archive.custody(KEEPER).shred(session_id="other")
        archive.custody(NEIGHBOUR).shred()
    for name, source in (("by register", register), ("by database", filled.url)):
        with opened(back(filled, folder, tmp_path / name, source)) as archive:
            assert archive.restore("base", "r1", principal=KEEPER).content
            for session_id, who in (("other", KEEPER), ("base", NEIGHBOUR)):
                with pytest.raises(ShreddedError):
                    archive.restore(session_id, "r1", principal=who)
        assert len(list((tmp_path / name / "evidence.db.objects").rglob("*.00000"))) == 1


def mutated(lines: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Registers of which one line is not what was written."""
    for at, line in enumerate(lines):
        told = json.loads(line)
        leaf, note = told["proof"].split("\n")[1], told["proof"].split("\n\n", 1)[1]
        other = json.loads(lines[at - 1])["proof"]
        swapped = told["proof"].replace(note, note[:-9] + ("A" if note[-9] != "A" else "B") + note[-8:])
        changes: dict[str, Any] = {
            "another entry": {**told, "proof": told["proof"].replace(leaf, other.split("\n")[1])},
            "another signature": {**told, "proof": swapped},
            "another index": {**told, "proof": told["proof"].replace("\nindex ", "\nindex 1")},
            "no proof": {**told, "proof": ""},
            "a proof that is a number": {**told, "proof": 7},
            "no fields": {"origin": told["origin"]},
            "nothing that it was done to": {**told, "of": None},
            "done to another one": {**told, "of": json.loads(lines[at - 1])["of"]},
        }
        if told["reason"]:
            reason = bytearray(base64.b64decode(told["reason"]))
            reason[-1] ^= 1
            changes["another reason"] = {**told, "reason": base64.b64encode(reason).decode()}
        for what, changed in changes.items():
            yield f"line {at}: {what}", [*lines[:at], json.dumps(changed).encode() + b"\n", *lines[at + 1 :]]
        yield f"line {at}: no JSON", [*lines[:at], b"shred everything\n", *lines[at + 1 :]]


def test_a_line_that_does_not_verify_is_refused_and_nothing_is_put_back(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    folder, register, _ = kept
    lines = register.read_bytes().splitlines(keepends=True)
    broken, count = tmp_path / "broken.jsonl", 0
    for what, changed in mutated(lines):
        broken.write_bytes(b"".join(changed))
        try:
            with pytest.raises(AuditBrokenError, match=r"Line \d of a register was changed"):
                back(filled, folder, tmp_path / "target", broken)
        except BaseException as error:
            error.add_note(what)
            raise
        assert left_at(tmp_path / "target") == []
        count += 1
    assert count > 20


def test_the_register_of_another_store_does_nothing(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    folder, _, _ = kept
    other = Desk(tmp_path / "elsewhere")
    other.folder.mkdir()
    new_keys(other.keys)
    with opened(other, register=tmp_path / "other.jsonl") as archive:
        Agent(archive, "base").archive(3)
        archive.custody(KEEPER).shred(session_id="base", result_id="r1")
    with opened(back(filled, folder, tmp_path / "target", tmp_path / "other.jsonl")) as archive:
        assert archive.restore("base", "r1", principal=KEEPER).content == "base 1 of the log\n" * 40
    with pytest.raises(SealBrokenError):
        back(filled, folder, tmp_path / "second", other.url)


def test_a_newer_database_with_another_history_is_refused(filled: Desk, tmp_path: Path) -> None:
    early = tmp_path / "early.db"
    shutil.copy2(filled.database, early)
    folder = made(filled, tmp_path / "one").folder
    with opened(filled) as archive:
        archive.custody(KEEPER).hold("one way", session_id="base")
    later = made(filled, tmp_path / "later").folder
    with Archive.open(
        f"sqlite:///{early}", keys=filled.keys, objects=filled.folder / "evidence.db.objects"
    ) as archive:
        archive.custody(KEEPER).shred(session_id="base", result_id="r2")
        archive.custody(KEEPER).shred(session_id="other", result_id="r2")
        archive.custody(KEEPER).hold("another way", session_id="other")
    with pytest.raises(AuditBrokenError, match="another history"):
        back(filled, later, tmp_path / "target", f"sqlite:///{early}")
    back(filled, folder, tmp_path / "second", filled.url)


def test_after_a_restore_the_register_goes_on_and_what_was_lost_is_not_done_to_others(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    """r7 of the first history was shredded; the r7 that the second history gave anew must not be."""
    folder, register, _ = kept
    with opened(filled, register=register) as archive:
        agent = Agent(archive, "case")
        agent.archive(2)
        archive.custody(KEEPER).shred(session_id="case", result_id="r2")
    second = back(filled, folder, tmp_path / "second", register)
    with opened(second, register=register) as archive:
        again = Agent(archive, "case")
        again.archive(3)
        archive.custody(KEEPER).hold("in the second history", session_id="case", result_id="r1")
        newer = archive.custody(KEEPER).backup(tmp_path / "newer").folder
        archive.custody(KEEPER).shred(session_id="case", result_id="r3")
    third = back(second, newer, tmp_path / "third", register)
    with opened(third) as archive:
        assert archive.restore("case", "r2", principal=KEEPER).content == again.kept["r2"]
        for session_id, result_id in (("case", "r3"), ("base", "r2"), ("base", "r3")):
            with pytest.raises(ShreddedError):
                archive.restore(session_id, result_id, principal=KEEPER)


@pytest.mark.parametrize("began", ["before the newer backup", "after it", "after it, and nobody asks"])
def test_an_act_is_not_done_to_what_got_the_same_id_in_another_history(
    filled: Desk, tmp_path: Path, began: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history was gone on with without the register, so that nothing in it says where the old one ends."""
    folder, register = made(filled, tmp_path / "backup").folder, tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        for _ in range(0 if began == "before the newer backup" else 30):
            with pytest.raises(NotAvailableError):
                archive.restore("case", "r9", principal=KEEPER)
        Agent(archive, "case").archive(2)
        for _ in range(30):
            with pytest.raises(NotAvailableError):
                archive.restore("case", "r9", principal=KEEPER)
        archive.custody(KEEPER).shred(session_id="case", result_id="r2")
        archive.custody(KEEPER).shred(session_id="base", result_id="r2")
    second = back(filled, folder, tmp_path / "second")
    with opened(second) as archive:
        again = Agent(archive, "case")
        again.archive(2)
        newer = archive.custody(KEEPER).backup(tmp_path / "newer").folder
    if began == "before the newer backup":
        with pytest.raises(AuditBrokenError, match="another history"):
            back(second, newer, tmp_path / "third", register)
        assert not (tmp_path / "third" / "evidence.db").exists()
        return
    if began == "after it, and nobody asks":
        monkeypatch.setattr(register_module, "replace", lambda act, **_: act)
        with opened(back(second, newer, tmp_path / "third", register)) as archive, pytest.raises(ShreddedError):
            archive.restore("case", "r2", principal=KEEPER)
        return
    with opened(back(second, newer, tmp_path / "third", register)) as archive:
        assert archive.restore("case", "r2", principal=KEEPER).content == again.kept["r2"]
        with pytest.raises(ShreddedError):
            archive.restore("base", "r2", principal=KEEPER)


def test_a_hold_that_is_done_again_keeps_its_id_its_reason_and_who_placed_it(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    folder, register, hold = kept
    with opened(back(filled, folder, tmp_path / "target", register)) as archive:
        found = next(one for one in archive.custody(KEEPER).holds() if one.id == hold.id)
        assert replace(found, placed_at_us=0) == replace(hold, placed_at_us=0)
        assert 0 <= found.placed_at_us - hold.placed_at_us < 60_000_000, "it is the time of the entry"
        archive.custody(KEEPER).release(hold.id)


def test_who_placed_a_hold_is_told_after_it_was_done_again_twice(
    filled: Desk, tmp_path: Path, kept: tuple[Path, Path, Hold]
) -> None:
    folder, register, hold = kept
    second = back(filled, folder, tmp_path / "second", register)
    with opened(second, register=register) as archive:
        archive.custody(KEEPER)
    with opened(back(second, folder, tmp_path / "third", register)) as archive:
        found = next(one for one in archive.custody(KEEPER).holds() if one.id == hold.id)
        assert found.placed_by == hold.placed_by != "records"
        assert archive.custody(KEEPER).verify().findings == ()


def test_a_shred_after_putting_back_is_not_complete_while_a_copy_of_what_was_lost_opens(
    filled: Desk, tmp_path: Path
) -> None:
    """The lost history was rotated after the backup, so that its copies open with a newer version than the backup."""
    folder, register = made(filled, tmp_path / "backup").folder, tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        custody = archive.custody(KEEPER)
        custody.rotate()
        archive.custody(NEIGHBOUR).rotate(new_version=False)
        newer = custody.backup(tmp_path / "newer").folder
        custody.shred(session_id="base", result_id="r2")
    copy = back(filled, folder, tmp_path / "target", register)
    with opened(copy) as archive:
        custody = archive.custody(KEEPER)
        custody.shred(session_id="base", result_id="r3")
        custody.retire(1)
        assert [(one.result_id, one.status) for one in custody.shreds()] == [("r2", "pending"), ("r3", "pending")]
        with opened(back(copy, newer, tmp_path / "still")) as older:
            assert older.restore("base", "r2", principal=KEEPER).content, "this is why"
        for who in (KEEPER, NEIGHBOUR):
            archive.custody(who).rotate(new_version=who is KEEPER)
        custody.retire(2)
        assert {one.status for one in custody.shreds()} == {"complete"}


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_server(postgresql_desk: Desk, tmp_path: Path) -> Desk:
    """As ``filled``, on PostgreSQL, with a folder of objects."""
    with opened(postgresql_desk, objects=tmp_path / "objects") as archive:
        Agent(archive, "base").archive(3)
        Agent(archive, "other").archive(3)
        Agent(archive, "base", NEIGHBOUR).archive(3)
        archive.custody(KEEPER).hold("as counsel asked", session_id="base", result_id="r1")
    return postgresql_desk


def test_a_backup_of_postgresql_is_a_store_of_its_own_in_which_each_org_is_as_it_was(
    on_server: Desk, tmp_path: Path
) -> None:
    register = tmp_path / "register.jsonl"
    with opened(on_server, objects=tmp_path / "objects", register=register) as archive:
        told = archive.custody(KEEPER).backup(tmp_path / "backup")
        assert [(one.org, one.originals) for one in told.orgs] == [("north-clinic", 6), ("south-clinic", 3)]
        holds = holds_of(archive)
        kept = {
            (s, f"r{n}"): archive.restore(s, f"r{n}", principal=KEEPER).content for s in ("base",) for n in (1, 3)
        }
        archive.custody(KEEPER).shred(session_id="base", result_id="r2")
    copy = back(on_server, told.folder, tmp_path / "target", register)
    assert differences(copy, {**kept, ("base", "r2"): None}, holds) == []
    again = back(on_server, told.folder, tmp_path / "again", on_server.url)
    assert differences(again, {**kept, ("base", "r2"): None}, holds) == []


def test_a_backup_is_put_back_into_an_empty_postgresql_and_into_no_other(
    filled: Desk, tmp_path: Path, postgresql_desks: Callable[[Path], Any]
) -> None:
    expected, holds = contents_of(filled)
    folder, register = made(filled, tmp_path / "backup").folder, tmp_path / "register.jsonl"
    with opened(filled, register=register) as archive:
        archive.custody(KEEPER).shred(session_id="base", result_id="r3")
    (tmp_path / "server").mkdir()
    with postgresql_desks(tmp_path / "server") as server:
        server.keys.write_bytes(filled.keys.read_bytes())
        named = {
            "keys": open_provider(filled.keys),
            "policy": Policy.default(),
            "subject": "records",
            "roles": {"custodian"},
            "replays": [str(register)],
        }
        with pytest.raises(FormatError, match="say where they are to lie"):
            restore_backup(folder, server.url, **named)
        restore_backup(folder, server.url, objects=tmp_path / "objects", **named)
        with opened(server, objects=tmp_path / "objects") as archive:
            assert holds_of(archive) == holds
            assert archive.restore("base", "r3", principal=NEIGHBOUR).content
            assert archive.restore("other", "r3", principal=KEEPER).content == expected["other", "r3"]
            with pytest.raises(ShreddedError):
                archive.restore("base", "r3", principal=KEEPER)
            Agent(archive, "new").archive(3)
            entries = archive.audit(principal=KEEPER)
        with pytest.raises(StoreError, match="holds something already"):
            restore_backup(folder, server.url, objects=tmp_path / "other", **named)
        with opened(server, objects=tmp_path / "objects") as archive:
            assert archive.audit(principal=KEEPER).root_hex == entries.root_hex


# --- by command -----------------------------------------------------------------------------------------------------


def run(desk: Desk, *words: str, roles: tuple[str, ...] = ("custodian",)) -> int:
    store = ["--url", desk.url, "--keys", str(desk.keys), "--org", KEEPER.org, "--subject", KEEPER.subject]
    return main([*words, *store, *(word for role in roles for word in ("--role", role))])


def test_backups_are_made_and_put_back_by_command(filled: Desk, tmp_path: Path, capsys: Any) -> None:
    folder, register = tmp_path / "backup", tmp_path / "register.jsonl"
    assert run(filled, "backup", "make", str(folder)) == 0
    assert "VERIFIED: 2 orgs in 5 files" in capsys.readouterr().out
    with opened(filled) as archive:
        archive.custody(KEEPER).shred(session_id="base", result_id="r2")
    assert run(filled, "register", "append", str(register)) == 0
    assert capsys.readouterr().out == f"2 lines added to {register}.\n"
    assert run(filled, "register", "append", str(register), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(register), "added": 0}

    def put_back(name: str, *more: str) -> int:
        who = ["--keys", str(filled.keys), "--subject", "records", "--role", "custodian"]
        return main(["backup", "restore", str(folder), f"sqlite:///{tmp_path}/{name}.db", *who, *more])

    assert put_back("one") == 0
    assert "WARNING: nothing was replayed" in capsys.readouterr().out
    assert put_back("two", "--replay", str(register)) == 0
    out = capsys.readouterr().out
    assert "north-clinic: done again: 0 holds, 0 releases, 0 longer retentions, 1 shred; 0 were so already" in out
    assert "VERIFIED and put back" in out
    assert put_back("three", "--replay", str(register), "--json") == 0
    assert json.loads(capsys.readouterr().out)["restored"]["replayed"][0]["shreds"] == 1
    assert put_back("three") == StoreError.exit_code
    assert "a backup is put back into an empty place only" in capsys.readouterr().err


def test_by_command_the_manifest_and_the_refusal_are_json_too(filled: Desk, tmp_path: Path, capsys: Any) -> None:
    assert run(filled, "backup", "make", str(tmp_path / "backup"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["orgs"][0]["originals"] == 6
    assert run(filled, "backup", "make", str(tmp_path / "other"), roles=("agent",)) == NotAvailableError.exit_code
    assert not os.path.exists(tmp_path / "other")
    capsys.readouterr()
