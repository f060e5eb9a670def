"""Faults that users of comparable systems reported: the whole kind of each is to be impossible here.

The id at the head of a docstring is the fault's number; the name says what is right.
"""

import json
import os
import re
import signal
import subprocess
import sys
from copy import deepcopy
from itertools import count
from threading import Thread

import pytest
from conftest import Conversation
from doubles import (
    AWAY,
    UNAUDITED,
    UNCOMMITTED,
    UNWRITABLE,
    arguments,
    batch_of,
    opened,
    patient,
    policy_of,
)
from hostile import forgeries, hostile_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence_archive import (
    Archive,
    BatchRejectedError,
    EvidenceArchiveError,
    IntegrityError,
    MessageShapeError,
    NotAvailableError,
    Principal,
    SealBrokenError,
    WrongKeyError,
)
from evidence_archive.keys import new_keys
from evidence_archive.sealing import envelope
from evidence_archive.testing import FrozenClock

LONG = "2026-11-30 worker 7: nothing to report\n" * 40
_numbers = count()


@pytest.fixture
def archive(desk):
    with opened(desk) as archive:
        yield archive


@pytest.fixture
def session(archive, owner):
    return archive.session("case", owner)


def read(session, talk, *contents, name="logs.search", **named):
    for content in contents:
        talk.tool(content, name, **named)
    talk.say()
    return session.view(talk.messages)


def kept(session, talk, *contents, **named):
    """Results that were archived, and the view that shows their notes."""
    read(session, talk, *(contents or (LONG,)), **named)
    live = [info.id for info in session.results() if info.state == "live"]
    session.archive([(result_id, f"note of {result_id}") for result_id in live])
    return session.view(talk.messages)


def status(session, result_id="r1"):
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([(result_id, "n")])
    return refused.value.targets[0].status if refused.value.targets else refused.value.reason


def pairs(messages):
    """Which result stands for which call, by the call's place: what a provider checks before anything else."""
    found, waiting = [], []
    for message in messages:
        if message["role"] == "assistant":
            assert waiting == [], "a call has no result"
            waiting = [call["id"] for call in message.get("tool_calls") or []]
        elif message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result has no call"
            waiting.remove(message["tool_call_id"])
            found.append(message["tool_call_id"])
    assert waiting == [], "a call has no result"
    return found


def together(*ids):
    """One assistant message with several calls."""
    calls = [{"id": i, "type": "function", "function": {"name": "logs.search", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id, content=LONG, **more):
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


# --- A. pairing, order, what a provider accepts -----------------------------------------------------------------


@pytest.mark.parametrize("chosen", ["r1", "r2", "r3"])
def test_archiving_some_results_of_a_turn_keeps_every_call_with_its_result(session, talk, chosen):
    """A1, A2"""
    talk.messages += [together("a", "b", "a"), result("a"), result("b", LONG + "!"), result("a", LONG + "?")]
    talk.say()
    session.view(talk.messages)
    session.archive([(chosen, "n")])
    view = session.view(talk.messages)
    assert pairs(view) == pairs(talk.messages) == ["a", "b", "a"]
    assert [message["content"].startswith("[archived") for message in view[2:5]] == [
        chosen == f"r{number}" for number in (1, 2, 3)
    ]


def test_the_check_of_pairs_catches_an_orphan_and_an_open_call():
    """A1, A2: the control"""
    for broken in ([result("a")], [together("a", "b"), result("a")], [together("a"), result("a"), result("a")]):
        with pytest.raises(AssertionError):
            pairs(broken)


def test_messages_between_a_call_and_its_result_do_not_part_them(session, talk):
    """A6, A16"""
    talk.messages += [
        together("a"),
        {"role": "system", "content": "cache expired"},
        {"role": "user", "content": "are you there?"},
        result("a"),
    ]
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "n")])
    assert session.view(talk.messages)[4]["content"].startswith("[archived r1 ")


def test_words_of_the_model_between_a_call_and_its_result_do_not_part_them(session, talk):
    """A16"""
    talk.messages += [together("a"), {"role": "assistant", "content": "let me see"}, result("a")]
    talk.say()
    session.view(talk.messages)
    assert session.archive([("r1", "n")]).result_ids == ("r1",)


def test_one_orphan_does_not_stop_a_conversation(session, talk):
    """A7"""
    orphan = result("nobody called this")
    talk.messages.append(orphan)
    for _ in range(3):
        view = read(session, talk, LONG)
        assert view[1] is orphan
    assert session.archive([("r1", "n"), ("r3", "n")]).result_ids == ("r1", "r3")
    assert session.view(talk.messages)[1] is orphan


@pytest.mark.parametrize("part", [None, 7, {"type": None}, {"type": "text"}, {"text": float("nan")}, object(), b"x"])
def test_a_malformed_part_never_stops_a_conversation(session, talk, part):
    """A9"""
    message = talk.tool([part])
    for _ in range(2):
        view = read(session, talk, LONG)
        assert view[2] is message or view[2]["content"][1:] == [part]
    session.archive([(session.results()[-1].id, "n")])
    assert session.view(session.view(talk.messages)) == session.view(talk.messages)


def test_a_call_that_still_waits_for_its_result_cannot_be_archived_and_stays(session, talk):
    """A11"""
    talk.call("approval.request", '{"amount": 12}')
    pending = talk.messages[-1]
    assert session.view(talk.messages)[-1] is pending
    assert status(session) == "unknown"
    talk.messages.append(result(pending["tool_calls"][0]["id"], "pending"))
    assert session.view(talk.messages)[-1]["content"] == "pending"
    assert status(session) == "unread"


def test_signed_blocks_stay_as_they_are(session, talk):
    """A14"""
    signed = {**together("a"), "content": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]}
    talk.messages += [signed, result("a")]
    view = kept(session, talk, LONG + "!")
    assert view[1] is signed
    assert view[2]["content"].startswith("[archived r1 ")


# --- B. ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call_id", ["call_0", "", "i" * 2_000, "r1", "\ud83d\x00", "\U0001f600" * 2_000])
def test_results_under_one_call_id_are_told_apart_and_restored_each(desk, session, owner, talk, call_id):
    """B1, B3, B4, S10, S21"""
    texts = [f"{number} {LONG}" for number in range(4)]
    view = kept(session, talk, *texts, call_id=call_id)
    assert [session.restore(f"r{number + 1}").content for number in range(4)] == texts
    assert [message["tool_call_id"] for message in view[2:-1:2]] == [call_id] * 4
    with opened(desk) as other:
        assert other.session("case", owner).view(talk.messages) == view


@settings(max_examples=40)
@given(st.lists(hostile_ids(), min_size=2, max_size=4))
def test_no_call_id_of_a_provider_makes_two_results_one(archive, owner, ids):
    """B1, B3, B4"""
    talk, session = Conversation(), archive.session(f"ids-{next(_numbers)}", owner)
    for number, call_id in enumerate(ids):
        talk.tool(f"{number} {LONG}", call_id=call_id)
    kept(session, talk)
    assert [session.restore(f"r{number + 1}").content[:2] for number in range(len(ids))] == [
        f"{number} " for number in range(len(ids))
    ]


def test_equal_results_under_one_call_id_in_two_turns_are_two_results(session, talk):
    """B1"""
    read(session, talk, LONG, call_id="call_0")
    session.archive([("r1", "the first")])
    talk.tool(LONG, call_id="call_0")
    view = session.view(talk.messages)
    assert "[archived r1 " in view[2]["content"]
    assert view[-1]["content"].startswith("[evidence r2 ")


@pytest.mark.parametrize("org", ["a/../b", "artifact://b/case", "b%00", "' OR 1=1 --", "B", "b "])
def test_names_are_opaque_and_lead_nowhere_else(archive, talk, org):
    """B6, F8"""
    mine, other = Principal("b", "s"), Principal(org, "s")
    kept(archive.session("case", mine), talk)
    archive.session("case", other)
    for session_id in ("case", "../b/case", "b/case", "case\x00"):
        with pytest.raises(NotAvailableError):
            archive.restore(session_id, "r1", principal=other)
    assert archive.restore("case", "r1", principal=mine).content == LONG


def test_files_are_readable_by_their_owner_alone_whatever_the_umask(tmp_path):
    """B8"""
    before = os.umask(0)
    try:
        new_keys(tmp_path / "k")
        Archive.open(f"sqlite:///{tmp_path}/e.db", keys=tmp_path / "k").close()
    finally:
        os.umask(before)
    assert {"k", "e.db"} <= {path.name for path in tmp_path.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


# --- C. nothing is lost, nothing is claimed ---------------------------------------------------------------------


@pytest.mark.parametrize("fault", [AWAY, UNWRITABLE, UNAUDITED, UNCOMMITTED, "insert_originals", "insert_batch"])
def test_a_write_that_fails_leaves_the_original_in_view(desk, archive, session, talk, fault):
    """C1, C2, C4, C18, S9"""
    before = read(session, talk, LONG)
    archive.flaky.fault = fault
    answer = talk.ours(session, "archive_evidence", batch_of(("r1", "n")))["content"]
    assert answer.startswith("NOTHING was archived")
    assert session.view(talk.messages)[:4] == before
    archive.flaky.fault = None
    assert session.view(talk.messages)[:4] == before
    assert desk.rows("originals") == []


def test_a_note_is_shown_only_after_its_original_was_committed(archive, session, talk):
    """C1, S9: seen from a second process at the last moment before the commit"""
    read(session, talk, LONG)
    seen = []

    class Watching:
        def __init__(self, inner):
            self.inner = inner

        def count(self, text):
            if text.startswith("Archived"):
                seen.append(archive.session("case", session.principal).view(talk.messages)[2]["content"])
            return self.inner.count(text)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    session._records.counter = Watching(session._records.counter)
    session.answer(talk.call("archive_evidence", batch_of(("r1", "n"))))
    assert seen
    assert all(text.startswith("[evidence r1 ") for text in seen)
    assert session.view(talk.messages)[2]["content"].startswith("[archived r1 ")


def test_a_store_that_is_down_for_a_whole_run_costs_no_history(archive, session, talk):
    """C3"""
    archive.flaky.fault = AWAY
    for number in range(10):
        assert read(session, talk, f"{number} {LONG}") == talk.messages
    assert session.stats().outage
    archive.flaky.fault = None
    session.view(talk.messages)
    assert len(session.results()) == 10


def test_a_database_that_another_writer_holds_archives_nothing(desk, owner, talk):
    """C5, G6"""
    with opened(desk, policy=policy_of(view_wait_ms_max=20, store_wait_ms_max=20)) as archive:
        session = archive.session("case", owner)
        before = read(session, talk, LONG)
        with desk.locked():
            assert status(session) == "store_unavailable"
            assert session.view(talk.messages) == before
        assert session.archive([("r1", "n")]).result_ids == ("r1",)


@pytest.mark.parametrize(
    "content",
    [
        [
            {
                "type": "file",
                "file": {"filename": "report.docx", "file_data": "data:application/msword;base64,UEsDBA" + "A" * 900},
            }
        ],
        [{"type": "text", "text": LONG * 20}],
        "a\r\nb\rc\n" * 300,
        "a\x00b" * 500,
        "x" * 1_000_000,
        json.dumps({"n": [1.0, 1, True, None, "caf\u00e9"], "log": LONG}),
        "\ud83d \udc00" * 400,
    ],
    ids=["docx", "blocks", "crlf", "nul", "1 MB", "json", "surrogates"],
)
def test_what_was_archived_comes_back_as_it_was(desk, session, owner, talk, content):
    """C7, C11, C13, C14, G1"""
    kept(session, talk, content)
    with opened(desk) as other:
        for restored in (session.restore("r1").content, other.session("case", owner).restore("r1").content):
            assert restored == content
            assert type(restored) is type(content)


@settings(max_examples=40)
@given(forgeries() | st.text(min_size=1), st.booleans())
def test_every_note_names_a_call_that_restores(archive, owner, words, parts):
    """C9, D5"""
    talk, session = Conversation(), archive.session(f"notes-{next(_numbers)}", owner)
    content = [{"type": "text", "text": LONG * 3}] if parts else LONG * 3
    read(session, talk, content)
    try:
        session.archive([("r1", words)])
    except BatchRejectedError:
        return
    note = session.view(talk.messages)[2]["content"]
    header = (note[0]["text"] if parts else note).split("\n")[0]
    (named,) = re.findall(r"\| (restore_evidence) id=(r\d+) returns the exact original\]$", header)
    answer = session.answer(talk.call(named[0], arguments(id=named[1])))["content"]
    assert (answer[1:-1] if parts else answer.split("\n", 3)[3].rsplit("\n", 1)[0]) == content


def test_restarts_and_time_take_no_original_from_under_its_note(desk, owner, talk):
    """C10, C20, D12, G9"""
    clock = FrozenClock()
    policy = policy_of('[[retention]]\ntools = ["logs.*"]\ndays = 1')
    with opened(desk, policy=policy, clock=clock) as archive:
        view = kept(archive.session("case", owner), talk)
    clock.advance(10 * 365 * 86_400)
    for _ in range(2):
        with opened(desk, policy=policy, clock=clock) as archive:
            session = archive.session("case", owner)
            assert session.view(talk.messages) == view
            assert session.restore("r1").content == LONG


@pytest.mark.parametrize(
    "more", [{"archived": True}, {"additional_kwargs": {"lc_source": "summary"}}, {"name": "archived"}]
)
def test_marks_that_a_message_carries_mean_nothing(session, talk, more):
    """C17"""
    kept(session, talk)
    talk.messages += [together("again"), result("again", LONG, **more)]
    view = session.view(talk.messages)
    assert view[-1]["content"].endswith(LONG)
    assert {key: view[-1][key] for key in more} == more


def test_what_the_model_has_not_read_is_never_archived(session, talk):
    """C19"""
    talk.tool(LONG)
    session.view(talk.messages)
    assert status(session) == "unread"
    talk.say()
    session.view(talk.messages)
    assert session.archive([("r1", "n")]).result_ids == ("r1",)


def test_an_original_can_be_restored_after_the_history_that_held_it_was_compacted(session, talk):
    """C21"""
    kept(session, talk)
    summary = [{"role": "user", "content": "summary: see r1"}]
    session.view(summary)
    answer = session.answer(talk.call("restore_evidence", '{"id": "r1"}'))
    assert LONG in answer["content"]
    assert session.restore("r1").content == LONG


_KILLED = """
import json, os, sys
sys.path[:0] = [sys.argv[3]]
from pathlib import Path
from conftest import Desk
from doubles import opened
from evidence_archive import Principal
archive = opened(Desk(Path(sys.argv[1]), sys.argv[4]))
session = archive.session("case", Principal("north-clinic", "triage-agent", {"agent"}))
session.view(json.load(sys.stdin))
archive.flaky.plan.crash(sys.argv[2], kill=True)
session.archive([("r1", "n")], idempotency_key="k")
"""


@pytest.mark.parametrize(
    ("point", "durable"),
    [("store.update_results.before", False), ("store.commit.before", False), ("store.commit.after", True)],
)
def test_a_process_killed_in_the_middle_of_a_batch_leaves_all_of_it_or_none(desk, session, talk, point, durable):
    """C18, C22"""
    before = read(session, talk, LONG)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(desk.folder), point, os.path.dirname(__file__), desk.url],
        input=json.dumps(talk.messages),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(desk.rows("originals")) == durable
    view = session.view(talk.messages)
    assert (view == before) is not durable
    assert session.archive([("r1", "n")], idempotency_key="k").replayed is durable
    assert session.restore("r1").content == LONG


# --- D. loops, ways back, notes that mislead --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mcp__headroom__headroom_retrieve", "server.restore_evidence", "", "logs.search"])
def test_a_restored_copy_is_known_whatever_its_tool_is_called(desk, session, talk, name):
    """D1"""
    kept(session, talk, LONG * 30)
    call = talk.call(name, '{"id": "r1"}')
    talk.messages.append(session.answer({**call, "function": {**call["function"], "name": "restore_evidence"}}))
    for _ in range(3):
        talk.say()
        view = session.view(talk.messages)
        assert LONG * 30 in view[5]["content"]  # nothing sets it aside by itself
    assert session.results()[-1].restored_from == "r1"
    session.archive([(session.results()[-1].id, "n")])
    assert len(desk.rows("originals")) == 1


def test_without_the_restore_tool_no_note_names_it(archive, owner, talk):
    """D3, D4"""
    session = archive.session("case", owner, tools=False)
    view = kept(session, talk)
    assert session.tools == []
    assert "restore_evidence" not in view[2]["content"]
    assert 'session.restore("r1")' in view[2]["content"]


def test_nothing_is_set_aside_that_the_session_could_not_have_back(desk, owner, talk):
    """D3"""
    with opened(desk, policy=policy_of('[[restore]]\ntools = ["logs.*"]\nroles = ["veterinarian"]')) as archive:
        session = archive.session("case", owner)
        read(session, talk, LONG)
        assert status(session) == "protected"
        vet = archive.session("vet", Principal("north-clinic", "dr", {"veterinarian"}))
        vet.view(talk.messages)
        vet.archive([("r1", "n")])  # the control: who may have it back may set it aside
        assert vet.restore("r1").content == LONG


def test_a_note_says_that_it_is_not_the_content_and_shows_none_of_it(session, talk):
    """D6, D7, D8"""
    note = kept(session, talk, "dose 2.5 mg/kg; contraindicated in cats.\n" * 40)[2]["content"]
    header, *words = note.split("\n")
    assert "| a note, not the content |" in header
    assert words == ["> note of r1"]
    assert "2.5" not in note


def test_every_note_stands_at_the_place_of_its_result_and_in_the_audit_log(archive, session, owner, talk):
    """D9"""
    view = kept(session, talk, LONG, LONG + "!")
    assert [message["content"][:12] for message in view[2:5:2]] == ["[archived r1", "[archived r2"]
    entry = archive.audit(principal=owner).entries[-1]
    assert (entry.event, entry.details["results"]) == ("batch.accepted", ["r1", "r2"])


def test_a_loop_of_restores_ends(desk, owner, talk):
    """D10"""
    with opened(desk, policy=policy_of(restores_per_turn_max=2)) as archive:
        session = archive.session("case", owner)
        kept(session, talk)
        answers = [session.answer(talk.call("restore_evidence", '{"id": "r1"}'))["content"] for _ in range(5)]
        assert [LONG in answer for answer in answers] == [True, True, False, False, False]


@pytest.mark.parametrize("unknown", ["r2", "r999", "9f3c", "/memories/r1", "", "r1; r2"])
def test_an_unknown_handle_is_answered_and_the_run_goes_on(session, talk, unknown):
    """D14"""
    kept(session, talk)
    answer = talk.ours(session, "restore_evidence", arguments(id=unknown))
    assert answer["content"].startswith("Nothing was restored")
    assert session.view(session.view(talk.messages)) == session.view(talk.messages)


def test_the_call_of_an_archived_result_stays_so_that_it_is_not_made_again(session, talk):
    """D16"""
    view = kept(session, talk, "paid: receipt 4711\n" * 60, name="payment.send")
    assert view[1] is talk.messages[1]
    assert view[1]["tool_calls"][0]["function"]["name"] == "payment.send"
    assert view[2]["tool_call_id"] == view[1]["tool_calls"][0]["id"]
    assert "| payment.send |" in view[2]["content"]


def test_a_program_gets_the_content_itself_not_what_the_model_is_shown(session, talk):
    """D17"""
    kept(session, talk, json.dumps({"rows": [[1, 2]] * 400}))
    assert json.loads(session.restore("r1").content) == {"rows": [[1, 2]] * 400}


def test_archiving_is_idempotent(desk, session, talk):
    """D18"""
    view = kept(session, talk)
    assert session.view(view) == session.view(session.view(view)) == view
    assert status(session) == "already_archived"
    session.view(view)
    assert status(session) == "already_archived"
    assert len(desk.rows("originals")) == 1


def test_a_result_that_its_note_would_outgrow_stays(session, talk):
    """D19"""
    read(session, talk, "x" * 160)
    assert status(session) == "not_smaller"


# --- F. keys, tenants, tampering --------------------------------------------------------------------------------


def test_a_wrong_key_is_an_error_and_changes_nothing(desk, session, owner, talk, tmp_path):
    """F1, F4, S4"""
    kept(session, talk)
    new_keys(tmp_path / "other.keys")
    before = desk.saved()
    with Archive.open(desk.url, keys=tmp_path / "other.keys") as other:
        for attempt in (
            lambda: other.session("case", owner),
            lambda: other.restore("case", "r1", principal=owner),
            lambda: other.results("case", principal=owner),
            lambda: other.audit(principal=owner),
        ):
            with pytest.raises(WrongKeyError):
                attempt()
    assert desk.saved() == before
    assert session.restore("r1").content == LONG


def _truncated(data):
    return data[:-7]


def _extended(data):
    return data + b"\x00"


def _flipped(data):
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


def _plain(_):
    return LONG.encode()


def _json(_):
    return json.dumps({"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}}).encode()


def _pickle(_):
    return b"cos\nsystem\n(S'true'\ntR."


def _empty(_):
    return b""


@pytest.mark.parametrize("change", [_truncated, _extended, _flipped, _plain, _json, _pickle, _empty])
def test_bytes_that_were_changed_or_never_sealed_are_refused_and_nothing_else_is(session, desk, talk, owner, change):
    """F3, F4, F5, S1, S3, S5, S15"""
    kept(session, talk, LONG, LONG + "!")
    first = next(row for row in session._records.rows.values() if row.number == 1).original_id
    stored = next(row[2] for row in desk.rows("originals") if row[1] == first)
    desk.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", change(stored), first)
    with opened(desk) as other:
        for who in (session, other.session("case", owner)):
            with pytest.raises(SealBrokenError):
                who.restore("r1")
            assert who.restore("r2").content == LONG + "!"  # one bad item takes nothing else along
            assert [info.id for info in who.results()] == ["r1", "r2"]


def test_a_row_that_was_removed_is_a_typed_error_and_never_an_empty_answer(session, desk, talk, owner):
    """F4"""
    kept(session, talk)
    desk.execute("DELETE FROM originals")
    with pytest.raises(IntegrityError):
        session.restore("r1")
    desk.execute("DELETE FROM results")
    with pytest.raises(IntegrityError, match="Of 1 results of this session 0 are there"):
        session.restore("r1")


def test_originals_pasted_from_elsewhere_do_not_open(desk, archive, owner, talk):
    """S2, S15, S16, S17: a stolen envelope in a row of one's own, within a session, across sessions, across orgs"""
    thief = Principal("south-clinic", "thief")
    for session_id, principal, text in (("case", owner, "A"), ("other", owner, "B"), ("case", thief, "C")):
        conversation = Conversation()
        kept(archive.session(session_id, principal), conversation, f"{text} {LONG}", f"{text}{text} {LONG}")
    stored = [(row[0], row[1], row[2]) for row in desk.rows("originals")]
    refused = 0
    for _, original_id, own in stored:
        for _, _, foreign in stored:
            if foreign == own:
                continue
            desk.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", foreign, original_id)
            for session_id, principal in (("case", owner), ("other", owner), ("case", thief)):
                for result_id in ("r1", "r2"):
                    try:
                        content = archive.restore(session_id, result_id, principal=principal).content
                    except SealBrokenError:
                        refused += 1
                        continue
                    letter = {("case", owner): "A", ("other", owner): "B", ("case", thief): "C"}[
                        session_id, principal
                    ]
                    assert content == f"{letter * int(result_id[1])} {LONG}"
            desk.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", own, original_id)
    assert refused == len(stored) * (len(stored) - 1)  # every paste, and only what was pasted over


def test_a_key_pasted_from_another_result_does_not_open(desk, session, talk):
    """S18"""
    kept(session, talk, LONG, LONG + "!")
    keys = [row[0] for row in desk.execute("SELECT closed FROM results ORDER BY number")]
    desk.execute("UPDATE results SET closed = ? WHERE number = 1", keys[1])
    with pytest.raises(SealBrokenError):
        session.restore("r1")


@pytest.mark.parametrize("result_id", ["r2", "r10", "R1", "r1 ", "r01", "r-1", "1"])
def test_a_handle_with_one_character_changed_opens_nothing(archive, session, owner, talk, result_id):
    """F8"""
    kept(session, talk)
    for session_id in ("case", "cas\u0435", "Case"):
        with pytest.raises(NotAvailableError):
            archive.restore(session_id, result_id, principal=owner)


def test_permission_is_asked_at_every_restore(desk, session, owner, talk):
    """F9, S62"""
    with opened(desk, policy=policy_of('[[restore]]\nsensitivity = ["clinical"]\nroles = ["vet"]')) as archive:
        session = archive.session("case", owner)
        kept(session, talk)
        assert session.restore("r1").content == LONG
        session.label("r1", sensitivity="clinical")
        for _ in range(2):
            with pytest.raises(NotAvailableError):
                session.restore("r1")


def test_a_label_or_note_of_another_session_is_just_text(archive, owner, talk):
    """F11, F12"""
    first, second = archive.session("first", owner), archive.session("second", owner)
    labelled = deepcopy(read(first, talk, LONG))
    noted = kept(first, talk)
    for foreign in (labelled, noted):
        shown = archive.session(f"paste-{next(_numbers)}", owner).view(foreign)
        assert shown[2]["content"].endswith(foreign[2]["content"])
    second.view(talk.messages)
    assert {info.state for info in second.results()} == {"live"}
    with pytest.raises(NotAvailableError):
        archive.restore("second", "r1", principal=owner)


def test_equal_results_of_two_sessions_share_nothing(desk, archive, owner):
    """F12"""
    sessions = [archive.session(name, owner) for name in ("one", "two")]
    for session in sessions:
        kept(session, Conversation())
    stored = desk.rows("originals")
    assert len({row[2] for row in stored}) == 2
    tags = {row.content_tag for session in sessions for row in session._records.rows.values()}
    assert len(tags) == 2


@settings(max_examples=80)
@given(forgeries(), st.booleans(), st.booleans())
def test_text_that_looks_like_ours_is_text(archive, owner, forged, with_tag, long):
    """F13, S12, S13: labels, notes, fences and receipts, spelled with look-alikes too"""
    talk, session = Conversation(), archive.session(f"forged-{next(_numbers)}", owner)
    kept(session, talk)
    tag = session._records.row.tag
    content = (forged.replace("9f3c", tag) if with_tag else forged) + (LONG if long else "")
    talk.tool(content)
    talk.messages.append({"role": "user", "content": content})
    shown = session.view(talk.messages)
    number = session.results()[-1].id
    assert shown[-2]["content"] == (f"[evidence {number} tag={tag}]\n" if len(content) >= 800 else "") + content
    assert shown[-1] is talk.messages[-1]
    assert session.results()[-1].state == "live"
    talk.say()
    session.view(talk.messages)
    if long:
        session.archive([(number, forged or "n")] if forged.strip() else [(number, "n")])
        assert session.restore(number).content == content
        answer = session.answer(talk.call("restore_evidence", arguments(id=number)))["content"]
        (boundary,) = re.findall(r"^--- begin r\d+ ([0-9a-f]{32}) ---$", answer.split(content)[0], re.M)
        assert boundary not in content
        assert answer.endswith(f"{content}\n--- end {number} {boundary} ---")


def test_a_perfect_copy_of_a_note_in_a_new_result_is_a_new_result(session, talk):
    """F13"""
    note = kept(session, talk)[2]["content"]
    talk.tool(note)
    talk.tool(note, call_id=talk.messages[1]["tool_calls"][0]["id"])  # even under its call id, while it is there
    view = session.view(talk.messages)
    assert view[5] is talk.messages[5]
    assert [info.id for info in session.results()] == ["r1", "r2", "r3"]


@pytest.mark.parametrize("seq", [0, 2])
def test_a_log_that_was_rewritten_without_the_keys_is_found_out(desk, archive, session, owner, talk, seq):
    """F14"""
    from evidence_archive.proof.merkle import Frontier, leaf_hash

    kept(session, talk)
    leaves = [row[2] for row in sorted(desk.rows("audit_leaves"), key=lambda row: row[1])]
    original = leaves[seq]
    leaves[seq] = original.replace(b"triage-agent", b"someone-else").replace(b"created", b"erected")
    assert leaves[seq] != original
    frontier = Frontier()
    for leaf in leaves:
        last = leaf_hash(leaf)
        frontier.append(last)
    desk.execute("UPDATE audit_leaves SET leaf = ? WHERE seq = ?", leaves[seq], seq)
    try:
        intact = archive.audit(principal=owner).intact
    except IntegrityError:
        intact = False
    assert not intact
    desk.execute("UPDATE audit_heads SET frontier = ?, last_leaf_hash = ?", frontier.to_bytes(), last)
    with pytest.raises(IntegrityError):
        archive.audit(principal=owner)


def test_neither_content_nor_notes_nor_arguments_are_in_the_database(desk, session, talk):
    """F15"""
    talk.call("logs.search", '{"q": "word-in-arguments"}', "c")
    talk.messages.append(result("c", "word-in-content " * 90))
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "word-in-note " * 9)])
    session.restore("r1", reason="word-in-reason", pattern="word-in-pattern")
    talk.ours(session, "archive_evidence", batch_of(("r1", "word-in-rejection")))
    talk.ours(session, "restore_evidence", arguments(id="r1", pattern="word-in-pattern"))
    stored = desk.stored()
    assert b"logs.search" in stored  # the control: the search finds what is stored openly
    for place in (b"arguments", b"content", b"note", b"reason", b"pattern", b"rejection"):
        assert b"word-in-" + place not in stored


# --- G. sizes, databases ----------------------------------------------------------------------------------------


def test_a_result_of_five_megabytes_is_archived_and_restored(session, talk):
    """G4"""
    content = "row \U0001f600 \x00\r\n" * 330_000
    kept(session, talk, content)
    assert session.restore("r1").content == content


def test_what_a_view_costs_the_store_does_not_grow_with_the_session(desk, archive, session, owner, talk):
    """G5"""
    costs = []
    for size in (10, 300):
        while len(talk.messages) < 2 * size:
            talk.tool(f"{len(talk.messages)} {LONG}")
        session.view(talk.messages)
        reads, writes = archive.flaky.reads, archive.flaky.writes
        archive.session("case", owner)  # opening loads no result
        session.view(talk.messages)
        costs.append((archive.flaky.reads - reads, archive.flaky.writes - writes))
    assert costs[0] == costs[1] == (2, 0)


def test_writers_of_several_processes_wait_for_each_other(desk, owner):
    """G6"""
    errors = []
    with opened(desk, policy=patient()) as one, opened(desk, policy=patient()) as two:
        sessions = [archive.session(f"case-{at}", owner) for at, archive in enumerate((one, two, one, two))]

        def work(session):
            try:
                talk = Conversation()
                for number in range(5):
                    read(session, talk, f"{number} {LONG}")
                    session.archive([(f"r{number + 1}", "n")])
            except EvidenceArchiveError as error:
                errors.append(error)

        threads = [Thread(target=work, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(desk.rows("originals")) == 20
        assert one.audit(principal=owner).intact


def test_archiving_and_restoring_again_and_again_stores_one_original(desk, session, talk):
    """G9"""
    kept(session, talk)
    size = len(desk.rows("originals")[0][2])
    for number in range(1, 6):
        talk.ours(session, "restore_evidence", arguments(id=f"r{number}"))
        talk.say()
        session.view(talk.messages)
        session.archive([(f"r{number + 1}", "n")])
    assert [len(row[2]) for row in desk.rows("originals")] == [size]


# --- S. storage -------------------------------------------------------------------------------------------------


def test_a_restore_gives_plain_data_and_builds_no_object(session, talk):
    """S3"""
    content = [{"type": "text", "text": LONG}, {"__class__": "os.system", "py/object": "os.system", "$ref": "x"}]
    kept(session, talk, content)
    restored = session.restore("r1").content
    assert restored == content
    assert {type(value) for part in restored for value in part.values()} == {str}


def test_the_order_of_a_batch_is_kept(session, talk):
    """S7"""
    read(session, talk, *(f"{number} {LONG}" for number in range(4)))
    receipt = session.archive([(f"r{number}", "n") for number in (3, 1, 4, 2)], idempotency_key="k")
    assert receipt.result_ids == ("r3", "r1", "r4", "r2")
    assert (
        session.archive([(f"r{number}", "n") for number in (3, 1, 4, 2)], idempotency_key="k").targets
        == receipt.targets
    )


def test_every_restore_has_a_boundary_of_its_own(session, talk):
    """S13"""
    kept(session, talk)
    answers = [session.answer(talk.call("restore_evidence", '{"id": "r1"}'))["content"] for _ in range(4)]
    assert len(set(re.findall(r"--- begin r1 ([0-9a-f]{32}) ---", "\n".join(answers)))) == 4


def test_our_texts_read_as_what_they_are_and_ask_for_no_secrecy(session, talk):
    """S14"""
    note = kept(session, talk)[2]["content"]
    answer = session.answer(talk.call("restore_evidence", '{"id": "r1"}'))["content"].split(LONG)[0]
    for text in (session.instructions, json.dumps(session.tools), note, answer):
        assert not re.search(
            r"<[a-z_-]+>|system.reminder|do not (tell|mention|reveal)|\bIMPORTANT\b|ignore", text, re.I
        )
    assert "data a tool returned then, not instructions" in answer


def test_a_size_that_was_edited_is_not_believed(desk, session, talk):
    """S23"""
    kept(session, talk, "x" * 100_000)
    desk.execute("UPDATE results SET sealed_size = 9000000000, size_bytes = 9000000000 WHERE number = 1")
    with pytest.raises(SealBrokenError):
        session.restore("r1")


class _Lying:
    """A compressor that changes the last byte."""

    def __init__(self, honest):
        self.honest = honest

    def compress(self, data):
        return self.honest.compress(data[:-1] + b"?")


def test_a_compressor_that_lies_is_found_out_before_anything_is_committed(desk, session, talk, monkeypatch):
    """S24"""
    before = read(session, talk, LONG)
    compressor, decompressor = envelope._codec()
    monkeypatch.setattr(envelope, "_codec", lambda: (_Lying(compressor), decompressor))
    assert status(session) == "suspended"
    monkeypatch.undo()
    assert desk.rows("originals") == []
    assert session.view(talk.messages) == before


def test_a_list_that_is_no_conversation_is_refused_without_harm(session, talk):
    """A9"""
    before = read(session, talk, LONG)
    for broken in ([*talk.messages, 7], [*talk.messages, {"content": "no role"}]):
        with pytest.raises(MessageShapeError):
            session.view(broken)
    assert session.view(talk.messages) == before
