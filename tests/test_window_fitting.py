"""The window holds whole turns, as many as fit, and what providers ask of a list holds at every cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.errors import WindowTooSmallError
from evidence_archive.window.fitting import Kept, cuts, kept

DIALECT = ChatDialect()


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lists that a provider takes: parallel calls, constant ids, several messages of the user, calls still open."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}] * draw(st.integers(0, 2))
    messages.append({"role": "user", "content": "go"})
    for at in range(draw(st.integers(0, 12))):
        ids = [draw(st.sampled_from(["", "x", f"c{at}-{nth}"])) for nth in range(draw(st.integers(0, 3)))]
        calls = [{"id": id, "type": "function", "function": {"name": "t", "arguments": "{}"}} for id in ids]
        messages.append({"role": "assistant", "content": "a", **({"tool_calls": calls} if calls else {})})
        messages += [{"role": "tool", "tool_call_id": id, "content": "r"} for id in ids]
        messages += [{"role": "user", "content": "u"}] * draw(st.integers(0, 1))
    if draw(st.booleans()):
        calls = [{"id": "open", "type": "function", "function": {"name": "t", "arguments": "{}"}}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
    return messages


def is_taken(messages: list[dict[str, Any]]) -> bool:
    """What providers ask: a result answers a call of the message before it, and only the last calls are open."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return False
        waiting += [call["id"] for call in message.get("tool_calls", ())]
    return True


def least(messages: list[dict[str, Any]], staying: set[int]) -> set[int]:
    """What has to stay: instructions, the newest message of the user, the last turn, and turns that may not go."""
    system = next(at for at, message in enumerate(messages) if message["role"] != "system")
    user = max(at for at, message in enumerate(messages) if message["role"] == "user")
    places = [at for at in cuts([DIALECT.read(message) for message in messages]) if at >= system]
    turns = [range(first, end) for first, end in zip(places, [*places[1:], len(messages)], strict=True)]
    wanted = {user, places[-1], *staying}
    return {*range(system), *(at for turn in turns for at in turn if wanted & set(turn))}


def fitted(messages: list[dict[str, Any]], tokens: list[int], budget: int, **named: Any) -> Kept:
    roles = [message["role"] for message in messages]
    return kept(roles, [DIALECT.read(message) for message in messages], tokens, budget_tokens=budget, **named)


@given(conversations(), st.data())
def test_what_stays_fits_is_taken_by_a_provider_and_holds_what_it_has_to(
    messages: list[Any], data: st.DataObject
) -> None:
    tokens = [data.draw(st.integers(1, 50)) for _ in messages]
    budget, start = data.draw(st.integers(1, sum(tokens) + 10)), data.draw(st.integers(0, len(messages)))
    staying = data.draw(st.sets(st.integers(0, len(messages) - 1), max_size=2))
    target = data.draw(st.integers(0, budget))
    try:
        found = fitted(messages, tokens, budget, target_tokens=target, start=start, staying=staying)
    except WindowTooSmallError:
        assert sum(tokens[at] for at in least(messages, staying)) > budget
        return
    assert least(messages, staying) <= set(found.indexes(len(messages)))
    places = found.indexes(len(messages))
    assert sum(tokens[at] for at in places) == found.tokens <= budget
    assert is_taken([messages[at] for at in places])
    assert [messages[at] for at in places if messages[at]["role"] == "system"] == messages[: found.system]
    assert max(at for at, message in enumerate(messages) if message["role"] == "user") in places
    assert places == sorted(set(places))
    assert len(messages) - 1 in places


def test_must_fail_control_a_list_that_is_cut_anywhere_has_results_without_calls() -> None:
    messages = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]
    assert not is_taken(messages[2:])
    found = fitted(messages, [1, 1, 1, 1], 3)
    assert found == Kept(0, (0,), 3, 2)


@given(conversations(), st.data())
def test_as_long_as_it_fits_the_same_messages_stay(messages: list[Any], data: st.DataObject) -> None:
    tokens = [data.draw(st.integers(1, 50)) for _ in messages]
    found = fitted(messages, tokens, sum(tokens))
    grown = (
        [*messages, {"role": "user", "content": "more"}]
        if is_taken([*messages, {"role": "user", "content": "x"}])
        else messages
    )
    again = fitted(grown, [*tokens, 1][: len(grown)], sum(tokens) + 1, start=found.start)
    assert again.start == found.start
    assert again.pinned == found.pinned


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        ([900, 10, 10, 10], "the system messages have 900"),
        ([10, 900, 10, 10], "user has 900"),
        ([10, 10, 900, 10], "evidence that has to stay in view have 900"),
        ([10, 10, 10, 900], "newest turn has 900"),
    ],
)
def test_what_does_not_fit_is_named_with_its_size(tokens: list[int], part: str) -> None:
    messages = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "assistant")]
    with pytest.raises(WindowTooSmallError, match=part):
        fitted(messages, tokens, 500, staying={2})


def test_a_list_of_any_length_is_cut_in_time_that_grows_with_it() -> None:
    turn = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "", "content": "r"},
    ]
    messages = [{"role": "user", "content": "go"}, *turn * 10_000]
    found = fitted(messages, [100] * len(messages), 80_000, target_tokens=20_000)
    assert found.tokens <= 20_000
    assert found.pinned == (0,)


def test_many_small_turns_that_have_to_stay_are_named_together() -> None:
    messages = [{"role": role, "content": "x"} for role in ("system", "user", *["assistant"] * 9)]
    with pytest.raises(
        WindowTooSmallError, match="7 turns with evidence that has to stay in view have 140"
    ) as refused:
        fitted(messages, [10, 10, *[20] * 9], 100, staying=range(3, 10))
    assert "protect less" in str(refused.value)
