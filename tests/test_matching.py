"""Claims about matching: which result ID a tool result in a list has."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from hashlib import sha256
from itertools import count as counting
from threading import Lock
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive import matching
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
        self.tools: dict[int, set[str]] = {}
        self.compares_tools = True
        self._originals: dict[int, tuple[bytes, Any]] = {}

    def restarted(self) -> "Book":
        """The same records in another process."""
        other = Book()
        other.index, other.archived, other._originals = self.index, self.archived, self._originals
        other.tools, other.compares_tools = self.tools, self.compares_tools
        return other

    def see(self, messages: Any) -> list[tuple[int | None, str]]:
        """Number and form of every result of a list, in its order."""
        self.timeline.advance(messages)
        for place in self.match():
            number = len(self._originals) + 1
            self._originals[number] = (place.call_id, place.content)
            self.tools[number] = set(place.tools)
            self._add(number)
            self.timeline.give(place, number)
        self.timeline.settle()
        return [(place.number, place.form) for place in self.timeline.places]

    def match(self) -> list[Place]:
        tools_of = self.tools.__getitem__ if self.compares_tools else None
        return self.timeline.match(self.index, self.archived.__contains__, self._tag, tools_of=tools_of)

    def read(self, messages: Any) -> list[bool]:
        """Which results of a list were read."""
        self.see(messages)
        return [self.timeline.is_read(place) for place in self.timeline.places]

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


@pytest.mark.parametrize("depth", [65, 200, 600])
def test_a_content_nested_too_deep_passes_through_as_it_is(depth: int) -> None:
    content: list[Any] = ["x"]
    for _ in range(depth - 1):
        content = [content]
    book = Book()
    messages = [asks("c1", "c2"), tool(content), tool("x", "c2")]
    for _ in range(2):
        assert book.numbers(messages) == [None, 1]
        assert book.timeline.messages[1]["content"] is content


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


# --- the tool a result is of ------------------------------------------------------------------------------------


def prescription(content: Any, called: str = "prescription.get", **named: Any) -> list[Any]:
    """A result of another tool under the same call id."""
    return [asks("c1", name=called), {**tool(content), **named}, says()]


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("compared", [True, False])
def test_a_result_never_takes_an_archived_record_of_another_tool(shift: int, compared: bool) -> None:
    book = Book()
    book.compares_tools = compared
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    messages = [{"role": "user", "content": "summary"}] * shift + prescription("x")
    caught = [2] if compared else [1]  # the must-fail control: without the tools it is shown as the other one's note
    assert book.numbers(messages) == caught
    assert book.restarted().numbers(messages) == caught
    assert book.numbers(messages) == caught


def test_a_result_that_names_another_tool_than_was_called_takes_no_archived_record_of_the_call() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    assert book.numbers(prescription("x", "logs.search", name="prescription.get")) == [2]
    assert book.restarted().numbers(prescription("x", "logs.search", name="logs.search")) == [1]


def test_a_live_record_is_let_go_by_a_result_of_another_tool_once_it_is_archived() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    messages = prescription("x")
    assert book.numbers(messages) == [1]
    book.timeline.changed.clear()
    book.archive(1)
    assert book.numbers(messages) == [2]
    assert book.timeline.changed == {1}
    assert book.timeline.by_number.keys() == {2}
    assert book.restarted().numbers([asks("c1"), tool("x"), says()]) == [1], "its own result has it still"


def test_a_note_or_label_of_an_archived_record_is_known_whatever_tool_was_called() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    assert book.see(prescription("note 1")) == [(1, NOTE)]
    assert book.see(prescription(labelled(1, "x"))) == [(1, LABELLED)]


def test_an_orphan_whose_call_was_dropped_keeps_the_archived_record_unless_it_names_another_tool() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    assert book.numbers([tool("x"), says()]) == [1]
    assert book.restarted().numbers([tool("x"), says()]) == [1]
    assert book.numbers([{**tool("x"), "name": "prescription.get"}, says()]) == [None]


def test_equal_results_of_two_tools_are_told_apart_by_their_tools() -> None:
    book = Book()
    book.see([asks("c1"), tool("x"), says()])
    book.archive(1)
    assert book.numbers([*prescription("x"), asks("c1"), tool("x"), says()]) == [2, 1]
    assert book.restarted().numbers([*prescription("x"), asks("c1"), tool("x"), says()]) == [2, 1]


# --- what the model has read ------------------------------------------------------------------------------------


def by_place_alone(book: Book, messages: list[Any]) -> list[bool]:
    """The must-fail control: whatever stands before the last assistant message."""
    book.see(messages)
    return [place.index < book.timeline.last_model for place in book.timeline.places]


LATE = [asks("a", "b"), tool("x", "a"), {"role": "assistant", "content": "waiting for b"}]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_result_inserted_before_what_the_model_had_said_is_unread_until_it_speaks_again(rebuilt: bool) -> None:
    def given(messages: list[Any]) -> list[Any]:
        return deepcopy(messages) if rebuilt else list(messages)

    book, naive = Book(), Book()
    assert book.read(given(LATE)) == [True]
    late = [*LATE[:2], tool("y", "b"), LATE[2]]
    by_place_alone(naive, given(LATE))
    assert by_place_alone(naive, given(late)) == [True, True]
    assert book.read(given(late)) == [True, False]
    assert book.read(given(late)) == [True, False]
    assert book.read(given([{"role": "user", "content": "new"}, *late])) == [True, False], "a rewritten list"
    assert book.read(given([*late, {"role": "user", "content": "and?"}])) == [True, False]
    assert book.read(given([*late, says()])) == [True, True]
    assert book.read(given([{"role": "user", "content": "again"}, *late, says()])) == [True, True]


def test_a_placeholder_that_is_replaced_in_place_is_unread_until_the_model_speaks_again() -> None:
    book = Book()
    messages = [asks("c1"), tool("pending"), says()]
    assert book.read(messages) == [True]
    messages[1]["content"] = "x"
    assert book.read(messages) == [False]
    messages.append(says())
    assert book.read(messages) == [True]


def test_a_late_result_and_what_the_model_said_to_it_may_come_in_one_list() -> None:
    book = Book()
    book.see(LATE)
    told = {"role": "assistant", "content": "b is here"}
    assert book.read(deepcopy([*LATE[:2], tool("y", "b"), LATE[2], told])) == [True, True]


def test_a_result_that_slides_to_another_place_with_its_reading_stays_read() -> None:
    book = Book()
    window = [message for n in range(3) for message in (asks(f"c{n}"), tool("x", f"c{n}"))]
    assert book.read(window) == [True, True, False]
    slid = deepcopy([*window[2:], asks("c3"), tool("x", "c3")])
    assert book.read(slid) == [True, True, False]


def test_an_unread_result_stays_unread_in_a_list_that_only_moved() -> None:
    book = Book()
    book.see(LATE)
    late = [*LATE[:2], tool("y", "b"), LATE[2]]
    book.see(late)
    book.see([LATE[0]])
    assert book.read(deepcopy([{"role": "system", "content": ""}, *late])) == [True, False]


def test_in_the_first_list_of_a_process_every_message_of_the_model_counts() -> None:
    book = Book()
    book.see(LATE)
    late = [*LATE[:2], tool("y", "b"), LATE[2]]
    book.see(late)
    assert book.restarted().read(late) == [True, True]
    assert book.restarted().read(late[:3]) == [False, False]


def test_a_record_met_for_the_first_time_in_an_old_list_of_this_process_is_unread() -> None:
    book = Book()
    late = [*LATE[:2], tool("y", "b"), LATE[2]]
    book.see(late)
    fresh = book.restarted()
    fresh.see(LATE)
    assert fresh.read(late) == [True, False]


def test_what_the_model_said_in_a_shape_that_cannot_be_read_says_nothing_new() -> None:
    class Mute:
        def __getattr__(self, name: str) -> Any:
            return getattr(dialect("chat"), name)

        def message_texts(self, message: Any) -> Any:
            raise MessageShapeError("A field cannot be read.")

    book = Book(Mute())
    book.see(LATE)
    assert book.read(deepcopy([*LATE[:2], tool("y", "b"), LATE[2], says()])) == [True, False]


def test_numbers_of_a_store_that_was_put_back_say_nothing_of_what_was_read() -> None:
    book = Book()
    book.see(LATE)
    book.timeline.forget_numbers()
    late = [*LATE[:1], tool("y", "b"), tool("x", "a"), LATE[2]]
    assert book.read(late) == [False, False]


def test_a_list_that_is_refused_takes_nothing_from_what_is_known_to_be_unread() -> None:
    book = Book()
    messages = [asks("c1"), tool("pending"), says()]
    book.see(messages)
    messages[1]["content"] = "x"
    book.see(messages)
    with pytest.raises(MessageShapeError):
        book.see([*messages, 7])
    assert book.read(messages) == [False]


# --- interrupts -------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """What a key, a signal or the end of memory raises anywhere."""


@contextmanager
def stopped_at(line: int) -> Iterator[list[int]]:
    """Raise at the n-th line of matching.py that is run from here; yields a count of the lines that were."""
    count, before = [0], sys.gettrace()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != matching.__file__:
            return None
        if event == "line":
            count[0] += 1
            if count[0] == line:
                raise Stop
        return trace

    sys.settrace(trace)
    try:
        yield count
    except Stop:
        pass
    finally:
        sys.settrace(before)


_SEEN = [asks("c1", "c2"), tool("x"), tool(_text("y"), "c2"), says(), asks("c3"), tool("z", "c3"), says()]
_STEPS: dict[str, Callable[[], list[Any]]] = {
    "grown": lambda: [*_SEEN, asks("c4", "c4"), tool("w", "c4"), tool(_text("y"), "c4")],
    "rebuilt": lambda: [*deepcopy(_SEEN), asks("c4"), tool("w", "c4")],
    "matched": lambda: [*deepcopy(_SEEN[3:]), *_SEEN[:3], asks("c4"), tool("w", "c4"), says()],
    "another tool": lambda: [asks("c1", "c2", name="prescription.get"), *_SEEN[1:]],
}


def stop_everywhere(step: str) -> None:
    """At every line of a step: the timeline is whole or empty, and then has the numbers of a fresh one."""
    for line in counting(1):
        book = Book()
        book.see(_SEEN)
        book.archive(1)
        messages = _STEPS[step]()
        with stopped_at(line) as count:
            book.see(messages)
        if count[0] < line:
            break
        timeline = book.timeline
        whole = {place.number: place for place in timeline.places if place.number is not None}
        assert timeline.by_number == whole, line
        results = [index for index, message in enumerate(timeline.messages) if message["role"] == "tool"]
        assert [place.index for place in timeline.places] == results == list(timeline.by_index), line
        fresh = book.restarted().see(messages)
        assert book.see(messages) == fresh, line
        assert book.see([*messages, asks("c5"), tool("v", "c5")])[: len(fresh)] == fresh, line
        assert timeline.bare() == [], line
    assert line > 100


@pytest.mark.parametrize("step", list(_STEPS))
def test_stopped_at_any_line_a_timeline_is_whole_or_empty(step: str) -> None:
    stop_everywhere(step)


@pytest.mark.parametrize("change", ["_take", "_number", "give"])
def test_without_its_guard_a_change_that_is_stopped_leaves_a_torn_timeline(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timeline, change, getattr(Timeline, change).__wrapped__)
    step = {"_take": "grown", "_number": "another tool", "give": "grown"}[change]
    with pytest.raises(AssertionError):
        stop_everywhere(step)


def test_forgetting_numbers_is_whole_or_empty_too() -> None:
    for line in range(1, 40):
        book = Book()
        book.see(_SEEN)
        with stopped_at(line):
            book.timeline.forget_numbers()
        whole = {place.number: place for place in book.timeline.places if place.number is not None}
        assert book.timeline.by_number == whole
        assert book.numbers(_SEEN) == [1, 2, 3]


def test_records_that_fail_while_numbers_are_given_leave_an_empty_timeline() -> None:
    class Full(RecordIndex):
        def find(self, call_id: bytes, tag: bytes) -> list[tuple[int, str]]:
            raise MemoryError

    book = Book()
    book.see(_SEEN)
    grown = _STEPS["grown"]()
    book.timeline.advance(grown)
    with pytest.raises(MemoryError):
        book.timeline.match(Full(), book.archived.__contains__, tag)
    assert book.timeline.messages == book.timeline.places == []
    assert book.timeline.by_number == {}
    assert book.numbers(grown) == [1, 2, 3, 4, 5]


def test_an_error_of_the_tagging_takes_nothing_from_the_timeline() -> None:
    def away(_: Any) -> bytes:
        raise LookupError

    book = Book()
    book.see(_SEEN)
    grown = _STEPS["grown"]()
    book.timeline.advance(grown)
    with pytest.raises(LookupError):
        book.timeline.match(book.index, book.archived.__contains__, away)
    assert book.timeline.messages == grown, "an outage shows what the messages hold"
    assert book.timeline.by_number.keys() == {1, 2, 3}


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
