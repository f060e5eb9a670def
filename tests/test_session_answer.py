"""Calls of the model: every one of ours is answered, whatever it holds and whatever fails."""

import json

import pytest
from doubles import AWAY, UNAUDITED, UNCOMMITTED, UNWRITABLE, batch_of, opened, policy_of
from hostile import hostile_ids, hostile_text
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from evidence_archive import (
    AuditBrokenError,
    BatchRejectedError,
    KeyNotFoundError,
    MisuseError,
    Principal,
    SealBrokenError,
    StoreBusyError,
    StoreUnavailableError,
    WrongKeyError,
)

LONG = "2026-11-30 worker 7: nothing to report\n" * 40
OURS = ("archive_evidence", "restore_evidence")


@pytest.fixture
def archive(desk):
    with opened(desk, policy=policy_of(restores_per_turn_max=100, store_failures_max=100)) as archive:
        yield archive


@pytest.fixture
def session(archive, owner):
    return archive.session("case", owner)


def call_of(name, given, call_id="c"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def read(session, talk, *contents):
    for content in contents:
        talk.tool(content)
    talk.say()
    session.view(talk.messages)


# --- whose call -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        call_of("logs.search", "{}"),
        call_of("Archive_evidence", "{}"),
        call_of("archive_evidence ", "{}"),
        call_of("mcp__x__archive_evidence", "{}"),
        call_of(None, "{}"),
        call_of("archive_evidence", "{}", call_id=7),
        {"id": "c", "type": "function"},
        {},
        None,
        "archive_evidence",
        [],
    ],
    ids=str,
)
def test_a_call_that_is_not_ours_is_left_to_the_application(desk, session, call):
    before = desk.rows("audit_leaves")
    assert session.answer(call) is None
    assert desk.rows("audit_leaves") == before


def test_our_calls_and_others_side_by_side_are_all_answered_in_order(session, talk):
    read(session, talk, LONG)
    calls = [
        call_of("logs.search", "{}", "a"),
        call_of("archive_evidence", batch_of(("r1", "n")), "b"),
        call_of("restore_evidence", '{"id": "r1"}', "c"),
        call_of("logs.search", "{}", "d"),
    ]
    talk.messages.append({"role": "assistant", "content": None, "tool_calls": calls})
    talk.messages += [
        session.answer(call) or {"role": "tool", "tool_call_id": call["id"], "content": "theirs"} for call in calls
    ]
    assert [message["tool_call_id"] for message in talk.messages[-4:]] == ["a", "b", "c", "d"]
    assert [message["content"][:8] for message in talk.messages[-4:]] == ["theirs", "Archived", "[restore", "theirs"]
    assert session.view(session.view(talk.messages)) == session.view(talk.messages)


def test_a_call_may_be_an_sdk_object_and_its_arguments_an_object(session, talk):
    read(session, talk, LONG, LONG + "!")
    sdk = ChatCompletionMessageFunctionToolCall.model_validate(
        call_of("archive_evidence", batch_of(("r1", "n")), "call_sdk")
    )
    answer = session.answer(sdk)
    assert (answer["role"], answer["tool_call_id"], answer["content"][:17]) == (
        "tool",
        "call_sdk",
        "Archived 1 result",
    )
    plain = call_of("archive_evidence", {"batch": [{"id": "r2", "note": "n"}]})
    assert session.answer(plain)["content"].startswith("Archived 1 result")
    assert session.stats().batches == 2


def test_a_batch_of_one_may_be_a_single_object(session, talk):
    read(session, talk, LONG, LONG + "!")
    for one in ({"batch": {"id": "r1", "note": "n"}}, {"id": "r2", "note": "n"}):
        assert session.answer(call_of("archive_evidence", json.dumps(one)))["content"].startswith("Archived 1")


# --- malformed --------------------------------------------------------------------------------------------------

MALFORMED = [
    "",
    "{",
    "null",
    "[]",
    '"r1"',
    "{}",
    '{"batch": [{"id": 1, "note": "n"}]}',
    '{"batch": [{"id": "r1", "note": 7}]}',
    '{"batch": [{"id": "r1", "note": "n", "force": true}]}',
    '{"batch": [{"id": "r1"}]}',
    '{"batch": "r1"}',
    '{"batch": [], "all": true}',
    '{"batch": [{"id": "R1", "note": "n"}]}',
    '{"batch": [{"id": "r1", "id": "r1", "note": "n"}]}',
    '{"batch": NaN}',
    '{"id": 1}',
    '{"id": "r1", "lines": "1", "pattern": "x"}',
    '{"id": "r1", "lines": 10}',
    '{"id": "r1", "context_lines": "2"}',
    '{"id": "r1", "context_lines": true}',
    '{"id": "r1", "everything": true}',
    '{"id": "r1", "pattern": ""}',
    '{"id": "r01"}',
    '{"id": "r1", "reason": "' + "x" * 2_001 + '"}',
    "[" * 50_000,
    '{"id": ' + "9" * 5_000 + "}",
    " " * (1024 * 1024 + 1),
    ["r1"],
    None,
    7,
    {"batch": [("r1", "n")]},
    {1: 2},
]


@pytest.mark.parametrize("given", MALFORMED, ids=lambda given: ascii(given)[:30])
@pytest.mark.parametrize("name", OURS)
def test_malformed_arguments_are_answered_with_what_was_not_done(desk, session, talk, name, given):
    read(session, talk, LONG)
    before = session.view(talk.messages)
    call = call_of(name, given, "call_7")
    talk.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    answer = session.answer(call)
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "call_7")
    assert answer["content"].startswith(("NOTHING was archived", "Nothing was restored", "r1 is not archived"))
    talk.messages.append(answer)
    view = session.view(talk.messages)
    assert view[: len(before)] == before
    assert session.view(view) == view
    assert desk.rows("originals") == []


@pytest.mark.parametrize("name", OURS)
def test_a_message_about_malformed_arguments_shows_arguments_that_can_be_used(session, name):
    lines = session.answer(call_of(name, "{"))["content"].split("\n")
    assert len(lines) == 2
    example = json.loads(lines[1].removeprefix("Example of arguments: "))
    assert set(example) == (
        {"batch"} if name == "archive_evidence" else {"id", "lines", "pattern", "context_lines", "pointer", "reason"}
    )


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | hostile_text() | st.sampled_from(("r1", "r2", "1-2")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("batch", "id", "note", "lines", "pattern", "context_lines", "pointer", "reason")), inner
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(st.sampled_from(OURS), hostile_text() | _ANYTHING | _ANYTHING.map(json.dumps), hostile_ids())
def test_no_call_stays_unanswered_whatever_a_model_writes(archive, owner, name, given, call_id):
    session = archive.session("case", owner)
    session.view([{"role": "user", "content": "go on"}])
    call = call_of(name, given, call_id)
    answer = session.answer(call)
    assert answer["tool_call_id"] == call_id
    assert answer["content"].startswith(("NOTHING was archived", "Nothing was restored"))
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, answer]
    view = session.view(messages)
    assert session.view(view) == view
    assert session.results() == []


# --- whatever fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [AWAY, UNWRITABLE, UNAUDITED, UNCOMMITTED, "insert_originals"])
@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("The disk is full."),
        StoreBusyError("The database is locked."),
        SealBrokenError("A row does not verify."),
        AuditBrokenError("The log and its head disagree."),
        KeyNotFoundError("The key is missing."),
        WrongKeyError("The key is another."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_failure_becomes_a_message_that_says_that_nothing_was_archived(
    desk, archive, session, talk, fault, error
):
    read(session, talk, LONG)
    before = session.view(talk.messages)
    archive.flaky.fault, archive.flaky.error = fault, error
    answer = talk.ours(session, "archive_evidence", batch_of(("r1", "n")))["content"]
    assert answer.startswith("NOTHING was archived: ")
    assert LONG[:20] not in answer
    assert desk.rows("originals") == []
    shown = session.view(talk.messages)
    assert shown[: len(before)] == before
    archive.flaky.fault = None
    assert session.view(talk.messages)[: len(before)] == before
    assert desk.rows("results", "state = 'archived'") == []


def test_without_a_failure_the_same_call_archives(desk, session, talk):
    read(session, talk, LONG)
    assert talk.ours(session, "archive_evidence", batch_of(("r1", "n")))["content"].startswith("Archived 1")
    assert len(desk.rows("originals")) == 1


def test_answers_given_while_the_store_was_away_are_never_evidence_in_any_process(
    desk, archive, session, owner, talk
):
    read(session, talk, LONG)
    archive.flaky.fault = AWAY
    for name, sent in (("archive_evidence", batch_of(("r1", "n" * 900))), ("restore_evidence", '{"id": "r1"}')):
        talk.ours(session, name, sent)
        session.view(talk.messages)
    archive.flaky.fault = None
    talk.say()
    with opened(desk) as other:
        for who in (other.session("case", owner), session):
            who.view(talk.messages)
            assert [info.id for info in who.results()] == ["r1"]
            for result_id in ("r2", "r3"):
                with pytest.raises(BatchRejectedError) as refused:
                    who.archive([(result_id, "n")])
                assert [target.status for target in refused.value.targets] == ["not_eligible"]


@pytest.mark.parametrize("name", OURS)
def test_a_closed_archive_is_misuse_and_raises(archive, session, name):
    archive.close()
    with pytest.raises(MisuseError):
        session.answer(call_of(name, "{}"))


# --- what goes into the request ---------------------------------------------------------------------------------


def _schemas(value):
    if isinstance(value, dict):
        if "type" in value and ("properties" in value or "items" in value or isinstance(value["type"], str | list)):
            yield value
        for key, inner in value.items():
            if key == "properties":
                for schema in inner.values():
                    yield from _schemas(schema)
            elif key == "items":
                yield from _schemas(inner)


def assert_strict(schema):
    """Fit for strict modes: the allowed keywords, every property required, nothing additional."""
    allowed = {"type", "properties", "required", "items", "enum", "description", "additionalProperties"}
    found = list(_schemas(schema))
    assert found
    for one in found:
        assert set(one) <= allowed
        kinds = [one["type"]] if isinstance(one["type"], str) else one["type"]
        assert ("object" in kinds) == ("properties" in one)
        if "properties" in one:
            assert one["required"] == list(one["properties"])
            assert one.get("additionalProperties") is False
        if "array" in kinds:
            assert "items" in one


def test_the_schemas_of_our_tools_are_strict(session):
    assert [tool["function"]["name"] for tool in session.tools] == list(OURS)
    for tool in session.tools:
        assert set(tool) == {"type", "function"}
        assert tool["type"] == "function"
        assert tool["function"]["strict"] is True
        assert tool["function"]["description"]
        assert_strict(tool["function"]["parameters"])
    properties = session.tools[1]["function"]["parameters"]["properties"]
    assert properties["id"]["type"] == "string"
    assert all("null" in schema["type"] for name, schema in properties.items() if name != "id")


@pytest.mark.parametrize(
    "damage",
    [
        lambda schema: schema.pop("additionalProperties"),
        lambda schema: schema["required"].pop(),
        lambda schema: schema["properties"]["id"].update(pattern="r[0-9]+"),
        lambda schema: schema["properties"]["id"].update(default="r1"),
    ],
)
def test_the_check_of_strictness_catches_what_a_provider_would_refuse(session, damage):
    schema = session.tools[1]["function"]["parameters"]
    damage(schema)
    with pytest.raises(AssertionError):
        assert_strict(schema)


def test_tools_and_instructions_are_equal_for_all_sessions_and_hold_no_tag(archive, session, owner, talk):
    other = archive.session("other", Principal("south-clinic", "another"))
    read(session, talk, LONG)
    session.archive([("r1", "n")])
    assert json.dumps(session.tools) == json.dumps(other.tools)
    assert session.instructions == other.instructions
    for who in (session, other):
        assert f"tag={who._records.row.tag}" not in json.dumps(session.tools) + session.instructions
    for word in OURS:
        assert word in session.instructions
    session.tools[0]["function"]["parameters"].clear()
    assert json.dumps(session.tools) == json.dumps(other.tools)
