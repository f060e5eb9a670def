"""What a dialect is: a pure lens on one provider's message list.

A dialect finds tool results in a message and puts other contents in their place; it decides nothing. A *slot* is
the place of a result inside one message: 0 in chat completions, the index of the ``tool_result`` block in Anthropic
Messages, 0 for a ``function_call_output`` item of OpenAI Responses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from evidence_archive.model import Content, ToolCall

__all__ = ["Dialect", "Found", "Reading", "Role"]

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Found:
    """One tool result inside one message.

    Args:
        slot: its place in the message.
        call_id: the provider's id of the call it answers, ``""`` where there is none.
        tool_name: the tool's name where the result carries one.
        content: the very object the message holds, not a copy.
    """

    slot: int
    call_id: str
    tool_name: str | None
    content: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one message means for pairing.

    Args:
        from_model: the model wrote it.
        calls: the tool calls it makes, in order.
        results: the tool results it holds, in order.
    """

    from_model: bool = False
    calls: tuple[ToolCall, ...] = ()
    results: tuple[Found, ...] = ()


class Dialect(Protocol):
    """The lens. Its laws, for every message ``m`` and slot ``s``:

    * ``read(replace(m, {s: c})).results[s].content == c`` (what was put there is found there);
    * ``replace(m, {s: found(m, s)}) == m`` (putting back what was there changes nothing);
    * ``replace(replace(m, {s: a}), {s: b}) == replace(m, {s: b})`` (the last one counts);
    * everything else in the message is the same object as before, and ``m`` itself is never changed.
    """

    @property
    def name(self) -> str:
        """Its name in ``archive.session(..., dialect=...)``."""
        ...

    def read(self, message: Any) -> Reading:
        """What the message means for pairing.

        Raises:
            MessageShapeError: it is not a message of this dialect; the error names what is missing, never the text.
        """
        ...

    def role(self, message: Any) -> Role:
        """Who speaks: instructions are of ``system``, whatever the provider calls them; results of ``tool``.

        Raises:
            MessageShapeError: it is not a message of this dialect.
        """
        ...

    def plain(self, message: Any) -> str:
        """The whole message as JSON in one line, exact as far as JSON can be."""
        ...

    def said(self, text: str) -> Any:
        """A message of the user with this text."""
        ...

    def contents(self, messages: Sequence[Any]) -> list[Any]:
        """The contents of messages that hold results, flat and in order: a cheap look for changes by value.

        It is made for every result on every view, so it looks at contents alone; a role or call id that is changed in
        place in an old message is met when that message is read anew.

        Args:
            messages: each gave results when it was read. One that has no content any more yields what equals nothing.
        """
        ...

    def replace(self, message: Any, contents: Mapping[int, Content]) -> Any:
        """A message of the same type with other contents in the given slots, sharing everything else."""
        ...

    def labelled(self, content: Content, label: str) -> Content:
        """The content with a label ahead of it: one line before a text, a text part of its own before parts."""
        ...

    def unlabelled(self, content: Content, label: str) -> Content:
        """The inverse of :meth:`labelled` for a content that is known to be labelled with this very label."""
        ...

    def noted(self, content: Content, note: str) -> Content:
        """The content that stands for an archived one: the note as text, or as the only text part."""
        ...

    def fenced(self, head: str, content: Content, foot: str) -> Content:
        """A restored content between a header and a closing fence; around parts they are text parts."""
        ...

    def unmarked(self, content: Any) -> Any:
        """The content without what only prompt caches read; a result is known again without it."""
        ...

    def plain_text(self, content: Content) -> str | None:
        """The text of a content made of text alone (parts joined), else ``None``."""
        ...

    def size_chars(self, content: Content) -> int:
        """Characters of the text, plus those of the JSON of every part that is not text."""
        ...

    def has_other_parts(self, content: Content) -> bool:
        """Whether a part is not text (an image, a file)."""
        ...

    def content_texts(self, content: Content) -> Iterable[str]:
        """The strings of a content that a token counter should count, images as a fixed number of characters."""
        ...

    def message_texts(self, message: Any) -> Iterable[str]:
        """The strings of a whole message that a token counter should count (content, calls, arguments)."""
        ...

    def parse_call(self, call: Any) -> ToolCall:
        """A tool call from the provider's dict or SDK object.

        Raises:
            MessageShapeError: it is not a tool call of this dialect.
        """
        ...

    def answer(self, call_id: str, content: Content) -> Any:
        """The message that answers a call."""
        ...

    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The spec of a tool, with ``strict: true`` where the provider knows it."""
        ...
