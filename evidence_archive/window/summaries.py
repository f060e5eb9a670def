"""Summaries of turns that have left the window: four parts, refusals, and what no number of compressions wears away.

A summary is worth what can be checked of it. It has the four parts **conclusion, basis, unresolved, references**; one
that lacks a part, was cut off, or is not smaller than what it stands for is refused, asked for once more, and then
replaced by a deterministic one. Key entries of earlier summaries (unresolved points, confirmed decisions) are carried
over by the host and not by whoever writes the summary.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from evidence_archive.errors import FormatError

__all__ = [
    "PARTS",
    "Judge",
    "Loss",
    "Span",
    "Summarizer",
    "Summary",
    "check_loss",
    "parse_summary",
    "plain_summary",
    "summarised",
]

PARTS = ("conclusion", "basis", "unresolved", "references")
"""The parts of a summary, in the order they are written."""

NOTHING = "none"
"""Stands for a part in which there is nothing to say."""

POINTS_MAX = 40
POINT_CHARS_MAX = 300
"""Most points of a part; longest point, in characters."""

CARRIED_BYTES_MAX = 128 * 1024
"""Bound on the key entries of earlier summaries, in bytes; the oldest go first, and stay in their spans."""

TRIES = 2
"""How often a summariser is asked before the deterministic summary takes its place."""


@dataclass(frozen=True, slots=True)
class Span:
    """Turns that leave the window.

    Args:
        text: all that was said in them, as the summariser reads it.
        first, last: number of the first and last message.
        tools: calls by tool, in the order of first use, with their number.
        said: what the model said, in order.
        asked: what the user said, in order.
        references: ids of the results in it.
        tokens: of the turns.
    """

    text: str = field(repr=False)
    first: int
    last: int
    tools: Sequence[tuple[str, int]]
    said: Sequence[str] = field(repr=False)
    asked: Sequence[str] = field(repr=False)
    references: Sequence[str]
    tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What is left of a span in the window.

    Args:
        conclusion, basis: what came out, and why it may be believed.
        unresolved: points that are open; each once.
        references: where the evidence is; each once.
        carried: key entries of earlier summaries, word for word, oldest first; told beside the summary.
        made_by: ``summarizer`` or ``host``.
    """

    conclusion: Sequence[str] = field(repr=False)
    basis: Sequence[str] = field(repr=False)
    unresolved: Sequence[str] = field(repr=False)
    references: Sequence[str] = field(repr=False)
    carried: Sequence[str] = field(default=(), repr=False)
    made_by: str = "summarizer"

    def text(self, *, with_unresolved: bool = True) -> str:
        """The summary in its four parts, or in three; equal summaries have equal text."""
        parts = [(name, getattr(self, name)) for name in PARTS if with_unresolved or name != "unresolved"]
        return "\n".join(
            line
            for name, points in parts
            for line in ((f"{name}: {NOTHING}",) if not points else (f"{name}:", *(f"- {point}" for point in points)))
        )


class Summarizer(Protocol):
    """Writes summaries: a model, or anything else."""

    def summarize(self, span: Span, earlier: Sequence[Summary], refused: str | None) -> str:
        """The four parts as text, in the form of :func:`parse_summary`.

        Whatever it raises counts as a refused answer. A view waits for it, so it bounds its own time.

        Args:
            span: what is to be summarised.
            earlier: the summaries before it, oldest first.
            refused: why the last answer was refused, in one sentence; ``None`` the first time.
        """
        ...


def parse_summary(text: object) -> Summary:
    """A summary as it is written: each part under its name and a colon, points behind dashes, ``none`` for nothing.

    Args:
        text: of a summariser; words around the parts are refused.

    Raises:
        FormatError: a part is missing, twice there, empty, out of order or too long.
    """
    if not isinstance(text, str):
        raise FormatError("A summary is text.")
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        head = re.fullmatch(
            r"(?:#+ *|\*\*)?(conclusion|basis|unresolved|references)(?:\*\*)?: *(?:\*\*)? *(.*)", line, re.I
        )
        if head is not None:
            name = head[1].lower()
            if name in found or name != PARTS[len(found)]:
                raise FormatError(f"A summary has the parts {', '.join(PARTS)}, each once and in this order.")
            current = found[name] = []
        elif current is None:
            raise FormatError(f"A summary begins with its {PARTS[0]}.")
        point = (line if head is None else head[2]).lstrip("-*• ").strip()
        current += [point] if point else []
    missing = [name for name in PARTS if not found.get(name)]
    if missing:
        raise FormatError(
            f"A summary says something, or '{NOTHING}', in every part; there is nothing in {missing[0]}."
        )
    for name, points in found.items():
        if len(points) > POINTS_MAX or any(len(point) > POINT_CHARS_MAX for point in points):
            raise FormatError(f"The part {name} has at most {POINTS_MAX} points of {POINT_CHARS_MAX} characters.")
    conclusion, basis, unresolved, references = (_said(found[name]) for name in PARTS)
    return Summary(conclusion, basis, unresolved, references)


def _said(points: list[str]) -> list[str]:
    return [] if [point.lower().rstrip(".") for point in points] == [NOTHING] else points


def summarised(
    span: Span,
    earlier: Sequence[Summary],
    summarizer: Summarizer | None,
    *,
    count: Callable[[str], int],
    tokens_max: int,
    keys: Iterable[str] = (),
    withdrawn: Iterable[str] = (),
) -> tuple[Summary, list[str]]:
    """The summary of a span, and why answers were refused; no failure of a summariser comes out of here.

    Args:
        span: turns that leave the window.
        earlier: the summaries that this one replaces, oldest first; their key entries are carried over.
        summarizer: is asked up to twice, whatever it raises; ``None`` for the deterministic summary at once.
        count: tokens of a text.
        tokens_max: bound on the summary without what it carries over.
        keys: entries that are carried over, too, such as confirmed decisions of the card.
        withdrawn: entries that no longer are, such as decisions that were dropped.
    """
    carried = _carried((*(point for one in earlier for point in (*one.carried, *one.unresolved)), *keys), withdrawn)
    refusals: list[str] = []
    for _ in range(TRIES if summarizer is not None else 0):
        try:
            answer = summarizer.summarize(span, earlier, refusals[-1] if refusals else None)  # type: ignore[union-attr]
            summary = parse_summary(answer)
            tokens = count(summary.text())  # what is carried over besides is not the writer's doing
            if tokens >= span.tokens or tokens > tokens_max:
                raise FormatError(
                    f"It has {tokens} tokens; it has to be smaller than {min(span.tokens, tokens_max + 1)}."
                )
            return replace(summary, carried=carried), refusals
        except FormatError as error:
            refusals.append(str(error))
        except Exception as error:  # of a client, a parser, anything: its words may hold evidence, so only its kind
            refusals.append(f"There was no answer ({type(error).__name__}).")
    return plain_summary(span, carried), refusals


def _carried(points: Iterable[str], withdrawn: Iterable[str]) -> tuple[str, ...]:
    """Each point once, the newest of them as far as the bound allows."""
    once, room = dict.fromkeys(points), CARRIED_BYTES_MAX
    for point in withdrawn:
        once.pop(point, None)
    fit: list[str] = []
    for point in reversed(once):
        room -= len(point.encode("utf-8", "surrogatepass"))
        if room < 0:
            break
        fit.append(point)
    return tuple(reversed(fit))


_OPEN = re.compile(
    r"\?\s*$|\b(?:todo|tbd|unresolved|unclear|open question|blocked|still (?:need|have) to|not yet)\b", re.I
)


def plain_summary(span: Span, carried: Sequence[str] = ()) -> Summary:
    """What can be said of a span without understanding it; equal spans give equal summaries."""
    last = _sentences(span.said[-1])[-2:] if span.said else []
    basis = [
        f"{count} calls of {tool}" if count > 1 else f"1 call of {tool}" for tool, count in span.tools[:POINTS_MAX]
    ]
    known = set(carried)
    unresolved = [one for one in dict.fromkeys(_open((*span.asked, *span.said))) if one not in known][-POINTS_MAX:]
    return Summary(
        last, basis, unresolved, tuple(dict.fromkeys(span.references))[:POINTS_MAX], tuple(carried), "host"
    )


def _sentences(text: str) -> list[str]:
    pieces = (piece.strip() for line in text.splitlines() for piece in re.split(r"(?<=[.!?])\s+", line))
    return [
        piece if len(piece) <= POINT_CHARS_MAX else f"{piece[: POINT_CHARS_MAX - 1]}…" for piece in pieces if piece
    ]


# --- quality ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """What of a span its summary does not say.

    Args:
        numbers, identifiers, unresolved: how many of the model's own words of each kind are gone, of how many.
    """

    numbers: tuple[int, int]
    identifiers: tuple[int, int]
    unresolved: tuple[int, int]

    @property
    def gone(self) -> int:
        """How many of all of these are gone."""
        return self.numbers[0] + self.identifiers[0] + self.unresolved[0]

    @property
    def said(self) -> int:
        """How many there are."""
        return self.numbers[1] + self.identifiers[1] + self.unresolved[1]

    @property
    def rate(self) -> float:
        """The share that is gone, from 0 to 1."""
        return self.gone / max(self.said, 1)


_NUMBER = re.compile(r"(?<![\w.-])\d+(?:[.,]\d+)*(?![\w])")
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
"""A number in a summary, whatever it is written together with."""

_NAME = re.compile(r"\b(?:[A-Z][A-Z0-9]{1,9}-\d+|r[1-9]\d*|[0-9a-f]{7,40})\b|(?<![\w./-])[\w./-]+\.\w{1,5}\b")


class Judge(Protocol):
    """Says how good a summary is: a model, or anything else."""

    def judge(self, span: Span, summary: Summary) -> float:
        """From 0, worthless, to 1, nothing is missing.

        Args:
            span: what was summarised.
            summary: of it.
        """
        ...


def check_loss(span: Span, summary: Summary) -> Loss:
    """How much of what the model itself said in a span, as far as it can be counted, the summary has lost.

    A number or an identifier is kept where the summary says that very one, a name of a file also where it says its
    path; an open point where it says the sentence. Each text is gone through once, however long it is.
    """
    said = "\n".join(span.said)
    points = [*(point for name in PARTS for point in getattr(summary, name)), *summary.carried]
    kept = "\n".join(points)
    names = _NAME.findall(kept)
    return Loss(
        _lost(_NUMBER.findall(said), _DIGITS.findall(kept)),
        _lost(_NAME.findall(said), (*names, *(name.rpartition("/")[2] for name in names))),
        _lost(_open(span.said), (one for point in points for one in _sentences(point))),
    )


def _open(texts: Iterable[str]) -> list[str]:
    """The sentences that leave something open."""
    return [sentence for text in texts for sentence in _sentences(text) if _OPEN.search(sentence)]


def _lost(wanted: Iterable[str], kept: Iterable[str]) -> tuple[int, int]:
    once = set(wanted)
    return len(once.difference(kept)), len(once)
