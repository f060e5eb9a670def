"""Windows over lists that are odd, in hands that are not alone: within the budget, and nothing lost."""

import json
import sqlite3
import time
from collections import Counter
from contextlib import closing, nullcontext
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import AWAY, UNWRITABLE, Characters, policy_of
from doubles import opened as flaky
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion_message_function_tool_call import Function
from test_session_window import BUDGET, KEEPER, NEVER, everything, opened, size, window
from test_window_fitting import is_taken

from evidence_archive import Principal, standing
from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.errors import MisuseError, WindowTooSmallError
from evidence_archive.records import Records
from evidence_archive.window.changing import changes
from evidence_archive.window.summaries import Span, plain_summary


def turns(session: Any, talk: Conversation, count: int, *, first: int = 0) -> list[Any]:
    """So many turns with a result each, a view after each; the last view."""
    view: list[Any] = []
    for at in range(first, first + count):
        talk.tool(f"result {at} " * 20)
        talk.say(f"Turn {at}. It is unclear whether point-{at} holds. " + "words " * 60)
        view = session.view(talk.messages)
    return view


def spans(session: Any) -> list[str]:
    """What the spans of a session hold."""
    rows = [row for row in session._records.rows.values() if row.own == "span"]
    return [session.restore(f"r{row.number}").content for row in rows]


def test_what_is_carried_is_counted_a_few_times_in_a_view_however_many_messages_it_has(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    class Counts(Characters):
        def __init__(self) -> None:
            self.asked: Counter[str] = Counter()

        def count(self, text: str) -> int:
            self.asked[text[:14]] += 1
            return super().count(text)

    counter = Counts()
    with sqlite_desk.open(policy=window(), counter=counter) as archive:
        session = archive.session("case", owner)
        view = turns(session, talk, 40)
        assert len(view) > 15
        counter.asked.clear()
        session.view(talk.messages)
    assert 0 < counter.asked["[carried over:"] < 10


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_message_that_is_changed_in_its_place_counts_as_it_is(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, role: str
):
    talk.messages.insert(0, {"role": "system", "content": "be careful"})
    talk.say("well")
    changed = next(message for message in talk.messages if message["role"] == role)
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        session.view(talk.messages)
        changed["content"] = "longer " * 1_000
        view = session.view(talk.messages)
        assert session.stats().window_tokens == size(view) > 1_000
        changed["content"] = "longer " * 10_000
        with pytest.raises(WindowTooSmallError):
            session.view(talk.messages)
        changed["content"] = "short again"
        assert size(session.view(talk.messages)) == session.stats().window_tokens < 100


def test_calls_that_are_objects_of_an_sdk_in_a_dict_are_in_their_span_and_in_the_trace(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    with opened(sqlite_desk, window(trace='"sealed"')) as archive:
        session = archive.session("case", owner)
        call = ChatCompletionMessageFunctionToolCall(
            id="call_sdk", type="function", function=Function(name="logs.search", arguments='{"q": "only here"}')
        )
        talk.messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_sdk", "content": "found"},
        ]
        turns(session, talk, 40)
        said = [json.loads(line) for span in spans(session) for line in span.split("\n")]
        told = [call.model_dump(exclude_unset=True)]
        assert told in [message.get("tool_calls") for message in said]
        assert told in [message.get("tool_calls") for message in session.trace_request(1)]


def test_of_any_number_of_changes_each_is_counted_a_few_times_and_the_newest_are_told():
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return Characters().count(text)

    lines = [f"f{at}: " + "the mean is 24.87 " * 20 for at in range(2_000)]
    text = changes(lines, tokens=0, remind=False, count=count, budget_tokens=1_000)
    assert (text.count("\n"), "... and 1990 more before these" in text) == (11, True)
    assert text.endswith(f"> {lines[-1]}")
    assert Characters().count(text) <= 1_000
    assert sum(counted) < 3 * len(text)


def test_a_policy_with_a_smaller_window_is_kept_to_by_a_session_that_carries_more(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    with opened(sqlite_desk, window(window_tokens_max=20_000, carried_share=0.5)) as archive:
        session, told = archive.session("case", owner), 0
        while told < 12:
            at = len(talk.messages)
            talk.say(f"Turn {at}: is it unclear whether {at} holds and how " + "it does so and why " * 9 + f"{at}?")
            talk.messages.append({"role": "user", "content": f"case {at} " * 20})
            view = session.view(talk.messages)
            told = len(spans(session))
        assert size(view[:1]) > 8_000
    for budget in (12_000, 8_000, 4_000):
        policy = window(window_tokens_max=budget)
        for _ in range(2):
            with opened(sqlite_desk, policy) as archive:
                sent = archive.session("case", owner).view(talk.messages)
                assert 0 < size(sent) <= budget
                assert size(sent[:1]) <= budget * 0.2 + 4
                assert "more" in sent[0]["content"]


def test_turns_of_more_tools_than_a_note_has_room_for_leave_as_a_span(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    policy = policy_of("[window]\nwindow_tokens_max = 4000\narchive_tokens_min = 50\n", note_chars_max=100)
    with opened(sqlite_desk, policy) as archive:
        session = archive.session("case", owner)
        for at in range(60):
            talk.tool("result " * 60, name=f"mcp__observability__search_tool_{at % 8}")
            talk.say(f"Turn {at} " * 40)
            view = session.view(talk.messages)
        assert spans(session)
        assert everything(session, view, talk.messages) == []


class Speaks:
    """An object that says something it should not when it is told."""

    def __str__(self) -> str:
        raise RuntimeError("evidence")

    __repr__ = __str__


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "arguments",
    [{("a", 1): 2}, Speaks(), {"a": Speaks()}, nested(5_000), {"a": 10**6_000}],
    ids=["keys", "object", "held object", "deep", "long number"],
)
def test_arguments_of_a_call_that_have_no_json_keep_no_view_from_being_made(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, arguments: Any
):
    with opened(sqlite_desk, window(price_cached_input=3.0)) as archive:
        session = archive.session("case", owner)
        talk.tool("result " * 200)
        talk.messages[-2]["tool_calls"][0]["function"]["arguments"] = arguments
        talk.say()
        turns(session, talk, 30)
        assert session.results()[0].state == "archived"
        assert spans(session)


def test_open_points_are_looked_up_and_not_searched_among_those_carried_over():
    compared: list[int] = []

    class Point(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return str.__eq__(self, other)

    asked = " ".join(f"q{at}?" for at in range(2_000))
    span = Span(asked, 1, 2, [], [], [asked], [], 1_000)
    summary = plain_summary(span, [Point("q1999?"), *(Point(f"p{at}?") for at in range(2_000))])
    assert summary.unresolved[-1] == "q1998?"
    assert len(compared) < 10_000


@pytest.mark.parametrize("name", ["n" * 1_100, "logs.search"], ids=["name too long", "too large"])
def test_one_result_that_cannot_be_archived_keeps_no_others_in_view(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, name: str
):
    keys = "[window]\nwindow_tokens_max = 20000\narchive_tokens_min = 50\nprice_cached_input = 3.0\n"
    with opened(sqlite_desk, policy_of(keys, original_bytes_max=10_000)) as archive:
        session = archive.session("case", owner)
        talk.tool("cannot be archived " * (100 if len(name) > 99 else 1_000), name=name)
        talk.say()
        while size(session.view(talk.messages)) < 15_500:
            talk.tool(f"result {len(talk.messages)} " * 200)
            talk.say()
        talk.tool("result " * 400)
        view = session.view(talk.messages)
        assert session.results()[0].state == "live"
        assert session.stats().archived > 10
        assert size(view) < 10_000, "all of this was archived at once"
        events = [entry.event for entry in archive.audit(principal=owner).entries]
        assert "batch.rejected" not in events


@pytest.mark.parametrize("processes", [1, 2])
def test_instructions_that_are_others_at_each_request_begin_no_new_window(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, processes: int
):
    talk.messages.insert(0, {"role": "system", "content": "It is 10:00."})
    told = []
    for nth in range(processes):
        with opened(sqlite_desk) as archive:
            session = archive.session("case", owner)
            for at in range(40 // processes):
                talk.messages[0] = {"role": "system", "content": f"It is 10:{nth}{at:02}."}
                view = turns(session, talk, 1, first=at)
                assert view[0] is talk.messages[0]
            told = spans(session)
            assert everything(session, view[1:], talk.messages[1:]) == []
    left = [line for span in told for line in span.split("\n")]
    assert 0 < len(told) <= 5
    assert len(left) < len(talk.messages), "no turn leaves twice"


def test_two_that_take_turns_on_one_list_send_what_one_alone_would(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    with opened(sqlite_desk) as first, opened(sqlite_desk) as second, opened(sqlite_desk) as third:
        alone, both = third.session("alone", owner), [first.session("case", owner), second.session("case", owner)]
        same = Conversation()
        for at in range(60):
            view = turns(both[at % 2], talk, 1, first=at)
            wanted = turns(alone, same, 1, first=at)
            assert [str(one["content"])[:400] for one in view] == [str(one["content"])[:400] for one in wanted]
        both[0].view(talk.messages)
        assert len(spans(both[0])) == len(spans(alone)) > 2


def test_what_left_from_one_list_is_told_to_another_process_that_goes_on_with_its_own(
    sqlite_desk: Desk, owner: Principal
):
    policy = window(carried_share=0.4)
    with opened(sqlite_desk, policy) as first, opened(sqlite_desk, policy) as second:
        ours, theirs = first.session("case", owner), second.session("case", owner)
        talk, other = Conversation(), Conversation()
        other.messages[0]["content"] = "help"
        other._calls = 1_000
        turns(theirs, other, 30)
        turns(ours, talk, 30)
        turns(theirs, other, 30, first=1_000)
        view = turns(ours, talk, 30, first=100)
        rows = [f"r{row.number}" for row in ours._records.rows.values() if row.own == "span"]
        assert [one for one in rows if f"> {one}: messages " not in view[0]["content"]] == []
        assert "point-0 " in view[0]["content"]
        assert len(rows) > 3


@pytest.mark.parametrize("fault", [AWAY, UNWRITABLE])
def test_what_is_protected_or_unread_stays_in_view_while_the_store_takes_nothing(
    sqlite_desk: Desk, talk: Conversation, owner: Principal, fault: str
):
    with flaky(sqlite_desk, policy=window(NEVER)) as archive:
        session = archive.session("case", owner)
        session.view(talk.messages)
        archive.flaky.fault = fault
        talk.tool("a chart " * 10, name="chart.show")
        talk.say("seen")
        for at in range(30):
            talk.say(f"turn {at} " + "words " * 100)
            view = session.view(talk.messages)
            assert size(view) <= BUDGET
        assert any(str(one["content"]) == "a chart " * 10 for one in view)
        talk.tool("not read yet " * 10)
        talk.messages += [{"role": "user", "content": f"and another thing {at} " * 60} for at in range(12)]
        for archive.flaky.fault in (fault, None):
            view = session.view(talk.messages)
            assert size(view) <= BUDGET
            assert is_taken(view)
            assert any(str(one["content"]) == "a chart " * 10 for one in view)
            assert any(str(one["content"]) == "not read yet " * 10 for one in view)


def test_a_result_without_its_call_is_under_the_rules_of_the_tool_it_names(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    rules = f'{NEVER}[[restore]]\ntools = ["labs.*"]\nroles = ["veterinarian"]\n'
    talk.say()
    talk.messages.append({"role": "user", "content": "go on"})
    talk.say()
    for name in ("labs.read", "chart.show", "logs.search"):
        talk.messages.append({"role": "tool", "tool_call_id": name, "name": name, "content": f"said by {name} " * 5})
        talk.say()
    with opened(sqlite_desk, window(rules)) as archive:
        session = archive.session("case", owner)
        view = json.dumps(turns(session, talk, 40))
        left = "\n".join(spans(session))
    for name, stays in (("labs.read", True), ("chart.show", True), ("logs.search", False)):
        assert (f"said by {name}" in view, f"said by {name}" in left) == (stays, not stays)


def test_what_was_carried_of_a_session_that_is_shredded_is_in_no_view_any_more(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        view = turns(session, talk, 40)
        assert "point-0 " in json.dumps(view)
        archive.custody(KEEPER).shred(session_id="case")
        view = session.view(talk.messages)
        assert "point-0 " not in json.dumps(view)
        assert view[0] is talk.messages[0]
        view = turns(session, talk, 40, first=40)
        assert size(view) <= BUDGET
        assert "point-0 " not in json.dumps(view)


def test_a_commit_waits_once_for_a_store_that_takes_nothing_and_not_at_all_while_suspended(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    policy = policy_of("[window]\nwindow_tokens_max = 4000\narchive_tokens_min = 50\n", store_wait_ms_max=300)
    with opened(sqlite_desk, policy) as archive:
        session = archive.session("case", owner)
        turns(session, talk, 10)
        with closing(sqlite3.connect(sqlite_desk.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for wait_seconds in (0.7, 0.2, 0.2):
                for at in range(30):
                    talk.say(f"turn {at} " + "words " * 100)
                began = time.monotonic()
                assert size(session.view(talk.messages)) <= BUDGET
                assert time.monotonic() - began < wait_seconds
                session._records.suspended_until_ms = session._records.clock.monotonic_ms() + 60_000
            other.execute("ROLLBACK")


def test_messages_with_more_bytes_than_an_original_may_have_leave_in_several_spans(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """Pictures have few tokens, whatever their bytes."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 30_000}}
    policy = policy_of("[window]\nwindow_tokens_max = 8000\n", original_bytes_max=100_000)
    with sqlite_desk.open(policy=policy, counter=Characters()) as archive:
        session, view = archive.session("case", owner), []
        for at in range(30):
            talk.messages.append({"role": "user", "content": [{"type": "text", "text": f"see {at}"}, picture]})
            talk.say(f"I have seen picture {at}.")
            view = session.view(talk.messages)
        assert len(spans(session)) > 5
        assert max(map(len, spans(session))) <= 100_000
        assert everything(session, view, talk.messages) == []


def test_what_others_posted_while_a_summary_was_written_stays_in_the_index(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    class Meanwhile:
        """The other worker's turns leave while this one's are summed up."""

        def __init__(self) -> None:
            self.act: Any = None

        def summarize(self, span: Span, earlier: Any, refused: str | None) -> str:
            act, self.act = self.act, None
            if act is not None:
                act()
            return "conclusion: seen\nbasis: none\nunresolved: none\nreferences: none"

    slow, theirs = Meanwhile(), Conversation()
    theirs.messages[0]["content"] = "another task"
    with opened(sqlite_desk) as archive, opened(sqlite_desk) as other:
        session, beside = archive.session("case", owner, summarizer=slow), other.session("case", owner)
        slow.act = lambda: turns(beside, theirs, 40)
        view = turns(session, talk, 60)
        assert slow.act is None
        told = {row.number for row in session._records.rows.values() if row.own == "span"}
        text = "\n".join(str(one["content"]) for one in view)
        posted = [one.content["left"]["result_id"] for one in session._windowing._standing._books.read("window")]
        assert len(posted) == session._windowing._state.spans > 5
        assert all(f"> {id}: messages" in text for id in posted)
        assert len(told) >= len(posted)
        assert everything(session, view, talk.messages) == []


def hashed(desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[int, int]:
    """How many characters are made out of lists of so many turns to know them again, and how many they have."""
    made: list[int] = []

    def dumps(value: Any) -> str:
        made.append(len(text := json.dumps(value)))
        return text

    talks = [Conversation(), Conversation()]
    talks[1].messages[0]["content"] = "another task"
    with opened(desk) as first, opened(desk) as second:
        both = [first.session("case", owner), second.session("case", owner)]
        monkeypatch.setattr(standing, "json", SimpleNamespace(dumps=dumps))
        for at in range(count):
            for session, talk in zip(both, talks, strict=True):
                turns(session, talk, 1, first=at)
        assert both[0]._windowing._state.spans > 10
    return sum(made), sum(len(str(message["content"])) for talk in talks for message in talk.messages)


def test_a_list_is_not_made_out_again_at_each_commit_to_another(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    made, size_chars = hashed(sqlite_desk, owner, monkeypatch, 160)
    assert made < 3 * size_chars


def test_must_fail_control_a_list_that_is_made_out_anew_each_time_takes_many_times_as_much(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    def anew(self: Any, messages: Any, ends: Any) -> Any:
        return {end: of_each(standing._Prints(self._records), messages, {end})[end] for end in ends}

    of_each = standing._Prints.of_each
    monkeypatch.setattr(standing._Prints, "of_each", anew)
    made, size_chars = hashed(sqlite_desk, owner, monkeypatch, 160)
    assert made > 3 * size_chars


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=8))
def test_what_was_made_out_before_changes_no_print(asked: list[tuple[int, int]]):
    lists = [[{"role": "user", "content": f"{at % (seed + 1)} é"} for at in range(12)] for seed in range(10)]
    for one in lists[::2]:
        one[0] = {"role": "system", "content": "be careful"}
    records: Any = SimpleNamespace(dialect=ChatDialect(), timeline=SimpleNamespace(by_index={}))
    prints = standing._Prints(records)
    for seed, end in asked:
        texts = [None if one["role"] == "system" else [one["content"]] for one in lists[seed][:end]]
        assert prints.of(lists[seed][:end]) == sha256(json.dumps(texts).encode("ascii")).hexdigest()


class Calls:
    """A summariser and a judge that do something with their session before they answer."""

    def __init__(self, act: Any, *, judges: bool) -> None:
        self.act = act
        self.judges = judges
        self.errors: list[Exception | None] = []

    def _does(self) -> None:
        try:
            self.act()
        except Exception as error:
            self.errors.append(error)
            raise
        self.errors.append(None)

    def summarize(self, span: Span, earlier: Any, refused: str | None) -> str:
        if not self.judges:
            self._does()
        return "conclusion: seen\nbasis: none\nunresolved: none\nreferences: none"

    def judge(self, span: Span, summary: Any) -> float:
        if self.judges:
            self._does()
        return 1.0


@pytest.mark.parametrize("judges", [False, True], ids=["summariser", "judge"])
@pytest.mark.parametrize("same", [False, True], ids=["another list", "the same list"])
def test_a_view_that_is_asked_for_while_one_is_made_is_refused_and_the_one_is_made(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, judges: bool, same: bool
):
    other = Conversation()
    other.messages[0]["content"] = "another task"
    calls = Calls(lambda: session.view(talk.messages if same else other.messages), judges=judges)
    with opened(sqlite_desk, window(judge_every=1)) as archive:
        session = archive.session("case", owner, summarizer=calls, judge=calls)
        view = turns(session, talk, 60)
        assert len(calls.errors) >= 3
        assert {type(error) for error in calls.errors} == {MisuseError}
        assert "summariser" in str(calls.errors[0])
        quality = session.stats().summaries
        assert quality.by_host == (0 if judges else quality.summaries), "an answer that raised is a refused one"
        assert quality.judged == (0 if judges else quality.summaries)
        assert everything(session, view, talk.messages) == []
        assert session.view(talk.messages) == view
        assert archive.custody(KEEPER).verify("full").findings == ()
    with opened(sqlite_desk, window(judge_every=1)) as archive:
        assert archive.session("case", owner).view(talk.messages) == view


def test_what_else_a_summariser_asks_its_session_for_is_done(sqlite_desk: Desk, owner: Principal, talk: Conversation):
    def act() -> None:
        session.update_card([{"add": "step", "text": "measure"}])
        assert session.search("point-0").searched >= 0
        assert session.restore("r1").content.startswith("result 0")

    calls = Calls(act, judges=False)
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner, summarizer=calls)
        view = turns(session, talk, 60)
        assert len(calls.errors) >= 3
        assert set(calls.errors) == {None}
        assert len(session.card().items) == len(calls.errors)
        assert everything(session, view, talk.messages) == []
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_a_view_can_be_asked_for_after_one_that_failed(sqlite_desk: Desk, owner: Principal, talk: Conversation):
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        with pytest.raises(WindowTooSmallError):
            session.view([*talk.messages, {"role": "user", "content": "x" * 9 * BUDGET}])
        assert session.view(talk.messages) == talk.messages


def test_must_fail_control_a_session_that_lets_a_view_into_a_view_mixes_two_lists(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Records, "viewing", lambda self: nullcontext())
    other = Conversation()
    other.messages[0]["content"] = "another task"
    calls = Calls(lambda: session.view(other.messages), judges=False)
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner, summarizer=calls)
        wrong = 0
        for at in range(60):
            try:
                view = turns(session, talk, 1, first=at)
            except Exception:
                wrong += 1
                continue
            wrong += view[-1] is not talk.messages[-1]
        assert wrong or everything(session, view, talk.messages) != []
