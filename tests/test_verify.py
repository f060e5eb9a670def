"""Verification says what is so: clean is clean, every kind of damage has its code, and writers cause no finding."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters
from test_security_doc import table as table_of
from verified_world import NORTH, SOUTH, World, content, copied

from evidence_archive import Archive, NotAvailableError, Principal
from evidence_archive.anchors import FileAnchor
from evidence_archive.cli import main
from evidence_archive.errors import FormatError, SealBrokenError, StoreError, StoreUnavailableError
from evidence_archive.keys import new_keys
from evidence_archive.objects import open_objects
from evidence_archive.proof.checkpoint import VerifierKey
from evidence_archive.sealing.envelope import envelope_bytes
from evidence_archive.verifying import CODES, VerifyReport
from evidence_archive.verifying import run as run_module
from evidence_archive.verifying import told as told_module
from evidence_archive.verifying.told import Log

VERIFY_MD = Path(__file__).resolve().parents[1] / "docs" / "verify.md"
PRESENT = "SELECT scope_id FROM sessions WHERE org = 'north-clinic' AND session_id = 'case'"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(Desk(tmp_path_factory.mktemp("world")))


@pytest.fixture
def world(made: World, tmp_path: Path) -> Any:
    """The world with a desk of this test's own."""
    made.attacked = made.copy(tmp_path)
    return made


def found(report: VerifyReport | str) -> set[tuple[str, str]]:
    assert isinstance(report, VerifyReport), report
    return {(one.code, one.place) for one in report.findings}


# --- what is whole ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["keyless", "seals", "full"])
def test_a_store_that_nobody_touched_is_clean_and_the_run_is_in_the_log(desk: Desk, level: str) -> None:
    world = World(desk)
    report = world.verified(desk, level, anchors=[world.anchor])
    assert found(report) == set()
    assert report.is_clean
    assert report.unchecked == ()
    assert (report.counts["sessions"], report.counts["results"], report.counts["originals"]) == (2, 11, 6)
    assert (report.counts["holds"], report.counts["shreds"], report.counts["shredded"]) == (2, 1, 1)
    assert (report.counts.get("keys", 0), report.counts.get("opened", 0)) == (
        2 * (level != "keyless"),
        6 * (level == "full"),
    )
    with world.opened(desk) as archive:
        last = archive.audit(principal=NORTH).entries[-1]
    assert (last.event, last.subject) == ("store.verified", "owner")
    assert last.details == {"level": level, "counts": dict(report.counts), "findings": 0}
    assert last.seq == report.size


def test_who_has_no_keys_finds_it_clean_too_leaves_no_entry_and_says_what_was_not_checked(desk: Desk) -> None:
    world = World(desk)
    before = desk.rows("audit_leaves")
    report = world.keyless(desk)
    assert found(report) == set()
    assert "Signatures" in report.unchecked[0]
    assert desk.rows("audit_leaves") == before
    with world.opened(desk) as archive:
        key = VerifierKey.parse(archive.custody(NORTH).key())
    assert world.keyless(desk, key=key, anchors=[FileAnchor(world.anchor)]).unchecked == ()


def test_a_run_is_clean_in_pages_of_any_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 2, 3):
        monkeypatch.setattr(run_module, "ROWS_PER_READ", count)
        monkeypatch.setattr(told_module, "LEAVES_PER_READ", count)
        report = world.verified(world.attacked, "full", anchors=[world.anchor])
        assert found(report) == set()
        assert (report.counts["sessions"], report.counts["shreds"], report.counts["places"]) == (2, 1, 2)


def test_a_shredded_session_is_clean(desk: Desk) -> None:
    world = World(desk)
    with world.opened(desk) as archive:
        custody = archive.custody(NORTH)
        custody.release(next(hold.id for hold in custody.holds() if hold.is_active))
        custody.shred(session_id="other")
        report = custody.verify("full")
    assert found(report) == set()
    assert (report.counts["shredded"], report.counts["shreds"], report.counts["originals"]) == (5, 2, 3)
    assert found(world.keyless(desk)) == set()


def test_an_org_that_was_shredded_is_clean_without_keys(desk: Desk, owner: Principal, talk: Conversation) -> None:
    with desk.open(counter=Characters()) as archive:
        session = archive.session("case", owner)
        talk.tool("made-up finding\n" * 60)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
    assert main(["verify", *options(desk), "--subject", "records-office"]) == 0
    with desk.open(counter=Characters()) as archive:
        archive.custody(Principal(owner.org, "records-office", {"custodian"})).shred()
    assert main(["verify", *options(desk), "--subject", "records-office"]) == 0
    desk.execute("UPDATE results SET state = 'archived' WHERE number = 1")
    assert main(["verify", *options(desk), "--subject", "records-office"]) == 1


# --- each kind of damage has its code ---------------------------------------------------------------------------

OF_CASE = f"org = 'north-clinic' AND scope_id = ({PRESENT})"
R1 = f"original_id = (SELECT original_id FROM results WHERE {OF_CASE} AND number = 1)"
R2 = f"original_id = (SELECT original_id FROM results WHERE {OF_CASE} AND number = 2)"
R4 = f"(SELECT original_id FROM results WHERE {OF_CASE} AND number = 4)"
NORTHS = "WHERE org = 'north-clinic'"

DAMAGE: dict[str, tuple[str, str, str]] = {
    # what was done: the statement, the code and the place that say so
    "a batch's receipt names another result": (
        f"UPDATE batches SET receipt = replace(receipt, 'r2', 'r3') WHERE {OF_CASE} AND idempotency_key = 'k1'",
        "batch_differs",
        "",
    ),
    "a batch's row is gone": (f"DELETE FROM batches WHERE {OF_CASE} AND idempotency_key = 'k1'", "batch_missing", ""),
    "a batch that nobody made": (
        (
            "INSERT INTO batches SELECT org, scope_id, x'00', request_tag, NULL, receipt, created_at_us, seal"
            f" FROM batches WHERE {OF_CASE} AND idempotency_key = 'k1'"
        ),
        "batch_unlogged",
        "00",
    ),
    "a signed head is none": (f"UPDATE checkpoints SET note = 'x' {NORTHS}", "checkpoint_broken", ""),
    "the count of what is kept": (f"UPDATE custody SET originals = 9 {NORTHS}", "custody_differs", "north-clinic"),
    "the row that counts is gone": (f"DELETE FROM custody {NORTHS}", "custody_missing", "north-clinic"),
    "an entry changed": (f"UPDATE audit_leaves SET leaf = x'00' {NORTHS} AND seq = 3", "entry_broken", "entry 3"),
    "an entry is gone": (f"DELETE FROM audit_leaves {NORTHS} AND seq = 3", "entry_missing", "entry 3"),
    "entries are gone": (f"DELETE FROM audit_leaves {NORTHS} AND seq IN (3, 4)", "entry_missing", "entry 3 to 4"),
    "entries behind the head": (
        f"INSERT INTO audit_leaves SELECT org, 1000, leaf FROM audit_leaves {NORTHS} AND seq = 3",
        "head_differs",
        "north-clinic",
    ),
    "the end of the log is gone": (f"DELETE FROM audit_leaves {NORTHS} AND seq > 15", "head_differs", "north-clinic"),
    "the head is gone": (f"DELETE FROM audit_heads {NORTHS}", "head_missing", "north-clinic"),
    "the policy in the head": (
        f"UPDATE audit_heads SET policy_digest = NULL {NORTHS}",
        "head_differs",
        "north-clinic policy_digest",
    ),
    "a hold is another's": (f"UPDATE holds SET placed_by = 'x' {NORTHS}", "hold_differs", ""),
    "a hold is gone": (f"DELETE FROM holds {NORTHS} AND number IS NOT NULL", "hold_missing", ""),
    "a hold that nobody placed": (
        (
            f"INSERT INTO holds SELECT org, x'00', scope_id, number, reason, placed_by, placed_at_us, released_by,"
            f" released_at_us, seal FROM holds {NORTHS} AND number IS NULL"
        ),
        "hold_unlogged",
        "00",
    ),
    "a key's generation": (f"UPDATE scope_keys SET generation = 1 WHERE {OF_CASE}", "key_differs", "case"),
    "a key is gone": (f"DELETE FROM scope_keys WHERE {OF_CASE}", "key_missing", "case"),
    "a key emptied": (f"UPDATE scope_keys SET wrapped = x'' WHERE {OF_CASE}", "key_missing", "case"),
    "a key does not open": (f"UPDATE scope_keys SET wrapped = x'00' WHERE {OF_CASE}", "key_unopened", "case"),
    "a note does not open": (
        f"UPDATE results SET closed = x'00' WHERE {OF_CASE} AND number = 1",
        "note_unopened",
        "case r1",
    ),
    "the part of a copy": (
        f"UPDATE results SET part = x'00' WHERE {OF_CASE} AND number = 5",
        "note_unopened",
        "case r5",
    ),
    "the org is not listed": ("DELETE FROM org_names WHERE name = 'north-clinic'", "org_unlisted", "north-clinic"),
    "an envelope changed": (
        f"UPDATE originals SET envelope = x'00' {NORTHS} AND {R1}",
        "original_changed",
        "case r1",
    ),
    "an envelope is gone": (f"DELETE FROM originals {NORTHS} AND {R1}", "original_missing", "case r1"),
    "the place of objects is gone": (f"DELETE FROM objects {NORTHS} AND {R2}", "original_missing", "case r2"),
    "the place of objects is another": (
        f"UPDATE objects SET key = '00/000000000000000000000000000000' {NORTHS} AND {R2}",
        "object_missing",
        "case r2",
    ),
    "parts of another size": (
        f"UPDATE objects SET part_bytes = 0 {NORTHS} AND {R2}",
        "original_missing",
        "case r2",
    ),
    "the place a digest is in": (
        f"UPDATE results SET sealed_size = 1 WHERE {OF_CASE} AND number = 1",
        "original_unopened",
        "case r1",
    ),
    "a result is live again": (
        f"UPDATE results SET state = 'live' WHERE {OF_CASE} AND number = 1",
        "result_differs",
        "case r1",
    ),
    "a label is gone": (
        f"UPDATE results SET sensitivity = '' WHERE {OF_CASE} AND number = 1",
        "result_differs",
        "case r1",
    ),
    "kept for less long": (
        f"UPDATE results SET retention_until_us = 1 WHERE {OF_CASE} AND number = 1",
        "result_differs",
        "case r1",
    ),
    "a tombstone of nothing": (
        f"UPDATE results SET state = 'shredded', closed = NULL WHERE {OF_CASE} AND number = 1",
        "result_differs",
        "case r1",
    ),
    "a result is gone": (f"DELETE FROM results WHERE {OF_CASE} AND number = 3", "result_missing", "case r3"),
    "a column of another type": (
        f"UPDATE results SET tokens = 'x' WHERE {OF_CASE} AND number = 3",
        "row_malformed",
        "case r3",
    ),
    "a text that is none": (
        f"UPDATE sessions SET tag = CAST(x'61ff' AS TEXT) {NORTHS} AND session_id = 'case'",
        "row_malformed",
        "case",
    ),
    "a seal": (f"UPDATE results SET seal = x'00' WHERE {OF_CASE} AND number = 3", "seal_broken", "case r3"),
    "a session's owner": (
        f"UPDATE sessions SET subject = 'x' {NORTHS} AND session_id = 'case'",
        "session_differs",
        "case owner",
    ),
    "a session's version": (
        f"UPDATE sessions SET version = 1 {NORTHS} AND session_id = 'case'",
        "session_differs",
        "case version",
    ),
    "a session is gone": (f"DELETE FROM sessions {NORTHS} AND session_id = 'case'", "session_missing", "case"),
    "a session that nobody opened": (
        (
            "INSERT INTO sessions SELECT org, 'ghost', x'00', subject, dialect, tag, version, next_number, suspended,"
            " batches, restores, tokens_saved, created_at_us, books, stamp, seal FROM sessions"
            f" {NORTHS} AND session_id = 'case'"
        ),
        "session_unlogged",
        "ghost",
    ),
    "a shred is another's": (f"UPDATE shreds SET requested_by = 'x' {NORTHS}", "shred_differs", ""),
    "a shred is gone": (f"DELETE FROM shreds {NORTHS}", "shred_missing", ""),
    "a shredded result is back": (
        f"UPDATE results SET state = 'archived', closed = x'00' WHERE {OF_CASE} AND number = 4",
        "shred_undone",
        "case r4",
    ),
    "a shredded envelope is back": (
        f"INSERT INTO originals VALUES ('north-clinic', {R4}, x'00')",
        "shred_undone",
        "case r4",
    ),
    "a shred that nobody made": (
        (
            f"INSERT INTO shreds SELECT org, x'00', scope_id, number, kek_version, requested_by, requested_at_us,"
            f" completed_at_us, seal FROM shreds {NORTHS}"
        ),
        "shred_unlogged",
        "00",
    ),
    "an envelope of nobody": ("INSERT INTO originals VALUES ('north-clinic', x'00', x'00')", "stray", "00"),
    "results of nobody": (
        f"UPDATE results SET scope_id = x'00' WHERE {OF_CASE} AND number = 3",
        "stray",
        "00 3",
    ),
    "the log is empty": (f"DELETE FROM audit_leaves {NORTHS}", "nothing_checked", "north-clinic"),
}


@pytest.fixture(scope="module")
def loose(made: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Desk]:
    folder = tmp_path_factory.mktemp("loose")
    desk = made.copy(folder)
    whole, made.desk = made.desk, desk
    made.loosened()
    made.desk = whole
    saved = desk.database.read_bytes()

    def put_back() -> Desk:
        desk.database.write_bytes(saved)
        return desk

    return put_back


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_has_its_code_and_its_place(made: World, loose: Callable[[], Desk], damage: str) -> None:
    statement, code, place = DAMAGE[damage]
    desk = loose()
    desk.execute(statement)
    report = made.verified(desk, "full")
    assert code in {finding.code for finding in report.findings}
    assert not place or (code, place) in found(report)
    assert not report.is_clean
    for finding in report.findings:
        assert finding.code in CODES
        assert finding.sentence.endswith(".")


def test_without_keys_all_of_that_is_found_but_what_only_a_key_can_tell(
    made: World, loose: Callable[[], Desk]
) -> None:
    only_keys = {"seal_broken", "key_unopened", "note_unopened", "original_unopened"}
    missed = set()
    for statement, code, _ in DAMAGE.values():
        desk = loose()
        desk.execute(statement)
        if code not in {finding.code for finding in made.keyless(desk).findings}:
            missed.add(code)
    assert missed == only_keys


def test_damage_with_a_valid_seal_has_its_code(world: World) -> None:
    """What only somebody with the keys could write, or a fault of this library."""
    desk = world.attacked
    with world.opened(desk) as archive:
        vault = archive._vault(NORTH)
        with vault.store.reading(1_000) as reader:
            session = reader.session("case")
            rows = {row.number: row for row in reader.results(session.scope_id, -1)}
            place = reader.object(rows[2].original_id)

        def change(writer: Any) -> None:
            writer.update_objects([replace(place, state="intended")])
            writer.update_results(
                [replace(rows[1], batch_id=None), replace(rows[3], batch_id=b"x" * 16), replace(rows[5], origin=99)]
            )

        vault.transact(change, audited=False)
    assert found(world.verified(desk, "full")) >= {
        ("original_missing", "case r2"),
        ("result_differs", "case r1"),
        ("batch_unlogged", "case r3"),
        ("result_differs", "case r5"),
    }


def test_numbers_without_bound_in_damaged_rows_cost_no_time_and_no_memory(
    made: World, loose: Callable[[], Desk]
) -> None:
    desk, many = loose(), 10**15
    desk.execute(f"UPDATE results SET number = {many} WHERE {OF_CASE} AND number = 3")
    desk.execute(f"UPDATE sessions SET next_number = {many} + 1 {NORTHS} AND session_id = 'case'")
    desk.execute(f"UPDATE results SET sealed_size = {many} WHERE {OF_CASE} AND number = 2")
    desk.execute(f"UPDATE objects SET size_bytes = {envelope_bytes(many)} {NORTHS} AND {R2}")
    desk.execute(f"UPDATE audit_leaves SET seq = {many} {NORTHS} AND seq = 5")
    desk.execute(f"UPDATE audit_heads SET size = {many} {NORTHS}")
    assert found(made.keyless(desk)) >= {
        ("result_missing", "case r3"),
        ("result_missing", f"case r7 to r{many - 1}"),
        ("original_missing", "case r2"),
        ("entry_missing", "entry 5"),
    }
    assert {code for code, _ in found(made.verified(desk, "full"))} >= {"seal_broken", "original_missing"}


def test_a_row_that_counts_is_missed_even_when_the_signed_heads_went_with_it(world: World) -> None:
    world.attacked.execute(f"DELETE FROM custody {NORTHS}")
    world.attacked.execute(f"DELETE FROM checkpoints {NORTHS}")
    assert found(world.keyless(world.attacked)) == {("custody_missing", "north-clinic")}


def test_a_key_that_is_only_in_memory_is_no_key_that_is_there(sqlite_desk: Desk) -> None:
    world = World(sqlite_desk)
    with world.opened(sqlite_desk) as archive:
        archive.restore("case", "r1", principal=NORTH)
        world.keys._roots = {99: bytes(32)}
        assert archive.restore("case", "r1", principal=NORTH).content == content(NORTH.org, "case", "A")
        report = archive.custody(NORTH).verify()
    assert found(report) == {("key_missing", "case"), ("key_missing", "other")}


def test_objects_that_were_changed_or_removed_or_not_given_are_found(desk: Desk) -> None:
    world = World(desk)
    large = max((path for path in (desk.folder / "objects").rglob("*.00000")), key=lambda path: path.stat().st_size)
    data = large.read_bytes()
    codes = {}
    damage = {"object_changed": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-1], "object_missing": None}
    for what, changed in damage.items():
        large.unlink()
        if changed is not None:
            large.write_bytes(changed)
            large.chmod(0o600)
        reports = [*(world.verified(desk, level, principal) for level in ("keyless", "full") for principal in BOTH)]
        codes[what] = [finding.code for report in reports for finding in report.findings]
        large.write_bytes(data)
        large.chmod(0o600)
    assert codes == {
        "object_changed": ["object_changed"] * 2,
        "cut": ["object_changed"] * 2,
        "object_missing": ["object_missing"] * 2,
    }
    with world.opened(desk, objects=Away(desk.folder)) as archive:
        report = archive.custody(NORTH).verify("full")
    assert {finding.code for finding in report.findings} == {"object_unread"}


BOTH = (NORTH, Principal(org="south-clinic", subject="owner", roles={"custodian"}))


class Away:
    """An object store that does not answer."""

    name = "away"

    def __init__(self, folder: Path) -> None:
        self._objects = open_objects(folder / "objects", create=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def get(self, key: str) -> bytes:
        raise StoreUnavailableError("The objects are away.")


def test_what_a_clean_full_run_says_is_what_a_restore_does(made: World, loose: Callable[[], Desk]) -> None:
    """Verified clean and impossible to restore must not be, nor the other way round."""
    columns = [("results", name, f"{OF_CASE} AND number = 1") for name in ("closed", "sealed_size", "dek_id", "kind")]
    columns += [("originals", "envelope", f"org = 'north-clinic' AND {R1}")]
    for table, name, where in columns:
        desk = loose()
        desk.execute(f"UPDATE {table} SET {name} = x'00' WHERE {where}")
        with made.opened(desk) as archive:
            report = archive.custody(NORTH).verify("full")
            with pytest.raises(Exception, match=r"changed|open|not what"):
                archive.restore("case", "r1", principal=NORTH)
        assert "case r1" in {finding.place for finding in report.findings}, name
    desk = loose()
    with made.opened(desk) as archive:
        assert archive.custody(NORTH).verify("full").counts["opened"] == 6
        for session, result_id, letter in [("case", "r1", "A"), ("case", "r2", "B"), ("other", "r4", "D")]:
            assert archive.restore(session, result_id, principal=NORTH).content == content(NORTH.org, session, letter)


# --- what to look at --------------------------------------------------------------------------------------------


def test_a_sample_opens_one_at_least_and_says_what_it_left_out(world: World) -> None:
    opened = [world.verified(world.attacked, "full", sample=0.000_001).counts["opened"] for _ in range(2)]
    assert opened == [1, 1]
    report = world.verified(world.attacked, "full", sample=0.000_001)
    assert report.unchecked[0] == "No anchor was asked: an older copy of everything would not be noticed."
    assert report.unchecked[1:] == ("The bytes of 5 originals were left out, as asked for.",)
    assert world.verified(world.attacked, "full", sample=1).counts["opened"] == 6


def test_since_looks_at_what_was_archived_from_then_on(world: World) -> None:
    at = world.attacked.execute(f"SELECT archived_at_us FROM results WHERE {OF_CASE} AND number = 6")[0][0]
    assert world.verified(world.attacked, "full", since_us=at).counts["opened"] == 1
    later = world.verified(world.attacked, "full", since_us=at + 1)
    assert later.counts.get("opened", 0) == 0
    assert later.unchecked[1:] == ("The bytes of 6 originals were left out, as asked for.",)


@pytest.mark.parametrize(
    "named", [{"level": "most"}, {"sample": 0}, {"sample": 1.1}, {"since_us": -1}, {"since_us": 0.5}]
)
def test_what_cannot_be_meant_is_refused(world: World, named: dict[str, Any]) -> None:
    with world.opened(world.attacked) as archive, pytest.raises(FormatError):
        archive.custody(NORTH).verify(**named)


def test_progress_counts_up_to_all_there_is(world: World) -> None:
    heard: list[tuple[str, int, int]] = []
    world.verified(world.attacked, "full", progress=lambda *told: heard.append(told))
    assert {phase for phase, _, _ in heard} == {"log", "sessions", "originals"}
    assert all(done <= total for _, done, total in heard)
    assert max(done for phase, done, _ in heard if phase == "originals") == 6


# --- anchors ----------------------------------------------------------------------------------------------------


def test_an_anchor_that_knows_nothing_of_this_log_is_a_finding(world: World, tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other.jsonl"
    lines = [json.loads(line) for line in world.anchor.read_text().splitlines()]
    mine = world.verified(world.attacked, anchors=[world.anchor])
    assert mine.is_clean
    with world.opened(world.attacked) as archive:
        origin = archive._vault(NORTH).signer.verifier.name
    theirs = [line for line in lines if line["origin"] != origin]
    other.write_text("".join(json.dumps({**line, "origin": origin}) + "\n" for line in theirs))
    report = world.verified(world.attacked, anchors=[empty, world.anchor, other])
    assert found(report) == {("anchor_empty", "file 1"), ("anchor_broken", "file 3")}
    forged = tmp_path / "forged.jsonl"
    ours = max((line for line in lines if line["origin"] == origin), key=lambda line: line["size"])
    note = re.sub(rf"\n{ours['size']}\n", f"\n{ours['size'] - 1}\n", ours["note"])
    forged.write_text(json.dumps({**ours, "note": note}) + "\n")
    assert found(world.verified(world.attacked, anchors=[forged])) == {("anchor_broken", "file 1")}


def test_an_anchor_of_objects_is_read_and_one_that_cannot_be_read_ends_the_run(world: World, tmp_path: Path) -> None:
    with world.opened(world.attacked, anchors=[f"objects:{tmp_path / 'heads'}"]) as archive:
        archive.custody(NORTH).checkpoint()
        assert archive.custody(NORTH).verify(anchors=[f"objects:{tmp_path / 'heads'}"]).is_clean
    assert world.verified(world.attacked, anchors=[tmp_path]) == "StoreUnavailableError"


def test_a_forged_head_in_the_store_is_found_with_the_public_key_and_compared_without(world: World) -> None:
    with world.opened(world.attacked) as archive:
        key = VerifierKey.parse(archive.custody(NORTH).key())
    size, note = world.attacked.execute(f"SELECT max(size), note FROM checkpoints {NORTHS}")[0]
    text, _, signature = note.rpartition(" ")
    forged = f"{text} {signature[:20]}{'A' if signature[20] != 'A' else 'B'}{signature[21:]}"
    world.attacked.execute(f"UPDATE checkpoints SET note = ? {NORTHS} AND size = ?", forged, size)
    assert found(world.keyless(world.attacked)) == set(), "it says what the log says, and no key tells who signed"
    assert found(world.keyless(world.attacked, key=key)) == {("checkpoint_broken", str(size))}
    moved = note.replace(f"\n{size}\n", f"\n{size - 1}\n")
    world.attacked.execute(f"UPDATE checkpoints SET note = ? {NORTHS} AND size = ?", moved, size)
    assert found(world.keyless(world.attacked)) == {("checkpoint_broken", str(size))}


# --- while others write -----------------------------------------------------------------------------------------


class Busy:
    """Somebody else who writes, one act between any two reads of a run."""

    def __init__(self, world: World, desk: Desk) -> None:
        self.archive = world.opened(desk)
        self.custody = self.archive.custody(NORTH)
        self.talks: dict[str, Conversation] = {}
        self.acts = 0
        self._kinds = [self.archived, self.restored, self.shredded, self.held, self.opened, self.retained]

    def act(self) -> None:
        self._kinds[self.acts % len(self._kinds)]()
        self.acts += 1

    def archived(self) -> None:
        for name in ("another", "case-0"):
            session = self.archive.session(name, NORTH)
            talk = self.talks.setdefault(name, Conversation())
            talk.tool(content(NORTH.org, name, f"N{self.acts}"))
            talk.say()
            session.view(talk.messages)
            number = session.results()[-1].id
            session.archive([(number, "a note")])
            copied(talk, session, number)

    def restored(self) -> None:
        self.archive.restore("case", "r1", principal=NORTH)

    def shredded(self) -> None:
        last = [one.id for one in self.archive.results("another", principal=NORTH) if one.state == "archived"]
        self.custody.shred(session_id="another", result_id=last[-1])

    def held(self) -> None:
        hold = self.custody.hold("made-up reason", session_id="case")
        if self.acts % 4:
            self.custody.release(hold.id)

    def opened(self) -> None:
        self.archive.session(f"new-{self.acts}", NORTH)
        self.archive.session(f"a-{self.acts}", NORTH)
        self.custody.checkpoint()

    def retained(self) -> None:
        self.custody.retain("other", "r1", 4_000_000_000_000_000 + self.acts)


PHASES = (
    "_check_org",
    "_heads_of_store",
    "_read_log",
    "_check_custody",
    "_check_sessions",
    "_check_holds",
    "_check_shreds",
    "_check_objects",
    "_check_strays",
)


def busy_run(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> tuple[VerifyReport, dict[str, int]]:
    """A run with an act after every read, at most 14 in each of its phases; how many there were."""
    busy, phase, acts = Busy(world, desk), ["_check_org"], dict.fromkeys(PHASES, 0)
    busy.archived()

    def noted(name: str) -> None:
        whole = getattr(run_module.Run, name)

        def noting(self: Any, *given: Any) -> Any:
            phase[0] = name
            return whole(self, *given)

        monkeypatch.setattr(run_module.Run, name, noting)

    for name in PHASES:
        noted(name)
    with world.opened(desk) as archive:
        vault = archive._vault(NORTH)
        surveying = vault.surveying

        @contextmanager
        def disturbed() -> Iterator[Any]:
            with surveying() as survey:
                yield survey
            if acts[phase[0]] < 14:  # somebody who opens sessions for ever would never let a run end
                acts[phase[0]] += 1
                busy.act()

        monkeypatch.setattr(vault, "surveying", disturbed)
        monkeypatch.setattr(run_module, "ROWS_PER_READ", 2)
        monkeypatch.setattr(told_module, "LEAVES_PER_READ", 5)
        report = archive.custody(NORTH).verify("full", anchors=[world.anchor])
    busy.archive.close()
    return report, acts


def test_whatever_is_committed_between_two_reads_causes_no_finding(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, acts = busy_run(World(desk), desk, monkeypatch)
    assert found(report) == set()
    assert all(acts.values())
    assert sum(acts.values()) > 80
    assert report.counts["sessions"] > 12, "sessions that were opened meanwhile are looked at, too"


def test_must_fail_control_a_run_that_does_not_read_the_log_on_finds_what_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Log.read_on

    def only_first(self: Log, survey: Any, pages_max: int | None = None) -> bool:
        return whole(self, survey, pages_max) if pages_max is not None else True

    monkeypatch.setattr(Log, "read_on", only_first)
    report, _ = busy_run(world, world.attacked, monkeypatch)
    assert {finding.code for finding in report.findings} >= {"session_unlogged", "hold_unlogged", "shred_unlogged"}


def test_an_original_that_is_shredded_while_it_is_looked_at_is_no_finding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.opened(world.attacked) as other, world.opened(world.attacked) as archive:
        whole = run_module.Run._check_original
        shredded = []

        def late(self: Any, session_id: str, row: Any, *given: Any) -> None:
            if session_id == "case" and row.number == 6 and not shredded:
                shredded.append(other.custody(NORTH).shred(session_id="case", result_id="r6"))
            whole(self, session_id, row, *given)

        monkeypatch.setattr(run_module.Run, "_check_original", late)
        report = archive.custody(NORTH).verify("full")
    assert shredded
    assert found(report) == set()
    assert (report.counts["shredded"], report.counts["opened"]) == (2, 5)


# --- fsck -------------------------------------------------------------------------------------------------------


def evidence(desk: Desk) -> dict[str, Any]:
    """All that is evidence; a quarantine changes sessions and the log, and nothing else."""
    return {
        table: desk.rows(table)
        for table in (
            "orgs",
            "scope_keys",
            "results",
            "originals",
            "objects",
            "batches",
            "holds",
            "shreds",
            "custody",
        )
    }


def test_fsck_proposes_and_changes_nothing_at_all(desk: Desk) -> None:
    world = World(desk)
    desk.execute(f"DELETE FROM originals {NORTHS} AND {R1}")
    before = desk.saved()
    with world.opened(desk) as archive:
        done = archive.custody(NORTH).fsck()
    assert [(one.session_id, one.findings, one.status) for one in done.quarantines] == [("case", 1, "proposed")]
    assert done.dry_run
    assert desk.saved() == before


def test_fsck_suspends_the_sessions_with_damage_and_keeps_all_evidence(desk: Desk) -> None:
    world = World(desk)
    desk.execute(f"DELETE FROM originals {NORTHS} AND {R1}")
    kept = evidence(desk)
    with world.opened(desk) as archive:
        done = archive.custody(NORTH).fsck(dry_run=False)
        assert [(one.session_id, one.status) for one in done.quarantines] == [("case", "suspended")]
        assert evidence(desk) == kept
        entries = archive.audit(principal=NORTH).entries
        assert (entries[-1].event, entries[-1].session_id, entries[-1].details) == (
            "session.suspended",
            "case",
            {"why": "integrity"},
        )
        assert archive.session("case", NORTH).stats().suspended == "integrity"
        assert archive.session("other", NORTH).stats().suspended is None
        assert archive.restore("case", "r2", principal=NORTH).content == content(NORTH.org, "case", "B")
        again = archive.custody(NORTH).fsck(dry_run=False)
        assert [(one.session_id, one.status) for one in again.quarantines] == [("case", "already")]
        archive.resume("case", principal=NORTH)
        assert archive.session("case", NORTH).stats().suspended is None


def test_fsck_suspends_even_where_the_log_is_broken_and_says_where_it_cannot(world: World) -> None:
    desk = world.attacked
    desk.execute(f"DELETE FROM originals {NORTHS} AND {R1}")
    desk.execute(f"UPDATE sessions SET tag = 'x' {NORTHS} AND session_id = 'other'")
    desk.execute(f"DELETE FROM audit_leaves {NORTHS} AND seq = (SELECT max(seq) FROM audit_leaves {NORTHS})")
    with world.opened(desk) as archive:
        done = archive.custody(NORTH).fsck(dry_run=False)
    assert [(one.session_id, one.status) for one in done.quarantines] == [
        ("case", "suspended"),
        ("other", "not_possible"),
    ]
    assert {finding.code for finding in done.report.findings if finding.session_id is None} == {
        "head_differs",
        "rolled_back",
    }
    assert done.elsewhere == 2
    assert desk.execute(f"SELECT suspended FROM sessions {NORTHS} AND session_id = 'case'") == [("integrity",)]


def test_a_lifted_quarantine_is_found(world: World) -> None:
    with world.opened(world.attacked) as archive:
        vault = archive._vault(NORTH)
        with vault.store.reading(1_000) as reader:
            before = reader.session("case")
        world.attacked.execute(f"DELETE FROM originals {NORTHS} AND {R1}")
        archive.custody(NORTH).fsck(dry_run=False)
        vault.transact(lambda writer: writer.update_session(before), audited=False)
    assert ("session_differs", "case suspension") in found(world.verified(world.attacked))


# --- who may, and what happens to a run that cannot be recorded ---------------------------------------------------


def test_only_a_custodian_verifies(world: World) -> None:
    with world.opened(world.attacked) as archive, pytest.raises(NotAvailableError):
        archive.custody(Principal(NORTH.org, "owner")).verify()


def test_a_run_that_cannot_be_recorded_still_says_what_it_found(world: World) -> None:
    world.attacked.execute(f"DELETE FROM audit_heads {NORTHS}")
    report = world.verified(world.attacked)
    assert ("head_missing", "north-clinic") in found(report)
    assert report.unchecked[-1] == "This run could not be recorded in the audit log."


def test_a_store_that_shows_no_damaged_rows_cannot_be_verified(world: World) -> None:
    class Plain:
        def __init__(self, store: Any) -> None:
            self.org, self.scoped, self.orgs, self.close = store.org, store.scoped, store.orgs, store.close

    with world.opened(world.attacked) as archive:
        plain = Archive(Plain(archive._around.store), keys=world.keys, policy=archive.policy, counter=Characters())
        with pytest.raises(StoreError, match="verified"):
            plain.custody(NORTH).verify()


# --- the command ------------------------------------------------------------------------------------------------


def options(desk: Desk) -> list[str]:
    return ["--url", desk.url, "--keys", str(desk.keys), "--org", "north-clinic"]


@pytest.fixture
def small(tmp_path: Path, owner: Principal, talk: Conversation) -> Desk:
    new_keys(tmp_path / "evidence.keys")
    desk = Desk(tmp_path)
    with desk.open(counter=Characters(), inline_size_max=2_700, anchors=[tmp_path / "heads.jsonl"]) as archive:
        session = archive.session("case", owner)
        for letter in "AB":
            talk.tool(content(owner.org, "case", letter))
            talk.say()
            session.view(talk.messages)
        session.archive([("r1", "note 1"), ("r2", "note 2")])
    return desk


def run(desk: Desk, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main([*words, *options(desk), "--subject", "records-office", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_says_clean_findings_and_could_not_run_by_its_exit_code(
    small: Desk, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    anchor = str(tmp_path / "heads.jsonl")
    code, told = run(small, "verify", "--level", "full", "--anchor", anchor, "--since", "2020-01-01", capsys=capsys)
    assert (code, told["clean"], told["findings"], told["counts"]["opened"]) == (0, True, [], 2)
    code, told = run(small, "verify", "--keyless", "--anchor", anchor, capsys=capsys)
    assert (code, told["clean"], told["level"], len(told["unchecked"])) == (0, True, "keyless", 2)
    small.execute(f"UPDATE results SET tokens = 1 {NORTHS} AND number = 1")
    code, told = run(small, "verify", capsys=capsys)
    assert (code, told["clean"], told["findings_count"]) == (1, False, 1)
    assert set(told["findings"][0]) == {"code", "table", "place", "sentence", "session_id"}
    assert (told["findings"][0]["code"], told["findings"][0]["place"]) == ("seal_broken", "case r1")
    (tmp_path / "other").mkdir()
    new_keys(tmp_path / "other" / "evidence.keys")
    for wrong in (
        ["--url", f"sqlite:///{tmp_path}/none.db"],
        ["--keys", str(tmp_path / "other" / "evidence.keys")],
        ["--org", "no-clinic"],
        ["--role", "agent"],
        ["--level", "most"],
        ["--since", "yesterday"],
        ["--anchor", str(tmp_path / "other")],
    ):
        assert main(["verify", *options(small), "--subject", "records-office", *wrong]) == 2, wrong
        assert capsys.readouterr().err.startswith("Error: ")
    assert main(["verify", *options(small)]) == 2, "who asks is not said"


def test_an_org_that_does_not_open_is_checked_without_keys_and_that_is_a_finding(
    small: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    small.execute(f"UPDATE orgs SET created_at_us = 1 {NORTHS}")
    small.execute(f"DELETE FROM originals {NORTHS}")
    code, told = run(small, "verify", capsys=capsys)
    assert code == 1
    assert told["findings"][0]["code"] == "org_unopened"
    assert "original_missing" in {one["code"] for one in told["findings"]}


def test_an_org_whose_key_is_gone_without_a_shred_is_not_taken_for_a_shredded_one(
    small: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    with small.open(counter=Characters()) as archive:
        archive.session("case", SOUTH)
    row = small.rows("orgs", NORTHS.removeprefix("WHERE "))
    small.execute(f"UPDATE orgs SET aux_wrapped = x'' {NORTHS}")
    for level in (["--level", "full"], ["--keyless"]):
        code, told = run(small, "verify", *level, capsys=capsys)
        assert (code, {one["code"] for one in told["findings"]}) == (1, {"key_missing"})
    with small.open(counter=Characters()) as archive, pytest.raises(SealBrokenError, match="nothing shredded it"):
        archive.custody(SOUTH).backup(small.folder / "backup")
    small.execute("DELETE FROM orgs WHERE org = 'north-clinic'")
    small.execute(f"INSERT INTO orgs VALUES ({', '.join('?' * len(row[0]))})", *row[0])
    with small.open(counter=Characters()) as archive:
        archive.custody(NORTH).shred()
    assert run(small, "verify", capsys=capsys)[0] == 0
    # Whoever has no keys can write an entry, and cannot sign it.
    small.execute(f"DELETE FROM checkpoints {NORTHS} AND size = (SELECT max(size) FROM checkpoints {NORTHS})")
    code, told = run(small, "verify", capsys=capsys)
    assert (code, {one["code"] for one in told["findings"]}) == (1, {"checkpoint_missing"})
    small.execute("DELETE FROM orgs WHERE org = 'north-clinic'")
    small.execute(f"INSERT INTO orgs VALUES ({', '.join('?' * len(row[0]))})", *row[0])
    assert "shred_undone" in {one["code"] for one in run(small, "verify", "--keyless", capsys=capsys)[1]["findings"]}


def test_an_empty_log_is_no_success(small: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    small.execute(f"DELETE FROM audit_leaves {NORTHS}")
    code, told = run(small, "verify", "--keyless", capsys=capsys)
    assert (code, told["counts"]["entries"]) == (1, 0)
    code, told = run(small, "verify", capsys=capsys)
    assert (code, told["clean"]) == (1, False)
    assert main(["verify", "--url", small.url, "--org", "never-was", "--keyless"]) == 1


def test_the_command_shows_findings_to_people_and_fsck_what_it_would_do(
    small: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *options(small), "--subject", "records-office"]) == 0
    assert "CLEAN" in capsys.readouterr().out
    small.execute(f"UPDATE originals SET envelope = zeroblob(9) {NORTHS}")
    small.execute("INSERT INTO originals VALUES ('north-clinic', x'00', x'00')")
    assert main(["verify", *options(small), "--subject", "records-office"]) == 1
    out = capsys.readouterr().out
    assert all(words in out for words in ("original_changed", "case r1", "stray", "2 FINDINGS"))
    assert main(["fsck", *options(small), "--subject", "records-office"]) == 1
    out = capsys.readouterr().out
    assert "Nothing was changed" in out
    assert "1 finding of no session" in out
    code, told = run(small, "fsck", "--quarantine", capsys=capsys)
    assert (code, told["dry_run"]) == (1, False)
    assert told["quarantines"] == [{"session_id": "case", "findings": 1, "status": "suspended"}]


def test_the_page_lists_every_code_with_what_it_means() -> None:
    stated = {code.strip("`"): means for code, means in table_of(VERIFY_MD.read_text("utf-8"), "code")}
    assert stated == dict(CODES)
