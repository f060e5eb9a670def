"""One org's keys, store and audit log, and the one read path there is.

A restore goes: find by org, session and number, and once more what it is a copy of -> check the rows' seals ->
permission -> open in memory (digest of the envelope, cipher, length and sha256 agree) -> commit the audit entry ->
release. If the entry cannot be committed, nothing is released; what is unknown, foreign and forbidden takes the same
path and ends in the same error. A live result, whose content the application's messages still hold, is not restored
from here: a session takes it from them, and no entry is written.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from evidence_archive import access
from evidence_archive.dialects import Dialect
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    MisuseError,
    NotAvailableError,
    SealBrokenError,
    StoreBusyError,
    UnsupportedVersionError,
)
from evidence_archive.events import Events
from evidence_archive.excerpt import Selector, excerpt
from evidence_archive.keys import unwrap_checked
from evidence_archive.model import (
    Content,
    Facts,
    Principal,
    Provenance,
    Restored,
    ce,
    checked_name,
    decode_exact,
    format_result_id,
    parse_result_id,
)
from evidence_archive.policy import Policy
from evidence_archive.ports import (
    Clock,
    Entropy,
    KeyProvider,
    OrgRow,
    OrgStore,
    ResultRow,
    ScopeRow,
    SessionRow,
    Store,
    TokenCounter,
    Writer,
)
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.sealing.envelope import Opened as Unsealed
from evidence_archive.sealing.envelope import Slot, open_original
from evidence_archive.sealing.keyring import (
    OrgKeys,
    open_closed,
    org_keys,
    tag_key,
    unwrap,
    wrap,
    wrap_context,
)

__all__ = [
    "OTHER_PROCESS",
    "Also",
    "AuditReport",
    "Found",
    "Opened",
    "ScopeKeys",
    "Surroundings",
    "Vault",
    "asked_session",
    "facts_of",
    "open_vault",
    "part_of",
]

LEAVES_PER_READ = 1_000
"""Audit entries fetched at once."""

REASON_CHARS_MAX = 2_000
"""Longest reason of a restore, in characters."""

SCOPES_HELD_MAX = 10_000
"""Session keys held in memory; the provider is asked again for one that had to go."""

OTHER_PROCESS = "This archive was opened in another process: open it again after fork."

_GENERATION = 1
_TRUST = "tool-output"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an archive hands to everything below it."""

    store: Store
    keys: KeyProvider
    policy: Policy
    counter: TokenCounter
    clock: Clock
    entropy: Entropy = os.urandom


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """A session's key, and the tag key derived from it."""

    scope_id: bytes
    key: bytes = field(repr=False)
    tag: bytes = field(repr=False)


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


@dataclass(frozen=True, slots=True)
class AuditReport:
    """An org's audit log, read and rehashed.

    The entries are held in memory together, some hundred bytes each: ask a long log from ``start`` on.

    Args:
        size: entries the head counts.
        root_hex: RFC 6962 root over the entries as they were read.
        intact: every entry is there, decodes, and hashes to what the head holds. An empty log is not intact.
        findings: what is wrong, one sentence each.
        entries: from ``start`` on.
    """

    size: int
    root_hex: str
    intact: bool
    findings: tuple[str, ...]
    entries: tuple[audit.Leaf, ...]


def facts_of(row: ResultRow, *, age_turns: int = 0, text: str | None = None) -> Facts:
    """What a policy may know of a stored result.

    Args:
        row: the result, or for a restored copy what it was taken from.
        age_turns: turns of the model after it; assistant messages in a row are one.
        text: its text, where a rule asks for it.
    """
    called = row.tool_name.decode("utf-8", "surrogatepass")
    named = None if row.result_tool_name is None else row.result_tool_name.decode("utf-8", "surrogatepass")
    return Facts(
        tools=(called,) if named is None or named == called else (called, named),
        sensitivity=frozenset(filter(None, row.sensitivity.split("\n"))),
        kind=row.kind,
        size_chars=row.size_chars,
        age_turns=age_turns,
        text=text,
    )


class Vault:
    """One org as the core uses it; made by :func:`open_vault`.

    Args:
        around: store, keys, policy, clock, counter, entropy.
        row: the org's row, checked.
        keys: the org's derived keys.
        store: the store scoped to the org.
    """

    def __init__(self, around: Surroundings, row: OrgRow, keys: OrgKeys, store: OrgStore) -> None:
        self.org = row.org
        self.deployment = row.deployment
        self.around = around
        self.policy = around.policy
        self.store = store
        self.closed = False
        self.log = Events(org=row.org)
        self._keys = keys
        self._pid = os.getpid()
        self._scopes: dict[bytes, ScopeKeys] = {}
        self._lock = threading.Lock()

    @property
    def store_wait_ms(self) -> int:
        """How long a write or a restore may wait for a lock."""
        return self.policy.limits.store_wait_ms_max

    def usable(self) -> None:
        """Return only if the archive is open, and was opened in this process.

        Takes no lock, so that a process that was forked while one was held is refused instead of waiting for it.

        Raises:
            MisuseError: it was closed, or opened in another process.
        """
        if os.getpid() != self._pid:
            raise MisuseError(OTHER_PROCESS)
        if self.closed:
            raise MisuseError("This archive was closed: open it again.")

    # --- audit --------------------------------------------------------------------------------------------------

    def leaf(
        self,
        event: str,
        subject: str,
        *,
        session_id: str | None = None,
        batch_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> Callable[[int], bytes]:
        """An audit entry that waits for its sequence number.

        Args:
            event, subject, session_id, batch_id, details: see :class:`evidence_archive.proof.leaf.Leaf`.
            reason: what somebody gave as the reason; it is stored sealed.
        """
        time_us = self.around.clock.now_us()

        def build(seq: int) -> bytes:
            sealed = None
            if reason is not None:
                sealed = wrap(self._keys.audit, reason.encode("utf-8", "surrogatepass"), self._reason_context(seq))
            return audit.encode_leaf(
                org=self.org,
                seq=seq,
                time_us=time_us,
                event=event,
                subject=subject,
                session_id=session_id,
                batch_id=batch_id,
                policy_digest=self.policy.digest,
                details=details,
                sealed_reason=sealed,
            )

        return build

    def _reason_context(self, seq: int) -> bytes:
        return b"evidence-archive/v1/reason\x00" + ce(self.deployment, self.org, seq)

    def audit_report(self, start: int) -> AuditReport:
        """The org's log, rehashed from its first entry; entries from ``start`` on are returned decoded."""
        findings: list[str] = []
        entries: list[audit.Leaf] = []
        frontier = Frontier()
        last = None
        with self.store.reading(self.store_wait_ms) as reader:
            head = reader.head()
            while rows := reader.leaves(frontier.size, LEAVES_PER_READ):
                for seq, data in rows:
                    if seq != frontier.size:
                        findings.append(f"Entry {frontier.size} is missing.")
                        break
                    last = leaf_hash(data)
                    frontier.append(last)
                    try:
                        entry = audit.decode_leaf(data)
                        if (entry.org, entry.seq) != (self.org, seq):
                            raise AuditBrokenError("It belongs elsewhere.")
                    except EvidenceArchiveError:
                        findings.append(f"Entry {seq} is not one this library wrote for this place.")
                        continue
                    if seq >= start:
                        entries.append(entry)
                else:
                    continue
                break
        if frontier.size != head.size:
            findings.append(f"The head counts {head.size} entries, {frontier.size} are there in order.")
        elif frontier.to_bytes() != head.frontier or (last is not None and last != head.last_leaf_hash):
            findings.append("The entries do not hash to what the head holds.")
        if head.size == 0:
            findings.append("The log is empty: nothing was checked.")
        return AuditReport(head.size, frontier.root().hex(), not findings, tuple(findings), tuple(entries))

    # --- keys ---------------------------------------------------------------------------------------------------

    def new_scope(self) -> tuple[ScopeRow, ScopeKeys]:
        """A new session key, wrapped under the org's key-encryption key."""
        around = self.around
        scope_id, key = around.entropy(16), around.entropy(32)
        version = around.keys.current_version(self.org)
        row = ScopeRow(
            scope_id=scope_id,
            wrapped=around.keys.wrap(self.org, version, key, self._scope_context(scope_id, version)),
            kek_version=version,
            kek_fingerprint=around.keys.fingerprint(self.org, version),
            generation=_GENERATION,
            created_at_us=around.clock.now_us(),
        )
        return row, ScopeKeys(scope_id, key, tag_key(key))

    def scope_keys(self, row: ScopeRow) -> ScopeKeys:
        """A session's keys; the provider is asked once per session, while at most ``SCOPES_HELD_MAX`` are in use."""
        with self._lock:
            keys = self._scopes.get(row.scope_id)
        if keys is None:
            key = unwrap_checked(
                self.around.keys,
                self.org,
                version=row.kek_version,
                fingerprint=row.kek_fingerprint,
                wrapped=row.wrapped,
                context=self._scope_context(row.scope_id, row.kek_version),
            )
            keys = ScopeKeys(row.scope_id, key, tag_key(key))
            with self._lock:
                if len(self._scopes) >= SCOPES_HELD_MAX:
                    del self._scopes[next(iter(self._scopes))]
                self._scopes[row.scope_id] = keys
        return keys

    def _scope_context(self, scope_id: bytes, version: int) -> bytes:
        return wrap_context(
            "scope",
            deployment=self.deployment,
            org=self.org,
            scope_id=scope_id,
            child=None,
            generation=_GENERATION,
            kek_version=version,
        )

    def open_closed(self, keys: ScopeKeys, row: ResultRow) -> tuple[bytes, str]:
        """The key and the note of an archived result.

        Raises:
            SealBrokenError: they do not open, or are gone.
        """
        if row.closed is None:
            raise SealBrokenError("An archived result has no sealed key: its row was changed.")
        return open_closed(
            keys.key,
            row.closed,
            deployment=self.deployment,
            org=self.org,
            scope_id=keys.scope_id,
            original_id=row.original_id,
            dek_id=row.dek_id,
            result_id=format_result_id(row.number),
        )

    def close_part(self, keys: ScopeKeys, number: int, selector: Selector) -> bytes | None:
        """What a copy of a part was cut by, sealed, because a pattern is evidence text; ``None`` for the whole."""
        canonical = selector.canonical()
        return None if canonical is None else wrap(keys.key, canonical.encode(), self._part_context(keys, number))

    def selected(self, found: "Found", selector: Selector) -> Selector:
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
        keys = self.scope_keys(found.scope)
        return Selector.from_canonical(unwrap(keys.key, row.part, self._part_context(keys, row.number)).decode())

    def _part_context(self, keys: ScopeKeys, number: int) -> bytes:
        return b"evidence-archive/v1/part\x00" + ce(
            self.deployment, self.org, keys.scope_id, format_result_id(number)
        )

    # --- where an original lies -----------------------------------------------------------------------------------

    def slot(self, session_id: str, row: ResultRow) -> Slot:
        """The place an original is bound to."""
        return Slot(
            deployment=self.deployment,
            org=self.org,
            session_id=session_id,
            result_id=format_result_id(row.number),
            tool_call_id=row.call_id,
            tool_name=row.tool_name.decode("utf-8", "surrogatepass"),
            kind=row.kind,
            media_type=row.media_type,
            observed_at_us=row.observed_at_us,
        )

    def provenance(self, session_id: str, row: ResultRow) -> Provenance:
        """Where a result comes from, for people."""
        return Provenance(
            org=self.org,
            session_id=session_id,
            result_id=format_result_id(row.number),
            tool_name=row.tool_name.decode("utf-8", "surrogatepass"),
            tool_call_id=row.call_id.decode("utf-8", "surrogatepass"),
            kind=row.kind,
            sensitivity=tuple(filter(None, row.sensitivity.split("\n"))),
            media_type=row.media_type,
            observed_at_us=row.observed_at_us,
            observed_by=row.observed_by,
        )

    # --- the read path --------------------------------------------------------------------------------------------

    def find(
        self, principal: Principal, session_id: object, result_id: object, *, also: "Also | None" = None
    ) -> Found:
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
            with self.store.reading(self.store_wait_ms) as reader:
                found = reader.find(name, number)
                copied = None if found is None else found[2].origin
                # Asked even where there is nothing to ask for: a "no" costs the same statements whatever its cause.
                held = reader.find(name, number if copied is None else copied)
                if found is not None and held is None:
                    raise SealBrokenError("What a copy was taken from is gone: its row was removed.")
                if found is not None and held is not None:
                    session, scope, row = found
                    origin = row if copied is None else held[2]
                    if row.state == "archived" and self.may_restore(principal, session.subject, row, origin):
                        return Found(session, scope, row, origin)
        except IntegrityError:
            self.failed(principal, name, number, "integrity")
            raise
        self.denied(principal, name, number, also=also)
        raise NotAvailableError

    def may(self, principal: Principal, owner: str, facts: Facts) -> bool:
        """Whether a principal could have back what these facts describe."""
        return access.decide(principal, self.org, owner, self.policy.restore_openings(facts))

    def may_restore(self, principal: Principal, owner: str, *rows: ResultRow) -> bool:
        """Whether a principal could have a result back.

        Args:
            principal: who asks.
            owner: the session's first subject.
            rows: the result; for a restored copy also what it was taken from, whose rules hold for the copy too.
        """
        return all(self.may(principal, owner, facts_of(row)) for row in rows)

    def opened(self, principal: Principal, found: Found) -> Opened:
        """The original in memory, checked; it may be released only after :meth:`granted`.

        Raises:
            SealBrokenError: it does not open, or is gone; the failure is logged and the session suspended.
            KeyringError: the keys at hand are not its keys.
        """
        origin = found.origin
        try:
            keys = self.scope_keys(found.scope)
            dek, _ = self.open_closed(keys, origin)
            if origin.original_id is None or origin.dek_id is None or origin.sealed_size is None:
                raise SealBrokenError("An archived result names no original: its row was changed.")
            with self.store.peeking(self.store_wait_ms) as reader:
                envelope = reader.envelope(origin.original_id)
            if envelope is None:
                raise SealBrokenError("A sealed original is gone: it was removed outside this library.")
            if origin.envelope_sha256 is None or sha256(envelope).digest() != origin.envelope_sha256:
                # Before the envelope is looked into: changed bytes must not pass for a newer version's.
                raise SealBrokenError("A sealed original is not what was stored: its bytes were changed.")
            opened = open_original(
                envelope,
                slot=self.slot(found.session.session_id, origin),
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
            self.provenance(found.session.session_id, origin),
        )

    def granted(
        self, principal: Principal, found: Found, *, part: str | None, reason: str | None, also: "Also | None" = None
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
        with self.store.writing(self.store_wait_ms, audited=True) as writer:
            again = writer.find(session_id, number)
            held = again if found.origin is found.row else writer.find(session_id, found.origin.number)
            if again is None or held is None or (again[2], held[2]) != (found.row, found.origin):
                raise StoreBusyError("The result changed while it was restored: ask again.")
            session = again[0]
            session.restores += 1
            if also is not None:
                also(writer, session)
            writer.update_session(session)
            details = {"result": format_result_id(number), "part": part}
            writer.append(
                [
                    self.leaf(
                        audit.RESTORE_GRANTED,
                        principal.subject,
                        session_id=session_id,
                        details=details,
                        reason=reason,
                    )
                ]
            )
        self.log.info(
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
        why: str = "not_available",
        also: "Also | None" = None,
    ) -> None:
        """Commit the audit entry of a denial, with the same statements whatever its cause."""
        details = {"result": format_result_id(number), "why": why}
        with self.store.writing(self.store_wait_ms, audited=True) as writer:
            if also is not None:
                self._with_session(writer, session_id, also)
            writer.append(
                [self.leaf(audit.RESTORE_DENIED, principal.subject, session_id=session_id or None, details=details)]
            )
        self.log.warning("evidence_archive.denied", session=session_id, subject=principal.subject)

    @staticmethod
    def _with_session(writer: Writer, session_id: str, also: "Also") -> None:
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
        leaves = [self.leaf(audit.RESTORE_FAILED, principal.subject, session_id=session_id or None, details=details)]
        for audited in (True, False):  # perhaps it is the log that is broken; the suspension counts all the same
            try:
                with self.store.writing(self.store_wait_ms, audited=audited) as writer:
                    if suspending and self._suspended(writer, session_id, why):
                        details = {"why": why}
                        leaves.append(
                            self.leaf(
                                audit.SESSION_SUSPENDED, principal.subject, session_id=session_id, details=details
                            )
                        )
                    if audited:
                        writer.append(leaves)
                break
            except EvidenceArchiveError:
                del leaves[1:]
        event = "evidence_archive.suspended" if suspending else "evidence_archive.failed"
        self.log.error(event, session=session_id, result=format_result_id(number), why=why)

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

    def resume(self, principal: Principal, session_id: str) -> None:
        """Lift a durable suspension.

        Raises:
            NotAvailableError: there is no such session here.
        """
        with self.store.writing(self.store_wait_ms, audited=True) as writer:
            session = writer.session(asked_session(session_id))
            if session is None:
                raise NotAvailableError
            details = {"was": session.suspended or "not suspended"}
            session.suspended = None
            session.version += 1
            writer.update_session(session)
            writer.append(
                [self.leaf(audit.SESSION_RESUMED, principal.subject, session_id=session_id, details=details)]
            )


Also = Callable[[Writer, SessionRow], None]
"""Writes more in a transaction of the vault, and may change the session's counters, which are stored after it."""


def asked_session(session_id: object) -> str:
    """A session id as asked for; what is malformed becomes what cannot exist."""
    try:
        return checked_name(session_id, "session id")
    except FormatError:
        return ""


def _asked(session_id: object, result_id: object) -> tuple[str, int]:
    """What a restore asks for; what is malformed becomes what cannot exist."""
    try:
        return asked_session(session_id), parse_result_id(result_id)
    except FormatError:
        return "", 0


def open_vault(around: Surroundings, org: str, *, create: bool = True) -> Vault:
    """The vault of an org, its keys made on first use.

    Args:
        around: store, keys, policy, clock, counter, entropy.
        org: a checked name.
        create: make the org where it is new; looking around must not.

    Raises:
        NotAvailableError: there is no such org, and it is not to be made.
        WrongKeyError: the keys at hand are not the ones the org was made with.
        KeyNotFoundError: the key version the org was made with is missing.
        SealBrokenError: the org's row was changed.
    """
    row = around.store.org(org)
    if row is None:
        if not create:
            raise NotAvailableError
        row = _create(around, org)
    aux = unwrap_checked(
        around.keys,
        org,
        version=row.kek_version,
        fingerprint=row.kek_fingerprint,
        wrapped=row.aux_wrapped,
        context=_aux_context(row.deployment, org, row.kek_version),
    )
    keys = org_keys(aux)
    return Vault(around, row, keys, around.store.scoped(row, keys.row))


def _create(around: Surroundings, org: str) -> OrgRow:
    aux, deployment = around.entropy(32), around.entropy(16)
    version = around.keys.current_version(org)
    now_us = around.clock.now_us()
    row = OrgRow(
        org=org,
        deployment=deployment,
        aux_wrapped=around.keys.wrap(org, version, aux, _aux_context(deployment, org, version)),
        kek_version=version,
        kek_fingerprint=around.keys.fingerprint(org, version),
        generation=_GENERATION,
        created_at_us=now_us,
    )

    def created(seq: int) -> bytes:
        return audit.encode_leaf(
            org=org,
            seq=seq,
            time_us=now_us,
            event=audit.KEY_CREATED,
            subject="evidence_archive",
            policy_digest=around.policy.digest,
            details={"level": "aux", "kek_version": version},
        )

    return around.store.create_org(row, org_keys(aux).row, [created])


def _aux_context(deployment: bytes, org: str, version: int) -> bytes:
    return wrap_context(
        "aux",
        deployment=deployment,
        org=org,
        scope_id=None,
        child=None,
        generation=_GENERATION,
        kek_version=version,
    )


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
