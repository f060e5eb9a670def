"""One org's keys, store and audit log, opened: what reading and writing share."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from evidence_archive import access
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    MisuseError,
    NotAvailableError,
    SealBrokenError,
    ShreddedError,
    StoreConflictError,
    StoreError,
    StoreUnavailableError,
)
from evidence_archive.events import Events
from evidence_archive.keys import unwrap_checked, wrap_checked
from evidence_archive.model import (
    Facts,
    Principal,
    Provenance,
    ce,
    ce_read,
    checked_name,
    format_result_id,
    text_of,
)
from evidence_archive.policy import Policy
from evidence_archive.ports import (
    CheckpointRow,
    Clock,
    CustodyRow,
    Entropy,
    KeyProvider,
    ObjectStore,
    OrgRow,
    OrgStore,
    Reader,
    ResultRow,
    ScopeRow,
    SessionRow,
    Store,
    Survey,
    Surveyable,
    TokenCounter,
    Writer,
)
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.checkpoint import Signer
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.sealing.envelope import Slot
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
    "FIRST_GENERATION",
    "INLINE_SIZE_LIMIT",
    "INLINE_SIZE_MAX",
    "OTHER_PROCESS",
    "SHREDDED",
    "AuditReport",
    "ScopeKeys",
    "Surroundings",
    "Vault",
    "asked_session",
    "aux_context",
    "facts_of",
    "leaves_of",
    "open_vault",
    "part_context",
]

CONFLICT_TRIES_MAX = 5
"""How often a transaction is run because another one was in its way."""

INLINE_SIZE_MAX = 1024 * 1024
"""Largest original that lies in the database where there is an object store, in bytes; a setting."""

INLINE_SIZE_LIMIT = 64 * 1024 * 1024
"""Largest original that may lie in the database at all: it is in memory as a whole when it moves."""

SHREDDED = "shredded"
"""State of a result whose original was destroyed; why a session whose keys were is suspended."""

LEAVES_PER_READ = 1_000
"""Audit entries fetched at once."""

SESSIONS_PER_READ = 1_000
"""Sessions fetched at once."""

SCOPES_HELD_MAX = 10_000
"""Session keys held in memory; the provider is asked again for one that had to go."""

OTHER_PROCESS = "This archive was opened in another process: open it again after fork."

FIRST_GENERATION = 1
"""Of every key; a session gets a next one where an original of it is shredded."""

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
    """A session's key of one generation, and the key of its tags, which is the same in all generations."""

    scope_id: bytes
    generation: int
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
        kek_floor: no key may be wrapped under an older version; ``None`` where the row that says so is not believed.
    """

    def __init__(
        self, around: Surroundings, row: OrgRow, keys: OrgKeys, store: OrgStore, *, kek_floor: int | None = 0
    ) -> None:
        self.row = row
        self.org = row.org
        self.deployment = row.deployment
        self.around = around
        self.policy = around.policy
        self.store = store
        self.closed = False
        self.kek_floor = kek_floor
        self.log = Events(org=row.org)
        self.signer = Signer(f"evidence-archive/{row.deployment.hex()}", keys.signing)
        self.on_appended: Callable[[], None] = _nothing
        self._keys = keys
        self._pid = os.getpid()
        self._scopes: dict[tuple[bytes, int], ScopeKeys] = {}
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

    def seen_in(self, store: Store) -> OrgStore | None:
        """This org as another store has it, such as an older or a newer copy; also where it was shredded there.

        Args:
            store: another one.

        Returns:
            ``None`` where the org is not in it.

        Raises:
            SealBrokenError: its row there is not one that this org's keys sealed.
        """
        row = store.org(self.org)
        return None if row is None else store.scoped(row, self._keys.row)

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
                    done = body(writer)
                break
            except StoreConflictError:
                if not left or self.around.clock.monotonic_ms() > until_ms:
                    raise
        if audited:
            self.on_appended()
        return done

    def surveying(self) -> AbstractContextManager[Survey]:
        """A look at the org that hands out damaged rows, too, and says which seals hold.

        Raises:
            StoreError: this store cannot show rows that way.
        """
        store = self.around.store
        if not isinstance(store, Surveyable):
            raise StoreError("This store shows no damaged rows, so it cannot be verified.")
        return store.surveying(self.org, self._keys.row, self.store_wait_ms)

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

    def sealed_text(self, text: str, what: bytes, place: bytes) -> bytes:
        """A text that people wrote, sealed for one place under the key of audit metadata."""
        return wrap(self._keys.audit, text.encode("utf-8", "surrogatepass"), self._text_context(what, place))

    def opened_text(self, sealed: bytes, what: bytes, place: bytes) -> str:
        """The text that :meth:`sealed_text` sealed for this place.

        Raises:
            SealBrokenError: it does not open there.
        """
        return unwrap(self._keys.audit, sealed, self._text_context(what, place)).decode("utf-8", "surrogatepass")

    def _text_context(self, what: bytes, place: bytes) -> bytes:
        return b"evidence-archive/v1/text\x00" + ce(self.deployment, self.org, what, place)

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

    def sign_head(self, writer: Writer) -> CheckpointRow:
        """A signed head of the log as it is in this transaction, stored with it.

        Raises:
            AuditBrokenError: the log is shorter than one that was signed before.
        """
        head, last = writer.head(), writer.checkpoint()
        if last is not None and last.size >= head.size:
            if last.size > head.size:
                raise AuditBrokenError("The audit log is shorter than its last checkpoint: entries were removed.")
            return last
        root = Frontier.from_bytes(head.size, head.frontier).root()
        note = self.signer.sign(head.size, root)
        row = CheckpointRow(head.size, note, head.frontier, self.around.clock.now_us())
        writer.insert_checkpoint(row)
        return row

    def counted(
        self, writer: Writer, originals: int = 0, original_bytes: int = 0, *, holds: int = 0, kek_floor: int = 0
    ) -> CustodyRow:
        """What the org has in keeping, once so much more is; asked after the results were written.

        Args:
            writer: of an audited transaction.
            originals, original_bytes, holds: how many more.
            kek_floor: below which version nothing may be wrapped from now on; never lowered.
        """
        kept = writer.custody()
        if kept is None:  # from before there was such a row: the originals counted now are there already
            kept = CustodyRow(0, *writer.in_keeping(), holds=0)
            originals = original_bytes = 0
        kept = replace(
            kept,
            kek_floor=max(kept.kek_floor, kek_floor),
            originals=kept.originals + originals,
            original_bytes=kept.original_bytes + original_bytes,
            holds=kept.holds + holds,
        )
        writer.put_custody(kept)
        return kept

    def sessions(self) -> Iterator[SessionRow]:
        """All sessions of the org, by id, some at a time."""
        after = ""
        while True:
            with self.store.reading(self.store_wait_ms) as reader:
                found = reader.sessions(after, SESSIONS_PER_READ)
            if not found:
                return
            yield from found
            after = found[-1].session_id

    # --- keys ---------------------------------------------------------------------------------------------------

    def new_scope(self) -> tuple[ScopeRow, ScopeKeys]:
        """A new session key, wrapped under the org's key-encryption key and unwrapped again.

        Raises:
            KeyringError: the provider does not wrap, or does not give back what it wrapped.
        """
        key = self.around.entropy(32)
        keys = ScopeKeys(self.around.entropy(16), FIRST_GENERATION, key, tag_key(key))
        row = self.wrapped_scope(keys, self.around.clock.now_us())
        self._hold(keys)
        return row, keys

    def wrapped_scope(self, keys: ScopeKeys, created_at_us: int) -> ScopeRow:
        """The row of a session's keys, wrapped under the org's current key-encryption key and unwrapped again.

        Args:
            keys: of any generation; from the second on the tag key lies in the row too.
            created_at_us: when the session's first key was made.

        Raises:
            KeyringError: the provider does not wrap, or does not give back what it wrapped.
        """
        version = self.around.keys.current_version(self.org)
        context = self._scope_context(keys.scope_id, keys.generation, version)
        wrapped, fingerprint = wrap_checked(self.around.keys, self.org, version, keys.key, context)
        if keys.generation > FIRST_GENERATION:
            wrapped = ce(wrapped, wrap(keys.key, keys.tag, self._tag_context(keys.scope_id, keys.generation)))
        return ScopeRow(keys.scope_id, wrapped, version, fingerprint, keys.generation, created_at_us)

    def scope_keys(self, row: ScopeRow) -> ScopeKeys:
        """A session's keys; the provider is asked once per session, while at most ``SCOPES_HELD_MAX`` are in use.

        Raises:
            ShreddedError: they were destroyed.
            SealBrokenError: they are wrapped under a version that nothing is wrapped under any more, or nobody knows
                which versions these are.
            KeyringError: the provider does not have the version, or cannot be asked.
        """
        if row.wrapped and self.kek_floor is None:
            raise SealBrokenError(
                "What this org has in keeping, and its lowest key version, is not what its log knows: nothing opens."
            )
        if row.wrapped and row.kek_version < (self.kek_floor or 0):
            raise SealBrokenError("A session's key is an older copy, from before a rotation: it was put back.")
        return self.unwrapped_scope(row)

    def unwrapped_scope(self, row: ScopeRow) -> ScopeKeys:
        """A session's keys, whatever version they are wrapped under; for who looks at that himself.

        Raises:
            ShreddedError, SealBrokenError, KeyringError: as :meth:`scope_keys`.
        """
        if not row.wrapped:
            raise ShreddedError("This session was shredded: nothing of it can be opened any more.")
        place = row.scope_id, row.generation
        with self._lock:
            keys = self._scopes.get(place)
        if keys is None:
            wrapped, closed_tag = _wrapped_of(row)
            key = unwrap_checked(
                self.around.keys,
                self.org,
                version=row.kek_version,
                fingerprint=row.kek_fingerprint,
                wrapped=wrapped,
                context=self._scope_context(row.scope_id, row.generation, row.kek_version),
            )
            if closed_tag is None:
                tag = tag_key(key)
            else:
                tag = unwrap(key, closed_tag, self._tag_context(row.scope_id, row.generation))
            keys = ScopeKeys(row.scope_id, row.generation, key, tag)
            self._hold(keys)
        return keys

    def _hold(self, keys: ScopeKeys) -> None:
        with self._lock:
            if len(self._scopes) >= SCOPES_HELD_MAX:
                del self._scopes[next(iter(self._scopes))]
            self._scopes[keys.scope_id, keys.generation] = keys

    def _tag_context(self, scope_id: bytes, generation: int) -> bytes:
        return b"evidence-archive/v1/scope-tag\x00" + ce(self.deployment, self.org, scope_id, generation)

    def forget_scope(self, scope_id: bytes) -> None:
        """Hold no keys of a session any more."""
        with self._lock:
            for place in [place for place in self._scopes if place[0] == scope_id]:
                del self._scopes[place]

    def _scope_context(self, scope_id: bytes, generation: int, version: int) -> bytes:
        return wrap_context(
            "scope",
            deployment=self.deployment,
            org=self.org,
            scope_id=scope_id,
            child=None,
            generation=generation,
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
            ShreddedError: it was shredded, which nothing lifts.
        """

        def resumed(writer: Writer) -> None:
            session = writer.session(asked_session(session_id))
            if session is None:
                raise NotAvailableError
            if session.suspended == SHREDDED:
                # A process that still holds the key would archive what nobody could open again.
                raise ShreddedError("This session was shredded: nothing can be archived in it any more.")
            details = {"was": session.suspended or "not suspended"}
            session.suspended = None
            session.version += 1
            writer.update_session(session)
            writer.append(
                [self.leaf(audit.SESSION_RESUMED, principal.subject, session_id=session_id, details=details)]
            )

        self.transact(resumed)


def part_context(vault: Vault, scope_id: bytes, number: int) -> bytes:
    """What the part of a restored copy is sealed to."""
    return b"evidence-archive/v1/part\x00" + ce(vault.deployment, vault.org, scope_id, format_result_id(number))


def leaves_of(reader: Reader, size: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """The entries of a log from ``start`` up to ``size``, some at a time.

    Raises:
        AuditBrokenError: one is missing.
    """
    at = start
    while at < size:
        rows = reader.leaves(at, min(LEAVES_PER_READ, size - at))
        for seq, data in rows:
            if seq != at:
                break
            yield seq, data
            at += 1
        else:
            if rows:
                continue
        raise AuditBrokenError(f"Entry {at} of the audit log is missing.")


def _nothing() -> None:
    """What is done after an entry where nothing waits for it."""


def asked_session(session_id: object) -> str:
    """A session id as asked for; what is malformed becomes what cannot exist."""
    try:
        return checked_name(session_id, "session id")
    except FormatError:
        return ""


def _wrapped_of(row: ScopeRow) -> tuple[bytes, bytes | None]:
    """A session's wrapped key; from the second generation on also its tag key, closed under it."""
    if row.generation == FIRST_GENERATION:
        return row.wrapped, None
    try:
        wrapped, closed_tag = ce_read(row.wrapped)
    except (FormatError, ValueError) as error:
        raise SealBrokenError("A session's key is not one this library wrapped.") from error
    if wrapped is None or closed_tag is None:
        raise SealBrokenError("A session's key is not one this library wrapped.")
    return wrapped, closed_tag


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
        SealBrokenError: the org's row was changed, or is an older copy from before a rotation.
        ShreddedError: the org was shredded.
    """
    for left in reversed(range(CONFLICT_TRIES_MAX)):
        row = around.store.org(org)
        if row is None:
            if not create:
                raise NotAvailableError
            row = _create(around, org)
        try:
            return _opened(around, row)
        except SealBrokenError:
            # A rotation may have wrapped the org's key anew between the two looks at its row.
            if not left or around.store.org(org) == row:
                raise
    raise AssertionError  # the last try returns or raises


def _opened(around: Surroundings, row: OrgRow) -> Vault:
    org = row.org
    if not row.aux_wrapped:
        raise ShreddedError("This org was shredded: nothing of it can be opened any more.")
    aux = unwrap_checked(
        around.keys,
        org,
        version=row.kek_version,
        fingerprint=row.kek_fingerprint,
        wrapped=row.aux_wrapped,
        context=aux_context(row.deployment, org, row.kek_version),
    )
    keys = org_keys(aux)
    store = around.store.scoped(row, keys.row)
    floor: int | None
    try:
        with store.peeking(around.policy.limits.store_wait_ms_max) as reader:
            custody = reader.custody()
        floor = 0 if custody is None else custody.kek_floor
    except IntegrityError:  # nothing of it is opened, but it can be verified
        floor = None
    if floor is not None and row.kek_version < floor:
        raise SealBrokenError("The org's key is an older copy, from before a rotation: it was put back.")
    return Vault(around, row, keys, store, kek_floor=floor)


def _create(around: Surroundings, org: str) -> OrgRow:
    aux, deployment = around.entropy(32), around.entropy(16)
    version = around.keys.current_version(org)
    now_us = around.clock.now_us()
    wrapped, fingerprint = wrap_checked(around.keys, org, version, aux, aux_context(deployment, org, version))
    row = OrgRow(
        org=org,
        deployment=deployment,
        aux_wrapped=wrapped,
        kek_version=version,
        kek_fingerprint=fingerprint,
        generation=FIRST_GENERATION,
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


def aux_context(deployment: bytes, org: str, version: int) -> bytes:
    """What an org's wrapped auxiliary key is bound to."""
    return wrap_context(
        "aux",
        deployment=deployment,
        org=org,
        scope_id=None,
        child=None,
        generation=FIRST_GENERATION,
        kek_version=version,
    )
