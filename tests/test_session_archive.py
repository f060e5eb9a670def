"""Archiving: a batch is decided as a whole, committed as a whole, and acknowledged only then."""

import json
import re
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from doubles import (
    UNCOMMITTED,
    UNWRITABLE,
    Characters,
    batch_of,
    opened,
    policy_of,
)
from hostile import hostile_text
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence_archive import BatchRejectedError, FormatError, NotAvailableError, Policy, Principal
from evidence_archive.archiving import COMMIT_TRIES_MAX
from evidence_archive.errors import StoreBusyError
from evidence_archive.testing import FrozenClock

LONG = "2026-11-30 worker 7: nothing to report\n" * 40
CLINICAL = Path(__file__).resolve().parents[1] / "policies" / "clinical.toml"
RULES = """
[[archive]]
id = "basis"
tools = ["drug_label.*"]
effect = "never"
reason = "it stays in the record"

[[live]]
tools = ["inventory.*"]
ask = "inventory.lookup"

[[live]]
tools = ["price.*"]

[[retention]]
tools = ["logs.*"]
days = 90

[[restore]]
sensitivity = ["clinical"]
roles = ["veterinarian"]
"""


@pytest.fixture
def clock():
    return FrozenClock()


@pytest.fixture
def archive(desk, clock):
    policy = policy_of(RULES, batch_items_max=5, original_bytes_max=4_096)
    with opened(desk, policy=policy, clock=clock) as archive:
        yield archive


@pytest.fixture
def session(archive, owner):
    return archive.session("case", owner)


def state(desk) -> Any:
    """Everything stored besides the audit log."""
    return {table: desk.rows(table) for table in ("originals", "results", "batches", "sessions")}


def statuses(session, *pairs):
    """Each target's status in a batch that is refused."""
    with pytest.raises(BatchRejectedError) as refused:
        session.archive(pairs)
    assert refused.value.reason == "targets"
    assert [target.result_id for target in refused.value.targets] == [result_id for result_id, _ in pairs]
    assert all(target.reason for target in refused.value.targets if target.status != "ok")
    return [target.status for target in refused.value.targets]


def read(session, talk, *contents, name="logs.search"):
    """Results that the model has seen and answered."""
    for content in contents:
        talk.tool(content, name)
    talk.say()
    session.view(talk.messages)


# --- every status -----------------------------------------------------------------------------------------------


def test_an_id_that_was_never_issued_here_is_unknown(archive, session, owner, talk):
    read(session, talk, LONG)
    other = archive.session("another case", owner)
    assert statuses(other, ("r1", "note")) == ["unknown"]
    assert statuses(session, ("r2", "note"), ("r999999999999999999", "note")) == ["unknown", "unknown"]


def test_every_place_that_names_a_result_twice_is_a_duplicate(session, talk):
    read(session, talk, LONG, LONG + "!")
    assert statuses(session, ("r1", "a"), ("r2", "b"), ("r1", "c")) == ["duplicate", "ok", "duplicate"]


def test_what_the_policy_forbids_is_protected_and_the_rule_is_named(session, talk):
    read(session, talk, LONG, name="drug_label.read")
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "note")])
    (target,) = refused.value.targets
    assert (target.status, "basis" in target.reason) == ("protected", True)
    assert "it stays in the record" in target.reason


def test_an_archived_result_is_already_archived_and_told_how_to_restore(session, talk):
    read(session, talk, LONG)
    session.archive([("r1", "note")])
    with pytest.raises(BatchRejectedError, match="NOTHING") as refused:
        session.archive([("r1", "another")])
    (target,) = refused.value.targets
    assert target.status == "already_archived"
    assert "restore r1" in target.reason


@pytest.mark.parametrize(
    "note", ["", " \t\r\n", "\u200b\u2060\ufeff", "\u3164\u2800", "\x00\x1b", "\ud800", "\u0301"]
)
def test_a_note_with_nothing_to_see_is_blank(session, talk, note):
    read(session, talk, LONG)
    assert statuses(session, ("r1", note)) == ["blank_note"]


def test_a_note_has_at_most_2000_characters(session, talk):
    read(session, talk, "x" * 4_000)
    assert statuses(session, ("r1", "n" * 2_001)) == ["note_too_long"]
    assert session.archive([("r1", "n" * 2_000)]).result_ids == ("r1",)


def test_a_note_that_with_its_header_is_not_smaller_is_refused(session, talk):
    read(session, talk, "ok", LONG)
    assert statuses(session, ("r1", "o"), ("r2", "n")) == ["not_smaller", "ok"]
    assert statuses(session, ("r2", "n" * 1_500)) == ["not_smaller"]


def test_an_orphan_is_not_eligible(session, talk):
    read(session, talk, LONG)
    session.view([talk.messages[0], *talk.messages[2:]])  # the application dropped the call
    assert statuses(session, ("r1", "note")) == ["not_eligible"]


def test_a_result_that_left_the_conversation_is_not_eligible(session, talk):
    read(session, talk, LONG)
    session.view([talk.messages[0], talk.messages[3]])
    assert statuses(session, ("r1", "note")) == ["not_eligible"]


def test_an_original_over_the_limit_is_not_eligible(session, talk):
    read(session, talk, "x" * 4_097, "x" * 4_096)
    assert statuses(session, ("r1", "n"), ("r2", "n")) == ["not_eligible", "ok"]


def test_a_result_of_a_tool_whose_name_cannot_be_kept_is_not_eligible(session, talk):
    read(session, talk, LONG, name="t" * 5_000)
    assert statuses(session, ("r1", "n")) == ["not_eligible"]


def test_receipts_rejections_and_errors_are_not_eligible_in_any_process(desk, session, owner, talk):
    read(session, talk, LONG)
    talk.ours(session, "archive_evidence", batch_of(("r1", "all quiet")))
    talk.ours(session, "archive_evidence", batch_of(*((f"r{number}", "x") for number in range(70, 75))))
    talk.ours(session, "archive_evidence", "{" * 900)
    talk.ours(session, "restore_evidence", '{"id": "r77"}')
    talk.say()
    session.view(talk.messages)
    assert [info.id for info in session.results()] == ["r1"]
    ours = [(f"r{number}", "note") for number in range(2, 6)]
    assert statuses(session, *ours) == ["not_eligible"] * 4
    with opened(desk) as other:
        elsewhere = other.session("case", owner)
        elsewhere.view(talk.messages)
        assert statuses(elsewhere, *ours) == ["not_eligible"] * 4


def test_the_first_status_that_applies_is_the_one_that_is_told(session, talk):
    read(session, talk, LONG, "ok")
    read(session, talk, LONG, name="drug_label.read")
    session.archive([("r1", "note")])
    talk.tool(LONG + "?", "drug_label.read")
    session.view(talk.messages)
    assert statuses(session, ("r9", ""), ("r9", "")) == ["unknown"] * 2  # before duplicate
    assert statuses(session, ("r1", "n"), ("r1", "n")) == ["duplicate"] * 2  # before already_archived
    assert statuses(session, ("r1", "")) == ["already_archived"]  # before blank_note
    assert statuses(session, ("r4", "")) == ["unread"]  # before protected
    assert statuses(session, ("r3", "")) == ["protected"]  # before blank_note
    assert statuses(session, ("r2", " " * 3_000)) == ["blank_note"]  # before note_too_long
    assert statuses(session, ("r2", "n" * 3_000)) == ["note_too_long"]  # before not_smaller
    session.view([talk.messages[0], talk.messages[-1]])
    assert statuses(session, ("r4", "")) == ["not_eligible"]  # before unread


# --- unread -----------------------------------------------------------------------------------------------------


def test_a_result_is_unread_until_the_model_has_spoken_after_it(session, talk):
    talk.tool(LONG)
    assert statuses(session, ("r1", "n")) == ["unknown"]
    session.view(talk.messages)
    assert statuses(session, ("r1", "n")) == ["unread"]
    session.view(talk.messages)
    talk.messages.append({"role": "user", "content": "and?"})
    session.view(talk.messages)
    assert statuses(session, ("r1", "n")) == ["unread"]
    talk.say()
    assert statuses(session, ("r1", "n")) == ["unread"]  # it has not reached the session yet
    session.view(talk.messages)
    assert session.archive([("r1", "n")]).result_ids == ("r1",)


@pytest.mark.parametrize("name", ["archive_evidence", "restore_evidence"])
def test_a_result_is_read_once_a_call_of_the_model_has_reached_the_session(session, talk, name):
    talk.tool(LONG)
    session.view(talk.messages)
    session.answer(talk.call(name, "{}"))
    assert session.archive([("r1", "n")]).result_ids == ("r1",)


def test_a_result_of_the_very_turn_that_names_it_is_unread(session, talk):
    """C19: calls made together were all made before any of their results came."""
    first, second = (
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": given}}
        for at, (name, given) in enumerate((("logs.search", "{}"), ("archive_evidence", batch_of(("r1", "n")))))
    )
    talk.messages.append({"role": "assistant", "content": None, "tool_calls": [first, second]})
    talk.messages.append({"role": "tool", "tool_call_id": "c0", "content": LONG})
    session.view(talk.messages)  # an application that looks while a turn is open
    talk.messages.append(session.answer(second))
    assert "r1: unread" in talk.messages[-1]["content"]
    session.view(talk.messages)
    assert "Archived 1 result" in talk.ours(session, "archive_evidence", batch_of(("r1", "n")))["content"]


# --- all or nothing ---------------------------------------------------------------------------------------------


def test_one_bad_target_rejects_the_batch_and_changes_nothing(desk, session, talk):
    read(session, talk, LONG, "ok", LONG + "!")
    view, before = session.view(talk.messages), state(desk)
    assert statuses(session, ("r1", "n"), ("r2", "n"), ("r3", "n"), ("r4", "n")) == [
        "ok",
        "not_smaller",
        "ok",
        "unknown",
    ]
    assert state(desk) == before
    assert session.view(talk.messages) == view


def test_the_comparison_of_stored_rows_catches_half_a_batch(desk, session, talk):
    read(session, talk, LONG, LONG + "!")
    before = state(desk)
    session.archive([("r1", "half of it")])
    assert state(desk) != before


@pytest.mark.parametrize(
    "fault",
    [
        UNWRITABLE,
        "session",
        "insert_originals",
        "update_results",
        "insert_batch",
        "update_session",
        "append",
        UNCOMMITTED,
    ],
)
@pytest.mark.parametrize("by_call", [True, False])
def test_a_fault_anywhere_in_the_commit_archives_nothing(desk, archive, session, owner, talk, fault, by_call):
    read(session, talk, LONG, LONG + "!")
    view, before = session.view(talk.messages), state(desk)
    if fault == "session":  # the look under the lock, which is the second one
        archive.flaky.plan.error("store.session", nth=2, times=1)
    else:
        archive.flaky.fault = fault
    if by_call:
        answer = session.answer(talk.call("archive_evidence", batch_of(("r1", "n"), ("r2", "n"))))
        assert answer["content"].startswith("NOTHING was archived: the store cannot be reached")
    else:
        with pytest.raises(BatchRejectedError, match="Nothing was archived") as refused:
            session.archive([("r1", "n"), ("r2", "n")])
        assert refused.value.reason == "store_unavailable"
    after = state(desk)
    assert (after["originals"], after["batches"]) == (before["originals"], before["batches"]) == ([], [])
    assert set(after["results"]) >= set(before["results"])  # an answer of ours may have been recorded
    assert by_call or after == before
    archive.flaky.fault = None
    assert session.view(talk.messages[:6])[:6] == view[:6]
    with opened(desk) as other:
        assert other.session("case", owner).view(talk.messages[:6]) == view[:6]
    assert archive.audit(principal=owner).intact
    assert session.archive([("r1", "n"), ("r2", "n")]).result_ids == ("r1", "r2")
    assert session.restore("r2").content == LONG + "!"


@pytest.mark.parametrize("by_call", [True, False])
def test_a_commit_that_took_place_but_was_reported_as_failed_is_acknowledged(archive, session, talk, by_call):
    read(session, talk, LONG)
    archive.flaky.plan.error("store.commit.after", times=1)
    if by_call:
        assert "r1" in session.answer(talk.call("archive_evidence", batch_of(("r1", "n"))))["content"]
    else:
        assert session.archive([("r1", "n")]).result_ids == ("r1",)
    assert session.view(talk.messages[:4])[2]["content"].startswith("[archived r1")
    assert session.restore("r1").content == LONG


def settled(plan, since):
    """Whether something was written and committed after so many passings."""
    later = [passing.point for passing in plan.passings[since:]]
    written = later.index("store.update_session.after") if "store.update_session.after" in later else len(later)
    return "store.commit.after" in later[written:]


def test_a_receipt_after_a_failed_commit_waits_for_a_commit_behind_it(archive, session, talk):
    # The last sync of the first one may be what failed: it can be seen, and still go with the power.
    read(session, talk, LONG)
    failed = []
    plan = archive.flaky.plan
    plan.run("store.commit.after", lambda: failed.append(len(plan.passings)))
    plan.error("store.commit.after", times=1)
    assert session.archive([("r1", "n")], idempotency_key="k").result_ids == ("r1",)
    assert settled(plan, failed[0])


@pytest.mark.parametrize("point", ["store.update_session.before", "store.commit.before", "store.commit.after"])
def test_a_batch_that_is_there_but_cannot_be_made_sure_of_is_neither_acknowledged_nor_denied(
    archive, session, talk, point
):
    read(session, talk, LONG)
    archive.flaky.plan.run(
        "store.commit.after", lambda: archive.flaky.plan.error(point, times=2 if point == "store.commit.after" else 1)
    )
    archive.flaky.plan.error("store.commit.after", times=1)
    with pytest.raises(BatchRejectedError, match="not known") as refused:
        session.archive([("r1", "n")], idempotency_key="k")
    assert refused.value.reason == "unknown"
    archive.flaky.plan.clear()
    assert session.archive([("r1", "n")], idempotency_key="k").replayed


def test_what_was_rolled_back_for_sure_is_never_unknown_even_where_nobody_can_look(archive, session, talk):
    read(session, talk, LONG)
    plan = archive.flaky.plan
    plan.run("store.commit.before", lambda: plan.error("store.writing.begin"))
    plan.error("store.commit.before", StoreBusyError("Locked: try again."), times=1)
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "n")])
    assert refused.value.reason == "store_unavailable"


def test_a_receipt_is_given_once_more_only_after_a_commit_behind_its_batch(archive, desk, owner, session, talk):
    # Who committed the batch may have been killed before its last sync.
    read(session, talk, LONG)
    session.archive([("r1", "n")], idempotency_key="k")
    with opened(desk) as other:
        again, plan = other.session("case", owner), other.flaky.plan
        since = len(plan.passings)
        assert again.archive([("r1", "n")], idempotency_key="k").replayed
        assert settled(plan, since)
        plan.error("store.writing.begin")
        with pytest.raises(BatchRejectedError) as refused:
            again.archive([("r1", "n")], idempotency_key="k")
        assert refused.value.reason == "unknown"


@pytest.mark.parametrize(
    ("batch", "reason"),
    [([], "empty"), ([(f"r{n}", "n") for n in range(1, 7)], "too_many"), (repeat(("r1", "n")), "too_many")],
)
def test_an_empty_and_an_endless_batch_are_refused_as_a_whole(session, batch, reason):
    with pytest.raises(BatchRejectedError) as refused:
        session.archive(batch)
    assert (refused.value.reason, refused.value.targets) == (reason, ())


@pytest.mark.parametrize(
    "pair", [("r1",), ("R1", "n"), ("r01", "n"), (1, "n"), ("r1", None), ("r1", b"n"), "r1", ("r1\n", "n"), None]
)
def test_a_pair_in_another_form_is_refused(session, talk, pair):
    read(session, talk, LONG)
    with pytest.raises(FormatError):
        session.archive([pair])


def test_a_rejection_tells_every_status_the_last_id_and_what_could_be_archived(session, talk):
    read(session, talk, LONG, LONG + "!", "ok")
    read(session, talk, LONG, name="drug_label.read")
    text = talk.ours(session, "archive_evidence", batch_of(("r1", "n"), ("r4", "n"), ("r8", "n")))["content"]
    lines = text.split("\n")
    assert lines[0] == ("NOTHING was archived: 2 of 3 targets cannot be archived, and a batch is all or nothing.")
    assert lines[1] == "- r1: ok: would have been archived"
    assert lines[2].startswith("- r4: protected: Rule basis keeps it in view")
    assert lines[3].startswith("- r8: unknown: ")
    assert lines[4] == "The last result ID issued in this conversation is r4."
    tokens = Characters().count(LONG)
    assert lines[5] == (
        f"Newest results that can be archived: r2 (logs.search, {tokens + 1} tokens), "
        f"r1 (logs.search, {tokens} tokens)."
    )


def test_accepted_and_rejected_batches_are_in_the_audit_log_without_their_words(archive, session, owner, talk):
    read(session, talk, LONG)
    statuses(session, ("r1", "words of the note"), ("r5", "x"))
    session.archive([("r1", "words of the note")])
    entries = archive.audit(principal=owner).entries
    assert [entry.event for entry in entries][-2:] == ["batch.rejected", "batch.accepted"]
    assert "words of" not in repr([entry.details for entry in entries])


# --- receipts and replays ---------------------------------------------------------------------------------------


def test_a_receipt_names_every_result_and_the_tokens_saved_net_of_call_and_receipt(session, talk):
    read(session, talk, LONG, LONG + "!" * 400)
    given = batch_of(("r2", "second"), ("r1", "first"))
    text = talk.ours(session, "archive_evidence", given)["content"]
    count = Characters().count
    before = count(LONG) + count(LONG + "!" * 400)
    view = session.view(talk.messages)
    after = count(view[2]["content"]) + count(view[4]["content"])
    assert re.findall(r"^- (r\d+): (\d+) tokens$", text, re.M) == [
        ("r2", str(count(LONG + "!" * 400))),
        ("r1", str(count(LONG))),
    ]
    saved, net = map(int, re.search(r"later request: (-?\d+) tokens\. Net .*: (-?\d+) tokens", text).groups())
    assert saved == before - after
    assert abs(net - (saved - count(given) - count(text))) <= 1
    assert text.endswith("The task goes on: continue with its next step.")
    assert session.stats().tokens_saved == saved


def test_the_same_batch_under_the_same_call_is_answered_with_its_receipt_in_any_process(desk, session, owner, talk):
    read(session, talk, LONG)
    call = talk.call("archive_evidence", batch_of(("r1", "n")))
    first = session.answer(call)["content"]
    after = state(desk)
    with opened(desk) as other:
        again = [session.answer(call)["content"], other.session("case", owner).answer(call)["content"]]
    assert again[0] == again[1]
    assert "accepted before" in again[0]
    assert [line for line in first.split("\n") if line[0] == "-"] == [
        line for line in again[0].split("\n") if line[0] == "-"
    ]
    assert state(desk)["originals"] == after["originals"]
    assert state(desk)["batches"] == after["batches"]


def test_another_batch_under_the_same_call_id_is_a_new_batch(session, talk):
    read(session, talk, LONG, LONG + "!")
    for result_id in ("r1", "r2"):
        text = talk.ours(session, "archive_evidence", batch_of((result_id, "n")), call_id="call_0")["content"]
        assert text.startswith("Archived 1 result")
    assert session.stats().batches == 2


def test_a_rejection_is_never_replayed(session, talk):
    talk.tool("ok")
    talk.say()
    session.view(talk.messages)
    call = talk.call("archive_evidence", batch_of(("r2", "n")))
    assert session.answer(call)["content"].startswith("NOTHING")
    talk.messages.pop()
    talk.tool(LONG)  # takes r3: the rejection has r2
    talk.say()
    session.view(talk.messages)
    call["function"]["arguments"] = batch_of(("r3", "n"))
    assert session.answer(call)["content"].startswith("Archived 1 result")


def stored_besides_sessions(desk):
    """All that a receipt given once more leaves alone; the session's row is written, to make sure of its batch."""
    return {name: rows for name, rows in state(desk).items() if name != "sessions"}


def test_an_idempotency_key_returns_the_receipt_of_its_batch_in_any_process(desk, session, owner, talk):
    read(session, talk, LONG, LONG + "!")
    first = session.archive([("r1", "n")], idempotency_key="k")
    after = stored_besides_sessions(desk)
    second = session.archive([("r1", "n")], idempotency_key="k")
    with opened(desk) as other:
        third = other.session("case", owner).archive([("r1", "n")], idempotency_key="k")
    assert (first.replayed, second.replayed, third.replayed) == (False, True, True)
    assert first.batch_id == second.batch_id == third.batch_id
    assert second.targets == first.targets
    assert stored_besides_sessions(desk) == after
    with pytest.raises(FormatError, match="another batch"):
        session.archive([("r2", "n")], idempotency_key="k")
    with pytest.raises(FormatError, match="another batch"):
        session.archive([("r1", "other words")], idempotency_key="k")
    assert stored_besides_sessions(desk) == after


def test_without_a_key_a_program_s_batch_is_never_taken_for_an_earlier_one(session, talk):
    read(session, talk, LONG)
    session.archive([("r1", "n")])
    assert statuses(session, ("r1", "n")) == ["already_archived"]


def test_two_processes_that_race_with_one_key_get_one_receipt(desk, archive, session, owner, talk):
    read(session, talk, LONG)
    with opened(desk) as other:
        rival = other.session("case", owner)
        rival.view(talk.messages)
        archive.flaky.before_write = lambda: won.append(rival.archive([("r1", "n")], idempotency_key="k"))
        won: list[Any] = []
        receipt = session.archive([("r1", "n")], idempotency_key="k")
    assert (receipt.replayed, receipt.batch_id) == (True, won[0].batch_id)
    assert len(desk.rows("originals")) == 1


def test_two_processes_that_race_for_a_result_archive_it_once(desk, archive, session, owner, talk):
    read(session, talk, LONG)
    with opened(desk) as other:
        rival = other.session("case", owner)
        rival.view(talk.messages)
        archive.flaky.before_write = lambda: rival.archive([("r1", "the rival's")])
        assert statuses(session, ("r1", "mine")) == ["already_archived"]
    assert session.view(talk.messages)[2]["content"].endswith("> the rival's")


def test_a_session_that_never_rests_is_given_up_after_some_tries(desk, archive, session, owner, talk):
    read(session, talk, LONG)
    with opened(desk) as other:
        rival = other.session("case", owner)

        def disturb():
            rival.label("r1", sensitivity=f"s{next(labels)}")
            archive.flaky.before_write = disturb

        labels = iter(range(100))
        archive.flaky.before_write = disturb
        with pytest.raises(BatchRejectedError) as refused:
            session.archive([("r1", "n")])
        assert refused.value.reason == "store_unavailable"
        assert next(labels) <= COMMIT_TRIES_MAX + 1
        archive.flaky.before_write = None
    assert desk.rows("originals") == []
    assert session.archive([("r1", "n")]).result_ids == ("r1",)


# --- what may not be set aside ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "expected"),
    [(["agent"], "protected"), (["agent", "veterinarian"], "ok"), (["front-desk"], "protected")],
)
def test_what_the_session_could_not_restore_it_may_not_set_aside(desk, talk, roles, expected):
    """D3: under the clinical policy an agent without the role would only have a note left."""
    with opened(desk, policy=Policy.load(CLINICAL)) as archive:
        session = archive.session("case", Principal("north-clinic", "triage-agent", roles))
        session.label(talk.tool(LONG, "lab.report"), sensitivity="clinical")
        for _ in range(3):
            talk.say()
            talk.messages.append({"role": "user", "content": "and?"})
        session.view(talk.messages)
        assert statuses(session, ("r1", "n"), ("r9", "n")) == [expected, "unknown"]
        if expected == "ok":
            session.archive([("r1", "n")])
            assert session.restore("r1").content == LONG


@pytest.mark.parametrize(
    ("called", "named"),
    [("logs.search", "drug_label.read"), ("drug_label.read", "logs.search"), ("drug_label.x", None)],
)
def test_the_stricter_of_two_tool_names_counts(session, talk, called, named):
    message = talk.tool(LONG, called)
    if named is not None:
        message["name"] = named
    talk.say()
    session.view(talk.messages)
    assert statuses(session, ("r1", "n")) == ["protected"]


def test_a_tool_that_both_names_allow_is_archived(session, talk):
    talk.tool(LONG, "logs.search")["name"] = "logs.tail"
    talk.say()
    session.view(talk.messages)
    assert session.archive([("r1", "n")]).result_ids == ("r1",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"a Controlled Drug was dispensed\n{LONG}", "protected"),
        ([{"type": "text", "text": LONG}, {"type": "text", "text": "a controlled drug"}], "protected"),
        ([{"type": "text", "text": LONG}, {"type": "report", "body": "a controlled drug"}], "protected"),
        ([{"type": "text", "text": LONG}, {"type": "report", "body": "vitamins"}], "ok"),
        (LONG, "ok"),
    ],
)
def test_a_rule_about_words_looks_at_the_whole_content_and_only_forbids(desk, owner, talk, content, expected):
    rule = '[[archive]]\nid = "drug"\ncontent = { regex = "(?i)controlled drug" }\neffect = "never"\nreason = "kept"'
    with opened(desk, policy=policy_of(rule)) as archive:
        session = archive.session("case", owner)
        read(session, talk, content)
        assert session.results()[0].protected_by == (None if expected == "ok" else "drug")
        assert statuses(session, ("r1", "n"), ("r9", "n")) == [expected, "unknown"]


# --- the note ---------------------------------------------------------------------------------------------------


def note_of(session, talk, at=2):
    return session.view(talk.messages)[at]["content"]


def test_a_note_has_one_header_and_quotes_its_words(session, talk, clock):
    talk.tool(LONG)
    session.label(talk.messages[2], observed_at=datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC))
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "first\nsecond")])
    tag = session._records.row.tag
    assert note_of(session, talk) == (
        f"[archived r1 tag={tag} | a note, not the content | logs.search | {Characters().count(LONG)} tokens | "
        "observed 2026-11-30T01:02:03Z | restore_evidence id=r1 returns the exact original]\n> first\n> second"
    )


def test_without_an_observed_time_the_note_says_when_it_was_first_seen(session, talk):
    read(session, talk, LONG)
    session.archive([("r1", "n")])
    assert "| first seen 2025-11-30T01:02:03Z |" in note_of(session, talk)


@pytest.mark.parametrize(
    ("tool", "asks"), [("inventory.count", "inventory.lookup"), ("price.quote", "the tool again"), ("logs.x", None)]
)
def test_the_note_of_a_live_tool_says_what_to_ask_for_the_present(session, talk, tool, asks):
    read(session, talk, LONG, name=tool)
    session.archive([("r1", "n")])
    assert ("historical" in note_of(session, talk)) is (asks is not None)
    if asks:
        assert f"| historical, ask {asks} for the present |" in note_of(session, talk)


def test_without_our_tools_the_note_names_the_program_s_way_in_any_process(desk, archive, owner, talk):
    session = archive.session("case", owner, tools=False)
    assert session.tools == []
    read(session, talk, LONG)
    assert session.answer(talk.call("archive_evidence", batch_of(("r1", "n")))) is None
    assert session.answer(talk.call("restore_evidence", '{"id": "r1"}')) is None
    talk.messages = talk.messages[:-2]
    session.archive([("r1", "n")])
    assert '| session.restore("r1") returns the exact original]' in note_of(session, talk)
    assert "restore_evidence" not in note_of(session, talk)
    with opened(desk) as other:  # there with tools: what is rendered stays as it is
        assert other.session("case", owner).view(talk.messages) == session.view(talk.messages)


@settings(max_examples=60)
@given(words=hostile_text(), name=st.sampled_from(("logs.search", "a | b ] [ c", "\u202ex\n> y", "n" * 300)))
def test_words_and_names_cannot_leave_their_place_in_a_note(archive, owner, words, name):
    from conftest import Conversation

    archive_number = len(rows_of_sessions(archive, owner))
    talk, session = Conversation(), archive.session(f"case-{archive_number}", owner)
    read(session, talk, LONG * 2, name=name)
    try:
        session.archive([("r1", words)])
    except BatchRejectedError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.targets[0].status in ("blank_note", "note_too_long", "not_smaller")
        return
    header, *quoted = note_of(session, talk).split("\n")
    assert header.startswith(f"[archived r1 tag={session._records.row.tag} | a note, not the content | ")
    assert header.count("|") == 5
    assert (header.count("["), header.count("]")) == (1, 1)
    assert quoted
    assert all(line.startswith("> ") for line in quoted)
    assert not set("\x00\x85\u2028\u202e\u200b\ud800\r").intersection(header, *quoted)
    assert session.view(session.view(talk.messages)) == session.view(talk.messages)


def rows_of_sessions(archive, owner):
    try:
        entries = archive.audit(principal=owner).entries
    except NotAvailableError:  # nobody was here yet
        return []
    return [entry for entry in entries if entry.event == "session.opened"]


# --- retention --------------------------------------------------------------------------------------------------


def test_how_long_an_original_is_kept_is_decided_when_it_is_archived(desk, session, talk, clock):
    read(session, talk, LONG)
    read(session, talk, LONG, name="web.fetch")
    clock.advance(10)
    session.archive([("r1", "n"), ("r2", "n")])
    kept = {row.number: (row.archived_at_us, row.retention_until_us) for row in session._records.rows.values()}
    now = clock.now_us()
    assert kept == {1: (now, now + 90 * 86_400 * 1_000_000), 2: (now, None)}


def test_a_program_gets_what_the_receipt_says(session, talk):
    read(session, talk, LONG)
    receipt = session.archive([("r1", "n")])
    note = note_of(session, talk)
    assert (receipt.tokens_before, receipt.tokens_after) == (Characters().count(LONG), Characters().count(note))
    assert receipt.tokens_saved == receipt.tokens_before - receipt.tokens_after
    assert json.dumps([info.state for info in session.results()]) == '["archived"]'
