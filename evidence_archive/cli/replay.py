"""``evidence-archive replay``: what archiving would have done to conversations that were recorded.

Every conversation runs through the real middleware, on a throw-away store with throw-away keys and the default
policy. The rule is plain: what is longer than N tokens is archived one request after it was read, in batches of at
least K. What the archive itself costs is counted apart: tool specs, instructions, archive calls and receipts (a
receipt counts as long as its call), and the originals that come back: they are carried until the next batch, which
archives them again.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.options import Json
from evidence_archive.cli.render import counted, emit_json, note, percent, say, table
from evidence_archive.cli.transcripts import Conversation, load, place_of
from evidence_archive.errors import BatchRejectedError
from evidence_archive.matching import Timeline
from evidence_archive.model import Principal, encode_exact

if TYPE_CHECKING:
    from evidence_archive.archive import Archive
    from evidence_archive.ports import TokenCounter
    from evidence_archive.session import Session

__all__ = ["Figures", "MessageTokens", "play", "register"]

MESSAGE_TOKENS = 4
"""What a provider adds to every message for its role and its delimiters."""

NOTE_LINE_CHARS_MAX = 120
WORD_CHARS_MIN = 8
NOT_EQUAL = 1

_WORD = re.compile(r"[A-Za-z0-9_./-]+")


# --- what is measured -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Figures:
    """What was measured on one file, or on all of them.

    Args:
        place: the file.
        conversations, requests: how many; a request stands before every assistant message.
        results: tool results in the messages.
        tokens_whole: input tokens of all requests with the whole history.
        tokens_archived: of all views, so the same messages with notes in the place of what is archived.
        tokens_overhead: what the archive itself adds to all requests: tools, instructions, calls, receipts, restores.
        prefix_tokens, prefix_kept_tokens: tokens of all previous requests, and of their heads that the next request
            repeats message for message: what a prompt cache can use.
        restores_forced: originals that the recorded model used again after they had left the view: a later
            assistant message holds a word of 8 characters or more that is in an archived original and nowhere in
            the view. An upper bound, since a word may come from elsewhere.
        originals_archived, bytes_archived: how many originals, and their exact bytes.
        originals_equal: how many of them came back equal in type and value.
        batches, batches_rejected: accepted and rejected.
        view_ms: milliseconds of every view.
    """

    place: str
    conversations: int = 0
    requests: int = 0
    results: int = 0
    tokens_whole: int = 0
    tokens_archived: int = 0
    tokens_overhead: int = 0
    prefix_tokens: int = 0
    prefix_kept_tokens: int = 0
    restores_forced: int = 0
    originals_archived: int = 0
    bytes_archived: int = 0
    originals_equal: int = 0
    batches: int = 0
    batches_rejected: int = 0
    view_ms: list[float] = field(default_factory=list, repr=False)

    @property
    def exact(self) -> bool:
        """Whether every archived original came back equal."""
        return self.originals_equal == self.originals_archived

    def add(self, other: "Figures") -> None:
        """Add another's figures to these."""
        for name in self.__slots__:
            if name != "place":
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_json(self) -> dict[str, Any]:
        """The figures for programs; tokens and shares as numbers, times in milliseconds."""
        named = {name: getattr(self, name) for name in self.__slots__ if name != "view_ms"}
        net = self.tokens_archived + self.tokens_overhead
        saved, saved_net = (
            1 - sent / self.tokens_whole if self.tokens_whole else 0.0 for sent in (self.tokens_archived, net)
        )
        kept = self.prefix_kept_tokens / self.prefix_tokens if self.prefix_tokens else 1.0
        return {
            **named,
            "tokens_saved_share": round(saved, 4),
            "tokens_saved_net_share": round(saved_net, 4),
            "prefix_kept_share": round(kept, 4),
            **{f"view_ms_{name}": round(value, 3) for name, value in self.view_times().items()},
            "exact": self.exact,
        }

    def view_times(self) -> dict[str, float]:
        """Milliseconds of a view: ``p50``, ``p95``, ``max``."""
        times = sorted(self.view_ms) or [0.0]
        at = {"p50": 0.50, "p95": 0.95, "max": 1.0}
        return {name: times[min(len(times) - 1, int(share * len(times)))] for name, share in at.items()}


class MessageTokens:
    """Tokens of messages, each text counted once however often it is sent.

    Args:
        counter: what counts.
    """

    def __init__(self, counter: "TokenCounter") -> None:
        from evidence_archive.dialects.chat import ChatDialect

        self.dialect = ChatDialect()
        self.counter = counter
        self._of_text: dict[str, int] = {}

    def text(self, text: str) -> int:
        """Tokens of a text."""
        tokens = self._of_text.get(text)
        if tokens is None:
            tokens = self._of_text[text] = self.counter.count(text)
        return tokens

    def message(self, message: Any) -> int:
        """Tokens of a message, with what a provider adds to each."""
        return MESSAGE_TOKENS + sum(map(self.text, self.dialect.message_texts(message)))

    def each(self, messages: Iterable[Any]) -> list[int]:
        """Tokens of every message."""
        return [self.message(message) for message in messages]


# --- playing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    result_id: str
    content: Any = field(repr=False)
    note: str = field(repr=False)


class _Player:
    def __init__(
        self, conversation: Conversation, session: "Session", tally: MessageTokens, tokens_min: int, batch_min: int
    ) -> None:
        self.figures = Figures(conversation.place, conversations=1)
        self._messages = conversation.messages
        self._session = session
        self._tally = tally
        self._tokens_min = tokens_min
        self._batch_min = batch_min
        timeline = Timeline(tally.dialect)
        timeline.advance(self._messages)
        # What a session registers, in the order of its IDs: results with a call whose content encodes exactly.
        places = (place for place in timeline.places if place.call is not None)
        self._registered = (place.content for place in places if encode_exact(place.content) is not None)
        self._known = 0
        self._waiting: list[_Waiting] = []
        self._archived: dict[str, _Waiting] = {}
        self._holders: dict[str, str] = {}
        self._back_in_view: dict[str, int] = {}
        self._previous: tuple[list[Any], list[int]] = ([], [])
        # In every request: our tool specs and instructions; from their time on: calls, receipts, restored originals.
        self._extra_tokens = tally.text(json.dumps(session.tools)) + tally.text(session.instructions)

    def play(self) -> Figures:
        whole_tokens, seen = 0, 0
        for index, message in enumerate(self._messages):
            if message["role"] != "assistant":
                continue
            whole_tokens += sum(self._tally.each(self._messages[seen:index]))
            self._request(index, whole_tokens)
            self._look_for_forced_restores(message)
            seen = index
        self._compare()
        self.figures.results = sum(message["role"] == "tool" for message in self._messages)
        return self.figures

    def _view(self, end: int) -> list[Any]:
        started = perf_counter()
        view = self._session.view(self._messages[:end])
        self.figures.view_ms.append((perf_counter() - started) * 1000)
        return view

    def _request(self, end: int, whole_tokens: int) -> None:
        figures = self.figures
        view = self._view(end)
        if self._archive_waiting():
            view = self._view(end)
        self._note_new_results()
        tokens = self._tally.each(view)
        figures.requests += 1
        figures.tokens_whole += whole_tokens
        figures.tokens_archived += sum(tokens)
        figures.tokens_overhead += self._extra_tokens
        before, before_tokens = self._previous
        kept = next(
            (at for at, (old, new) in enumerate(zip(before, view, strict=False)) if old is not new and old != new),
            min(len(before), len(view)),
        )
        figures.prefix_tokens += sum(before_tokens)
        figures.prefix_kept_tokens += sum(before_tokens[:kept])
        self._previous = (view, tokens)

    def _note_new_results(self) -> None:
        """Line up what this view registered with the messages, and remember what is worth archiving."""
        infos = self._session.results()[self._known :]
        for info in infos:
            content = next(self._registered)
            if info.tokens > self._tokens_min and info.protected_by is None:
                self._waiting.append(_Waiting(info.id, content, self._note(info.tool, content)))
        self._known += len(infos)

    def _note(self, tool: str, content: Any) -> str:
        size = self._tally.dialect.size_chars(content)
        texts = "\n".join(self._tally.dialect.content_texts(content))
        first = next((line.strip() for line in texts.splitlines() if line.strip()), "")
        return f"{tool}, {size} characters. First line: {first[:NOTE_LINE_CHARS_MAX]}"

    def _archive_waiting(self) -> bool:
        if len(self._waiting) < self._batch_min:
            return False
        batch = [(item.result_id, item.note) for item in self._waiting]
        try:
            self._session.archive(batch)
        except BatchRejectedError as rejection:
            self.figures.batches_rejected += 1
            fit = {target.result_id for target in rejection.targets if target.status in ("ok", "unread")}
            self._waiting = [item for item in self._waiting if item.result_id in fit]
            return False
        self.figures.batches += 1
        batch += [(result_id, self._archived[result_id].note) for result_id in self._back_in_view]
        call = json.dumps({"batch": [{"id": result_id, "note": note} for result_id, note in batch]})
        self._extra_tokens += 2 * (MESSAGE_TOKENS + self._tally.text(call))
        for result_id, tokens in self._back_in_view.items():
            self._extra_tokens += self._tally.text(self._archived[result_id].note) - tokens
        self._back_in_view = {}
        for item in self._waiting:
            self._archived[item.result_id] = item
            words = _words(self._tally.dialect.content_texts(item.content))
            self._holders.update(dict.fromkeys(words, item.result_id))
        self._waiting = []
        return True

    def _look_for_forced_restores(self, message: Any) -> None:
        dialect = self._tally.dialect
        used = {word for word in _words(dialect.message_texts(message)) if word in self._holders}
        if not used:
            return
        visible = [text for shown in self._previous[0] for text in dialect.message_texts(shown)]
        for result_id in self._back_in_view:
            visible += dialect.content_texts(self._archived[result_id].content)
        for word in sorted(used):
            if any(word in text for text in visible):
                continue
            result_id = self._holders[word]
            texts = list(dialect.content_texts(self._session.restore(result_id).content))
            visible += texts
            self._back_in_view[result_id] = sum(map(self._tally.text, texts))
            self._extra_tokens += 2 * MESSAGE_TOKENS + self._back_in_view[result_id]
            self.figures.restores_forced += 1

    def _compare(self) -> None:
        for result_id, item in self._archived.items():
            want, got = encode_exact(item.content), encode_exact(self._session.restore(result_id).content)
            self.figures.originals_archived += 1
            self.figures.bytes_archived += 0 if want is None else want.size_bytes
            self.figures.originals_equal += want is not None and want == got


def _words(texts: Iterable[str]) -> Iterator[str]:
    """Words of 8 characters or more, without the punctuation of a sentence or path around them."""
    stripped = (word.strip("./-") for text in texts for word in _WORD.findall(text))
    return (word for word in stripped if len(word) >= WORD_CHARS_MIN)


def play(
    conversations: Sequence[Conversation],
    *,
    place: str,
    archive: "Archive",
    tally: MessageTokens,
    tokens_min: int,
    batch_min: int,
) -> Figures:
    """The figures of some conversations, each played in a session of its own.

    Args:
        conversations: what was recorded.
        place: what the figures are called.
        archive: where they are archived; fresh, since sessions are called ``replay-1`` and so on.
        tally: counts tokens.
        tokens_min: results of more tokens than this are archived.
        batch_min: fewest results of a batch, at least 1.
    """
    figures = Figures(place)
    for number, conversation in enumerate(conversations, 1):
        session = archive.session(f"replay-{number}", Principal("replay", "replay"))
        figures.add(_Player(conversation, session, tally, tokens_min, batch_min).play())
    return figures


# --- the command ------------------------------------------------------------------------------------------------


def register(app: typer.Typer) -> None:
    """Add the ``replay`` command."""
    app.command("replay", epilog="Example: evidence-archive replay conversations.jsonl --tokens-min 500")(_replay)


def _replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Transcripts: JSON or JSON Lines, UTF-8; - is standard input.", show_default=False
        ),
    ],
    tokens_min: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Archive results of more tokens than this.")
    ] = 500,
    batch_min: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Fewest results of a batch.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure archiving on recorded conversations.

    A FILE holds chat-completions messages: a JSON list, an object with a list under "messages", or JSON Lines of
    these. Nothing is kept: the store and its keys are thrown away. Exit 1 when an original did not come back equal.
    """
    from evidence_archive.archive import Archive
    from evidence_archive.keys import new_keys
    from evidence_archive.tokens import default_counter

    recorded = [(place_of(path), load(path)) for path in files]
    tally = MessageTokens(default_counter())
    measured: list[Figures] = []
    with TemporaryDirectory(prefix="evidence-archive-") as folder:
        keys = Path(folder, "keys")
        new_keys(keys)
        for number, (place, conversations) in enumerate(recorded):
            if sys.stderr.isatty():
                print(f"replaying {place} ...", file=sys.stderr)
            with Archive.open(f"sqlite:///{folder}/{number}.db", keys=keys) as archive:
                figures = play(
                    conversations,
                    place=place,
                    archive=archive,
                    tally=tally,
                    tokens_min=tokens_min,
                    batch_min=batch_min,
                )
            measured.append(figures)
    total = Figures("total")
    for figures in measured:
        total.add(figures)
    if as_json:
        emit_json(
            {
                "rule": {"tokens_min": tokens_min, "batch_min": batch_min},
                "counter": {"name": tally.counter.name, "estimated": tally.counter.estimated},
                "files": [figures.as_json() for figures in measured],
                "total": total.as_json(),
            }
        )
    else:
        about = "about, " if tally.counter.estimated else ""
        say(
            f"Results of more than {tokens_min} tokens are archived one request after they were read, "
            f"at least {batch_min} at a time.",
            f"Tokens: {about}{tally.counter.name}. Its own: tool specs, instructions, calls, receipts and restores.",
        )
        for figures in [*measured, total] if len(measured) > 1 else measured:
            table(figures.place, ("", ""), _rows(figures), numbers=[1])
    for figures in measured:
        if not figures.results:
            note(f"{figures.place}: no tool results found; is this chat completions?")
    if not total.exact:
        raise typer.Exit(NOT_EQUAL)


def _share(figures: Figures, tokens: int) -> str:
    """The share of the whole history; none where nothing was archived, or where more was spent than there was."""
    silly = not figures.originals_archived or abs(tokens) > figures.tokens_whole
    return "" if silly else f" ({percent(tokens, figures.tokens_whole)})"


def _rows(figures: Figures) -> list[tuple[str, str]]:
    times = figures.view_times()
    saved = figures.tokens_whole - figures.tokens_archived
    net = saved - figures.tokens_overhead
    return [
        ("conversations, requests", f"{figures.conversations:,}, {figures.requests:,}"),
        ("input tokens, whole history", f"{figures.tokens_whole:,}"),
        ("input tokens, with the archive", f"{figures.tokens_archived:,}"),
        ("saved", f"{saved:,}{_share(figures, saved)}"),
        ("the archive's own tokens", f"{figures.tokens_overhead:,}"),
        ("saved, less its own", f"{net:,}{_share(figures, net)}"),
        ("previous request kept as prefix", percent(figures.prefix_kept_tokens, figures.prefix_tokens)),
        ("originals archived", f"{figures.originals_archived:,} in {counted(figures.batches, 'batch', 'batches')}"),
        ("bytes archived", f"{figures.bytes_archived:,}"),
        ("restores forced by later use", f"{figures.restores_forced:,}"),
        ("ms per view, p50 / p95 / max", f"{times['p50']:.2f} / {times['p95']:.2f} / {times['max']:.2f}"),
        ("restored equal", f"{figures.originals_equal:,} of {figures.originals_archived:,}"),
    ]
