"""Which results of a session the host archives, with what note, and when they go.

Marks are made anew at each commit, from the list and the records alone. What a rule keeps in view and what the model
has not read is never among them; the notes describe, they do not conclude.
"""

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from evidence_archive.archiving import Archiving
from evidence_archive.batch import Item
from evidence_archive.errors import BatchRejectedError, EvidenceArchiveError
from evidence_archive.matching import NOTE, Place
from evidence_archive.model import ToolCall, WindowPolicy, format_result_id, text_of
from evidence_archive.records import Records, clone, rendering
from evidence_archive.window.describing import described

__all__ = ["Curator", "Mark"]

NOTE_CHARS_MAX = 600
"""Bound on a note that the host writes, in characters."""


class Mark(NamedTuple):
    """A result that is finished with.

    Args:
        place: where it stands.
        note: what the host says of it.
        saved_tokens: how much shorter the list gets.
    """

    place: Place
    note: str
    saved_tokens: int


class Curator:
    """The host's part in one session: marks, batches, results that leave. Callers hold the records' lock.

    Args:
        records, archiving: of the session.
        policy: of its window.
    """

    def __init__(self, records: Records, archiving: Archiving, policy: WindowPolicy) -> None:
        self._records = records
        self._archiving = archiving
        self._policy = policy
        self._noted: dict[int, tuple[int, str, int]] = {}
        """Notes of results by number, with the version of the row they are for, and how much shorter they are."""
        self.is_refused = False
        """Whether a batch of this commit failed: what is tried next would only wait for the store once more."""

    def begin(self) -> None:
        """A commit begins: the store is asked again."""
        self.is_refused = False

    def marks(self, keep_turns: int, start: int) -> list[Mark]:
        """Results that are finished with, oldest first: superseded by a later equal call, or older than some turns.

        Args:
            keep_turns: the newest turns, of which none is but superseded ones.
            start: the first message that counts.
        """
        records, policy = self._records, self._policy
        newest: dict[tuple[str, str], int] = {}
        for place in records.timeline.places:
            if place.call is not None:
                newest[_asked(place.call)] = place.index
        found = []
        for place in records.timeline.places:
            if place.number is None or place.form == NOTE or place.call is None or place.index < start:
                continue
            row = records.rows[place.number]
            if row.state != "live" or row.own is not None or row.tokens < policy.archive_tokens_min:
                continue
            superseded = newest[_asked(place.call)] > place.index
            if not superseded and records.timeline.turns_after(place.index) < keep_turns:
                continue
            if not self.may_go(place):
                continue
            note, saved = self._saving(place)
            if saved > 0:
                found.append(Mark(place, note, saved))
        return found

    def _saving(self, place: Place) -> tuple[str, int]:
        """The host's note on a result, and how many tokens shorter it is; asked at many views, made once."""
        records, number = self._records, place.number or 0
        row = records.rows[number]
        version, note, saved = self._noted.get(number, (-1, "", 0))
        if version != row.version:
            note, shown = self._note(place), clone(row)
            shown.rendering = rendering(with_tools=records.with_tools, estimated=records.counter.estimated)
            saved = row.tokens - records.counter.count(records.note_text(shown, note))
            self._noted[number] = row.version, note, saved
        return note, saved

    def may_go(self, place: Place) -> bool:
        """Whether the model has read a result, and no rule keeps it in view."""
        records, row = self._records, self._records.rows[place.number or 0]
        facts = records.facts(row, place, records.original(place))
        return records.is_read(place) and records.protection(row, facts) is None

    def _note(self, place: Place) -> str:
        """The host's note on a result."""
        records, row = self._records, self._records.rows[place.number or 0]
        return described(
            records.dialect.plain_text(records.original(place)) or "",
            tool=text_of(row.tool_name),
            arguments="" if place.call is None else place.call.arguments,
            chars_max=min(NOTE_CHARS_MAX, records.limits.note_chars_max),
        )

    def chosen(self, marks: Sequence[Mark], excess_tokens: int) -> Sequence[Mark]:
        """The first of the marks with which the excess is gone, or as many as a batch may have."""
        for at, mark in enumerate(marks[: self._records.limits.batch_items_max]):
            if excess_tokens <= 0:
                return marks[:at]
            excess_tokens -= mark.saved_tokens
        return marks[: self._records.limits.batch_items_max]

    def archive(self, marks: Sequence[Mark]) -> bool:
        """Whether they were archived, in one batch."""
        if not marks:
            return False
        for place, _, _ in marks:
            self._noted.pop(place.number or 0, None)
        return self._gone([Item(format_result_id(place.number or 0), note) for place, note, _ in marks])

    def let_go(self, outside: Collection[int]) -> bool:
        """Whether every result of messages that leave has an original of its own, where it can have one."""
        records = self._records
        items = [
            Item(format_result_id(place.number), self._note(place))
            for place in records.timeline.places
            if place.index in outside
            and place.number is not None
            and place.form != NOTE
            and place.call is not None
            and records.rows[place.number].state == "live"
            and records.rows[place.number].own in (None, "copy")
            and self.may_go(place)
        ]
        size = records.limits.batch_items_max
        return not self.is_refused and all(
            self._gone(items[at : at + size], is_leaving=True) for at in range(0, len(items), size)
        )

    def _gone(self, items: Sequence[Item], *, is_leaving: bool = False) -> bool:
        """Whether a batch of them was archived; what cannot be an original is left out of it."""
        if not items:
            return True
        if self.is_refused or self._records.suspension() is not None:
            return False
        try:
            self._archiving.archive(tuple(items), None, None, is_leaving=is_leaving)
        except BatchRejectedError as error:
            if error.reason != "targets":
                self.is_refused = True
                self._archiving.rejected(error, None)
                return False
            fit = {target.result_id for target in error.targets if target.status == "ok"}
            return self._gone([item for item in items if item.id in fit], is_leaving=is_leaving)
        except EvidenceArchiveError as error:
            self.is_refused = True
            self._records.trouble(error)
            return False
        return True


def _asked(call: ToolCall) -> tuple[str, str]:
    """By what a call is known as an equal one; arguments that have no JSON are equal to no others."""
    arguments = call.arguments
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps(arguments)
        except Exception:  # an application may put anything there, and what it raises may hold evidence
            arguments = f"\0{id(call)}"
    return call.name, arguments
