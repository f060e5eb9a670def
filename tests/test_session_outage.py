"""When the store is away or was changed: originals stay in view, nothing is lost, nothing is claimed."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import AWAY, UNAUDITED, UNWRITABLE, Characters, batch_of, opened, policy_of

from evidence_archive import (
    BatchRejectedError,
    KeyNotFoundError,
    NotAvailableError,
    Principal,
    SealBrokenError,
    StoreBusyError,
    StoreUnavailableError,
)
from evidence_archive.ledger.entries import Outcome
from evidence_archive.ledger.rules import Finding
from evidence_archive.objects.directory import DirectoryObjects
from evidence_archive.records import Records
from evidence_archive.store.sqlite import journal_rules
from evidence_archive.testing import FrozenClock
from evidence_archive.vault import Vault

LONG = "2026-11-30 worker 7: nothing to report\n" * 40
LIMITS = {"view_wait_ms_max": 20, "store_wait_ms_max": 20, "store_failures_max": 3, "suspension_seconds": 60}
readers_wait = pytest.mark.skipif(
    journal_rules(sqlite3.sqlite_version_info)[0] == "wal", reason="in WAL mode a writer does not block readers"
)


@pytest.fixture
def clock():
    return FrozenClock()


@pytest.fixture
def archive(desk, clock):
    with opened(desk, policy=policy_of(**LIMITS), clock=clock) as archive:
        yield archive


@pytest.fixture
def session(archive, owner):
    return archive.session("case", owner)


@pytest.fixture
def tag(session):
    return session._records.row.tag


def half_archived(session, talk):
    """Two long results and a short one; the first is archived, the view shows its note."""
    for content in (LONG, LONG + "!", "short"):
        talk.tool(content)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "all quiet")])
    return session.view(talk.messages)


def reason_of(session, *pairs):
    with pytest.raises(BatchRejectedError) as refused:
        session.archive(pairs)
    return refused.value.reason


# --- a store that cannot be read --------------------------------------------------------------------------------


@readers_wait
def test_a_locked_database_shows_originals_and_keeps_known_labels(desk, session, talk, tag):
    normal = half_archived(session, talk)
    with desk.locked():
        view = session.view(talk.messages)
        assert view[2]["content"] == f"[evidence r1 tag={tag}]\n{LONG}"
        assert view[4]["content"] == f"[evidence r2 tag={tag}]\n{LONG}!"
        assert view[6] is talk.messages[6]
        assert session.stats().outage
        assert reason_of(session, ("r2", "n")) == "store_unavailable"
    assert session.view(talk.messages) == normal
    assert not session.stats().outage
    assert session.archive([("r2", "n")]).result_ids == ("r2",)
    assert session.restore("r1").content == LONG


def test_a_lock_that_is_not_held_changes_nothing(desk, session, talk):
    normal = half_archived(session, talk)
    with desk.locked():
        pass
    assert session.view(talk.messages) == normal


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("gone"),
        StoreBusyError("locked"),
        KeyNotFoundError("no key"),
        SealBrokenError("a row was changed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_keeps_state_from_being_read_the_originals_are_shown(archive, session, talk, tag, error):
    half_archived(session, talk)
    archive.flaky.fault, archive.flaky.error = AWAY, error
    view = session.view(talk.messages)
    assert [message["content"] for message in view[2:7:2]] == [
        f"[evidence r1 tag={tag}]\n{LONG}",
        f"[evidence r2 tag={tag}]\n{LONG}!",
        "short",
    ]
    assert session.view(view) == view


def test_a_note_whose_original_is_not_at_hand_stays(archive, session, talk):
    stored = half_archived(session, talk)
    session.view(stored)  # an application that keeps what it was shown
    archive.flaky.fault = AWAY
    assert session.view(stored) == stored


def test_known_labels_stay_where_the_application_dropped_old_messages(archive, session, talk, tag):
    half_archived(session, talk)
    archive.flaky.fault = AWAY
    shorter = [talk.messages[0], *talk.messages[3:]]
    assert session.view(shorter)[2]["content"] == f"[evidence r2 tag={tag}]\n{LONG}!"


def test_a_session_that_starts_in_an_outage_shows_the_messages_as_they_are(desk, archive, session, owner, talk):
    half_archived(session, talk)
    with opened(desk, policy=policy_of(**LIMITS)) as other:
        fresh = other.session("case", owner)
        other.flaky.fault = AWAY
        view = fresh.view(talk.messages)
        assert all(shown is own for shown, own in zip(view, talk.messages, strict=True))
        other.flaky.fault = None
        assert fresh.view(talk.messages) == session.view(talk.messages)


@pytest.mark.parametrize("fault", [AWAY, UNWRITABLE])
def test_a_result_first_shown_bare_stays_bare_in_any_process(desk, archive, session, owner, talk, fault):
    half_archived(session, talk)
    archive.flaky.fault = fault
    late = talk.tool(LONG + "late")
    talk.say()
    assert session.view(talk.messages)[-2] is late
    archive.flaky.fault = None
    assert session.view(talk.messages)[-2] is late
    assert session.results()[-1].id == "r4"
    with opened(desk, policy=policy_of(**LIMITS)) as other:
        assert other.session("case", owner).view(talk.messages)[-2] is late
    newer = talk.tool(LONG + "newer")
    assert session.view(talk.messages)[-1] is not newer  # the control: it is labelled
    talk.say()
    session.view(talk.messages)
    session.archive([("r4", "what it said")])
    assert session.view(talk.messages)[9]["content"].startswith("[archived r4 ")
    assert session.restore("r4").content == LONG + "late"


def test_when_only_writing_fails_notes_stand_byte_for_byte_and_only_what_is_new_goes_without_a_label(
    archive, session, talk
):
    half_archived(session, talk)
    before = session.view(talk.messages)
    talk.tool(LONG + "late")
    archive.flaky.fault = UNWRITABLE
    view = session.view(talk.messages)
    assert view[: len(before)] == before
    assert view[-1] == talk.messages[-1]
    assert not session.stats().outage
    archive.flaky.fault = None
    talk.say()
    assert session.view(talk.messages)[: len(view)] == view


def test_an_agent_goes_on_through_an_outage_of_a_whole_run_and_loses_nothing(desk, archive, session, talk):
    """C3: offloads that fail run after run must cost tokens, never history."""
    archive.flaky.fault = AWAY
    for number in range(20):
        talk.tool(f"{number} {LONG}")
        view = session.view(talk.messages)
        assert view == talk.messages
        answer = talk.ours(session, "archive_evidence", batch_of((f"r{number + 1}", "n")))["content"]
        assert answer.startswith("NOTHING was archived")
    assert desk.rows("originals") == []
    archive.flaky.fault = None
    assert session.view(talk.messages) == talk.messages
    assert len(session.results()) == 20


# --- suspended for a while --------------------------------------------------------------------------------------


def test_failures_in_a_row_suspend_archiving_until_a_cool_down_has_passed(archive, session, talk, clock):
    normal = half_archived(session, talk)
    archive.flaky.fault = UNWRITABLE
    for _ in range(3):
        assert reason_of(session, ("r2", "n")) == "store_unavailable"
    assert session.stats().suspended == "store"
    archive.flaky.fault = None
    assert reason_of(session, ("r2", "n")) == "suspended"
    assert session.view(talk.messages) == normal  # suspension alone changes no view
    answer = talk.ours(session, "archive_evidence", batch_of(("r2", "n")))["content"]
    assert answer.startswith("NOTHING was archived: archiving is suspended in this session")
    assert session.restore("r1").content == LONG
    clock.advance(59.9)
    assert reason_of(session, ("r2", "n")) == "suspended"
    clock.advance(0.2)
    assert session.archive([("r2", "n")]).result_ids == ("r2",)
    assert session.stats().suspended is None


def test_a_success_between_failures_starts_the_count_anew(archive, session, talk):
    half_archived(session, talk)
    for _ in range(3):
        archive.flaky.fault = UNWRITABLE
        for _ in range(2):
            assert reason_of(session, ("r2", "n")) == "store_unavailable"
        archive.flaky.fault = None
        session.view(talk.messages)
    assert session.archive([("r2", "n")]).result_ids == ("r2",)


def test_a_store_that_fails_again_after_the_cool_down_suspends_again(archive, session, talk, clock):
    half_archived(session, talk)
    archive.flaky.fault = UNWRITABLE
    for _ in range(2):
        for _ in range(3):
            reason_of(session, ("r2", "n"))
        assert session.stats().suspended == "store"
        clock.advance(61)
        assert session.stats().suspended is None


def test_a_suspension_is_logged(archive, session, talk, caplog):
    half_archived(session, talk)
    archive.flaky.fault = UNWRITABLE
    for _ in range(3):
        reason_of(session, ("r2", "n"))
    assert [record.why for record in caplog.records if record.getMessage() == "evidence_archive.suspended"] == [
        "store"
    ]
    assert "worker 7" not in caplog.text


def test_every_event_can_be_written_to_the_standard_log(desk, archive, session, owner, talk, caplog):
    caplog.set_level("DEBUG")
    talk.messages.append({"role": "tool", "tool_call_id": "nobody", "content": LONG})
    half_archived(session, talk)
    reason_of(session, ("r9", "n"))
    session.restore("r1")
    with pytest.raises(NotAvailableError):
        archive.restore("case", "r9", principal=owner)
    session.answer(talk.call("restore_evidence", "{"))
    archive.flaky.fault = AWAY
    for _ in range(3):
        session.view(talk.messages)
        session.answer(talk.call("restore_evidence", "{"))
    archive.flaky.fault = None
    desk.execute("UPDATE originals SET envelope = ?", bytes(900))
    with pytest.raises(SealBrokenError):
        session.restore("r1")
    events = {record.getMessage().removeprefix("evidence_archive.") for record in caplog.records}
    assert events >= {
        "passed_through",
        "archived",
        "rejected",
        "restored",
        "denied",
        "trouble",
        "not_recorded",
        "suspended",
    }
    assert "worker 7" not in caplog.text + repr([vars(record) for record in caplog.records])


# --- suspended for good -----------------------------------------------------------------------------------------


def test_a_suspension_for_integrity_is_durable_and_never_cools_down(desk, archive, session, owner, talk, clock):
    normal = half_archived(session, talk)
    desk.execute("UPDATE originals SET envelope = ?", bytes(900))
    with pytest.raises(SealBrokenError):
        session.restore("r1")
    clock.advance(1_000_000)
    assert reason_of(session, ("r2", "n")) == "suspended"
    with opened(desk, policy=policy_of(**LIMITS), clock=FrozenClock()) as other:
        elsewhere = other.session("case", owner)
        assert elsewhere.view(talk.messages) == normal  # suspension alone changes no view
        assert reason_of(elsewhere, ("r2", "n")) == "suspended"
        fine = other.session("another case", owner)
        fine.view(talk.messages)
        assert fine.archive([("r2", "n")]).result_ids == ("r2",)  # other sessions go on
    archive.resume("case", principal=owner)
    assert session.archive([("r2", "n")]).result_ids == ("r2",)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM audit_leaves WHERE seq = (SELECT max(seq) FROM audit_leaves)",
        "UPDATE audit_leaves SET leaf = x'00' WHERE seq = (SELECT max(seq) FROM audit_leaves)",
        "UPDATE audit_heads SET size = size - 1",
        "DELETE FROM audit_heads",
    ],
)
def test_a_broken_audit_log_suspends_archiving_and_releases_nothing(desk, session, owner, talk, damage):
    normal = half_archived(session, talk)
    desk.execute(damage)
    assert reason_of(session, ("r2", "n")) == "suspended"
    assert session.stats().suspended == "integrity"
    answer = session.answer(talk.call("restore_evidence", '{"id": "r1"}'))["content"]
    assert answer.startswith(
        ("r1 was NOT restored: the audit log does not verify", "r1 was NOT restored: the stored bytes do not verify")
    )
    assert "worker 7" not in answer
    assert session.view(talk.messages)[: len(normal)] == normal
    row = desk.rows("sessions")[0]
    assert "integrity" in row  # written although it could not be audited


def test_a_suspension_that_could_not_be_written_counts_here_and_is_written_later(desk, archive, session, owner, talk):
    half_archived(session, talk)
    archive.flaky.fault, archive.flaky.error = UNWRITABLE, SealBrokenError("read back other bytes")
    assert reason_of(session, ("r2", "n")) == "suspended"
    archive.flaky.error = StoreUnavailableError("away")
    session.view(talk.messages)
    assert session.stats().suspended == "integrity"
    assert "integrity" not in desk.rows("sessions")[0]
    archive.flaky.fault = None
    session.view(talk.messages)
    assert "integrity" in desk.rows("sessions")[0]
    assert reason_of(session, ("r2", "n")) == "suspended"
    archive.resume("case", principal=owner)
    assert session.archive([("r2", "n")]).result_ids == ("r2",)


def test_damage_that_a_program_s_restore_meets_suspends_even_when_nothing_can_be_written(
    desk, archive, session, talk
):
    half_archived(session, talk)
    desk.execute("UPDATE originals SET envelope = ?", bytes(900))
    archive.flaky.fault = UNWRITABLE
    with pytest.raises(SealBrokenError):
        session.restore("r1")
    assert session.stats().suspended == "integrity"
    archive.flaky.fault = None
    assert reason_of(session, ("r2", "n")) == "suspended"
    assert "integrity" in desk.rows("sessions")[0]


def test_an_audit_entry_that_fails_for_want_of_the_store_is_no_integrity_trouble(archive, session, talk):
    half_archived(session, talk)
    archive.flaky.fault = UNAUDITED
    assert reason_of(session, ("r2", "n")) == "store_unavailable"
    assert session.stats().suspended is None


def test_a_session_whose_row_was_removed_shows_originals_and_archives_nothing(desk, session, talk, tag):
    half_archived(session, talk)
    desk.execute("DELETE FROM sessions")
    assert session.view(talk.messages)[2]["content"] == f"[evidence r1 tag={tag}]\n{LONG}"
    assert reason_of(session, ("r2", "n")) == "suspended"


# --- how long a view waits --------------------------------------------------------------------------------------


@contextmanager
def noting_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How long each lock may be waited for meanwhile, in milliseconds."""
    waits: list[int] = []
    transact = Vault.transact

    def noted(self: Vault, body: Any, *, audited: bool = True, wait_ms: int | None = None) -> Any:
        waits.append(self.store_wait_ms if wait_ms is None else wait_ms)
        return transact(self, body, audited=audited, wait_ms=wait_ms)

    with monkeypatch.context() as patch:
        patch.setattr(Vault, "transact", noted)
        yield waits


def waits_of_a_view(desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each lock may be waited for, in milliseconds, while a view archives, posts, and lets turns leave."""
    text = "[window]\nwindow_tokens_max = 4000\narchive_tokens_min = 50\n"
    policy = policy_of(text, view_wait_ms_max=300, store_wait_ms_max=9_000)

    def rule(call: Any, result: Any) -> Finding:
        return Finding(f"{call.id} is done", Outcome("a rule", "it looked"), f"out/{call.id}", b"a product")

    objects = DirectoryObjects(desk.folder / "objects", create=True)
    with desk.open(policy=policy, counter=Characters(), objects=objects, inline_size_max=100) as archive:
        session, talk = archive.session("case", owner, rules=[rule]), Conversation()
        for at in range(12):
            talk.tool(f"page {at}: " + "nothing is the matter\n" * 60)
            talk.say(f"Turn {at}: I have read it. " * 40)
        with noting_waits(monkeypatch) as waits:
            session.view(talk.messages)
        assert {"span", "artifact"} <= {row.own for row in session._records.rows.values()}
        assert session.stats().batches > 1
    return waits


def test_no_commit_of_a_view_waits_longer_than_a_view_may(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    waits = waits_of_a_view(sqlite_desk, owner, monkeypatch)
    assert len(waits) > 10
    assert max(waits) <= 300


def test_must_fail_control_a_view_that_does_not_say_it_is_one_waits_as_long_as_a_write(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Records, "viewing", lambda self: nullcontext())
    assert max(waits_of_a_view(sqlite_desk, owner, monkeypatch)) == 9_000


def test_what_is_left_of_a_views_time_is_waited_for_and_a_moment_where_the_store_answers(
    sqlite_desk: Desk, owner: Principal
):
    clock = FrozenClock()
    with sqlite_desk.open(policy=policy_of(view_wait_ms_max=700, store_wait_ms_max=9_000), clock=clock) as archive:
        records = archive.session("case", owner)._records
        assert records.wait_ms == 9_000
        with records.viewing():
            assert records.wait_ms == 700
            clock.advance(0.25)
            assert records.wait_ms == 450
            clock.advance(60)
            assert records.wait_ms == 100
            records.failures = 1
            assert records.wait_ms == 1
        assert records.wait_ms == 9_000


def test_a_suspension_that_is_not_written_yet_is_tried_within_the_time_of_a_view(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    clock, waits = FrozenClock(), []

    def busy(self: Vault, body: Any, *, audited: bool = True, wait_ms: int | None = None) -> None:
        wait_ms = self.store_wait_ms if wait_ms is None else wait_ms
        waits.append(wait_ms)
        clock.advance(wait_ms / 1_000)
        raise StoreBusyError("Locked: try again.")

    with sqlite_desk.open(policy=policy_of(view_wait_ms_max=700, store_wait_ms_max=9_000), clock=clock) as archive:
        session = archive.session("case", owner)
        monkeypatch.setattr(Vault, "transact", busy)
        session._records.suspend("integrity")
        assert waits == [700, 700]
        talk.tool(LONG)
        session.view(talk.messages)
        assert waits[2:] == [700, 100, 100]


def test_a_rule_whose_product_meets_a_changed_original_keeps_a_view_no_longer_than_it_may_wait(
    desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    def rule(call: Any, result: Any) -> Finding:
        return Finding(f"{call.id} is done", Outcome("a rule", "it looked"), "out", b"a product")

    with desk.open(policy=policy_of(view_wait_ms_max=700, store_wait_ms_max=9_000)) as archive:
        session = archive.session("case", owner, rules=[rule])
        talk.tool("one")
        session.view(talk.messages)
        desk.execute("UPDATE originals SET envelope = x'00'")
        talk.tool("two")
        with noting_waits(monkeypatch) as waits:
            session.view(talk.messages)
        assert session.stats().suspended == "integrity"
    assert len(waits) > 1
    assert max(waits) <= 700
