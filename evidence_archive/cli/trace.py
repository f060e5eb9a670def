"""``trace show``, ``trace diff``: what was sent to the model, request by request."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.opening import Access, with_options
from evidence_archive.cli.options import Json
from evidence_archive.cli.render import counted, emit_json, one_line, plain, say, table
from evidence_archive.model import format_time

if TYPE_CHECKING:
    from evidence_archive.tracing import TraceEntry

__all__ = ["register"]

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject triage-agent"

_SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)]


def _request(metavar: str, words: str) -> Any:
    return typer.Argument(metavar=metavar, help=words, min=1, show_default=False)


def register(app: typer.Typer) -> None:
    """Add the ``trace`` commands."""
    group = typer.Typer(
        help="Look at what was sent to the model.",
        epilog=f"Example: evidence-archive trace show case-4711 {_STORE}",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    group.command("show", epilog=f"Example: evidence-archive trace show case-4711 17 {_STORE}")(_show)
    group.command("diff", epilog=f"Example: evidence-archive trace diff case-4711 16 17 {_STORE}")(_diff)
    app.add_typer(group, name="trace")


@with_options
def _show(
    *,
    session: _SessionArgument,
    request: Annotated[int | None, _request("REQUEST", "Number of a request; without it, all are listed.")] = None,
    access: Access,
    as_json: Json = False,
) -> None:
    """List the requests of a session, or show the messages of one.

    For the owner of the session, where its policy says trace = "sealed". Showing messages is logged.
    """
    with access.session(session) as found:
        if request is None:
            entries = found.trace()
        else:
            messages = _finite(found.trace_request(request))
    if request is None:
        _list(session, entries, as_json=as_json)
    elif as_json:
        emit_json({"session": session, "request": request, "messages": messages})
    else:
        for at, message in enumerate(messages, 1):
            say(f"--- {at} of {len(messages)}: {one_line(str(message.get('role')))}", *_told(message))


def _list(session: str, entries: "Sequence[TraceEntry]", *, as_json: bool) -> None:
    if as_json:
        told = [{**plain(entry), "sent_at": format_time(entry.sent_at_us)} for entry in entries]
        emit_json({"session": session, "requests": told})
        return
    rows = [
        (
            entry.request,
            format_time(entry.sent_at_us),
            entry.messages,
            entry.tokens,
            entry.added_messages,
            entry.added_bytes,
            _remarks(entry),
        )
        for entry in entries
    ]
    heads = ("request", "sent", "messages", "tokens", "new", "bytes of them", "")
    table(f"trace of {session}", heads, rows, numbers=[0, 2, 3, 4, 5])
    missing = sum(entry.missing for entry in entries)
    say(f"{counted(len(entries), 'request')}, {missing} missing." if entries else "Nothing was traced.")
    if entries:
        say(f"'evidence-archive trace show {session} REQUEST' shows one.")


def _remarks(entry: "TraceEntry") -> str:
    words = []
    if entry.begins:
        words.append("session opened")
    if entry.missing:
        words.append(f"{entry.missing} MISSING before")
    if not entry.readable:
        words.append("shredded")
    return ", ".join(words)


def _told(message: Mapping[str, Any]) -> Iterator[str]:
    """A message for people, quoted, so that no text passes for the head of another one; what is no text as JSON."""
    for name, value in message.items():
        if name == "content" and isinstance(value, str):
            yield from (f"> {line}" for line in value.replace("\r\n", "\n").split("\n"))
        elif name != "role":
            yield f"> {one_line(name)}: {_line(value)}"


@with_options
def _diff(
    *,
    session: _SessionArgument,
    first: Annotated[int, _request("A", "Number of a request.")],
    second: Annotated[int, _request("B", "Number of another one.")],
    access: Access,
    as_json: Json = False,
) -> None:
    """Show which messages left and came between two requests.

    As a unified diff with one message in a line, as JSON. Both requests are logged as read.
    """
    with access.session(session) as found:
        before, after = (_finite(found.trace_request(request)) for request in (first, second))
    old, new = ([_line(message) for message in messages] for messages in (before, after))
    if not as_json:
        lines = list(unified_diff(old, new, f"request {first}", f"request {second}", n=1, lineterm=""))
        say(*lines or [f"Requests {first} and {second} are the same."])
        return
    steps = [step for step in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if step[0] != "equal"]
    removed = [{"at": at + 1, "message": before[at]} for _, start, end, _, _ in steps for at in range(start, end)]
    added = [{"at": at + 1, "message": after[at]} for _, _, _, start, end in steps for at in range(start, end)]
    emit_json({"session": session, "from": first, "to": second, "removed": removed, "added": added})


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _finite(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with words for numbers that JSON has none for."""
    read: Callable[..., list[dict[str, Any]]] = json.loads
    return read(json.dumps(messages), parse_constant=str)
