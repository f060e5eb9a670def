"""The trace: what was sent at each request comes back to the byte, gaps are told, and nothing of it is in clear."""

import base64
import json
import logging
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import Conversation, Desk
from doubles import AWAY, UNANSWERED, UNCOMMITTED, UNWRITABLE, Characters, opened, policy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from independent_decoder import decrypt, fields_of, hkdf
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel

from evidence_archive import Archive, Policy, Principal, Session, books, tracing
from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.errors import FormatError, NotAvailableError, SealBrokenError, ShreddedError
from evidence_archive.keys import new_keys
from evidence_archive.tracing import TRACE_BOOK, Tracing, difference, rebuilt

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
WINDOW = '[window]\nwindow_tokens_max = 4000\narchive_tokens_min = 50\ntrace = "sealed"\n'
DIALECT = ChatDialect()
LONG = "finding in a log\n" * 100


def traced(rules: str = "", **limits: int) -> Policy:
    return policy_of(f"{WINDOW}{rules}", **limits)


def opening(desk: Desk, policy: Policy | None = None) -> Archive:
    return desk.open(policy=policy or traced(), counter=Characters())


def exact(messages: list[Any]) -> list[str]:
    """What is sent, as JSON."""
    return [DIALECT.plain(message) for message in messages]


def read(session: Session, request: int) -> list[str]:
    """What the trace says was sent, as JSON."""
    return [json.dumps(message, separators=(",", ":")) for message in session.trace_request(request)]


def told(session: Session) -> list[tuple[int, int, bool]]:
    return [(entry.request, entry.missing, entry.begins) for entry in session.trace()]


def postings(session: Session) -> list[Any]:
    with session._records.vault.store.reading(1_000) as reader:
        return list(reader.postings(session._records.keys.scope_id, TRACE_BOOK, 0, 1_000))


# --- to the byte ------------------------------------------------------------------------------------------------


def grown(talk: Conversation, data: st.DataObject, dice: random.Random) -> None:
    """What an application does between two requests."""
    step = data.draw(st.sampled_from(["tool", "tool", "say", "ask", "sdk", "image", "odd", "again", "in place"]))
    if step == "tool":
        talk.tool(f"{dice.random()} " + "finding\n" * dice.choice([1, 20, 200]), name="logs.search")
        talk.say(f"I read {dice.random()}")
    elif step == "say":
        talk.say(data.draw(st.text(max_size=30)))
    elif step == "ask":
        talk.messages.append({"role": "user", "content": "go on"})
    elif step == "sdk":
        talk.messages.append(ChatCompletionMessage(role="assistant", content=f"of the SDK {dice.random()}"))
    elif step == "image":
        url = base64.b64encode(dice.randbytes(900)).decode()
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}}
        talk.messages.append({"role": "user", "content": [{"type": "text", "text": "look"}, part]})
    elif step == "odd":
        talk.messages.append(
            {"role": "user", "content": "\ud800 \0 \u2028", "x": [1.0, -0.0, None, True, {"": 1e300}]}
        )
    elif step == "in place":
        words = [one for one in talk.messages if isinstance(one, dict) and one["role"] == "user"]
        words[-1]["name"] = f"n{dice.randrange(10)}"


@settings(max_examples=10)
@given(st.data())
def test_every_request_of_any_conversation_comes_back_to_the_byte_in_any_process(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("desk")
    new_keys(folder / "evidence.keys")
    desk, talk, sent = Desk(folder), Conversation(), []
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(data.draw(st.integers(1, 3))):
        with opening(desk) as archive:
            session = archive.session("case", OWNER)
            for _ in range(data.draw(st.integers(1, 12))):
                grown(talk, data, dice)
                sent.append(exact(session.view(talk.messages)))
            entries = session.trace()
            assert [entry.request for entry in entries] == list(range(1, len(sent) + 1))
            assert [entry.messages for entry in entries] == list(map(len, sent))
            assert entries[-1].tokens == session.stats().window_tokens
            assert not any(entry.missing for entry in entries)
            for at in {1, len(sent), dice.randint(1, len(sent))}:
                assert read(session, at) == sent[at - 1]
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        assert [read(session, at) for at in range(1, len(sent) + 1)] == sent


def test_turns_that_leave_and_results_that_become_notes_are_differences_too(desk: Desk):
    talk, sent = Conversation(), []
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        for at in range(40):
            talk.tool(f"{at} {LONG}", name="logs.search")
            talk.say(f"read {at}")
            sent.append(exact(session.view(talk.messages)))
        entries = session.trace()
        assert len(talk.messages) > 1.5 * len(sent[-1]), "nothing left the window"
        assert any("[archived r" in line for line in sent[-1])
        assert [read(session, at) for at in range(1, 41)] == sent
        whole = sum(len(line) for request in sent for line in request)
        assert sum(entry.added_bytes for entry in entries) < whole / 4
        assert sum(len(posting.closed) for posting in postings(session)) < whole / 8
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_a_request_that_is_sent_twice_adds_nothing(sqlite_desk: Desk, talk: Conversation):
    talk.tool(LONG)
    talk.say()
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        sent = [exact(session.view(talk.messages)) for _ in range(2)]
        assert sent[0] == sent[1] == read(session, 2)
        assert [(entry.added_messages, entry.added_bytes > 0) for entry in session.trace()] == [(4, True), (0, False)]


def test_another_process_goes_on_where_the_first_one_stopped(sqlite_desk: Desk, talk: Conversation):
    talk.tool(LONG)
    talk.say()
    with opening(sqlite_desk) as archive:
        first = exact(archive.session("case", OWNER).view(talk.messages))
    talk.messages.append({"role": "user", "content": "and then?"})
    (sqlite_desk.folder / "messages.json").write_text(json.dumps(talk.messages))
    (sqlite_desk.folder / "policy.toml").write_text(f'[policy]\nname = "t"\nversion = 1\ndefault = "allow"\n{WINDOW}')
    script = (
        "import json, sys; from evidence_archive import Archive, Principal\n"
        "with Archive.open(sys.argv[1], keys='evidence.keys', policy='policy.toml') as archive:\n"
        "    session = archive.session('case', Principal('north-clinic', 'triage-agent'))\n"
        "    print(json.dumps(session.view(json.load(open('messages.json')))))\n"
    )
    words = [sys.executable, "-c", script, sqlite_desk.url]
    done = subprocess.run(words, cwd=sqlite_desk.folder, capture_output=True, text=True, check=True)
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        assert read(session, 1) == first
        assert read(session, 2) == exact(json.loads(done.stdout))
        assert told(session) == [(1, 0, True), (2, 0, True)]
        assert session.trace()[1].added_messages == 1
        session.view(talk.messages)
        assert told(session)[2:] == [(3, 0, True)]


def test_must_fail_control_a_trace_that_trusts_the_object_misses_what_changed_in_its_place(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    known: dict[int, str] = {}
    lines = Tracing._lines

    def by_object(self: Any, view: Any, rendered: Any) -> list[str]:
        now = lines(self, view, rendered)
        return [known.setdefault(id(message), line) for message, line in zip(view, now, strict=True)]

    monkeypatch.setattr(Tracing, "_lines", by_object)
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        talk.messages[0]["content"] = "something else"
        sent = exact(session.view(talk.messages))
        assert read(session, 2) != sent


LINES = st.lists(st.sampled_from("abcdef"), max_size=12)


@given(LINES, LINES)
def test_a_difference_told_to_the_lines_it_is_about_gives_the_others(before: list[str], now: list[str]):
    runs, new = difference(before, now)
    assert rebuilt(before, json.loads(json.dumps(runs)), new) == now
    assert set(new) == set(now) - set(before)
    assert difference(now, now) == ([[0, len(now)]] if now else [], [])


@pytest.mark.parametrize(
    ("runs", "new"), [([[0, 3]], []), ([[2, 1]], []), ([1], []), ([[0, 1]], ["x"]), ([2], ["x"])], ids=str
)
def test_a_difference_that_is_about_other_lines_is_refused(runs: Any, new: list[str]):
    with pytest.raises(SealBrokenError):
        rebuilt(["a", "b"], runs, new)


def test_of_so_many_entries_one_is_whole_and_what_it_adds_is_told_all_the_same(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tracing, "WHOLE_EVERY", 3)
    sent, opens = [], []
    among = books.Books.among
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        for at in range(8):
            talk.say(f"{at}")
            sent.append(exact(session.view(talk.messages)))
        wholes = [posting.content["whole"] for posting in books.Books(session._records).read(TRACE_BOOK)]
        assert wholes == [True, False, False, True, False, False, True, False]
        assert [entry.added_messages for entry in session.trace()] == [2, 1, 1, 1, 1, 1, 1, 1]

        def counted(self: Any, book: str, first: int, last: int) -> Any:
            opens.append(last - first + 1)
            return among(self, book, first, last)

        monkeypatch.setattr(books.Books, "among", counted)
        assert [read(session, at) for at in range(1, 9)] == sent
        assert opens == [1, 2, 3, 1, 2, 3, 1, 2]


def test_memory_holds_no_more_of_the_trace_than_its_newest_request(sqlite_desk: Desk, talk: Conversation):
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        for at in range(3):
            talk.messages.append({"role": "user", "content": f"{at} {LONG}"})
            session.view(talk.messages)
        assert read(session, 1)
        kept = [posting.content for posting in session._tracing._books.read(TRACE_BOOK)]
        assert not any("data" in content for content in kept)
        assert session._tracing._last[1] == [f" {line}" for line in read(session, 3)]


# --- long, off, not there ---------------------------------------------------------------------------------------


def image(size_bytes: int) -> dict[str, Any]:
    url = base64.b64encode(random.Random(1).randbytes(size_bytes)).decode()
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}}]}


def test_a_long_difference_is_cut_into_postings_of_one_transaction(desk: Desk, talk: Conversation):
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        talk.messages.append(image(600_000))
        sent = exact(session.view(talk.messages))
        assert len(postings(session)) == 4
        (entry,) = [one for one in archive.audit(principal=OWNER).entries if one.event == "book.posted"]
        assert len(entry.details["digests"]) == 4
        session.view(talk.messages)
        assert len(postings(session)) == 5
        assert read(session, 1) == read(session, 2) == sent


def test_what_is_too_long_to_be_written_is_sent_and_told_to_be_missing(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(books, "POSTINGS_MAX", 2)
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        talk.messages.append(image(600_000))
        assert session.view(talk.messages) == talk.messages
        talk.messages.pop()
        session.view(talk.messages)
        assert told(session) == [(2, 1, True)]


def test_without_the_line_in_the_policy_nothing_is_kept_and_what_was_kept_stays(
    sqlite_desk: Desk, talk: Conversation
):
    with opening(sqlite_desk) as archive:
        sent = exact(archive.session("case", OWNER).view(talk.messages))
    for policy in (policy_of(WINDOW.replace("sealed", "off")), policy_of()):
        with opening(sqlite_desk, policy) as archive:
            session = archive.session("case", OWNER)
            session.view(talk.messages)
            assert len(postings(session)) == 1
            assert read(session, 1) == sent


@pytest.mark.parametrize("request_", [0, 2, -1, True, "1", None])
def test_a_request_that_is_not_there_is_refused_in_words(sqlite_desk: Desk, talk: Conversation, request_: Any):
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        with pytest.raises(FormatError, match="it is empty"):
            session.trace_request(request_)
        session.view(talk.messages)
        with pytest.raises(FormatError, match="the last one in it is 1"):
            session.trace_request(request_)


# --- gaps -------------------------------------------------------------------------------------------------------


@pytest.fixture
def flaky(desk: Desk) -> Iterator[Archive]:
    with opened(desk, policy=traced(view_wait_ms_max=50, store_wait_ms_max=50)) as archive:
        yield archive


@pytest.mark.parametrize("fault", [AWAY, UNWRITABLE, UNCOMMITTED])
def test_a_view_goes_on_without_its_trace_and_the_next_entry_tells(flaky: Archive, talk: Conversation, fault: str):
    session = flaky.session("case", OWNER)
    talk.tool(LONG)
    talk.say()
    normal = session.view(talk.messages)
    flaky.flaky.fault = fault
    assert [session.view(talk.messages) for _ in range(2)] == [normal, normal]
    flaky.flaky.fault = None
    assert session.view(talk.messages) == normal
    session.view(talk.messages)
    assert told(session) == [(1, 0, True), (4, 2, False), (5, 0, False)]
    assert read(session, 4) == exact(normal)
    with pytest.raises(FormatError):
        session.trace_request(2)


def test_an_entry_that_was_written_although_its_commit_failed_is_no_gap(flaky: Archive, talk: Conversation):
    session = flaky.session("case", OWNER)
    session.view(talk.messages)
    flaky.flaky.fault = UNANSWERED
    session.view(talk.messages)
    flaky.flaky.fault = None
    session.view(talk.messages)
    assert told(session) == [(1, 0, True), (2, 0, False), (3, 0, False)]


def test_a_session_that_begins_in_an_outage_tells_so(flaky: Archive, talk: Conversation):
    flaky.session("case", OWNER).view(talk.messages)
    session = flaky.session("case", OWNER)
    flaky.flaky.fault = AWAY
    session.view(talk.messages)
    flaky.flaky.fault = None
    session.view(talk.messages)
    assert told(session) == [(1, 0, True), (3, 1, True)]


def test_two_that_send_in_one_session_share_the_numbers(desk: Desk, talk: Conversation):
    with opening(desk) as archive, opening(desk) as other:
        one, two = archive.session("case", OWNER), other.session("case", OWNER)
        sent = []
        for at in range(3):
            talk.say(f"{at}")
            sent += [exact(session.view(talk.messages)) for session in (one, two)]
        assert [read(two, at) for at in range(1, 7)] == [read(one, at) for at in range(1, 7)] == sent
        assert told(one) == [(1, 0, True), (2, 0, True), *((at, 0, False) for at in range(3, 7))]
        assert [entry.added_messages for entry in one.trace()] == [2, 0, 1, 0, 1, 0]


def test_a_trace_waits_no_longer_than_a_view_may(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    waits = []
    post = books.Books.post

    def noted(self: Any, book: str, decide: Any) -> Any:
        waits.append((book, self._records.wait_ms))
        return post(self, book, decide)

    monkeypatch.setattr(books.Books, "post", noted)
    with opening(sqlite_desk, traced(view_wait_ms_max=700)) as archive:
        archive.session("case", OWNER).view(talk.messages)
    ((book, wait_ms),) = waits
    assert book == TRACE_BOOK
    assert 1 <= wait_ms <= 700


# --- who may read -----------------------------------------------------------------------------------------------

GUARDED = '[[restore]]\nsensitivity = ["medical"]\nroles = ["physician"]\n'


def test_reading_a_request_is_in_the_log_and_nobody_but_the_owner_reads(desk: Desk, talk: Conversation):
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        size = archive.audit(principal=OWNER).size
        session.trace()
        assert archive.audit(principal=OWNER).size == size
        session.trace_request(1)
        entry = archive.audit(principal=OWNER).entries[-1]
        assert (entry.event, entry.session_id, entry.details) == ("trace.read", "case", {"request": 1})
        with pytest.raises(NotAvailableError):
            archive.session("case", KEEPER)


def labelled(archive: Archive, talk: Conversation) -> Session:
    """The second request shows a result that its owner may not have back under some policy."""
    session = archive.session("case", OWNER)
    session.view(talk.messages)
    session.label(talk.tool("a made-up diagnosis"), sensitivity="medical")
    session.view(talk.messages)
    return session


def test_a_request_that_shows_what_may_not_be_restored_is_refused_and_the_refusal_logged(
    sqlite_desk: Desk, talk: Conversation
):
    with opening(sqlite_desk, traced(GUARDED)) as archive:
        session = labelled(archive, talk)
        assert len(session.trace_request(1)) == 1
        with pytest.raises(NotAvailableError):
            session.trace_request(2)
        entry = archive.audit(principal=OWNER).entries[-1]
        assert (entry.event, entry.details) == ("restore.denied", {"result": "r1", "why": "not_available"})
        physician = Principal("north-clinic", "triage-agent", {"physician"})
        assert "diagnosis" in read(archive.session("case", physician), 2)[-1]


def test_a_label_that_came_later_counts_too(sqlite_desk: Desk, talk: Conversation):
    with opening(sqlite_desk, traced(GUARDED)) as archive:
        session = archive.session("case", OWNER)
        talk.tool("a made-up diagnosis")
        session.view(talk.messages)
        assert "diagnosis" in read(session, 1)[-1]
        session.label("r1", sensitivity="medical")
        with pytest.raises(NotAvailableError):
            session.trace_request(1)


def test_a_result_that_got_its_number_later_is_known_by_it(flaky: Archive, desk: Desk, talk: Conversation):
    session = flaky.session("case", OWNER)
    session.view(talk.messages)
    flaky.flaky.fault = "insert_results"
    talk.tool("a made-up diagnosis")  # too short for a label: with or without a number it looks the same
    session.view(talk.messages)
    flaky.flaky.fault = None
    session.view(talk.messages)
    assert [entry.added_messages for entry in session.trace()] == [1, 2, 1]
    with opening(desk, traced(GUARDED)) as archive:
        session = archive.session("case", OWNER)
        session.label("r1", sensitivity="medical")
        with pytest.raises(NotAvailableError):
            session.trace_request(3)


KEEPS = '[[restore]]\ntools = ["emr.read"]\nroles = ["physician"]\n'


class Terse(BaseModel):
    """An object of an SDK that does not say its role unless it was set."""

    role: str = "assistant"
    tool_calls: list[Any]


def unrecorded(how: str, tool: str, flaky: Archive, talk: Conversation) -> Session:
    """A request that shows a result of a tool, and no record of it."""
    session = flaky.session("case", OWNER)
    session.view(talk.messages)
    if how == "away":
        flaky.flaky.fault = "insert_results"
        talk.tool("a made-up diagnosis", name=tool)
    elif how == "orphan":
        talk.messages.append(
            {"role": "tool", "tool_call_id": "x", "name": tool, "content": [{"type": "text", "text": "a diagnosis"}]}
        )
    elif how == "not exact":
        talk.call(tool)
        talk.messages.append(
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": [{"type": "text", "text": "a diagnosis", "at": {1}}],
            }
        )
    else:
        talk.call(tool)
        talk.messages[-1] = Terse(tool_calls=talk.messages[-1]["tool_calls"])
        talk.messages.append({"role": "tool", "tool_call_id": "call_1", "content": "a diagnosis"})
        flaky.flaky.fault = "insert_results"
    session.view(talk.messages)
    flaky.flaky.fault = None
    assert session.results() == [], "it has a record"
    return session


HOWS = ["away", "orphan", "not exact"]


@pytest.mark.parametrize("how", HOWS)
def test_what_has_no_record_is_shown_under_the_rules_it_would_be_restored_by(
    flaky: Archive, desk: Desk, talk: Conversation, how: str
):
    unrecorded(how, "emr.read", flaky, talk)
    with opening(desk, traced(KEEPS)) as archive:
        session = archive.session("case", OWNER)
        assert len(session.trace_request(1)) == 1
        with pytest.raises(NotAvailableError):
            session.trace_request(2)
        entry = archive.audit(principal=OWNER).entries[-1]
        assert (entry.event, entry.details) == ("restore.denied", {"result": "r0", "why": "not_available"})
        physician = Principal("north-clinic", "triage-agent", {"physician"})
        assert "diagnosis" in read(archive.session("case", physician), 2)[-1]
        assert archive.custody(KEEPER).verify("full").findings == ()


@pytest.mark.parametrize("how", HOWS)
def test_what_has_no_record_and_that_no_rule_keeps_is_shown(flaky: Archive, desk: Desk, talk: Conversation, how: str):
    unrecorded(how, "logs.search", flaky, talk)
    with opening(desk, traced(KEEPS)) as archive:
        assert "diagnosis" in read(archive.session("case", OWNER), 2)[-1]


@pytest.mark.parametrize("tool", ["emr.read", "logs.search"])
def test_what_has_no_record_and_whose_tool_cannot_be_told_is_not_shown(
    flaky: Archive, desk: Desk, talk: Conversation, tool: str
):
    unrecorded("terse", tool, flaky, talk)
    with opening(desk, traced(KEEPS)) as archive, pytest.raises(NotAvailableError):
        archive.session("case", OWNER).trace_request(2)


class TerseResult(BaseModel):
    """The same of an object that holds what a tool said."""

    role: str = "tool"
    tool_call_id: str
    content: str


def test_a_result_without_record_in_a_message_that_cannot_be_read_any_more_is_not_shown(
    flaky: Archive, desk: Desk, talk: Conversation
):
    session = flaky.session("case", OWNER)
    session.view(talk.messages)
    talk.call("emr.read")
    talk.messages.append(TerseResult(tool_call_id="call_1", content="a made-up diagnosis"))
    flaky.flaky.fault = "insert_results"
    session.view(talk.messages)
    flaky.flaky.fault = None
    assert session.results() == [], "it has a record"
    with opening(desk, traced(KEEPS)) as archive, pytest.raises(NotAvailableError):
        archive.session("case", OWNER).trace_request(2)


def test_a_message_that_cannot_be_read_any_more_is_shown(sqlite_desk: Desk, talk: Conversation):
    with opening(sqlite_desk, traced(KEEPS)) as archive:
        session = archive.session("case", OWNER)
        sent = exact(session.view([*talk.messages, Terse(tool_calls=[])]))
        assert read(session, 1) == sent
        assert "role" not in json.loads(sent[-1])


@pytest.mark.parametrize("rules", ['[[restore]]\nroles = ["physician"]\n', KEEPS])
def test_a_tool_message_that_is_no_result_is_shown_under_the_rules_for_its_name_and_for_every_tool(
    sqlite_desk: Desk, talk: Conversation, rules: str
):
    talk.messages.append({"role": "function", "name": "emr.read", "content": "a made-up diagnosis"})
    with opening(sqlite_desk, traced(rules)) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        with pytest.raises(NotAvailableError):
            session.trace_request(1)


def test_a_tool_message_that_names_neither_call_nor_tool_is_not_shown(sqlite_desk: Desk, talk: Conversation):
    talk.messages.append({"role": "tool", "tool_call_id": 7, "content": "a made-up diagnosis"})
    with opening(sqlite_desk, traced(KEEPS)) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        with pytest.raises(NotAvailableError):
            session.trace_request(1)


@pytest.mark.parametrize("how", HOWS)
def test_must_fail_control_a_trace_that_asks_of_records_alone_gives_it_out(
    flaky: Archive, desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch, how: str
):
    unrecorded(how, "emr.read", flaky, talk)
    monkeypatch.setattr(Tracing, "_unrecorded", lambda *_: [])
    with opening(desk, traced(KEEPS)) as archive:
        assert "diagnosis" in read(archive.session("case", OWNER), 2)[-1]


def test_must_fail_control_a_trace_that_does_not_ask_gives_it_out(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    with opening(sqlite_desk, traced(GUARDED)) as archive:
        session = labelled(archive, talk)
        monkeypatch.setattr(Tracing, "_may_read", lambda *_: True)
        assert "diagnosis" in read(session, 2)[-1]


# --- nothing in clear -------------------------------------------------------------------------------------------


def forms(secret: str) -> Iterator[bytes]:
    """How a text may be written, whatever stands before it."""
    data = secret.encode()
    yield from (data, data.hex().encode(), data.hex().upper().encode())
    yield from (secret.encode("utf-16-le"), secret.encode("utf-16-be"))
    for shift in range(3):
        yield base64.b64encode(b"x" * shift + data)[4:-4]


def found(desk: Desk, logged: str, secrets_: list[str]) -> set[bytes]:
    data = [logged.encode("utf-8", "surrogatepass"), desk.stored()]
    data += [path.read_bytes() for path in desk.folder.rglob("*") if path.is_file() and path.name != "evidence.keys"]
    return {form for secret in secrets_ for form in forms(secret) if any(form in one for one in data)}


def canaries(talk: Conversation) -> list[str]:
    """Random words in every place of a conversation."""
    words = [secrets.token_hex(16) for _ in range(5)]
    talk.messages.insert(0, {"role": "system", "content": f"You know {words[0]}."})
    talk.messages.append({"role": "user", "content": f"Ask {words[1]}!", "name": words[2]})
    talk.call("logs.search", json.dumps({"q": words[3]}))
    talk.messages.append({"role": "tool", "tool_call_id": "call_1", "content": f"{words[4]} {LONG}"})
    talk.say()
    return words


def spoken(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> str:
    """What was logged: events are printed, unless the process hands them to ``logging``."""
    records = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    return "\n".join([*records, *capsys.readouterr()])


def test_no_canary_is_in_the_store_or_in_a_log(
    sqlite_desk: Desk,
    talk: Conversation,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
):
    caplog.set_level(logging.DEBUG)
    words = canaries(talk)
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        for at in range(12):
            session.view(talk.messages)
            assert all(word in "".join(read(session, at + 1)) for word in words[:3])
            talk.tool(f"{at} {LONG}")
            talk.say(words[at % 5])
        said = spoken(caplog, capsys)
        assert "evidence_archive.context_sent" in said
        assert found(sqlite_desk, said, words) == set()
    assert found(sqlite_desk, spoken(caplog, capsys), words) == set()


@pytest.mark.parametrize("packed", [False, True])
def test_must_fail_control_a_trace_that_is_not_closed_is_noticed(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch, packed: bool
):
    words = canaries(talk)
    for module in (books, tracing):
        monkeypatch.setattr(module, "wrap", lambda _key, data, _context: data)
        monkeypatch.setattr(module, "unwrap", lambda _key, data, _context: data)
    monkeypatch.setattr(tracing, "COMPRESS_BYTES_MIN", 1 if packed else 1 << 40)
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        if packed:
            (posting,) = postings(session)
            frame = base64.b64decode(json.loads(posting.closed)["data"])
            assert words[0].encode() in zstandard.ZstdDecompressor().decompress(frame)
        else:
            assert found(sqlite_desk, "", words) != set()


# --- gone, and damaged ------------------------------------------------------------------------------------------


def test_with_its_session_the_trace_is_gone(desk: Desk, talk: Conversation):
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        normal = session.view(talk.messages)
        archive.custody(KEEPER).shred(session_id="case")
        for verb in (session.trace, lambda: session.trace_request(1)):
            with pytest.raises(ShreddedError):
                verb()
        assert session.view(talk.messages) == normal
        assert len(postings(session)) == 1
    with opening(desk) as archive, pytest.raises(ShreddedError):
        archive.session("case", OWNER).trace()


def shredded(archive: Archive, talk: Conversation) -> Session:
    """An original that two requests showed was shredded; a third one came after that."""
    session = archive.session("case", OWNER)
    talk.tool(f"made-up secret {LONG}")
    talk.say()
    session.view(talk.messages)
    session.view(talk.messages)
    session.archive([("r1", "a note")])
    archive.custody(KEEPER).shred(session_id="case", result_id="r1")
    session.view(talk.messages)
    return session


def survivors(session: Session) -> list[bytes]:
    """What of the trace opens with the keys of the present."""
    key, opens = tracing.derive(session._records.keys.key, b"evidence-archive/v1/trace"), []
    for posting in books.Books(session._records).read(TRACE_BOOK):
        request, data = posting.content["request"], base64.b64decode(posting.content["data"])
        try:
            opens.append(tracing.unwrap(key, data, session._tracing._context(request, 0)))
        except SealBrokenError:
            continue
    return opens


def test_with_an_original_goes_all_that_showed_it_and_the_trace_goes_on(desk: Desk, talk: Conversation):
    with opening(desk) as archive:
        session = shredded(archive, talk)
        assert [entry.readable for entry in session.trace()] == [False, False, True]
        for request in (1, 2):
            with pytest.raises(ShreddedError):
                session.trace_request(request)
        assert len(survivors(session)) == 1
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        after = exact(session.view(talk.messages))
        assert read(session, 4) == read(session, 3) == after
        assert "made-up secret" not in "".join(after)
        assert told(session) == [(1, 0, True), (2, 0, False), (3, 0, False), (4, 0, True)]
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_must_fail_control_under_the_key_of_postings_the_original_would_live_on(
    sqlite_desk: Desk, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    label = b"evidence-archive/v1/trace"
    monkeypatch.setattr(Tracing, "_key", property(lambda self: tracing.derive(self._records.keys.tag, label)))
    with opening(sqlite_desk) as archive:
        session = shredded(archive, talk)
        head = books.Books(session._records).read(TRACE_BOOK)[0].content
        _, lines = session._tracing._difference([head])
        assert "made-up secret" in "".join(lines)


def test_a_request_is_left_out_where_an_original_is_shredded_before_it_is_written(
    flaky: Archive, desk: Desk, talk: Conversation
):
    session = flaky.session("case", OWNER)
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "a note")])
    session.view(talk.messages)
    with opening(desk) as other:
        flaky.flaky.before_write = lambda: other.custody(KEEPER).shred(session_id="case", result_id="r1")
        assert session.view(talk.messages)[2]["content"].startswith("[archived r1")
    session.view(talk.messages)
    assert told(session) == [(1, 0, True), (2, 0, False), (4, 1, False)]
    assert len(survivors(session)) == 1


def loosened(desk: Desk) -> None:
    if desk.server is None:
        for what in ("insert", "update", "delete"):
            desk.execute(f"DROP TRIGGER postings_only_grow_{what}")
    else:
        desk.execute("ALTER TABLE postings DISABLE TRIGGER USER")


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("DELETE FROM postings WHERE seq = 2", "posting_missing"),
        ("UPDATE postings SET closed = (SELECT closed FROM postings WHERE seq = 1) WHERE seq = 2", "posting_differs"),
    ],
    ids=["removed", "changed"],
)
def test_an_entry_that_was_removed_or_changed_is_found(desk: Desk, talk: Conversation, statement: str, finding: str):
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        for _ in range(3):
            talk.say()
            session.view(talk.messages)
    loosened(desk)
    desk.execute(statement)
    with opening(desk) as archive:
        session = archive.session("case", OWNER)
        assert finding in {one.code for one in archive.custody(KEEPER).verify("full").findings}
        for verb in (session.trace, lambda: session.trace_request(1)):
            with pytest.raises(SealBrokenError):
                verb()
        assert session.view(talk.messages) == talk.messages, "a view fails because of its trace"
        assert session.stats().suspended == "integrity"


# --- as it is stored --------------------------------------------------------------------------------------------


def test_what_is_stored_is_what_the_page_says(sqlite_desk: Desk, talk: Conversation):
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        talk.tool(LONG)
        talk.say()
        sent = exact(session.view(talk.messages))
        talk.messages.append(image(300_000))
        session.view(talk.messages)
        keys, deployment = session._records.keys, session._records.vault.deployment
        contents = [posting.content for posting in books.Books(session._records).read(TRACE_BOOK)]
    key = hkdf(keys.key, b"evidence-archive/v1/trace")

    def packed(request: int, parts: list[Any]) -> bytes:
        bound = [(deployment, "north-clinic", keys.scope_id, request, at) for at in range(len(parts))]
        contexts = [b"evidence-archive/v1/trace\0" + fields_of(*one) for one in bound]
        datas = [base64.b64decode(part["data"], validate=True) for part in parts]
        return b"".join(decrypt(key, context, data) for context, data in zip(contexts, datas, strict=True))

    first, second, *rest = contents
    assert (first["zstd"], first["whole"], first["parts"]) == (True, True, 1)
    runs, *lines = zstandard.ZstdDecompressor().decompress(packed(1, [first])).decode("ascii").split("\n")
    assert json.loads(runs) == [4]
    assert lines == [f" {sent[0]}", f" {sent[1]}", f"1 {sent[2]}", f" {sent[3]}"]
    assert (second["whole"], second["parts"], len(rest)) == (False, 2, 1)
    body = zstandard.ZstdDecompressor().decompress(packed(2, [second, *rest]))
    assert (json.loads(body.split(b"\n")[0]), len(body)) == ([[0, 4], 1], second["size"])
    assert set(rest[0]) == {"data"}


@pytest.fixture(scope="module")
def page() -> str:
    return (
        (Path(__file__).resolve().parents[1] / "docs" / "format.md")
        .read_text("utf-8")
        .partition("### Trace\n")[2]
        .partition("\n## ")[0]
    )


def test_the_page_names_all_that_a_posting_has(sqlite_desk: Desk, talk: Conversation, page: str):
    with opening(sqlite_desk) as archive:
        session = archive.session("case", OWNER)
        session.view(talk.messages)
        names = books.Books(session._records).read(TRACE_BOOK)[0].content
    assert {name for name in names if f"`{name}`" not in page} == set()
