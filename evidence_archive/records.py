"""What a session knows: its committed records, the list it saw last, and the one way both change.

Everything here is derived from the store under the session's version; a process that comes second reads what the
first one committed. Records are registered under the write lock, looked up again there, so that two processes never
give two IDs.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from evidence_archive import notes
from evidence_archive.dialects import Dialect
from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    MessageShapeError,
    MisuseError,
    PolicyError,
    SealBrokenError,
    StoreUnavailableError,
    UnsupportedVersionError,
)
from evidence_archive.labelling import LabelFacts, Labelled, labelled_row, loosens
from evidence_archive.matching import LABELLED, ORIGINAL, Place, RecordIndex, Timeline
from evidence_archive.model import (
    MEDIA_TYPES,
    Content,
    Exact,
    Facts,
    Principal,
    ToolCall,
    bytes_of,
    canonical_id,
    encode_exact,
    format_result_id,
    text_of,
)
from evidence_archive.ports import Reader, ResultRow, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.restoring import Also
from evidence_archive.sealing.keyring import content_tag
from evidence_archive.vault import SHREDDED, ScopeKeys, Vault, facts_of

__all__ = ["KEPT", "TOOL_NAME_CHARS_MAX", "Records", "clone", "rendering"]

RECORD_WAIT_MS = 100
"""How long the record of a refusal waits for a lock when the refusal is about the store, in milliseconds."""

TOOL_NAME_CHARS_MAX = 1_024
"""Longest tool name an archived result may have; longer ones are stored cut, and their results stay in view."""

KEPT = frozenset({"span", "artifact"})
"""What of ours is archived although it is no result: turns that left the window, and products of the agent."""

_ESTIMATED = "e"
"""Ends the stored rendering of a note whose tokens are an estimate: another process may count in another way."""

T = TypeVar("T")

_VALUES = attrgetter(*(field.name for field in fields(ResultRow)))


class Records:
    """The records of one session in this process. Callers hold :attr:`lock`.

    Args:
        vault: the org's keys, store and log.
        principal: the owner.
        row: the session's row.
        keys: the session's keys.
        dialect: reads and writes messages.
        with_tools: whether the model is offered our tools; notes then name the restore tool, else the program's way.
    """

    def __init__(
        self,
        vault: Vault,
        principal: Principal,
        row: SessionRow,
        keys: ScopeKeys,
        dialect: Dialect,
        *,
        with_tools: bool,
    ) -> None:
        self.lock = threading.RLock()
        self.id = row.session_id
        self.principal = principal
        self.vault = vault
        self.keys = keys
        self.dialect = dialect
        self.with_tools = with_tools
        self.limits = vault.policy.limits
        self.our_tools = notes.OUR_TOOLS | (notes.WINDOW_TOOLS if vault.policy.window else frozenset())
        self.clock = vault.around.clock
        self.counter = vault.around.counter
        self.log = vault.log.bind(session=self.id)
        self.row = replace(row, version=-1)  # nothing is loaded yet
        self.rows: dict[int, ResultRow] = {}
        self.notes: dict[int, str] = {}
        self.timeline = Timeline(dialect)
        self.index = RecordIndex()
        self.reserved: set[int] = set()
        self.answered: set[int] = set()
        self.unrecorded: set[tuple[bytes, bytes]] = set()
        self.failures = 0
        self.suspended_until_ms = 0
        self._unwritten: str | None = None
        self._shredded: str | None = None
        self._view = threading.Lock()
        """Held while a view is made, by whoever holds :attr:`lock`."""
        self._view_ends_ms = 0
        """When that view has waited long enough for the store."""

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Meanwhile a view is made: all of it together waits for the store no longer than ``view_wait_ms_max``.

        Raises:
            MisuseError: one is made already, and waits for who asks for this one: the lock lets its own thread in.
        """
        if self._view.locked():
            raise MisuseError(
                "A summariser, judge or rule cannot ask for a view of the session whose view waits for it."
            )
        with self._view:
            self._view_ends_ms = self.clock.monotonic_ms() + self.limits.view_wait_ms_max
            yield

    @property
    def wait_ms(self) -> int:
        """How long a lock of the store may be waited for, in milliseconds, as things are.

        As long as a write may wait; while a view is made, no longer than what is left of its time. A store that
        answers is waited for a moment at least: a commit with much to seal is not refused because of a short lock.
        """
        if not self._view.locked():
            return self.vault.store_wait_ms
        least_ms = 1 if self.failures else min(RECORD_WAIT_MS, self.limits.view_wait_ms_max)
        left_ms = max(self._view_ends_ms - self.clock.monotonic_ms(), least_ms)
        return min(left_ms, self.vault.store_wait_ms)

    def transact(self, body: Callable[[Writer], T], *, audited: bool = True) -> T:
        """What the body returns, once its transaction is committed; a lock is waited for as :attr:`wait_ms` says.

        Args:
            body, audited: as for :meth:`evidence_archive.vault.Vault.transact`.

        Raises:
            StoreError: the store cannot be written.
        """
        return self.vault.transact(body, audited=audited, wait_ms=self.wait_ms)

    def match(self) -> list[Place]:
        """Number the timeline's results from the records; what is returned is unknown."""
        return self.timeline.match(self.index, self._archived, self.tag, tools_of=self._tools_of)

    def _archived(self, number: int) -> bool:
        return self.rows[number].state != "live"

    def _tools_of(self, number: int) -> frozenset[str]:
        row = self.rows[number]
        names = (row.tool_name, *(() if row.result_tool_name is None else (row.result_tool_name,)))
        return frozenset(map(text_of, names))

    def tag(self, content: Any) -> bytes | None:
        """The keyed tag of a content, ``None`` when it does not encode exactly.

        Prompt-cache marks are left out: clients move them from turn to turn, and the result stays the same.
        """
        encoded = encode_exact(self.dialect.unmarked(content))
        return None if encoded is None else self._tag_of(encoded)

    def tag_at(self, place: Place, content: Content) -> bytes | None:
        """The keyed tag of the original at a place; what matching computed for a text is not computed again."""
        if place.form == ORIGINAL and isinstance(place.content, str):
            return place.tag(self.tag)
        return self.tag(content)

    def _tag_of(self, encoded: Exact) -> bytes:
        return content_tag(self.keys.tag, encoded.digest, encoded.encoding)

    def refresh(self, wait_ms: int) -> None:
        """Take over what was committed since; one indexed row when that is nothing.

        Raises:
            SealBrokenError: rows of the session were removed or changed.
            StoreError: the store cannot be read.
        """
        with self.vault.store.peeking(wait_ms) as reader:
            row = reader.session(self.id)
        if self._unwritten is not None:
            self._write_suspension(self._unwritten)
        if row is not None and row == self.row:
            return
        with self.vault.store.reading(wait_ms) as reader:
            row = reader.session(self.id)
            if row is None or row.scope_id != self.keys.scope_id:
                raise SealBrokenError("This session's row is gone: it was removed outside this library.")
            self._rekey(reader, row)
            whole = self.row.version < 0 or row.version <= self.row.version
            # One version more than is new: what is known must still be there as it is known.
            changed = reader.results(row.scope_id, -1 if whole else self.row.version - 1)
            if not whole and not self._continue_what_is_known(changed, row):
                whole, changed = True, reader.results(row.scope_id, -1)
        if whole:
            if len(changed) != row.next_number - 1:
                raise SealBrokenError(
                    f"Of {row.next_number - 1} results of this session {len(changed)} are there: rows were removed."
                )
            self._forget()
        self.absorb(changed)
        self.row = row
        if whole:
            self.match()

    def _continue_what_is_known(self, changed: Sequence[ResultRow], row: SessionRow) -> bool:
        """Whether rows go on from the known state; not so when the store was put back, and written since."""
        version = self.row.version
        moved = {one.number: one for one in changed}
        known = {number: one for number, one in self.rows.items() if one.version == version}
        gone_on = all(
            moved[number] == one or moved[number].version > version if number in moved else False
            for number, one in known.items()
        )
        foreign = any(one.version <= version and self.rows.get(one.number) != one for one in changed)
        return gone_on and not foreign and len({*self.rows, *moved}) == row.next_number - 1

    def _forget(self) -> None:
        """Nothing is known any more: the first look, or a store that was put back to an older state."""
        self.rows.clear()
        self.notes.clear()
        self.reserved.clear()
        self.answered.clear()
        self.index = RecordIndex()
        self.timeline.forget_numbers()

    def absorb(self, rows: Iterable[ResultRow]) -> None:
        """Records as committed; the notes of archived ones are opened here, once."""
        for row in rows:
            number = row.number
            note_tag = row.note_tag
            if row.state == SHREDDED:
                self.notes[number] = self._tombstone(row)
                # Lists that were stored may hold the tombstone where they held the note; both are known again.
                empty: Content = "" if row.media_type == MEDIA_TYPES["text"] else []
                known = self.tag(self.dialect.noted(empty, self.notes[number]))
                if row.own not in KEPT:
                    self.index.add(number, row.call_id, row.content_tag, row.labelled_tag, known)
            elif row.state == "archived" and number not in self.notes:
                words = self.vault.open_closed(self.keys, row)[1]
                with suppress(UnsupportedVersionError):  # a newer library's note: the original is shown instead
                    self.notes[number] = self.note_text(row, words)
            self.rows[number] = row
            if row.own in KEPT:
                continue  # no message holds it
            self.index.add(number, row.call_id, row.content_tag, row.labelled_tag, note_tag)
            (self.reserved.discard if row.seen else self.reserved.add)(number)
            place = self.timeline.by_number.get(number)
            if place is not None:
                self.timeline.changed.add(place.index)

    def note_text(self, row: ResultRow, words: str) -> str:
        """What stands in the view for an archived result."""
        return notes.note(
            number=row.number,
            tag=self.row.tag,
            tool=text_of(row.tool_name),
            tokens=row.tokens,
            tokens_estimated=(row.rendering or "").endswith(_ESTIMATED),
            observed_at_us=row.observed_at_us,
            observed_by=row.observed_by,
            words=words,
            live_ask=row.live_ask or None,
            live=row.live_ask is not None,
            rendering=(row.rendering or "").removesuffix(_ESTIMATED),
        )

    def _tombstone(self, row: ResultRow) -> str:
        return notes.tombstone(
            number=row.number,
            tag=self.row.tag,
            tool=text_of(row.tool_name),
            observed_at_us=row.observed_at_us,
            observed_by=row.observed_by,
        )

    def label(self, number: int) -> str:
        """The line that names a result."""
        return notes.label(number, self.row.tag)

    @property
    def last_id(self) -> str | None:
        """The newest result ID of the session."""
        return format_result_id(self.row.next_number - 1) if self.row.next_number > 1 else None

    def register(self, unknown: list[Place]) -> None:
        """Give new results their IDs, looking again under the write lock; nothing new, no write."""
        met = [number for number in self.reserved if number in self.timeline.by_number]
        if not unknown and not met:
            return
        measured = {id(place): self._measured(place) for place in unknown}

        def given(writer: Writer) -> tuple[SessionRow, list[ResultRow], list[ResultRow]]:
            nonlocal unknown, met
            row = self.session_under_lock(writer)
            if row.version != self.row.version:
                self.catch_up(writer, row)
                unknown = self.match()
                met = [number for number in self.reserved if number in self.timeline.by_number]
            row.version += 1
            new: list[ResultRow] = []
            for place in unknown:
                new.append(self._new_row(row, place, measured.get(id(place)) or self._measured(place)))
                row.next_number += 1
            completed = [self._completed(number, row.version) for number in met]
            writer.insert_results(new)
            writer.update_results(completed)
            writer.update_session(row)
            return row, new, completed

        row, new, completed = self.transact(given, audited=False)
        for place, record in zip(unknown, new, strict=True):
            self.timeline.give(place, record.number)
        self.timeline.settle()
        self.absorb([*new, *completed])
        self.row = row

    def catch_up(self, writer: Writer, row: SessionRow) -> None:
        """Take over, under the lock, what another process committed."""
        self._rekey(writer, row)
        self.absorb(writer.results(row.scope_id, self.row.version))
        self.row = replace(row)

    def _rekey(self, reader: Reader, row: SessionRow) -> None:
        """The session's keys of the present: shredding one of its originals gives it others."""
        scope = reader.scope(row.scope_id)
        if scope is None:
            raise SealBrokenError("This session's key is gone: it was removed outside this library.")
        # Whatever the session's row says: what is sealed under a key that was destroyed opens no more.
        self._shredded = None if scope.wrapped else SHREDDED
        if scope.generation != self.keys.generation and scope.wrapped:
            self.keys = self.vault.scope_keys(scope)

    def session_under_lock(self, writer: Writer) -> SessionRow:
        """The session's row, inside a transaction.

        Raises:
            SealBrokenError: it is gone.
        """
        row = writer.session(self.id)
        if row is None:
            raise SealBrokenError("This session's row is gone: it was removed outside this library.")
        return row

    def _measured(self, place: Place) -> tuple[Exact, int]:
        encoded = encode_exact(place.content)
        if encoded is None:
            raise MessageShapeError("A tool result changed while it was registered: view the messages again.")
        return encoded, self.tokens_of(place.content)

    def tokens_of(self, content: Content) -> int:
        """Tokens of a content."""
        return sum(map(self.counter.count, self.dialect.content_texts(content)))

    def _new_row(self, session: SessionRow, place: Place, measured: tuple[Exact, int]) -> ResultRow:
        encoded, tokens = measured
        tag = place.tag(self.tag) or b""
        call = place.call or ToolCall("", "")
        ours = call.name in self.our_tools or (place.call_id, tag) in self.unrecorded
        row = self.identity_row(
            session,
            call_id=place.call_id,
            content=place.content,
            encoded=encoded,
            tokens=tokens,
            tag=tag,
            tool_name=call.name,
            result_tool_name=place.result_tool,
            own="error" if ours else None,
            bare=place.shown_bare,
        )
        # A label is set on a message before its place is known; of equal results it may have met another one.
        for number, form in self.index.find(place.call_id, tag):
            twin = self.rows[number]
            if form == ORIGINAL and twin.own is None and (twin.sensitivity or twin.kind):
                facts = LabelFacts(frozenset(filter(None, twin.sensitivity.split("\n"))), twin.kind, None)
                with suppress(PolicyError):
                    labelled = labelled_row(self.vault, row, facts)
                    if not loosens(self.vault, row, labelled):
                        row = labelled
        return row

    def identity_row(
        self,
        session: SessionRow,
        *,
        call_id: bytes,
        content: Content,
        encoded: Exact,
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
        size_chars = self.dialect.size_chars(content)
        large = size_chars >= self.limits.label_chars_min or self.dialect.has_other_parts(content)
        labelled = large and not bare
        number = session.next_number
        return ResultRow(
            scope_id=session.scope_id,
            number=number,
            version=session.version,
            seen=int(seen),
            call_id=call_id,
            tool_name=bytes_of(tool_name[:TOOL_NAME_CHARS_MAX]),
            result_tool_name=None if result_tool_name is None else bytes_of(result_tool_name[:TOOL_NAME_CHARS_MAX]),
            own=own,
            kind=kind,
            sensitivity=sensitivity,
            media_type=MEDIA_TYPES[encoded.encoding],
            size_chars=size_chars,
            size_bytes=encoded.size_bytes,
            tokens=tokens,
            labelled=int(labelled),
            observed_at_us=self.clock.now_us(),
            observed_by="first_view",
            content_tag=tag,
            labelled_tag=self.tag(self.dialect.labelled(content, self.label(number))) if labelled else None,
            origin=None,
            part=None,
            state="live",
        )

    def _completed(self, number: int, version: int) -> ResultRow:
        """A record the host labelled before the first view, now that its call is known."""
        row, place = clone(self.rows[number]), self.timeline.by_number[number]
        row.version, row.seen = version, 1
        row.tool_name = bytes_of((place.call.name if place.call else "")[:TOOL_NAME_CHARS_MAX])
        row.result_tool_name = (
            None if place.result_tool is None else bytes_of(place.result_tool[:TOOL_NAME_CHARS_MAX])
        )
        return row

    def original(self, place: Place) -> Content:
        """The exact content, whatever form of it the list holds; a copy where it could be changed by who gets it."""
        content: Content = place.content if isinstance(place.content, str) else deepcopy(place.content)
        if place.form == LABELLED and place.number is not None:
            return self.dialect.unlabelled(content, self.label(place.number))
        return content

    def trouble(self, error: EvidenceArchiveError) -> None:
        """Count a failure; suspend archiving after several in a row, or at once when stored bytes were changed."""
        self.failures += 1
        if isinstance(error, StoreUnavailableError):
            self.row.version = -1  # whatever is there when it comes back, all of it is read again
        self.log.warning("evidence_archive.trouble", error=type(error).__name__, failures=self.failures)
        if isinstance(error, IntegrityError):
            self.suspend("integrity")
        elif self.failures >= self.limits.store_failures_max and not self._cooling():
            self.suspended_until_ms = self.clock.monotonic_ms() + self.limits.suspension_seconds * 1_000
            self.log.error("evidence_archive.suspended", why="store")

    def suspend(self, why: str) -> None:
        """Suspend for good; what the store does not take now counts in this object, and is written later."""
        if self.row.suspended is None and self._unwritten is None:
            self.log.error("evidence_archive.suspended", why=why)
            self._write_suspension(why)

    def _write_suspension(self, why: str) -> None:
        self._unwritten = why

        def suspended(writer: Writer, audited: bool) -> None:
            row = self.session_under_lock(writer)
            if row.suspended is None:
                row.suspended = why
                row.version += 1
                writer.update_session(row)
                if audited:
                    writer.append([self.leaf(audit.SESSION_SUSPENDED, details={"why": why})])

        for audited in (True, False):  # perhaps it is the log that is broken
            with suppress(EvidenceArchiveError):
                wait_ms = min(self.wait_ms, self.limits.view_wait_ms_max)
                self.vault.transact(partial(suspended, audited=audited), audited=audited, wait_ms=wait_ms)
                self._unwritten = None
                self.row.suspended = why
                return

    def _cooling(self) -> bool:
        return self.clock.monotonic_ms() < self.suspended_until_ms

    @property
    def is_shredded(self) -> bool:
        """Whether the session's key was destroyed, as far as is known."""
        return self._shredded is not None

    def suspension(self) -> str | None:
        """Why archiving is suspended now, or ``None``."""
        return self.row.suspended or self._shredded or self._unwritten or ("store" if self._cooling() else None)

    def leaf(self, event: str, **named: Any) -> Callable[[int], bytes]:
        """An audit entry about this session by its owner."""
        return self.vault.leaf(event, self.principal.subject, session_id=self.id, **named)

    def mark_read(self, call: ToolCall) -> None:
        """A call of the model has reached us: it has read what the newest view showed it before that call."""
        timeline = self.timeline
        if any(_is_same_call(one, call) for one in timeline.calls()):
            return  # this very call stands in the view: answered once more, it tells nothing of what came after it
        turn = list(timeline.open_turn())
        made = timeline.last_calls()
        # Arguments are not compared: an application may hand the call over parsed, or written anew.
        alike = [(one.id, one.name) for one in made].count((call.id, call.name))
        answered = [place.call and (place.call.id, place.call.name) for place in turn].count((call.id, call.name))
        if alike > answered:
            return  # this very call stands open in the view: the model made it before the results behind it
        self.answered.update(place.number for place in turn if place.number is not None)

    def is_read(self, place: Place) -> bool:
        """Whether the model spoke, or called us, after a result came into view."""
        return self.timeline.is_read(place) or place.number in self.answered

    def facts_row(self, row: ResultRow) -> ResultRow:
        """Whose facts count: a restored copy has those of what it was taken from."""
        return row if row.origin is None else self.rows.get(row.origin, row)

    def facts(self, row: ResultRow, place: Place | None, content: Content | None) -> Facts:
        """What the policy may know of a result now."""
        text = None
        if self.vault.policy.needs_text and content is not None:
            text = self.dialect.plain_text(content)
            if text is None:
                text = "\n".join(_words(content))
        age_turns = 0 if place is None else self.timeline.turns_after(place.index)
        facts = facts_of(self.facts_row(row), age_turns=age_turns, text=text)
        if row.own is None and place is not None and place.call is not None and facts.tools != place.tools:
            # An equal result of another tool can be known under this record; the stricter decision counts.
            met = (name[:TOOL_NAME_CHARS_MAX] for name in place.tools)
            return replace(facts, tools=tuple(dict.fromkeys((*facts.tools, *met))))
        return facts

    def protection(self, row: ResultRow, facts: Facts) -> tuple[str, str] | None:
        """Which rule keeps a result in view, and why."""
        if self.facts_row(row).state == SHREDDED:
            return SHREDDED, "its original was shredded and could not come back"
        decision = self.vault.policy.decide_archive(facts)
        if decision.effect == "never":
            return decision.rule_id, decision.reason
        owner = self.row.subject
        # The facts hold every name the result is known under; only a copy has facts of its own besides.
        may = self.vault.may(self.principal, owner, facts)
        if not may or (row.origin is not None and not self.vault.may_restore(self.principal, owner, row)):
            return "restore", "this session could not restore it, so it may not set it aside"
        return None

    def record(self, leaf: Callable[[int], bytes], call: ToolCall | None, text: str, own: str) -> None:
        """Commit an audit entry and what our answer looks like, so that it is known as ours in any process."""
        # A store that just failed is not waited for once more.
        wait_ms = min(RECORD_WAIT_MS, self.wait_ms) if self.failures else self.wait_ms

        def recorded(writer: Writer) -> None:
            if call is not None:
                session = self.session_under_lock(writer)
                self.also(call, text, own)(writer, session)
                writer.update_session(session)
            writer.append([leaf])

        try:
            self.vault.transact(recorded, wait_ms=wait_ms)
        except EvidenceArchiveError as error:
            self.log.warning("evidence_archive.not_recorded", error=type(error).__name__)
            if call is not None and (tag := self.tag(text)) is not None:
                self.unrecorded.add((canonical_id(call.id), tag))

    def also(self, call: ToolCall, text: str, own: str) -> Also:
        """Writes the record of an answer of ours in a transaction that stores the session's row after it."""

        def write(writer: Writer, session: SessionRow) -> None:
            session.version += 1
            writer.insert_results([self.own_row(session, call, text, own)])

        return write

    def own_row(
        self, session: SessionRow, call: ToolCall, content: Content, own: str, origin: ResultRow | None = None
    ) -> ResultRow:
        """The record of an answer of ours, under the session's next number, which it takes.

        Raises:
            FormatError: the answer does not encode exactly.
        """
        encoded = encode_exact(content)
        if encoded is None:
            raise FormatError("An answer would not come back equal in type and value, so it is not given.")
        row = self.identity_row(
            session,
            call_id=canonical_id(call.id),
            content=content,
            encoded=encoded,
            tokens=self.tokens_of(content),
            tag=self.tag(content) or b"",
            tool_name=call.name,
            own=own,
            kind=None if origin is None else origin.kind,
            sensitivity="" if origin is None else origin.sensitivity,
        )
        session.next_number += 1
        return row

    def attach(
        self,
        choose: Callable[[], Labelled],
        facts: LabelFacts,
    ) -> str:
        """Facts onto records, and onto a new record that waits for the first view of its result.

        Args:
            choose: says which, asked under the write lock with everything committed taken in.
            facts: what to attach.

        Raises:
            PolicyError: they would loosen the decision on the very result that is meant.
            StoreError: the store cannot be written.
        """

        def attached(writer: Writer) -> tuple[SessionRow, Labelled, list[ResultRow]]:
            row = self.session_under_lock(writer)
            if row.version != self.row.version:
                self.catch_up(writer, row)
            row.version += 1
            target = choose()
            changed = []
            for number in self._families(target.numbers):
                known = self.rows[number]
                fitting = (
                    facts if target.certain or known.state == "live" else LabelFacts(facts.sensitivity, None, None)
                )
                try:
                    labelled = labelled_row(self.vault, known, fitting)
                except PolicyError:
                    if target.certain:
                        raise
                    continue
                labelled.version = row.version
                changed.append(labelled)
            added = []
            if target.new is not None:
                call_id, content, encoded, tag = target.new
                record = self.identity_row(
                    row,
                    call_id=call_id,
                    content=content,
                    encoded=encoded,
                    tokens=self.tokens_of(content),
                    tag=tag,
                    tool_name="",
                    seen=False,
                )
                row.next_number += 1
                added.append(labelled_row(self.vault, record, facts))
            writer.update_results(changed)
            writer.insert_results(added)
            writer.update_session(row)
            results = [format_result_id(record.number) for record in [*changed, *added]]
            details = {"results": results, "sensitivity": sorted(facts.sensitivity), "kind": facts.kind}
            writer.append([self.leaf(audit.LABEL_SET, details=details)])
            return row, target, [*changed, *added]

        row, target, touched = self.vault.transact(attached)
        self.absorb(touched)
        self.row = row
        return format_result_id(target.numbers[0] if target.numbers else touched[-1].number)

    def meant(self, call_id: bytes, content: Content, encoded: Exact) -> Labelled:
        """Which records a message stands for that is not itself in the newest view.

        Out of a view it carries a label or a note and is certain. Else it may be a result that was viewed, handed
        in as an equal copy, or one that is yet to come: both are labelled.
        """
        tag = self.tag(content) or b""
        found = self.index.find(call_id, tag)
        certain = [number for number, form in found if form != ORIGINAL]
        if certain:
            return Labelled(certain, True, None)
        alike = [number for number, _ in found]
        waiting = any(number in self.reserved for number in alike)
        return Labelled(alike, False, None if waiting else (call_id, content, encoded, tag))

    def _families(self, numbers: Sequence[int]) -> list[int]:
        """The results with what they are copies of and all copies of that: one content, one set of facts."""
        roots = {self.rows[number].origin or number for number in numbers}
        return [number for number, row in sorted(self.rows.items()) if (row.origin or number) in roots]


def clone(row: ResultRow) -> ResultRow:
    """A copy to change; rows that were handed out are not changed in place."""
    return ResultRow(*_VALUES(row))


def rendering(*, with_tools: bool, estimated: bool) -> str:
    """What is stored of how a note is rendered, so that it reads the same in any process.

    Args:
        with_tools: the model has the restore tool, which the note then names.
        estimated: the tokens of the original are an estimate.
    """
    return ("1" if with_tools else "1p") + (_ESTIMATED if estimated else "")


def _words(content: Any) -> Iterator[str]:
    """Every string in a content, as it stands there: what a rule on words has to look at."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value.values(), *value]
        elif isinstance(value, list):
            waiting += value


def _is_same_call(one: ToolCall, other: ToolCall) -> bool:
    """Whether two calls are one, where an application may hand the arguments over parsed, or written anew."""
    return (one.id, one.name) == (other.id, other.name) and _parsed(one.arguments) == _parsed(other.arguments)


def _parsed(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
