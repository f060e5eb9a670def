"""Read recorded chat-completions transcripts, and say exactly where a broken one is broken."""

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence_archive.errors import FormatError, MessageShapeError

__all__ = ["FILE_BYTES_MAX", "Conversation", "load", "place_of"]

FILE_BYTES_MAX = 512 * 1024 * 1024
"""Largest transcript file, in bytes."""

STANDARD_INPUT = Path("-")

_SHAPE = 'a list of messages, or an object with a list under "messages"'


@dataclass(frozen=True, slots=True)
class Conversation:
    """One recorded conversation.

    Args:
        place: the file, and the record where it holds several.
        messages: chat-completions messages, each an object with a ``role``.
    """

    place: str
    messages: list[dict[str, Any]] = field(repr=False)


def place_of(path: Path) -> str:
    """What messages call a file."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def load(path: Path) -> list[Conversation]:
    """The conversations of a file: one JSON document, or JSON Lines with one conversation per line.

    A document is a list of messages, or an object with a list under ``messages``.

    Args:
        path: a file in UTF-8 (with or without a BOM), of at most 512 MiB; ``-`` is standard input.

    Raises:
        FormatError: it cannot be read, is not UTF-8, or is not JSON; the message names file, line and column.
        MessageShapeError: a record is not a conversation; the message names file, record and message.
    """
    text, place = _text(path), place_of(path)
    try:
        documents = [(place, json.loads(text))]
    except (ValueError, RecursionError) as whole:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):
            raise FormatError(f"{place}: {_why(whole)}.") from None
        documents = [(f"{place} line {number}", _parsed(place, number, line)) for number, line in lines]
    return [Conversation(place, _messages(place, document)) for place, document in documents]


def _text(path: Path) -> str:
    try:
        with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); give the path of a transcript.") from error
    if len(data) > FILE_BYTES_MAX:
        raise FormatError(f"{place_of(path)}: longer than {FILE_BYTES_MAX} bytes; split it.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(f"{place_of(path)}: line {line}, byte {error.start}: not UTF-8.") from None


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(place: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: {_why(error, number)}.") from None


def _why(error: Exception, line: int | None = None) -> str:
    if isinstance(error, json.JSONDecodeError):
        words = error.msg[:1].lower() + error.msg[1:]
        return f"line {line or error.lineno}, column {error.colno}: not JSON ({words})"
    where = "" if line is None else f"line {line}: "
    return f"{where}JSON that is nested too deep, or holds a number that is too long"


def _messages(place: str, document: Any) -> list[dict[str, Any]]:
    messages = document.get("messages") if isinstance(document, dict) else document
    if not isinstance(messages, list):
        raise MessageShapeError(f"{place}: not a conversation; expected {_SHAPE}.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise MessageShapeError(f'{place}, messages[{index}]: not a message; expected an object with a "role".')
    return messages
