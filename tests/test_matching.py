"""Claims about matching: which result ID a tool result in a list has."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from threading import Lock
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.dialects import dialect
from evidence_archive.dialects.base import Found, Reading
from evidence_archive.errors import MessageShapeError
from evidence_archive.matching import LABELLED, NOTE, ORIGINAL, Place, RecordIndex, Timeline
from evidence_archive.model import canonical_id, encode_exact, same_value

LONG = "x" * 2_000


def asks(*ids: str, name: str = "logs.search") -> dict[str, Any]:
    """An assistant message that makes these calls."""
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def says() -> dict[str, Any]:
    return {"role": "assistant", "content": "I have read it."}


def tool(content: Any, id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def tag(content: Any) -> bytes | None:
    encoded = encode_exact(content)
    return None if encoded is None else sha256(encoded.encoding.encode() + encoded.data).digest()


class Spied:
    """The chat dialect, which counts what it is asked to read."""

    def __init__(self) -> None:
        self._chat = dialect("chat")
        self.read_messages: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)

    def read(self, message: Any) -> Reading:
        self.read_messages.append(message)
        return self._chat.read(message)


class Book:
    """Records as a session keeps them, without a store: what is unknown gets the next number."""

    def __init__(self, lens: Any = None) -> None:
        self.timeline = Timeline(lens or dialect("chat"))
        self.index = RecordIndex()
        self.archived: set[int] = set()
        self.tagged: list[Any] = []
        self._originals: dict[int, tuple[bytes, Any]] = {}

    def restarted(self) -> "Book":
        """The same records in another process."""
        other = Book()
        other.index, other.archived, other._originals = self.index, self.archived, self._originals
        return other

    def see(self, messages: Any) -> list[tuple[int | None, str]]:
        """Number and form of every result of a list, in its order."""
        self.timeline.advance(messages)
        for place in self.match():
            number = len(self._originals) + 1
            self._originals[number] = (place.call_id, place.content)
            self._add(number)
            self.timeline.give(place, number)
        self.timeline.settle()
        return [(place.number, place.form) for place in self.timeline.places]

    def match(self) -> list[Place]:
        return self.timeline.match(self.index, self.archived.__contains__, self._tag)

    def numbers(self, messages: Any) -> list[int | None]:
        return [number for number, _ in self.see(messages)]

    def archive(self, number: int) -> None:
        self.archived.add(number)
        self._add(number)

    def _tag(self, content: Any) -> bytes | None:
        self.tagged.append(content)
        return tag(content)

    def _add(self, number: int) -> None:
        call_id, content = self._originals[number]
        note = tag(f"note {number}") if number in self.archived else None
        self.index.add(number, call_id, tag(content), tag(labelled(number, content)), note)


def labelled(number: int, content: Any) -> Any:
    return dialect("chat").labelled(content, f"label {number}")


def called(messages: list[Any]) -> list[str | None]:
    """The tool each result answers."""
    timeline = Timeline(dialect("chat"))
    timeline.advance(messages)
    return [None if place.call is None else place.call.name for place in timeline.places]


# --- pairing ----------------------------------------------------------------------------------------------------


def test_a_result_belongs_to_the_nearest_preceding_message_with_its_call_id() -> None:
    first, second = asks("call_0", name="a"), asks("call_0", name="b")
    assert called([first, tool("x", "call_0"), second, tool("y", "call_0")]) == ["a", "b"]
    assert called([first, second, tool("y", "call_0")]) == ["b"]
    assert called([first, asks("other", name="c"), tool("x", "call_0")]) == ["a"]


def test_messages_between_a_call_and_its_result_do_not_part_them() -> None:
    assert called([asks("c1", name="a"), {"role": "user", "content": "wait"}, says(), tool("x")]) == ["a"]


def test_equal_ids_in_one_message_are_answered_in_order() -> None:
    turn = {"role": "assistant", "tool_calls": [*asks("", name="a")["tool_calls"], *asks("", name="b")["tool_calls"]]}
    assert called([turn, tool("x", ""), tool("x", "")]) == ["a", "b"]


def test_a_result_more_than_there_are_calls_is_an_orphan_even_if_an_older_message_has_the_id() -> None:
    older = [asks("c", "c", name="a"), tool("1", "c")]
    assert called([*older, asks("c", name="b"), tool("2", "c"), tool("3", "c")]) == ["a", "b", None]


def test_a_result_before_its_call_is_an_orphan() -> None:
    assert called([tool("x"), asks("c1", name="a")]) == [None]


def test_a_result_without_an_id_answers_the_call_without_one() -> None:
    call = {"type": "function", "function": {"name": "a", "arguments": "{}"}}
    assert called([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]) == ["a"]


@pytest.mark.parametrize("id", ["", LONG, "\ud83d", "a\x00b\r\n"])
def test_any_string_is_a_call_id(id: str) -> None:
    book = Book()
    messages = [asks(id), tool("x", id), asks(id), tool("y", id)]
    assert book.numbers(messages) == [1, 2]
    assert book.restarted().numbers(messages) == [1, 2]
    assert [place.call_id for place in book.timeline.places] == [canonical_id(id)] * 2


def test_long_ids_that_differ_in_their_last_character_are_two_ids() -> None:
    book = Book()
    book.see([asks(LONG), tool("x", LONG)])
    assert book.restarted().numbers([asks(LONG + "y"), tool("x", LONG + "y")]) == [2]


def test_pairing_goes_on_in_a_list_that_grows_between_the_results_of_one_turn() -> None:
    turn = {"role": "assistant", "tool_calls": [*asks("", name="a")["tool_calls"], *asks("", name="b")["tool_calls"]]}
    timeline = Timeline(dialect("chat"))
    timeline.advance([turn, tool("1", "")])
    timeline.advance([*timeline.messages, tool("2", "")])
    assert [place.call.name for place in timeline.places if place.call] == ["a", "b"]


# --- orphans and what cannot be kept ----------------------------------------------------------------------------


def test_an_orphan_gets_no_number_and_is_told_of() -> None:
    book = Book()
    assert book.numbers([tool("x"), asks("c1"), tool("y")]) == [None, 1]
    assert [place.index for place in book.timeline.bare()] == [0]


def test_an_orphan_that_looks_like_a_proper_result_never_takes_its_number() -> None:
    book = Book()
    messages = [tool("x"), asks("c1"), tool("x")]
    assert book.numbers(messages) == [None, 1]
    assert book.restarted().numbers(messages) == [None, 1]


def test_a_result_whose_call_was_dropped_keeps_its_number() -> None:
    book = Book()
    messages = [asks("c1"), tool("x"), says()]
    book.see(messages)
    assert book.numbers(messages[1:]) == [1]
    assert book.restarted().numbers(messages[1:]) == [1]
    assert book.timeline.places[0].call is None


@pytest.mark.parametrize(
    "content", [None, 7, ("x",), [float("nan")], [{1: "x"}], {"type": "text"}, b"x", [b"x"], [("a", "b")]]
)
def test_a_content_that_does_not_encode_exactly_gets_no_number(content: Any) -> None:
    book = Book()
    assert book.numbers([asks("c1", "c2"), tool(content), tool("x", "c2")]) == [None, 1]
    assert [place.index for place in book.timeline.bare()] == [1]


def _circular() -> list[Any]:
    content: list[Any] = []
    content.append(content)
    return content


def _deep() -> list[Any]:
    content: list[Any] = []
    for _ in range(100_000):
        content = [content]
    return content


class Vague:
    """Compares to something that is neither true nor false, as arrays do."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("content", [_circular(), _deep(), Lock(), [Lock()], [Vague()]], ids=lambda _: "odd")
def test_a_content_that_can_neither_be_copied_nor_compared_passes_through(content: Any) -> None:
    book = Book()
    messages = [asks("c1", "c2"), tool(content), tool("x", "c2")]
    for _ in range(2):
        assert book.numbers(messages) == [None, 1]
        assert book.numbers([dict(message) for message in messages]) == [None, 1]
    assert book.numbers([*messages, asks("c3"), tool("y", "c3")]) == [None, 1, 2]


# --- place by place ---------------------------------------------------------------------------------------------


def test_while_a_list_only_grows_equal_results_keep_their_numbers_in_every_process() -> None:
    book, messages = Book(), []
    for turn in range(1, 6):
        messages += [asks(""), tool("same", "")]
        assert book.numbers(messages) == list(range(1, turn + 1))
        assert book.restarted().numbers(messages) == list(range(1, turn + 1))


def test_a_list_that_only_grew_is_read_only_where_it_grew() -> None:
    lens = Spied()
    book = Book(lens)
    messages = [asks("c1"), tool("x"), asks("c2"), tool([{"type": "text", "text": "y"}], "c2"), asks("c3")]
    book.see(messages)
    assert lens.read_messages == messages
    lens.read_messages.clear()
    assert book.numbers(messages) == [1, 2]
    assert lens.read_messages == []
    new = [tool("z", "c3"), says()]
    assert book.numbers([*messages, *new]) == [1, 2, 3]
    assert lens.read_messages == new


def test_an_equal_rebuilt_list_is_read_only_where_it_grew() -> None:
    lens = Spied()
    book = Book(lens)
    messages = [asks("c1"), tool("x"), asks("c2"), tool([{"type": "text", "text": "y"}], "c2"), says()]
    book.see(messages)
    lens.read_messages.clear()
    assert book.numbers(deepcopy(messages)) == [1, 2]
    assert lens.read_messages == []


def test_a_content_is_tagged_once_while_the_list_grows() -> None:
    book, messages = Book(), [asks("c1"), tool("x")]
    book.see(messages)
    book.see([*messages, says()])
    assert book.tagged == ["x"]


def test_an_equal_rebuilt_list_shares_the_new_objects() -> None:
    timeline = Timeline(dialect("chat"))
    messages = [asks("c1"), tool("x"), says()]
    timeline.advance(messages)
    timeline.changed.clear()
    rebuilt = deepcopy(messages)
    timeline.advance(rebuilt)
    assert all(new is old for new, old in zip(timeline.messages, rebuilt, strict=True))
    assert timeline.changed == {0, 1, 2}
    timeline.changed.clear()
    timeline.advance(rebuilt)
    assert timeline.changed == set()
    rebuilt[1]["content"] = "z"
    timeline.advance(rebuilt)
    assert timeline.places[0].content == "z", "a change inside the new objects is seen too"


def _text(text: str) -> list[Any]:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    ("content", "change"),
    [
        ("x", lambda message: message.update(content="y")),
        ("x", lambda message: message.update(content=None)),
        (_text("x"), lambda message: message["content"][0].update(text="y")),
        (_text("x"), lambda message: message["content"].append({"type": "text", "text": "y"})),
        ([{"n": 1}], lambda message: message["content"][0].update(n=True)),
        ([{"n": 1}], lambda message: message["content"][0].update(n=1.0)),
        ([{"n": 0.0}], lambda message: message["content"][0].update(n=-0.0)),
        ([{"n": 1}], lambda message: message.update(content=[{"n": True}])),
        ([{"a": 1, "b": 2}], lambda message: message.update(content=[{"b": 2, "a": 1}])),
        ([["x"]], lambda message: message.update(content=[("x",)])),
    ],
)
@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_content_changed_in_place_is_another_result(content: Any, change: Any, rebuilt: bool) -> None:
    book, messages = Book(), [asks("c1", "c2"), tool(deepcopy(content)), tool("z", "c2"), says()]
    assert book.numbers(messages) == [1, 2]
    change(messages[1])
    numbers = book.numbers(deepcopy(messages) if rebuilt else messages)
    assert numbers[0] in (None, 3)
    assert numbers[1] == 2
    assert same_value(book.timeline.places[0].content, messages[1]["content"])


def test_a_result_message_changed_in_place_is_rendered_anew_though_its_content_is_the_same() -> None:
    book, messages = Book(), [asks("c1"), tool("x"), says()]
    book.see(messages)
    book.timeline.changed.clear()
    messages[1]["cache_control"] = {"type": "ephemeral"}
    assert book.numbers(messages) == [1]
    assert 1 in book.timeline.changed


def test_a_call_id_changed_in_place_is_another_result() -> None:
    book, messages = Book(), [asks("c1", "c2"), tool("x"), says()]
    book.see(messages)
    messages[1]["tool_call_id"] = "c2"
    assert book.numbers(messages) == [2]
    assert book.timeline.places[0].call_id == b"c2"


def test_a_result_that_became_something_else_in_place_has_no_place_any_more() -> None:
    book, messages = Book(), [asks("c1"), tool("x"), says()]
    book.see(messages)
    messages[1].update(role="user")
    assert book.numbers(messages) == []
    messages[1] = tool("x")
    assert book.numbers(messages) == [1]


class Sealed(Mapping[str, Any]):
    """A mapping that cannot be built anew and equals only itself."""

    def __init__(self, message: dict[str, Any], *, how: str) -> None:
        self._message = MappingProxyType(message)

    def __getitem__(self, key: str) -> Any:
        return self._message[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._message)

    def __len__(self) -> int:
        return len(self._message)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Uncopied:
    """An SDK object whose copy fails."""

    role, tool_call_id, content = "tool", "c1", "x"

    def model_copy(self, **_: Any) -> None:
        raise RuntimeError


@pytest.mark.parametrize("message", [Sealed(tool("x"), how=""), Uncopied()])
def test_a_message_that_cannot_be_copied_is_looked_at_every_time_and_keeps_its_number(message: Any) -> None:
    lens = Spied()
    book = Book(lens)
    messages = [asks("c1"), message, says()]
    assert [book.numbers(messages) for _ in range(3)] == [[1], [1], [1]]
    assert len(lens.read_messages) == 9


def test_what_the_timeline_remembers_is_not_the_applications_list() -> None:
    book, messages = Book(), [asks("c1"), tool(_text("x")), says()]
    book.see(messages)
    kept = book.timeline.places[0].content
    messages[1]["content"][0]["text"] = "y"
    del messages[2]
    assert kept == _text("x")
    assert len(book.timeline.messages) == 3


def test_a_list_that_was_cut_back_forgets_what_is_gone_and_knows_it_again() -> None:
    book = Book()
    messages = [asks("c1"), tool("x"), asks("c2"), tool("y", "c2"), says()]
    assert book.numbers(messages) == [1, 2]
    assert book.numbers(messages[:2]) == [1]
    assert book.timeline.last_model == 0
    assert book.timeline.by_number.keys() == {1}
    assert book.numbers([]) == []
    assert book.numbers(messages) == [1, 2]


def test_a_rewritten_message_moves_no_number() -> None:
    book = Book()
    messages = [{"role": "user", "content": "a"}, asks("", ""), tool("same", ""), tool("same", ""), says()]
    assert book.numbers(messages) == [1, 2]
    assert book.numbers([{"role": "user", "content": "b"}, *messages[1:]]) == [1, 2]
    assert book.numbers([*messages[:2], tool("other", ""), *messages[3:]]) == [3, 2]


def test_numbers_do_not_shift_as_far_as_ids_or_contents_differ() -> None:
    book = Book()
    messages = [message for n in range(3) for message in (asks(f"c{n}"), tool("same", f"c{n}"))]
    book.see(messages)
    assert book.numbers(messages[2:]) == [2, 3]
    assert book.restarted().numbers(messages[4:]) == [3]


# --- forms ------------------------------------------------------------------------------------------------------


def test_a_result_is_known_again_in_each_of_its_three_forms() -> None:
    book = Book()
    turn = [asks("c1"), tool("x"), says()]
    book.see(turn)
    book.archive(1)
    for content, form in (("x", ORIGINAL), (labelled(1, "x"), LABELLED), ("note 1", NOTE)):
        assert book.restarted().see([turn[0], tool(content), says()]) == [(1, form)]
        assert book.see([turn[0], tool(content), says()]) == [(1, form)]


def test_a_form_of_another_call_id_is_a_new_result() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    messages = [asks("c2", "c2", "c2"), *(tool(content, "c2") for content in ("x", labelled(1, "x"), "note 1"))]
    assert book.restarted().numbers(messages) == [2, 3, 4]


def test_what_only_looks_like_a_label_or_a_note_is_a_new_result() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    for content in ("label 1\nX", "label 2\nx", "note 1"):
        assert book.restarted().numbers([asks("c1"), tool(content), says()])[0] not in (None, 1)


def test_the_lowest_number_not_yet_used_in_this_list_wins() -> None:
    book = Book()
    turn = [asks("c1"), tool("x")]
    assert book.numbers(turn * 3) == [1, 2, 3]
    fresh = book.restarted()
    assert fresh.numbers([*turn, says()]) == [1]
    assert fresh.numbers([*turn, *turn, says()]) == [1, 2]
    assert book.restarted().numbers([asks("c1"), tool(labelled(2, "x")), *turn, *turn, says()]) == [2, 1, 3]


def test_a_view_handed_in_again_keeps_every_number_whatever_else_looks_like_it() -> None:
    book = Book()
    forged = [asks("c1"), tool("label 2\nx")]
    turn = [asks("c1"), tool("x"), says()]
    assert book.numbers([*forged, *turn]) == [1, 2]
    assert book.numbers(turn) == [2]
    view = [turn[0], tool(labelled(2, "x")), says()]
    assert book.see(view) == [(2, LABELLED)], "r1, gone from the list, has the very same original"
    assert book.see(turn) == [(2, ORIGINAL)]


def test_a_number_remembered_for_a_place_counts_only_for_a_form_of_its_record() -> None:
    book = Book()
    turn = [asks("c1"), tool("x"), says()]
    book.see(turn)
    assert book.numbers([asks("c1"), tool("y"), says()]) == [2]
    assert book.numbers([asks("c1"), tool("z"), asks("c1"), tool("y"), says()]) == [3, 2]
    assert book.numbers([asks("c1"), tool("y"), asks("c1"), tool("z"), says()]) == [2, 3]


def test_a_number_is_remembered_through_a_list_that_could_not_be_matched() -> None:
    book = Book()
    turn = [asks("c1"), tool("x"), says()]
    book.see([asks("c1"), tool("label 2\nx"), *turn])
    book.see(turn)
    book.timeline.advance([turn[0], tool("neither"), says()])
    assert book.see([turn[0], tool(labelled(2, "x")), says()]) == [(2, LABELLED)]


def test_a_label_in_parts_is_a_part_of_its_own() -> None:
    book = Book()
    book.see([asks("c1"), tool(_text("x")), says()])
    assert book.restarted().see([asks("c1"), tool(labelled(1, _text("x"))), says()]) == [(1, LABELLED)]
    assert book.restarted().numbers([asks("c1"), tool("x"), says()]) == [2], "a text is not the part that holds it"


# --- the live turn ----------------------------------------------------------------------------------------------


def test_an_unlabelled_result_after_the_last_assistant_message_never_matches_an_archived_record() -> None:
    book = Book()
    turn = [asks("c1"), tool("x")]
    book.see([*turn, says()])
    book.archive(1)
    assert book.restarted().numbers([*turn, says()]) == [1]
    fresh = book.restarted()
    assert fresh.numbers(turn) == [2]
    assert fresh.numbers([*turn, says()]) == [2], "what was shown under a number keeps it while the list grows"


def test_a_result_seen_in_the_live_turn_is_let_go_when_its_record_is_archived() -> None:
    book = Book()
    turn = [asks("c1"), tool("x")]
    assert book.numbers(turn) == [1]
    book.timeline.changed.clear()
    book.archive(1)
    assert book.numbers(turn) == [2]
    assert book.timeline.by_number.keys() == {2}
    assert book.timeline.changed == {1}


def test_results_let_go_in_the_live_turn_are_numbered_in_list_order() -> None:
    book = Book()
    turn = [asks("", "", ""), tool("x", ""), tool("x", ""), tool("y", "")]
    assert book.numbers(turn) == [1, 2, 3]
    for number in (1, 2, 3):
        book.archive(number)
    assert book.numbers(turn) == [4, 5, 6]


def test_before_the_live_turn_an_equal_result_may_be_archived() -> None:
    book = Book()
    turn = [asks("c1"), tool("x")]
    book.see([*turn, says()])
    book.archive(1)
    assert book.restarted().numbers([*turn, *turn]) == [1, 2]


@pytest.mark.parametrize(("content", "form"), [(labelled(1, "x"), LABELLED), ("note 1", NOTE)])
def test_what_was_handed_in_labelled_or_as_a_note_is_known_in_the_live_turn_too(content: str, form: str) -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    assert book.restarted().see([asks("c1"), tool(content)]) == [(1, form)]
    assert book.see([asks("c1"), tool(content)]) == [(1, form)]


def test_a_live_record_is_known_in_the_live_turn() -> None:
    book = Book()
    turn = [asks("c1"), tool("x")]
    book.see(turn)
    assert book.restarted().numbers(turn) == [1]


def test_an_orphan_of_the_live_turn_matches_no_archived_record_and_one_before_it_does() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    assert book.restarted().numbers([tool("x")]) == [None]
    assert book.restarted().numbers([tool("x"), asks("c1"), tool("x")]) == [1, 2]


# --- lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [tuple, iter, list, lambda messages: (message for message in messages)])
def test_any_iterable_of_messages_is_a_list(wrap: Any) -> None:
    book = Book()
    messages = [asks("c1"), tool("x"), says()]
    assert book.numbers(wrap(messages)) == [1]
    assert book.numbers(wrap(messages)) == [1]


@pytest.mark.parametrize("messages", ["text", b"bytes", {"role": "tool"}, None, 7, ["text"], [None], [{}]])
def test_what_is_no_list_of_messages_is_refused_and_nothing_else_is_lost(messages: Any) -> None:
    book = Book()
    good = [asks("c1"), tool("x"), says()]
    book.see(good)
    with pytest.raises(MessageShapeError):
        book.see(messages)
    with pytest.raises(MessageShapeError):
        book.see([*good, 7])
    assert book.numbers(good) == [1]
    assert book.numbers([*good, asks("c1"), tool("x")]) == [1, 2]


def test_an_error_of_the_applications_own_generator_is_its_own() -> None:
    def broken() -> Iterator[Any]:
        yield says()
        raise LookupError

    with pytest.raises(LookupError):
        Timeline(dialect("chat")).advance(broken())


def test_messages_of_the_model_in_a_row_are_one_turn() -> None:
    timeline = Timeline(dialect("chat"))
    timeline.advance([asks("c1"), tool("x"), says(), says()])
    assert timeline.turns_after(1) == 1
    timeline.advance([*timeline.messages, says(), {"role": "user", "content": ""}, says()])
    assert timeline.turns_after(1) == 2
    assert timeline.turns_after(6) == 0


# --- several results in one message -----------------------------------------------------------------------------


class Blocks:
    """A dialect in which one message holds several results, as blocks."""

    name = "blocks"

    def read(self, message: Any) -> Reading:
        if "calls" in message:
            return dialect("chat").read(asks(*message["calls"]))
        blocks = message["blocks"]
        return Reading(results=tuple(Found(2 * at, id, "named", content) for at, (id, content) in enumerate(blocks)))

    def contents(self, messages: Any) -> list[Any]:
        return [content for message in messages for _, content in message["blocks"]]

    def replace(self, message: Any, contents: Any) -> Any:
        blocks = [(id, contents.get(2 * at, content)) for at, (id, content) in enumerate(message["blocks"])]
        return {**message, "blocks": blocks}


def test_each_slot_of_a_message_is_a_place_of_its_own() -> None:
    book = Book(Blocks())
    messages: list[Any] = [{"calls": ["", ""]}, {"blocks": [("", "x"), ("", _text("y"))]}]
    assert book.numbers(messages) == [1, 2]
    assert [(place.index, place.slot, place.result_tool) for place in book.timeline.places] == [
        (1, 0, "named"),
        (1, 2, "named"),
    ]
    messages[1]["blocks"][1][1][0]["text"] = "z"
    assert book.numbers(messages) == [1, 3]


# --- the index --------------------------------------------------------------------------------------------------


def test_a_record_is_found_under_each_form_it_has_lowest_number_first() -> None:
    index = RecordIndex()
    index.add(7, b"c", b"t", None, None)
    index.add(3, b"c", b"u", b"t", None)
    index.add(3, b"c", b"u", b"t", b"n")
    assert index.find(b"c", b"t") == [(3, LABELLED), (7, ORIGINAL)]
    assert index.find(b"c", b"n") == [(3, NOTE)]
    assert index.find(b"d", b"t") == index.find(b"c", b"x") == []
    assert index.form(b"c", b"t", 7) == ORIGINAL
    assert index.form(b"c", b"t", 8) is index.form(b"d", b"t", 7) is None


def test_evidence_is_in_no_repr() -> None:
    timeline = Timeline(dialect("chat"))
    timeline.advance([asks("c1"), tool("made up secret")])
    timeline.places[0].tag(tag)
    assert "secret" not in repr(timeline.places)


def test_many_equal_results_are_matched_with_one_look_at_each_record() -> None:
    class Counted(RecordIndex):
        finds = 0

        def find(self, call_id: bytes, tag: bytes) -> list[tuple[int, str]]:
            self.finds += 1
            return super().find(call_id, tag)

    book = Book()
    messages = [asks(*[""] * 500), *(tool("same", "") for _ in range(500))]
    book.see(messages)
    counted = Counted()
    counted._forms = book.index._forms
    fresh = book.restarted()
    fresh.index = counted
    assert fresh.numbers(messages) == list(range(1, 501))
    assert counted.finds == 1


# --- any history ------------------------------------------------------------------------------------------------

_ids = st.sampled_from(["", "c1", LONG])
_contents = st.sampled_from(["x", "y", _text("x"), labelled(1, "x"), labelled(2, "y"), "note 1", 7])
_turn = st.one_of(
    st.builds(lambda: [says()]),
    st.lists(st.tuples(_ids, _contents), max_size=3).map(
        lambda made: [asks(*(id for id, _ in made)), *(tool(content, id) for id, content in made)]
    ),
    st.builds(lambda id, content: [tool(content, id)], _ids, _contents),
)


@given(st.lists(_turn, max_size=8), st.data())
def test_in_any_history_a_number_stands_for_one_call_id_and_content_and_once_in_a_list(
    turns: list[list[Any]], data: st.DataObject
) -> None:
    book, messages = Book(), []
    for turn in turns:
        messages += deepcopy(turn)
        if data.draw(st.integers(0, 4)) == 0:
            del messages[: data.draw(st.integers(0, len(messages)))]
        seen = book.see(messages)
        numbers = [number for number, _ in seen if number is not None]
        assert len(numbers) == len(set(numbers))
        for place in book.timeline.places:
            if place.number is not None:
                call_id, content = book._originals[place.number]
                shapes = {ORIGINAL: content, LABELLED: labelled(place.number, content), NOTE: f"note {place.number}"}
                assert place.call_id == call_id
                assert same_value(place.content, shapes[place.form])
                live = place.index > book.timeline.last_model and place.form == ORIGINAL
                assert not (live and place.number in book.archived)
        if numbers and data.draw(st.booleans()):
            book.archive(data.draw(st.sampled_from(numbers)))


@given(st.lists(_turn, max_size=8))
def test_a_list_that_only_grew_has_the_same_numbers_in_a_fresh_process(turns: list[list[Any]]) -> None:
    book, messages = Book(), []
    for turn in turns:
        messages += deepcopy(turn)
        numbers = book.numbers(messages)
        assert book.restarted().numbers(messages) == numbers
