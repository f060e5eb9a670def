"""Fifty compressions: no confirmed decision and no open point is worn away, whoever writes the summaries."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_window_summaries import kept_of, span_of

from evidence_archive import Principal, leaving
from evidence_archive.window.card import Card, changed, parse_changes
from evidence_archive.window.summaries import Span, Summary, parse_summary, summarised

TIMES = 50
QUESTION = re.compile(r"which disk is shard \d+ on\?")


def decision(at: int) -> list[dict[str, Any]]:
    """The changes of a card that confirm a decision."""
    reason = {"reason": "it is near", "references": ["r1"]}
    return [{"add": "decision", "text": f"use mirror {at:02}", **reason}, {"id": f"d{at}", "to": "confirmed"}]


def confirmed(card: Card) -> list[str]:
    return [
        f"{one.id}: {one.text}" for one in card.items.values() if one.kind == "decision" and one.state != "dropped"
    ]


class Forgetful:
    """Writes what the span leaves open, and nothing of what came before it."""

    def __init__(self) -> None:
        self.asked = 0

    def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
        self.asked += 1
        points = "\n- ".join(dict.fromkeys(QUESTION.findall(span.text))) or "none"
        return f"conclusion: fine\nbasis: none\nunresolved:\n- {points}\nreferences: none"


class Unreliable(Forgetful):
    """The same, but for what goes wrong with models now and then."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> Any:
        good = super().summarize(span, earlier, refused)
        wrong = [good, good[:-20], "Error: 429", None, good.replace("fine", "fine " * 50), good + "\n- r1" * 60]
        said = self._dice.choice([*wrong, TimeoutError("too late")])
        if isinstance(said, Exception):
            raise said
        return said


# --- summaries alone --------------------------------------------------------------------------------------------


def compressed(summarizer: Any, *, naive: bool = False) -> tuple[list[str], Summary]:
    """What was decided and left open, and the summary after fifty compressions, a turn with its decision each."""
    card, summary, wanted = Card(), None, list[str]()
    for at in range(1, TIMES + 1):
        card, _ = changed(card, parse_changes(decision(at)))
        question = f"which disk is shard {at:02} on?"
        wanted += [f"use mirror {at:02}", question]
        earlier = [] if summary is None or naive else [summary]
        keys = [] if naive else confirmed(card)
        span = span_of(f"I looked. {question}", tokens=400)
        summary, _ = summarised(span, earlier, summarizer, count=Characters().count, tokens_max=200, keys=keys)
    assert summary is not None
    return wanted, summary


def test_a_forgetful_summariser_is_believed_to_the_end_and_loses_nothing():
    forgetful = Forgetful()
    wanted, summary = compressed(forgetful)
    assert [point for point in wanted if point not in kept_of(summary)] == []
    assert (summary.made_by, forgetful.asked) == ("summarizer", TIMES), "what is carried over is not its doing"


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_whatever_goes_wrong_in_between_nothing_is_lost_and_nothing_is_carried_twice(seed: int):
    wanted, summary = compressed(Unreliable(random.Random(seed)))
    assert [point for point in wanted if point not in kept_of(summary)] == []
    assert len(set(summary.carried)) == len(summary.carried)


def test_without_a_summariser_nothing_is_lost():
    wanted, summary = compressed(None)
    assert [point for point in wanted if point not in kept_of(summary)] == []


@pytest.mark.parametrize("summarizer", [Forgetful(), None])
def test_must_fail_control_summaries_of_the_turn_alone_lose_all_but_the_last(summarizer: Any):
    wanted, summary = compressed(summarizer, naive=True)
    assert len([point for point in wanted if point not in kept_of(summary)]) >= 2 * TIMES - 2


def test_what_was_carried_over_is_not_read_as_a_part_of_the_next_summary():
    _, summary = compressed(Forgetful())
    assert parse_summary(Forgetful().summarize(span_of("So."), [summary], None)).unresolved == []


# --- in a session -----------------------------------------------------------------------------------------------


def tasked(desk: Desk, owner: Principal, commits: int, lost: Callable[[list[Any], list[str]], None]) -> Any:
    """A task with so many commits of its window: ``lost`` sees every view, with all that was decided and left open.

    Returns the newest summary.
    """
    policy = policy_of("[window]\nwindow_tokens_max = 20000\ncarried_share = 0.5\n")
    talk, wanted, summaries, at = Conversation(), list[str](), list[Any](), 0
    with desk.open(policy=policy, counter=Characters()) as archive:
        session = archive.session("case", owner, summarizer=Forgetful())
        while len(summaries) < commits:
            at += 1
            assert at < 3 * commits + 9, "turns leave"
            talk.tool("a finding\n" * 200)
            talk.say(f"I looked. which disk is shard {at:02} on?")
            talk.messages.append({"role": "user", "content": "go on, " + "please " * 4_600})
            talk.say("Yes.")
            wanted.append(f"which disk is shard {at:02} on?")
            lost(session.view(talk.messages), wanted)
            session.update_card(decision(at))
            wanted.append(f"use mirror {at:02}")
            newest = session._windowing._state.summary
            if newest is not None and newest not in summaries[-1:]:
                summaries.append(newest)
    return summaries[-1]


def gone(view: list[Any], wanted: list[str]) -> list[str]:
    shown = "\n".join(str(message["content"]) for message in view)
    return [point for point in wanted if point not in shown]


def test_after_fifty_commits_every_view_tells_of_all_that_was_decided_and_left_open(
    sqlite_desk: Desk, owner: Principal
):
    def nothing_lost(view: list[Any], wanted: list[str]) -> None:
        assert gone(view, wanted) == []

    newest = tasked(sqlite_desk, owner, TIMES, nothing_lost)
    assert newest.made_by == "summarizer"


def test_after_twenty_commits_the_newest_summary_names_every_decision_that_was_confirmed_before(
    sqlite_desk: Desk, owner: Principal
):
    newest = tasked(sqlite_desk, owner, 20, lambda view, wanted: None)
    decided = [f"use mirror {at:02}" for at in range(1, 20)]
    assert [point for point in decided if point not in kept_of(newest)] == []


def test_must_fail_control_a_window_whose_summaries_carry_nothing_over_loses_open_points(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    def naive(span: Span, earlier: Any, summarizer: Any, **named: Any) -> Any:
        return summarised(span, (), summarizer, **{**named, "keys": ()})

    monkeypatch.setattr(leaving, "summarised", naive)
    monkeypatch.setattr(leaving, "carried", lambda facts, card, left, **named: left[-1].summary)
    losses: list[str] = []
    tasked(sqlite_desk, owner, 5, lambda view, wanted: losses.extend(gone(view, wanted)))
    assert any(QUESTION.fullmatch(point) for point in losses)
