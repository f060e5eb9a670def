"""The protocol of dialects fits Anthropic Messages and OpenAI Responses, as docs/dialects.md says it does.

The two lenses here are the tables of that page as code, no more: they show that ``read`` and ``replace`` can keep
their laws on those providers' messages, made up and recorded.
"""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_dialect_chat import check_laws, contents, extras, texts

from evidence_archive.dialects import dialect
from evidence_archive.dialects.base import Found, Reading
from evidence_archive.model import ToolCall

WIRE = Path(__file__).resolve().parents[2] / "shared" / "data" / "wire"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "dialects.md"


def blocks_of(message: Any) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


class AnthropicOnPaper:
    """A message is a turn, a slot the index of a ``tool_result`` block."""

    kinds = ("tool_result", "tool_use")

    def read(self, message: Any) -> Reading:
        blocks = [(slot, block) for slot, block in enumerate(blocks_of(message)) if isinstance(block, dict)]
        if message["role"] == "assistant":
            made = [block for _, block in blocks if block.get("type") == "tool_use"]
            return Reading(True, tuple(ToolCall(call["id"], call["name"], call["input"]) for call in made))
        held = [(slot, block) for slot, block in blocks if block.get("type") == "tool_result"]
        return Reading(results=tuple(Found(slot, it["tool_use_id"], None, it.get("content")) for slot, it in held))

    def replace(self, message: Any, contents: Any) -> Any:
        blocks = list(message["content"])
        for slot, content in contents.items():
            blocks[slot] = {**blocks[slot], "content": content}
        return {**message, "content": blocks}


class ResponsesOnPaper:
    """A message is an item, its only slot 0."""

    kinds = ("function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning")

    def read(self, message: Any) -> Reading:
        kind = message.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            arguments = message["arguments" if kind == "function_call" else "input"]
            return Reading(True, (ToolCall(message["call_id"], message["name"], arguments),))
        if kind in ("function_call_output", "custom_tool_call_output"):
            return Reading(results=(Found(0, message.get("call_id") or "", message.get("name"), message["output"]),))
        return Reading(from_model=kind == "reasoning" or message.get("role") == "assistant")

    def replace(self, message: Any, contents: Any) -> Any:
        return {**message, "output": contents[0]} if contents else message


ANTHROPIC, RESPONSES = AnthropicOnPaper(), ResponsesOnPaper()


def pairs(lens: Any, messages: list[Any]) -> list[tuple[str, str]]:
    """(tool as called, call id) of every result, in order, by the nearest preceding call of that id."""
    called: dict[str, str] = {}
    found = []
    for message in messages:
        reading = lens.read(message)
        called |= {call.id: call.name for call in reading.calls}
        found += [(called.get(result.call_id, "orphan"), result.call_id) for result in reading.results]
    return found


# --- made up ----------------------------------------------------------------------------------------------------

THINKING = {"type": "thinking", "thinking": "made up", "signature": "c2lnbmVk"}
ANTHROPIC_TURNS: list[Any] = [
    {"role": "user", "content": "Why is the door open?"},
    {
        "role": "assistant",
        "content": [
            THINKING,
            {"type": "redacted_thinking", "data": "c2VhbGVk"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "logs.search", "input": {"q": "door"}},
            {"type": "tool_use", "id": "t2", "name": "camera.frame", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "image", "source": {"data": "aW1n"}}]},
            {"type": "tool_result", "tool_use_id": "t1", "content": "line 1\r\nline 2", "is_error": True},
            {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_result", "tool_use_id": "t9", "content": "", "cache_control": {"type": "ephemeral"}},
        ],
    },
]
RESPONSES_ITEMS: list[Any] = [
    {"role": "user", "content": "Why is the door open?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "logs.search", "arguments": "{}"},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "shell", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "a\nb"},
    {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_image", "image_url": "data:image/png;base64,aW1n", "detail": "auto"}],
        "status": "completed",
    },
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It was left open."}]},
]

results = st.builds(
    lambda extra, call_id, content: {**extra, "type": "tool_result", "tool_use_id": call_id, "content": content},
    extras,
    texts,
    contents,
)
others = st.sampled_from([{"type": "text", "text": "t"}, THINKING, {"type": "image", "source": {}}])


@given(st.lists(results | others, max_size=5), extras, contents, contents)
def test_anthropic_user_messages_with_several_results_keep_the_laws(blocks: Any, extra: Any, a: Any, b: Any) -> None:
    message = {**extra, "role": "user", "content": blocks}
    held = [slot for slot, block in enumerate(blocks) if block["type"] == "tool_result"]
    assert check_laws(ANTHROPIC, message, a, b) == len(held)
    assert [found.slot for found in ANTHROPIC.read(message).results] == held
    at_once = ANTHROPIC.replace(message, dict.fromkeys(held, a))
    assert [found.content for found in ANTHROPIC.read(at_once).results] == [a] * len(held)


@given(extras, texts, contents, contents, contents)
def test_responses_output_items_keep_the_laws(extra: Any, call_id: str, content: Any, a: Any, b: Any) -> None:
    item = {**extra, "type": "function_call_output", "call_id": call_id, "output": content, "name": None}
    assert check_laws(RESPONSES, item, a, b) == 1


@pytest.mark.parametrize(
    ("lens", "messages", "expected"),
    [
        (ANTHROPIC, ANTHROPIC_TURNS, [("camera.frame", "t2"), ("logs.search", "t1"), ("orphan", "t9")]),
        (RESPONSES, RESPONSES_ITEMS, [("shell", "c2"), ("logs.search", "c1")]),
    ],
    ids=["anthropic", "responses"],
)
def test_made_up_turns_keep_the_laws_and_pair(lens: Any, messages: list[Any], expected: Any) -> None:
    held = sum(check_laws(lens, message, "a", [{"type": "text", "text": "b"}]) for message in messages)
    assert pairs(lens, messages) == expected
    assert held == len(expected)


def test_error_flags_and_cache_marks_beside_a_content_stay() -> None:
    message = ANTHROPIC_TURNS[2]
    first, second, third, fourth = ANTHROPIC.replace(message, {1: "note", 3: "note"})["content"]
    assert first is message["content"][0]
    assert second == {**message["content"][1], "content": "note"}
    assert second["is_error"] is True
    assert third is message["content"][2]
    assert fourth["cache_control"] == {"type": "ephemeral"}


def test_what_a_model_wrote_holds_no_result_so_signed_and_encrypted_parts_are_never_rebuilt() -> None:
    written = [
        (ANTHROPIC, ANTHROPIC_TURNS[1]),
        *((RESPONSES, item) for item in (*RESPONSES_ITEMS[1:4], RESPONSES_ITEMS[6])),
    ]
    for lens, message in written:
        assert lens.read(message).from_model
        assert lens.read(message).results == ()


class FlattensTheOtherBlocks(AnthropicOnPaper):
    """Rebuilds every block from the fields it knows; a signature would be lost."""

    def replace(self, message: Any, contents: Any) -> Any:
        changed = super().replace(message, contents)
        known = ("type", "tool_use_id", "content", "text")
        return {
            **changed,
            "content": [{k: v for k, v in block.items() if k in known} for block in changed["content"]],
        }


class CountsResultsNotBlocks(AnthropicOnPaper):
    """Numbers results from 0 while it replaces by block."""

    def read(self, message: Any) -> Reading:
        found = super().read(message).results
        return Reading(results=tuple(Found(n, it.call_id, None, it.content) for n, it in enumerate(found)))


@pytest.mark.parametrize(
    ("lens", "broken"), [(FlattensTheOtherBlocks, "other keys"), (CountsResultsNotBlocks, "not found there")]
)
def test_must_fail_the_law_check_catches_a_wrong_lens_on_blocks(lens: type[AnthropicOnPaper], broken: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "text"}
    message = {"role": "user", "content": [THINKING, {"type": "text", "text": "t"}, result]}
    assert check_laws(ANTHROPIC, deepcopy(message), "a", "b") == 1
    with pytest.raises(AssertionError, match=broken):
        check_laws(lens(), message, "a", "b")


# --- recorded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "key", "lens", "images_in_results"),
    [
        ("openai-chat-image.json", "messages", dialect("chat"), 0),
        ("anthropic-image.json", "messages", ANTHROPIC, 0),
        ("openai-responses-image.json", "input", RESPONSES, 1),
    ],
)
def test_recorded_requests_keep_the_laws_and_pair(file: str, key: str, lens: Any, images_in_results: int) -> None:
    path = WIRE / file
    if not path.is_file():
        pytest.skip(f"NOT CHECKED against recorded requests: {file} is not present")
    requests = json.loads(path.read_text(encoding="utf-8"))["requests"]
    messages = [message for request in requests for message in request[key]]
    held = sum(check_laws(lens, message, "a", [{"type": "text", "text": "b"}]) for message in messages)
    assert held == 1
    assert [tool for tool, _ in pairs(lens, messages)] == ["get_file"]
    (result,) = (found for message in messages for found in lens.read(message).results)
    assert ("base64" in json.dumps(result.content)) == bool(images_in_results)


# --- the page ---------------------------------------------------------------------------------------------------


def test_the_example_on_the_page_is_true() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example.count("assert ") == 4
    exec(compile(example, str(PAGE), "exec"), {})


@pytest.mark.parametrize(("title", "lens"), [("Anthropic Messages", ANTHROPIC), ("OpenAI Responses", RESPONSES)])
def test_the_page_names_every_kind_of_block_and_item_that_a_lens_reads(title: str, lens: Any) -> None:
    (section,) = re.findall(rf"## On paper: {title}\n(.*?)\n## ", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [kind for kind in lens.kinds if f"`{kind}`" not in section] == []
