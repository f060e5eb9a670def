"""The card: what moves, what does not, and what is told of it."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError
from evidence_archive.window.card import (
    CHANGES_MAX,
    ITEMS_MAX,
    KINDS,
    STATES,
    TEXT_CHARS_MAX,
    Card,
    Item,
    changed,
    parse_changes,
)

ORDER = ("draft", "confirmed", "in_progress", "done")
DECISION = {"add": "decision", "text": "use the mirror", "reason": "the origin is down", "references": ["r3#L4"]}


def after(card: Card, *changes: dict[str, Any]) -> Card:
    return changed(card, parse_changes(list(changes)))[0]


def test_an_item_goes_through_its_states_one_by_one() -> None:
    card = after(Card(), {"goal": "ship"}, {"add": "step", "text": "build"})
    for state in ORDER[1:]:
        card = after(card, {"id": "s1", "to": state})
        assert card.items["s1"].state == state
    assert card.goal == "ship"
    assert card.version == 5


@pytest.mark.parametrize("at", STATES)
@pytest.mark.parametrize("to", STATES[1:])
def test_only_the_next_state_and_dropped_can_be_reached_and_a_refusal_says_what_can(at: str, to: str) -> None:
    card = Card(items={"s1": Item("s1", "step", "build", at)})
    may = (at in ORDER[:-1]) and (to == "dropped" or ORDER.index(to) == ORDER.index(at) + 1)
    if may:
        assert after(card, {"id": "s1", "to": to, "reason": "so"}).items["s1"].state == to
        return
    with pytest.raises(
        FormatError, match=rf"Nothing was changed. Change 1: s1 is {at} and cannot become {to}: "
    ) as told:
        after(card, {"id": "s1", "to": to, "reason": "so"})
    following = dict(pairwise(ORDER)).get(at)
    assert (following or "it stays so") in str(told.value)


def test_must_fail_control_a_card_that_takes_any_state_would_jump() -> None:
    def naive(card: Card, change: dict[str, Any]) -> Card:
        item = card.items[change["id"]]
        return Card(card.goal, {**card.items, item.id: Item(item.id, item.kind, item.text, change["to"])})

    card = Card(items={"s1": Item("s1", "step", "build")})
    assert naive(card, {"id": "s1", "to": "done"}).items["s1"].state == "done"
    with pytest.raises(FormatError):
        after(card, {"id": "s1", "to": "done"})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([{"goal": "a"}, {"goal": "b"}], "Change 2: the goal is written once"),
        ([{**DECISION, "reason": None}], "a decision carries its reason and at least one reference"),
        ([{**DECISION, "references": []}], "a decision carries its reason and at least one reference"),
        ([DECISION, {"id": "d1", "to": "dropped"}], "Change 2: say why d1 is dropped"),
        ([{"id": "d9", "to": "confirmed"}], "there is no item d9"),
        ([DECISION, {"id": "d1"}], "say what changes"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_why(changes: list[dict[str, Any]], told: str) -> None:
    card = Card(version=3)
    with pytest.raises(FormatError, match="Nothing was changed") as refused:
        after(card, *changes)
    assert told in str(refused.value)
    assert card == Card(version=3)


@pytest.mark.parametrize(
    "changes",
    [
        None, {}, [], "x", [None], [[]], [{}], [{"text": "x"}], [{"goal": ""}], [{"goal": " "}], [{"goal": 3}],
        [{"goal": "a", "text": "b"}], [{"add": "idea", "text": "x"}], [{"add": "step"}],
        [{"add": ["step"], "text": "x"}],
        [{"add": "step", "text": "x" * (TEXT_CHARS_MAX + 1)}], [{"add": "step", "text": "x", "to": "done"}],
        [{"add": "step", "text": "x", "references": "r1"}], [{"add": "step", "text": "x", "references": ["r0"]}],
        [{"add": "step", "text": "x", "references": ["r1"] * 21}], [{"id": "s1", "to": "draft"}],
        [{"id": "s1", "to": "open"}], [{"id": 1, "to": "done"}], [{"id": "s1", "to": ["done"]}],
        [{"goal": "x"}] * (CHANGES_MAX + 1),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_before_anything_is_looked_at(changes: object) -> None:
    with pytest.raises(FormatError):
        parse_changes(changes)


given_changes = st.lists(
    st.one_of(
        st.just({"goal": "ship"}),
        st.sampled_from([DECISION, {"add": "step", "text": "build"}, {"add": "blocker", "text": "no disk"}]),
        st.fixed_dictionaries(
            {
                "id": st.sampled_from(["d1", "s1", "s2", "b1"]),
                "to": st.sampled_from(STATES[1:]),
                "reason": st.just("so"),
            }
        ),
        st.fixed_dictionaries({"id": st.sampled_from(["d1", "s1"]), "references": st.just(["r7#L1-L2"])}),
    ),
    min_size=1,
    max_size=12,
)


@given(st.lists(given_changes, max_size=8))
def test_the_differences_lead_from_card_to_card_and_ids_are_never_given_again(
    batches: list[list[dict[str, Any]]],
) -> None:
    card, told = Card(), Card()
    for batch in batches:
        try:
            card, differences = changed(card, parse_changes(json.loads(json.dumps(batch))))
        except FormatError:
            continue
        items = dict(told.items)
        for one in differences:
            assert one.after is None or one.before == items.get(one.after.id)
            items |= {} if one.after is None else {one.after.id: one.after}
        goal = "ship" if any(one.item_id is None for one in differences) else told.goal
        told = Card(goal, items, told.version + len(differences))
        assert told == card
        for kind, letter in KINDS.items():
            ids = [item.id for item in card.items.values() if item.kind == kind]
            assert ids == [f"{letter}{at}" for at in range(1, len(ids) + 1)]


def test_a_card_and_an_item_are_bounded_and_ids_are_ids():
    full = Card("a goal", {f"s{at}": Item(f"s{at}", "step", "a step") for at in range(1, ITEMS_MAX + 1)})
    with pytest.raises(FormatError, match="at most 500 items"):
        changed(full, parse_changes([{"add": "step", "text": "one more"}]))
    references = [f"r{at}" for at in range(1, 21)]
    card, _ = changed(Card(), parse_changes([{"add": "step", "text": "a step", "references": references}]))
    with pytest.raises(FormatError, match="at most 20 references"):
        changed(card, parse_changes([{"id": "s1", "references": ["r21"]}]))
    for wrong in ("x1", "s0", "s1 ", ""):
        with pytest.raises(FormatError):
            parse_changes([{"id": wrong, "to": "confirmed"}])
