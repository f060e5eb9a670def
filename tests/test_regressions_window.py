"""Faults of windows and prompt caches that users of comparable systems reported: the whole kind is impossible here.

The id at the head of a docstring is the fault's number, as in ``test_regressions.py``; the name says what is right.
"""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import arguments, policy_of
from structlog.testing import capture_logs
from test_session_window import BUDGET, KEEPER, NEVER, opened, size, turn, window

from evidence_archive import Principal
from evidence_archive.window.costs import Prices, Rewrite
from evidence_archive.windowing import Windowing

FINDING = "a finding\n" * 150
EAGER = {"price_cached_input": 3.0}
"""Prices under which every change pays, so that the host archives as soon as it may."""


def results(session: Any, talk: Conversation, count: int, *, text: str = FINDING, name: str = "logs.search") -> Any:
    """So many results, each read, with a view after each; the last view."""
    for at in range(count):
        talk.tool(f"{at} {text}", name=name)
        talk.say()
        view = session.view(talk.messages)
    return view


def by_host(session: Any) -> list[str]:
    return [info.id for info in session.results() if info.state == "archived"]


def contents(view: list[Any]) -> list[str]:
    return [str(message["content"]) for message in view]


def carried(view: list[Any]) -> str:
    (text,) = [text for text in contents(view) if text.startswith("[carried over")]
    return text


# --- D. loops, ways back, notes that mislead --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mcp__headroom__headroom_retrieve", "restore_evidence"])
def test_the_host_never_archives_what_was_restored_whatever_the_tool_is_called(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, name: str
):
    """D1"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        results(session, talk, 12)
        assert "r1" in by_host(session)
        call = talk.call(name, arguments(id="r1"))
        talk.messages.append(session.answer({**call, "function": {**call["function"], "name": "restore_evidence"}}))
        talk.say()
        session.view(talk.messages)
        (copy,) = [info.id for info in session.results() if info.restored_from]
        results(session, talk, 12)
        assert len(by_host(session)) > 12, "the host goes on archiving"
        assert copy not in by_host(session)
        assert len(sqlite_desk.rows("originals")) == len(by_host(session)) + spans(session)


def spans(session: Any) -> int:
    return sum(row.own == "span" for row in session._records.rows.values())


def test_without_the_restore_tool_no_note_of_the_host_names_it(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D3, D4"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner, tools=False)
        view = results(session, talk, 10)
        assert by_host(session)
        assert 'session.restore("r1")' in contents(view)[2]
        assert "_evidence" not in json.dumps(view)
        view = results(session, talk, 30)
        assert "session.restore with the id" in carried(view)
        assert "_evidence" not in json.dumps(view)


def test_nothing_leaves_by_itself_that_the_session_could_not_have_back(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D3"""
    rules = '[[restore]]\ntools = ["labs.*"]\nroles = ["veterinarian"]\n'
    with opened(sqlite_desk, window(rules, **EAGER)) as archive:
        session = archive.session("case", owner)
        talk.tool(f"labs {FINDING}", name="labs.read")
        view = results(session, talk, 40)
        assert "r2" in by_host(session)
        assert "r1" not in by_host(session)
        assert any(text.endswith(f"labs {FINDING}") for text in contents(view))


def test_every_id_in_view_names_a_call_that_gives_the_exact_messages_or_result_in_another_process(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D5, D12"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        view = results(archive.session("case", owner), talk, 40)
    text = json.dumps(view)
    noted = set(re.findall(r"restore_evidence id=(r\d+) returns the exact original", text))
    left = set(re.findall(r"^> (r\d+): messages", carried(view), re.M))
    assert noted
    assert left
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        for result_id in noted | left:
            answer = session.answer(talk.call("restore_evidence", arguments(id=result_id)))["content"]
            session._answering.restores_this_turn = 0
            exact = str(session.restore(result_id).content)
            assert exact in answer
            assert result_id in left or exact.endswith(FINDING)


def test_a_note_of_the_host_says_that_it_is_not_the_content_how_much_is_not_there_and_adds_nothing_up(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D6, D7, D8"""
    table = "".join(f"cat {at} had {at}.25 mg\n" for at in range(200)) + "All doses are given above.\n"
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        talk.tool(table)
        note = contents(results(session, talk, 10))[2]
    header, *words = note.split("\n")
    assert "| a note, not the content |" in header
    assert f"> Executed logs.search({{}}): 201 lines, {len(table)} characters." in words
    counts = {"201", str(len(table))}
    said = {one for line in words for one in re.findall(r"\d+(?:\.\d+)?", line)}
    assert said - counts <= set(re.findall(r"\d+(?:\.\d+)?", table))


def test_must_fail_control_a_note_with_a_sum_has_a_number_that_is_nowhere():
    """D8: the control"""
    numbers = [1.25, 2.5]
    assert {str(sum(numbers))} - set(re.findall(r"\d+(?:\.\d+)?", json.dumps(numbers)))


def test_what_the_host_archives_has_its_note_in_its_place_and_its_entry_in_the_audit_log(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D9"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        view = results(session, talk, 10)
        archived = by_host(session)
        assert archived
        noted = [at for at, text in enumerate(contents(view)) if text.startswith("[archived ")]
        assert [contents(view)[at].split()[1] for at in noted] == archived
        assert [talk.messages[at]["role"] for at in noted] == ["tool"] * len(noted)
        entries = archive.audit(principal=owner).entries
        told = [one for entry in entries if entry.event == "batch.accepted" for one in entry.details["results"]]
        assert told == archived


def test_turns_that_leave_have_their_entry_in_the_audit_log_and_their_line_in_view(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D9"""
    with opened(sqlite_desk, window(carried_share=0.4, **EAGER)) as archive:
        session = archive.session("case", owner)
        view = results(session, talk, 40)
        ids = [f"r{row.number}" for row in session._records.rows.values() if row.own == "span"]
        entries = archive.audit(principal=owner).entries
        told = [one for entry in entries if entry.event == "batch.accepted" for one in entry.details["results"]]
    assert ids
    assert [one for one in ids if f"> {one}: messages " not in carried(view)] == []
    assert set(ids) <= set(told)


@pytest.mark.parametrize("shredded", [False, True])
def test_summaries_are_made_from_originals_and_not_from_their_notes(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, shredded: bool
):
    """D10"""
    read: list[str] = []

    class Reads:
        def summarize(self, span: Any, earlier: Any, refused: str | None) -> str:
            read.append(span.text)
            return "conclusion: seen\nbasis: none\nunresolved: none\nreferences: none"

    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner, summarizer=Reads())
        talk.tool("the middle line\n" * 40 + "only here: 4711\n" + "the middle line\n" * 40)
        results(session, talk, 10)
        assert "r1" in by_host(session)
        if shredded:
            archive.custody(KEEPER).shred(session_id="case", result_id="r1")
        results(session, talk, 30)
    assert read
    assert ("only here: 4711" in "".join(read)) is not shredded


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("payment sent\n" + "line\n" * 300 + "receipt 4711\n", "> Ends: receipt 4711"),
        (json.dumps({"status": "paid", "rows": ["x" * 90] * 20}), 'It says: status "paid".'),
    ],
)
def test_the_note_of_a_call_with_effects_says_that_it_was_executed_and_what_came_of_it(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, said: str, outcome: str
):
    """D16"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        talk.tool(said, name="payment.send")
        view = results(session, talk, 10)
        assert view[1] is talk.messages[1]
        assert "> Executed payment.send({}): " in contents(view)[2]
        assert outcome in contents(view)[2]
        view = results(session, talk, 40)
    assert "1 call of payment.send" in carried(view), "also when its turn has left"


def test_a_program_has_the_exact_result_that_the_host_archived(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D17"""
    rows = json.dumps({"rows": [[1, 2.50]] * 300})
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        talk.tool(rows)
        results(session, talk, 10)
        assert "r1" in by_host(session)
        assert session.restore("r1").content == rows


def test_a_view_made_again_changes_nothing_and_a_view_handed_in_comes_back_as_it_is(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D18"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        view = results(session, talk, 40)
        before = sqlite_desk.saved()
        for _ in range(3):
            assert session.view(talk.messages) == view
        assert session.view(view) == view
        assert session.view(talk.messages) == view, "the list goes on where it was"
        assert sqlite_desk.saved() == before


def test_neither_what_is_not_read_nor_what_its_note_would_outgrow_is_archived_by_the_host(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """D19"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("case", owner)
        talk.tool("x" * 220)
        talk.say()
        results(session, talk, 10)
        talk.tool(FINDING)
        view = session.view(talk.messages)
        assert "r2" in by_host(session)
        assert "r1" not in by_host(session)
        assert contents(view)[-1].endswith(FINDING)


# --- E. cache, cost, policy -------------------------------------------------------------------------------------


def rewritten(desk: Desk, owner: Principal, turns: int = 120) -> int:
    """How many requests of a task did not begin with all of the request before."""
    dice, talk, changed, last = random.Random(5), Conversation(), 0, "["
    with opened(desk) as archive:
        session = archive.session("case", owner)
        for at in range(turns):
            turn(talk, dice, at)
            sent = json.dumps(session.view(talk.messages))
            changed += not sent.startswith(last[:-1])
            last = sent
    return changed


def test_what_was_sent_is_sent_again_byte_for_byte_in_all_but_a_few_requests(sqlite_desk: Desk, owner: Principal):
    """E1"""
    assert rewritten(sqlite_desk, owner) <= 30


def test_must_fail_control_a_window_that_slides_with_every_turn_breaks_the_prefix_again_and_again(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    """E1: the control"""
    leave = Windowing._leave

    def sliding(self: Any, *given: Any) -> Any:
        monkeypatch.setattr("evidence_archive.windowing.FREED_SHARE", 0.0)
        return leave(self, *given)

    monkeypatch.setattr(Windowing, "_leave", sliding)
    monkeypatch.setattr(Windowing, "_is_due", lambda self, read, *_: len(read) > 20)
    assert rewritten(sqlite_desk, owner) > 60


def test_notes_and_what_is_carried_are_sent_again_byte_for_byte_by_another_process(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """E2"""
    with opened(sqlite_desk, window(**EAGER)) as archive:
        sent = json.dumps(results(archive.session("case", owner), talk, 40))
    assert "[archived r" in sent
    assert "[carried over" in sent
    for _ in range(2):
        with opened(sqlite_desk, window(**EAGER)) as archive:
            assert json.dumps(archive.session("case", owner).view(talk.messages)) == sent


def test_one_small_early_result_is_not_worth_breaking_the_cache_and_many_large_ones_go_together(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """E4"""
    with opened(sqlite_desk, window(archive_tokens_min=100)) as archive:
        session = archive.session("case", owner)
        talk.tool("early\n" * 100)
        talk.say()
        for at in range(12):
            talk.say(f"{at} " + "word " * 160)
            talk.messages.append({"role": "user", "content": "go on " * 40})
            view = session.view(talk.messages)
        assert size(view) > 0.8 * BUDGET
        assert by_host(session) == [], "it would cost more than it saves"
        assert session.stats().batches == 0
    with opened(sqlite_desk, window(**EAGER)) as archive:
        session = archive.session("large", owner)
        other = Conversation()
        results(session, other, 20)
        assert len(by_host(session)) >= 3 * session.stats().batches > 0


def test_what_a_change_did_cost_is_told_and_nothing_is_where_nothing_changed(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """E4"""

    def cost() -> float:
        told = [one for one in events if one["event"] == "evidence_archive.context_sent"]
        return float(told[-1]["rewrite_cost"])

    with opened(sqlite_desk, window(window_tokens_max=20_000)) as archive, capture_logs() as events:
        session = archive.session("case", owner)
        costs = []
        for at in range(8):
            results(session, talk, 1, text=f"{at} {FINDING}")
            costs.append(cost())
        assert costs == [0.0] * 8
        session.archive([("r1", "n")])
        view = session.view(talk.messages)
        behind = size(view) - size(view[:2])
        assert cost() == pytest.approx(behind * (3.0 - 0.3) / 1_000_000, abs=1e-6)
        session.view(talk.messages)
        assert cost() == 0.0


def test_what_a_change_costs_and_saves_is_known_before_it_is_made():
    """E4"""
    small_and_early, large = Rewrite(150, 3_000), Rewrite(30_000, 3_000)
    assert small_and_early.cost(Prices()) > small_and_early.saving(Prices(), 10)
    assert not small_and_early.pays(Prices(), 10)
    assert large.pays(Prices(), 10)


def test_a_short_task_is_sent_as_it_is_with_a_window_and_without(
    sqlite_desk: Desk, owner: Principal, talk: Conversation
):
    """E5"""
    views = []
    for policy in (policy_of(), window()):
        with opened(sqlite_desk, policy) as archive:
            session = archive.session(f"case {len(views)}", owner)
            conversation = Conversation()
            view = results(session, conversation, 6)
            assert by_host(session) == []
            assert len(view) == len(conversation.messages)
            views.append([re.sub(r"tag=\w+", "", text) for text in contents(view)])
    assert views[0] == views[1]


@pytest.mark.parametrize(
    ("default", "rules", "may"),
    [
        ("never", '[[archive]]\nid = "logs"\neffect = "allow"\ntools = ["logs.*"]\n', {"logs.search"}),
        ("allow", '[[archive]]\nid = "sql"\neffect = "never"\ntools = ["sql.*"]\n', {"logs.search", "files.read"}),
        ("never", "", set()),
    ],
    ids=["only these", "all but these", "none"],
)
def test_a_policy_names_what_may_be_archived_or_what_may_not_and_the_host_keeps_to_it(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, default: str, rules: str, may: set[str]
):
    """E6"""
    keys = "window_tokens_max = 5000\narchive_tokens_min = 50\nprice_cached_input = 3.0\n"
    policy = policy_of(f"[window]\n{keys}{rules}", default=default)
    with opened(sqlite_desk, policy) as archive:
        session = archive.session("case", owner)
        for name in ("logs.search", "sql.query", "files.read") * 4:
            talk.tool(f"{name} {FINDING}", name=name)
            talk.say()
        for _ in range(4):
            talk.say()
            session.view(talk.messages)
        assert {info.tool for info in session.results() if info.state == "archived"} == may


@pytest.mark.parametrize(("called", "named"), [("b", "chart.show"), ("chart.show", "b")])
def test_a_result_is_as_protected_as_the_stricter_of_the_names_it_has(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, called: str, named: str
):
    """E7"""
    with opened(sqlite_desk, window(NEVER, **EAGER)) as archive:
        session = archive.session("case", owner)
        talk.tool(f"chart {FINDING}", name=called)["name"] = named
        view = results(session, talk, 40)
        assert "r2" in by_host(session)
        assert "r1" not in by_host(session)
        assert any(text.endswith(f"chart {FINDING}") for text in contents(view))


CLASSES: list[tuple[dict[str, Any], Callable[[list[str]], bool]]] = [
    ({"kind": "instructions"}, any),
    ({"sensitivity": "house-rules"}, any),
    ({"kind": "log"}, lambda shown: not any(shown)),
]


@pytest.mark.parametrize(("label", "stays"), CLASSES, ids=["by kind", "by sensitivity", "control"])
def test_what_the_host_labels_as_of_a_protected_class_stays_in_view(
    sqlite_desk: Desk, owner: Principal, talk: Conversation, label: dict[str, Any], stays: Any
):
    """E8"""
    rules = (
        '[[archive]]\nid = "rules"\neffect = "never"\nkind = ["instructions"]\n'
        '[[archive]]\nid = "house"\neffect = "never"\nsensitivity = ["house-rules"]\n'
    )
    with opened(sqlite_desk, window(rules, **EAGER)) as archive:
        session = archive.session("case", owner)
        session.label(talk.tool(f"how to work here {FINDING}", name="files.read"), **label)
        view = results(session, talk, 40)
        assert stays([text for text in contents(view) if text.endswith(f"how to work here {FINDING}")])


def test_where_the_cache_is_cold_whatever_makes_the_list_shorter_pays():
    """E10"""
    early = Rewrite(150, 3_000)
    assert not early.pays(Prices(), 10)
    assert early.cold.pays(Prices(), 10)
    assert early.cold.cost(Prices()) == 0
    assert not Rewrite(0, 3_000).cold.pays(Prices(), 10)
