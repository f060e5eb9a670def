"""Which result ID a tool result in a list has: pairing with its call, then recognition from records.

A timeline remembers the last list it saw. A new list is compared with it place by place and by value; what is not at
its old place is matched in list order against the records, by call id and keyed tag; the lowest number not yet used
in this list wins. Nothing is recognised by what a text looks like. The common case, a list that grew at its end,
costs the new messages plus a comparison in C.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from evidence_archive.dialects.base import Dialect, Found
from evidence_archive.errors import MessageShapeError
from evidence_archive.model import ToolCall, canonical_id, same_value

__all__ = ["LABELLED", "NOTE", "ORIGINAL", "Place", "RecordIndex", "TagOf", "Timeline"]

ORIGINAL, LABELLED, NOTE = "original", "labelled", "note"
"""The forms a result can have in a list that is handed in: as the tool gave it, as a view showed it, its note."""

TagOf = Callable[[Any], bytes | None]
"""The keyed tag of a content, ``None`` when it does not encode exactly."""


class RecordIndex:
    """Records by what they look like: call id and keyed tag of their original, labelled form or note."""

    def __init__(self) -> None:
        self._forms: dict[tuple[bytes, bytes], dict[int, str]] = {}

    def add(self, number: int, call_id: bytes, original: bytes, labelled: bytes | None, note: bytes | None) -> None:
        """Make a record findable under each of its forms; adding it again changes nothing.

        Args:
            number: of its result ID.
            call_id: canonical call id.
            original, labelled, note: keyed tags; ``None`` for a form it does not have.
        """
        for tag, form in ((original, ORIGINAL), (labelled, LABELLED), (note, NOTE)):
            if tag is not None:
                self._forms.setdefault((call_id, tag), {})[number] = form

    def find(self, call_id: bytes, tag: bytes) -> list[tuple[int, str]]:
        """``(number, form)`` of every record that looks like this, lowest number first."""
        return sorted(self._forms.get((call_id, tag), {}).items())


@dataclass(slots=True, eq=False)
class Place:
    """One tool result in the current list.

    Args:
        index, slot: message index and slot inside it.
        call_id: canonical bytes of the provider's id.
        call: the call it answers; ``None`` for an orphan.
        result_tool: the tool's name on the result itself, where there is one.
        content: what the list holds; a private copy where it is mutable.
        number: of its result ID; ``None`` while it has none.
        form: which of its record's forms the list holds.
        shown_bare: a view of an outage showed it without a label, so it stays without one.
    """

    index: int
    slot: int
    call_id: bytes
    call: ToolCall | None
    result_tool: str | None
    content: Any = field(repr=False)
    number: int | None = None
    form: str = ORIGINAL
    shown_bare: bool = False
    _tag: bytes | None = field(default=None, repr=False)
    _tagged: bool = False

    def tag(self, tag_of: TagOf) -> bytes | None:
        """The keyed tag of its content, computed once."""
        if not self._tagged:
            self._tag = tag_of(self.content)
            self._tagged = True
        return self._tag


class Timeline:
    """The last list that was seen, and which result stands where in it.

    Args:
        dialect: reads the messages.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.messages: list[Any] = []
        self.places: list[Place] = []
        self.by_number: dict[int, Place] = {}
        self.by_index: dict[int, list[Place]] = {}
        self.last_model = -1
        self.changed: set[int] = set()
        """Message indexes whose rendering is not known yet."""
        self._turns: list[int] = []
        self._open: dict[str, deque[ToolCall]] = {}
        self._holders: list[Any] = []
        self._snapshot: list[Any] = []
        self._mutable: list[Place] = []
        self._unnumbered: list[Place] = []

    def advance(self, messages: Iterable[Any]) -> None:
        """Take in a list; afterwards every result in it has a place, and known ones their old number.

        Args:
            messages: the application's list; never changed, and not kept.

        Raises:
            MessageShapeError: it is not a list of messages. The timeline is then empty, and nothing else is lost.
        """
        if isinstance(messages, str | bytes | dict):
            raise MessageShapeError("Messages must be a list of messages.")
        try:
            current = list(messages)
        except TypeError as error:
            raise MessageShapeError("Messages must be a list of messages.") from error
        seen = len(self.messages)
        try:
            if len(current) >= seen and all(map(is_, current, self.messages)) and self._contents_hold(current):
                self._read(current, seen, {})
            elif len(current) >= seen and current[:seen] == self.messages and self._rebuilt_holds(current):
                # Equal, but rebuilt by the application: what a view shares must be the new objects.
                self.changed.update(range(seen))
                self._read(current, seen, {})
            else:
                old = {(place.index, place.slot): place for place in self.places}
                self._clear()
                self._read(current, 0, old)
        except BaseException:
            self._clear()
            raise
        self.messages = current

    def _clear(self) -> None:
        self.messages, self.places, self.by_number, self.by_index = [], [], {}, {}
        self.last_model = -1
        self._turns = []
        self._open, self._holders, self._snapshot = {}, [], []
        self._mutable, self._unnumbered = [], []
        self.changed = set()

    def _contents_hold(self, current: Sequence[Any]) -> bool:
        """Whether every result still holds what it held; a message can be changed in place."""
        return self._dialect.contents(self._holders) == self._snapshot and all(
            same_value(self._found(current, place).content, place.content) for place in self._mutable
        )

    def _rebuilt_holds(self, current: Sequence[Any]) -> bool:
        self._holders = [current[index] for index in self.by_index]
        return self._contents_hold(current)

    def _found(self, messages: Sequence[Any], place: Place) -> Found:
        return next(found for found in self._dialect.read(messages[place.index]).results if found.slot == place.slot)

    def _read(self, messages: Sequence[Any], start: int, old: dict[tuple[int, int], Place]) -> None:
        holders = []
        for index in range(start, len(messages)):
            reading = self._dialect.read(messages[index])
            self.changed.add(index)
            if reading.from_model:
                if not self._turns or self.last_model != index - 1:
                    self._turns.append(index)
                self.last_model = index
            if reading.calls:
                calls: dict[str, deque[ToolCall]] = {}
                for call in reading.calls:
                    calls.setdefault(call.id, deque()).append(call)
                self._open.update(calls)
            if reading.results:
                holders.append(messages[index])
                self.by_index[index] = [self._place(index, found, old) for found in reading.results]
        self._holders += holders
        self._snapshot += deepcopy(self._dialect.contents(holders))

    def _place(self, index: int, found: Found, old: dict[tuple[int, int], Place]) -> Place:
        waiting = self._open.get(found.call_id)
        place = Place(
            index,
            found.slot,
            canonical_id(found.call_id),
            waiting.popleft() if waiting else None,
            found.tool_name,
            found.content if isinstance(found.content, str) else deepcopy(found.content),
        )
        before = old.get((index, found.slot))
        if before is not None and before.call_id == place.call_id and same_value(before.content, place.content):
            place.number, place.form, place.shown_bare = before.number, before.form, before.shown_bare
            place._tag, place._tagged = before._tag, before._tagged
        if not isinstance(place.content, str):
            self._mutable.append(place)
        self.places.append(place)
        if place.number is None:
            self._unnumbered.append(place)
        else:
            self.by_number[place.number] = place
        return place

    def match(self, index: RecordIndex, archived: Callable[[int], bool], tag_of: TagOf) -> list[Place]:
        """Number what the records know; what is returned has to be registered, in list order.

        Orphans and contents that do not encode exactly are never registered; they keep no number.

        Args:
            index: the records.
            archived: whether the record of a number is archived.
            tag_of: the keyed tag of a content.
        """
        self._release_live_turn(archived)
        unknown, still = [], []
        for place in self._unnumbered:
            tag = place.tag(tag_of)
            for number, form in [] if tag is None else index.find(place.call_id, tag):
                if number in self.by_number or (
                    form == ORIGINAL and place.index > self.last_model and archived(number)
                ):
                    continue
                self.give(place, number, form)
                break
            else:
                still.append(place)
                if tag is not None and place.call is not None:
                    unknown.append(place)
        self._unnumbered = still
        return unknown

    def _release_live_turn(self, archived: Callable[[int], bool]) -> None:
        """A bare result that no assistant message follows is a new one, whatever archived record it equals."""
        for place in reversed(self.places):
            if place.index <= self.last_model:
                break
            if place.number is not None and place.form == ORIGINAL and archived(place.number):
                del self.by_number[place.number]
                place.number = None
                self._unnumbered.append(place)
        self._unnumbered.sort(key=_position)

    def give(self, place: Place, number: int, form: str = ORIGINAL) -> None:
        """The place has this number from now on."""
        place.number, place.form = number, form
        self.by_number[number] = place
        self.changed.add(place.index)

    def settle(self) -> None:
        """Forget the places that were just given numbers from the list of those without."""
        self._unnumbered = [place for place in self._unnumbered if place.number is None]

    def turns_after(self, index: int) -> int:
        """How often the model spoke after a message; messages of its own in a row are one turn."""
        return len(self._turns) - bisect_right(self._turns, index)

    def bare(self) -> list[Place]:
        """Results without a number."""
        return list(self._unnumbered)


def _position(place: Place) -> tuple[int, int]:
    return place.index, place.slot
