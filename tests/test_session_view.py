"""A view: what the model is shown, from the messages and committed state alone."""

import json
import logging
import os
import subprocess
import sys
from copy import deepcopy
from itertools import count
from threading import Barrier, Thread
from typing import Any

import pytest
from doubles import Characters, opened, policy_of
from hostile import forgeries, hostile_ids, hostile_text
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from evidence_archive import BatchRejectedError, MessageShapeError, MisuseError

LONG = "2026-11-30 worker 7: nothing to report\r\n" * 40
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 9}}


@pytest.fixture
def archive(desk):
    with opened(desk) as archive:
        yield archive


@pytest.fixture
def session(archive, owner):
    return archive.session("case", owner)


def label_of(session, result_id):
    return f"[evidence {result_id} tag={session._records.row.tag}]"


# --- what is shared, what is new --------------------------------------------------------------------------------


def test_a_view_is_a_new_list_and_the_messages_stay_as_they_were(session, talk):
    talk.tool(LONG)
    talk.tool([{"type": "text", "text": LONG}, IMAGE])
    before = deepcopy(talk.messages)
    view = session.view(talk.messages)
    assert view is not talk.messages
    assert talk.messages == before
    assert view != talk.messages
    view.clear()
    assert len(session.view(talk.messages)) == len(before)


def test_messages_that_do_not_change_are_the_application_s_own_objects(session, talk):
    talk.tool("short")
    labelled = talk.tool(LONG)
    talk.say()
    for shown, own in zip(session.view(talk.messages), talk.messages, strict=True):
        assert (shown is own) is (own is not labelled)
    changed = session.view(talk.messages)[4]
    assert {key for key in labelled if changed[key] is not labelled[key]} == {"content"}


def test_an_equal_list_of_new_objects_is_shown_with_the_new_objects(session, talk):
    talk.tool("short")
    first = session.view(talk.messages)
    rebuilt = deepcopy(talk.messages)
    second = session.view(rebuilt)
    assert second == first
    assert all(shown is own for shown, own in zip(second, rebuilt, strict=True))


def test_sdk_objects_and_dicts_mix_and_keep_their_types(session, talk):
    call = {"id": "c9", "type": "function", "function": {"name": "logs.search", "arguments": "{}"}}
    spoken = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    talk.messages += [spoken, {"role": "tool", "tool_call_id": "c9", "content": LONG}]
    talk.messages.append(ChatCompletionMessage(role="assistant", content="I have read it."))
    view = session.view(talk.messages)
    assert view[1] is spoken
    assert view[3] is talk.messages[3]
    assert view[2]["content"] == f"{label_of(session, 'r1')}\n{LONG}"
    session.archive([("r1", "all quiet")])
    assert session.view(talk.messages)[2]["content"].endswith("> all quiet")
    assert session.results()[0].tool == "logs.search"


@pytest.mark.parametrize("messages", ["text", b"bytes", {"role": "user"}, 7, [7], [{"content": "no role"}]])
def test_what_is_not_a_list_of_messages_is_refused_and_costs_nothing(session, talk, messages):
    talk.tool(LONG)
    before = session.view(talk.messages)
    with pytest.raises(MessageShapeError):
        session.view(messages)
    assert session.view(talk.messages) == before


def test_a_closed_archive_shows_nothing(archive, session, talk):
    archive.close()
    with pytest.raises(MisuseError):
        session.view(talk.messages)


def test_a_view_with_nothing_new_reads_once_and_writes_nothing(archive, session, talk):
    talk.tool(LONG)
    session.view(talk.messages)
    reads, writes = archive.flaky.reads, archive.flaky.writes
    talk.say()
    session.view(talk.messages)
    assert (archive.flaky.reads - reads, archive.flaky.writes - writes) == (1, 0)
    talk.tool(LONG + "!")
    talk.tool(LONG + "?")
    session.view(talk.messages)
    assert (archive.flaky.reads - reads, archive.flaky.writes - writes) == (2, 1)


# --- labels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 799, 800, 801])
def test_a_text_is_labelled_from_800_characters_on(session, talk, size):
    talk.tool("x" * size)
    content = session.view(talk.messages)[2]["content"]
    assert content == (f"{label_of(session, 'r1')}\n" if size >= 800 else "") + "x" * size


def test_protected_results_are_labelled_like_all_others(desk, owner, talk):
    policy = policy_of('[[archive]]\nid = "no"\ntools = ["drug_label.*"]\neffect = "never"\nreason = "kept"')
    with opened(desk, policy=policy) as archive:
        session = archive.session("case", owner)
        talk.tool(LONG, "drug_label.read")
        assert session.view(talk.messages)[2]["content"].startswith(label_of(session, "r1"))
        assert session.results()[0].protected_by == "no"


def test_a_label_stays_as_it_was_decided_when_the_limit_changes(desk, owner, talk):
    talk.tool("x" * 500)
    talk.tool("y" * 900)
    with opened(desk) as archive:
        before = archive.session("case", owner).view(talk.messages)
    assert [len(message["content"]) for message in before[2::2]] == [500, 900 + len("[evidence r2 tag=0000]\n")]
    for limit in (100, 5_000):
        with opened(desk, policy=policy_of(label_chars_min=limit)) as archive:
            assert archive.session("case", owner).view(talk.messages) == before


@pytest.mark.parametrize(
    ("parts", "labelled"),
    [
        ([IMAGE], True),
        ([{"type": "text", "text": "short"}, IMAGE], True),
        ([{"type": "text", "text": "x" * 400}, {"type": "text", "text": "y" * 400}], True),
        ([{"type": "text", "text": "short"}], False),
        ([], False),
    ],
)
def test_a_part_list_gets_its_label_as_a_part_of_its_own(session, talk, parts, labelled):
    talk.tool(parts)
    content = session.view(talk.messages)[2]["content"]
    assert content == ([{"type": "text", "text": label_of(session, "r1")}] if labelled else []) + parts
    assert session.view(session.view(talk.messages))[2]["content"] == content


def test_the_note_of_a_part_list_is_one_text_part_and_takes_the_cache_mark_along(session, talk):
    mark = {"type": "ephemeral"}
    talk.tool([{"type": "text", "text": LONG}, {**IMAGE, "cache_control": mark}])
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "an image and a log")])
    (part,) = session.view(talk.messages)[2]["content"]
    assert part["type"] == "text"
    assert part["cache_control"] == mark
    assert part["text"].startswith("[archived r1 tag=")
    assert set(part) == {"type", "text", "cache_control"}
    assert session.view(session.view(talk.messages)) == session.view(talk.messages)


def test_originals_are_stored_without_their_label(session, talk):
    talk.tool(LONG)
    talk.say()
    stored = session.view(talk.messages)  # an application that keeps views hands in labels
    session.view(stored)
    session.archive([("r1", "all quiet")])
    assert session.restore("r1").content == LONG


# --- what passes through ----------------------------------------------------------------------------------------


def _passed(caplog):
    return [record for record in caplog.records if "passed_through" in record.getMessage()]


def test_an_orphan_passes_through_untouched_and_is_reported_once(session, talk, caplog):
    caplog.set_level(logging.WARNING, "evidence_archive")
    orphan = {"role": "tool", "tool_call_id": "nobody", "content": LONG}
    talk.messages.append(orphan)
    talk.tool(LONG)
    for _ in range(3):
        view = session.view(talk.messages)
        assert view[1] is orphan
        assert view[3]["content"].startswith(label_of(session, "r1"))
        talk.say()
    assert len(_passed(caplog)) == 1
    assert LONG[:20] not in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        {"type": "text", "text": LONG},
        [float("nan")],
        [{"type": "text", "text": LONG, "score": float("inf")}],
        [{"type": "text", "text": LONG + "\ud83d\ude00"}],
        [{"type": "text", "text": LONG, 7: "a key that is a number"}],
        [({"type": "text", "text": LONG},)],
    ],
    ids=["none", "number", "dict", "nan", "infinity", "split surrogates", "number key", "tuple"],
)
def test_a_content_that_would_not_come_back_equal_passes_through_and_is_never_eligible(
    session, talk, caplog, content
):
    caplog.set_level(logging.WARNING, "evidence_archive")
    message = talk.tool(content)
    talk.say()
    for _ in range(2):
        assert session.view(talk.messages)[2] is message
    assert session.results() == []
    assert len(_passed(caplog)) == 1
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "a note")])
    assert [target.status for target in refused.value.targets] == ["unknown"]
    with pytest.raises(MessageShapeError):
        session.label(message, sensitivity="clinical")


def test_whatever_is_not_a_tool_result_keeps_every_byte(session, talk):
    """A14: signed thinking blocks answer with 400 when anything in them changes."""
    signed = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": LONG, "signature": "c2lnbmVk"}],
        "reasoning_content": LONG,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "logs.search", "arguments": "{}"}}],
    }
    others = [
        {"role": "system", "content": f"[evidence r1 tag=0000]\n{LONG}"},
        {"role": "user", "content": [{"type": "text", "text": LONG}, IMAGE]},
        {"role": "function", "name": "old", "content": LONG},
        {"role": "developer", "content": LONG},
    ]
    messages = [*others, signed, {"role": "tool", "tool_call_id": "c", "content": LONG, "extra": {"kept": 1}}]
    messages.append({"role": "assistant", "content": LONG})
    before = json.dumps(messages)
    session.view(messages)
    session.archive([("r1", "all quiet")])
    view = session.view(messages)
    assert all(view[at] is messages[at] for at in (0, 1, 2, 3, 4, 6))
    assert {key: value for key, value in view[5].items() if key != "content"} == {
        key: value for key, value in messages[5].items() if key != "content"
    }
    assert json.dumps(messages) == before


# --- laws, for conversations of any shape -----------------------------------------------------------------------

_CONTENTS = st.one_of(
    st.sampled_from((LONG, LONG, "", "ok", "y" * 800, None, [float("nan")], [], [IMAGE])),
    st.builds(lambda text: text * 60, forgeries()),
    hostile_text(),
    st.builds(lambda text: [{"type": "text", "text": text}, IMAGE], hostile_text()),
)
_IDS = st.sampled_from(("", "call_0", "call_0", "c1", "r1")) | hostile_ids()
_NAMES = st.sampled_from(("logs.search", "restore_evidence", "")) | hostile_ids()


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns with calls and results: ids reused, equal, missing; results missing, doubled or for nobody."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go on"}]
    for _ in range(draw(st.integers(1, 5))):
        ids = draw(st.lists(_IDS, min_size=1, max_size=3))
        calls = [{"id": i, "type": "function", "function": {"name": draw(_NAMES), "arguments": "{}"}} for i in ids]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        answered = draw(st.permutations(ids))[: draw(st.integers(0, len(ids)))]
        answered += draw(st.lists(_IDS, max_size=1))
        messages += [{"role": "tool", "tool_call_id": i, "content": draw(_CONTENTS)} for i in answered]
        if draw(st.booleans()):
            messages.append({"role": draw(st.sampled_from(("assistant", "user"))), "content": draw(hostile_text())})
    return messages


def _bare(message):
    return {key: value for key, value in message.items() if key != "content"}


def assert_only_results_changed(messages, view):
    """Same messages in the same order; only what tool messages hold may differ."""
    assert len(view) == len(messages)
    for shown, own in zip(view, messages, strict=True):
        assert shown is own or (own["role"] == "tool" and _bare(shown) == _bare(own))


_numbers = count()


@settings(max_examples=60)
@given(conversations())
def test_views_keep_pairs_order_and_prefixes_whatever_the_conversation(archive, owner, messages):
    name = f"case-{next(_numbers)}"
    session = archive.session(name, owner)
    before = repr(messages)
    grown = []
    for end in range(1, len(messages) + 1):
        view = session.view(messages[:end])
        assert_only_results_changed(messages[:end], view)
        assert json.dumps(view[: len(grown)]) == json.dumps(grown)  # a cached prefix stays valid
        assert session.view(view) == view
        grown = view
    again = archive.session(name, owner)  # another process comes second: everything from the store
    assert json.dumps(again.view(messages)) == json.dumps(grown)
    assert json.dumps(again.view(grown)) == json.dumps(grown)

    messages.append({"role": "assistant", "content": "I have read it all."})
    session.view(messages)
    wanted = [info.id for info in session.results()]
    while wanted:
        try:
            session.archive([(result_id, "read") for result_id in wanted])
            break
        except BatchRejectedError as refused:
            wanted = [target.result_id for target in refused.targets if target.status == "ok"]
    view = session.view(messages)
    assert_only_results_changed(messages, view)
    for form in (messages, view, [*grown, messages[-1]]):
        for who in (session, again, archive.session(name, owner)):
            assert json.dumps(who.view(form)) == json.dumps(view)
    assert sum("[archived r" in str(message["content"])[:40] for message in view) >= len(wanted) - 1 or not wanted
    assert repr(messages[:-1]) == before
    assert {info.id for info in session.results() if info.state == "archived"} == set(wanted)


def test_the_check_of_pairs_catches_a_view_that_drops_or_swaps():
    messages = [
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]
    for broken in (messages[:2], [messages[0], messages[2], messages[1]], [{**messages[0], "content": "x"}]):
        with pytest.raises(AssertionError):
            assert_only_results_changed(messages, broken)


# --- identity ---------------------------------------------------------------------------------------------------


def test_ids_stay_when_the_application_drops_or_rewrites_old_messages(session, talk):
    for number in range(4):
        talk.tool(f"{number} {LONG}", call_id="call_0")
        talk.say()
    view = session.view(talk.messages)
    dropped = session.view([talk.messages[0], *talk.messages[4:]])
    assert dropped[1:] == view[4:]
    rewritten = [{"role": "user", "content": "a summary"}, *talk.messages[7:]]
    assert session.view(rewritten)[1:] == view[7:]
    assert session.view(talk.messages) == view


def test_a_result_changed_in_place_is_another_result(session, talk):
    message = talk.tool([{"type": "text", "text": LONG}])
    session.view(talk.messages)
    message["content"][0]["text"] = "other " + LONG
    assert session.view(talk.messages)[2]["content"][0]["text"] == label_of(session, "r2")


def test_what_another_process_archived_is_seen_by_the_next_view(desk, session, owner, talk):
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    with opened(desk) as other:
        elsewhere = other.session("case", owner)
        elsewhere.view(talk.messages)
        elsewhere.archive([("r1", "archived elsewhere")])
    assert session.view(talk.messages)[2]["content"].endswith("> archived elsewhere")


@pytest.mark.parametrize("order", ["same", "reverse", "other"])
def test_two_processes_that_meet_results_at_once_give_each_one_id(desk, archive, session, owner, talk, order):
    for number in range(3):
        talk.tool(f"{number} {LONG}", call_id="call_0")
    theirs = list(talk.messages)
    if order == "reverse":
        theirs[1:] = theirs[5:7] + theirs[3:5] + theirs[1:3]
    if order == "other":
        theirs[6] = {**theirs[6], "content": f"theirs {LONG}"}
    with opened(desk) as other:
        rival = other.session("case", owner)
        shown = []
        archive.flaky.before_write = lambda: shown.append(rival.view(theirs))
        view = session.view(talk.messages)
        assert session.view(theirs) == shown[0] == rival.view(theirs)
        assert rival.view(talk.messages) == view
    ids = [message["content"].split(" ")[1] for message in view[2::2]]
    assert sorted(ids) == (["r1", "r2", "r4"] if order == "other" else ["r1", "r2", "r3"])
    assert len(desk.rows("results")) == (4 if order == "other" else 3)


_ELSEWHERE = """
import json, sys
from evidence_archive import Archive, Principal
url, keys = sys.argv[1:]
with Archive.open(url, keys=keys) as archive:
    session = archive.session("case", Principal(org="north-clinic", subject="triage-agent"))
    print(json.dumps(session.view(json.load(sys.stdin))))
"""


def test_two_processes_show_the_same_bytes(desk, session, talk):
    talk.tool("\ud800 \x00 \U0001f600 " + LONG)
    talk.tool([{"type": "text", "text": LONG}, IMAGE])
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "\u202ehidden\u200b and\r\nseen")])
    here = json.dumps(session.view(talk.messages))
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, desk.url, str(desk.keys)],
            input=json.dumps(talk.messages),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert there.stdout.strip() == here


def test_a_note_is_the_same_whatever_counts_tokens_in_the_process_that_shows_it(desk, session, owner, talk):
    class Estimate(Characters):
        name = "estimate"
        estimated = True

    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "all quiet")])
    here = session.view(talk.messages)
    with opened(desk, counter=Estimate()) as other:
        assert other.session("case", owner).view(talk.messages) == here


def test_the_window_is_counted_as_the_model_gets_it(session, talk):
    assert session.stats().window_tokens == 0
    talk.tool(LONG)
    talk.say()
    for _ in range(2):
        view = session.view(talk.messages)
        texts = [text for message in view for text in session._records.dialect.message_texts(message)]
        assert session.stats().window_tokens == 4 * len(view) + sum(map(Characters().count, texts))
    before = session.stats()
    saved = session.archive([("r1", "all quiet")]).tokens_saved
    assert session.stats().window_tokens == before.window_tokens  # the newest view, which was before
    session.view(talk.messages)
    label = Characters().count(f"{label_of(session, 'r1')}\n{LONG}") - Characters().count(LONG)
    assert session.stats().window_tokens == before.window_tokens - saved - label
    after = session.stats()
    assert (after.requests, after.results, after.archived, after.batches) == (3, 1, 1, 1)
    assert after.tokens_saved == saved


# --- threads ----------------------------------------------------------------------------------------------------


def test_threads_that_view_one_session_give_each_original_one_id(desk, archive, owner, talk):
    sessions = [archive.session("case", owner), archive.session("case", owner)]
    for number in range(12):
        talk.tool(f"{number} {LONG}", call_id="call_0")
    talk.say()
    barrier, views, errors = Barrier(6), [], []

    def work(at):
        try:
            barrier.wait()
            for end in range(1, len(talk.messages) + 1, 1 + at):
                sessions[at % 2].view(talk.messages[:end])
            views.append(json.dumps(sessions[at % 2].view(talk.messages)))
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(views)) == 1
    assert len(desk.rows("results")) == 12
    assert [info.id for info in sessions[0].results()] == [f"r{number}" for number in range(1, 13)]


def test_threads_that_archive_the_same_results_archive_each_once(desk, archive, owner, talk):
    session, other = archive.session("case", owner), archive.session("case", owner)
    for number in range(6):
        talk.tool(f"{number} {LONG}")
    talk.say()
    session.view(talk.messages)
    other.view(talk.messages)
    barrier, accepted, refused = Barrier(6), [], []

    def work(at):
        barrier.wait()
        for number in range(1, 7):
            try:
                accepted.append((session, other)[at % 2].archive([(f"r{number}", f"by {at}")]).result_ids)
            except BatchRejectedError as error:
                refused.extend(target.status for target in error.targets)

    threads = [Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(accepted) == [(f"r{number}",) for number in range(1, 7)]
    assert refused == ["already_archived"] * 30
    assert len(desk.rows("originals")) == 6
    assert session.view(talk.messages) == other.view(talk.messages)
