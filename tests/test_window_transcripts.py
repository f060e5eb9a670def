"""The window and its cost model on recorded transcripts, where they are present."""

import json
from itertools import pairwise
from typing import Any

import pytest
from conftest import SHARED, Desk
from doubles import Characters, policy_of
from test_session_window import everything, size
from test_window_fitting import is_taken

from evidence_archive import Principal
from evidence_archive.errors import WindowTooSmallError
from evidence_archive.tokens import default_counter
from evidence_archive.window.costs import cached_tokens

TRANSCRIPTS = SHARED / "transcripts"
NAMES = ("bugfix-short.json", "issue-fix-1.json", "issue-fix-2.json", "browser.json", "coding-long.json")


def recorded(name: str) -> list[Any]:
    path = TRANSCRIPTS / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return json.loads(path.read_text("utf-8"))["messages"]  # type: ignore[no-any-return]


def requests(messages: list[Any]) -> list[int]:
    """How long the list was at each request: before every message of the model."""
    return [at for at, message in enumerate(messages) if message["role"] == "assistant"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_task_fits_a_window_a_fraction_of_its_size_and_nothing_is_lost(
    sqlite_desk: Desk, owner: Principal, name: str
):
    messages = recorded(name)
    largest = max(size([message]) for message in messages)
    budget = max(largest * 3, size(messages) // 8, 4_000)
    policy = policy_of(f"[window]\nwindow_tokens_max = {budget}\n")
    with sqlite_desk.open(policy=policy, counter=Characters()) as archive:
        session = archive.session("case", owner)
        last: list[Any] = []
        for end in requests(messages)[1:]:
            before = session.stats().batches, session._records.row.books
            view = session.view(messages[:end])
            assert size(view) <= budget
            assert is_taken(view) or not is_taken(messages[:end])
            same = (session.stats().batches, session._records.row.books) == before
            assert not same or json.dumps(view[: len(last)]) == json.dumps(last)
            last = view
        assert everything(session, last, messages[:end]) == []


def test_recorded_conversations_of_a_desk_fit_a_quarter_of_their_size(sqlite_desk: Desk, owner: Principal):
    path = TRANSCRIPTS / "airline.jsonl"
    if not path.exists():
        pytest.skip("airline.jsonl is not here")
    talks = [json.loads(line)["messages"] for line in path.read_text("utf-8").splitlines()]
    for at, messages in enumerate(sorted(talks, key=len)[-12:]):
        system, largest = size(messages[:1]), max(size([message]) for message in messages[1:])
        budget = system + max(largest * 3, size(messages[1:]) // 4, 1_000)
        policy = policy_of(f"[window]\nwindow_tokens_max = {budget}\ncarried_share = 0.1\n")
        with sqlite_desk.open(policy=policy, counter=Characters()) as archive:
            session, last = archive.session(f"case {at}", owner), list[Any]()
            for end in requests(messages)[1:]:
                before = session.stats().batches, session._records.row.books
                view = session.view(messages[:end])
                assert size(view) <= budget
                same = (session.stats().batches, session._records.row.books) == before
                assert not same or json.dumps(view[: len(last)]) == json.dumps(last)
                last = view
            assert everything(session, last, messages[:end]) == []


def predicted_over_recorded(cached: Any) -> float:
    """The share of tokens read from the cache that a model predicts, over the share that the provider recorded."""
    path = TRANSCRIPTS / "coding-long.json"
    if not path.exists():
        pytest.skip("coding-long.json is not here")
    usage = json.loads(path.read_text("utf-8"))["usage"]
    count = default_counter().count
    sized = [(text := json.dumps(message), count(text)) for message in recorded("coding-long.json")]
    predicted = total = 0
    for last, one in pairwise(usage):
        predicted += cached(sized[: last["message"]], sized[: one["message"]])
        total += sum(tokens for _, tokens in sized[: one["message"]])
    read = sum(one["cache_read"] for one in usage[1:])
    sent = sum(one["input"] + one["cache_read"] + one["cache_write"] for one in usage[1:])
    return float((predicted / total) / (read / sent))


def test_the_recorded_cache_reads_are_what_the_cost_model_says():
    """A provider's own usage over 431 requests: within a tenth over the whole session."""
    found = predicted_over_recorded(lambda before, now: cached_tokens(before, now, least=1_024))
    assert 0.9 <= found <= 1.1


def test_must_fail_control_a_model_that_forgets_half_of_what_was_sent_is_far_off():
    found = predicted_over_recorded(lambda before, now: cached_tokens(before[: len(before) // 2], now))
    assert not 0.9 <= found <= 1.1


def test_a_result_larger_than_the_window_is_named_and_fits_once_it_is_archived(sqlite_desk: Desk, owner: Principal):
    with sqlite_desk.open(policy=policy_of("[window]\nwindow_tokens_max = 4000\n"), counter=Characters()) as archive:
        session = archive.session("case", owner)
        messages: list[Any] = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [_call()]},
            {"role": "tool", "tool_call_id": "a", "content": "x" * 40_000},
        ]
        with pytest.raises(WindowTooSmallError):
            session.view(messages)
        messages.append({"role": "assistant", "content": "read"})
        assert size(session.view(messages)) <= 4_000


def _call() -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}
