"""A session: the one write path, and the verbs a loop uses.

``view`` registers what it has not met, then renders; rendering depends on the messages and committed state alone.
What an archive call did is visible in the next view because the next view reads it from the store, and only then.
"""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from hashlib import sha256
from operator import attrgetter
from typing import Any

from evidence_archive import notes
from evidence_archive.batch import Candidate, Item, decide, pairs, parse_batch, parse_restore
from evidence_archive.dialects import Dialect
from evidence_archive.errors import (
    BatchRejectedError,
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    KeyringError,
    MessageShapeError,
    MisuseError,
    NotAvailableError,
    PolicyError,
    SealBrokenError,
    StoreError,
)
from evidence_archive.excerpt import Selector, excerpt, line_count, parse_selector
from evidence_archive.matching import LABELLED, NOTE, ORIGINAL, Place, RecordIndex, Timeline
from evidence_archive.model import (
    Content,
    Encoded,
    Principal,
    Receipt,
    Restored,
    ResultInfo,
    SessionStats,
    Target,
    ToolCall,
    canonical_id,
    ce,
    checked_name,
    encode_exact,
    format_result_id,
    format_time,
    parse_result_id,
)
from evidence_archive.ports import BatchRow, ResultRow, SessionRow, StoredOriginal, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.sealing.envelope import seal_original
from evidence_archive.sealing.keyring import close_original, content_tag, request_tag
from evidence_archive.vault import Found, Opened, ScopeKeys, Vault, facts_of

__all__ = ["Session"]

TOOL_NAME_CHARS_MAX = 1_024
"""Longest tool name an archived result may have; longer ones are stored cut, and their results stay in view."""

COMMIT_TRIES_MAX = 5
"""How often a batch is prepared anew because another process changed the session meanwhile."""

_MESSAGE_TOKENS = 4
"""Tokens a chat message costs beyond its text, for window sizes."""

_FIELDS = tuple(field.name for field in fields(ResultRow))
_VALUES = attrgetter(*_FIELDS)
_MEDIA_TYPES = {"text": "text/plain", "parts": "application/json"}
_OUR_TOOLS = frozenset({notes.ARCHIVE_TOOL, notes.RESTORE_TOOL})


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One target, sealed and ready for the transaction."""

    row: ResultRow
    original: StoredOriginal | None
    words: str


class Session:
    """One conversation of one owner; made by ``archive.session(...)``. Thread-safe.

    Args:
        vault: the org's keys, store and log.
        principal: the owner.
        row: the session's row.
        keys: the session's keys.
        dialect: reads and writes messages.
        tools: whether the model is offered our tools; notes then name the restore tool, else the program's way.
    """

    def __init__(
        self, vault: Vault, principal: Principal, row: SessionRow, keys: ScopeKeys, dialect: Dialect, *, tools: bool
    ) -> None:
        self.id = row.session_id
        self.principal = principal
        self._vault = vault
        self._keys = keys
        self._dialect = dialect
        self._with_tools = tools
        self._limits = vault.policy.limits
        self._clock = vault.around.clock
        self._counter = vault.around.counter
        self._log = vault.log.bind(session=self.id)
        self._lock = threading.RLock()
        self._row = replace(row, version=-1)  # nothing is loaded yet
        self._records: dict[int, ResultRow] = {}
        self._index = RecordIndex()
        self._reserved: set[int] = set()
        self._notes: dict[int, str] = {}
        self._timeline = Timeline(dialect)
        self._rendered: list[Any] = []
        self._answered: set[int] = set()
        self._unrecorded: set[tuple[bytes, bytes]] = set()
        self._reported: set[tuple[bytes, bytes | None]] = set()
        self._requests = 0
        self._restores_this_turn = 0
        self._failures = 0
        self._suspended_until_ms = 0
        self._outage = False
        self._window: list[tuple[Any, int]] = []

    def __repr__(self) -> str:
        return f"Session({self.id!r}, org={self._vault.org!r})"

    # --- what goes into a request ---------------------------------------------------------------------------------

    @property
    def instructions(self) -> str:
        """A short text for the application's system message; equal for all sessions, so that prefixes stay cached."""
        return notes.INSTRUCTIONS

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The specs of our tools in the session's dialect; empty for a session opened with ``tools=False``."""
        if not self._with_tools:
            return []
        return [self._dialect.tool(tool.name, tool.description, tool.parameters) for tool in notes.TOOLS]

    def view(self, messages: Iterable[Any]) -> list[Any]:
        """The list that goes to the model: labels on live results, notes in the place of archived ones.

        A new list; the application's messages are never changed, and messages that did not change are shared with
        it. Equal messages and state give byte-identical output, and a view handed in again comes back as it is.
        Costs the new messages plus a comparison; reads one indexed row; writes one commit when there are new results.
        If the store cannot be read within ``view_wait_ms_max``, every original that the messages still hold is shown.

        Args:
            messages: the application's whole list, dicts and SDK objects mixed; in another form of it (a stored
                view) results are recognised by their records.

        Raises:
            MessageShapeError: it is not a list of messages of the dialect.
            MisuseError: the archive was closed, or opened in another process.
        """
        with self._lock:
            self._vault.usable()
            self._requests += 1
            self._restores_this_turn = 0
            self._timeline.advance(messages)
            try:
                self._refresh(self._limits.view_wait_ms_max)
                self._register(self._match())
            except (StoreError, IntegrityError, KeyringError) as error:
                self._trouble(error)
                self._outage = True
                return self._outage_view()
            self._outage = False
            self._failures = 0
            self._report()
            return self._rendered_view()

    def _match(self) -> list[Place]:
        return self._timeline.match(self._index, self._archived, self._tag)

    def _archived(self, number: int) -> bool:
        return self._records[number].state == "archived"

    def _tag(self, content: Any) -> bytes | None:
        encoded = encode_exact(content)
        return None if encoded is None else self._tag_of(encoded)

    def _tag_of(self, encoded: Encoded) -> bytes:
        return content_tag(self._keys.tag, sha256(encoded.data).digest(), encoded.encoding)

    def _report(self) -> None:
        """Say once of each result that cannot take part."""
        for place in self._timeline.bare():
            seen = (place.call_id, place.tag(self._tag))
            if seen not in self._reported:
                self._reported.add(seen)
                why = "orphan" if place.call is None else "not_exact"
                self._log.warning("evidence_archive.passed_through", why=why, message=place.index)

    # --- committed state ------------------------------------------------------------------------------------------

    def _refresh(self, wait_ms: int) -> None:
        """Take over what was committed since; one indexed row when that is nothing."""
        with self._vault.store.peeking(wait_ms) as reader:
            row = reader.session(self.id)
        if row is not None and row == self._row:
            return
        with self._vault.store.reading(wait_ms) as reader:
            row = reader.session(self.id)
            if row is None or row.scope_id != self._keys.scope_id:
                raise SealBrokenError("This session's row is gone: it was removed outside this library.")
            after = self._row.version if row.version >= self._row.version else -1
            changed = reader.results(row.scope_id, after)
        self._absorb(changed)
        self._row = row

    def _absorb(self, rows: Iterable[ResultRow], words: Mapping[int, str] | None = None) -> None:
        """Records as committed; the notes of archived ones are opened here, once."""
        for row in rows:
            number = row.number
            if row.state == "archived" and number not in self._notes:
                known = words and words.get(number)
                self._notes[number] = self._note_text(row, known or self._vault.open_closed(self._keys, row)[1])
            self._records[number] = row
            self._index.add(number, row.call_id, row.content_tag, row.labelled_tag, row.note_tag)
            (self._reserved.discard if row.seen else self._reserved.add)(number)
            place = self._timeline.by_number.get(number)
            if place is not None:
                self._timeline.changed.add(place.index)

    def _note_text(self, row: ResultRow, words: str) -> str:
        return notes.note(
            number=row.number,
            tag=self._row.tag,
            tool=_text(row.tool_name),
            tokens=row.tokens,
            tokens_estimated=self._counter.estimated,
            observed_at_us=row.observed_at_us,
            observed_by=row.observed_by,
            words=words,
            live_ask=row.live_ask or None,
            live=row.live_ask is not None,
            rendering=row.rendering or "",
        )

    def _label(self, number: int) -> str:
        return notes.label(number, self._row.tag)

    @property
    def _last_id(self) -> str | None:
        return format_result_id(self._row.next_number - 1) if self._row.next_number > 1 else None

    # --- registering ----------------------------------------------------------------------------------------------

    def _register(self, unknown: list[Place]) -> None:
        """Give new results their IDs, looking again under the write lock; nothing new, no write."""
        met = [number for number in self._reserved if number in self._timeline.by_number]
        if not unknown and not met:
            return
        measured = {id(place): self._measured(place) for place in unknown}
        with self._vault.store.writing(self._limits.view_wait_ms_max, audited=False) as writer:
            row = self._session_under_lock(writer)
            if row.version != self._row.version:
                self._absorb(writer.results(row.scope_id, self._row.version))
                self._row = replace(row)
                unknown = self._match()
                met = [number for number in self._reserved if number in self._timeline.by_number]
            row.version += 1
            new: list[ResultRow] = []
            for place in unknown:
                new.append(self._new_row(row, place, measured.get(id(place)) or self._measured(place)))
                row.next_number += 1
            completed = [self._completed(number, row.version) for number in met]
            writer.insert_results(new)
            writer.update_results(completed)
            writer.update_session(row)
        for place, record in zip(unknown, new, strict=True):
            self._timeline.give(place, record.number)
        self._timeline.settle()
        self._absorb([*new, *completed])
        self._row = row

    def _session_under_lock(self, writer: Writer) -> SessionRow:
        row = writer.session(self.id)
        if row is None:
            raise SealBrokenError("This session's row is gone: it was removed outside this library.")
        return row

    def _measured(self, place: Place) -> tuple[Encoded, int]:
        encoded = encode_exact(place.content)
        if encoded is None:
            raise MessageShapeError("A tool result changed while it was registered: view the messages again.")
        return encoded, self._tokens_of(place.content)

    def _tokens_of(self, content: Content) -> int:
        return sum(map(self._counter.count, self._dialect.content_texts(content)))

    def _new_row(self, session: SessionRow, place: Place, measured: tuple[Encoded, int]) -> ResultRow:
        encoded, tokens = measured
        tag = self._tag_of(encoded)
        call = place.call or ToolCall("", "")
        own = "error" if (place.call_id, tag) in self._unrecorded else None
        return self._identity_row(
            session,
            call_id=place.call_id,
            content=place.content,
            encoded=encoded,
            tokens=tokens,
            tag=tag,
            tool_name=call.name,
            result_tool_name=place.result_tool,
            own=own,
            bare=place.shown_bare,
        )

    def _identity_row(
        self,
        session: SessionRow,
        *,
        call_id: bytes,
        content: Content,
        encoded: Encoded,
        tokens: int,
        tag: bytes,
        tool_name: str,
        result_tool_name: str | None = None,
        own: str | None = None,
        bare: bool = False,
        seen: bool = True,
        kind: str | None = None,
        sensitivity: str = "",
    ) -> ResultRow:
        """A live record under the session's next number."""
        size_chars = self._dialect.size_chars(content)
        large = size_chars >= self._limits.label_chars_min or self._dialect.has_other_parts(content)
        labelled = large and not bare
        number = session.next_number
        return ResultRow(
            scope_id=session.scope_id,
            number=number,
            version=session.version,
            seen=int(seen),
            call_id=call_id,
            tool_name=_bytes(tool_name[:TOOL_NAME_CHARS_MAX]),
            result_tool_name=None if result_tool_name is None else _bytes(result_tool_name[:TOOL_NAME_CHARS_MAX]),
            own=own,
            kind=kind,
            sensitivity=sensitivity,
            media_type=_MEDIA_TYPES[encoded.encoding],
            size_chars=size_chars,
            size_bytes=len(encoded.data),
            tokens=tokens,
            labelled=int(labelled),
            observed_at_us=self._clock.now_us(),
            observed_by="first_view",
            content_tag=tag,
            labelled_tag=self._tag(self._dialect.labelled(content, self._label(number))) if labelled else None,
            origin=None,
            part=None,
            state="live",
        )

    def _completed(self, number: int, version: int) -> ResultRow:
        """A record the host labelled before the first view, now that its call is known."""
        row, place = _clone(self._records[number]), self._timeline.by_number[number]
        row.version, row.seen = version, 1
        row.tool_name = _bytes((place.call.name if place.call else "")[:TOOL_NAME_CHARS_MAX])
        row.result_tool_name = None if place.result_tool is None else _bytes(place.result_tool[:TOOL_NAME_CHARS_MAX])
        return row

    # --- rendering ------------------------------------------------------------------------------------------------

    def _rendered_view(self) -> list[Any]:
        timeline, rendered = self._timeline, self._rendered
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
            row = self._records[place.number]
            archived = row.state == "archived" and not outage
            if archived and place.form != NOTE:
                contents[place.slot] = self._dialect.noted(self._original(place), self._notes[place.number])
            elif not archived and place.form == ORIGINAL and row.labelled:
                contents[place.slot] = self._dialect.labelled(place.content, self._label(place.number))
        return self._dialect.replace(message, contents) if contents else message

    def _original(self, place: Place) -> Content:
        """The exact content, whatever form of it the list holds."""
        if place.form == LABELLED and place.number is not None:
            return self._dialect.unlabelled(place.content, self._label(place.number))
        content: Content = place.content
        return content

    def _outage_view(self) -> list[Any]:
        """Every original the messages hold; labels that are known stay, what has none yet is shown without for good."""
        view = list(self._timeline.messages)
        for index, places in self._timeline.by_index.items():
            for place in places:
                place.shown_bare = place.shown_bare or place.number is None
            view[index] = self._rendered_message(view[index], places, outage=True)
        return view

    # --- trouble --------------------------------------------------------------------------------------------------

    def _trouble(self, error: EvidenceArchiveError) -> None:
        """Count a failure; suspend archiving after several in a row, or at once when stored bytes were changed."""
        self._failures += 1
        self._log.warning("evidence_archive.trouble", error=type(error).__name__, failures=self._failures)
        if isinstance(error, IntegrityError):
            self._suspend("integrity")
        elif self._failures >= self._limits.store_failures_max and not self._cooling():
            self._suspended_until_ms = self._clock.monotonic_ms() + self._limits.suspension_seconds * 1_000
            self._log.error("evidence_archive.suspended", why="store")

    def _suspend(self, why: str) -> None:
        """Suspend for good; where the store does not take it, at least in this object."""
        if self._row.suspended is None:
            self._row.suspended = why
            self._log.error("evidence_archive.suspended", why=why)
            try:
                self._write_suspension(why, audited=True)
            except EvidenceArchiveError:  # perhaps it is the log that is broken
                with suppress(EvidenceArchiveError):
                    self._write_suspension(why, audited=False)

    def _write_suspension(self, why: str, *, audited: bool) -> None:
        with self._vault.store.writing(self._limits.view_wait_ms_max, audited=audited) as writer:
            row = self._session_under_lock(writer)
            if row.suspended is None:
                row.suspended = why
                row.version += 1
                writer.update_session(row)
                if audited:
                    writer.append([self._leaf(audit.SESSION_SUSPENDED, details={"why": why})])

    def _cooling(self) -> bool:
        return self._clock.monotonic_ms() < self._suspended_until_ms

    def _suspension(self) -> str | None:
        return self._row.suspended or ("store" if self._cooling() else None)

    def _leaf(self, event: str, **named: Any) -> Any:
        return self._vault.leaf(event, self.principal.subject, session_id=self.id, **named)

    # --- archiving ------------------------------------------------------------------------------------------------

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
        with self._lock:
            self._vault.usable()
            try:
                items = pairs(batch, items_max=self._limits.batch_items_max)
                return self._archive(items, None, key)[0]
            except BatchRejectedError as error:
                self._rejected(error, None)
                raise

    def _archive(self, items: tuple[Item, ...], call: ToolCall | None, key: str | None) -> tuple[Receipt, str]:
        """The one write path: decide, seal, commit; the receipt and its text."""
        call_id = None if call is None else canonical_id(call.id)
        tag = request_tag(
            self._keys.tag,
            call_id if call_id is not None else (key or "").encode() or self._vault.around.entropy(16),
            [(item.id, item.note) for item in items],
        )
        try:
            self._refresh(self._vault.store_wait_ms)
            if call_id is not None or key is not None:
                replayed = self._replayed(tag, key)
                if replayed is not None:
                    return replayed, notes.receipt_text(replayed, net_tokens=replayed.tokens_saved)
            if call is not None:
                self._mark_read()
            suspension = self._suspension()
            if suspension is not None:
                raise BatchRejectedError(
                    f"Nothing was archived: archiving in this session is suspended ({suspension}).",
                    reason="suspended",
                )
            for _ in range(COMMIT_TRIES_MAX):
                done = self._commit(items, call, tag, key)
                if done is not None:
                    self._failures = 0
                    return done
                self._refresh(self._vault.store_wait_ms)
            raise StoreError("The session keeps changing under this batch: try again.")
        except StoreError as error:
            self._trouble(error)
            raise BatchRejectedError(
                f"Nothing was archived: {str(error)[0].lower()}{str(error)[1:]}", reason="store_unavailable"
            ) from error
        except IntegrityError as error:
            self._trouble(error)
            raise BatchRejectedError(
                "Nothing was archived: stored bytes were changed, and archiving in this session is suspended.",
                reason="suspended",
            ) from error

    def _replayed(self, tag: bytes, key: str | None) -> Receipt | None:
        with self._vault.store.peeking(self._vault.store_wait_ms) as reader:
            row = reader.batch(self._keys.scope_id, tag, key)
        if row is None:
            return None
        if row.request_tag != tag:
            raise FormatError("This idempotency key was used with another batch: use a new key for new content.")
        return _receipt_of(row)

    def _mark_read(self) -> None:
        """A call of the model has reached us: it has read what the newest view showed."""
        for place in reversed(self._timeline.places):
            if place.index <= self._timeline.last_model:
                break
            if place.number is not None:
                self._answered.add(place.number)

    def _is_read(self, place: Place) -> bool:
        return place.index < self._timeline.last_model or place.number in self._answered

    def _commit(
        self, items: tuple[Item, ...], call: ToolCall | None, tag: bytes, key: str | None
    ) -> tuple[Receipt, str] | None:
        """One try; ``None`` when another process changed the session since it was looked at."""
        now_us, batch_id = self._clock.now_us(), self._vault.around.entropy(16)
        drafts = self._drafts(items, now_us, batch_id)
        self._refuse_unless_ok(items, drafts)
        random = memoryview(self._vault.around.entropy(64 * len(items)))
        prepared = [
            self._prepared(drafts[item.id], item.note, random[64 * at : 64 * at + 64].tobytes())
            for at, item in enumerate(items)
        ]
        receipt = Receipt(
            batch_id=batch_id.hex(),
            targets=tuple(Target(item.id, "ok", "", drafts[item.id].row.tokens) for item in items),
            tokens_before=sum(one.row.tokens for one in prepared),
            tokens_after=sum(one.row.note_tokens for one in prepared),
            tokens_estimated=self._counter.estimated,
        )
        text = self._receipt_text(receipt, call)
        details = {
            "results": [format_result_id(one.row.number) for one in prepared],
            "envelopes": [one.row.envelope_sha256.hex() if one.row.envelope_sha256 else None for one in prepared],
        }
        with self._vault.store.writing(self._vault.store_wait_ms, audited=True) as writer:
            row = self._session_under_lock(writer)
            if row.version != self._row.version:
                return None
            row.version += 1
            row.batches += 1
            row.tokens_saved += receipt.tokens_saved
            for one in prepared:
                one.row.version = row.version
            writer.insert_originals([one.original for one in prepared if one.original is not None])
            writer.update_results([one.row for one in prepared])
            writer.insert_batch(
                BatchRow(row.scope_id, batch_id, tag, key, json.dumps(_receipt_data(receipt)), now_us)
            )
            own = [] if call is None else [self._own_row(row, call, text, "receipt")]
            writer.insert_results(own)
            writer.update_session(row)
            writer.append([self._leaf(audit.BATCH_ACCEPTED, batch_id=batch_id.hex(), details=details)])
        self._absorb([one.row for one in prepared], {one.row.number: one.words for one in prepared})
        self._absorb(own)
        self._row = row
        self._log.info(
            "evidence_archive.archived",
            batch=receipt.batch_id,
            results=details["results"],
            tokens_saved=receipt.tokens_saved,
        )
        return receipt, text

    def _receipt_text(self, receipt: Receipt, call: ToolCall | None) -> str:
        if call is None:
            return ""
        spent = self._counter.count(str(call.arguments)) + self._counter.count(
            notes.receipt_text(receipt, net_tokens=receipt.tokens_saved)
        )
        return notes.receipt_text(receipt, net_tokens=receipt.tokens_saved - spent)

    def _refuse_unless_ok(self, items: tuple[Item, ...], drafts: Mapping[str, "_Draft"]) -> None:
        targets = decide(
            items,
            {result_id: draft.candidate for result_id, draft in drafts.items()},
            note_chars_max=self._limits.note_chars_max,
            original_bytes_max=self._limits.original_bytes_max,
            last_id=self._last_id,
        )
        bad = sum(target.status != "ok" for target in targets)
        if bad:
            raise BatchRejectedError(
                f"NOTHING was archived: {bad} of {len(targets)} targets cannot be; see their status and reason.",
                targets=targets,
            )

    def _drafts(self, items: Iterable[Item], now_us: int, batch_id: bytes) -> dict[str, "_Draft"]:
        """What is known of each target that was issued, with the row it would get and the note it would show."""
        return {
            item.id: draft
            for item in items
            if (draft := self._draft(parse_result_id(item.id), item.note, now_us, batch_id)) is not None
        }

    def _draft(self, number: int, words: str, now_us: int, batch_id: bytes) -> "_Draft | None":
        known = self._records.get(number)
        if known is None or not known.seen:
            return None
        place = self._timeline.by_number.get(number)
        content = None if place is None or place.form == NOTE else self._original(place)
        encoded = None if content is None else encode_exact(content)
        exact = encoded is not None and self._tag_of(encoded) == known.content_tag
        tools = self._facts_row(known)
        called = _text(known.tool_name)
        row = _clone(known)
        live = self._vault.policy.live(facts_of(tools).tools)
        row.state, row.batch_id, row.archived_at_us = "archived", batch_id, now_us
        row.rendering = "1" if self._with_tools else "1p"
        row.live_ask = None if live is None else live.ask or ""
        blank = known.state == "archived" or content is None or len(words) > self._limits.note_chars_max
        note = "" if blank else self._note_text(row, words)
        if content is not None and not blank:
            row.note_tokens = self._counter.count(note)
            row.note_tag = self._tag(self._dialect.noted(content, note))
        return _Draft(
            Candidate(
                archived=known.state == "archived",
                in_view=content is not None,
                read=place is not None and self._is_read(place),
                orphan=place is not None and place.call is None,
                own=known.own or ("answer" if called in _OUR_TOOLS else None),
                exact=exact or content is None,
                text_allowed=len(called) < TOOL_NAME_CHARS_MAX,
                protected=self._protection(known, place, content),
                size_bytes=known.size_bytes,
                tokens=known.tokens,
                note_tokens=row.note_tokens,
            ),
            row,
            encoded,
        )

    def _facts_row(self, row: ResultRow) -> ResultRow:
        """Whose facts count: a restored copy has those of what it was taken from."""
        return row if row.origin is None else self._records.get(row.origin, row)

    def _protection(self, row: ResultRow, place: Place | None, content: Content | None) -> tuple[str, str] | None:
        """Which rule keeps a result in view, and why."""
        policy = self._vault.policy
        text = None
        if policy.needs_text and content is not None:
            text = self._dialect.plain_text(content)
            if text is None:
                encoded = encode_exact(content)
                text = None if encoded is None else encoded.data.decode("ascii")
        age = 0 if place is None else self._timeline.turns_after(place.index)
        decision = policy.decide_archive(facts_of(self._facts_row(row), age_turns=age, text=text))
        if decision.effect == "never":
            return decision.rule_id, decision.reason
        if not self._vault.may_restore(self.principal, self._row.subject, row):
            return "restore", "this session could not restore it, so it may not set it aside"
        return None

    def _prepared(self, draft: "_Draft", words: str, random: bytes) -> _Prepared:
        """One target sealed; a restored copy keeps only its note, because its bytes are kept already."""
        row, vault, keys = draft.row, self._vault, self._keys
        original = None
        dek, original_id, dek_id = b"", None, None
        if row.origin is None:
            if draft.encoded is None:
                raise SealBrokenError("A result lost its content while it was archived.")
            dek, original_id, dek_id = random[:32], random[32:48], random[48:]
            days = vault.policy.retention_days(facts_of(row))
            row.retention_until_us = None if days is None else (row.archived_at_us or 0) + days * 86_400_000_000
            sealed = seal_original(
                slot=vault.slot(self.id, row),
                encoded=draft.encoded,
                dek=dek,
                original_id=original_id,
                dek_id=dek_id,
                acl=ce(self._row.subject, row.sensitivity, row.kind),
                trust="tool-output",
            )
            row.original_id, row.dek_id = original_id, dek_id
            row.envelope_sha256, row.sealed_size = sealed.envelope_sha256, sealed.sealed_size
            original = StoredOriginal(original_id, sealed.envelope)
        row.closed = close_original(
            keys.key,
            deployment=vault.deployment,
            org=vault.org,
            scope_id=keys.scope_id,
            original_id=original_id,
            dek_id=dek_id,
            result_id=format_result_id(row.number),
            dek=dek,
            note=words,
        )
        return _Prepared(row, original, words)

    def _rejected(self, error: BatchRejectedError, call: ToolCall | None, text: str = "") -> None:
        """Audit a rejection, together with the record of the message that tells it; never raises."""
        targets = [[target.result_id, target.status] for target in error.targets]
        details = {"reason": error.reason, "targets": targets}
        self._log.warning("evidence_archive.rejected", reason=error.reason, targets=len(targets))
        self._record(self._leaf(audit.BATCH_REJECTED, details=details), call, text, "rejection")

    def _record(self, leaf: Any, call: ToolCall | None, text: str, own: str) -> None:
        """Commit an audit entry and what our answer looks like, so that it is known as ours in any process."""
        try:
            with self._vault.store.writing(self._vault.store_wait_ms, audited=True) as writer:
                if call is not None:
                    self._also(call, text, own)(writer, self._session_under_lock(writer))
                writer.append([leaf])
        except EvidenceArchiveError as error:
            self._log.warning("evidence_archive.not_recorded", error=type(error).__name__)
            if call is not None and (tag := self._tag(text)) is not None:
                self._unrecorded.add((canonical_id(call.id), tag))

    def _also(self, call: ToolCall, text: str, own: str) -> Any:
        def write(writer: Writer, session: SessionRow) -> None:
            session.version += 1
            writer.insert_results([self._own_row(session, call, text, own)])
            writer.update_session(session)

        return write

    def _own_row(
        self, session: SessionRow, call: ToolCall, content: Content, own: str, origin: ResultRow | None = None
    ) -> ResultRow:
        """The record of an answer of ours, under the session's next number, which it takes."""
        encoded = encode_exact(content)
        if encoded is None:
            raise FormatError("An answer would not come back equal in type and value, so it is not given.")
        row = self._identity_row(
            session,
            call_id=canonical_id(call.id),
            content=content,
            encoded=encoded,
            tokens=self._tokens_of(content),
            tag=self._tag_of(encoded),
            tool_name=call.name,
            own=own,
            kind=None if origin is None else origin.kind,
            sensitivity="" if origin is None else origin.sensitivity,
        )
        session.next_number += 1
        return row

    # --- restoring ------------------------------------------------------------------------------------------------

    def restore(
        self,
        result_id: str,
        *,
        lines: str | None = None,
        pattern: str | None = None,
        context_lines: int | None = None,
        pointer: str | None = None,
        reason: str | None = None,
    ) -> Restored:
        """The exact content of a result of this session, or an exact part of it, for a program; no cap on its size.

        The grant is audited before this returns. A result that is not archived comes from the messages of the newest
        view.

        Args:
            result_id: such as ``r7``.
            lines, pattern, context_lines, pointer: at most one selector, as in ``restore_evidence``.
            reason: kept sealed with the audit entry.

        Raises:
            NotAvailableError: unknown, in no view, or forbidden.
            FormatError: a selector is malformed, or names a part that is not there.
            SealBrokenError: stored bytes were changed; archiving in the session is suspended.
            KeyringError, StoreError: keys or store are not at hand; nothing was released.
            MisuseError: the archive was closed, or opened in another process.
        """
        selector = parse_selector(lines, pattern, context_lines, pointer)
        with self._lock:
            self._vault.usable()
            live = self._in_view(result_id)
            if live is not None:
                return self._part(live, selector)
            found = self._vault.find(self.principal, self.id, result_id)
            opened = self._vault.opened(self.principal, found)
            restored = self._part(opened, self._selected(found.row, selector))
            self._vault.granted(self.principal, found, part=selector.kind, reason=reason)
            return restored

    def _in_view(self, result_id: str) -> Opened | None:
        """A live result from the messages, as it would be opened."""
        try:
            number = parse_result_id(result_id)
        except FormatError:
            return None
        row, place = self._records.get(number), self._timeline.by_number.get(number)
        if row is None or place is None or row.state != "live":
            return None
        content = self._original(place)
        encoded = encode_exact(content)
        if encoded is None:
            return None
        digest = sha256(encoded.data).hexdigest()
        return Opened(content, digest, len(encoded.data), self._vault.provenance(self.id, row))

    def _selected(self, row: ResultRow, selector: Selector) -> Selector:
        """What to cut out of the original: a copy of a part is that part."""
        if row.part is None:
            return selector
        if not selector.is_whole:
            raise FormatError(
                f"This is a copy of a part; ask {format_result_id(row.origin or 0)} itself for another part."
            )
        return Selector.from_canonical(row.part.decode("utf-8", "surrogatepass"))

    def _part(self, opened: Opened, selector: Selector) -> Restored:
        return part_of(opened, selector, self._dialect, self._limits.pattern_matches_max)

    # --- answering calls ------------------------------------------------------------------------------------------

    def answer(self, call: Any) -> Any | None:
        """The tool message that answers a call of one of our tools; ``None`` for a call that is not ours.

        Every failure becomes a message that says what was NOT done, so that no call stays unanswered.

        Args:
            call: a tool call as the provider sent it, dict or SDK object.

        Raises:
            MisuseError: the archive was closed, or opened in another process.
        """
        try:
            parsed = self._dialect.parse_call(call)
        except MessageShapeError:
            return None
        if not self._with_tools or parsed.name not in _OUR_TOOLS:
            return None
        with self._lock:
            self._vault.usable()
            answering = self._answer_archive if parsed.name == notes.ARCHIVE_TOOL else self._answer_restore
            return self._dialect.answer(parsed.id, answering(parsed))

    def _answer_archive(self, call: ToolCall) -> str:
        try:
            return self._archive(parse_batch(call.arguments, items_max=self._limits.batch_items_max), call, None)[1]
        except BatchRejectedError as error:
            text = notes.rejection_text(
                reason=error.reason,
                message="" if error.reason == "targets" else str(error),
                targets=[target for target in error.targets if isinstance(target, Target)],
                last_id=self._last_id,
                archivable=self._archivable() if error.reason in ("targets", "empty", "too_many") else (),
            )
            self._rejected(error, call, text)
        except FormatError as error:
            text = notes.malformed_text(tool=call.name, message=str(error))
            self._rejected(BatchRejectedError(str(error), reason="malformed"), call, text)
        except MisuseError:
            raise
        except EvidenceArchiveError as error:
            self._trouble(error)
            text = notes.rejection_text(reason="store_unavailable", message=str(error))
            self._rejected(BatchRejectedError(str(error), reason="store_unavailable"), call, text)
        return text

    def _archivable(self) -> list[tuple[str, str, int]]:
        """The newest results in view that nothing stands against but a note."""
        found: list[tuple[str, str, int]] = []
        for place in reversed(self._timeline.places):
            if place.number is None or len(found) == notes.ARCHIVABLE_MAX:
                continue
            row = self._records[place.number]
            if (
                row.state == "live"
                and row.labelled
                and row.own in (None, "copy")
                and _text(row.tool_name) not in _OUR_TOOLS - ({notes.RESTORE_TOOL} if row.own else set())
                and place.call is not None
                and self._is_read(place)
                and self._protection(row, place, self._original(place)) is None
            ):
                found.append((format_result_id(row.number), _text(row.tool_name), row.tokens))
        return found

    def _answer_restore(self, call: ToolCall) -> Content:
        self._mark_read()
        number, row = 0, None
        try:
            request = parse_restore(call.arguments)
            selector = parse_selector(request.lines, request.pattern, request.context_lines, request.pointer)
            number = parse_result_id(request.id)
            self._refresh(self._vault.store_wait_ms)
            row = self._records.get(number)
            if self._restores_this_turn >= self._limits.restores_per_turn_max:
                text = notes.restores_exhausted_text(restores_max=self._limits.restores_per_turn_max)
                return self._refused(call, number, "too_many", text)
            if row is not None and row.state == "live" and number in self._timeline.by_number:
                text = notes.in_view_text(number=number, tag=self._row.tag, labelled=bool(row.labelled))
                return self._refused(call, number, "live", text)
            self._restores_this_turn += 1
            return self._restored_answer(call, request.id, selector, request.reason)
        except NotAvailableError:
            return notes.not_available_text(last_id=self._last_id)  # recorded with the denial
        except FormatError as error:
            return self._refused(call, number, "malformed", notes.malformed_text(tool=call.name, message=str(error)))
        except MisuseError:
            raise
        except EvidenceArchiveError as error:
            self._trouble(error)
            cause = (
                "integrity"
                if isinstance(error, IntegrityError)
                else "keys"
                if isinstance(error, KeyringError)
                else "store"
            )
            tool = "the tool" if row is None else _text(self._facts_row(row).tool_name)
            text = notes.restore_failed_text(
                number=number, cause=cause, tool=tool, live_ask=None if row is None else row.live_ask or None
            )
            return self._refused(call, number, cause, text)

    def _refused(self, call: ToolCall, number: int, why: str, text: str) -> str:
        """A restore that was not made: audited, and the answer recorded as ours."""
        leaf = self._leaf(audit.RESTORE_DENIED, details={"result": format_result_id(number), "why": why})
        self._log.warning("evidence_archive.denied", result=format_result_id(number), why=why)
        self._record(leaf, call, text, "error")
        return text

    def _restored_answer(self, call: ToolCall, result_id: str, selector: Selector, reason: str | None) -> Content:
        vault = self._vault
        not_available = notes.not_available_text(last_id=self._last_id)
        found = vault.find(self.principal, self.id, result_id, also=self._also(call, not_available, "error"))
        opened = vault.opened(self.principal, found)
        selector = self._selected(found.row, selector)
        part = self._part(opened, selector)
        origin, number = found.origin, found.row.number
        tokens = self._tokens_of(part.content)
        if tokens > self._limits.restore_tokens_max:
            return self._refused(call, number, "too_large", self._too_large(found, opened, part, tokens))
        now_us = self._clock.now_us()
        live = vault.policy.live(facts_of(origin).tools)
        max_age = None if live is None else live.max_age_seconds
        what = part.part or f"whole original, {origin.size_chars} characters"
        plain = self._dialect.plain_text(part.content)
        head, foot = notes.restored_texts(
            number=number,
            tag=self._row.tag,
            tool=_text(origin.tool_name),
            observed_at_us=origin.observed_at_us,
            observed_by=origin.observed_by,
            restored_at_us=now_us,
            what=what,
            live_ask=None if live is None else live.ask,
            live=live is not None,
            stale=max_age is not None and now_us - origin.observed_at_us > max_age * 1_000_000,
            boundary=notes.boundary(plain or str(part.content), vault.around.entropy),
        )
        content = self._dialect.fenced(head, part.content, foot)
        canonical = selector.canonical()

        def copied(writer: Writer, session: SessionRow) -> None:
            session.version += 1
            row = self._own_row(session, call, content, "copy", origin)
            row.origin = origin.number
            row.part = None if canonical is None else canonical.encode()
            writer.insert_results([row])

        vault.granted(self.principal, found, part=selector.kind, reason=reason, also=copied)
        return content

    def _too_large(self, found: Found, opened: Opened, part: Restored, tokens: int) -> str:
        text = self._dialect.plain_text(opened.content)
        return notes.too_large_text(
            number=found.row.number,
            what=part.part or f"whole original, {found.origin.size_chars} characters",
            tokens=tokens,
            tokens_estimated=self._counter.estimated,
            tokens_max=self._limits.restore_tokens_max,
            lines=None if text is None else line_count(text),
            is_json=text is not None and text.lstrip()[:1] in ("{", "["),
        )

    # --- facts from the host --------------------------------------------------------------------------------------

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
            StoreError: the store cannot be written; nothing was attached.
        """
        names = {
            checked_name(name, "sensitivity")
            for name in ([sensitivity] if isinstance(sensitivity, str) else sensitivity)
        }
        if kind is not None:
            checked_name(kind, "kind")
        if observed_at is not None and observed_at.tzinfo is None:
            raise FormatError("observed_at needs a time zone, such as datetime.now(UTC).")
        facts = _Label(
            frozenset(names), kind, None if observed_at is None else round(observed_at.timestamp() * 1_000_000)
        )
        with self._lock:
            self._vault.usable()
            self._refresh(self._vault.store_wait_ms)
            if isinstance(target, str):
                number = parse_result_id(target)
                if number not in self._records:
                    raise NotAvailableError
                return self._attach([number], facts, None)
            results = self._dialect.read(target).results
            if len(results) != 1:
                raise MessageShapeError("Label a message that holds exactly one tool result, or name a result ID.")
            found = results[0]
            encoded = encode_exact(found.content)
            if encoded is None:
                raise MessageShapeError(
                    "This result would not come back equal in type and value; it is never archived."
                )
            for place in self._timeline.places:
                if self._timeline.messages[place.index] is target and place.number is not None:
                    return self._attach([place.number], facts, None)
            call_id, tag = canonical_id(found.call_id), self._tag_of(encoded)
            alike = [number for number, form in self._index.find(call_id, tag) if form == ORIGINAL]
            new = (
                None if any(number in self._reserved for number in alike) else (call_id, found.content, encoded, tag)
            )
            return self._attach(alike, facts, new)

    def _attach(
        self, numbers: Sequence[int], facts: "_Label", new: tuple[bytes, Content, Encoded, bytes] | None
    ) -> str:
        """Facts onto records, and onto a new record that waits for the first view of its result."""
        with self._vault.store.writing(self._vault.store_wait_ms, audited=True) as writer:
            row = self._session_under_lock(writer)
            if row.version != self._row.version:
                self._absorb(writer.results(row.scope_id, self._row.version))
                self._row = replace(row)
            row.version += 1
            changed = []
            for number in numbers:
                labelled = self._labelled(self._records[number], facts)
                labelled.version = row.version
                changed.append(labelled)
            added = []
            if new is not None:
                call_id, content, encoded, tag = new
                record = self._identity_row(
                    row,
                    call_id=call_id,
                    content=content,
                    encoded=encoded,
                    tokens=self._tokens_of(content),
                    tag=tag,
                    tool_name="",
                    seen=False,
                )
                row.next_number += 1
                added.append(self._labelled(record, facts))
            writer.update_results(changed)
            writer.insert_results(added)
            writer.update_session(row)
            touched = [format_result_id(record.number) for record in [*changed, *added]]
            details = {"results": touched, "sensitivity": sorted(facts.sensitivity), "kind": facts.kind}
            writer.append([self._leaf(audit.LABEL_SET, details=details)])
        self._absorb([*changed, *added])
        self._row = row
        return touched[-1]

    def _labelled(self, known: ResultRow, facts: "_Label") -> ResultRow:
        row = _clone(known)
        row.sensitivity = "\n".join(sorted({*filter(None, known.sensitivity.split("\n")), *facts.sensitivity}))
        if facts.kind is not None:
            if known.kind not in (None, facts.kind):
                raise PolicyError(f"Result r{row.number} has a kind already; a kind is set once.", key="kind")
            row.kind = facts.kind
        if facts.observed_at_us is not None:
            row.observed_at_us, row.observed_by = facts.observed_at_us, "host"
        if known.state == "archived":
            if (row.kind, row.observed_at_us) != (known.kind, known.observed_at_us):
                raise PolicyError(
                    f"Result r{row.number} is archived: only sensitivity may be added to it now.", key="kind"
                )
        elif known.seen and _loosens(self._vault, known, row):
            raise PolicyError(
                f"A label on r{row.number} would make the policy's decision less strict: label before the first view.",
                key="sensitivity",
            )
        return row

    # --- telling --------------------------------------------------------------------------------------------------

    def results(self) -> list[ResultInfo]:
        """Every result of this session, by number; receipts and refusals of ours are left out.

        Raises:
            StoreError, IntegrityError: the store cannot be read, or was changed.
            MisuseError: the archive was closed, or opened in another process.
        """
        with self._lock:
            self._vault.usable()
            self._refresh(self._vault.store_wait_ms)
            return [self._info(row) for _, row in sorted(self._records.items()) if row.own in (None, "copy")]

    def _info(self, row: ResultRow) -> ResultInfo:
        place = self._timeline.by_number.get(row.number)
        content = None if place is None or place.form == NOTE else self._original(place)
        protection = self._protection(row, place, content) if row.state == "live" else None
        return ResultInfo(
            id=format_result_id(row.number),
            tool=_text(row.tool_name),
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
        with self._lock:
            self._vault.usable()
            told = [row for row in self._records.values() if row.own in (None, "copy")]
            return SessionStats(
                requests=self._requests,
                window_tokens=self._window_tokens(),
                tokens_estimated=self._counter.estimated,
                results=len(told),
                archived=sum(row.state == "archived" for row in told),
                batches=self._row.batches,
                restores=self._row.restores,
                tokens_saved=self._row.tokens_saved,
                suspended=self._suspension(),
                outage=self._outage,
            )

    def _window_tokens(self) -> int:
        """Tokens of the newest view; only messages that changed since the last look are counted."""
        view = self._outage_view() if self._outage else self._rendered
        window = []
        for at, message in enumerate(view):
            if at < len(self._window) and self._window[at][0] is message:
                window.append(self._window[at])
            else:
                texts = self._dialect.message_texts(message)
                window.append((message, _MESSAGE_TOKENS + sum(map(self._counter.count, texts))))
        self._window = window
        return sum(tokens for _, tokens in window)


@dataclass(frozen=True, slots=True)
class _Draft:
    candidate: Candidate
    row: ResultRow
    encoded: Encoded | None


@dataclass(frozen=True, slots=True)
class _Label:
    sensitivity: frozenset[str]
    kind: str | None
    observed_at_us: int | None


def part_of(opened: Opened, selector: Selector, dialect: Dialect, matches_max: int) -> Restored:
    """What a selector cuts out of an opened original.

    Raises:
        FormatError: the part is not there, or the original is not text.
    """
    if selector.is_whole:
        return Restored(opened.content, opened.provenance, opened.sha256, opened.size_bytes)
    text = dialect.plain_text(opened.content)
    if text is None:
        raise FormatError("The original is not text alone, so it has no parts to ask for; restore it whole.")
    cut = excerpt(text, selector, matches_max=matches_max)
    return Restored(cut.text, opened.provenance, opened.sha256, opened.size_bytes, cut.what)


def _loosens(vault: Vault, before: ResultRow, after: ResultRow) -> bool:
    decide_archive = vault.policy.decide_archive
    return decide_archive(facts_of(before)).effect == "never" and decide_archive(facts_of(after)).effect == "allow"


def _receipt_data(receipt: Receipt) -> dict[str, Any]:
    return {
        "targets": [[target.result_id, target.tokens] for target in receipt.targets],
        "before": receipt.tokens_before,
        "after": receipt.tokens_after,
        "estimated": receipt.tokens_estimated,
    }


def _receipt_of(row: BatchRow) -> Receipt:
    data = json.loads(row.receipt)
    return Receipt(
        batch_id=row.batch_id.hex(),
        targets=tuple(Target(result_id, "ok", "", tokens) for result_id, tokens in data["targets"]),
        tokens_before=data["before"],
        tokens_after=data["after"],
        tokens_estimated=data["estimated"],
        replayed=True,
    )


def _clone(row: ResultRow) -> ResultRow:
    return ResultRow(*_VALUES(row))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
