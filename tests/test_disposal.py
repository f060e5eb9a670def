"""Holds, retention, shredding and quotas: what has to stay stays, what was destroyed is gone and said to be."""

import ast
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import policy_of

import evidence_archive
from evidence_archive import Archive, Principal, logged
from evidence_archive.custody import Custody
from evidence_archive.disposal import Disposal
from evidence_archive.errors import (
    AuditBrokenError,
    BatchRejectedError,
    FormatError,
    HeldError,
    NotAvailableError,
    RetentionError,
    SealBrokenError,
    ShreddedError,
    StoreUnavailableError,
)
from evidence_archive.keys import FileKeys
from evidence_archive.logged import LoggedActs
from evidence_archive.ports import CustodyRow
from evidence_archive.store import statements
from evidence_archive.store.sql import SqlWriter
from evidence_archive.testing import FaultPlan, FrozenClock, faulted

CUSTODIAN = Principal(org="north-clinic", subject="records-office", roles={"custodian"})
DAY_US = 86_400_000_000
LINES = "a line of a log that is long enough\n" * 40
CANARY = "canary-7f3a-of-a-patient"


@pytest.fixture
def custody(archive: Archive, owner: Principal) -> Custody:
    """The office of an org that was used."""
    archive.session("case-0", owner)
    return archive.custody(CUSTODIAN)


def archived(archive: Archive, owner: Principal, name: str, talk: Conversation, count: int = 3) -> Any:
    """A session whose first results are archived: r1 to r``count``, and one more that is live."""
    session = archive.session(name, owner)
    for at in range(count + 1):
        talk.tool(f"{CANARY} {name} {at}\n{LINES}")
    talk.say()
    session.view(talk.messages)
    session.archive([(f"r{at + 1}", f"note {CANARY} {at}") for at in range(count)])
    return session


# --- who may ------------------------------------------------------------------------------------------------------


def test_only_a_role_that_the_policy_names_gets_in_and_a_refusal_is_in_the_log(archive: Archive, owner: Principal):
    archive.session("case-1", owner)
    with pytest.raises(NotAvailableError):
        archive.custody(owner)
    assert archive.audit(principal=owner).entries[-1].event == "custody.denied"
    assert archive.custody(CUSTODIAN).holds() == []


def test_a_policy_names_other_roles(desk: Desk, owner: Principal):
    with desk.open(policy=policy_of('[custody]\nroles = ["archivist"]\n')) as archive:
        archive.session("case-1", owner)
        with pytest.raises(NotAvailableError):
            archive.custody(CUSTODIAN)
        archive.custody(Principal(org="north-clinic", subject="someone", roles={"archivist"}))


def test_another_org_never_meets_this_one(archive: Archive, owner: Principal, custody: Custody):
    hold = custody.hold("a lawsuit")
    south = Principal(org="south-clinic", subject="records-office", roles={"custodian"})
    archive.session("case-0", Principal(org="south-clinic", subject="a"))
    other = archive.custody(south)
    assert other.holds() == []
    with pytest.raises(NotAvailableError):
        other.release(hold.id)
    with pytest.raises(NotAvailableError):
        other.shred(session_id="case-0", result_id="r1")


# --- holds ----------------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[Custody], Any]] = {
    "original": lambda custody: custody.shred(session_id="case-1", result_id="r2"),
    "session": lambda custody: custody.shred(session_id="case-1"),
    "org": lambda custody: custody.shred(),
    "gc": lambda custody: custody.gc(dry_run=False),
}
"""Every way to destroy."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on", [{}, {"session_id": "case-1"}, {"session_id": "case-1", "result_id": "r2"}])
def test_a_hold_stops_every_way_to_destroy_and_nothing_of_the_group_is_touched(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, way: str, on: dict[str, str]
):
    clock = FrozenClock()
    policy = policy_of('[[retention]]\ntools = ["logs.*"]\ndays = 1\n')
    with sqlite_desk.open(policy=policy, clock=clock) as archive:
        session = archived(archive, owner, "case-1", talk)
        clock.advance(seconds=2 * 86_400)
        custody = archive.custody(CUSTODIAN)
        hold = custody.hold("a lawsuit", **on)
        before = sqlite_desk.rows("results")
        if way == "gc":
            due = WAYS[way](custody)
            held = {one.result_id for one in due if one.held}
            assert held == ({"r2"} if on.get("result_id") else {"r1", "r2", "r3"})
            assert session.restore("r2").content.startswith(CANARY)
        else:
            with pytest.raises(HeldError, match=hold.id):
                WAYS[way](custody)
            assert sqlite_desk.rows("results") == before
        custody.release(hold.id)
        WAYS[way](custody)
        with pytest.raises((ShreddedError, NotAvailableError)):
            archive.restore("case-1", "r2", principal=owner)


def test_must_fail_control_a_disposal_that_does_not_ask_would_destroy_what_is_held(
    archive: Archive, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    archived(archive, owner, "case-1", talk)
    custody = archive.custody(CUSTODIAN)
    custody.hold("a lawsuit")
    monkeypatch.setattr(Disposal, "_allowed", lambda *_: None)
    custody.shred(session_id="case-1", result_id="r2")
    with pytest.raises(ShreddedError):
        archive.restore("case-1", "r2", principal=owner)


def test_of_two_holds_one_released_leaves_the_other(archive: Archive, owner: Principal, talk: Conversation):
    archived(archive, owner, "case-1", talk)
    custody = archive.custody(CUSTODIAN)
    one, two = custody.hold("a lawsuit", session_id="case-1"), custody.hold("an audit")
    custody.release(one.id)
    with pytest.raises(HeldError, match=two.id):
        custody.shred(session_id="case-1", result_id="r1")
    with pytest.raises(FormatError, match="released before"):
        custody.release(one.id)
    assert [(hold.id, hold.is_active, hold.reason) for hold in custody.holds()] == [
        (one.id, False, "a lawsuit"),
        (two.id, True, "an audit"),
    ]


def test_a_hold_on_a_copy_is_a_hold_on_its_original(archive: Archive, owner: Principal, talk: Conversation):
    session = archived(archive, owner, "case-1", talk)
    session.view(talk.messages)
    talk.ours(session, "restore_evidence", '{"id": "r2"}')
    session.view(talk.messages)
    copy = next(info.id for info in session.results() if info.restored_from == "r2")
    talk.say()
    session.view(talk.messages)
    session.archive([(copy, "again")])
    custody = archive.custody(CUSTODIAN)
    assert custody.hold("a lawsuit", session_id="case-1", result_id=copy).result_id == "r2"
    with pytest.raises(HeldError):
        custody.shred(session_id="case-1", result_id="r2")


@pytest.mark.parametrize(
    ("session_id", "result_id"),
    [
        ("case-9", None),
        ("case-9", "r1"),
        ("case-1", "r99"),
        ("case-1", "r4"),
        ("case-1", "x"),
        ("", "r1"),
        ("\0", "r1"),
    ],
)
def test_what_is_not_there_or_not_archived_is_not_available(
    archive: Archive, owner: Principal, talk: Conversation, session_id: str, result_id: str | None
):
    archived(archive, owner, "case-1", talk)
    custody = archive.custody(CUSTODIAN)
    with pytest.raises(NotAvailableError):
        custody.hold("a lawsuit", session_id=session_id, result_id=result_id)
    with pytest.raises(NotAvailableError):
        custody.shred(session_id=session_id, result_id=result_id)


def test_a_reason_is_sealed_and_no_reason_is_refused(desk: Desk, archive: Archive, custody: Custody):
    custody.hold(CANARY)
    assert CANARY.encode() not in desk.stored()
    for reason in ("", " ", "x" * 2_001, None):
        with pytest.raises(FormatError):
            custody.hold(reason)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="which session"):
        custody.hold("a lawsuit", result_id="r1")
    with pytest.raises(FormatError, match="which session"):
        custody.shred(result_id="r1")


def raced(archive: Archive, result_id: str) -> dict[str, Any]:
    """What became of a hold and of a shred of one original that were asked for at once."""
    outcomes: dict[str, Any] = {}
    start = threading.Barrier(2)

    def run(name: str, act: Callable[[Custody], Any]) -> None:
        custody = archive.custody(CUSTODIAN)
        start.wait()
        try:
            outcomes[name] = act(custody)
        except (HeldError, ShreddedError) as error:
            outcomes[name] = type(error)

    acts: dict[str, Callable[[Custody], Any]] = {
        "hold": lambda custody: custody.hold("now", session_id="case-1", result_id=result_id),
        "shred": lambda custody: custody.shred(session_id="case-1", result_id=result_id),
    }
    threads = [threading.Thread(target=run, args=act) for act in acts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_a_hold_and_a_shred_at_once_end_in_one_order(desk: Desk, owner: Principal, talk: Conversation):
    """Either the hold came first, and the original is there, or it met a tombstone."""
    with desk.open() as archive:
        archived(archive, owner, "case-1", talk, count=8)
        for number in range(1, 9):
            outcomes = raced(archive, f"r{number}")
            held = outcomes["hold"] is not ShreddedError
            assert held == (outcomes["shred"] is HeldError)
            if held:
                assert archive.restore("case-1", f"r{number}", principal=owner).content.startswith(CANARY)


# --- retention ------------------------------------------------------------------------------------------------------


def test_what_is_to_be_kept_is_kept_and_a_retention_is_never_shortened(
    desk: Desk, owner: Principal, talk: Conversation
):
    clock = FrozenClock()
    with desk.open(clock=clock, policy=policy_of('[[retention]]\ntools = ["logs.*"]\ndays = 10\n')) as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        until_us = clock.now_us() + 20 * DAY_US
        custody.retain("case-1", "r1", until_us)
        for way in ("original", "session", "org"):
            with pytest.raises(RetentionError, match="not over"):
                WAYS[way](custody)
        for earlier in (until_us - 1, 0, clock.now_us()):
            with pytest.raises(RetentionError, match="never shortened"):
                custody.retain("case-1", "r1", earlier)
        with pytest.raises(FormatError):
            custody.retain("case-1", "r1", 1.5)  # type: ignore[arg-type]
        clock.advance(seconds=11 * 86_400)
        assert [(one.session_id, one.result_id) for one in custody.gc()] == [("case-1", "r2"), ("case-1", "r3")]
        assert archive.restore("case-1", "r2", principal=owner).content.startswith(CANARY)  # that was a dry run
        assert [one.result_id for one in custody.gc(dry_run=False)] == ["r2", "r3"]
        assert custody.gc() == []
        assert archive.restore("case-1", "r1", principal=owner).content.startswith(CANARY)
        clock.advance(seconds=10 * 86_400)
        assert [one.result_id for one in custody.gc(dry_run=False)] == ["r1"]


# --- shredding ------------------------------------------------------------------------------------------------------


def test_a_shredded_original_is_gone_with_its_copies_and_the_session_goes_on(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as archive:
        session = archived(archive, owner, "case-1", talk)
        session.view(talk.messages)
        talk.ours(session, "restore_evidence", '{"id": "r2"}')
        talk.ours(session, "restore_evidence", '{"id": "r2", "lines": "1-2"}')
        talk.say()
        session.view(talk.messages)
        copies = [info.id for info in session.results() if info.restored_from == "r2"]
        assert len(copies) == 2
        session.archive([(copies[0], f"a copy {CANARY}")])
        shred = archive.custody(CUSTODIAN).shred(session_id="case-1", result_id=copies[0])
        assert (shred.session_id, shred.result_id, shred.originals, shred.status) == ("case-1", "r2", 1, "pending")
        for result_id in ("r2", *copies):
            with pytest.raises(ShreddedError):
                session.restore(result_id)
        shown = [message["content"] for message in session.view(talk.messages) if message["role"] == "tool"]
        assert [text.startswith("[shredded r") for text in shown] == [False, True, False, False, True, True]
        assert session.restore("r1").content == talk.messages[2]["content"]
        session.archive([("r4", "archived afterwards")])
        assert session.restore("r4").content == talk.messages[8]["content"]
    with desk.open() as archive:  # another process
        again = archive.session("case-1", owner)
        assert [m["content"] for m in again.view(talk.messages) if m["role"] == "tool"][1].startswith("[shredded r2 ")
        for result_id in ("r1", "r3", "r4"):
            assert CANARY in again.restore(result_id).content
        stored = again.view(talk.messages)
        assert again.view(stored) == stored  # a list with tombstones is known again


def test_a_session_that_is_open_elsewhere_takes_the_new_key_and_loses_nothing(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as one, desk.open() as two:
        session = archived(one, owner, "case-1", talk)
        elsewhere = two.session("case-1", owner)
        elsewhere.view(talk.messages)
        one.custody(CUSTODIAN).shred(session_id="case-1", result_id="r1")
        elsewhere.archive([("r4", "archived by the other")])
        talk.tool(f"{CANARY} more\n{LINES}")
        talk.say()
        session.view(talk.messages)
        one.custody(CUSTODIAN).shred(session_id="case-1", result_id="r2")
        elsewhere.view(talk.messages)
        elsewhere.archive([("r5", "and one more")])
        for opened in (one, two):
            for result_id in ("r3", "r4", "r5"):
                assert CANARY in opened.restore("case-1", result_id, principal=owner).content
    with desk.open() as three:
        assert CANARY in three.restore("case-1", "r5", principal=owner).content


def test_a_shredded_session_is_not_resumed_and_acknowledges_nothing_that_could_not_be_opened(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    with sqlite_desk.open() as archive:
        session = archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        before = sqlite_desk.rows("sessions")
        custody.shred(session_id="case-1")
        with pytest.raises(ShreddedError):
            archive.resume("case-1", principal=Principal(org="north-clinic", subject="somebody"))
        assert custody.verify().is_clean
        session.view(talk.messages)
        # The session's older row says that nothing is suspended; the key that is gone says it is.
        names = [row[1] for row in sqlite_desk.execute("PRAGMA table_info(sessions)")]
        changes = ", ".join(f"{name} = ?" for name in names)
        sqlite_desk.execute(f"UPDATE sessions SET {changes}", *before[0])
        with pytest.raises(BatchRejectedError, match="suspended"):
            session.archive([("r4", "note")])


def test_must_fail_control_a_session_that_kept_its_old_key_would_lose_what_it_archives(
    desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    from evidence_archive.records import Records

    with desk.open() as one, desk.open() as two:
        archived(one, owner, "case-1", talk)
        elsewhere = two.session("case-1", owner)
        elsewhere.view(talk.messages)
        monkeypatch.setattr(Records, "_rekey", lambda *_: None)
        one.custody(CUSTODIAN).shred(session_id="case-1", result_id="r1")
        elsewhere.archive([("r4", "archived by the other")])
        with pytest.raises(SealBrokenError):
            one.restore("case-1", "r4", principal=owner)


def test_a_shredded_session_is_gone_and_opens_no_more(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as archive:
        session = archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        assert custody.shred(session_id="case-1").originals == 3
        for result_id in ("r1", "r2", "r3"):
            with pytest.raises(ShreddedError):
                archive.restore("case-1", result_id, principal=owner)
        shown = [message["content"] for message in session.view(talk.messages) if message["role"] == "tool"]
        assert [text.startswith("[shredded r") for text in shown] == [True, True, True, False]
        with pytest.raises(BatchRejectedError):
            session.archive([("r4", "no more")])
        with pytest.raises(ShreddedError):
            archive.session("case-1", owner)
        with pytest.raises(NotAvailableError):
            archive.session("case-1", Principal(org="north-clinic", subject="somebody-else"))
        with pytest.raises(ShreddedError):
            custody.shred(session_id="case-1")
        archive.session("case-2", owner)


def test_a_shredded_org_is_gone_and_a_process_that_has_its_keys_archives_nothing_more(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as archive, desk.open() as elsewhere:
        archived(archive, owner, "case-1", talk)
        other = elsewhere.session("case-1", owner)
        other.view(talk.messages)
        assert archive.custody(CUSTODIAN).shred().originals == 3
        for act in (
            lambda: archive.session("case-2", owner),
            lambda: archive.restore("case-1", "r1", principal=owner),
            lambda: archive.custody(CUSTODIAN),
        ):
            with pytest.raises(ShreddedError):
                act()
        with pytest.raises(BatchRejectedError):
            other.archive([("r4", "too late")])
        with pytest.raises(evidence_archive.EvidenceArchiveError):
            elsewhere.session("case-3", owner)
        assert CANARY in str(other.view(talk.messages))  # what the messages still hold, and nobody archived
    with desk.open() as archive, pytest.raises(ShreddedError):
        archive.session("case-1", owner)


def test_the_shred_of_an_org_counts_the_versions_that_other_processes_wrapped_its_keys_under(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open() as archive, desk.open() as elsewhere:
        archived(archive, owner, "case-1", talk)
        early, twin = elsewhere.custody(CUSTODIAN), elsewhere.custody(CUSTODIAN)
        archive.custody(CUSTODIAN).rotate()
        archive.custody(CUSTODIAN).retire(1)
        shred = early.shred()
        assert (shred.status, shred.kek_version) == ("pending", 2)
        with pytest.raises(ShreddedError):
            twin.shred()


def test_objects_of_a_shredded_org_that_cannot_be_deleted_are_said_to_be_left(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    def away(self: Any, key: str) -> None:
        raise StoreUnavailableError("away")

    with sqlite_desk.open(inline_size_max=100) as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        monkeypatch.setattr(type(archive._around.objects), "delete", away)
        with pytest.raises(StoreUnavailableError, match="was shredded, and 3 of its objects"):
            custody.shred()
        with pytest.raises(ShreddedError):
            archive.restore("case-1", "r1", principal=owner)


@pytest.mark.parametrize("way", ["original", "session", "org"])
def test_no_wrapped_key_of_what_was_shredded_is_left_in_the_files(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, way: str
):
    with sqlite_desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        closed = [row[0] for row in sqlite_desk.execute("SELECT closed FROM results WHERE closed IS NOT NULL")]
        wrapped = [row[0] for row in sqlite_desk.execute("SELECT wrapped FROM scope_keys")]
        aux = [row[0] for row in sqlite_desk.execute("SELECT aux_wrapped FROM orgs")]
        envelopes = [row[0] for row in sqlite_desk.execute("SELECT envelope FROM originals")]
        assert all(secret in sqlite_desk.stored() for secret in [*closed, *wrapped, *aux, *envelopes])
        WAYS[way](archive.custody(CUSTODIAN))
        left = sqlite_desk.stored()
        gone = [*closed, *wrapped]  # the session's next key seals the originals that stay
        if way != "original":
            gone += envelopes
        if way == "org":
            gone += aux
        assert not [secret.hex()[:16] for secret in gone if secret in left]


def test_an_object_of_what_was_shredded_goes_and_others_stay(desk: Desk, owner: Principal, talk: Conversation):
    folder = desk.folder / "objects"
    with desk.open(objects=folder, inline_size_max=100) as archive:
        session = archived(archive, owner, "case-1", talk)
        before = set(folder.rglob("*.00000"))
        assert len(before) == 3
        archive.custody(CUSTODIAN).shred(session_id="case-1", result_id="r2")
        assert len(list(folder.rglob("*.00000"))) == 2
        assert CANARY in session.restore("r1").content
        archive.custody(CUSTODIAN).shred(session_id="case-1")
        assert not list(folder.rglob("*.00000"))


def test_an_object_that_could_not_be_deleted_goes_with_the_org(desk: Desk, owner: Principal, talk: Conversation):
    folder, plan = desk.folder / "objects", FaultPlan()
    with desk.open(objects=folder, inline_size_max=100) as archive:
        archived(faulted(archive, plan), owner, "case-1", talk)
        plan.error("objects.delete.before", times=1)
        archive.custody(CUSTODIAN).shred(session_id="case-1", result_id="r2")
        assert len(list(folder.rglob("*.00000"))) == 3  # put off for hours, by when nobody can open the org
        archive.custody(CUSTODIAN).shred()
        assert not list(folder.rglob("*.00000"))


def test_the_status_is_pending_until_the_provider_has_no_version_that_opens_an_old_copy(
    desk: Desk, owner: Principal, talk: Conversation
):
    class Versions(FileKeys):
        """The same keys, and what a provider would answer about its versions."""

        has: tuple[int, ...] = (1,)
        shared_by_orgs = True

        def versions(self, org: str) -> tuple[int, ...]:
            return self.has

        def new_version(self, org: str) -> int:
            raise AssertionError

        def retire(self, org: str, version: int) -> None:
            raise AssertionError

        def reopened(self) -> "Versions":
            return self

    keys = Versions(desk.keys)
    with desk.open(keys=keys) as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        custody.shred(session_id="case-1", result_id="r1")
        assert [one.status for one in custody.shreds()] == ["pending"]
        keys.has = (2,)
        assert [one.status for one in custody.shreds()] == ["complete"]
        keys.has = (1, 2)  # what was complete stays so: the record says when it was seen
        assert [one.status for one in custody.shreds()] == ["complete"]
        events = [entry.event for entry in archive.audit(principal=CUSTODIAN).entries]
        assert events.count("shred.completed") == 1


def test_two_who_shred_at_once_shred_once(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as one, desk.open() as two:
        archived(one, owner, "case-1", talk, count=4)
        outcomes: list[Any] = []
        start = threading.Barrier(2)

        def run(archive: Archive, number: int) -> None:
            custody = archive.custody(CUSTODIAN)
            start.wait()
            try:
                outcomes.append(custody.shred(session_id="case-1", result_id=f"r{number}"))
            except ShreddedError:
                outcomes.append(None)

        for first, second in ((1, 1), (2, 3)):
            threads = [threading.Thread(target=run, args=pair) for pair in ((one, first), (two, second))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(shred.result_id for shred in outcomes if shred) == ["r1", "r2", "r3"]
        assert CANARY in two.restore("case-1", "r4", principal=owner).content
        assert len(one.custody(CUSTODIAN).shreds()) == 3


# --- quotas ---------------------------------------------------------------------------------------------------------


def test_a_batch_over_the_quota_is_rejected_whole_and_nothing_is_evicted(
    desk: Desk, owner: Principal, talk: Conversation
):
    with desk.open(policy=policy_of("", quota_originals_max=4)) as archive:
        session = archived(archive, owner, "case-1", talk)
        talk.tool(LINES + "five")
        talk.say()
        session.view(talk.messages)
        with pytest.raises(BatchRejectedError, match="quota is 4") as caught:
            session.archive([("r4", "four"), ("r5", "five")])
        assert caught.value.reason == "quota"
        assert {info.state for info in session.results() if info.id in ("r4", "r5")} == {"live"}
        session.archive([("r4", "four")])
        with pytest.raises(BatchRejectedError):
            session.archive([("r5", "five")])
        assert CANARY in session.restore("r1").content
        archive.custody(CUSTODIAN).shred(session_id="case-1", result_id="r1")
        session.archive([("r5", "five")])  # there is room again


def test_a_quota_of_bytes_counts_originals_before_sealing(desk: Desk, owner: Principal, talk: Conversation):
    size = len(f"{CANARY} case-1 0\n{LINES}".encode())
    with desk.open(policy=policy_of("", quota_bytes_max=3 * size)) as archive:
        session = archived(archive, owner, "case-1", talk)
        with pytest.raises(BatchRejectedError, match="quota"):
            session.archive([("r4", "four")])
    with desk.open(policy=policy_of("", quota_bytes_max=4 * size)) as archive:
        session = archive.session("case-1", owner)
        session.view(talk.messages)
        session.archive([("r4", "four")])


def never_counted(desk: Desk, archive: Archive, principal: Principal) -> None:
    """As a migration leaves a store of an earlier version."""
    vault = archive._vault(principal)
    with vault.store.reading(1_000) as reader:
        head = replace(reader.head(), custody_version=0)
    seal = statements.HEAD.values(vault.org, vault._keys.row, head)[-1]
    desk.execute("DELETE FROM custody")
    desk.execute("UPDATE audit_heads SET custody_version = 0, seal = ?", seal)


def test_what_an_org_has_in_keeping_is_not_believed_where_it_was_removed_or_put_back(
    desk: Desk, owner: Principal, talk: Conversation
):
    """The quota, the number of holds and the lowest key version are in that row."""
    with desk.open() as archive:
        session = archived(archive, owner, "case-1", talk)
        old = desk.execute("SELECT seal, originals, version FROM custody")[0]
        archive.custody(CUSTODIAN).hold("claim", session_id="case-1")
        new = desk.execute("SELECT seal, holds, version FROM custody")[0]
        assert new[1] == 1
        assert new[2] not in (0, old[2])
        desk.execute("UPDATE custody SET seal = ?, holds = 0, version = ?", old[0], old[2])
        with pytest.raises(SealBrokenError, match="put back"):
            archive.custody(CUSTODIAN).shred(session_id="case-1")
        with pytest.raises(BatchRejectedError):
            session.archive([("r4", "four")])
        desk.execute("DELETE FROM custody")
        with pytest.raises(SealBrokenError, match="put back"):
            archive.custody(CUSTODIAN).shred(session_id="case-1")
        with desk.open() as later, pytest.raises(SealBrokenError, match="nothing opens"):
            later.restore("case-1", "r1", principal=owner)
        codes = {finding.code for finding in archive.custody(CUSTODIAN).verify().findings}
        assert "custody_missing" in codes
    assert desk.execute("SELECT count(*) FROM originals") == [(3,)]


def test_a_hold_that_was_removed_from_the_database_holds_on(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        custody.hold("claim", session_id="case-1", result_id="r1")
        desk.execute("DELETE FROM holds")
        for what in ({"session_id": "case-1", "result_id": "r1"}, {"session_id": "case-1"}, {}):
            with pytest.raises(SealBrokenError, match="a hold was removed"):
                custody.shred(**what)
        assert desk.execute("SELECT count(*) FROM originals") == [(3,)]
        assert {finding.code for finding in custody.verify().findings} == {"hold_missing"}


def copied(desk: Desk, tmp_path: Path, act: Callable[[Archive], object]) -> Callable[[str], None]:
    """A copy of a store that went on by itself, such as a drill; what puts its rows in the place of ours."""
    other = Desk(tmp_path / "copy")
    other.folder.mkdir()
    other.keys.write_bytes(desk.keys.read_bytes())
    other.keys.chmod(0o600)
    other.put_back(desk.saved())
    with other.open() as archive:
        act(archive)

    def put_in(table: str) -> None:
        desk.execute(f"DELETE FROM {table}")
        for row in other.rows(table):
            desk.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)

    return put_in


def test_a_hold_is_not_exchanged_for_what_a_copy_of_the_store_made_of_it(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path
):
    """A copy that was put back or tried out has the same keys, so that its rows have good seals here."""
    with sqlite_desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        hold = archive.custody(CUSTODIAN).hold("claim", session_id="case-1", result_id="r1")
    put_in = copied(sqlite_desk, tmp_path, lambda archive: archive.custody(CUSTODIAN).release(hold.id))
    put_in("holds")
    with sqlite_desk.open() as archive:
        for what in ({"session_id": "case-1", "result_id": "r1"}, {"session_id": "case-1"}, {}):
            with pytest.raises(SealBrokenError, match="another copy"):
                archive.custody(CUSTODIAN).shred(**what)
    assert sqlite_desk.execute("SELECT count(*) FROM originals") == [(3,)]


def test_an_older_row_that_was_put_back_shortens_no_retention(desk: Desk, owner: Principal, talk: Conversation):
    clock = FrozenClock()
    with desk.open(clock=clock) as archive:
        archived(archive, owner, "case-1", talk, count=2)
        custody = archive.custody(CUSTODIAN)
        custody.retain("case-1", "r1", clock.now_us())
        older = desk.rows("results")
        custody.retain("case-1", "r1", clock.now_us() + DAY_US)
        desk.execute("DELETE FROM results")
        for row in older:
            desk.execute(f"INSERT INTO results VALUES ({', '.join('?' * len(row))})", *row)
        clock.advance(1)
        custody.gc(dry_run=False)
        for what in ({"session_id": "case-1", "result_id": "r1"}, {"session_id": "case-1"}, {}):
            with pytest.raises(RetentionError):
                custody.shred(**what)
        assert desk.execute("SELECT count(*) FROM originals") == [(2,)]
        clock.advance(2 * DAY_US / 1_000_000)
        assert custody.shred(session_id="case-1", result_id="r1").originals == 1


def test_a_retention_that_is_set_over_an_older_row_does_not_shorten_the_one_before(
    desk: Desk, owner: Principal, talk: Conversation
):
    clock = FrozenClock()
    with desk.open(clock=clock) as archive:
        archived(archive, owner, "case-1", talk, count=2)
        custody = archive.custody(CUSTODIAN)
        older = desk.rows("results")
        custody.retain("case-1", "r1", clock.now_us() + 10 * DAY_US)
        put_back(desk, older)
        custody.retain("case-1", "r1", clock.now_us() + DAY_US)
        assert "result_differs" in {one.code for one in custody.verify().findings}
        clock.advance(2 * DAY_US / 1_000_000)
        for what in ({"session_id": "case-1", "result_id": "r1"}, {"session_id": "case-1"}, {}):
            with pytest.raises(RetentionError):
                custody.shred(**what)


def test_a_row_from_before_it_was_archived_takes_no_original_out_of_its_retention(
    desk: Desk, owner: Principal, talk: Conversation
):
    clock = FrozenClock()
    with desk.open(clock=clock) as archive:
        session = archived(archive, owner, "case-1", talk, count=1)
        older = desk.rows("results")
        session.archive([("r2", "note")])
        custody = archive.custody(CUSTODIAN)
        custody.retain("case-1", "r2", clock.now_us() + DAY_US)
        newest = desk.rows("results")
        put_back(desk, older)
        for what in ({"session_id": "case-1"}, {}):
            with pytest.raises(RetentionError, match="the log keeps"):
                custody.shred(**what)
        put_back(desk, newest)
        assert archive.restore("case-1", "r2", principal=owner).content.startswith(CANARY)
        clock.advance(2 * DAY_US / 1_000_000)
        assert custody.shred(session_id="case-1").originals == 2


def put_back(desk: Desk, rows: list[Any]) -> None:
    """All results of the store, as they once were."""
    desk.execute("DELETE FROM results")
    for row in rows:
        desk.execute(f"INSERT INTO results VALUES ({', '.join('?' * len(row))})", *row)


def overlapping(desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch, wait_seconds: float) -> bool:
    """Whether two shreds of one office, in two threads, read the log at the same time."""
    met, both, read = [], threading.Barrier(2), LoggedActs._read

    def meeting(self: LoggedActs, reader: Any) -> None:
        try:
            both.wait(wait_seconds)
            met.append(self)
            both.abort()  # nobody waits for a second meeting
        except threading.BrokenBarrierError:
            pass
        read(self, reader)

    with desk.open() as archive:
        for name in ("case-1", "case-2"):
            archived(archive, owner, name, Conversation(), count=1)
        custody = archive.custody(CUSTODIAN)
        monkeypatch.setattr(LoggedActs, "_read", meeting)
        threads = [
            threading.Thread(target=suppressed, args=(custody, name), daemon=True) for name in ("case-1", "case-2")
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if not met:
            assert [one.status for one in custody.shreds()] == ["pending"] * 2
    return bool(met)


def suppressed(custody: Custody, name: str) -> None:
    with suppress(Exception):  # whatever the control ends with
        custody.shred(session_id=name, result_id="r1")


def test_two_threads_of_one_office_never_read_the_log_at_once(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    assert not overlapping(sqlite_desk, owner, monkeypatch, wait_seconds=0.2)


def test_must_fail_control_without_turns_two_threads_read_the_log_at_once(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logged, "RLock", nullcontext)
    assert overlapping(sqlite_desk, owner, monkeypatch, wait_seconds=20)


def test_an_entry_that_could_not_be_taken_in_is_not_counted_as_read(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    clock = FrozenClock()
    with sqlite_desk.open(clock=clock) as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        custody.retain("case-1", "r1", clock.now_us() + DAY_US)

        def failing(self: LoggedActs, entry: object) -> None:
            raise KeyError("details")

        with monkeypatch.context() as patched:
            patched.setattr(LoggedActs, "_take", failing)
            with pytest.raises(AuditBrokenError):
                custody.shred(session_id="case-1")
        acts = custody._disposal._logged
        assert not acts.keeps(clock.now_us(), "case-1")
        with pytest.raises(RetentionError):
            custody.shred(session_id="case-1")
        assert acts.keeps(clock.now_us(), "case-1")


def test_must_fail_control_a_choke_point_that_only_counts_believes_the_hold_of_a_copy(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LoggedActs, "has_holds", lambda *_: True)
    with sqlite_desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        hold = archive.custody(CUSTODIAN).hold("claim", session_id="case-1", result_id="r1")
    copied(sqlite_desk, tmp_path, lambda archive: archive.custody(CUSTODIAN).release(hold.id))("holds")
    with sqlite_desk.open() as archive:
        archive.custody(CUSTODIAN).shred(session_id="case-1", result_id="r1")
    assert sqlite_desk.execute("SELECT count(*) FROM originals") == [(2,)]


@pytest.mark.parametrize("table", ["holds", "custody"])
def test_a_hold_of_a_copy_of_the_store_does_not_stand_for_one_that_was_removed(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, tmp_path: Path, table: str
):
    with sqlite_desk.open() as archive:
        archived(archive, owner, "case-1", talk)

    def elsewhere(archive: Archive) -> None:
        if table == "holds":
            archive.custody(CUSTODIAN).hold("another", session_id="case-1", result_id="r2")
        else:
            archived(archive, owner, "case-2", Conversation())

    put_in = copied(sqlite_desk, tmp_path, elsewhere)
    with sqlite_desk.open() as archive:
        archive.custody(CUSTODIAN).hold("claim", session_id="case-1", result_id="r1")
        sqlite_desk.execute("DELETE FROM holds")
        put_in(table)
        with pytest.raises(SealBrokenError):
            archive.custody(CUSTODIAN).shred(session_id="case-1", result_id="r1")
    assert sqlite_desk.execute("SELECT count(*) FROM originals") == [(3,)]


def test_must_fail_control_a_choke_point_that_does_not_count_holds_destroys_what_was_held(
    desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SqlWriter, "custody", lambda self: CustodyRow(0, 3, 0, len(self.holds()), 2))
    monkeypatch.setattr(LoggedActs, "has_holds", lambda *_: True)
    with desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        custody.hold("claim", session_id="case-1", result_id="r1")
        desk.execute("DELETE FROM holds")
        custody.shred(session_id="case-1", result_id="r1")
        assert desk.execute("SELECT count(*) FROM originals") == [(2,)]


def test_a_hold_on_what_is_gone_is_refused(desk: Desk, owner: Principal, talk: Conversation):
    """It would say that something is kept, and keep the org from being shredded for nothing."""
    with desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        custody.shred(session_id="case-1")
        for result_id in (None, "r1"):
            with pytest.raises(ShreddedError):
                custody.hold("too late", session_id="case-1", result_id=result_id)
        assert custody.holds() == []


def test_a_shred_that_is_refused_is_in_the_log(desk: Desk, owner: Principal, talk: Conversation):
    clock = FrozenClock()
    with desk.open(clock=clock) as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        hold = custody.hold("claim", session_id="case-1", result_id="r1")
        for what in ({"session_id": "case-1", "result_id": "r1"}, {"session_id": "case-1"}, {}):
            with pytest.raises(HeldError):
                custody.shred(**what)
        custody.release(hold.id)
        custody.retain("case-1", "r2", clock.now_us() + DAY_US)
        with pytest.raises(RetentionError):
            custody.shred(session_id="case-1", result_id="r2")
        entries = archive.audit(principal=CUSTODIAN).entries
        refused = [(one.subject, one.session_id, one.details) for one in entries if one.event == "shred.refused"]
        assert refused == [
            (CUSTODIAN.subject, "case-1", {"why": "held", "result": "r1"}),
            (CUSTODIAN.subject, "case-1", {"why": "held"}),
            (CUSTODIAN.subject, None, {"why": "held"}),
            (CUSTODIAN.subject, "case-1", {"why": "retention", "result": "r2"}),
        ]
        assert "shred.requested" not in {one.event for one in entries}


def test_a_released_hold_names_its_session_in_the_log(desk: Desk, owner: Principal, talk: Conversation):
    with desk.open() as archive:
        archived(archive, owner, "case-1", talk)
        custody = archive.custody(CUSTODIAN)
        for what in ({"session_id": "case-1", "result_id": "r1"}, {"session_id": "case-1"}, {}):
            custody.release(custody.hold("claim", **what).id)
        entries = archive.audit(principal=CUSTODIAN).entries
        held = [entry.session_id for entry in entries if entry.event == "hold.placed"]
        assert held == [entry.session_id for entry in entries if entry.event == "hold.released"]
        assert held == ["case-1", "case-1", None]


def test_what_is_in_keeping_is_counted_anew_where_it_never_was(desk: Desk, owner: Principal, talk: Conversation):
    """A store from before there was a count."""
    with desk.open() as archive:
        session = archived(archive, owner, "case-1", talk)
        never_counted(desk, archive, owner)
        session.archive([("r4", "four")])
        assert desk.execute("SELECT originals FROM custody") == [(4,)]
        archive.custody(CUSTODIAN).shred(session_id="case-1", result_id="r4")
        assert desk.execute("SELECT originals FROM custody") == [(3,)]


# --- one choke point ------------------------------------------------------------------------------------------------

PACKAGE = Path(evidence_archive.__file__).parent
DESTROYERS = ("destroy_originals", "update_scopes", "update_org", "give_up")
"""What of a writer takes something away that an archived result needs, or could."""
ASKED_FIRST = {
    ("disposal.py", "_once"),
    ("disposal.py", "shred_session"),
    ("disposal.py", "shred_org"),
}
HARMLESS = {
    ("disposal.py", "_destroy"),  # called by those only
    ("disposal.py", "_end"),
    ("rekeying.py", "_sweep_org"),  # wraps anew, and unwraps again before it is stored
    ("rekeying.py", "_sweep_scopes"),
}


def callers(name: str) -> set[tuple[str, str]]:
    """Which functions of the package call a method of this name, by file and outermost function."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                for function in node.body:
                    if isinstance(function, ast.FunctionDef) and any(
                        isinstance(call, ast.Call) and getattr(call.func, "attr", None) == name
                        for call in ast.walk(function)
                    ):
                        found.add((path.name, function.name))
    return found


def test_every_path_that_destroys_asks_the_one_choke_point_in_its_own_transaction():
    destroying = set().union(*(callers(name) for name in DESTROYERS))
    assert destroying <= ASKED_FIRST | HARMLESS
    assert callers("_destroy") | callers("_end") <= ASKED_FIRST
    assert callers("_allowed") == ASKED_FIRST


def test_the_store_deletes_nothing_else():
    """Every DELETE there is: envelopes (asked first), and rows of intents (never of a batch)."""
    trees = [ast.parse(path.read_text("utf-8")) for path in (PACKAGE / "store").glob("*.py")]
    deletes = [
        ast.unparse(call.args[0])
        for tree in trees
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "delete"
    ]
    assert sorted(deletes) == ["t.OBJECTS", "t.ORIGINALS"]
