"""The one read path: a result is found, its rows checked, permission asked, opened, audited, and only then released.

Find by org, session and number, and once more what it is a copy of -> check the rows' seals -> permission -> open in
memory (digest of the envelope, cipher, length and sha256 agree) -> commit the audit entry -> release. If the entry
cannot be committed, nothing is released; what is unknown, foreign and forbidden takes the same path and ends in the
same error. A live result, whose content the application's messages still hold, is not restored from here: a session
takes it from them, and no entry is written.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from evidence_archive.batch import REASON_CHARS_MAX
from evidence_archive.dialects import Dialect
from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    NotAvailableError,
    SealBrokenError,
    StoreBusyError,
    UnsupportedVersionError,
)
from evidence_archive.excerpt import Selector, excerpt
from evidence_archive.model import (
    Content,
    Principal,
    Provenance,
    Restored,
    ce,
    decode_exact,
    format_result_id,
    parse_result_id,
)
from evidence_archive.ports import ResultRow, ScopeRow, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.sealing.envelope import Opened as Unsealed
from evidence_archive.sealing.envelope import open_original
from evidence_archive.sealing.keyring import unwrap, wrap
from evidence_archive.vault import ScopeKeys, Vault, asked_session

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
    """An original, opened and checked, not yet released."""

    content: Content = field(repr=False)
    sha256: str
    size_bytes: int
    provenance: Provenance


Also = Callable[[Writer, SessionRow], None]
"""Writes more in a transaction of a restore, and may change the session's counters, which are stored after it."""


class Restoring:
    """Restores from one org's archive.

    Args:
        vault: the org's keys, store and log.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def close_part(self, keys: ScopeKeys, number: int, selector: Selector) -> bytes | None:
        """What a copy of a part was cut by, sealed, because a pattern is evidence text; ``None`` for the whole."""
        canonical = selector.canonical()
        return None if canonical is None else wrap(keys.key, canonical.encode(), self._part_context(keys, number))

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
        return Selector.from_canonical(unwrap(keys.key, row.part, self._part_context(keys, row.number)).decode())

    def _part_context(self, keys: ScopeKeys, number: int) -> bytes:
        return b"evidence-archive/v1/part\x00" + ce(
            self._vault.deployment, self._vault.org, keys.scope_id, format_result_id(number)
        )

    def find(self, principal: Principal, session_id: object, result_id: object, *, also: Also | None = None) -> Found:
        """A result the principal may have.

        Args:
            principal: who asks; of this vault's org.
            session_id, result_id: as asked for; malformed ones are as unknown as unknown ones.
            also: written with the audit entry of a denial.

        Raises:
            NotAvailableError: unknown, foreign, not archived or forbidden; the denial is in the log.
            SealBrokenError: a row on the way does not verify; the session is suspended.
        """
        name, number = _asked(session_id, result_id)
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
                    if row.state == "archived" and self._vault.may_restore(principal, session.subject, row, origin):
                        return Found(session, scope, row, origin)
        except IntegrityError:
            self.failed(principal, name, number, "integrity")
            raise
        self.denied(principal, name, number, also=also)
        raise NotAvailableError

    def opened(self, principal: Principal, found: Found) -> Opened:
        """The original in memory, checked; it may be released only after :meth:`granted`.

        Raises:
            SealBrokenError: it does not open, or is gone; the failure is logged and the session suspended.
            KeyringError: the keys at hand are not its keys.
        """
        origin = found.origin
        try:
            keys = self._vault.scope_keys(found.scope)
            dek, _ = self._vault.open_closed(keys, origin)
            if origin.original_id is None or origin.dek_id is None or origin.sealed_size is None:
                raise SealBrokenError("An archived result names no original: its row was changed.")
            with self._vault.store.peeking(self._vault.store_wait_ms) as reader:
                envelope = reader.envelope(origin.original_id)
            if envelope is None:
                raise SealBrokenError("A sealed original is gone: it was removed outside this library.")
            if origin.envelope_sha256 is None or sha256(envelope).digest() != origin.envelope_sha256:
                # Before the envelope is looked into: changed bytes must not pass for a newer version's.
                raise SealBrokenError("A sealed original is not what was stored: its bytes were changed.")
            opened = open_original(
                envelope,
                slot=self._vault.slot(found.session.session_id, origin),
                dek=dek,
                original_id=origin.original_id,
                dek_id=origin.dek_id,
                sealed_size=origin.sealed_size,
            )
            content = _decoded(opened)
        except IntegrityError:
            self.failed(principal, found.session.session_id, found.row.number, "integrity")
            raise
        except UnsupportedVersionError:
            self.failed(principal, found.session.session_id, found.row.number, "version", suspending=False)
            raise
        return Opened(
            content,
            opened.sha256.hex(),
            len(opened.data),
            self._vault.provenance(found.session.session_id, origin),
        )

    def granted(
        self, principal: Principal, found: Found, *, part: str | None, reason: str | None, also: Also | None = None
    ) -> None:
        """Commit the audit entry of a grant; only then may the original be released.

        Args:
            part: which part is released, in the form it is stored, without free text; ``None`` for the whole.
            reason: what was given as the reason, at most ``REASON_CHARS_MAX`` characters; stored sealed.
            also: writes more in the same transaction (the copy that an answer adds to a conversation).

        Raises:
            FormatError: the reason is too long, or no text; nothing is released.
            StoreBusyError: the result changed meanwhile; nothing is released.
        """
        if reason is not None and not (isinstance(reason, str) and len(reason) <= REASON_CHARS_MAX):
            raise FormatError(f"A reason is None, or a string of at most {REASON_CHARS_MAX:,} characters.")
        session_id, number = found.session.session_id, found.row.number

        def release(writer: Writer) -> None:
            again = writer.find(session_id, number)
            held = again if found.origin is found.row else writer.find(session_id, found.origin.number)
            if again is None or held is None or (again[2], held[2]) != (found.row, found.origin):
                raise StoreBusyError("The result changed while it was restored: ask again.")
            session = again[0]
            session.restores += 1
            if also is None:
                session.version += 1
            else:
                also(writer, session)
            writer.update_session(session)
            details = {"result": format_result_id(number), "part": part}
            writer.append(
                [
                    self._vault.leaf(
                        audit.RESTORE_GRANTED,
                        principal.subject,
                        session_id=session_id,
                        details=details,
                        reason=reason,
                    )
                ]
            )

        self._vault.transact(release)
        self._vault.log.info(
            "evidence_archive.restored",
            session=session_id,
            result=format_result_id(number),
            subject=principal.subject,
        )

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
            self._vault.transact(audited)
        except EvidenceArchiveError:  # perhaps it is the log that is broken; the suspension counts all the same
            with suppress(EvidenceArchiveError):
                self._vault.transact(unaudited, audited=False)
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


def _asked(session_id: object, result_id: object) -> tuple[str, int]:
    """What a restore asks for; what is malformed becomes what cannot exist."""
    try:
        return asked_session(session_id), parse_result_id(result_id)
    except FormatError:
        return "", 0


def _decoded(opened: Unsealed) -> Content:
    try:
        return decode_exact(opened.data, opened.encoding)
    except FormatError as error:
        raise SealBrokenError("A sealed original is not in the encoding its envelope names.") from error


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
