"""Ways around a policy, and odd input, that once worked; each is named after the attempt."""

import copy
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import Conversation
from doubles import batch_of, opened, policy_of

from evidence_archive import BatchRejectedError, FormatError, PolicyError, StoreError, notes

LONG = "\n".join(f"line {number} of a log that is long enough" for number in range(120))
SECRET_STAYS = """
[[archive]]
id = "secret"
sensitivity = ["secret"]
effect = "never"
"""


def statuses(session: Any, *batch: tuple[str, str]) -> list[str]:
    with pytest.raises(BatchRejectedError) as refused:
        session.archive(batch)
    return [target.status for target in refused.value.targets]


def viewed(session: Any, *contents: Any, name: str = "logs.search") -> Conversation:
    talk = Conversation()
    for content in contents:
        talk.tool(content, name)
    talk.say()
    session.view(talk.messages)
    return talk


@pytest.mark.parametrize("handed_in", ["out of the view", "an equal copy", "an equal copy of the view's"])
def test_a_label_on_any_form_of_a_viewed_result_protects_that_result(desk, owner, handed_in):
    with opened(desk, policy=policy_of(SECRET_STAYS)) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        view = session.view(talk.messages)
        message = {
            "out of the view": view[2],
            "an equal copy": json.loads(json.dumps(talk.messages[2])),
            "an equal copy of the view's": json.loads(json.dumps(view[2])),
        }[handed_in]
        assert session.label(message, sensitivity="secret") == "r1"
        assert statuses(session, ("r1", "n")) == ["protected"]


@pytest.mark.parametrize("form", ["the original", "its note"])
def test_a_label_on_any_form_of_an_archived_result_counts_for_its_restore(desk, owner, form):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        session.archive([("r1", "n")])
        message = copy.deepcopy(talk.messages[2] if form == "the original" else session.view(talk.messages)[2])
        assert session.label(message, sensitivity="clinical") == "r1"
        assert archive.restore("case", "r1", principal=owner).provenance.sensitivity == ("clinical",)


def test_a_label_in_a_new_process_before_its_first_view_meets_what_another_registered(desk, owner):
    with opened(desk, policy=policy_of(SECRET_STAYS)) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        with opened(desk, policy=policy_of(SECRET_STAYS)) as other:
            assert other.session("case", owner).label(talk.messages[2], sensitivity="secret") == "r1"
        assert statuses(session, ("r1", "n")) == ["protected"]


def test_a_label_in_a_race_with_the_first_view_of_another_process_is_not_lost(desk, owner):
    policy = policy_of(SECRET_STAYS)
    with opened(desk, policy=policy) as one, opened(desk, policy=policy) as other:
        labelling, viewing = one.session("case", owner), other.session("case", owner)
        talk = Conversation()
        message = talk.tool(LONG)
        talk.say()
        one.flaky.before_write = lambda: viewing.view(copy.deepcopy(talk.messages))
        labelling.label(message, sensitivity="secret")
        assert statuses(viewing, ("r1", "n")) == ["protected"]


@pytest.mark.parametrize("words", ["médecin: confidentiel", "机密", 'says "no"', "back\\slash", "two\nlines"])
def test_a_content_rule_finds_its_words_beside_an_image_as_they_stand(desk, owner, words):
    rule = f'[[archive]]\nid = "words"\ncontent = {json.dumps(words, ensure_ascii=False)}\neffect = "never"\n'
    parts = [
        {"type": "text", "text": f"{words}\n{LONG}"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    assert words not in json.dumps(parts)  # what looking at JSON would miss
    with opened(desk, policy=policy_of(rule)) as archive:
        session = archive.session("case", owner)
        viewed(session, parts, f"{words}\n{LONG}", LONG)
        assert statuses(session, ("r1", "n"), ("r2", "n"), ("r3", "n")) == ["protected", "protected", "ok"]


@pytest.mark.parametrize("handed_over", ["as sent", "parsed", "written anew"])
def test_a_call_made_in_the_open_turn_has_read_nothing_of_it_however_it_is_handed_over(desk, owner, handed_over):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        arguments = batch_of(("r1", "n"))
        calls = [
            {"id": "a", "type": "function", "function": {"name": "logs.search", "arguments": "{}"}},
            {"id": "q", "type": "function", "function": {"name": "archive_evidence", "arguments": arguments}},
        ]
        messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": LONG},
        ]
        session.view(messages)
        call = copy.deepcopy(calls[1])
        call["function"]["arguments"] = {
            "as sent": arguments,
            "parsed": json.loads(arguments),
            "written anew": json.dumps(json.loads(arguments), indent=1),
        }[handed_over]
        answer = session.answer(call)["content"]
        assert answer.startswith("NOTHING was archived")
        assert "unread" in answer


@pytest.mark.parametrize("handed_over", ["as sent", "parsed", "written anew"])
@pytest.mark.parametrize("tool", ["archive_evidence", "restore_evidence"])
def test_an_old_call_that_is_answered_once_more_has_read_nothing_that_came_after_it(desk, owner, tool, handed_over):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        talk.tool(LONG)
        session.view(talk.messages)
        arguments = batch_of(("r1", "n")) if tool == "archive_evidence" else '{"id": "r1"}'
        call = talk.call(tool, arguments)
        talk.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        talk.messages.append(session.answer(call))
        talk.tool(LONG + "!")
        session.view(talk.messages)
        newest = session.results()[-1].id
        again = copy.deepcopy(call)
        again["function"]["arguments"] = {
            "as sent": arguments,
            "parsed": json.loads(arguments),
            "written anew": json.dumps(json.loads(arguments), indent=1),
        }[handed_over]
        session.answer(again)
        assert statuses(session, (newest, "n")) == ["unread"]
        session.answer(talk.call("restore_evidence", '{"id": "r9"}'))  # a new one does show it
        assert session.archive([(newest, "n")]).result_ids == (newest,)


@pytest.mark.parametrize(
    "time",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        datetime(2026, 11, 30),
        "2026-11-30",
        5,
    ],
)
def test_a_time_that_cannot_be_written_in_utc_is_refused_before_anything_is_stored(desk, owner, time):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        with pytest.raises(FormatError, match="observed_at"):
            session.label(talk.messages[2], observed_at=time)
        assert session.archive([("r1", "n")]).result_ids == ("r1",)


@pytest.mark.parametrize("time", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_the_last_and_the_first_time_there_is_can_be_told(desk, owner, time):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        session.label(talk.messages[2], observed_at=time)
        told = time.replace(microsecond=0).isoformat().replace("+00:00", "Z")
        assert session.results()[0].observed_at == told
        session.archive([("r1", "n")])
        assert session.restore("r1").content == LONG


def test_a_cache_mark_that_moves_makes_no_new_result_and_un_archives_nothing(desk, owner):
    def parts(marked: bool) -> list[Any]:
        mark = {"cache_control": {"type": "ephemeral"}} if marked else {}
        return [{"type": "text", "text": LONG, **mark}]

    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, parts(True))
        label = session.view(talk.messages)[2]["content"][0]
        talk.messages[2] = {**talk.messages[2], "content": parts(False)}
        assert session.view(talk.messages)[2]["content"] == [label, *parts(False)]
        session.archive([("r1", "n")])
        for marked in (True, False):
            talk.messages[2] = {**talk.messages[2], "content": parts(marked)}
            (note,) = session.view(talk.messages)[2]["content"]
            assert note["text"].startswith("[archived r1 ")
            assert ("cache_control" in note) is marked
        assert session.restore("r1").content == parts(False)
        assert [info.id for info in session.results()] == ["r1"]


def test_a_note_in_a_form_of_a_newer_version_leaves_the_original_in_view(desk, owner, monkeypatch):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG, LONG[::-1])
        session.archive([("r1", "n")])
    monkeypatch.setattr(notes, "RENDERINGS", ("0",))
    with opened(desk) as archive:
        session = archive.session("case", owner)
        view = session.view(talk.messages)
        assert view[2]["content"].endswith(LONG)
        assert session.results()[0].state == "archived"
        assert session.restore("r1").content == LONG


def test_a_store_put_back_to_an_older_state_and_written_since_shows_no_note_without_an_original(sqlite_desk, owner):
    desk = sqlite_desk
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        older = desk.saved()
        session.archive([("r1", "n")])
        assert session.view(talk.messages)[2]["content"].startswith("[archived r1 ")
    with opened(desk) as archive:
        session = archive.session("case", owner)
        session.view(talk.messages)
        copy_of_it = desk.folder / "older.db"
        copy_of_it.write_bytes(older)
        copy_of_it.replace(desk.database)
        for number in range(3):
            talk.tool(f"{number} {LONG}")
        talk.say()
        with opened(desk) as other:
            other.session("case", owner).view(talk.messages)
        for _ in range(2):  # the first one meets the connections to the file that is gone
            assert session.view(talk.messages)[2]["content"].endswith(LONG)
        assert not session.stats().outage
        assert session.archive([("r1", "n")]).result_ids == ("r1",)


@pytest.mark.parametrize("batch", [5, None, "r1", [5], [("r1",)], [("r1", 5)], [(5, "n")]])
def test_a_batch_that_is_no_list_of_pairs_is_a_format_error(desk, owner, batch):
    with opened(desk) as archive, pytest.raises(FormatError):
        archive.session("case", owner).archive(batch)


@pytest.mark.parametrize("named", [{"sensitivity": 5}, {"sensitivity": [5]}, {"kind": 5}, {"sensitivity": [""]}])
def test_a_label_that_is_no_name_is_a_format_error(desk, owner, named):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        with pytest.raises(FormatError):
            session.label(talk.messages[2], **named)


def test_a_result_of_another_tool_is_not_shown_as_the_note_of_an_equal_one(desk, owner):
    rule = '[[archive]]\nid = "rx"\ntools = ["prescription.*"]\neffect = "never"\n'
    with opened(desk, policy=policy_of(rule)) as archive:
        session = archive.session("case", owner)
        talk = Conversation()
        talk.tool(LONG, "logs.search", call_id="call_0")
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "n")])
        later = Conversation()
        later.tool(LONG, "prescription.get", call_id="call_0")
        later.say("?")
        assert session.view(later.messages)[2]["content"].endswith(LONG)
        assert statuses(session, ("r2", "n")) == ["protected"]


@pytest.mark.parametrize("pending", [True, False])
def test_a_result_that_arrives_before_an_old_answer_of_the_model_was_not_read_by_it(desk, owner, pending):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        calls = [
            {"id": name, "type": "function", "function": {"name": "logs.search", "arguments": "{}"}} for name in "ab"
        ]
        messages: list[Any] = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": LONG},
            *([{"role": "tool", "tool_call_id": "b", "content": "pending"}] if pending else []),
            {"role": "assistant", "content": "I wait."},
        ]
        session.view(messages)
        messages[3 : 4 if pending else 3] = [{"role": "tool", "tool_call_id": "b", "content": LONG[::-1]}]
        session.view(messages)
        late = "r3" if pending else "r2"
        assert statuses(session, (late, "n")) == ["unread"]
        messages.append({"role": "assistant", "content": "Now I have it."})
        session.view(messages)
        assert session.archive([(late, "n")]).result_ids == (late,)


def put_back(desk, archive, older: bytes) -> None:
    """Copies an older state over the file, and lets go of what connections remember of the newer one."""
    archive._around.store._engine.engine.dispose()
    desk.put_back(older)


@pytest.mark.parametrize("further", [False, True], ids=["to the same version", "further"])
def test_a_store_put_back_and_grown_again_never_shows_a_note_of_what_is_gone(desk, owner, further):
    with opened(desk) as one, opened(desk) as another:
        session = one.session("case", owner)
        talk = viewed(session, LONG)
        older = desk.saved()
        other = copy.deepcopy(talk)
        for conversation, text in ((talk, "b "), (other, "OTHER ")):
            conversation.tool(text + LONG)
            conversation.say()
        session.view(talk.messages)
        session.archive([("r2", "note of b")])
        put_back(desk, one, older)
        rival = another.session("case", owner)
        rival.view(other.messages)
        rival.archive([("r2", "note of the other")])
        if further:
            rival.restore("r2")
        shown = session.view(talk.messages)[5]["content"]
        assert shown.startswith("[evidence r3 ")
        assert shown.endswith("b " + LONG)


def test_a_store_put_back_and_grown_by_as_many_versions_gives_no_result_the_id_of_another(desk, owner):
    with opened(desk) as one, opened(desk) as another:
        session = one.session("case", owner)
        talk = viewed(session, LONG)
        session.archive([("r1", "n")])
        older = desk.saved()
        other = copy.deepcopy(talk)
        for conversation, text in ((talk, "b "), (other, "OTHER ")):
            conversation.tool(text + LONG)
            conversation.say()
        session.view(talk.messages)
        session.restore("r1")
        session.view(talk.messages)
        put_back(desk, one, older)
        rival = another.session("case", owner)
        rival.view(other.messages)
        rival.restore("r1")
        assert session.view(talk.messages)[5]["content"].startswith("[evidence r3 ")


def test_a_label_on_a_message_out_of_a_view_is_certain_and_makes_no_record(desk, owner):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        message = session.view(talk.messages)[2]
        session.label(message, kind="log")
        with pytest.raises(PolicyError, match="kind already"):
            session.label(message, kind="lab")
        talk.tool("next " + LONG)
        assert session.view(talk.messages)[-1]["content"].startswith("[evidence r2 ")


def test_a_cache_mark_on_the_label_of_a_stored_view_breaks_nothing(desk, owner):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, [{"type": "text", "text": LONG}])
        stored = json.loads(json.dumps(session.view(talk.messages)))
        stored[2]["content"][0]["cache_control"] = {"type": "ephemeral"}
        assert session.view(stored) == stored
        assert [info.id for info in session.results()] == ["r1"]
        session.archive([("r1", "n")])
        assert session.view(stored)[2]["content"][0]["text"].startswith("[archived r1 ")
        assert session.restore("r1").content == [{"type": "text", "text": LONG}]


def test_a_message_emptied_in_place_does_not_make_an_answer_raise(desk, owner):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        talk = viewed(session, LONG)
        call = talk.call("archive_evidence", batch_of(("r1", "n")))
        session.view(talk.messages)
        talk.messages[-1].clear()
        assert "Archived 1 result" in session.answer(call)["content"]


def test_a_result_whose_tool_has_a_very_long_name_is_refused_for_that(desk, owner):
    with opened(desk) as archive:
        session = archive.session("case", owner)
        viewed(session, LONG, name="x" * 2_000)
        with pytest.raises(BatchRejectedError, match="name is too long"):
            session.archive([("r1", "n")])


def test_a_result_that_itself_names_its_tool_at_great_length_is_refused_for_that(desk, owner):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        talk.tool(LONG)["name"] = "x" * 2_000
        talk.say()
        session.view(talk.messages)
        with pytest.raises(BatchRejectedError, match="name is too long"):
            session.archive([("r1", "n")])


def test_damage_that_sqlite_cannot_even_tell_of_is_a_store_error(sqlite_desk, owner):
    desk = sqlite_desk
    with opened(desk) as archive:
        viewed(archive.session("case", owner), LONG)
    data = bytearray(desk.database.read_bytes())
    at = data.index(b"CREATE TABLE results") + 7
    data[at] |= 0x80
    desk.database.write_bytes(bytes(data))
    with pytest.raises(StoreError):
        desk.open().close()
