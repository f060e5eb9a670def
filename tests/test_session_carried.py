"""What a window carries over: facts that hold, what is open, spans that something refers to; and how good it is."""

import json
import random
from typing import Any

import pytest
from conftest import Conversation, Desk
from structlog.testing import capture_logs
from test_session_window import BUDGET, everything, opened, size, turn, window
from test_window_fitting import is_taken

from evidence_archive import Principal
from evidence_archive.archiving import Archiving
from evidence_archive.errors import BatchRejectedError, CheckFailedError, FormatError, ShreddedError
from evidence_archive.ledger.checks import quotes
from evidence_archive.window.card import Card
from evidence_archive.window.carrying import LINES_MAX, SUMMARIES_MAX, Left, carried, indexed

GOOD = "conclusion: it was the cache\nbasis: two logs\nunresolved:\n- who cleared it\nreferences: r1"


def long(session: Any, talk: Conversation, turns: int, seed: int = 4, **named: Any) -> list[Any]:
    """So many turns, and the last view."""
    dice, view = random.Random(seed), []
    for at in range(turns):
        turn(talk, dice, at)
        view = session.view(talk.messages, **named)
        assert size(view) <= BUDGET
        assert is_taken(view)
    return view


def said(view: list[Any], head: str) -> str:
    return "\n".join(one["content"] for one in view if str(one["content"]).startswith(head))


def posted(session: Any, text: str, **named: Any) -> Any:
    """A fact whose source is what r1 says."""
    return session.ledger.verify(session.ledger.claim(text, ["r1"]), quotes("finding"), **named)


# --- facts ------------------------------------------------------------------------------------------------------


def test_facts_are_told_at_the_end_until_a_commit_and_in_front_after_it_in_any_process(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        long(session, talk, 2)
        posted(session, "the cache is slow", key=True)
        old = posted(session, "the disk is full")
        view = session.view(talk.messages)
        assert "> f1: the cache is slow [r3 r1]" in said(view[-1:], "[since")
        assert said(view, "[carried over") == ""
        long(session, talk, 60)
        posted(session, "the disk is half full", supersedes=old.id)
        view = session.view(talk.messages)
        assert "Established facts:\n> f1: the cache is slow [r3 r1]\n> f2: the disk is full" in said(
            view, "[carried over"
        )
        told = said(view[-1:], "[since")
        assert "f1" not in told
        assert "> f2 holds no longer\n> f3: the disk is half full [r1]" in told
    with opened(desk) as archive:
        again = archive.session("case", owner).view(json.loads(json.dumps(talk.messages)))
        assert json.dumps(again) == json.dumps(view)


def test_a_fact_that_did_not_agree_with_its_source_is_told_as_established_no_more(
    sqlite_desk: Desk, owner: Principal
):
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        long(session, talk, 2)
        posted(session, "the cache is slow", key=True)
        assert "f1" in said(session.view(talk.messages)[-1:], "[since")
        sqlite_desk.execute("UPDATE originals SET envelope = x'00'")
        with pytest.raises(CheckFailedError):
            session.ledger.close()
        assert "f1" not in said(session.view(talk.messages)[-1:], "[since")


# --- what is open -----------------------------------------------------------------------------------------------


def test_open_points_have_lines_of_their_own_so_that_one_that_does_not_fit_takes_no_other_along():
    points = [f"is node {at} done?" for at in range(200)]
    text = carried([], Card(), [], points=points, count=len, budget_tokens=1_000)
    shown = [line for line in text.splitlines() if line.startswith("> is node")]
    assert shown[0] == "> is node 199 done?"
    assert len(shown) > 20
    assert f"... and {200 - len(shown)} points more" in text


def test_confirmed_decisions_are_carried_over_and_dropped_ones_are_not(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        long(session, talk, 2)
        add = {"add": "decision", "reason": "it says so", "references": ["r1"]}
        session.update_card([{**add, "text": "use mirror 1"}, {**add, "text": "use mirror 2"}])
        session.update_card([{"id": "d1", "to": "confirmed"}, {"id": "d2", "to": "confirmed"}])
        long(session, talk, 60)
        assert {"use mirror 1", "use mirror 2"} <= set(session._windowing._state.summary.carried)
        session.update_card([{"id": "d2", "to": "dropped", "reason": "it is gone"}])
        long(session, talk, 60, seed=5)
        assert "use mirror 1" in session._windowing._state.summary.carried
        assert "use mirror 2" not in session._windowing._state.summary.carried


# --- the index --------------------------------------------------------------------------------------------------


def test_old_spans_leave_the_index_unless_something_refers_to_them_or_to_a_result_in_them():
    left = [Left(f"r{at}", at, at, "a line", "its summary", (f"r{at + 1_000}",)) for at in range(1, 101)]
    kept = indexed(left, {"r3", "r1007"})
    assert [one.result_id for one in kept] == ["r3", "r7", *(f"r{at}" for at in range(101 - LINES_MAX, 101))]
    with_summary = [one.result_id for one in kept if one.summary]
    assert with_summary == ["r3", "r7", *(f"r{at}" for at in range(101 - SUMMARIES_MAX, 101))]
    assert indexed(kept, {"r3", "r1007"}) == kept


def test_a_span_that_left_the_index_is_archived_found_and_counted(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("evidence_archive.window.carrying.LINES_MAX", 2)
    with opened(sqlite_desk) as archive, capture_logs() as events:
        session, talk = archive.session("case", owner), Conversation()
        talk.say("The word is heliotrope.")
        view = long(session, talk, 150)
        retired = [id for one in events if one["event"].endswith("summaries_retired") for id in one["spans"]]
        assert len(retired) > 3
        text = said(view, "[carried over")
        assert f"... and {len(retired)} older spans that nothing refers to: search_evidence finds" in text
        assert f"> {retired[0]}: messages" not in text
        assert "heliotrope" in session.restore(retired[0]).content
        assert {one.result_id for one in session.search("heliotrope").hits} == {retired[0]}


def test_a_task_of_any_length_puts_down_postings_of_bounded_size(sqlite_desk: Desk, owner: Principal):
    """Numbers of messages that left are runs, and an index that grew with the task would be seen here."""
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        sizes = []
        for seed in range(3):
            long(session, talk, 90, seed=seed)
            rows = sqlite_desk.execute("SELECT length(closed) FROM postings WHERE book = 'window' ORDER BY seq")
            sizes.append(max(length for (length,) in rows[-5:]))
        assert sizes[2] < 1.5 * sizes[1] + 2_000


def test_a_result_that_left_with_its_turn_is_an_original_and_goes_when_that_is_shredded(desk: Desk, owner: Principal):
    """Nothing of it may stay in a span, and neither may what a search found of it."""
    secret, small = "heliotrope 4711\n" * 60, "the small one says vermilion"
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        talk.tool(secret)
        talk.tool(small)
        talk.say()
        session.view(talk.messages)
        session.archive([("r1", "a note")])
        talk.ours(session, "search_evidence", json.dumps({"query": "heliotrope"}))
        talk.say()
        long(session, talk, 60)
        spans = [f"r{row.number}" for row in session._records.rows.values() if row.own == "span"]
        text = "\n".join(session.restore(id).content for id in spans)
        assert "heliotrope 4711" not in text
        assert "vermilion" not in text
        assert "[r2: a result that is archived under this id]" in text
        assert "[left out: what a search found]" in text
        assert session.restore("r2").content == small
        custody = archive.custody(Principal(org="north-clinic", subject="records", roles={"custodian"}))
        custody.shred(session_id="case", result_id="r2")
        with pytest.raises(ShreddedError):
            session.restore("r2")
        assert custody.verify("full").findings == ()


def test_results_that_cannot_be_archived_now_keep_their_turn_from_being_a_span(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    def rejecting(*_: Any, **named: Any) -> Any:
        if named.get("is_leaving"):
            raise BatchRejectedError("Nothing was archived.", reason="store_unavailable")
        return archive_(*_, **named)

    archive_ = Archiving.archive
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        with monkeypatch.context() as patch:
            patch.setattr(Archiving, "archive", rejecting)
            long(session, talk, 60)
            assert session.stats().summaries.summaries == 0
        view = long(session, talk, 30, seed=6)
        assert session.stats().summaries.summaries > 0
        assert everything(session, view, talk.messages) == []


# --- quality ----------------------------------------------------------------------------------------------------


class Writes:
    """A summariser that always says the same."""

    def summarize(self, span: Any, earlier: Any, refused: str | None) -> str:
        return GOOD


class Judges:
    """A judge that says this, or fails."""

    def __init__(self, says: Any) -> None:
        self.says = says
        self.asked = 0

    def judge(self, span: Any, summary: Any) -> Any:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def test_what_summaries_lose_is_counted_and_one_in_so_many_is_judged(desk: Desk, owner: Principal):
    judge = Judges(0.75)
    with opened(desk, window(judge_every=2)) as archive, capture_logs() as events:
        session, talk = archive.session("case", owner, summarizer=Writes(), judge=judge), Conversation()
        long(session, talk, 120)
        quality = session.stats().summaries
    told = [one for one in events if one["event"] == "evidence_archive.summary_checked"]
    assert quality.summaries == len(told) > 3
    assert quality.judged == judge.asked == (len(told) + 1) // 2
    assert quality.score == 0.75
    assert quality.by_host == quality.refused == 0
    assert quality.loss_rate > 0.9, "of what the model found, such a summary says next to nothing"
    with opened(desk, window(judge_every=2)) as archive:
        session = archive.session("case", owner)
        session.view(talk.messages)
        assert session.stats().summaries == quality


@pytest.mark.parametrize("says", [RuntimeError("away"), 2.0, float("nan"), "good", None])
def test_a_judge_that_fails_keeps_no_turn_from_leaving(sqlite_desk: Desk, owner: Principal, says: Any):
    with opened(sqlite_desk, window(judge_every=1)) as archive, capture_logs() as events:
        session, talk = archive.session("case", owner, judge=Judges(says)), Conversation()
        long(session, talk, 40)
        assert session.stats().summaries.summaries == 1
        assert session.stats().summaries.score is None
    assert any(one["event"] == "evidence_archive.judge_failed" for one in events)


# --- costs ------------------------------------------------------------------------------------------------------


def test_with_a_cold_cache_a_change_is_made_that_would_not_pay_otherwise(sqlite_desk: Desk, owner: Principal):
    counts = {}
    for is_cold in (False, True):
        with opened(sqlite_desk, window(low=0.1, cooldown_turns=100)) as archive:
            session, talk = archive.session(f"cold {is_cold}", owner), Conversation()
            for at in range(6):
                talk.tool(f"finding {at} " * 40)
                talk.say()
                view = session.view(talk.messages, is_cache_cold=is_cold and at == 5)
            counts[is_cold] = (session.stats().archived, size(view))
    assert counts[False][0] == 0
    assert counts[True][0] > 0
    assert counts[True][1] < counts[False][1] < 0.8 * BUDGET


def test_what_a_commit_costs_and_saves_is_told(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk) as archive, capture_logs() as events:
        session, talk = archive.session("case", owner), Conversation()
        long(session, talk, 40)
        batches = session.stats().batches
    told = [one for one in events if one["event"] == "evidence_archive.context_compressed"]
    assert sum(one["batches"] for one in told) == batches
    assert sum(len(one["spans"]) for one in told) == len(
        [one for one in events if one["event"] == "evidence_archive.summary_checked"]
    )
    for one in told:
        assert one["removed_tokens"] > 0
        assert one["cost"] == pytest.approx(one["read_again_tokens"] * 2.7 / 10**6, abs=1e-6)
        assert one["saving"] == pytest.approx(one["removed_tokens"] * 3.0 / 10**6, abs=1e-6)


@pytest.mark.parametrize(
    "named",
    [
        {"summarizer": "gpt"},
        {"summarizer": lambda *_: ""},
        {"judge": "gpt"},
        {"rules": ["x"]},
        {"rules": "x"},
        {"rules": 1},
    ],
)
def test_what_cannot_write_judge_or_look_is_refused_at_once(sqlite_desk: Desk, owner: Principal, named: Any):
    with opened(sqlite_desk) as archive, pytest.raises(FormatError):
        archive.session("case", owner, **named)


def test_no_commit_is_made_that_costs_more_than_it_saves_unless_the_budget_forces_it(
    sqlite_desk: Desk, owner: Principal
):
    with opened(sqlite_desk, window(window_tokens_max=8_000)) as archive, capture_logs() as events:
        session, talk = archive.session("case", owner), Conversation()
        dice = random.Random(3)
        for at in range(150):
            turn(talk, dice, at)
            session.view(talk.messages)
    told = [one for one in events if one["event"] == "evidence_archive.context_compressed" and not one["forced"]]
    assert told
    assert [one for one in told if one["cost"] > one["saving"]] == []
