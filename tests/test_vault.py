"""One org's keys, log and read path: keys are told apart from damage, and the log has it before anybody else."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Conversation, Desk
from test_access_path import SpyKeys, restore_call

from evidence_archive import Archive, KeyNotFoundError, KeyringError, NotAvailableError, Principal, WrongKeyError
from evidence_archive.clock import SystemClock
from evidence_archive.errors import (
    FormatError,
    PolicyError,
    SealBrokenError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from evidence_archive.excerpt import WHOLE
from evidence_archive.keys import EnvironmentKeys, FileKeys, new_keys
from evidence_archive.policy import Policy
from evidence_archive.ports import OrgRow
from evidence_archive.proof.leaf import encode_leaf
from evidence_archive.proof.merkle import leaf_hash, root_of
from evidence_archive.restoring import Restoring
from evidence_archive.sealing.envelope import ORIGINAL_BYTES_MAX
from evidence_archive.sealing.keyring import org_keys
from evidence_archive.tokens import default_counter
from evidence_archive.vault import LEAVES_PER_READ, Surroundings, open_vault, wrap_context

OWNER = Principal(org="north-clinic", subject="owner")
CONTENT = "made-up finding\r\n" * 80


def filled(archive: Archive, name: str = "case") -> Any:
    session, talk = archive.session(name, OWNER), Conversation()
    for _ in range(2):
        talk.tool(CONTENT)
        talk.say()
        session.view(talk.messages)
    session.archive([("r1", "a note")])
    return session


def originals_kept(desk: Desk) -> int:
    return len(desk.rows("originals"))


def nothing_made(desk: Desk) -> bool:
    """Whether there is neither a file nor a row."""
    return not desk.database.exists() if desk.server is None else desk.stored() == b""


# --- keys -------------------------------------------------------------------------------------------------------


def test_another_key_file_is_a_wrong_key_and_changes_nothing(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    right = desk.folder / "right.keys"
    desk.keys.rename(right)
    new_keys(desk.keys)
    before = desk.saved()
    for verb in (
        lambda archive: archive.session("case", OWNER),
        lambda archive: archive.restore("case", "r1", principal=OWNER),
        lambda archive: archive.results("case", principal=OWNER),
        lambda archive: archive.audit(principal=OWNER),
        lambda archive: archive.resume("case", principal=OWNER),
    ):
        with desk.open() as archive, pytest.raises(WrongKeyError, match="not the one"):
            verb(archive)
    assert desk.saved() == before
    with desk.open(keys=right) as archive:
        assert archive.restore("case", "r1", principal=OWNER).content == CONTENT


def test_a_missing_key_file_is_said_before_anything_is_made(desk: Desk) -> None:
    desk.keys.unlink()
    with pytest.raises(KeyNotFoundError, match="no key file"):
        desk.open()
    assert nothing_made(desk)


def test_a_missing_variable_is_said_before_anything_is_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEYS", raising=False)
    with pytest.raises(KeyNotFoundError):
        desk.open(keys="env:NO_SUCH_KEYS")
    assert nothing_made(desk)


def test_a_variable_with_the_content_of_the_key_file_opens_the_same_store(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.open() as archive:
        filled(archive)
    monkeypatch.setenv("MADE_UP_KEYS", desk.keys.read_text())
    with desk.open(keys=EnvironmentKeys("MADE_UP_KEYS")) as archive:
        assert archive.restore("case", "r1", principal=OWNER).content == CONTENT


def test_a_missing_version_is_an_error_and_the_current_one_is_never_tried(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    text = desk.keys.read_text().replace('"current": 1', '"current": 2').replace('"1":', '"2":')
    desk.keys.write_text(text)
    with desk.open() as archive, pytest.raises(KeyNotFoundError, match="version 1"):
        archive.restore("case", "r1", principal=OWNER)


@pytest.mark.parametrize("column", ["scope_keys.wrapped", "orgs.aux_wrapped"])
def test_a_damaged_wrapped_key_is_damage_and_not_a_wrong_key(desk: Desk, column: str) -> None:
    with desk.open() as archive:
        filled(archive)
    table, name = column.split(".")
    ((size,),) = desk.execute(f"SELECT length({name}) FROM {table}")
    desk.execute(f"UPDATE {table} SET {name} = ?", bytes(size))
    with desk.open() as archive, pytest.raises(SealBrokenError) as caught:
        archive.restore("case", "r1", principal=OWNER)
    assert not isinstance(caught.value, KeyringError)


def test_a_wrapped_key_of_another_org_does_not_open_even_with_a_seal_that_holds(desk: Desk) -> None:
    keys = FileKeys(desk.keys)
    wrapped = keys.wrap("south-clinic", 1, b"k" * 32, b"context")
    with pytest.raises(SealBrokenError):
        keys.unwrap("north-clinic", 1, wrapped, b"context")


class FailingKeys(SpyKeys):
    """A provider that is down while ``failing`` says so."""

    failing = False

    def __getattr__(self, name: str) -> Any:
        if self.failing and name in ("wrap", "unwrap", "fingerprint", "current_version"):
            raise KeyringError("The key service does not answer: try again.")
        return super().__getattr__(name)


def test_a_provider_that_is_down_releases_nothing_stores_nothing_and_recovers_without_a_restart(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    keys = FailingKeys(FileKeys(desk.keys))
    with desk.open(keys=keys) as archive:
        archive.audit(principal=OWNER)
        keys.failing = True
        with pytest.raises(KeyringError, match="does not answer"):
            archive.restore("case", "r1", principal=OWNER)
        with pytest.raises(KeyringError):
            archive.session("new", OWNER)
        entries = archive.audit(principal=OWNER).entries
        assert "restore.granted" not in [entry.event for entry in entries]
        assert entries[-1].event == "batch.accepted"
        keys.failing = False
        assert archive.restore("case", "r1", principal=OWNER).content == CONTENT
        filled(archive, "new")
        assert archive.audit(principal=OWNER).intact


def test_the_provider_opens_a_session_key_once_however_much_is_restored(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    keys = SpyKeys(FileKeys(desk.keys))
    with desk.open(keys=keys) as archive:
        for _ in range(3):
            archive.session("case", OWNER).restore("r1")
            archive.restore("case", "r1", principal=OWNER)
        assert keys.calls.count("unwrap") == 2, "the org's key and the session's"
        assert "wrap" not in keys.calls


def test_no_more_session_keys_are_held_in_memory_than_the_bound(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evidence_archive.vault.SCOPES_HELD_MAX", 2)
    with desk.open() as archive:
        for name in ("a", "b", "c"):
            filled(archive, name)
    with desk.open() as archive:
        for name in ("a", "b", "c", "a"):
            assert archive.restore(name, "r1", principal=OWNER).content == CONTENT
            assert len(archive._vault(OWNER)._scopes) <= 2


def test_the_largest_original_that_a_policy_may_allow_fits_an_envelope() -> None:
    limits = '[policy]\nname = "large"\nversion = 1\ndefault = "allow"\n[limits]\noriginal_bytes_max = {}\n'
    assert Policy.loads(limits.format(ORIGINAL_BYTES_MAX)).limits.original_bytes_max == ORIGINAL_BYTES_MAX
    with pytest.raises(PolicyError):
        Policy.loads(limits.format(ORIGINAL_BYTES_MAX + 1))


def test_a_new_policy_does_not_ask_the_provider_for_new_keys(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
    keys = SpyKeys(FileKeys(desk.keys))
    other = Policy.loads('[policy]\nname = "other"\nversion = 1\ndefault = "allow"\n')
    with desk.open(keys=keys, policy=other) as archive:
        archive.session("case", OWNER)
        assert "wrap" not in keys.calls
        assert archive.audit(principal=OWNER).entries[-1].event == "policy.loaded"


# --- the log ----------------------------------------------------------------------------------------------------


def test_the_report_has_the_root_of_what_is_there_and_the_entries_from_where_it_is_asked(desk: Desk) -> None:
    with desk.open() as archive:
        session = filled(archive)
        for _ in range(3):
            session.restore("r1", reason="to look again")
        whole = archive.audit(principal=OWNER)
        assert (whole.intact, whole.findings, whole.size) == (True, (), len(whole.entries))
        assert [entry.seq for entry in whole.entries] == list(range(whole.size))
        late = archive.audit(principal=OWNER, start=whole.size - 2)
        assert (late.entries, late.root_hex) == (whole.entries[-2:], whole.root_hex)
        assert archive.audit(principal=OWNER, start=10_000).entries == ()
    leaves = [row[0] for row in desk.execute("SELECT leaf FROM audit_leaves ORDER BY seq")]
    assert whole.root_hex == root_of([leaf_hash(leaf) for leaf in leaves]).hex()


@pytest.fixture
def around(desk: Desk) -> Iterator[Surroundings]:
    from evidence_archive.store import open_store

    store = open_store(desk.url)
    yield Surroundings(store, FileKeys(desk.keys), Policy.default(), default_counter(), SystemClock())
    store.close()


def made(around: Surroundings, leaves: list[Any]) -> None:
    """An org with exactly these first entries."""
    aux, deployment = b"a" * 31 + b"x", b"d" * 16
    context = wrap_context(
        "aux", deployment=deployment, org="o", scope_id=None, child=None, generation=1, kek_version=1
    )
    row = OrgRow("o", deployment, around.keys.wrap("o", 1, aux, context), 1, around.keys.fingerprint("o", 1), 1, 0)
    around.store.create_org(row, org_keys(aux).row, leaves)


def entry(seq: int, **named: Any) -> bytes:
    return encode_leaf(**{"org": "o", "seq": seq, "time_us": 0, "event": "key.created", "subject": "s", **named})


def test_an_empty_log_is_not_intact_because_nothing_was_checked(around: Surroundings) -> None:
    made(around, [])
    report = open_vault(around, "o").audit_report(0)
    assert (report.size, report.intact, report.entries) == (0, False, ())
    assert report.findings == ("The log is empty: nothing was checked.",)


def test_entries_that_are_no_entries_or_belong_elsewhere_are_each_found(around: Surroundings) -> None:
    made(around, [entry, lambda seq: entry(seq, org="p"), lambda seq: entry(seq + 5), lambda seq: b"junk", entry])
    report = open_vault(around, "o").audit_report(0)
    assert report.findings == tuple(f"Entry {seq} is not one this library wrote for this place." for seq in (1, 2, 3))
    assert [one.seq for one in report.entries] == [0, 4]
    assert not report.intact


def test_a_log_longer_than_one_read_is_read_to_its_end(around: Surroundings) -> None:
    count = 2 * LEAVES_PER_READ + 1
    made(around, [entry] * count)
    report = open_vault(around, "o").audit_report(count - 3)
    assert (report.size, report.intact, len(report.entries)) == (count, True, 3)


def test_the_report_says_how_many_of_how_many_are_there(around: Surroundings, desk: Desk) -> None:
    made(around, [entry] * 9)
    desk.execute("DELETE FROM audit_leaves WHERE seq = 4")
    report = open_vault(around, "o").audit_report(0)
    assert report.findings == ("Entry 4 is missing.", "The head counts 9 entries, 4 are there in order.")


# --- nothing before the log has it ------------------------------------------------------------------------------


def refuse_commits(archive: Archive, desk: Desk) -> None:
    """From now on no commit of this archive goes through."""
    from sqlalchemy import event

    engine = archive._around.store._engine.engine  # type: ignore[attr-defined]
    read_only = "PRAGMA query_only=ON" if desk.server is None else "SET default_transaction_read_only=on"
    event.listen(engine, "checkout", lambda connection, *_: connection.execute(read_only))


def test_a_grant_that_the_log_does_not_take_releases_nothing(desk: Desk) -> None:
    with desk.open() as archive:
        session = filled(archive)
        before = archive.audit(principal=OWNER).size
        refuse_commits(archive, desk)
        with pytest.raises(StoreUnavailableError):
            session.restore("r1")
        with pytest.raises(StoreUnavailableError):
            archive.restore("case", "r1", principal=OWNER)
        assert archive.audit(principal=OWNER).size == before


def test_a_denial_that_the_log_does_not_take_is_an_error_of_the_store(desk: Desk) -> None:
    with desk.open() as archive:
        filled(archive)
        refuse_commits(archive, desk)
        with pytest.raises(StoreUnavailableError):
            archive.restore("case", "r99", principal=OWNER)


def test_an_archive_that_released_first_would_be_caught(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from evidence_archive.restoring import Restoring

    with desk.open() as archive:
        session = filled(archive)
        refuse_commits(archive, desk)
        granted = Restoring.granted

        def late(self: Restoring, *given: Any, **named: Any) -> None:
            try:
                granted(self, *given, **named)
            except StoreError:
                return

        monkeypatch.setattr(Restoring, "granted", late)
        assert session.restore("r1").content == CONTENT, "the control releases what the log does not know"


def test_a_result_that_changes_between_permission_and_grant_is_not_released(desk: Desk) -> None:
    with desk.open() as archive, desk.open() as other:
        session = filled(archive)
        vault = archive._vault(OWNER)
        found = Restoring(vault).find(OWNER, "case", "r1")
        Restoring(vault).opened(OWNER, found, WHOLE, session._records.dialect)
        other.session("case", OWNER).label("r1", sensitivity="clinical")
        with pytest.raises(StoreBusyError, match="changed"):
            Restoring(vault).granted(OWNER, found, part=None, reason=None)
        assert "restore.granted" not in [one.event for one in archive.audit(principal=OWNER).entries]
        assert session.restore("r1").content == CONTENT


def test_every_grant_and_denial_is_in_the_log_with_its_place_and_its_policy(desk: Desk) -> None:
    with desk.open() as archive:
        session = filled(archive)
        session.restore("r1", lines="2-3", reason="because of the made-up finding")
        with pytest.raises(NotAvailableError):
            archive.restore("case", "r1", principal=Principal(org=OWNER.org, subject="stranger"))
        granted, denied = archive.audit(principal=OWNER).entries[-2:]
        assert (granted.event, granted.subject, granted.session_id) == ("restore.granted", "owner", "case")
        assert granted.details["result"] == "r1"
        assert granted.sealed_reason is not None
        assert b"made-up" not in granted.sealed_reason
        assert (denied.event, denied.subject, denied.details["result"]) == ("restore.denied", "stranger", "r1")
        assert {granted.policy_digest, denied.policy_digest} == {archive.policy.digest}


def test_a_copy_whose_origin_was_removed_is_damage_and_not_unknown(desk: Desk) -> None:
    with desk.open() as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool(CONTENT)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        talk.ours(session, "restore_evidence", restore_call("r1"))
        talk.say()
        session.view(talk.messages)
        session.archive([("r2", "a copy")])
    desk.execute("DELETE FROM results WHERE number = 1")
    with desk.open() as archive:
        with pytest.raises(SealBrokenError, match="removed"):
            archive.restore("case", "r2", principal=OWNER)
        with pytest.raises(SealBrokenError, match="2 results of this session 1 are there"):
            archive.results("case", principal=OWNER)


def test_a_copy_of_a_part_gives_that_part_and_no_other(desk: Desk) -> None:
    with desk.open() as archive:
        session, talk = archive.session("case", OWNER), Conversation()
        talk.tool("".join(f"line {number} of a made-up finding\n" for number in range(1, 101)))
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        asked = {**json.loads(restore_call("r1")), "lines": "2-40"}
        talk.ours(session, "restore_evidence", json.dumps(asked))
        talk.say()
        session.view(talk.messages)
        session.archive([("r2", "a copy of a part")])
        part = archive.restore("case", "r1", principal=OWNER, lines="2-40").content
        assert archive.restore("case", "r2", principal=OWNER).content == part
        with pytest.raises(FormatError, match="ask r1 itself"):
            archive.restore("case", "r2", principal=OWNER, lines="1-2")


def test_a_database_and_its_keys_moved_together_open_elsewhere(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    with desk.open() as archive:
        filled(archive)
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    for path in (desk.database, desk.keys):
        shutil.copy2(path, elsewhere)
    with Desk(elsewhere).open(create=False) as archive:
        assert archive.restore("case", "r1", principal=OWNER).content == CONTENT
        assert archive.audit(principal=OWNER).intact
    assert originals_kept(desk) == 1
