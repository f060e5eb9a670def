"""A session: the verbs a loop uses.

``view`` registers what it has not met, then renders; rendering depends on the messages and committed state alone.
What an archive call did is visible in the next view because the next view reads it from the store, and only then.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from evidence_archive import notes
from evidence_archive.answering import Answering
from evidence_archive.archiving import Archiving
from evidence_archive.batch import pairs
from evidence_archive.books import Books
from evidence_archive.carding import Carding
from evidence_archive.errors import (
    BatchRejectedError,
    FormatError,
    IntegrityError,
    KeyringError,
    MessageShapeError,
    NotAvailableError,
    StoreError,
)
from evidence_archive.excerpt import Selector, parse_selector
from evidence_archive.labelling import LabelFacts, Labelled
from evidence_archive.ledger.claiming import Claiming
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.ledger.observing import Observing
from evidence_archive.ledger.rules import Rule
from evidence_archive.matching import NOTE, ORIGINAL, Place
from evidence_archive.model import (
    Content,
    Receipt,
    Restored,
    ResultInfo,
    SessionStats,
    ToolCall,
    canonical_id,
    checked_name,
    encode_exact,
    format_result_id,
    format_time,
    parse_result_id,
    text_of,
)
from evidence_archive.ports import ResultRow
from evidence_archive.records import Records
from evidence_archive.restoring import Restoring, part_of
from evidence_archive.searching import Searching, SearchResult
from evidence_archive.tracing import TraceEntry, Tracing
from evidence_archive.vault import SHREDDED
from evidence_archive.window.card import Card
from evidence_archive.window.summaries import Judge, Summarizer
from evidence_archive.windowing import MESSAGE_TOKENS, Windowing

__all__ = ["Session"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class Session:
    """One conversation of one owner; made by ``archive.session(...)``. Thread-safe.

    Args:
        records: what is known of it, with its keys and store.
        summarizer: writes summaries of turns that leave the window.
        judge: says how good some of them are.
        rules: look at results once a view has registered them, and make entries in the ledger.
    """

    def __init__(
        self,
        records: Records,
        summarizer: Summarizer | None = None,
        judge: Judge | None = None,
        rules: Iterable[Rule] = (),
    ) -> None:
        self.id = records.id
        self.principal = records.principal
        self._lock = records.lock
        self._records = records
        self._archiving = Archiving(records)
        books = Books(records)
        self._carding = Carding(records, books)
        self._ledger = Ledger(records, self._archiving, books)
        self._observing = Observing(records, self._ledger, tuple(rules))
        self._searching = Searching(records)
        claiming = Claiming(self._ledger)
        self._answering = Answering(records, self._archiving, self._carding, self._searching, claiming)
        window = records.vault.policy.window
        self._windowing = (
            None
            if window is None
            else Windowing(
                records,
                self._archiving,
                books,
                self._carding,
                self._ledger,
                policy=window,
                summarizer=summarizer,
                judge=judge,
            )
        )
        self._tracing = Tracing(records)
        self._is_traced = window is not None and window.trace == "sealed"
        self._rendered: list[Any] = []
        self._shown: list[Any] = []
        self._reported: set[tuple[bytes, bytes | None]] = set()
        self._requests = 0
        self._outage = False
        self._window: list[tuple[Any, tuple[str, ...], int]] = []

    def __repr__(self) -> str:
        return f"Session({self.id!r}, org={self._records.vault.org!r})"

    @property
    def instructions(self) -> str:
        """A short text for the application's system message, with what a window's tools are for where there are any.

        Equal for all sessions of a policy that offer the same tools, so that prefixes stay cached.
        """
        has_window = self._windowing is not None and self._records.with_tools
        return notes.INSTRUCTIONS + notes.WINDOW_INSTRUCTIONS * has_window

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The specs of our tools in the session's dialect; empty for a session opened with ``tools=False``."""
        if not self._records.with_tools:
            return []
        offered = (*notes.TOOLS, *(notes.WINDOW_TOOL_SPECS if self._windowing is not None else ()))
        return [self._records.dialect.tool(tool.name, tool.description, tool.parameters) for tool in offered]

    def view(self, messages: Iterable[Any], *, is_cache_cold: bool = False) -> list[Any]:
        """The list that goes to the model: labels on live results, notes in the place of archived ones.

        A new list; the application's messages are never changed, and messages that did not change are shared with
        it. Equal messages and state give byte-identical output, and a view handed in again comes back as it is.
        Costs the new messages plus a comparison; reads one indexed row; writes one commit when there are new results,
        and one more where the policy says ``trace = "sealed"``.
        If the store cannot be read within ``view_wait_ms_max``, every original that the messages still hold is shown.

        Args:
            messages: the application's whole list, dicts and SDK objects mixed; in another form of it (a stored
                view) results are recognised by their records.
            is_cache_cold: the host knows that the provider's cache has lapsed (it was not used for longer than it is
                kept): a window may then be changed at no cost for reading anew. Without a window it says nothing.

        Raises:
            MessageShapeError: it is not a list of messages of the dialect.
            WindowTooSmallError: the policy has a window, and what has to be in it does not fit; nothing was cut.
            MisuseError: the archive was closed, or opened in another process; or a summariser, judge or rule asked
                for a view of the session whose view waits for it.
        """
        self._records.vault.usable()
        with self._lock, self._records.viewing():
            self._records.vault.usable()
            return self._viewed(messages, is_cache_cold)

    def _viewed(self, messages: Iterable[Any], is_cache_cold: bool) -> list[Any]:
        self._requests += 1
        self._answering.restores_this_turn = 0
        self._records.timeline.advance(messages)
        try:
            self._records.refresh(self._records.wait_ms)
            unknown = self._records.match()
        except (StoreError, IntegrityError, KeyringError) as error:
            self._records.trouble(error)
            self._outage = True
            self._records.match()  # what is known keeps its label wherever the list holds it now
            return self._fitted(self._outage_view(), outage=True)
        self._outage = False
        try:
            self._records.register(unknown)
            self._records.failures = 0
        except (StoreError, KeyringError) as error:
            # What is archived was read, so its notes hold; only what is new has to do without a label.
            self._records.trouble(error)
            for place in self._records.timeline.bare():
                place.shown_bare = True
        except IntegrityError as error:
            self._records.trouble(error)
            self._outage = True
            return self._fitted(self._outage_view(), outage=True)
        self._report()
        self._observing.look()
        return self._fitted(self._rendered_view(), is_cache_cold=is_cache_cold)

    def _fitted(self, view: list[Any], *, outage: bool = False, is_cache_cold: bool = False) -> list[Any]:
        """What of a view goes to the model: all of it, unless the policy has a window."""
        if self._windowing is not None:
            view = self._windowing.shown(view, self._rendered_view, outage=outage, is_cache_cold=is_cache_cold)
        self._shown = view
        if self._is_traced and outage:
            self._tracing.missed()
        elif self._is_traced:
            self._tracing.sent(self._shown, self._rendered, tokens=self._window_tokens())
        return self._shown[:]

    def _report(self) -> None:
        """Say once of each result that cannot take part."""
        for place in self._records.timeline.bare():
            seen = (place.call_id, place.tag(self._records.tag))
            if seen not in self._reported:
                self._reported.add(seen)
                why = "orphan" if place.call is None else "not_exact"
                self._records.log.warning("evidence_archive.passed_through", why=why, index=place.index)

    def _rendered_view(self) -> list[Any]:
        timeline, rendered = self._records.timeline, self._rendered
        messages = timeline.messages
        del rendered[len(messages) :]
        rendered.extend(messages[len(rendered) :])
        for index in timeline.changed:
            places = timeline.by_index.get(index)
            rendered[index] = self._rendered_message(messages[index], places) if places else messages[index]
        timeline.changed.clear()
        return rendered[:]

    def _rendered_message(self, message: Any, places: Sequence[Place], *, outage: bool = False) -> Any:
        contents: dict[int, Content] = {}
        for place in places:
            if place.number is None:
                continue
            row = self._records.rows[place.number]
            # What was shredded is not shown again, not even where everything else is.
            shredded = row.state == SHREDDED
            archived = shredded or (row.state == "archived" and not outage and place.number in self._records.notes)
            if archived and (shredded or place.form != NOTE):
                contents[place.slot] = self._records.dialect.noted(
                    self._records.original(place), self._records.notes[place.number]
                )
            elif not archived and place.form == ORIGINAL and row.labelled:
                contents[place.slot] = self._records.dialect.labelled(
                    place.content, self._records.label(place.number)
                )
        return self._records.dialect.replace(message, contents) if contents else message

    def _outage_view(self) -> list[Any]:
        """Every original the messages hold; known labels stay, what has none yet stays without for good."""
        view = list(self._records.timeline.messages)
        for index, places in self._records.timeline.by_index.items():
            for place in places:
                place.shown_bare = place.shown_bare or place.number is None
            view[index] = self._rendered_message(view[index], places, outage=True)
        return view

    def archive(self, batch: Iterable[tuple[str, str]], *, idempotency_key: str | None = None) -> Receipt:
        """Set results aside: all of the batch, or nothing.

        Args:
            batch: pairs of a result ID and the note that is to stand in its place; at most ``batch_items_max``.
            idempotency_key: 1 to 256 characters; the same batch under it returns its receipt again.

        Raises:
            BatchRejectedError: NOTHING was archived; ``targets`` has every target's status, ``reason`` the reason.
            FormatError: a pair is malformed, or the key was used with another batch.
            MisuseError: the archive was closed, or opened in another process.
            KeyringError: the keys are not at hand.
        """
        key = None if idempotency_key is None else checked_name(idempotency_key, "idempotency key")
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            try:
                items = pairs(batch, items_max=self._records.limits.batch_items_max)
                return self._archiving.archive(items, None, key)[0]
            except BatchRejectedError as error:
                self._archiving.rejected(error, None)
                raise

    def restore(
        self,
        result_id: str,
        *,
        lines: str | None = None,
        pattern: str | None = None,
        context_lines: int | None = None,
        pointer: str | None = None,
        byte_range: str | None = None,
        reason: str | None = None,
    ) -> Restored:
        """The exact content of a result of this session, or an exact part of it, for a program; no cap on its size.

        The grant is audited before this returns. A result that is not archived comes from the messages of the newest
        view, and is no restore from the archive: it leaves no entry.

        Args:
            result_id: such as ``r7``.
            lines, pattern, context_lines, pointer: at most one selector, as in ``restore_evidence``.
            byte_range: instead of them, exact bytes such as ``"0-4095"``, from 0, both ends included; the content is
                then ``bytes``.
            reason: kept sealed with the audit entry; at most 2,000 characters.

        Raises:
            NotAvailableError: unknown, in no view, or forbidden.
            FormatError: a selector is malformed, or names a part that is not there.
            SealBrokenError: stored bytes were changed; archiving in the session is suspended.
            KeyringError, StoreError: keys or store are not at hand; nothing was released.
            MisuseError: the archive was closed, or opened in another process.
        """
        selector = parse_selector(lines, pattern, context_lines, pointer, byte_range)
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            self._records.refresh(self._records.wait_ms)
            live = self._in_view(result_id, selector)
            if live is not None:
                return live
            restoring = Restoring(self._records.vault)
            try:
                found = restoring.find(self.principal, self.id, result_id)
                chosen = restoring.selected(found, selector)
                opened = restoring.opened(self.principal, found, chosen, self._records.dialect)
            except IntegrityError:
                self._records.suspend("integrity")
                raise
            restoring.granted(self.principal, found, part=selector.kind, reason=reason)
            return opened.restored()

    def _in_view(self, result_id: str, selector: Selector) -> Restored | None:
        """A live result from the messages, or a part of it, as it would be restored."""
        try:
            number = parse_result_id(result_id)
        except FormatError:
            return None
        row, place = self._records.rows.get(number), self._records.timeline.by_number.get(number)
        if row is None or place is None or row.state != "live":
            return None
        content = self._records.original(place)
        encoded = encode_exact(content)
        if encoded is None or self._records.tag(content) != row.content_tag:
            return None
        matches_max = self._records.limits.pattern_matches_max
        cut, part = part_of(content, selector, self._records.dialect, matches_max)
        provenance = self._records.vault.provenance(self.id, row)
        return Restored(cut, provenance, encoded.digest.hex(), encoded.size_bytes, part)

    def answer(self, call: Any) -> Any | None:
        """The tool message that answers a call of one of our tools; ``None`` for a call that is not ours.

        Every failure becomes a message that says what was NOT done, so that no call stays unanswered.

        Args:
            call: a tool call as the provider sent it, dict or SDK object.

        Raises:
            MisuseError: the archive was closed, or opened in another process.
        """
        try:
            parsed = self._records.dialect.parse_call(call)
        except MessageShapeError:
            return None
        if not self._records.with_tools or parsed.name not in self._records.our_tools:
            return None
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            answering = self._answering
            answers: dict[str, Callable[[ToolCall], Content]] = {
                notes.ARCHIVE_TOOL: answering.archive,
                notes.RESTORE_TOOL: answering.restore,
                notes.SEARCH_TOOL: answering.search,
                notes.CARD_TOOL: answering.card,
                notes.CLAIM_TOOL: answering.claim,
                notes.FACTS_TOOL: answering.facts,
            }
            return self._records.dialect.answer(parsed.id, answers[parsed.name](parsed))

    def label(
        self,
        target: Any,
        *,
        sensitivity: str | Iterable[str] = (),
        kind: str | None = None,
        observed_at: datetime | None = None,
    ) -> str:
        """Attach facts to a result; committed when this returns. Returns its result ID.

        Before a result's first view anything may be attached; afterwards only what makes the policy's decision
        stricter or leaves it as it is. A label never goes away.

        Args:
            target: a tool message, or a result ID that was issued.
            sensitivity: one or several names the policy's rules refer to; added to those it has.
            kind: what it is, such as ``prescription``; set once.
            observed_at: when the tool saw it, with a time zone; the note then says ``observed``.

        Raises:
            MessageShapeError: the message does not hold exactly one tool result of the dialect.
            NotAvailableError: no such result was issued in this session.
            PolicyError: the label would make the decision on a viewed result less strict.
            FormatError: a name or the time is malformed.
            StoreError, IntegrityError: the store cannot be written, or was changed; nothing was attached.
            MisuseError: the archive was closed, or opened in another process.
        """
        facts = _label_facts(sensitivity, kind, observed_at)
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            self._records.refresh(self._records.wait_ms)
            if isinstance(target, str):
                number = parse_result_id(target)
                if number not in self._records.rows:
                    raise NotAvailableError
                return self._records.attach(lambda: Labelled([number], True), facts)
            results = self._records.dialect.read(target).results
            if len(results) != 1:
                raise MessageShapeError("Label a message that holds exactly one tool result, or name a result ID.")
            found = results[0]
            encoded = encode_exact(found.content)
            if encoded is None:
                raise MessageShapeError(
                    "This result would not come back equal in type and value; it is never archived."
                )
            timeline = self._records.timeline
            met = [
                place.number
                for place in timeline.places
                if timeline.messages[place.index] is target and place.number is not None
            ]
            if met:
                return self._records.attach(lambda: Labelled(met, True), facts)
            call_id = canonical_id(found.call_id)
            return self._records.attach(lambda: self._records.meant(call_id, found.content, encoded), facts)

    @property
    def ledger(self) -> Ledger:
        """The session's books of facts: artifacts, claims, facts that the host verified, periods."""
        return self._ledger

    def search(self, query: str, *, before: str | None = None) -> SearchResult:
        """Lines of this session's archived originals that hold the query, or all of its words, whatever their case.

        Originals are opened in memory under the rules of a restore; what is found is in the log before this returns.

        Args:
            query: 1 to 500 characters in one line.
            before: look only at what has a lower number than this result ID; ``result.before`` goes on further back.

        Raises:
            FormatError: the query or the ID is malformed.
            SealBrokenError: stored bytes were changed; archiving in the session is suspended.
            KeyringError, StoreError: keys or store are not at hand; nothing was released.
            MisuseError: the archive was closed, or opened in another process.
        """
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            self._records.refresh(self._records.wait_ms)
            try:
                return self._searching.search(query, before)
            except IntegrityError:
                self._records.suspend("integrity")
                raise

    def trace(self) -> list[TraceEntry]:
        """Every request that was written down while the policy said ``trace = "sealed"``, and how many are missing.

        Raises:
            ShreddedError: the session was shredded.
            SealBrokenError: stored bytes were changed; archiving in the session is suspended.
            KeyringError, StoreError: keys or store are not at hand.
            MisuseError: the archive was closed, or opened in another process.
        """
        return self._read_trace(self._tracing.entries)

    def trace_request(self, request: int) -> list[dict[str, Any]]:
        """The messages that were sent at a request, as JSON says them; logged before this returns.

        Args:
            request: its number in the trace, from 1.

        Raises:
            FormatError: it was not written down.
            NotAvailableError: it shows a result that the session could not have back now.
            ShreddedError: the session, or an original of it, was shredded since.
            SealBrokenError: stored bytes were changed; archiving in the session is suspended.
            KeyringError, StoreError: keys or store are not at hand; nothing was released.
            MisuseError: the archive was closed, or opened in another process.
        """
        return self._read_trace(partial(self._tracing.messages, request))

    def _read_trace(self, read: Callable[[], T]) -> T:
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            self._records.refresh(self._records.wait_ms)
            try:
                return read()
            except IntegrityError:
                self._records.suspend("integrity")
                raise

    def card(self) -> Card:
        """The card of the task as it stands: goal, decisions, steps and blockers.

        Raises:
            StoreError, IntegrityError: the store cannot be read, or was changed.
            MisuseError: the archive was closed, or opened in another process.
        """
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            return self._carding.card()

    def update_card(self, changes: Sequence[Mapping[str, Any]]) -> Card:
        """Change the card: all of the changes, or none. Returns the card after them.

        Args:
            changes: 1 to 50 of ``{"goal": "..."}``, ``{"add": "decision" | "step" | "blocker", "text": "...",
                "reason": "...", "references": ["r12#L4"]}`` and ``{"id": "s1", "to": "confirmed", ...}``; made in
                this order.

        Raises:
            FormatError: one cannot be made; the message says which, and what can.
            ShreddedError, StoreError, IntegrityError: nothing was changed.
            MisuseError: the archive was closed, or opened in another process.
        """
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            return self._carding.change(changes)[0]

    def results(self) -> list[ResultInfo]:
        """Every result of this session, by number; receipts and refusals of ours are left out.

        Raises:
            StoreError, IntegrityError: the store cannot be read, or was changed.
            MisuseError: the archive was closed, or opened in another process.
        """
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            self._records.refresh(self._records.wait_ms)
            return [self._info(row) for row in self._told()]

    def _told(self) -> list[ResultRow]:
        """What there is to tell of: results that were met in a view, and restored copies."""
        return [row for _, row in sorted(self._records.rows.items()) if row.own in (None, "copy") and row.seen]

    def _info(self, row: ResultRow) -> ResultInfo:
        place = self._records.timeline.by_number.get(row.number)
        content = None if place is None or place.form == NOTE else self._records.original(place)
        facts = self._records.facts(row, place, content)
        protection = self._records.protection(row, facts) if row.state == "live" else None
        return ResultInfo(
            id=format_result_id(row.number),
            tool=text_of(row.tool_name),
            tokens=row.tokens,
            state=row.state,
            protected_by=None if protection is None else protection[0],
            restored_from=None if row.origin is None else format_result_id(row.origin),
            observed_at=format_time(row.observed_at_us),
        )

    def stats(self) -> SessionStats:
        """What a dashboard needs; of the newest state this object has seen, without asking the store.

        Raises:
            MisuseError: the archive was closed.
        """
        self._records.vault.usable()
        with self._lock:
            self._records.vault.usable()
            told = self._told()
            return SessionStats(
                requests=self._requests,
                window_tokens=self._window_tokens(),
                tokens_estimated=self._records.counter.estimated,
                results=len(told),
                archived=sum(row.state == "archived" for row in told),
                batches=self._records.row.batches,
                restores=self._records.row.restores,
                tokens_saved=self._records.row.tokens_saved,
                suspended=self._records.suspension(),
                outage=self._outage,
                summaries=None if self._windowing is None else self._windowing.quality(),
            )

    def _window_tokens(self) -> int:
        """Tokens of the newest view; only messages that changed since the last look are counted."""
        window = []
        known = {id(one[0]): one for one in self._window}  # messages move when others leave the window
        for message in self._shown:
            one = known.get(id(message))
            texts = tuple(self._records.dialect.message_texts(message))
            if one is None or one[1] != texts:
                one = message, texts, MESSAGE_TOKENS + sum(map(self._records.counter.count, texts))
            window.append(one)
        self._window = window
        return sum(tokens for _, _, tokens in window)


def _label_facts(sensitivity: object, kind: object, observed_at: object) -> LabelFacts:
    """What a host attaches, checked."""
    named = (sensitivity,) if isinstance(sensitivity, str) else sensitivity
    if not isinstance(named, Iterable):
        raise FormatError("sensitivity is a name, or several of them.")
    names = frozenset(checked_name(name, "sensitivity") for name in named)
    if kind is not None:
        checked_name(kind, "kind")
    if not names and kind is None and observed_at is None:
        raise FormatError("Name at least one fact: sensitivity, kind or observed_at.")
    return LabelFacts(names, str(kind) if kind is not None else None, _time_us(observed_at))


def _time_us(observed_at: object) -> int | None:
    """Microseconds since 1970 UTC of a time that can be written in UTC again."""
    if observed_at is None:
        return None
    if not isinstance(observed_at, datetime) or observed_at.tzinfo is None:
        raise FormatError("observed_at is a datetime with a time zone, such as datetime.now(UTC).")
    try:
        return (observed_at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except OverflowError as error:
        raise FormatError("observed_at lies outside the years 1 to 9999 in UTC.") from error
