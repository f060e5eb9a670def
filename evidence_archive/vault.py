"""One org's keys, store and audit log, opened: what reading and writing share."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from evidence_archive import access
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    MisuseError,
    NotAvailableError,
    SealBrokenError,
    StoreConflictError,
    StoreUnavailableError,
)
from evidence_archive.events import Events
from evidence_archive.keys import unwrap_checked
from evidence_archive.model import (
    Facts,
    Principal,
    Provenance,
    ce,
    checked_name,
    format_result_id,
    text_of,
)
from evidence_archive.policy import Policy
from evidence_archive.ports import (
    Clock,
    Entropy,
    KeyProvider,
    ObjectStore,
    OrgRow,
    OrgStore,
    ResultRow,
    ScopeRow,
    Store,
    TokenCounter,
    Writer,
)
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.sealing.envelope import Slot
from evidence_archive.sealing.keyring import (
    OrgKeys,
    open_closed,
    org_keys,
    tag_key,
    wrap,
    wrap_context,
)

__all__ = [
    "INLINE_SIZE_LIMIT",
    "INLINE_SIZE_MAX",
    "OTHER_PROCESS",
    "AuditReport",
    "ScopeKeys",
    "Surroundings",
    "Vault",
    "asked_session",
    "facts_of",
    "open_vault",
]

CONFLICT_TRIES_MAX = 5
"""How often a transaction is run because another one was in its way."""

INLINE_SIZE_MAX = 1024 * 1024
"""Largest original that lies in the database where there is an object store, in bytes; a setting."""

INLINE_SIZE_LIMIT = 64 * 1024 * 1024
"""Largest original that may lie in the database at all: it is in memory as a whole when it moves."""

LEAVES_PER_READ = 1_000
"""Audit entries fetched at once."""

SCOPES_HELD_MAX = 10_000
"""Session keys held in memory; the provider is asked again for one that had to go."""

OTHER_PROCESS = "This archive was opened in another process: open it again after fork."

_GENERATION = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an archive hands to everything below it."""

    store: Store
    keys: KeyProvider
    policy: Policy
    counter: TokenCounter
    clock: Clock
    entropy: Entropy = os.urandom
    objects: ObjectStore | None = None
    inline_size_max: int = INLINE_SIZE_MAX


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """A session's key, and the tag key derived from it."""

    scope_id: bytes
    key: bytes = field(repr=False)
    tag: bytes = field(repr=False)


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
    called = text_of(row.tool_name)
    named = None if row.result_tool_name is None else text_of(row.result_tool_name)
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
    def objects(self) -> ObjectStore:
        """Where large originals lie.

        Raises:
            StoreUnavailableError: the archive was opened without.
        """
        if self.around.objects is None:
            raise StoreUnavailableError("This original lies in an object store: open the archive with objects=.")
        return self.around.objects

    @property
    def original_bytes_max(self) -> int:
        """The largest original that can be archived: what the policy says, less without an object store."""
        asked = self.policy.limits.original_bytes_max
        return asked if self.around.objects is not None else min(asked, INLINE_SIZE_LIMIT)

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

    def transact(self, body: Callable[[Writer], T], *, audited: bool = True, wait_ms: int | None = None) -> T:
        """What the body returns, once its transaction is committed; run again where another one was in its way.

        Args:
            body: reads and writes; it may run several times, and what it did to the store then never was.
            audited: it appends to the log, so the head is locked first.
            wait_ms: bound on waiting for a lock, in milliseconds; as long as a write may wait by default.

        Raises:
            StoreConflictError: another one was in the way ``CONFLICT_TRIES_MAX`` times, or for longer than that.
        """
        wait_ms = self.store_wait_ms if wait_ms is None else wait_ms
        until_ms = self.around.clock.monotonic_ms() + wait_ms
        for left in reversed(range(CONFLICT_TRIES_MAX)):
            try:
                with self.store.writing(wait_ms, audited=audited) as writer:
                    return body(writer)
            except StoreConflictError:
                if not left or self.around.clock.monotonic_ms() > until_ms:
                    raise
        raise AssertionError  # the last try returns or raises

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

    # --- where an original lies -----------------------------------------------------------------------------------

    def slot(self, session_id: str, row: ResultRow) -> Slot:
        """The place an original is bound to."""
        return Slot(
            deployment=self.deployment,
            org=self.org,
            session_id=session_id,
            result_id=format_result_id(row.number),
            tool_call_id=row.call_id,
            tool_name=text_of(row.tool_name),
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
            tool_name=text_of(row.tool_name),
            tool_call_id=text_of(row.call_id),
            kind=row.kind,
            sensitivity=tuple(filter(None, row.sensitivity.split("\n"))),
            media_type=row.media_type,
            observed_at_us=row.observed_at_us,
            observed_by=row.observed_by,
        )

    # --- who may, and going on --------------------------------------------------------------------------------------

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

    def resume(self, principal: Principal, session_id: str) -> None:
        """Lift a durable suspension.

        Raises:
            NotAvailableError: there is no such session here.
        """

        def resumed(writer: Writer) -> None:
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

        self.transact(resumed)


def asked_session(session_id: object) -> str:
    """A session id as asked for; what is malformed becomes what cannot exist."""
    try:
        return checked_name(session_id, "session id")
    except FormatError:
        return ""


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
