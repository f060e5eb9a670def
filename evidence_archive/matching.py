"""Which result ID a tool result in a list has: pairing with its call, then recognition from records.

A timeline remembers the last list it saw. A new list is compared with it place by place and by value; a place that
holds another form of the same record keeps its number too. The rest is matched in list order against the records, by
call id and keyed tag; the lowest number not yet used in this list wins, and orphans take what is left. Nothing is
recognised by what a text looks like. The common case, a list that grew at its end, costs the new messages plus a
comparison in C.

Whatever interrupts a change, even between two lines of it, leaves a timeline that is whole or empty; after an empty
one the next list is read anew, and its numbers come from the records.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from itertools import chain, takewhile
from operator import is_
from typing import Any, Concatenate, ParamSpec, TypeVar

from evidence_archive.dialects.base import Dialect, Found, Reading
from evidence_archive.errors import MessageShapeError
from evidence_archive.model import ToolCall, canonical_id, same_value

__all__ = ["LABELLED", "NOTE", "ORIGINAL", "Place", "RecordIndex", "TagOf", "Timeline", "ToolsOf"]

ORIGINAL, LABELLED, NOTE = "original", "labelled", "note"
"""The forms a result can have in a list that is handed in: as the tool gave it, as a view showed it, its note."""

TagOf = Callable[[Any], bytes | None]
"""The keyed tag of a content, ``None`` when it does not encode exactly."""

ToolsOf = Callable[[int], Collection[str]]
"""The tool names that the record of a number is known under."""

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


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

    def form(self, call_id: bytes, tag: bytes, number: int) -> str | None:
        """Which form of one record looks like this, or ``None``."""
        return self._forms.get((call_id, tag), {}).get(number)


@dataclass(slots=True, eq=False)
class Place:
    """One tool result in the current list.

    Args:
        index, slot: message index and slot inside it.
        call_id: canonical bytes of the provider's id.
        call: the call it answers; ``None`` for an orphan.
        result_tool: the tool's name on the result itself, where there is one.
        content: what the list holds; a private copy where it is mutable, and equal to nothing where it has no copy.
        number: of its result ID; ``None`` while it has none.
        before: the number that stood here in the last list, under the same call id.
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
    before: int | None = None
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

    @property
    def tools(self) -> tuple[str, ...]:
        """The tool that was called, and the one the result names, as far as the list tells."""
        names = (None if self.call is None else self.call.name, self.result_tool)
        return tuple(name for name in names if name is not None)


def _whole_or_empty(
    change: Callable[Concatenate["Timeline", _Given], _Result],
) -> Callable[Concatenate["Timeline", _Given], _Result]:
    """A change of a timeline that empties it when anything stops it halfway."""

    @wraps(change)
    def guarded(self: "Timeline", /, *args: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            return change(self, *args, **named)
        except BaseException:
            self._clear()
            raise

    return guarded


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
        self._copies: list[Any] = []
        self._mutable: list[int] = []
        self._unnumbered: list[Place] = []
        self._unproven: list[Place] = []
        """Places whose tool is not known to be one that their record is known under."""
        self._spoken: dict[int, tuple[ToolCall, ...]] = {}
        """The model's messages, and the calls they make."""
        self._last_news = -1
        """The last message of the model that no list held before the results it follows."""
        self._heard: set[int | None] = {None}
        """Fingerprints of the model's messages in earlier lists; one that cannot be read counts as heard."""
        self._read_before: set[int] = set()
        """Numbers of results that were read in earlier lists."""

    def advance(self, messages: Iterable[Any]) -> None:
        """Take in a list; afterwards every result in it has a place, and known ones their old number.

        A message with results may have been changed in place since the last list. Other messages may too, and are
        passed on as they are; but the calls of one are those it made when it was first seen.

        Args:
            messages: the application's list; never changed, and not kept.

        Raises:
            MessageShapeError: it is not a list of messages. The timeline is what it was.
        """
        if isinstance(messages, str | bytes | dict):
            raise MessageShapeError("Messages must be a list of messages.")
        try:
            current = list(messages)
        except TypeError as error:
            raise MessageShapeError("Messages must be a list of messages.") from error
        seen = len(self.messages)
        holders: list[Any] | None = None
        if len(current) >= seen and all(map(is_, current, self.messages)) and self._holds(self._holders):
            holders = self._holders
        elif len(current) >= seen and _equal(current[:seen], self.messages):
            rebuilt = [current[index] for index in self.by_index]
            holders = rebuilt if self._holds(rebuilt) else None
        start = 0 if holders is None else seen
        readings = [self._dialect.read(message) for message in current[start:]]
        self._take(current, readings, holders)

    @_whole_or_empty
    def _take(self, current: list[Any], readings: Sequence[Reading], holders: list[Any] | None) -> None:
        old: dict[tuple[int, int], Place] = {}
        repeated: Set[int] = frozenset()
        if holders is None:
            old = {(place.index, place.slot): place for place in self.places}
            repeated = self._remember(current, readings)
            self._clear()
        elif holders is not self._holders:
            # Equal, but rebuilt by the application: what a view shares must be the new objects.
            self.changed.update(range(len(self.messages)))
            self._holders = holders
        self._read(current, readings, old, repeated)
        self.messages = current

    def _remember(self, current: Sequence[Any], readings: Sequence[Reading]) -> Set[int]:
        """Keep what was read; return where a new list repeats messages of the model that earlier lists held.

        The same object is the same message, whatever was changed in it; a rebuilt one is known by words and calls.
        """
        still, before = set(map(id, current)), set(map(id, self.messages))
        kept = {
            index for index in self._spoken if _equal(self.messages[index : index + 1], current[index : index + 1])
        }
        for index, calls in self._spoken.items():
            if index not in kept and id(self.messages[index]) not in still:
                self._heard.add(self._fingerprint(self.messages[index], calls))
        self._read_before.update(
            place.number for place in self.places if place.number is not None and place.index < self._last_news
        )
        return kept | {
            index
            for index, (message, reading) in enumerate(zip(current, readings, strict=True))
            if reading.from_model
            and index not in kept
            and (id(message) in before or self._fingerprint(message, reading.calls) in self._heard)
        }

    def _fingerprint(self, message: Any, calls: Iterable[ToolCall]) -> int | None:
        try:
            return hash((tuple(self._dialect.message_texts(message)), tuple(call.id for call in calls)))
        except Exception:  # a message of the model may hold anything; it is passed through
            return None

    def _clear(self) -> None:
        """Forget the list; in place, so that it needs no memory where there is none."""
        for kept in (self.messages, self.places, self._turns, self._holders, self._copies, self._mutable):
            kept.clear()
        for known in (self.by_number, self.by_index, self._open, self._spoken):
            known.clear()
        self._unnumbered.clear()
        self._unproven.clear()
        self.changed.clear()
        self.last_model = self._last_news = -1

    def _holds(self, holders: Sequence[Any]) -> bool:
        """Whether messages with results are what they were, by value; the type of every content counts."""
        if not _equal(holders, self._copies):
            return False
        contents = self._dialect.contents(holders) if self._mutable else []
        return all(_same(contents[at], self.places[at].content) for at in self._mutable)

    def _read(
        self,
        messages: Sequence[Any],
        readings: Sequence[Reading],
        old: dict[tuple[int, int], Place],
        repeated: Set[int],
    ) -> None:
        for index, reading in enumerate(readings, len(messages) - len(readings)):
            self.changed.add(index)
            if reading.from_model:
                if not self._turns or self.last_model != index - 1:
                    self._turns.append(index)
                self.last_model = index
                self._spoken[index] = reading.calls
                if index not in repeated:
                    self._last_news = index
            if reading.calls:
                calls: dict[str, deque[ToolCall]] = {}
                for call in reading.calls:
                    calls.setdefault(call.id, deque()).append(call)
                self._open.update(calls)
            if reading.results:
                places = [self._place(index, found, old) for found in reading.results]
                self.by_index[index] = places
                self._holders.append(messages[index])
                self._copies.append(self._copy(messages[index], places))

    def _copy(self, message: Any, places: Iterable[Place]) -> Any:
        """The message as it is now, apart from what it shares with whatever is made of it."""
        try:
            return self._dialect.replace(message, {place.slot: place.content for place in places})
        except MessageShapeError:
            return object()

    def _place(self, index: int, found: Found, old: dict[tuple[int, int], Place]) -> Place:
        waiting = self._open.get(found.call_id)
        place = Place(
            index,
            found.slot,
            canonical_id(found.call_id),
            waiting.popleft() if waiting else None,
            found.tool_name,
            _private(found.content),
        )
        last = old.get((index, found.slot))
        if last is not None and last.call_id == place.call_id:
            place.before = last.before if last.number is None else last.number
            if _same(last.content, place.content):
                place.number, place.form, place.shown_bare = last.number, last.form, last.shown_bare
                place._tag, place._tagged = last._tag, last._tagged
        if not isinstance(place.content, str):
            self._mutable.append(len(self.places))
        self.places.append(place)
        if place.number is None:
            self._unnumbered.append(place)
        else:
            self.by_number[place.number] = place
            self._unproven.append(place)
        return place

    def match(
        self,
        index: RecordIndex,
        archived: Callable[[int], bool],
        tag_of: TagOf,
        *,
        tools_of: ToolsOf | None = None,
    ) -> list[Place]:
        """Number what the records know; what is returned has to be registered, in list order.

        Orphans and contents that do not encode exactly are never registered; they keep no number. A bare result takes
        no archived record, and lets go of one it has, when no assistant message follows it (then it is a new one), or
        when it is of a tool that the record is not known under. An orphan's tool is what the result itself names.

        Args:
            index: the records.
            archived: whether the record of a number is archived.
            tag_of: the keyed tag of a content.
            tools_of: the tool names a record is known under; ``None``: tools are not compared.
        """

        def another(place: Place, number: int, form: str) -> bool:
            if form != ORIGINAL or not archived(number):
                return False
            return place.index > self.last_model or not _among(place, number, tools_of)

        strangers: list[Place] = []
        if tools_of is not None:
            numbered = ((place, place.number) for place in self._unproven if place.number is not None)
            strangers = [place for place, number in numbered if not _among(place, number, tools_of)]
        released = {
            id(place): place
            for place in (*self.open_turn(), *strangers)
            if place.number is not None and another(place, place.number, place.form)
        }
        bare = sorted((*self.bare(), *released.values()), key=_position)
        tagged = [(place, tag) for place in bare if (tag := place.tag(tag_of)) is not None]
        self._number(index, bare, tagged, self._unproven if tools_of is None else strangers, another)
        return [place for place, _ in tagged if place.number is None and place.call is not None]

    @_whole_or_empty
    def _number(
        self,
        index: RecordIndex,
        bare: list[Place],
        tagged: Sequence[tuple[Place, bytes]],
        unproven: list[Place],
        another: Callable[[Place, int, str], bool],
    ) -> None:
        for place in bare:
            if place.number is not None:
                del self.by_number[place.number]
                place.number = None
                self.changed.add(place.index)
        self._unnumbered, self._unproven = bare, unproven
        for place, tag in tagged:
            if place.before is not None and place.before not in self.by_number:
                form = index.form(place.call_id, tag, place.before)
                if form is not None and not another(place, place.before, form):
                    self.give(place, place.before, form)
        # What is not free for one place is not free for a later one that looks the same: each candidate is seen once.
        candidates: dict[tuple[Any, ...], Iterator[tuple[int, str]]] = {}
        for place, tag in sorted(tagged, key=_is_orphan):
            alike = (place.call_id, tag, place.index > self.last_model, place.tools)
            if place.number is None:
                if alike not in candidates:
                    candidates[alike] = iter(index.find(place.call_id, tag))
                for number, form in candidates[alike]:
                    if number not in self.by_number and not another(place, number, form):
                        self.give(place, number, form)
                        break
        self.settle()

    def open_turn(self) -> Iterator[Place]:
        """Results that no assistant message follows."""
        return takewhile(lambda place: place.index > self.last_model, reversed(self.places))

    @_whole_or_empty
    def give(self, place: Place, number: int, form: str = ORIGINAL) -> None:
        """The place has this number from now on."""
        place.number, place.form = number, form
        self.by_number[number] = place
        self._unproven.append(place)
        self.changed.add(place.index)

    @_whole_or_empty
    def forget_numbers(self) -> None:
        """No place has a number any more; the list itself is kept."""
        for place in self.places:
            place.number, place.form = None, ORIGINAL
        self.by_number = {}
        self._unnumbered, self._unproven = list(self.places), []
        self._read_before = set()
        self.changed.update(self.by_index)

    def settle(self) -> None:
        """Forget the places that were just given numbers from the list of those without."""
        self._unnumbered = self.bare()

    def is_read(self, place: Place) -> bool:
        """Whether the model spoke after it had a result before it.

        An assistant message after the result counts when it came in the same list as the result, or later; not when
        an earlier list held it already, before there was this result. In the first list every one counts, and so does
        every one that a list grew by. What was read once stays so as long as this timeline lives.

        Args:
            place: of the current list.
        """
        return place.index < self._last_news or place.number in self._read_before

    def calls(self) -> Iterator[ToolCall]:
        """The calls of all messages of the model."""
        return chain.from_iterable(self._spoken.values())

    def last_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the newest message of the model."""
        return self._spoken.get(self.last_model, ())

    def turns_after(self, index: int) -> int:
        """How often the model spoke after a message; messages of its own in a row are one turn."""
        return len(self._turns) - bisect_right(self._turns, index)

    @property
    def last_number(self) -> int:
        """The highest number in the list, 0 for none."""
        return max(self.by_number, default=0)

    @property
    def turns(self) -> int:
        """How often the model spoke; messages of its own in a row are one turn."""
        return len(self._turns)

    def bare(self) -> list[Place]:
        """Results without a number."""
        return [place for place in self._unnumbered if place.number is None]


def _position(place: Place) -> tuple[int, int]:
    return place.index, place.slot


def _is_orphan(tagged: tuple[Place, bytes]) -> bool:
    return tagged[0].call is None


def _among(place: Place, number: int, tools_of: ToolsOf | None) -> bool:
    """Whether a record is known under every tool that a place tells of."""
    return tools_of is None or set(place.tools).issubset(tools_of(number))


def _private(content: Any) -> Any:
    """A content that nobody else can change; for one that cannot be copied, what equals nothing."""
    if isinstance(content, str):
        return content
    try:
        return deepcopy(content)
    except Exception:  # a content may hold anything, a lock or ten thousand brackets; it is passed through
        return object()


def _equal(left: object, right: object) -> bool:
    """``==``, and ``False`` for what cannot be compared (circular, an array that wants ``any`` or ``all``)."""
    try:
        return bool(left == right)
    except Exception:
        return False


def _same(left: object, right: object) -> bool:
    """Equal in type and value, and ``False`` for what cannot be compared."""
    try:
        return same_value(left, right)
    except Exception:
        return False
