"""The card of a task: its goal, decisions, steps and blockers, each with a state, a reason and references.

The goal is written once. An item moves ``draft -> confirmed -> in_progress -> done``, one step at a time, and from
any of these but ``done`` to ``dropped``, with a reason; a jump is refused and the refusal says which step comes
next. A decision carries its reason and at least one reference. Every change is told as a difference.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evidence_archive.errors import FormatError
from evidence_archive.references import Reference, parse_reference

__all__ = [
    "CHANGES_MAX",
    "ITEMS_MAX",
    "KINDS",
    "STATES",
    "TEXT_CHARS_MAX",
    "Card",
    "Difference",
    "Item",
    "changed",
    "parse_changes",
]

KINDS: Mapping[str, str] = {"decision": "d", "step": "s", "blocker": "b"}
"""What an item can be, and the letter its id begins with."""

STATES = ("draft", "confirmed", "in_progress", "done", "dropped")

_ID = re.compile(f"[{''.join(KINDS.values())}][1-9][0-9]{{0,8}}", re.ASCII)

_NEXT = {"draft": "confirmed", "confirmed": "in_progress", "in_progress": "done"}

TEXT_CHARS_MAX = 500
"""Longest goal, text or reason, in characters."""

REFERENCES_MAX = 20
ITEMS_MAX = 500
CHANGES_MAX = 50
"""Most references of an item, items of a card, changes at once."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that was decided, is to be done, or is in the way.

    Args:
        id: ``d1``, ``s4``, ``b2``: the letter of its kind and a number that is never given again.
        kind: ``decision``, ``step`` or ``blocker``.
        text: what.
        state: one of :data:`STATES`.
        reason: why; of a dropped item, why it was dropped.
        references: evidence for it.
    """

    id: str
    kind: str
    text: str = field(repr=False)
    state: str = "draft"
    reason: str | None = field(default=None, repr=False)
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """The state of a task.

    Args:
        goal: what for; ``None`` until it is written.
        items: by id, in the order they were made.
        version: how many changes led here.
    """

    goal: str | None = field(default=None, repr=False)
    items: Mapping[str, Item] = field(default_factory=dict, repr=False)
    version: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """What one change did.

    Args:
        item_id: of what; ``None`` for the goal.
        before, after: the item before and after it; ``None`` before it was made, and for the goal.
    """

    item_id: str | None
    before: Item | None = None
    after: Item | None = None


def changed(card: Card, changes: Sequence[Mapping[str, Any]]) -> tuple[Card, list[Difference]]:
    """The card after all of these changes, and what each did; none is made where one cannot be.

    Args:
        card: as it is.
        changes: from :func:`parse_changes`, in order; a later one may name what an earlier one made.

    Raises:
        FormatError: one cannot be made; the message says which, and what can.
    """
    goal, items, differences = card.goal, dict(card.items), []
    for at, change in enumerate(changes, 1):
        try:
            if "goal" in change:
                if goal is not None:
                    raise FormatError("the goal is written once, and it is; add a decision instead.")
                goal = change["goal"]
                differences.append(Difference(None))
                continue
            before = items.get(change["id"]) if "id" in change else None
            after = _moved(items, change) if "id" in change else _made(items, change)
        except FormatError as error:
            raise FormatError(f"Nothing was changed. Change {at}: {error}") from None
        items[after.id] = after
        differences.append(Difference(after.id, before, after))
    return Card(goal, items, card.version + len(differences)), differences


def _made(items: Mapping[str, Item], change: Mapping[str, Any]) -> Item:
    if len(items) >= ITEMS_MAX:
        raise FormatError(f"a card has at most {ITEMS_MAX} items.")
    kind, references = change["kind"], change["references"]
    if kind == "decision" and (change["reason"] is None or not references):
        raise FormatError(
            "a decision carries its reason and at least one reference to evidence, such as r12#L40-L44."
        )
    count = sum(item.kind == kind for item in items.values())
    return Item(f"{KINDS[kind]}{count + 1}", kind, change["text"], "draft", change["reason"], references)


def _moved(items: Mapping[str, Item], change: Mapping[str, Any]) -> Item:
    item = items.get(change["id"])
    if item is None:
        raise FormatError(f"there is no item {change['id']}.")
    to, reason = change["to"], change["reason"]
    references = tuple(dict.fromkeys((*item.references, *change["references"])))
    if len(references) > REFERENCES_MAX:
        raise FormatError(f"an item has at most {REFERENCES_MAX} references.")
    if to is None:
        if not change["references"]:
            raise FormatError("say what changes: to, or references.")
        return replace(item, references=references)
    if to == "dropped" and item.state in _NEXT:
        if reason is None:
            raise FormatError(f"say why {item.id} is dropped.")
        return replace(item, state=to, reason=reason, references=references)
    following = _NEXT.get(item.state)
    if to != following:
        can = f"it can become {following} next, or be dropped with a reason" if following else "it stays so"
        raise FormatError(f"{item.id} is {item.state} and cannot become {to}: {can}.")
    return replace(item, state=to, reason=item.reason if reason is None else reason, references=references)


# --- what a model or a program sends ------------------------------------------------------------------------------


def parse_changes(changes: object) -> list[dict[str, Any]]:
    """The changes that somebody asks for, checked one by one.

    Args:
        changes: a list of 1 to 50 objects, each one of ``{"goal": "..."}``,
            ``{"add": "decision" | "step" | "blocker", "text": "...", "reason": "...", "references": ["r12#L4"]}``,
            ``{"id": "s1", "to": "confirmed", "reason": "...", "references": [...]}``; what is not needed may be
            absent or null.

    Raises:
        FormatError: they are not in that form; the message says which, and what is expected.
    """
    if not isinstance(changes, list) or not 1 <= len(changes) <= CHANGES_MAX:
        raise FormatError(f"changes is a list of 1 to {CHANGES_MAX} changes.")
    parsed = []
    for at, change in enumerate(changes, 1):
        try:
            parsed.append(_parsed(change))
        except FormatError as error:
            raise FormatError(f"Nothing was changed. Change {at}: {error}") from None
    return parsed


_GOES_WITH: Mapping[str, tuple[str, ...]] = {
    "goal": (),
    "add": ("text", "reason", "references"),
    "id": ("to", "reason", "references"),
}


def _parsed(change: object) -> dict[str, Any]:
    if not isinstance(change, dict):
        raise FormatError("a change is an object.")
    given = {name: value for name, value in change.items() if value is not None}
    for asked, others in _GOES_WITH.items():
        if asked in given:
            if given.keys() - {asked, *others}:
                raise FormatError(f"{asked} goes with {', '.join(others) or 'nothing else'}.")
            break
    else:
        raise FormatError("a change has a goal, an add, or an id.")
    if asked == "goal":
        return {"goal": _text(given["goal"], "goal")}
    shared = {
        "reason": _text(given["reason"], "reason") if "reason" in given else None,
        "references": _references(given.get("references", [])),
    }
    if asked == "add":
        if not isinstance(given["add"], str) or given["add"] not in KINDS:
            raise FormatError(f"add is one of {', '.join(KINDS)}.")
        return {"kind": given["add"], "text": _text(given.get("text"), "text"), **shared}
    to = given.get("to")
    if to is not None and (not isinstance(to, str) or to not in STATES[1:]):
        raise FormatError(f"to is one of {', '.join(STATES[1:])}.")
    if _ID.fullmatch(_text(given["id"], "id")) is None:
        raise FormatError("id is that of an item, such as s1.")
    return {"id": given["id"], "to": to, **shared}


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > TEXT_CHARS_MAX:
        raise FormatError(f"{what} is text of 1 to {TEXT_CHARS_MAX} characters.")
    return value


def _references(value: object) -> tuple[Reference, ...]:
    if not isinstance(value, list) or len(value) > REFERENCES_MAX:
        raise FormatError(f"references is a list of up to {REFERENCES_MAX} references.")
    return tuple(dict.fromkeys(parse_reference(one) for one in value))
