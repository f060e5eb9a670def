"""Message lists: a view is as many messages, the same ones each time, or there is a shape error, and no other."""

import itertools
import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence_archive import Archive, Principal
from evidence_archive.errors import MessageShapeError
from evidence_archive.keys import new_keys

OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
ROLES: tuple[Any, ...] = ("tool", "assistant", "user", "system", "function", "", None, 7)
KEYS = ("role", "content", "tool_call_id", "tool_calls", "name", "id", "type", "function", "arguments", "text", "x")
TEXTS = ("", "call_1", "logs.search", "[evidence r1 tag=0000]\n", "\ud800\x00", "x" * 900, "text", "{}", "function")
NESTED_MAX = 6
LISTS_PER_SESSION = 50

SEEDS = (
    b"",
    b"[]",
    b'[{"role": "user"}, {"role": "tool", "tool_call_id": "a", "content": "x"}]',
    json.dumps(
        [
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "a line of a log\n" * 80},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x" * 900}, None]},
            {"role": "assistant", "content": "read"},
        ]
    ).encode(),
    b'[{"role": "tool"}, {"role": 3}]',
    b'[1, null, "x"]',
    b'[{"role": "tool", "content": [NaN, Infinity, -0.0, 1e400]}]',
    b'[{"role": "tool", "content": [' + b"[" * 200 + b"]" * 200 + b"]}]",
    bytes(range(1, 200)),
    b"\x05\x00\x01\x02\x03" * 30,
)


@cache
def _archive() -> tuple[Archive, Iterator[int], list[Any], TemporaryDirectory[str]]:
    """An archive in a folder that goes when the process ends."""
    folder = TemporaryDirectory()
    new_keys(Path(folder.name) / "keys")
    archive = Archive.open(f"sqlite:///{folder.name}/evidence.db", keys=f"{folder.name}/keys")
    return archive, itertools.count(), [], folder


def close() -> None:
    """The archive closed and its folder removed, if there was any."""
    if _archive.cache_info().currsize:
        archive, _, _, folder = _archive()
        _archive.cache_clear()
        archive.close()
        folder.cleanup()


def one(data: bytes) -> None:
    """As JSON where it is, else as a list that its bytes choose."""
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError):
        messages = _built(iter(data))
    archive, count, sessions, _ = _archive()
    at = next(count)
    if at % LISTS_PER_SESSION == 0:
        sessions[:] = [archive.session(f"case-{at}", OWNER)]
    (session,) = sessions
    before = repr(messages)
    try:
        view = session.view(messages)
    except MessageShapeError:
        assert repr(messages) == before, "the messages were changed"
        return
    assert repr(messages) == before, "the messages were changed"
    assert len(view) == len(messages)
    assert repr(session.view(deepcopy(messages))) == repr(view), "equal messages gave another view"
    assert repr(session.view(view)) == repr(view), "the view of a view is another one"


def _built(data: Iterator[int]) -> list[Any]:
    """Messages in which any field may hold anything."""
    messages: list[Any] = []
    for op in data:
        role = ROLES[op % len(ROLES)]
        message: dict[str, Any] = {"role": role}
        for _ in range(op // 64):
            message[KEYS[next(data, 0) % len(KEYS)]] = _value(data, 0)
        if op & 8:
            message["tool_call_id"] = TEXTS[next(data, 0) % len(TEXTS)]
        if op & 16:
            message["content"] = TEXTS[next(data, 0) % len(TEXTS)]
        if op & 32:
            function = {"name": "logs.search", "arguments": _value(data, 0)}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        messages.append(message)
    return messages


def _value(data: Iterator[int], depth: int) -> Any:
    op = next(data, 0)
    if depth < NESTED_MAX and op % 8 == 6:
        return [_value(data, depth + 1) for _ in range(op // 64)]
    if depth < NESTED_MAX and op % 8 == 7:
        return {KEYS[next(data, 0) % len(KEYS)]: _value(data, depth + 1) for _ in range(op // 64)}
    plain = (None, True, -1, 0.5, TEXTS[op % len(TEXTS)], {"type": "text", "text": TEXTS[op // 8 % len(TEXTS)]})
    return plain[op % 8 % len(plain)]
