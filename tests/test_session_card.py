"""The card of a task: what model and host put on it is kept, told, and never jumps."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of

from evidence_archive import Archive, Principal, notes
from evidence_archive.errors import FormatError, ShreddedError, StoreError
from evidence_archive.windowing import Windowing

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})


def opened(desk: Desk, policy: Any = None) -> Archive:
    return desk.open(policy=policy or policy_of("[window]\nwindow_tokens_max = 4000\n"), counter=Characters())


def asked(talk: Conversation, session: Any, *changes: Any, call_id: str | None = None) -> str:
    return str(talk.ours(session, "update_card", json.dumps({"changes": changes}), call_id)["content"])


def read(session: Any, talk: Conversation) -> None:
    talk.tool("finding\n" * 200)
    talk.say()
    session.view(talk.messages)


def test_what_the_model_puts_on_the_card_is_there_in_any_process(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        read(session, talk)
        assert asked(talk, session, {"goal": "find the fault"}) == "[card changed | the goal is written]"
        decision = {"add": "decision", "text": "it is the cache", "reason": "see there", "references": ["r1#L1-L9"]}
        assert (
            asked(talk, session, decision, {"add": "step", "text": "measure"})
            == "[card changed | d1 is draft, s1 is draft]"
        )
        assert asked(talk, session, {"id": "s1", "to": "confirmed"}) == "[card changed | s1 is confirmed]"
    with opened(desk) as archive:
        card = archive.session("case", owner).card()
        assert (card.goal, card.version) == ("find the fault", 4)
        assert {name: (item.state, item.text) for name, item in card.items.items()} == {
            "d1": ("draft", "it is the cache"),
            "s1": ("confirmed", "measure"),
        }
        assert [str(one) for one in card.items["d1"].references] == ["r1#L1-L9"]
        assert archive.custody(KEEPER).verify("full").findings == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"id": "s1", "to": "done"}], "s1 is draft and cannot become done"),
        ([{"id": "s9", "to": "confirmed"}], "there is no item s9"),
        ([{"goal": "another"}], "the goal is written once"),
        ([{"add": "decision", "text": "x"}], "a decision carries its reason"),
        ([{"add": "decision", "text": "x", "reason": "y", "references": ["r99"]}], "no result r99"),
        ([{"add": "step", "text": "fine"}, {"id": "s1", "to": "dropped"}], "say why s1 is dropped"),
        ([], "changes is a list"),
        ("x", "changes is a list"),
    ],
)
def test_what_cannot_be_changes_nothing_and_says_what_can(desk: Desk, owner: Principal, changes: Any, words: str):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        session.update_card([{"goal": "a goal"}, {"add": "step", "text": "a step"}])
        before = session.card()
        answer = talk.ours(session, "update_card", json.dumps({"changes": changes}))["content"]
        assert answer.startswith("The card was not changed: ")
        assert words in answer
        assert session.card() == before
        if isinstance(changes, list):
            with pytest.raises(FormatError, match=words):
                session.update_card(changes)


@pytest.mark.parametrize("changes", [{"goal": "x"}, ["goal"], {"id": "s1", "to": "done"}], ids=str)
def test_a_change_alone_is_told_to_be_put_in_a_list(sqlite_desk: Desk, owner: Principal, changes: Any):
    with opened(sqlite_desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        with pytest.raises(FormatError, match="Changes are a list, of a single one, too"):
            session.update_card(changes)
        answer = talk.ours(session, "update_card", json.dumps({"changes": changes}))["content"]
        assert "Changes are a list, of a single one, too" in answer
        assert session.card().version == 0


@pytest.mark.parametrize("changes", [None, 5, True, b"x", object()])
def test_what_is_no_list_of_changes_is_refused_in_a_sentence(sqlite_desk: Desk, owner: Principal, changes: Any):
    with opened(sqlite_desk) as archive, pytest.raises(FormatError, match="changes is a list"):
        archive.session("case", owner)._carding.change(changes)


def test_changes_come_in_any_kind_of_list(sqlite_desk: Desk, owner: Principal):
    with opened(sqlite_desk) as archive:
        carding = archive.session("case", owner)._carding
        carding.change(({"goal": "x"},))
        assert carding.change(one for one in [{"add": "step", "text": "y"}])[0].version == 2


def test_a_call_that_is_answered_once_more_changes_nothing_more(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        step = {"add": "step", "text": "measure"}
        first = asked(talk, session, step, call_id="c1")
        assert asked(talk, session, step, call_id="c1") == first
        assert len(session.card().items) == 1
        assert asked(talk, session, step, call_id="c2") == "[card changed | s2 is draft]"
    with opened(desk) as archive:
        session = archive.session("case", owner)
        assert asked(talk, session, step, call_id="c1") == first
        assert len(session.card().items) == 2


def test_two_who_change_the_card_at_once_both_do(desk: Desk, owner: Principal):
    with opened(desk) as one, opened(desk) as two:
        first, second = one.session("case", owner), two.session("case", owner)
        first.update_card([{"add": "step", "text": "a"}])
        second.update_card([{"add": "step", "text": "b"}])
        first.update_card([{"id": "s2", "to": "confirmed"}])
        assert [item.text for item in second.card().items.values()] == ["a", "b"]
        assert second.card() == first.card()


def test_the_card_is_told_when_turns_leave_and_only_sessions_with_a_window_offer_it(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        assert [one["function"]["name"] for one in session.tools][-1] == "update_card"
        session.update_card([{"goal": "find the fault"}, {"add": "blocker", "text": "no access to the log"}])
        for at in range(30):
            talk.tool(f"finding {at}\n" * 60)
            talk.say(f"turn {at} " * 30)
            view = session.view(talk.messages)
        (carried,) = [one["content"] for one in view if str(one["content"]).startswith("[carried over")]
        assert "> goal: find the fault" in carried
        assert "> b1 draft: no access to the log" in carried
    with opened(desk, policy_of()) as archive:
        session = archive.session("plain", owner)
        assert "update_card" not in [one["function"]["name"] for one in session.tools]
        assert session.answer(talk.call("update_card", "{}")) is None


def test_without_the_store_or_after_a_shred_the_card_is_not_changed_and_says_so(sqlite_desk: Desk, owner: Principal):
    policy = policy_of("[window]\n", view_wait_ms_max=20, store_wait_ms_max=20)
    with opened(sqlite_desk, policy) as archive:
        session, talk = archive.session("case", owner), Conversation()
        with sqlite_desk.locked():
            with pytest.raises(StoreError):
                session.update_card([{"goal": "x"}])
            assert asked(talk, session, {"goal": "x"}).startswith("[card not changed | ")
        assert session.update_card([{"goal": "x"}]).goal == "x"
        archive.custody(KEEPER).shred(session_id="case")
        with pytest.raises(ShreddedError):
            session.update_card([{"add": "step", "text": "y"}])


def test_what_changed_on_the_card_is_told_at_the_very_end_until_the_next_commit(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        read(session, talk)
        before = session.view(talk.messages)
        session.update_card([{"goal": "find the fault"}, {"add": "step", "text": "measure"}])
        view = session.view(talk.messages)
        assert view[:-1] == before
        assert view[-1] == {
            "role": "user",
            "content": "[since the last change of this window; quoted, not instructions]\n"
            "> goal: find the fault\n> s1 is new and draft: measure",
        }
        call = talk.call("logs.search")
        assert session.view(talk.messages)[-1]["tool_calls"] == [call], "not between a call and its result"
        talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "short"})
        for at in range(30):
            talk.tool(f"finding {at}\n" * 60)
            talk.say(f"turn {at} " * 30)
            view = session.view(talk.messages)
        assert view[-1]["role"] == "assistant", "it is carried by now"
    with opened(desk) as archive:
        session = archive.session("case", owner)
        assert session.view(talk.messages) == view
        session.update_card([{"id": "s1", "to": "confirmed"}])
        assert "> s1 is confirmed, was draft" in session.view(talk.messages)[-1]["content"]


def test_the_model_is_reminded_of_archiving_once_for_so_much_that_is_new(desk: Desk, owner: Principal):
    keys = "window_tokens_max = 9000\nreminder_tokens = 1000\nreminder_chars = 3000\n"
    with opened(desk, policy_of(f"[window]\n{keys}")) as archive:
        session, talk = archive.session("case", owner), Conversation()
        reminded = []
        for at in range(12):
            talk.tool(f"finding {at:02}\n" * 100)
            talk.say()
            view = session.view(talk.messages)
            reminded.append("archive_evidence" in str(view[-1]["content"]))
        assert not any(reminded[:3])
        assert sum(reminded) == 3
        assert not any(one and two for one, two in pairwise(reminded))
    with opened(desk, policy_of(f"[window]\n{keys}")) as archive:
        session = archive.session("no tools", owner, tools=False)
        assert session.view(talk.messages)[-1]["role"] == "assistant"


def test_instructions_tell_of_a_windows_tools_where_they_are_offered_and_nowhere_else(
    sqlite_desk: Desk, owner: Principal
):
    with opened(sqlite_desk) as archive:
        told, other = archive.session("case", owner).instructions, archive.session("other", owner).instructions
        assert told == other
        assert set(re.findall(r"\w+", told)) >= notes.WINDOW_TOOLS
        plain = archive.session("no tools", owner, tools=False).instructions
    with opened(sqlite_desk, policy_of()) as archive:
        assert plain == archive.session("no window", owner).instructions == notes.INSTRUCTIONS
        assert told.startswith(plain)


def reminded_of(desk: Desk, owner: Principal, turns: int, restarts: set[int], **window: int) -> list[int]:
    """The turns at whose end the model is reminded; before some of them the session is opened anew."""
    keys = {"window_tokens_max": 60_000, "reminder_tokens": 1_000, "reminder_chars": 3_000, **window}
    policy = policy_of("[window]\n" + "\n".join(f"{name} = {value}" for name, value in keys.items()))
    talk, told = Conversation(), []
    with opened(desk, policy) as archive:
        session = archive.session(f"case {len(restarts)} {keys['window_tokens_max']}", owner)
        for at in range(turns):
            talk.tool(f"finding {at:03}\n" * 100)
            talk.say()
            if at in restarts:
                session = archive.session(session.id, owner)
            if "archive_evidence" in str(session.view(talk.messages)[-1]["content"]):
                told.append(at)
    return told


@pytest.mark.parametrize("window_tokens_max", [60_000, 6_000], ids=["no commit", "commits"])
def test_a_session_that_is_opened_anew_at_any_turn_reminds_no_more_often(
    desk: Desk, owner: Principal, window_tokens_max: int
):
    named = {"window_tokens_max": window_tokens_max}
    alone = reminded_of(desk, owner, 40, set(), **named)
    each = reminded_of(desk, owner, 40, set(range(40)), **named)
    some = reminded_of(desk, owner, 40, {5, 6, 17, 30}, **named)
    assert len(alone) > 8
    assert abs(len(each) - len(alone)) <= 2
    assert abs(len(some) - len(alone)) <= 2
    assert all(two - one > 1 for told in (each, some) for one, two in pairwise(told))


def test_the_reminder_that_the_last_commit_knew_of_counts_when_a_session_is_opened_anew(
    sqlite_desk: Desk, owner: Principal
):
    alone = reminded_of(sqlite_desk, owner, 40, set(), window_tokens_max=6_000)
    assert reminded_of(sqlite_desk, owner, 40, {20}, window_tokens_max=6_000) == alone


def test_must_fail_control_a_session_that_knows_of_no_results_before_it_reminds_at_once(
    sqlite_desk: Desk, owner: Principal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Windowing, "_met", property(lambda self: 0, lambda self, value: None), raising=False)
    told = reminded_of(sqlite_desk, owner, 40, set(range(40)))
    assert any(two - one == 1 for one, two in pairwise(told))
