"""The window of a session: what of its list goes to the model, within a budget, and what becomes of the rest.

A view is cut only at commits; between two commits what is sent only grows at its end. A commit is made when the list
reaches ``high`` of the budget and the change pays, or when the list does not fit: results that are finished with are
archived oldest first, with notes of the host, then turns leave as a whole. What leaves is archived, each result as an
original of its own, so that it is kept, restored and shredded as one, and the messages around them as a span; the
carried message tells of it. Where the store is away turns leave all the same, since the application's
list holds them: they are archived at the next commit.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import is_
from typing import Any

from evidence_archive.archiving import Archiving, Kept
from evidence_archive.books import Books, counts_of
from evidence_archive.carding import Carding
from evidence_archive.curating import Curator, Mark
from evidence_archive.dialects.base import Reading
from evidence_archive.errors import EvidenceArchiveError
from evidence_archive.ledger.entries import Fact
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.matching import NOTE, Place
from evidence_archive.model import Facts, SummaryQuality, WindowPolicy, format_result_id
from evidence_archive.notes import SEARCH_TOOL, clean_name
from evidence_archive.records import Records
from evidence_archive.vault import SHREDDED
from evidence_archive.window.card import Card
from evidence_archive.window.carrying import Left, carried, indexed, shortened
from evidence_archive.window.changing import card_changes, changes, fact_changes
from evidence_archive.window.costs import Prices, Rewrite, cached_tokens
from evidence_archive.window.fitting import kept
from evidence_archive.window.summaries import Judge, Span, Summarizer, Summary, check_loss, summarised

__all__ = ["MESSAGE_TOKENS", "Windowing"]

MESSAGE_TOKENS = 4
"""Tokens a message costs beyond its text."""

SUMMARY_TOKENS_MAX = 600
"""Bound on a summary."""

FREED_SHARE = 0.5
"""When turns have to leave, so many leave that this share of the budget for turns is free again."""

_BOOK = "window"


@dataclass(slots=True)
class _Read:
    """A message with what is known of it."""

    message: Any = field(repr=False)
    role: str
    reading: Reading
    texts: tuple[str, ...] = field(repr=False)
    tokens: int


@dataclass(frozen=True, slots=True)
class _Quality:
    """What is known of one summary."""

    by_host: bool
    refused: int
    gone: int
    said: int
    score: float | None


@dataclass(slots=True)
class _State:
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
    carried: str = ""
    left: tuple[Left, ...] = ()
    spans: int = 0
    summary: Summary | None = None
    turns: int = -1


class Windowing:
    """The window of one session. Callers hold the records' lock.

    Args:
        records, archiving, books, carding, ledger: of the session.
        policy: budget and shares.
        summarizer: writes summaries of what leaves; the deterministic ones without it.
        judge: says how good some of them are.
    """

    def __init__(
        self,
        records: Records,
        archiving: Archiving,
        books: Books,
        carding: Carding,
        ledger: Ledger,
        *,
        policy: WindowPolicy,
        summarizer: Summarizer | None = None,
        judge: Judge | None = None,
    ) -> None:
        self._records = records
        self._archiving = archiving
        self._books = books
        self._carding = carding
        self._ledger = ledger
        self._policy = policy
        self._curator = Curator(records, archiving, policy)
        self._summarizer = summarizer
        self._judge = judge
        self._prices = Prices(policy.price_input, policy.price_cached_input, policy.price_output)
        self._known: list[_Read] = []
        self._state = _State()
        self._fingerprint = self._print([])
        self._told_card = Card()
        self._told_facts: frozenset[str] = frozenset()
        """Card and facts as the carried message tells them."""
        self._quality: list[_Quality] = []
        self._reminded = 0
        """The newest result when the model was reminded last."""
        self._posted = 0
        """How many commits of the session, to whichever list, the state knows of."""
        self._sent: list[tuple[Any, int]] = []
        """The last request, each message with its tokens."""
        self._prefix: list[Any] | None = None
        """The messages of the list that the state is about, as objects; ``None`` before it was looked up."""

    def shown(
        self,
        rendered: Sequence[Any],
        render: Callable[[], list[Any]],
        *,
        outage: bool = False,
        is_cache_cold: bool = False,
    ) -> list[Any]:
        """What goes to the model.

        Args:
            rendered: the whole list, with labels and notes.
            render: gives it anew, after results were archived.
            outage: the store does not answer: nothing is archived, and no commit is made.
            is_cache_cold: nothing of what was sent is in the provider's cache any more: a change costs nothing now.

        Raises:
            WindowTooSmallError: what has to be shown does not fit; nothing was cut.
        """
        read = self._read(rendered)
        try:
            self._settle(rendered, outage)
        except EvidenceArchiveError as error:
            self._records.trouble(error)
            outage = True
        if self._records.is_shredded:  # what was said of its turns went with them
            self._state.carried, self._state.left, self._state.summary = "", (), None
        if outage:
            return self._cut(read)
        if self._is_due(read, is_cache_cold):
            read = self._committed(read, render, is_cache_cold)
        view = self._list(read, self._state.pinned, self._state.start)
        tokens = self._tokens(read)
        said = self._changes(read, tokens)
        if is_cache_cold:
            self._sent = []
        self._tell_sent(read, view, tokens)
        return [*view, *said]

    def _tell_sent(self, read: Sequence[_Read], view: Sequence[Any], tokens: int) -> None:
        """Say what is sent, and what of the last request a provider has to read anew because it changed."""
        known, carried_tokens = {id(one.message): one.tokens for one in read}, self._carried_tokens()
        sent = [(message, known.get(id(message), carried_tokens)) for message in view]
        cached = cached_tokens(self._sent, sent)
        changed = cached < sum(size for _, size in self._sent)
        anew = tokens - cached if changed else 0
        self._sent = sent
        self._records.log.info(
            "evidence_archive.context_sent",
            messages=len(view),
            tokens=tokens,
            left_out=len(read) - len(view),
            cached_tokens=cached,
            rewrite_cost=round(Rewrite(0, anew).cost(self._prices), 6),
        )

    # --- the list --------------------------------------------------------------------------------------------------

    def _read(self, rendered: Sequence[Any]) -> list[_Read]:
        """Every message with its role and size; those that are as before are not read again.

        Of those that are shown the texts count, too: an application may change a message in its place.
        """
        dialect, count = self._records.dialect, self._records.counter.count
        known, start, pinned = self._known, self._state.start, {*self._state.pinned}
        for at, message in enumerate(rendered):
            is_known = at < len(known) and known[at].message is message
            if is_known and at < start and at not in pinned and known[at].role != "system":
                continue
            texts = tuple(dialect.message_texts(message))
            if is_known and known[at].texts == texts:
                continue
            tokens = MESSAGE_TOKENS + sum(map(count, texts))
            one = _Read(message, dialect.role(message), dialect.read(message), texts, tokens)
            if at < len(known):
                known[at] = one
            else:
                known.append(one)
        del known[len(rendered) :]
        return known

    def _list(self, read: Sequence[_Read], pinned: Sequence[int], start: int) -> list[Any]:
        system = _instructions(read)
        said = [self._records.dialect.said(self._state.carried)] if self._state.carried else []
        shown = (*read[:system], *(read[at] for at in pinned), *read[max(start, system) :])
        messages = [one.message for one in shown]
        return [*messages[:system], *said, *messages[system:]]

    def _tokens(self, read: Sequence[_Read]) -> int:
        """Of all that would be sent as things are."""
        state, system = self._state, _instructions(read)
        first = max(state.start, system)
        turns = sum(one.tokens for one in read[first:]) + sum(read[at].tokens for at in state.pinned)
        return sum(one.tokens for one in read[:system]) + self._carried_tokens() + turns

    def _carried_tokens(self) -> int:
        text = self._state.carried
        return MESSAGE_TOKENS + self._records.counter.count(text) if text else 0

    @property
    def _carried_tokens_max(self) -> int:
        return int(self._policy.window_tokens_max * self._policy.carried_share)

    @property
    def _turn_tokens_max(self) -> int:
        """For instructions and turns, whatever is carried and said of changes."""
        reserved = self._carried_tokens_max + MESSAGE_TOKENS
        return int(self._policy.window_tokens_max * (1 - self._policy.changes_share)) - reserved

    def _staying(self) -> set[int]:
        """Messages with evidence that has to stay in view: what the policy protects, and what nobody read yet."""
        records = self._records
        staying = set()
        for place in records.timeline.places:
            if place.number is None and self._stays(place):
                staying.add(place.index)
            if place.number is None or place.form == NOTE:
                continue
            row = records.rows[place.number]
            if row.state != "live" or row.own not in (None, "copy"):
                continue
            if not records.is_read(place) or records.protection(
                row, records.facts(row, place, records.original(place))
            ):
                staying.add(place.index)
        return staying

    def _stays(self, place: Place) -> bool:
        """Whether a result that has no record stays: one that came while the store was away, or that has no call."""
        records, content = self._records, place.content
        if not records.our_tools.isdisjoint(place.tools):
            return False
        if place.call is not None and not records.timeline.is_read(place):
            return True
        is_content = isinstance(content, str | list)
        text = records.dialect.plain_text(content) if is_content and records.vault.policy.needs_text else None
        facts = Facts(
            place.tools or ("",),
            size_chars=records.dialect.size_chars(content) if is_content else 0,
            age_turns=records.timeline.turns_after(place.index),
            text=text,
        )
        is_never = records.vault.policy.decide_archive(facts).effect == "never"
        return is_never or not records.vault.may(records.principal, records.row.subject, facts)

    def _fits(self, read: Sequence[_Read]) -> bool:
        changes = int(self._policy.window_tokens_max * self._policy.changes_share)
        return self._tokens(read) + changes <= self._policy.window_tokens_max

    def _cut(self, read: Sequence[_Read]) -> list[Any]:
        """The list cut to the budget without a commit."""
        found = kept(
            [one.role for one in read],
            [one.reading for one in read],
            [one.tokens for one in read],
            budget_tokens=self._turn_tokens_max,
            start=self._state.start,
            staying=(*self._staying(), *self._state.pinned),
        )
        return self._list(read, found.pinned, found.start)

    def _changes(self, read: Sequence[_Read], tokens: int) -> list[Any]:
        """The message at the very end, where there is something to say and no call waits for its results."""
        if _is_waiting(read):
            return []
        policy, records = self._policy, self._records
        lines: list[str] = []
        try:
            facts = {fact.id: fact.line for fact in self._ledger._established()[1]}
            lines = [
                *fact_changes(self._told_facts, facts),
                *card_changes(self._told_card, self._carding.card_seen()),
            ]
        except EvidenceArchiveError as error:
            records.trouble(error)
        remind = (
            records.with_tools and tokens >= policy.reminder_tokens and self._new_chars() >= policy.reminder_chars
        )
        text = changes(
            lines,
            tokens=tokens,
            remind=remind,
            count=records.counter.count,
            budget_tokens=int(policy.window_tokens_max * policy.changes_share) - MESSAGE_TOKENS,
        )
        if remind and text:
            self._reminded = records.timeline.last_number
        return [records.dialect.said(text)] if text else []

    def _new_chars(self) -> int:
        """Characters of results that can be archived and came since the last reminder."""
        records, chars = self._records, 0
        for place in records.timeline.places:
            if place.number is None or place.number <= self._reminded or place.form == NOTE:
                continue
            row = records.rows[place.number]
            if row.state != "live" or row.own is not None or not row.labelled:
                continue
            if records.protection(row, records.facts(row, place, records.original(place))) is None:
                chars += row.size_chars
        return chars

    # --- where it stands -------------------------------------------------------------------------------------------

    def _settle(self, rendered: Sequence[Any], outage: bool) -> None:
        """The state of this very list: as this process left it, as any process did, or a new one for a new list."""
        start = self._state.start
        same = self._prefix is not None and len(rendered) >= start and self._is_prefix(rendered[:start])
        posted = counts_of(self._records.row).get(_BOOK, 0)
        # Every list begins with nothing: where nothing was cut, an older commit may have been to this very list.
        # Where others have made one since, it may be to this very list, too, and has its spans and points.
        if same and (outage or (posted == self._posted and (start or not posted))):
            return
        if outage:
            if start > len(rendered) or self._print(rendered[:start]) != self._fingerprint:
                self._begin_anew()
            return
        self._load(rendered)
        self._prefix = list(rendered[: self._state.start])

    def _begin_anew(self) -> None:
        """Nothing was cut from this list yet; what left from others is told of all the same."""
        state = self._state
        self._state = _State(left=state.left, spans=state.spans, summary=state.summary)
        self._fingerprint = self._print([])

    def _is_prefix(self, messages: Sequence[Any]) -> bool:
        prefix, first = self._prefix or [], self._first(messages)
        return len(prefix) == len(messages) and (
            all(map(is_, prefix[first:], messages[first:])) or self._print(messages) == self._fingerprint
        )

    def _first(self, messages: Sequence[Any]) -> int:
        """How many instructions a list begins with: they are sent as they are, and may be others at each request."""
        role = self._records.dialect.role
        return next((at for at, message in enumerate(messages) if role(message) != "system"), len(messages))

    def _print(self, messages: Sequence[Any]) -> str:
        """By what a list is known again in another process, its instructions aside.

        Results count by their numbers, not by their form.
        """
        first = self._first(messages)
        texts: list[Any] = [None] * first
        for index, message in enumerate(messages[first:], first):
            places = self._records.timeline.by_index.get(index)
            if places:
                texts.append([place.number for place in places])
            else:
                texts.append(list(self._records.dialect.message_texts(message)))
        return sha256(json.dumps(texts).encode("ascii")).hexdigest()

    def _load(self, rendered: Sequence[Any]) -> None:
        """What the newest commit to this list left, of whichever process; all spans are told of in any case."""
        contents = [posting.content for posting in self._books.seen(_BOOK)]
        self._posted = len(contents)
        self._begin_anew()
        self._told_card, self._told_facts = Card(), frozenset()
        if not contents:
            return
        self._quality = [_Quality(**content["quality"]) for content in contents]
        in_index = {*contents[-1]["index"]}
        spans = [Left(**content["left"]) for content in contents]
        self._state = _State(
            left=tuple(one for one in spans if one.result_id in in_index),
            spans=len(spans),
            summary=Summary(**contents[-1]["summary"]),
        )
        for content in reversed(contents):
            start = content["start"]
            if start > len(rendered) or self._print(rendered[:start]) != content["print"]:
                continue
            self._state.start, self._state.turns = start, content["turns"]
            self._state.pinned = tuple(content["pinned"])
            # The policy may have given it more room than it has now.
            self._state.carried = shortened(
                content["carried"], count=self._records.counter.count, budget_tokens=self._carried_tokens_max
            )
            self._state.gone = frozenset(at for first, last in content["gone"] for at in range(first, last + 1))
            self._fingerprint = content["print"]
            self._told_card = self._carding.card_at(content["card_version"])
            self._told_facts = frozenset(fact.id for fact in self._ledger._established(content["entries"])[1])
            return

    # --- commits ---------------------------------------------------------------------------------------------------

    def quality(self) -> SummaryQuality:
        """How good the summaries are that this object knows of."""
        known = self._quality
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

    def _is_due(self, read: Sequence[_Read], is_cache_cold: bool) -> bool:
        """Whether the list does not fit, or has grown so far that a change would pay."""
        if not self._fits(read):
            return True
        if is_cache_cold and self._tokens(read) > self._policy.low * self._policy.window_tokens_max:
            marks = self._due_marks(read)
            if marks and self._rewrite(read, marks).cold.pays(self._prices, self._policy.horizon_requests):
                return True
        if self._tokens(read) < self._policy.high * self._policy.window_tokens_max:
            return False
        if self._records.timeline.turns - self._state.turns < self._policy.cooldown_turns:
            return False
        marks = self._due_marks(read)
        return bool(marks) and self._rewrite(read, marks).pays(self._prices, self._policy.horizon_requests)

    def _due_marks(self, read: Sequence[_Read]) -> Sequence[Mark]:
        """What a commit would archive now."""
        excess = self._tokens(read) - int(self._policy.low * self._policy.window_tokens_max)
        return self._curator.chosen(self._curator.marks(self._policy.keep_turns, self._state.start), excess)

    def _rewrite(self, read: Sequence[_Read], marks: Sequence[Mark]) -> Rewrite:
        first = min(place.index for place, _, _ in marks)
        removed = sum(saved for _, _, saved in marks)
        return Rewrite(removed, sum(one.tokens for one in read[first:]) - removed)

    def _committed(self, read: list[_Read], render: Callable[[], list[Any]], is_cache_cold: bool) -> list[_Read]:
        """The list after results were archived and turns left, as far as that was needed."""
        policy, is_forced = self._policy, not self._fits(read)
        self._curator.begin()
        before, before_tokens = list(self._list(read, self._state.pinned, self._state.start)), self._tokens(read)
        archived, spans, told = self._records.row.batches, self._state.spans, self._state.carried
        for keep_turns in (policy.keep_turns, 0):
            excess = self._tokens(read) - int(policy.low * policy.window_tokens_max)
            if excess <= 0 or (keep_turns == 0 and self._fits(read)):
                break  # results of the newest turns go only where the list would not fit
            if self._curator.archive(
                self._curator.chosen(self._curator.marks(keep_turns, self._state.start), excess)
            ):
                read = self._read(render())
        read = self._leave(read, render)
        state, tokens = self._state, self._tokens(read)
        after = self._list(read, state.pinned, state.start)
        changed = (
            at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old is not new and old != new
        )
        same = {id(message) for message in after[: next(changed, len(after))]}
        ahead = sum(one.tokens for one in read if id(one.message) in same)
        ahead += self._carried_tokens() if state.carried == told and ahead else 0
        rewrite = Rewrite(before_tokens - tokens, tokens - ahead)
        rewrite = rewrite.cold if is_cache_cold else rewrite
        self._records.log.info(
            "evidence_archive.context_compressed",
            forced=is_forced,
            batches=self._records.row.batches - archived,
            spans=[one.result_id for one in state.left[len(state.left) - (state.spans - spans) :]],
            removed_tokens=rewrite.removed_tokens,
            read_again_tokens=rewrite.behind_tokens,
            cost=round(rewrite.cost(self._prices), 6),
            saving=round(rewrite.saving(self._prices, policy.horizon_requests), 6),
            carried_tokens=self._carried_tokens(),
        )
        return read

    def _leave(self, read: list[_Read], render: Callable[[], list[Any]]) -> list[_Read]:
        """The list after turns that do not fit have left: archived, summarised, and told of."""
        budget = self._turn_tokens_max
        found = kept(
            [one.role for one in read],
            [one.reading for one in read],
            [one.tokens for one in read],
            budget_tokens=budget,
            target_tokens=int(budget * (1 - FREED_SHARE)),
            start=self._state.start,
            staying=self._staying(),
        )
        system = _instructions(read)
        outside = set(range(system, found.start)) - set(found.pinned) - self._state.gone
        state = _State(
            start=found.start,
            pinned=found.pinned,
            gone=self._state.gone,
            carried=self._state.carried,
            left=self._state.left,
            spans=self._state.spans,
            summary=self._state.summary,
            turns=self._records.timeline.turns,
        )
        self._state = state
        spans = [(indexes, self._told(read, indexes)) for indexes in self._in_spans(sorted(outside))]
        have_gone = self._curator.let_go(outside)
        read = self._read(render()) if outside else read
        self._prefix = [one.message for one in read[: found.start]]
        self._fingerprint = self._print(self._prefix)
        for indexes, told in spans:
            if have_gone and not self._curator.is_refused:
                self._keep(read, indexes, told)
        return read

    def _in_spans(self, outside: Sequence[int]) -> Iterator[list[int]]:
        """Messages that leave, as many together as an original may hold: of pictures tokens say little."""
        size_max, dialect = self._records.vault.original_bytes_max, self._records.dialect
        indexes: list[int] = []
        size = 0
        for at in outside:
            size_of_one = len(dialect.plain(self._records.timeline.messages[at]).encode("utf-8", "surrogatepass")) + 1
            if indexes and size + size_of_one > size_max:
                yield indexes
                indexes, size = [], 0
            indexes.append(at)
            size += size_of_one
        if indexes:
            yield indexes

    def _line(self, at: int, message: Any) -> str:
        """A message as a span holds it: results that have an original are named, and so is what a search found.

        Whatever else stands in a span would outlive the original when that is shredded.
        """
        records, contents = self._records, {}
        for place in records.timeline.by_index.get(at, ()):
            if place.number is None:
                continue
            content = place.content if place.form == NOTE else records.original(place)
            if records.rows[place.number].state != "live":
                words = f"[{format_result_id(place.number)}: a result that is archived under this id]"
                contents[place.slot] = records.dialect.noted(content, words)
            elif place.call is not None and place.call.name == SEARCH_TOOL:
                contents[place.slot] = records.dialect.noted(content, "[left out: what a search found]")
        return records.dialect.plain(records.dialect.replace(message, contents) if contents else message)

    def _keep(self, read: Sequence[_Read], indexes: Sequence[int], told: Span) -> None:
        """Archive messages that left; where that fails they are tried again at the next commit."""
        state, records = self._state, self._records
        lines = [self._line(at, read[at].message) for at in indexes]
        sensitivity = frozenset(
            name
            for at in indexes
            for place in records.timeline.by_index.get(at, ())
            if place.number is not None
            for name in records.rows[place.number].sensitivity.split("\n")
            if name
        )
        line = _tools_line(told.tools)
        try:
            card = self._carding.card_seen()
            entries, facts = self._ledger._established()
            words = line[: records.limits.note_chars_max]
            kept_as = self._archiving.keep(Kept("span", "\n".join(lines), words, sensitivity)).targets[0].result_id
            decisions = [item for item in card.items.values() if item.kind == "decision"]
            summary, refusals = summarised(
                told,
                [] if state.summary is None else [state.summary],
                self._summarizer,
                count=records.counter.count,
                tokens_max=SUMMARY_TOKENS_MAX,
                keys=[item.text for item in decisions if item.state not in ("draft", "dropped")],
                withdrawn=[item.text for item in decisions if item.state == "dropped"],
            )
            quality = self._checked(told, summary, refusals)
            text = summary.text(with_unresolved=False)
            new = Left(kept_as, indexes[0] + 1, indexes[-1] + 1, line, text, tuple(told.references))
            left = indexed((*state.left, new), _referred(card, facts))
            carried_text = carried(
                [fact.line for fact in facts],
                card,
                left,
                points=(*summary.carried, *summary.unresolved),
                retired=state.spans + 1 - len(left),
                count=records.counter.count,
                budget_tokens=self._carried_tokens_max,
                with_tools=records.with_tools,
            )
            gone = state.gone | set(indexes)
            content = {
                "start": state.start,
                "pinned": list(state.pinned),
                "gone": _runs(sorted(gone)),
                "carried": carried_text,
                "left": _plain(new),
                "index": sorted(one.result_id for one in left),
                "summary": _plain(summary),
                "quality": _plain(quality),
                "turns": state.turns,
                "print": self._fingerprint,
                "card_version": card.version,
                "entries": entries,
            }
            # Where others posted while a summary was written, it was made without theirs: the turns are tried again.
            new_postings, _ = self._books.post(
                _BOOK, lambda known: ([content] if len(known) == self._posted else [], None)
            )
            if not new_postings:
                self._prefix = None  # what others put down is read at the next view
                return
        except EvidenceArchiveError as error:
            records.trouble(error)
            return
        in_index = {one.result_id for one in left}
        retired = [one.result_id for one in state.left if one.result_id not in in_index]
        if retired:
            records.log.info("evidence_archive.summaries_retired", spans=retired)
        state.carried, state.left, state.spans = carried_text, tuple(left), state.spans + 1
        state.summary, state.gone = summary, gone
        self._quality.append(quality)
        self._posted += 1
        self._told_card, self._told_facts = card, frozenset(fact.id for fact in facts)

    def _checked(self, told: Span, summary: Summary, refusals: Sequence[str]) -> _Quality:
        """What can be said of a summary: by counting, and of one in so many by the judge."""
        records, loss = self._records, check_loss(told, summary)
        score = None
        if self._judge is not None and len(self._quality) % self._policy.judge_every == 0:
            try:
                score = float(self._judge.judge(told, summary))
                if not 0 <= score <= 1:
                    raise ValueError
            except Exception as error:  # whatever a judge is, it keeps no turn from leaving
                score = None
                records.log.warning("evidence_archive.judge_failed", error=type(error).__name__)
        quality = _Quality(summary.made_by == "host", len(refusals), loss.gone, loss.said, score)
        records.log.info(
            "evidence_archive.summary_checked",
            made_by=summary.made_by,
            refused=len(refusals),
            numbers_lost=loss.numbers[0],
            identifiers_lost=loss.identifiers[0],
            unresolved_lost=loss.unresolved[0],
            why_refused=refusals,
            loss_rate=round(loss.rate, 4),
            score=score,
        )
        return quality

    def _told(self, read: Sequence[_Read], indexes: Sequence[int]) -> Span:
        """Turns that leave, as a summariser reads them."""
        dialect = self._records.dialect
        tools: dict[str, int] = {}
        references: dict[str, None] = {}
        said: list[str] = []
        asked: list[str] = []
        for at in indexes:
            one = read[at]
            for call in one.reading.calls:
                name = clean_name(call.name)
                tools[name] = tools.get(name, 0) + 1
            for place in self._records.timeline.by_index.get(at, ()):
                if place.number is not None:
                    references.setdefault(format_result_id(place.number))
            text = "\n".join(dialect.message_texts(one.message))
            if one.role == "assistant" and not one.reading.calls:
                said.append(text)
            elif one.role == "user":
                asked.append(text)
        whole = "\n".join(dialect.plain(self._original(at, read[at].message)) for at in indexes)
        return Span(
            whole,
            indexes[0] + 1,
            indexes[-1] + 1,
            list(tools.items()),
            said,
            asked,
            list(references),
            sum(read[at].tokens for at in indexes),
        )

    def _original(self, index: int, shown: Any) -> Any:
        """A message as the application has it, with no note in it; what was shredded is not told any more."""
        records = self._records
        for place in records.timeline.by_index.get(index, ()):
            if place.number is not None and records.facts_row(records.rows[place.number]).state == SHREDDED:
                return shown
        return records.timeline.messages[index]


def _is_waiting(read: Sequence[_Read]) -> bool:
    """Whether the newest calls of the model are not all answered."""
    calls = answered = 0
    for one in reversed(read):
        answered += len(one.reading.results)
        if one.reading.from_model:
            calls = len(one.reading.calls)
            break
    return calls > answered


def _instructions(read: Sequence[_Read]) -> int:
    """How many messages at the beginning are the application's own instructions."""
    return next((at for at, one in enumerate(read) if one.role != "system"), len(read))


def _referred(card: Card, facts: Sequence[Fact]) -> set[str]:
    """The results that an open item of the card or a fact refers to."""
    numbers = {
        reference.number
        for item in card.items.values()
        if item.state not in ("done", "dropped")
        for reference in item.references
        if reference.number is not None
    }
    return {source.result_id for fact in facts for source in fact.sources} | set(map(format_result_id, numbers))


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as the first and last of each run."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _tools_line(tools: Sequence[tuple[str, int]]) -> str:
    if not tools:
        return "no calls"
    return ", ".join(f"{count} call{'s' * (count > 1)} of {name}" for name, count in tools[:8])


def _plain(row: Any) -> dict[str, Any]:
    """The fields of a record as JSON values."""
    return {
        name: list(value) if isinstance(value := getattr(row, name), tuple) else value
        for name in row.__dataclass_fields__
    }
