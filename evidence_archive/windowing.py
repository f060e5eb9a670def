"""The window of a session: what of its list goes to the model, within a budget, and what becomes of the rest.

A view is cut only at commits; between two commits what is sent only grows at its end. A commit is made when the list
reaches ``high`` of the budget and the change pays, or when the list does not fit: results that are finished with are
archived oldest first, with notes of the host, then turns leave as a whole, and the carried message tells of them.
Where the store is away turns leave all the same, since the application's list holds them: they are archived at the
next commit.
"""

from collections.abc import Callable, Sequence
from typing import Any

from evidence_archive.archiving import Archiving
from evidence_archive.books import Books
from evidence_archive.carding import Carding
from evidence_archive.curating import Curator, Mark
from evidence_archive.errors import EvidenceArchiveError
from evidence_archive.leaving import Leaving, Read
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.matching import NOTE, Place
from evidence_archive.model import Facts, SummaryQuality, WindowPolicy
from evidence_archive.records import Records
from evidence_archive.standing import Standing, State
from evidence_archive.window.changing import card_changes, changes, fact_changes
from evidence_archive.window.costs import Prices, Rewrite, cached_tokens, rewritten
from evidence_archive.window.fitting import Kept, kept
from evidence_archive.window.summaries import Judge, Summarizer

__all__ = ["MESSAGE_TOKENS", "Windowing"]

MESSAGE_TOKENS = 4
"""Tokens a message costs beyond its text."""

FREED_SHARE = 0.5
"""When turns have to leave, so many leave that this share of the budget for turns is free again."""


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
        self._carding = carding
        self._ledger = ledger
        self._policy = policy
        self._curator = Curator(records, archiving, policy)
        self._standing = Standing(records, books, carding, ledger, policy)
        self._leaving = Leaving(
            records,
            archiving,
            self._curator,
            self._standing,
            carding=carding,
            ledger=ledger,
            policy=policy,
            summarizer=summarizer,
            judge=judge,
        )
        self._prices = Prices(policy.price_input, policy.price_cached_input, policy.price_output)
        self._known: list[Read] = []
        self._met = records.row.next_number - 1
        """The newest result of the session before this object saw a list."""
        self._sent: list[tuple[Any, int]] = []
        """The last request, each message with its tokens."""

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
            self._standing.settle(rendered, outage=outage)
        except EvidenceArchiveError as error:
            self._records.trouble(error)
            outage = True
        if self._records.is_shredded:  # what was said of its turns went with them
            self._standing.forget()
        if outage:
            return self._cut(read)
        if self._is_due(read, is_cache_cold):
            read = self._committed(read, render, is_cache_cold)
        sent, tokens = self._sized(read), self._tokens(read)
        said = self._changes(read, tokens)
        self._tell_sent([] if is_cache_cold else self._sent, sent, left_out=len(read) - len(sent))
        self._sent = sent
        return [*(message for message, _ in sent), *said]

    def _tell_sent(
        self, before: Sequence[tuple[Any, int]], sent: Sequence[tuple[Any, int]], *, left_out: int
    ) -> None:
        """Say what is sent, and what of the last request a provider has to read anew because it changed."""
        self._records.log.info(
            "evidence_archive.context_sent",
            messages=len(sent),
            tokens=sum(size for _, size in sent),
            left_out=left_out,
            cached_tokens=cached_tokens(before, sent),
            rewrite_cost=round(rewritten(before, sent).cost(self._prices), 6),
        )

    def quality(self) -> SummaryQuality:
        """How good the summaries are that this object knows of."""
        return self._standing.quality()

    @property
    def _state(self) -> State:
        return self._standing.state

    # --- the list --------------------------------------------------------------------------------------------------

    def _read(self, rendered: Sequence[Any]) -> list[Read]:
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
            one = Read(message, dialect.role(message), dialect.read(message), texts, tokens)
            if at < len(known):
                known[at] = one
            else:
                known.append(one)
        del known[len(rendered) :]
        return known

    def _list(self, read: Sequence[Read], pinned: Sequence[int], start: int) -> list[Any]:
        system = _instructions(read)
        said = [self._records.dialect.said(self._state.carried)] if self._state.carried else []
        shown = (*read[:system], *(read[at] for at in pinned), *read[max(start, system) :])
        messages = [one.message for one in shown]
        return [*messages[:system], *said, *messages[system:]]

    def _sized(self, read: Sequence[Read]) -> list[tuple[Any, int]]:
        """All that would be sent as things are, each message with its tokens."""
        known, carried_tokens = {id(one.message): one.tokens for one in read}, self._carried_tokens()
        view = self._list(read, self._state.pinned, self._state.start)
        return [(message, known.get(id(message), carried_tokens)) for message in view]

    def _tokens(self, read: Sequence[Read]) -> int:
        """Of all that would be sent as things are."""
        state, system = self._state, _instructions(read)
        first = max(state.start, system)
        turns = sum(one.tokens for one in read[first:]) + sum(read[at].tokens for at in state.pinned)
        return sum(one.tokens for one in read[:system]) + self._carried_tokens() + turns

    def _carried_tokens(self) -> int:
        text = self._state.carried
        return MESSAGE_TOKENS + self._records.counter.count(text) if text else 0

    @property
    def _turn_tokens_max(self) -> int:
        """For instructions and turns, whatever is carried and said of changes."""
        reserved = self._standing.carried_tokens_max + MESSAGE_TOKENS
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

    def _fits(self, read: Sequence[Read]) -> bool:
        changes = int(self._policy.window_tokens_max * self._policy.changes_share)
        return self._tokens(read) + changes <= self._policy.window_tokens_max

    def _cut(self, read: Sequence[Read]) -> list[Any]:
        """The list cut to the budget without a commit."""
        found = self._kept(read, staying=(*self._staying(), *self._state.pinned))
        return self._list(read, found.pinned, found.start)

    def _kept(self, read: Sequence[Read], **named: Any) -> Kept:
        """What of the list stays, from the start that the state has."""
        return kept(
            [one.role for one in read],
            [one.reading for one in read],
            [one.tokens for one in read],
            budget_tokens=self._turn_tokens_max,
            start=self._state.start,
            **named,
        )

    def _changes(self, read: Sequence[Read], tokens: int) -> list[Any]:
        """The message at the very end, where there is something to say and no call waits for its results."""
        if _is_waiting(read):
            return []
        policy, records = self._policy, self._records
        lines: list[str] = []
        try:
            facts = {fact.id: fact.line for fact in self._ledger._established()[1]}
            lines = [
                *fact_changes(self._standing.told_facts, facts),
                *card_changes(self._standing.told_card, self._carding.card_seen()),
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
            self._standing.reminded = records.timeline.last_number
        return [records.dialect.said(text)] if text else []

    def _new_chars(self) -> int:
        """Characters of results that can be archived and came since the last reminder.

        Of results that were there before this object, what would have been reason enough for a reminder was one.
        """
        records, standing, chars = self._records, self._standing, 0
        for place in records.timeline.places:
            if place.number is None or place.number <= standing.reminded or place.form == NOTE:
                continue
            row = records.rows[place.number]
            if row.state != "live" or row.own is not None or not row.labelled:
                continue
            if records.protection(row, records.facts(row, place, records.original(place))) is None:
                chars += row.size_chars
            if chars >= self._policy.reminder_chars and place.number <= self._met:
                standing.reminded, chars = place.number, 0
        return chars

    # --- commits ---------------------------------------------------------------------------------------------------

    def _is_due(self, read: Sequence[Read], is_cache_cold: bool) -> bool:
        """Whether the list needs another cut, or has grown so far that a change would pay."""
        if self._is_forced(read):
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

    def _is_forced(self, read: Sequence[Read]) -> bool:
        return not self._fits(read) or self._is_behind(read)

    def _is_behind(self, read: Sequence[Read]) -> bool:
        """Whether the newest turn, or what the user said last, is not shown: messages were taken back since."""
        state = self._state
        user = next((at for at in range(len(read) - 1, -1, -1) if read[at].role == "user"), len(read))
        return state.start > 0 and (state.start == len(read) or (user < state.start and user not in state.pinned))

    def _due_marks(self, read: Sequence[Read]) -> Sequence[Mark]:
        """What a commit would archive now."""
        excess = self._tokens(read) - int(self._policy.low * self._policy.window_tokens_max)
        return self._curator.chosen(self._curator.marks(self._policy.keep_turns, self._state.start), excess)

    def _rewrite(self, read: Sequence[Read], marks: Sequence[Mark]) -> Rewrite:
        first = min(place.index for place, _, _ in marks)
        removed = sum(saved for _, _, saved in marks)
        return Rewrite(removed, sum(one.tokens for one in read[first:]) - removed)

    def _committed(self, read: list[Read], render: Callable[[], list[Any]], is_cache_cold: bool) -> list[Read]:
        """The list after results were archived and turns left, as far as that was needed."""
        policy, is_forced = self._policy, self._is_forced(read)
        self._curator.begin()
        before = self._sized(read)
        archived, spans = self._records.row.batches, self._state.spans
        for keep_turns in (policy.keep_turns, 0):
            excess = self._tokens(read) - int(policy.low * policy.window_tokens_max)
            if excess <= 0 or (keep_turns == 0 and self._fits(read)):
                break  # results of the newest turns go only where the list would not fit
            if self._curator.archive(
                self._curator.chosen(self._curator.marks(keep_turns, self._state.start), excess)
            ):
                read = self._read(render())
        read = self._leave(read, render)
        state, rewrite = self._state, rewritten(before, self._sized(read))
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

    def _leave(self, read: list[Read], render: Callable[[], list[Any]]) -> list[Read]:
        """The list after turns that do not fit have left."""
        target = int(self._turn_tokens_max * (1 - FREED_SHARE))
        found = self._kept(read, target_tokens=target, staying=self._staying())
        outside = set(range(found.system, found.start)) - set(found.pinned) - self._state.gone
        self._standing.move(found.start, found.pinned)
        return self._leaving.let_go(read, outside, lambda: self._read(render()))


def _is_waiting(read: Sequence[Read]) -> bool:
    """Whether the newest calls of the model are not all answered."""
    calls = answered = 0
    for one in reversed(read):
        answered += len(one.reading.results)
        if one.reading.from_model:
            calls = len(one.reading.calls)
            break
    return calls > answered


def _instructions(read: Sequence[Read]) -> int:
    """How many messages at the beginning are the application's own instructions."""
    return next((at for at, one in enumerate(read) if one.role != "system"), len(read))
