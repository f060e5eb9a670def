"""A model that follows a script, and a clock that stands still: for tests of agent loops, without a network.

:class:`ScriptedModel` stands where the ``openai`` client stands::

    client = ScriptedModel([call("logs.read", path="a.log"), say("The disk is full.")])
    reply = client.chat.completions.create(model="any", messages=messages, tools=tools)
    reply.choices[0].message.tool_calls
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from evidence_archive.errors import MisuseError

__all__ = [
    "HARD_CALL_IDS",
    "Call",
    "FrozenClock",
    "ScriptedModel",
    "ScriptedObject",
    "ScriptedReply",
    "ScriptedRequest",
    "call",
    "say",
]

HARD_CALL_IDS = (
    "call_1",
    "",
    "call_1",
    "x" * 2_000,
    "[evidence r1 tag=0000]",
    "id with blanks\n",
    "\u202e\U0001f600",
    "",
)
"""Call ids that providers really send or that break naive pairing: reused, empty, 2,000 characters, hostile."""

STREAM_CHARS_MAX = 40
"""Characters of text or arguments per streamed chunk."""


class ScriptedObject(dict[str, Any]):
    """A ``dict`` whose keys are attributes too, as the objects of an SDK are."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a scripted reply.

    Args:
        name: the tool's name.
        arguments: a mapping, sent as JSON, or the very text to send, valid JSON or not.
        id: the call id; ``None`` takes the next one of the model.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict, repr=False)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What the model says in one step: a text, tool calls, or both."""

    text: str | None = field(default=None, repr=False)
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request as the model received it.

    Args:
        number: 0 for the first.
        messages: the list that was sent; its messages are shared, not copied.
        tools: the tool specs that were sent.
        options: every other argument of the request, such as ``model``.
    """

    number: int
    messages: tuple[Any, ...] = field(repr=False)
    tools: tuple[Any, ...] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)


Step = ScriptedReply | Callable[[ScriptedRequest], ScriptedReply]


def say(text: str) -> ScriptedReply:
    """A reply that is text alone; it ends an agent loop."""
    return ScriptedReply(text)


def call(name: str, /, **arguments: Any) -> ScriptedReply:
    """A reply that is one tool call.

    Args:
        name: the tool's name.
        arguments: what is sent as JSON.
    """
    return ScriptedReply(None, (Call(name, arguments),))


class ScriptedModel:
    """A deterministic stand-in for a chat-completions client.

    Args:
        script: a list of steps, one per request, or one function that is asked for every request. A step is a
            :class:`ScriptedReply`, or a function from the :class:`ScriptedRequest` to one.
        call_ids: ids for calls that bring none, used in turn and from the start again when they run out;
            ``None`` gives ``call_1``, ``call_2``, and so on. :data:`HARD_CALL_IDS` is a good choice.
    """

    def __init__(
        self,
        script: Callable[[ScriptedRequest], ScriptedReply] | Sequence[Step],
        *,
        call_ids: Iterable[str] | None = None,
    ) -> None:
        self._script = script
        self._ids = _endless(call_ids)
        self.requests: list[ScriptedRequest] = []

    @property
    def chat(self) -> "ScriptedModel":
        """The object itself, so that ``client.chat.completions.create`` is found."""
        return self

    @property
    def completions(self) -> "ScriptedModel":
        """The object itself, so that ``client.chat.completions.create`` is found."""
        return self

    def create(
        self, *, messages: Sequence[Any], tools: Iterable[Any] | None = None, stream: bool = False, **options: Any
    ) -> Any:
        """The next reply, as a chat completion, or as an iterator of its chunks.

        Args:
            messages: what the model reads; recorded in ``requests``.
            tools: tool specs, recorded.
            stream: whether chunks are wanted.
            options: ``model`` and whatever else the loop sends; recorded.

        Raises:
            MisuseError: the script has no step for this request.
        """
        request = ScriptedRequest(len(self.requests), tuple(messages), tuple(tools or ()), options)
        self.requests.append(request)
        message = self._message(self._reply(request))
        model = str(options.get("model", "scripted"))
        return _chunks(message, request.number, model) if stream else _completion(message, request.number, model)

    def _reply(self, request: ScriptedRequest) -> ScriptedReply:
        if callable(self._script):
            return self._script(request)
        if request.number >= len(self._script):
            raise MisuseError(f"The script has {len(self._script)} steps and is asked for one more: add a step.")
        step = self._script[request.number]
        return step(request) if callable(step) else step

    def _message(self, reply: ScriptedReply) -> ScriptedObject:
        calls = [
            ScriptedObject(
                id=next(self._ids) if made.id is None else made.id,
                type="function",
                function=ScriptedObject(
                    name=made.name,
                    arguments=made.arguments if isinstance(made.arguments, str) else json.dumps(made.arguments),
                ),
            )
            for made in reply.calls
        ]
        return ScriptedObject(role="assistant", content=reply.text, tool_calls=calls or None)


class FrozenClock:
    """A clock that moves only when it is told to.

    Args:
        now_us: microseconds since 1970-01-01 UTC.
    """

    def __init__(self, now_us: int = 1_764_464_523_000_000) -> None:
        self._now_us = now_us
        self._elapsed_us = 0

    def advance(self, seconds: float) -> None:
        """Move on, wall clock and monotonic clock together.

        Args:
            seconds: how far, at least 0.

        Raises:
            MisuseError: it would go backwards.
        """
        if seconds < 0:
            raise MisuseError("A clock goes forwards only: advance it by 0 seconds or more.")
        self._elapsed_us += round(seconds * 1_000_000)

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self._now_us + self._elapsed_us

    def monotonic_ms(self) -> int:
        """Milliseconds since the clock was made."""
        return self._elapsed_us // 1_000


def _endless(ids: Iterable[str] | None) -> Iterator[str]:
    fixed = tuple(ids or ())
    return (fixed[n % len(fixed)] if fixed else f"call_{n + 1}" for n in count())


def _completion(message: ScriptedObject, number: int, model: str) -> ScriptedObject:
    choice = ScriptedObject(index=0, message=message, finish_reason=_finish(message), logprobs=None)
    return ScriptedObject(
        id=f"chatcmpl-{number}", object="chat.completion", created=0, model=model, choices=[choice], usage=None
    )


def _chunks(message: ScriptedObject, number: int, model: str) -> Iterator[ScriptedObject]:
    def chunk(finish: str | None = None, **delta: Any) -> ScriptedObject:
        choice = ScriptedObject(index=0, delta=ScriptedObject(delta), finish_reason=finish, logprobs=None)
        return ScriptedObject(
            id=f"chatcmpl-{number}", object="chat.completion.chunk", created=0, model=model, choices=[choice]
        )

    yield chunk(role="assistant", content=None, tool_calls=None)
    for piece in _pieces(message["content"] or ""):
        yield chunk(content=piece, tool_calls=None)
    for index, made in enumerate(message["tool_calls"] or ()):
        head = ScriptedObject(name=made.function.name, arguments="")
        opening = ScriptedObject(index=index, id=made.id, type="function", function=head)
        yield chunk(content=None, tool_calls=[opening])
        for piece in _pieces(made.function.arguments):
            more = ScriptedObject(
                index=index, id=None, type=None, function=ScriptedObject(name=None, arguments=piece)
            )
            yield chunk(content=None, tool_calls=[more])
    yield chunk(_finish(message), content=None, tool_calls=None)


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + STREAM_CHARS_MAX] for at in range(0, len(text), STREAM_CHARS_MAX))


def _finish(message: ScriptedObject) -> str:
    return "tool_calls" if message["tool_calls"] else "stop"
