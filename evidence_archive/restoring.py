"""The one read path: a result is found, its rows checked, permission asked, opened, audited, and only then released.

Find by org, session and number, and once more what it is a copy of -> check the rows' seals -> permission -> open in
memory (digest of the envelope, cipher, length and sha256 agree) -> commit the audit entry -> release. If the entry
cannot be committed, nothing is released; what is unknown, foreign and forbidden takes the same path and ends in the
same error. A live result, whose content the application's messages still hold, is not restored from here: a session
takes it from them, and no entry is written.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from evidence_archive.batch import REASON_CHARS_MAX
from evidence_archive.dialects import Dialect
from evidence_archive.envelopes import Envelopes
from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    NotAvailableError,
    SealBrokenError,
    ShreddedError,
    StoreBusyError,
    UnsupportedVersionError,
)
from evidence_archive.excerpt import Cut, Selector, excerpt, line_count
from evidence_archive.model import (
    MEDIA_TYPES,
    Content,
    Principal,
    Provenance,
    Restored,
    decode_exact,
    encode_exact,
    format_result_id,
    parse_result_id,
)
from evidence_archive.ports import ResultRow, ScopeRow, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.sealing.envelope import Opened as Unsealed
from evidence_archive.sealing.keyring import unwrap, wrap
from evidence_archive.vault import INLINE_SIZE_MAX, SHREDDED, ScopeKeys, Vault, asked_session, part_context

__all__ = ["Also", "Found", "Opened", "Restoring", "part_of"]


@dataclass(frozen=True, slots=True)
class Found:
    """A result that a principal may have, as it was found."""

    session: SessionRow
    scope: ScopeRow
    row: ResultRow
    origin: ResultRow
    """Whose envelope holds the bytes: the row itself, or what a restored copy was taken from."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An original, opened and checked, or the part of it that was asked for; not yet released.

    Args:
        content: the whole, or the part; ``None`` where the whole was only looked at, because it is too large.
        part: which part, in words, or ``None`` for the whole.
        sha256, size_bytes, provenance: of the whole.
        lines: how many lines the whole has, where it is text.
        is_json: whether the whole is text that begins like JSON.
    """

    content: Any = field(repr=False)
    part: str | None
    sha256: str = field(repr=False)
    size_bytes: int
    provenance: Provenance
    lines: int | None = None
    is_json: bool = False

    def restored(self) -> Restored:
        """What is handed out once it may be."""
        return Restored(self.content, self.provenance, self.sha256, self.size_bytes, self.part)


Also = Callable[[Writer, SessionRow], None]
"""Writes more in a transaction of a restore, and may change the session's counters, which are stored after it."""


class Restoring:
    """Restores from one org's archive.

    Args:
        vault: the org's keys, store and log.
        failure_wait_ms: bound on waiting for a lock where a failure is logged, in milliseconds; as long as a write
            may wait by default.
    """

    def __init__(self, vault: Vault, *, failure_wait_ms: int | None = None) -> None:
        self._vault = vault
        self._failure_wait_ms = failure_wait_ms

    def close_part(self, keys: ScopeKeys, number: int, selector: Selector) -> bytes | None:
        """What a copy of a part was cut by, sealed, because a pattern is evidence text; ``None`` for the whole."""
        canonical = selector.canonical()
        return (
            None
            if canonical is None
            else wrap(keys.key, canonical.encode(), part_context(self._vault, keys.scope_id, number))
        )

    def selected(self, found: Found, selector: Selector) -> Selector:
        """What to cut out of an original for a result: the copy of a part is that part.

        Raises:
            FormatError: another part was asked of such a copy.
            SealBrokenError: what the copy is a copy of does not open.
        """
        row = found.row
        if row.part is None:
            return selector
        if not selector.is_whole:
            origin = format_result_id(row.origin or 0)
            raise FormatError(f"This is a copy of a part; ask {origin} itself for another part.")
        keys = self._vault.scope_keys(found.scope)
        context = part_context(self._vault, keys.scope_id, row.number)
        return Selector.from_canonical(unwrap(keys.key, row.part, context).decode())

    def find(
        self,
        principal: Principal,
        session_id: object,
        result_id: object,
        *,
        also: Also | None = None,
        as_owner: bool = False,
    ) -> Found:
        """A result the principal may have.

        Args:
            principal: who asks; of this vault's org.
            session_id, result_id: as asked for; malformed ones are as unknown as unknown ones.
            also: written with the audit entry of a denial.
            as_owner: the principal shares the session with its owner; whatever opens to the owner opens to it.

        Raises:
            NotAvailableError: unknown, foreign, not archived or forbidden; the denial is in the log.
            ShreddedError: the principal could have had it, and it was shredded; the denial is in the log.
            SealBrokenError: a row on the way does not verify; the session is suspended.
        """
        name, number = _asked(session_id, result_id)
        shredded = False
        try:
            with self._vault.store.reading(self._vault.store_wait_ms) as reader:
                found = reader.find(name, number)
                copied = None if found is None else found[2].origin
                # Asked even where there is nothing to ask for: a "no" costs the same statements whatever its cause.
                held = reader.find(name, number if copied is None else copied)
                if found is not None and held is None:
                    raise SealBrokenError("What a copy was taken from is gone: its row was removed.")
                if found is not None and held is not None:
                    session, scope, row = found
                    origin = row if copied is None else held[2]
                    kept = row.state in ("archived", SHREDDED)
                    owner = principal.subject if as_owner else session.subject
                    if kept and self._vault.may_restore(principal, owner, row, origin):
                        if SHREDDED in (row.state, origin.state):
                            shredded = True
                        else:
                            return Found(session, scope, row, origin)
        except IntegrityError:
            self.failed(principal, name, number, "integrity")
            raise
        self.denied(principal, name, number, also=None if shredded else also)
        if shredded:
            raise ShreddedError("This original was shredded: it was destroyed on purpose and cannot come back.")
        raise NotAvailableError

    def opened(
        self,
        principal: Principal,
        found: Found,
        selector: Selector,
        dialect: Dialect,
        *,
        tokens_max: int | None = None,
    ) -> Opened:
        """The original in memory, checked, or a part of it; it may be released only after :meth:`granted`.

        Lines and bytes of a large original are cut out while it passes by; nothing else of it is held.

        Args:
            principal, found: who asks, for what.
            selector: from :meth:`selected`.
            dialect: of the session.
            tokens_max: a whole that is known to have more is only looked at where it is large.

        Raises:
            FormatError: the part is not there, or the original is not text.
            SealBrokenError: it does not open, or is gone; the failure is logged and the session suspended.
            KeyringError: the keys at hand are not its keys.
            StoreError: database or objects are not at hand.
        """
        origin = found.origin
        is_text = origin.media_type == MEDIA_TYPES["text"]
        only_looked_at = (
            tokens_max is not None
            and selector.is_whole
            and origin.tokens > tokens_max
            and origin.size_bytes > INLINE_SIZE_MAX
        )
        if only_looked_at or (is_text and selector.lines is not None) or selector.byte_range is not None:
            cut = Cut(selector)
            unsealed = self._read(principal, found, cut.take)
            content: Content | bytes | None = None
            part = None
            if selector.byte_range is not None:
                content, part = cut.bytes()
            elif not only_looked_at:
                lines = cut.lines()
                content, part = lines.text, lines.what
            size_bytes, lines_of = cut.size_bytes, cut.line_count if is_text else None
            is_json = is_text and cut.first in (b"{", b"[")
        else:
            pieces: list[bytes] = []
            unsealed = self._read(principal, found, pieces.append)
            whole = b"".join(pieces)
            size_bytes = len(whole)
            del pieces
            content = self._decoded(principal, found, whole, unsealed)
            text = dialect.plain_text(content)
            lines_of = None if text is None else line_count(text)
            is_json = text is not None and text.lstrip()[:1] in ("{", "[")
            content, part = part_of(content, selector, dialect, self._vault.policy.limits.pattern_matches_max)
        provenance = self._vault.provenance(found.session.session_id, origin)
        return Opened(content, part, unsealed.sha256.hex(), size_bytes, provenance, lines_of, is_json)

    def _read(self, principal: Principal, found: Found, take: Callable[[bytes], object]) -> Unsealed:
        """Hand out the exact bytes of an original, which may be used once this returned; a failure is logged."""
        origin = found.origin
        try:
            keys = self._vault.scope_keys(found.scope)
            dek, _ = self._vault.open_closed(keys, origin)
            slot = self._vault.slot(found.session.session_id, origin)
            return Envelopes(self._vault).open(origin, slot, dek, take)
        except IntegrityError:
            self.failed(principal, found.session.session_id, found.row.number, "integrity")
            raise
        except UnsupportedVersionError:
            self.failed(principal, found.session.session_id, found.row.number, "version", suspending=False)
            raise

    def looked_at(self, principal: Principal, found: Found) -> Restored:
        """What :meth:`released_to` will hand out, checked as a whole, without its content.

        Raises:
            SealBrokenError, KeyringError, StoreError: as :meth:`opened`.
        """
        size_bytes = 0

        def count(piece: bytes) -> None:
            nonlocal size_bytes
            size_bytes += len(piece)

        unsealed = self._read(principal, found, count)
        provenance = self._vault.provenance(found.session.session_id, found.origin)
        return Restored(None, provenance, unsealed.sha256.hex(), size_bytes)

    def released_to(self, principal: Principal, found: Found, take: Callable[[bytes], object]) -> None:
        """Hand out a whole original that :meth:`looked_at` found whole, after :meth:`granted`, piece by piece.

        It is read and checked once more on the way; every piece is authentic in its place when it is handed out.
        """
        self._read(principal, found, take)

    def _decoded(self, principal: Principal, found: Found, data: bytes, unsealed: Unsealed) -> Content:
        try:
            return decode_exact(data, unsealed.encoding)
        except FormatError as error:
            self.failed(principal, found.session.session_id, found.row.number, "integrity")
            raise SealBrokenError("A sealed original is not in the encoding its envelope names.") from error

    def granted(
        self, principal: Principal, found: Found, *, part: str | None, reason: str | None, also: Also | None = None
    ) -> None:
        """Commit the audit entry of a grant; only then may the original be released.

        Args:
            principal, found: who gets what.
            part: which part is released, in the form it is stored, without free text; ``None`` for the whole.
            reason: what was given as the reason, at most ``REASON_CHARS_MAX`` characters; stored sealed.
            also: writes more in the same transaction (the copy that an answer adds to a conversation).

        Raises:
            FormatError: the reason is too long, or no text; nothing is released.
            StoreBusyError: the result changed meanwhile; nothing is released.
        """
        self.all_granted(principal, [(found, part)], reason=reason, also=also)

    def all_granted(
        self,
        principal: Principal,
        wanted: Sequence[tuple[Found, str | None]],
        *,
        reason: str | None,
        also: Also | None = None,
    ) -> None:
        """Commit the entries of several grants in one session at once; only then may any of them be released.

        Args:
            principal, reason, also: as for :meth:`granted`.
            wanted: at least one result of the session, each with the part that is released.

        Raises:
            FormatError, StoreBusyError: as there; nothing is released.
        """
        if reason is not None and not (isinstance(reason, str) and len(reason) <= REASON_CHARS_MAX):
            raise FormatError(f"A reason is None, or a string of at most {REASON_CHARS_MAX:,} characters.")
        session_id = wanted[0][0].session.session_id

        def granted(found: Found, part: str | None) -> Callable[[int], bytes]:
            details = {"result": format_result_id(found.row.number), "part": part}
            return self._vault.leaf(
                audit.RESTORE_GRANTED, principal.subject, session_id=session_id, details=details, reason=reason
            )

        def release(writer: Writer) -> None:
            for found, _ in wanted:
                session = _unchanged(writer, found)
            session.restores += len(wanted)
            if also is None:
                session.version += 1
            else:
                also(writer, session)
            writer.update_session(session)
            writer.append([granted(found, part) for found, part in wanted])

        self._vault.transact(release)
        for found, _ in wanted:
            self._vault.log.info(
                "evidence_archive.restored",
                session=session_id,
                result=format_result_id(found.row.number),
                subject=principal.subject,
            )

    def checked(self, principal: Principal, wanted: Sequence[tuple[Found, str | None]]) -> None:
        """Commit the entry of what a check of the host is handed; only then may it be.

        Args:
            principal: who posts.
            wanted: at least one result of one session, each with the part that is handed over.

        Raises:
            StoreBusyError: a result changed meanwhile; nothing is handed over.
        """
        details = {
            "results": [format_result_id(found.row.number) for found, _ in wanted],
            "parts": [part for _, part in wanted],
        }
        session_id = wanted[0][0].session.session_id
        leaf = self._vault.leaf(audit.EVIDENCE_CHECKED, principal.subject, session_id=session_id, details=details)

        def told(writer: Writer) -> None:
            for found, _ in wanted:
                _unchanged(writer, found)
            writer.append([leaf])

        self._vault.transact(told)

    def denied(
        self,
        principal: Principal,
        session_id: str,
        number: int,
        *,
        also: Also | None = None,
    ) -> None:
        """Commit the audit entry of a denial, with the same statements whatever its cause."""
        details = {"result": format_result_id(number), "why": "not_available"}

        def record(writer: Writer) -> None:
            if also is not None:
                self._with_session(writer, session_id, also)
            writer.append(
                [
                    self._vault.leaf(
                        audit.RESTORE_DENIED, principal.subject, session_id=session_id or None, details=details
                    )
                ]
            )

        self._vault.transact(record)
        self._vault.log.warning("evidence_archive.denied", session=session_id, subject=principal.subject)

    @staticmethod
    def _with_session(writer: Writer, session_id: str, also: Also) -> None:
        session = writer.session(session_id)
        if session is not None:
            also(writer, session)
            writer.update_session(session)

    def failed(
        self, principal: Principal, session_id: str, number: int, why: str, *, suspending: bool = True
    ) -> None:
        """Log a restore that failed, and suspend archiving in the session for good; never raises.

        Args:
            principal: who asked.
            session_id, number: for what.
            why: ``integrity``, or ``version`` for an original that a newer library sealed.
            suspending: whether stored bytes were changed, so that archiving has to stop.
        """
        details = {"result": format_result_id(number), "why": why}
        named = {"session_id": session_id or None}
        leaves = [self._vault.leaf(audit.RESTORE_FAILED, principal.subject, details=details, **named)]

        def audited(writer: Writer) -> None:
            also = []
            if suspending and self._suspended(writer, session_id, why):
                also = [self._vault.leaf(audit.SESSION_SUSPENDED, principal.subject, details={"why": why}, **named)]
            writer.append(leaves + also)

        def unaudited(writer: Writer) -> None:
            if suspending:
                self._suspended(writer, session_id, why)

        try:
            self._vault.transact(audited, wait_ms=self._failure_wait_ms)
        except EvidenceArchiveError:  # perhaps it is the log that is broken; the suspension counts all the same
            with suppress(EvidenceArchiveError):
                self._vault.transact(unaudited, audited=False, wait_ms=self._failure_wait_ms)
        event = "evidence_archive.suspended" if suspending else "evidence_archive.failed"
        self._vault.log.error(event, session=session_id, result=format_result_id(number), why=why)

    @staticmethod
    def _suspended(writer: Writer, session_id: str, why: str) -> bool:
        """Suspend a session; whether that changed anything."""
        with suppress(IntegrityError):
            session = writer.session(session_id)
            if session is not None and session.suspended is None:
                session.suspended = why
                session.version += 1
                writer.update_session(session)
                return True
        return False


def _unchanged(writer: Writer, found: Found) -> SessionRow:
    """The session's row, where a result is under the lock what it was when it was opened.

    Raises:
        StoreBusyError: it changed meanwhile.
    """
    session_id = found.session.session_id
    again = writer.find(session_id, found.row.number)
    held = again if found.origin is found.row else writer.find(session_id, found.origin.number)
    if again is None or held is None or (again[2], held[2]) != (found.row, found.origin):
        raise StoreBusyError("The result changed while it was restored: ask again.")
    return again[0]


def _asked(session_id: object, result_id: object) -> tuple[str, int]:
    """What a restore asks for; what is malformed becomes what cannot exist."""
    try:
        return asked_session(session_id), parse_result_id(result_id)
    except FormatError:
        return "", 0


def part_of(
    content: Content, selector: Selector, dialect: Dialect, matches_max: int
) -> tuple[Content | bytes, str | None]:
    """What a selector cuts out of a content, and which part it is, in words.

    Raises:
        FormatError: the part is not there, or the content is not text.
    """
    if selector.is_whole:
        return content, None
    if selector.byte_range is not None:
        exact = encode_exact(content)
        if exact is None:
            raise FormatError("The content has no exact bytes, because it would not come back equal.")
        cut = Cut(selector)
        for piece in exact.pieces():
            cut.take(piece)
        return cut.bytes()
    text = dialect.plain_text(content)
    if text is None:
        raise FormatError("The original is not text alone, so it has no parts to ask for; restore it whole.")
    found = excerpt(text, selector, matches_max=matches_max)
    return found.text, found.what
