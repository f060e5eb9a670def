"""The lens on OpenAI chat completions, and on every service that speaks them.

A message with the role ``tool`` is one tool result, in slot 0. Messages may be dicts, other mappings, and SDK objects
(``openai.types.chat.ChatCompletionMessage``), mixed in one list. Source of the shapes: ``openai.types.chat`` of the
``openai`` package, version 2 and later.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from json import JSONEncoder
from operator import itemgetter
from typing import Any, Final

from evidence_archive.dialects.base import Found, Reading, Role
from evidence_archive.errors import MessageShapeError
from evidence_archive.model import Content, ToolCall

__all__ = ["ChatDialect"]

_NOTHING: Final = Reading()
_CONTENT: Final = itemgetter("content")
_FROM_MODEL: Final = Reading(from_model=True)

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

_TEXT_TYPES: Final = ("text", "input_text", "output_text")
_CACHE_MARKS: Final = ("cache_control", "prompt_cache_breakpoint")
"""Where a prompt cache may end: as compatible services write it, and as OpenAI does."""

_IMAGE_TOKENS: Final = 765
"""A 1024 x 1024 image at high detail: 85 + 4 tiles x 170 (OpenAI's guide "Images and vision", calculating costs)."""

_STAND_IN: Final = " the" * _IMAGE_TOKENS
"""Counts for a part that is not text: one token a word in o200k_base and cl100k_base, and four characters a token."""

# A value that JSON does not know counts as ``null``, so that measuring never depends on somebody's ``repr``.
_ASCII: Final = JSONEncoder(separators=(",", ":"), skipkeys=True, default=lambda value: _fields_of(value) or None)
_JSON: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":"), skipkeys=True, default=lambda value: None)


def _fields_of(value: Any) -> dict[Any, Any]:
    """A mapping's items, an SDK object's fields that were set; nothing of anything else, or where it raises."""
    with suppress(Exception):  # an object may raise anything; what it says may hold evidence
        if isinstance(value, Mapping):
            return dict(value)
        dump = getattr(value, "model_dump", None)
        return dict(dump(exclude_unset=True)) if callable(dump) else {}
    return {}


def _field(holder: Any, key: str) -> Any:
    """The value under a key or attribute of a message, a call or a part of one; ``None`` where it has none."""
    if type(holder) is dict:
        return holder.get(key)
    try:
        return holder.get(key) if isinstance(holder, Mapping) else getattr(holder, key, None)
    except Exception as error:
        raised = type(error).__name__
    # Outside the block: what the object said may hold evidence, and would stand in every traceback of ours.
    raise MessageShapeError(f"A message cannot be read: its {key!r} raises {raised}.")


def _id_of(value: Any) -> str | None:
    """The id as a string, ``""`` where there is none, ``None`` where it is nothing a provider would send."""
    if value is None:
        return ""
    return value if isinstance(value, str) else None


def _call_of(call: Any) -> ToolCall | None:
    """The call, or ``None`` when it is not one: nothing to execute, no name, an id that is not a string."""
    body, arguments_key = _field(call, "function"), "arguments"
    if body is None:
        body, arguments_key = _field(call, "custom"), "input"
    name, call_id = _field(body, "name"), _id_of(_field(call, "id"))
    if not isinstance(name, str) or call_id is None:
        return None
    arguments = _field(body, arguments_key)
    return ToolCall(call_id, name, "" if arguments is None else arguments)


def _calls_of(message: Any) -> tuple[ToolCall, ...]:
    calls = _field(message, "tool_calls")
    if not isinstance(calls, list | tuple):
        return ()
    return tuple(call for call in map(_call_of, calls) if call is not None)


def _replaceable(message: Any) -> bool:
    return isinstance(message, Mapping) or callable(getattr(message, "model_copy", None))


def _mapping_with(message: Mapping[Any, Any], content: Content) -> Mapping[Any, Any]:
    """A mapping of the same type with this content; a plain dict where the type cannot be built anew."""
    wanted = {**message, "content": content}
    # The constructor is tried before a copy: a copy may share its storage with the message, which must not change.
    # It may want anything and raise anything; only what it builds counts.
    with suppress(Exception):
        built: Mapping[Any, Any] = type(message)(wanted)  # type: ignore[call-arg]
        if built is not message and dict(built) == wanted:
            return built
    if isinstance(message, dict):
        with suppress(Exception):
            copied = copy(message)
            if copied is not message:
                copied["content"] = content
                return copied
    return wanted


def _text_of(part: Any) -> str | None:
    """The text of a text part, ``None`` for any other part."""
    if isinstance(part, dict) and part.get("type") in _TEXT_TYPES:
        text = part.get("text")
        if isinstance(text, str):
            return text
    return None


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _json_of(value: Any) -> str:
    """Compact JSON, for counting only; ``""`` for what has none (circular, too deep)."""
    try:
        return _JSON.encode(value)
    except (ValueError, RecursionError):
        return ""


class ChatDialect:
    """The ``chat`` dialect; stateless, one instance serves everybody."""

    __slots__ = ()

    name: Final = "chat"

    def read(self, message: Any) -> Reading:
        """What the message means for pairing.

        Lenient with what a model wrote: a malformed ``tool_calls`` entry is no call, so that its result is an orphan
        and the application's loop goes on. Without a result, and so never touched, are messages of other roles, the
        legacy role ``function``, a ``tool_call_id`` that is not a string, and objects that offer no way to replace
        their content (no mapping, no ``model_copy``).

        Raises:
            MessageShapeError: it is not a message: there is no role, or it is not a string.
        """
        plain = type(message) is dict
        role = message.get("role") if plain else _field(message, "role")
        if not isinstance(role, str):
            missing = "has no role" if role is None else "has a role that is not a string"
            raise MessageShapeError(f"A message of the chat dialect {missing}: give it a 'role' such as 'user'.")
        if role == "tool":
            call_id = _id_of(_field(message, "tool_call_id"))
            if call_id is None or not (plain or _replaceable(message)):
                return _NOTHING
            name = _field(message, "name")
            found = Found(0, call_id, name if isinstance(name, str) else None, _field(message, "content"))
            return Reading(results=(found,))
        if role == "assistant":
            calls = _calls_of(message)
            return Reading(from_model=True, calls=calls) if calls else _FROM_MODEL
        return _NOTHING

    def role(self, message: Any) -> Role:
        """Who speaks; ``developer`` is ``system``, ``function`` is ``tool``, and any other role is ``user``.

        Raises:
            MessageShapeError: it is not a message: there is no role, or it is not a string.
        """
        self.read(message)
        return _ROLES.get(_field(message, "role"), "user")

    def plain(self, message: Any) -> str:
        """The message as JSON in one line: a mapping as it is, an SDK object with the fields that were set.

        So are the objects in it, such as the calls of an answer. What JSON does not know is ``null``, and a message
        that has no JSON at all is its role and its texts.
        """
        with suppress(Exception):
            fields = _fields_of(message)
            if fields:
                return _ASCII.encode(fields)
        return _ASCII.encode({"role": self.role(message), "content": "\n".join(self.message_texts(message))})

    def said(self, text: str) -> dict[str, Any]:
        """A ``user`` message."""
        return {"role": "user", "content": text}

    def contents(self, messages: Sequence[Any]) -> list[Any]:
        """The content of each message, the very object; what equals nothing for one that has none any more.

        Args:
            messages: each gave a result when it was read.
        """
        try:
            return list(map(_CONTENT, messages))  # the hot path: every result of a conversation, on every view
        except (KeyError, TypeError):
            return [self._content_now(message) for message in messages]

    def _content_now(self, message: Any) -> Any:
        try:
            results = self.read(message).results
        except MessageShapeError:
            results = ()
        return results[0].content if results else object()

    def replace(self, message: Any, contents: Mapping[int, Content]) -> Any:
        """A message of the same type with another content, sharing everything else.

        A mapping whose type can neither be built from a dict nor copied becomes a plain dict of the same items.

        Args:
            message: one in which :meth:`read` finds a result, when there is something to replace.
            contents: slot 0 and its content, or nothing.

        Raises:
            MessageShapeError: the message holds no result in a slot that is named, or its ``model_copy`` fails.
        """
        if not contents:
            return message
        if set(contents) != {0} or not self.read(message).results:
            raise MessageShapeError("There is no tool result in this slot of the message; nothing was replaced.")
        content = contents[0]
        if type(message) is dict:
            return {**message, "content": content}
        if isinstance(message, Mapping):
            return _mapping_with(message, content)
        with suppress(Exception):  # what it says may hold evidence, and would stand in every traceback of ours
            return message.model_copy(update={"content": content})
        raise MessageShapeError("A message object cannot be copied; hand it in as a dict.")

    def labelled(self, content: Content, label: str) -> Content:
        r"""``label``, ``"\n"``, text; or a text part with the label ahead of the same parts, in a new list."""
        return f"{label}\n{content}" if isinstance(content, str) else [_text_part(label), *content]

    def unlabelled(self, content: Content, label: str) -> Content:
        """The exact inverse of :meth:`labelled`.

        Raises:
            MessageShapeError: the content does not begin with this label; nothing is cut from it.
        """
        if isinstance(content, str):
            if content.startswith(f"{label}\n"):
                return content[len(label) + 1 :]
        elif content and self.unmarked(content[:1]) == [_text_part(label)]:
            return content[1:]  # a cache mark on the label goes with it
        raise MessageShapeError("The content does not begin with this label.")

    def noted(self, content: Content, note: str) -> Content:
        """The note as text, or as the only part of a new list; the last cache mark of the parts moves to it."""
        if isinstance(content, str):
            return note
        part = _text_part(note)
        for mark in _CACHE_MARKS:
            values = [old[mark] for old in content if isinstance(old, dict) and mark in old]
            if values:
                part[mark] = values[-1]
        return [part]

    def fenced(self, head: str, content: Content, foot: str) -> Content:
        """Header, content, closing fence: on lines of their own, or as text parts around the same parts."""
        if isinstance(content, str):
            return f"{head}\n{content}\n{foot}"
        return [_text_part(head), *content, _text_part(foot)]

    def unmarked(self, content: Any) -> Any:
        """The content without ``cache_control`` and its like on its parts; itself where there is none."""
        if type(content) is not list or not any(
            type(part) is dict and not part.keys().isdisjoint(_CACHE_MARKS) for part in content
        ):
            return content
        return [
            {key: value for key, value in part.items() if key not in _CACHE_MARKS} if type(part) is dict else part
            for part in content
        ]

    def plain_text(self, content: Content) -> str | None:
        """The text itself, text parts joined by nothing, or ``None`` when a part is not text."""
        if isinstance(content, str):
            return content
        texts = [text for text in map(_text_of, content) if text is not None]
        return "".join(texts) if len(texts) == len(content) else None

    def size_chars(self, content: Content) -> int:
        """Characters of the text, plus those of the compact JSON of every part that is not text."""
        if isinstance(content, str):
            return len(content)
        texts = ((_text_of(part), part) for part in content)
        return sum(len(_json_of(part) if text is None else text) for text, part in texts)

    def has_other_parts(self, content: Content) -> bool:
        """Whether a part is not text; whatever is not a dict is such a part."""
        return not isinstance(content, str) and any(_text_of(part) is None for part in content)

    def content_texts(self, content: Content) -> Iterator[str]:
        """The strings a token counter should count.

        Any part that is neither text nor a refusal counts about 765 tokens, whatever it holds. That is an estimate:
        what a 1024 x 1024 image costs at high detail. Its base64 would count a hundred times as much.
        """
        if isinstance(content, str):
            yield content
            return
        for part in content:
            text = _text_of(part)
            if text is None and isinstance(part, dict) and part.get("type") == "refusal":
                text = part.get("refusal")
            yield text if isinstance(text, str) else _STAND_IN

    def message_texts(self, message: Any) -> Iterator[str]:
        """The strings of content, refusal and calls, of a message of any role; none for what holds none.

        Raises:
            MessageShapeError: a field of the message cannot be read.
        """
        content, refusal = _field(message, "content"), _field(message, "refusal")
        if isinstance(content, str | list):
            yield from self.content_texts(content)
        if isinstance(refusal, str):
            yield refusal
        legacy = _call_of({"function": _field(message, "function_call")})
        for call in (*_calls_of(message), *([legacy] if legacy else [])):
            yield call.name
            yield call.arguments if isinstance(call.arguments, str) else _json_of(call.arguments)

    def parse_call(self, call: Any) -> ToolCall:
        """A function or custom tool call, from a dict (also one put together from a stream's deltas) or SDK object.

        Raises:
            MessageShapeError: it has neither a function nor a custom tool with a name, or its id is not a string.
        """
        parsed = _call_of(call)
        if parsed is None:
            raise MessageShapeError("A tool call needs an 'id' and a 'function' or 'custom' with a 'name'.")
        return parsed

    def answer(self, call_id: str, content: Content) -> dict[str, Any]:
        """A ``tool`` message."""
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The spec of a function tool, strict.

        Args:
            name: of the tool.
            description: for the model.
            parameters: a JSON schema of the ``strict`` subset.
        """
        function = {"name": name, "description": description, "parameters": dict(parameters), "strict": True}
        return {"type": "function", "function": function}
