"""Signed heads on a schedule, anchors outside the store, and proofs for whoever asks."""

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk

from evidence_archive import Archive, Principal, proving
from evidence_archive.anchors import CommandAnchor, FileAnchor, LogAnchor, ObjectAnchor, open_anchor
from evidence_archive.custody import Custody
from evidence_archive.errors import AuditBrokenError, FormatError, NotAvailableError, StoreUnavailableError
from evidence_archive.objects.directory import DirectoryObjects
from evidence_archive.ports import Anchor
from evidence_archive.proof.checkpoint import Signer, VerifierKey, open_checkpoint, open_proof
from evidence_archive.testing import FrozenClock

AUDITOR = Principal(org="north-clinic", subject="auditor", roles={"custodian"})
LINES = "a line of a log that is long enough\n" * 40


def used(archive: Archive, owner: Principal, talk: Conversation) -> Any:
    """A session with an archived original and a few entries in the log."""
    session = archive.session("case-1", owner)
    talk.tool(LINES)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "a note")])
    session.restore("r1")
    return session


def signed(desk: Desk) -> list[int]:
    """The sizes of the heads that are stored."""
    return [size for (size,) in sorted(desk.execute("SELECT size FROM checkpoints"))]


# --- the schedule ---------------------------------------------------------------------------------------------------


def test_an_archive_that_closes_leaves_its_log_signed_and_one_that_wrote_nothing_signs_nothing(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as archive:
        used(archive, owner, talk)
        assert signed(desk) == []
    (size,) = signed(desk)
    assert [(size,)] == desk.execute("SELECT size FROM audit_heads")
    with desk.open() as archive:
        archive.session("case-1", owner).view(talk.messages)
    assert signed(desk) == [size]


def test_the_head_is_signed_after_so_many_entries_and_after_so_long(
    desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    clock = FrozenClock()
    monkeypatch.setattr(proving, "CHECKPOINT_ENTRIES", 5)
    with desk.open(clock=clock) as archive:
        session = used(archive, owner, talk)
        for _ in range(8):
            session.restore("r1")
        assert len(signed(desk)) == 2
        session.restore("r1")
        before = signed(desk)
        clock.advance(seconds=proving.CHECKPOINT_SECONDS)
        session.restore("r1")
        assert len(signed(desk)) == len(before) + 1


def test_a_head_that_cannot_be_signed_keeps_nobody_from_working(
    desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    class Away:
        name = "away"

        def publish(self, origin: str, size: int, note: str) -> None:
            raise StoreUnavailableError("The anchor is away.")

        def latest(self, origin: str) -> str | None:
            return None

        def heads(self, origin: str) -> tuple[str, ...]:
            return ()

    monkeypatch.setattr(proving, "CHECKPOINT_ENTRIES", 1)
    with desk.open(anchors=[Away()]) as archive:
        session = used(archive, owner, talk)
        assert session.restore("r1").content == LINES
        with pytest.raises(StoreUnavailableError, match="away"):
            archive.custody(AUDITOR).checkpoint()
    assert signed(desk)


# --- what a signed head shows ---------------------------------------------------------------------------------------


def test_every_entry_is_proven_with_the_public_key_alone(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as archive:
        used(archive, owner, talk)
        custody = archive.custody(AUDITOR)
        key = VerifierKey.parse(custody.key())
        entries = archive.audit(principal=AUDITOR).entries
        for entry in entries:
            proven = custody.prove(entry.seq)
            assert proven.entry == open_proof(proven.proof, key).leaf == entry
        named = [entries[seq].event for seq in custody.entries("case-1", "r1")]
        assert named == ["batch.accepted", "restore.granted"]
        for seq in (-1, len(entries) + 50, True, "0"):
            with pytest.raises(NotAvailableError):
                custody.prove(seq)  # type: ignore[arg-type]
        with pytest.raises(FormatError):
            custody.entries("case-1", "x")
        assert custody.entries("case-9") == []


def test_the_log_still_begins_with_what_was_signed_long_ago(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as archive:
        session = used(archive, owner, talk)
        old = archive.custody(AUDITOR).checkpoint()
        for _ in range(5):
            session.restore("r1")
        custody = archive.custody(AUDITOR)
        assert custody.consistent(old) == open_checkpoint(old, VerifierKey.parse(custody.key()))
        assert custody.consistent(custody.checkpoint()).size > custody.consistent(old).size
        with pytest.raises(AuditBrokenError):
            custody.consistent(Signer("evidence-archive/other", os.urandom(32)).sign(1, bytes(32)))


def rewritten(desk: Desk, custody: Custody, seq: int) -> None:
    """What an insider with store and keys can do: change an entry and make the head fit."""
    from evidence_archive.proof.leaf import decode_leaf, encode_leaf
    from evidence_archive.proof.merkle import Frontier, leaf_hash
    from evidence_archive.store import statements

    vault = custody._vault
    leaves = [leaf for _, leaf in sorted(desk.execute("SELECT seq, leaf FROM audit_leaves"))]
    old = decode_leaf(leaves[seq])
    leaves[seq] = encode_leaf(
        org=old.org,
        seq=seq,
        time_us=old.time_us,
        event=old.event,
        subject="somebody-else",
        session_id=old.session_id,
        batch_id=old.batch_id,
        policy_digest=old.policy_digest,
        details=dict(old.details),
    )
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf_hash(leaf))
    with vault.store.reading(1_000) as reader:
        head = reader.head()
    head = replace(head, frontier=frontier.to_bytes(), last_leaf_hash=leaf_hash(leaves[-1]))
    values = statements.HEAD.values(vault.org, vault._keys.row, head)
    desk.execute("UPDATE audit_leaves SET leaf = ? WHERE seq = ?", leaves[seq], seq)
    desk.execute(
        "UPDATE audit_heads SET frontier = ?, last_leaf_hash = ?, seal = ?", values[2], values[3], values[-1]
    )


def test_an_insider_who_rewrites_the_log_meets_what_was_signed_before(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path
):
    with desk.open() as archive:
        used(archive, owner, talk)
        custody = archive.custody(AUDITOR)
        old = custody.checkpoint()
        rewritten(desk, custody, 1)
        assert archive.audit(principal=AUDITOR).intact  # entries and head agree: the head alone shows nothing
        with pytest.raises(AuditBrokenError, match=r"signed before|proof"):
            custody.consistent(old)


def test_must_fail_control_an_anchor_that_is_asked_for_sizes_alone_notices_no_rewrite(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as archive:
        used(archive, owner, talk)
        custody = archive.custody(AUDITOR)
        size = open_checkpoint(custody.checkpoint(), VerifierKey.parse(custody.key())).size
        rewritten(desk, custody, 1)
        assert archive.audit(principal=AUDITOR).size >= size


# --- anchors ----------------------------------------------------------------------------------------------------


def anchors_of(folder: Path) -> dict[str, Anchor]:
    script = folder / "keep.py"
    script.write_text(f"import sys\nopen({str(folder / 'kept')!r}, 'a').write(sys.stdin.read())\n")
    return {
        "file": FileAnchor(folder / "heads.jsonl"),
        "objects": ObjectAnchor(DirectoryObjects(folder / "objects", create=True)),
        "command": CommandAnchor(f"{sys.executable} {script}"),
        "log": LogAnchor(),
    }


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_an_anchor_keeps_every_head_and_gives_the_newest_of_a_log(tmp_path: Path, kind: str):
    anchor = anchors_of(tmp_path)[kind]
    one, two = Signer("log/one", os.urandom(32)), Signer("log/two", os.urandom(32))
    assert anchor.latest("log/one") is None
    for size in range(1, 21):
        anchor.publish("log/one", size, one.sign(size, bytes(32)))
        anchor.publish("log/one", size, one.sign(size, bytes(32)))
        if size == 7:
            anchor.publish("log/two", size, two.sign(size, bytes(32)))
        assert anchor.latest("log/one") == one.sign(size, bytes(32))
    assert anchor.latest("log/two") == two.sign(7, bytes(32))


@pytest.mark.parametrize("kind", ["file", "objects", "command", "log"])
def test_an_archive_hands_its_signed_heads_to_any_anchor(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "evidence_archive")
    folder = tmp_path / "anchors"
    folder.mkdir()
    anchor = anchors_of(folder)[kind]
    with desk.open(anchors=[anchor]) as archive:
        used(archive, owner, talk)
        note = archive.custody(AUDITOR).checkpoint()
        key = VerifierKey.parse(archive.custody(AUDITOR).key())
    if kind == "command":
        assert note in (folder / "kept").read_text()
    elif kind == "log":
        assert note in [getattr(record, "note", None) for record in caplog.records]
    else:
        kept = anchor.latest(key.name)
        assert kept is not None
        assert open_checkpoint(kept, key).size >= open_checkpoint(note, key).size


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_a_store_that_was_put_back_meets_its_anchor(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, kind: str
):
    folder = tmp_path / "anchors"
    folder.mkdir()
    anchor = anchors_of(folder)[kind]
    with desk.open(anchors=[anchor]) as archive:
        used(archive, owner, talk)
    old = desk.saved()
    with desk.open(anchors=[anchor]) as archive:
        session = archive.session("case-1", owner)
        session.view(talk.messages)
        session.restore("r1")
    desk.put_back(old)
    with desk.open(anchors=[anchor]) as archive:
        with pytest.raises(AuditBrokenError, match="put back"):
            archive.custody(AUDITOR).checkpoint()
        # Grown beyond what the anchor knows, it is still another log: sizes alone would not show it.
        session = archive.session("case-1", owner)
        session.view(talk.messages)
        for _ in range(20):
            session.restore("r1")
        with pytest.raises(AuditBrokenError, match="not the one that was signed"):
            archive.custody(AUDITOR).checkpoint()


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_an_old_head_put_behind_newer_ones_hides_none_of_them(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, kind: str
):
    folder = tmp_path / "anchors"
    folder.mkdir()
    anchor = anchors_of(folder)[kind]
    with desk.open(anchors=[anchor]) as archive:
        used(archive, owner, talk)
        key = VerifierKey.parse(archive.custody(AUDITOR).key())
        early = archive.custody(AUDITOR).checkpoint()
    old = desk.saved()
    with desk.open(anchors=[anchor]) as archive:
        archive.custody(AUDITOR).hold("a lawsuit", session_id="case-1")
    desk.put_back(old)
    # Whoever can only add to the anchor adds what was signed once, as if it were the newest.
    anchor.publish(key.name, 10**9, early)
    with desk.open() as archive:
        report = archive.custody(AUDITOR).verify("keyless", anchors=[anchor])
    assert {"rolled_back"} <= {one.code for one in report.findings}


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_a_log_that_was_put_back_on_purpose_is_anchored_anew_and_says_what_was_given_up(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, kind: str
):
    folder = tmp_path / "anchors"
    folder.mkdir()
    anchor = anchors_of(folder)[kind]
    with desk.open(anchors=[anchor]) as archive:
        used(archive, owner, talk)
        kept = archive.custody(AUDITOR).checkpoint()
    old = desk.saved()
    with desk.open(anchors=[anchor]) as archive:
        session = archive.session("case-1", owner)
        session.view(talk.messages)
        for _ in range(9):
            session.restore("r1")
            archive.custody(AUDITOR).checkpoint()
        key = VerifierKey.parse(archive.custody(AUDITOR).key())
    desk.put_back(old)
    given_up = anchor.latest(key.name)
    assert given_up is not None
    lost_head = open_checkpoint(given_up, key)
    with desk.open(anchors=[anchor]) as archive:
        custody = archive.custody(AUDITOR)
        with pytest.raises(AuditBrokenError):
            custody.checkpoint()
        assert {finding.code for finding in custody.verify(anchors=[anchor]).findings} >= {"rolled_back"}
        note = custody.reanchor()
        assert note in list(anchor.heads(key.name))
        entry = next(one for one in archive.audit(principal=AUDITOR).entries if one.event == "log.reanchored")
        assert entry.subject == AUDITOR.subject
        lost = [(head["size"], head["root"]) for head in entry.details["heads"]]
        assert (lost_head.size, lost_head.root.hex()) in lost
        assert all(size > open_checkpoint(kept, key).size for size, _ in lost)
        assert entry.seq < open_checkpoint(note, key).size
        # From here on it is anchored as ever, and what was given up stays told.
        assert custody.verify(anchors=[anchor]).findings == ()
        assert open_checkpoint(custody.checkpoint(), key).size > open_checkpoint(note, key).size
        assert custody.reanchor()
        events = [one.event for one in archive.audit(principal=AUDITOR).entries]
        assert events.count("log.reanchored") == 1
        with pytest.raises(AuditBrokenError, match="given up"):
            custody.consistent(given_up)
        kept_elsewhere = FileAnchor(folder / "elsewhere.jsonl")
        kept_elsewhere.publish(key.name, lost_head.size, given_up)
        found = custody.verify(anchors=[kept_elsewhere]).findings
        assert {finding.code for finding in found} == {"reanchored"}
        later = desk.saved()
    with desk.open(anchors=[anchor]) as archive:
        archive.session("case-2", owner)
        archive.custody(AUDITOR).checkpoint()
    desk.put_back(later)
    with desk.open(anchors=[anchor]) as archive, pytest.raises(AuditBrokenError, match="put back"):
        archive.custody(AUDITOR).checkpoint()


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_a_history_that_was_given_up_and_is_put_back_meets_the_one_that_came_after_it(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, kind: str
):
    """Its own last head is the longest that the anchor knows, and must hide no shorter one."""
    folder = tmp_path / "anchors"
    folder.mkdir()
    anchor = anchors_of(folder)[kind]
    with desk.open(anchors=[anchor]) as archive:
        used(archive, owner, talk)
    early = desk.saved()
    with desk.open(anchors=[anchor]) as archive:
        session = archive.session("case-1", owner)
        session.view(talk.messages)
        for _ in range(30):
            session.restore("r1")
    lost = desk.saved()
    desk.put_back(early)
    with desk.open(anchors=[anchor]) as archive:
        archive.custody(AUDITOR).reanchor()
        archive.custody(AUDITOR).shred(session_id="case-1", result_id="r1")
        archive.custody(AUDITOR).checkpoint()
        assert archive.custody(AUDITOR).verify(anchors=[anchor]).findings == ()
    desk.put_back(lost)
    with desk.open(anchors=[anchor]) as archive:
        custody = archive.custody(AUDITOR)
        assert "rewritten" in {one.code for one in custody.verify(anchors=[anchor]).findings}
        with pytest.raises(AuditBrokenError):
            custody.checkpoint()


def test_a_log_that_was_rewritten_is_not_anchored_anew(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path
):
    """What the store itself signed cannot be given up, and a refusal gives up nothing of what anchors know."""
    anchor = FileAnchor(tmp_path / "heads.jsonl")
    with desk.open(anchors=[anchor]) as archive:
        used(archive, owner, talk)
        custody = archive.custody(AUDITOR)
        custody.checkpoint()
        rewritten(desk, custody, 1)
        with pytest.raises(AuditBrokenError):
            custody.reanchor()
        assert "log.reanchored" not in [entry.event for entry in archive.audit(principal=AUDITOR).entries]


def test_a_log_rewritten_after_it_was_anchored_anew_is_not_signed_again(
    desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path
):
    """Where all that an anchor knows was given up, the store's own signed head still binds."""
    anchor = FileAnchor(tmp_path / "heads.jsonl")
    with desk.open() as archive:
        used(archive, owner, talk)
        archive.custody(AUDITOR).checkpoint()
    old = desk.saved()
    with desk.open(anchors=[anchor]) as archive:
        session = archive.session("case-1", owner)
        session.view(talk.messages)
        session.restore("r1")
        archive.custody(AUDITOR).checkpoint()
        key = VerifierKey.parse(archive.custody(AUDITOR).key())
    given_up = anchor.latest(key.name)
    assert given_up is not None
    desk.put_back(old)
    with desk.open(anchors=[anchor]) as archive:
        archive.custody(AUDITOR).reanchor()
    only_lost = FileAnchor(tmp_path / "lost.jsonl")
    only_lost.publish(key.name, open_checkpoint(given_up, key).size, given_up)
    with desk.open(anchors=[only_lost]) as archive:
        custody = archive.custody(AUDITOR)
        rewritten(desk, custody, 1)
        with pytest.raises(AuditBrokenError):
            custody.checkpoint()


def test_a_torn_line_in_an_anchor_file_takes_no_other_with_it(tmp_path: Path):
    path = tmp_path / "heads.jsonl"
    anchor, signer = FileAnchor(path), Signer("log/one", os.urandom(32))
    anchor.publish("log/one", 1, signer.sign(1, bytes(32)))
    with path.open("a") as file:
        file.write('{"origin": "log/one", "size": 9, "no')
    anchor.publish("log/one", 2, signer.sign(2, bytes(32)))
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n[]\n3\n" + json.dumps({"origin": "log/one"}).encode() + b"\n")
    assert anchor.latest("log/one") == signer.sign(2, bytes(32))
    assert path.stat().st_mode & 0o077 == 0


def test_an_anchor_that_cannot_keep_says_so(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for anchor in (
        FileAnchor(tmp_path / "folder"),
        FileAnchor(tmp_path / "absent" / "heads"),
        CommandAnchor("false"),
        CommandAnchor("/nonexistent/program"),
    ):
        with pytest.raises(StoreUnavailableError):
            anchor.publish("log/one", 1, "note")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(StoreUnavailableError):
        FileAnchor(tmp_path / "link").publish("log/one", 1, "note")
    for words in ("", "'", '"'):
        with pytest.raises(FormatError):
            CommandAnchor(words)


def test_what_an_anchor_is_called_finds_it(tmp_path: Path):
    assert open_anchor("log").name == "log"
    assert open_anchor("command:cat").name == "command"
    assert open_anchor(f"objects:{tmp_path / 'kept'}").name == "directory"
    assert open_anchor(tmp_path / "heads").name == open_anchor(str(tmp_path / "heads")).name == "file"
    own = FileAnchor(tmp_path / "heads")
    assert open_anchor(own) is own
    with pytest.raises(FormatError):
        open_anchor(3)  # type: ignore[arg-type]
