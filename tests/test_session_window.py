"""A view with a window: never above its budget, nothing is lost, and between commits it only grows."""

import json
import random
from pathlib import Path
from typing import Any

import doubles
import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_window_fitting import is_taken

from evidence_archive import Archive, Principal
from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.errors import WindowTooSmallError
from evidence_archive.leaving import Leaving
from evidence_archive.window.fitting import cuts
from evidence_archive.windowing import MESSAGE_TOKENS, Windowing

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
DIALECT = ChatDialect()
BUDGET = 4_000
NEVER = '[[archive]]\nid = "chart"\neffect = "never"\ntools = ["chart.*"]\n'


def window(rules: str = "", **keys: Any) -> Any:
    """A policy with a window; tokens are a quarter of the characters."""
    named = {"window_tokens_max": BUDGET, "archive_tokens_min": 50, **keys}
    lines = "\n".join(f"{name} = {value}" for name, value in named.items())
    return policy_of(f"[window]\n{lines}\n{rules}")


def opened(desk: Desk, policy: Any = None) -> Archive:
    return desk.open(policy=policy or window(), counter=Characters())


def size(messages: list[Any]) -> int:
    return sum(MESSAGE_TOKENS + sum(map(Characters().count, DIALECT.message_texts(message))) for message in messages)


def turn(talk: Conversation, dice: random.Random, at: int) -> None:
    """A turn as agents have them: parallel calls, results of any size, words of model and user."""
    for nth in range(dice.choice([0, 1, 1, 2])):
        text = f"result {at}.{nth} of ticket OPS-{at}: " + "finding\n" * dice.choice([1, 20, 60, 150])
        talk.tool(text, name=dice.choice(["logs.search", "files.read"]))
    talk.say(f"In turn {at} I found {at * 7} of them. " * dice.choice([1, 1, 5]))
    if dice.random() < 0.2:
        talk.messages.append({"role": "user", "content": f"question {at}? " * dice.choice([1, 8])})


def checked(view: list[Any], messages: list[Any]) -> None:
    """What holds of every view."""
    assert size(view) <= BUDGET
    assert is_taken(view)
    newest = max(at for at, message in enumerate(messages) if message["role"] == "user")
    assert messages[newest]["content"] in [message["content"] for message in view if message["role"] == "user"]
    assert view[-1]["role"] == messages[-1]["role"]


# --- bounded ----------------------------------------------------------------------------------------------------


def test_a_thousand_turns_stay_in_their_budget_with_parallel_calls_and_images(sqlite_desk: Desk, owner: Principal):
    """The same size at any time, and nothing but the application's list grows."""
    dice, talk, sizes = random.Random(8), Conversation(), []
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with opened(sqlite_desk, window(window_tokens_max=8_000)) as archive:
        session = archive.session("case", owner)
        for at in range(1_000):
            turn(talk, dice, at)
            if at % 7 == 0:
                talk.messages.append({"role": "user", "content": [{"type": "text", "text": f"see {at}"}, picture]})
            if at % 5 == 0:
                talk.tool([{"type": "text", "text": f"page {at} " * 30}], name="browser.read")
                talk.say()
            view = session.view(talk.messages)
            sizes.append(size(view))
            assert is_taken(view)
            assert view[-1] is talk.messages[-1]
        spans = sum(row.own == "span" for row in session._records.rows.values())
        assert everything(session, view, talk.messages) == []
    assert max(sizes) <= 8_000
    assert spans > 50


def test_a_task_of_any_length_stays_in_its_budget_and_every_message_can_be_had(sqlite_desk: Desk, owner: Principal):
    dice, talk = random.Random(0), Conversation()
    talk.messages[:0] = [{"role": "system", "content": "You are a careful agent."}]
    sizes = []
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        for at in range(250):
            turn(talk, dice, at)
            view = session.view(talk.messages)
            checked(view, talk.messages)
            sizes.append(size(view))
        assert size(talk.messages) > 9 * BUDGET
        assert max(sizes) <= BUDGET
        assert session.stats().window_tokens == sizes[-1]
        assert everything(session, view, talk.messages) == []
        assert archive.custody(KEEPER).verify("full").findings == ()


def everything(session: Any, view: list[Any], messages: list[Any]) -> list[int]:
    """The messages that are neither in the view nor in a span, nor behind a note, by number."""
    texts = [json.dumps(message.get("content")) for message in view]
    spans = [
        line
        for row in session._records.rows.values()
        if row.own == "span"
        for line in session.restore(f"r{row.number}").content.split("\n")
    ]
    texts += [json.dumps(json.loads(line).get("content")) for line in spans]
    originals = {
        json.dumps(session.restore(f"r{row.number}").content)
        for row in session._records.rows.values()
        if row.state == "archived" and row.own is None
    }
    whole = "\n".join(texts)
    return [
        at
        for at, message in enumerate(messages)
        if (text := json.dumps(message["content"])) not in originals and text[1:-1] not in whole
    ]


def test_must_fail_control_a_window_that_only_cuts_loses_messages(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Leaving, "_keep", lambda *_: None)
    dice, talk = random.Random(1), Conversation()
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        for at in range(60):
            turn(talk, dice, at)
            view = session.view(talk.messages)
        assert everything(session, view, talk.messages) != []


@settings(max_examples=25)
@given(st.data())
def test_any_conversation_that_fits_at_all_is_shown_within_its_budget(tmp_path_factory: Any, data: st.DataObject):
    from evidence_archive.keys import new_keys

    folder = tmp_path_factory.mktemp("desk")
    new_keys(folder / "evidence.keys")
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    policy = window(
        high=data.draw(st.sampled_from([0.5, 0.8, 1.0])),
        low=data.draw(st.sampled_from([0.0, 0.2, 0.4])),
        keep_turns=data.draw(st.integers(1, 6)),
        cooldown_turns=data.draw(st.integers(0, 5)),
        carried_share=data.draw(st.sampled_from([0.05, 0.2, 0.5])),
    )
    with opened(Desk(folder), policy) as archive:
        session, talk = archive.session("case", Principal("north-clinic", "owner")), Conversation()
        for at in range(data.draw(st.integers(1, 40))):
            turn(talk, dice, at)
            checked(session.view(talk.messages), talk.messages)


def test_what_has_to_be_shown_and_does_not_fit_is_named_and_nothing_is_cut(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        talk.tool("x" * 5 * BUDGET)
        with pytest.raises(WindowTooSmallError, match="newest turn"):
            session.view(talk.messages)
        talk.messages.pop()
        talk.messages.append({"role": "tool", "tool_call_id": "call_1", "content": "small"})
        assert len(session.view(talk.messages)) == len(talk.messages)


# --- taken back -------------------------------------------------------------------------------------------------


def taken_back(folder: Any, seed: int, turns: int = 80) -> None:
    """A task whose newest messages are taken back now and then, by an application that goes on otherwise.

    What holds of every view has to hold of these, too, and nothing may be lost that is in the list.
    """
    from evidence_archive.keys import new_keys

    new_keys(folder / "evidence.keys")
    dice, talk = random.Random(seed), Conversation()
    with opened(Desk(folder)) as archive:
        session = archive.session("case", Principal("north-clinic", "owner"))
        for at in range(turns):
            turn(talk, dice, at)
            start = session._windowing._state.start
            if start > 0 and dice.random() < 0.2:
                begun = max(1, start - dice.choice([0, 0, 0, 9]))
                places = [at for at in cuts([*map(DIALECT.read, talk.messages)]) if at >= begun]
                del talk.messages[dice.choice(places[:3] or [len(talk.messages)]) :]
            if dice.random() < 0.2:
                session = archive.session("case", Principal("north-clinic", "owner"))
            view = session.view(talk.messages)
            checked(view, talk.messages)
            assert view[-1] == rendered(session)[-1]
        assert everything(session, view, talk.messages) == []


def rendered(session: Any) -> list[Any]:
    """The whole list with labels and notes."""
    return session._rendered_view()  # type: ignore[no-any-return]


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_a_list_whose_newest_messages_were_taken_back_shows_its_newest_turn_and_what_the_user_said_last(
    tmp_path_factory: Any, seed: int
):
    taken_back(tmp_path_factory.mktemp("desk"), seed)


def test_must_fail_control_a_window_that_keeps_its_cut_shows_nothing_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Windowing, "_is_behind", lambda *_: False)

    def fails(seed: int) -> bool:
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            taken_back(folder, seed)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(12))


# --- what stays -------------------------------------------------------------------------------------------------


def test_between_commits_what_was_sent_is_a_prefix_of_what_is_sent(sqlite_desk: Desk, owner: Principal):
    dice, talk, commits, last = random.Random(5), Conversation(), 0, []
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        for at in range(200):
            turn(talk, dice, at)
            before = (session.stats().batches, session._records.row.books)
            view = session.view(talk.messages)
            committed = (session.stats().batches, session._records.row.books) != before
            commits += committed
            assert committed or json.dumps(view[: len(last)]) == json.dumps(last)
            last = view
    assert 2 <= commits <= 60


def test_what_a_policy_protects_stays_in_view_however_old_it_is_with_its_call(sqlite_desk: Desk, owner: Principal):
    dice, talk = random.Random(7), Conversation()
    with opened(sqlite_desk, window(NEVER)) as archive:
        session = archive.session("case", owner)
        for at in range(80):
            turn(talk, dice, at)
            if at in (0, 20):
                talk.tool(f"chart {at} of a made-up patient: allergic to nothing", name="chart.show")
                talk.say()
            view = session.view(talk.messages)
            checked(view, talk.messages)
        assert session._records.row.books, "turns left"
    shown = [one["content"] for one in view if one["role"] == "tool"]
    assert [at for at in (0, 20) if any(f"chart {at} of" in text for text in shown)] == [0, 20]


def test_must_fail_control_a_window_that_does_not_ask_the_policy_lets_a_chart_go(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Windowing, "_staying", lambda self: set())
    dice, talk = random.Random(7), Conversation()
    with opened(sqlite_desk, window(NEVER)) as archive:
        session = archive.session("case", owner)
        talk.tool("chart 0 of a made-up patient", name="chart.show")
        talk.say()
        for at in range(80):
            turn(talk, dice, at)
            view = session.view(talk.messages)
    assert not any("chart 0 of" in (one["content"] or "") for one in view if one["role"] == "tool")


def test_results_are_archived_before_turns_leave_and_nothing_unread_is(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk, window(price_cached_input=3.0)) as archive:
        session, talk = archive.session("case", owner), Conversation()
        for at in range(12):
            talk.tool(f"finding {at}\n" * 120)
            talk.say()
            session.view(talk.messages)
        talk.tool("the newest finding\n" * 80)
        view = session.view(talk.messages)
        states = [info.state for info in session.results()]
        assert states[0] == "archived"
        assert states[-1] == "live"
        assert "the newest finding" in view[-1]["content"]
        assert session._records.row.books == "", "no turn had to leave"


# --- resumed ----------------------------------------------------------------------------------------------------


def test_another_process_goes_on_where_the_last_one_was_and_shows_the_same(desk: Desk, owner: Principal):
    dice, talk = random.Random(3), Conversation()
    with opened(desk) as archive:
        session = archive.session("case", owner)
        for at in range(60):
            turn(talk, dice, at)
            view = session.view(talk.messages)
    with opened(desk) as archive:
        session = archive.session("case", owner)
        assert session.view(json.loads(json.dumps(talk.messages))) == view
        for at in range(60, 90):
            turn(talk, dice, at)
            checked(session.view(talk.messages), talk.messages)
        assert everything(session, session.view(talk.messages), talk.messages) == []


def test_another_list_is_another_window(sqlite_desk: Desk, owner: Principal):
    dice, talk = random.Random(3), Conversation()
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner)
        for at in range(60):
            turn(talk, dice, at)
            session.view(talk.messages)
        other = [{"role": "user", "content": "something else"}]
        view = session.view(other)
        assert view[-1] == other[-1]
        assert size(view) <= BUDGET


def test_while_the_store_is_away_the_view_stays_in_its_budget_and_what_left_is_archived_later(
    sqlite_desk: Desk, owner: Principal
):
    dice, talk = random.Random(11), Conversation()
    with opened(sqlite_desk, policy_with_short_waits()) as archive:
        session = archive.session("case", owner)
        for at in range(40):
            turn(talk, dice, at)
            session.view(talk.messages)
        with sqlite_desk.locked():
            for at in range(40, 55):
                turn(talk, dice, at)
                assert size(session.view(talk.messages)) <= BUDGET
        for at in range(55, 100):
            turn(talk, dice, at)
            view = session.view(talk.messages)
            checked(view, talk.messages)
        assert everything(session, view, talk.messages) == []


def test_a_resumed_session_whose_books_cannot_be_read_is_shown_within_its_budget(sqlite_desk: Desk, owner: Principal):
    dice, talk = random.Random(11), Conversation()
    for at in range(40):
        turn(talk, dice, at)
    with opened(sqlite_desk) as archive:
        shown = archive.session("case", owner).view(talk.messages)
    with doubles.opened(sqlite_desk, policy=window()) as archive:
        session = archive.session("case", owner)
        archive.flaky.fault = "posted"
        assert size(session.view(talk.messages)) <= BUDGET
        archive.flaky.fault = None
        assert session.view(talk.messages) == shown


def policy_with_short_waits() -> Any:
    text = f"[window]\nwindow_tokens_max = {BUDGET}\narchive_tokens_min = 50\n"
    return policy_of(text, view_wait_ms_max=20, store_wait_ms_max=20, store_failures_max=100)


def test_without_a_window_a_view_shows_everything(sqlite_desk: Desk, owner: Principal):
    dice, talk = random.Random(2), Conversation()
    with opened(sqlite_desk, policy_of()) as archive:
        session = archive.session("case", owner)
        for at in range(30):
            turn(talk, dice, at)
            assert len(session.view(talk.messages)) == len(talk.messages)


# --- summaries --------------------------------------------------------------------------------------------------


class Writes:
    """A summariser that gives these answers, one after the other."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.refused: list[str | None] = []

    def summarize(self, span: Any, earlier: Any, refused: str | None) -> str:
        self.refused.append(refused)
        return self.answers[min(len(self.refused), len(self.answers)) - 1]


def carried_by(session: Any, talk: Conversation) -> str:
    (text,) = [
        one["content"] for one in session.view(talk.messages) if str(one["content"]).startswith("[carried over")
    ]
    return str(text)


GOOD = "conclusion: it was the cache\nbasis: two logs\nunresolved:\n- who cleared it\nreferences: r1"


def test_a_summariser_is_asked_again_with_the_reason_and_then_believed_or_replaced(
    sqlite_desk: Desk, owner: Principal
):
    for answers, words in ((("nonsense", GOOD), "it was the cache"), (("nonsense",), "calls of logs.search")):
        writes, talk, dice = Writes(*answers), Conversation(), random.Random(4)
        with opened(sqlite_desk) as archive:
            session = archive.session(f"case {len(answers)}", owner, summarizer=writes)
            for at in range(40):
                turn(talk, dice, at)
                session.view(talk.messages)
            assert words in carried_by(session, talk)
        assert writes.refused[0] is None
        assert writes.refused[1] is not None


def test_what_was_unresolved_in_the_first_summary_is_in_the_last_one(sqlite_desk: Desk, owner: Principal):
    nothing = "conclusion: fine\nbasis: seen\nunresolved: none\nreferences: none"
    writes, talk, dice = Writes(GOOD, nothing), Conversation(), random.Random(4)
    with opened(sqlite_desk) as archive:
        session = archive.session("case", owner, summarizer=writes)
        for at in range(250):
            turn(talk, dice, at)
            session.view(talk.messages)
        assert len(writes.refused) > 5
        assert "who cleared it" in carried_by(session, talk)
