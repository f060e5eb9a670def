"""Where the window of a session stands: what the last commit to a list left, and the book that says so.

Each span that left is a posting, with the place of the cut, what the carried message says, and a fingerprint of the
messages before the cut. By it a list is known again, in this process or another, whatever form its results have now.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import is_
from typing import Any

from evidence_archive.books import Books, counts_of
from evidence_archive.carding import Carding
from evidence_archive.ledger.entries import Fact
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.model import SummaryQuality, WindowPolicy
from evidence_archive.records import Records
from evidence_archive.window.card import Card
from evidence_archive.window.carrying import Left, shortened
from evidence_archive.window.summaries import Summary

__all__ = ["Departure", "Quality", "Standing", "State"]

_BOOK = "window"


@dataclass(frozen=True, slots=True)
class Quality:
    """What is known of one summary.

    Args:
        by_host: whether the host made it.
        refused: how many answers were refused before it.
        gone, said: how many of the things counted in the span it lacks, of how many.
        score: what the judge said, if it was asked.
    """

    by_host: bool
    refused: int
    gone: int
    said: int
    score: float | None


@dataclass(slots=True)
class State:
    """Where the window stands, as the last commit left it.

    Args:
        start: the first message of the list that is shown as it stands.
        pinned: messages before it that are shown, too.
        gone: messages before it that are archived as spans.
        carried: the text of the carried message.
        left: the spans of the index.
        spans: how many there are.
        summary: the newest one, with what it carries over from those before it.
        turns: how many turns there were at the last commit.
    """

    start: int = 0
    pinned: tuple[int, ...] = ()
    gone: frozenset[int] = frozenset()
    carried: str = field(default="", repr=False)
    left: tuple[Left, ...] = ()
    spans: int = 0
    summary: Summary | None = None
    turns: int = -1


@dataclass(frozen=True, slots=True)
class Departure:
    """A span that left, and what is told once it has.

    Args:
        indexes: of its messages.
        new: its line of the index.
        index: all lines of the index, this one among them.
        carried: the text of the carried message.
        summary, quality: of the span.
        card, facts, entries: what the carried message tells, and how many entries of the ledger it knows of.
    """

    indexes: Sequence[int]
    new: Left
    index: Sequence[Left]
    carried: str = field(repr=False)
    summary: Summary
    quality: Quality
    card: Card
    facts: Sequence[Fact]
    entries: int


class Standing:
    """Where the window of one session stands. Callers hold the records' lock.

    Args:
        records, books, carding, ledger: of the session.
        policy: budget and shares.
    """

    def __init__(
        self, records: Records, books: Books, carding: Carding, ledger: Ledger, policy: WindowPolicy
    ) -> None:
        self._records = records
        self._books = books
        self._carding = carding
        self._ledger = ledger
        self.carried_tokens_max = int(policy.window_tokens_max * policy.carried_share)
        self.state = State()
        self.told_card = Card()
        self.told_facts: frozenset[str] = frozenset()
        """Card and facts as the carried message tells them."""
        self.qualities: list[Quality] = []
        self.reminded = 0
        """The newest result when the model was reminded last, as far as this object and the book know."""
        self._prints = _Prints(records)
        self._fingerprint = self._prints.of(())
        self._posted = 0
        """How many commits of the session, to whichever list, the state knows of."""
        self._prefix: list[Any] | None = None
        """The messages of the list that the state is about, as objects; ``None`` before it was looked up."""

    # --- which list ------------------------------------------------------------------------------------------------

    def settle(self, rendered: Sequence[Any], *, outage: bool) -> None:
        """The state of this very list: as this process left it, as any process did, or a new one for a new list.

        Args:
            rendered: the whole list.
            outage: the store does not answer, so that only what is known here counts.

        Raises:
            StoreError, IntegrityError: the books cannot be read, or were changed.
        """
        start = self.state.start
        same = self._prefix is not None and len(rendered) >= start and self._is_prefix(rendered[:start])
        posted = counts_of(self._records.row).get(_BOOK, 0)
        # Every list begins with nothing: where nothing was cut, an older commit may have been to this very list.
        # Where others have made one since, it may be to this very list, too, and has its spans and points.
        if same and (outage or (posted == self._posted and (start or not posted))):
            return
        if outage:
            if start > len(rendered) or self._prints.of(rendered[:start]) != self._fingerprint:
                self._begin_anew()
            return
        self._load(rendered)
        self._prefix = list(rendered[: self.state.start])

    def _begin_anew(self) -> None:
        """Nothing was cut from this list yet; what left from others is told of all the same."""
        state = self.state
        self.state = State(left=state.left, spans=state.spans, summary=state.summary)
        self._fingerprint = self._prints.of(())

    def _is_prefix(self, messages: Sequence[Any]) -> bool:
        prefix, first = self._prefix or [], self._prints.first(messages)
        return len(prefix) == len(messages) and (
            all(map(is_, prefix[first:], messages[first:])) or self._prints.of(messages) == self._fingerprint
        )

    def _load(self, rendered: Sequence[Any]) -> None:
        """What the newest commit to this list left, of whichever process; all spans are told of in any case."""
        contents = [posting.content for posting in self._books.seen(_BOOK)]
        self._posted = len(contents)
        self._begin_anew()
        self.told_card, self.told_facts = Card(), frozenset()
        if not contents:
            return
        self.qualities = [Quality(**content["quality"]) for content in contents]
        self.reminded = max(self.reminded, contents[-1].get("reminded", 0))  # books of before have no such number
        in_index = {*contents[-1]["index"]}
        left = [content["left"] for content in contents]
        self.state = State(
            left=tuple(Left(**one) for one in left if one["result_id"] in in_index),
            spans=len(contents),
            summary=Summary(**contents[-1]["summary"]),
        )
        fit = [content for content in reversed(contents) if content["start"] <= len(rendered)]
        prints = self._prints.of_each(rendered, {content["start"] for content in fit})
        same = next((content for content in fit if prints[content["start"]] == content["print"]), None)
        if same is not None:
            self._take_over(same)

    def _take_over(self, content: Mapping[str, Any]) -> None:
        """A commit to this very list."""
        state = self.state
        state.start, state.turns, state.pinned = content["start"], content["turns"], tuple(content["pinned"])
        state.gone = frozenset(at for first, last in content["gone"] for at in range(first, last + 1))
        # The policy may have given it more room than it has now.
        state.carried = shortened(
            content["carried"], count=self._records.counter.count, budget_tokens=self.carried_tokens_max
        )
        self._fingerprint = content["print"]
        self.told_card = self._carding.card_at(content["card_version"])
        self.told_facts = frozenset(fact.id for fact in self._ledger._established(content["entries"])[1])

    def forget(self) -> None:
        """Tell nothing any more of what left: the session was shredded."""
        self.state.carried, self.state.left, self.state.summary = "", (), None

    # --- commits ---------------------------------------------------------------------------------------------------

    def move(self, start: int, pinned: Sequence[int]) -> None:
        """A commit begins: from now on the list is shown from another message on.

        Args:
            start, pinned: as in the state.
        """
        self.state.start, self.state.pinned = start, tuple(pinned)
        self.state.turns = self._records.timeline.turns
        # Where messages were taken back it may stand further in front: what comes behind it now has not left yet.
        self.state.gone = frozenset(at for at in self.state.gone if at < start)

    def cut(self, prefix: Sequence[Any]) -> None:
        """What stands before the start now, as it is shown from now on.

        Args:
            prefix: those messages.
        """
        self._prefix = list(prefix)
        self._fingerprint = self._prints.of(self._prefix)

    def put_down(self, one: Departure) -> bool:
        """Whether it was put down that a span left; the state is as it was where it was not.

        Where others posted while a summary was written, it was made without theirs: nothing is put down.

        Args:
            one: the span.

        Raises:
            ShreddedError, StoreError, IntegrityError, FormatError: nothing was put down.
        """
        state, gone = self.state, self.state.gone | set(one.indexes)
        content = {
            "start": state.start,
            "pinned": list(state.pinned),
            "gone": _runs(sorted(gone)),
            "carried": one.carried,
            "left": _plain(one.new),
            "index": sorted(left.result_id for left in one.index),
            "summary": _plain(one.summary),
            "quality": _plain(one.quality),
            "turns": state.turns,
            "print": self._fingerprint,
            "card_version": one.card.version,
            "entries": one.entries,
            "reminded": self.reminded,
        }
        new, _ = self._books.post(_BOOK, lambda known: ([content] if len(known) == self._posted else [], None))
        if not new:
            self._prefix = None  # what others put down is read at the next view
            return False
        state.carried, state.left, state.spans = one.carried, tuple(one.index), state.spans + 1
        state.summary, state.gone = one.summary, gone
        self.qualities.append(one.quality)
        self._posted += 1
        self.told_card, self.told_facts = one.card, frozenset(fact.id for fact in one.facts)
        return True

    def quality(self) -> SummaryQuality:
        """How good the summaries are that this object knows of."""
        known = self.qualities
        said, gone = sum(one.said for one in known), sum(one.gone for one in known)
        scores = [one.score for one in known if one.score is not None]
        return SummaryQuality(
            len(known),
            sum(one.by_host for one in known),
            sum(one.refused for one in known),
            gone / said if said else None,
            len(scores),
            sum(scores) / len(scores) if scores else None,
        )


class _Prints:
    """By what a list is known again in another process, its instructions aside; results count by their numbers.

    What was hashed of a list is not hashed again, as far as the next one begins with equal messages.

    Args:
        records: of the session.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._texts: list[list[Any] | None] = []
        """What counts of each message of the last list."""
        self._hashes = [sha256(b"[")]
        """Of the beginnings of the last list, from none of it on."""

    def first(self, messages: Sequence[Any]) -> int:
        """How many instructions a list begins with: they are sent as they are, and may be others at each request."""
        role = self._records.dialect.role
        return next((at for at, message in enumerate(messages) if role(message) != "system"), len(messages))

    def of(self, messages: Sequence[Any]) -> str:
        """The print of a list, or of the beginning of one."""
        return self.of_each(messages, {len(messages)})[len(messages)]

    def of_each(self, messages: Sequence[Any], ends: Collection[int]) -> dict[int, str]:
        """The prints of several beginnings of a list.

        Args:
            messages: the list.
            ends: how many messages each beginning has.
        """
        first = self.first(messages)
        for at, message in enumerate(messages[: max(ends, default=0)]):
            texts = None if at < first else self._counts(at, message)
            if at < len(self._texts):
                if self._texts[at] == texts:
                    continue
                del self._texts[at:], self._hashes[at + 1 :]
            self._texts.append(texts)
            hashed = self._hashes[at].copy()
            hashed.update(f"{', ' if at else ''}{json.dumps(texts)}".encode("ascii"))
            self._hashes.append(hashed)
        return {end: self._closed(end) for end in ends}

    def _counts(self, at: int, message: Any) -> list[Any]:
        places = self._records.timeline.by_index.get(at)
        return [place.number for place in places] if places else list(self._records.dialect.message_texts(message))

    def _closed(self, end: int) -> str:
        hashed = self._hashes[end].copy()
        hashed.update(b"]")
        return hashed.hexdigest()


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as the first and last of each run."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _plain(row: Any) -> dict[str, Any]:
    """The fields of a record as JSON values."""
    return {
        name: list(value) if isinstance(value := getattr(row, name), tuple) else value
        for name in row.__dataclass_fields__
    }
