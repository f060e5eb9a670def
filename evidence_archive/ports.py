"""What the core needs from outside, as protocols with their contract in words.

Anything that satisfies these can stand in for what ships: another database, a vault, another tokenizer.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = [
    "OBJECT_BYTES_MAX",
    "BatchRow",
    "Clock",
    "Entropy",
    "HeadRow",
    "KeyLifecycle",
    "KeyProvider",
    "ObjectRow",
    "ObjectStore",
    "OrgRow",
    "OrgStore",
    "Reader",
    "ResultRow",
    "ScopeRow",
    "SessionRow",
    "Store",
    "StoredOriginal",
    "TokenCounter",
    "Writer",
]

OBJECT_BYTES_MAX = 8 * 1024 * 1024
"""Largest object, in bytes; larger envelopes lie in several."""

Entropy = Callable[[int], bytes]
"""``n -> n`` unpredictable bytes; ``os.urandom`` unless a test says otherwise."""


class Clock(Protocol):
    """Wall-clock time, and time that only passes."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go backwards, for waits and cool-downs."""
        ...


class TokenCounter(Protocol):
    """How long a text is for a model."""

    @property
    def name(self) -> str:
        """What counts, for reports (``o200k_base``)."""
        ...

    @property
    def estimated(self) -> bool:
        """Whether counts are estimates; everything derived from them then says so."""
        ...

    def count(self, text: str) -> int:
        """Tokens in the text, at least 0; never raises for any ``str``, whatever it holds."""
        ...


class KeyProvider(Protocol):
    """Where the key-encryption keys of orgs live; never in our database.

    Wrapping binds ``context``: what was wrapped under one context does not unwrap under another.
    Every method may raise :class:`~evidence_archive.errors.KeyringError`; a version that is missing is a
    :class:`~evidence_archive.errors.KeyNotFoundError`, never "try the current one".
    """

    def current_version(self, org: str) -> int:
        """The version that new keys are wrapped under, from 1."""
        ...

    def fingerprint(self, org: str, version: int) -> bytes:
        """16 public bytes that name the org's key of this version; they tell a wrong key from damaged data."""
        ...

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        """The key, encrypted under the org's key of this version."""
        ...

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        """The key that was wrapped.

        Raises:
            SealBrokenError: the key is the right one, but the bytes are not what it wrapped.
        """
        ...


@runtime_checkable
class KeyLifecycle(Protocol):
    """What a key provider can besides, where keys can be made and destroyed through it.

    Every method may raise :class:`~evidence_archive.errors.KeyringError`, also where a provider cannot do it at all;
    the error says what to do instead.
    """

    @property
    def shared_by_orgs(self) -> bool:
        """Whether a version serves all orgs, so that one that is retired is gone for all of them."""
        ...

    def versions(self, org: str) -> tuple[int, ...]:
        """The versions that can unwrap now, ascending."""
        ...

    def new_version(self, org: str) -> int:
        """A new version, above all others; durable at the provider, and the current one, when this returns.

        Callers at the same time get a version each, or the same one. A provider with keys of each org's own makes
        the org's first version like this.
        """
        ...

    def retire(self, org: str, version: int) -> None:
        """The version is destroyed, as far as the provider can; what it wrapped is never unwrapped again.

        Nothing where it is gone already. :meth:`KeyProvider.unwrap` raises
        :class:`~evidence_archive.errors.KeyNotFoundError` from then on.

        Args:
            org: whose version.
            version: not the current one, which is refused.
        """
        ...

    def reopened(self) -> KeyProvider:
        """Another provider over the same keys, with nothing remembered."""
        ...


class ObjectStore(Protocol):
    """Where large originals lie, sealed, in objects that are written once.

    Keys are random: ``[0-9a-f]{2}/[0-9a-f]{30}.[0-9]{5}``. An object has at most ``OBJECT_BYTES_MAX`` bytes. Every
    method may be called from several threads, waits within bounds, and may raise
    :class:`~evidence_archive.errors.StoreUnavailableError` or :class:`~evidence_archive.errors.StoreError`.
    """

    @property
    def name(self) -> str:
        """What stores, for reports, without credentials (``directory``, ``s3``)."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """The object, durable when this returns.

        Nothing is ever overwritten: an object that is there already is an error, unless it holds just these bytes (a
        request that was repeated).
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The object, or ``None``."""
        ...

    def delete(self, key: str) -> None:
        """No such object any more, whether or not there was one."""
        ...

    def tidy(self) -> int:
        """How many things were removed that unfinished puts left behind; never an object."""
        ...

    def close(self) -> None:
        """Release what is held; idempotent."""
        ...


# --- rows -------------------------------------------------------------------------------------------------------
# Field names are column names. ``seal`` is the row's HMAC; the store writes and checks it, nobody else touches it.


@dataclass(slots=True)
class OrgRow:
    """An org: its random deployment id and its auxiliary key, wrapped."""

    org: str
    deployment: bytes
    aux_wrapped: bytes
    kek_version: int
    kek_fingerprint: bytes
    generation: int
    created_at_us: int


@dataclass(slots=True)
class ScopeRow:
    """A scope key, wrapped: one per session, the unit of shredding."""

    scope_id: bytes
    wrapped: bytes
    kek_version: int
    kek_fingerprint: bytes
    generation: int
    created_at_us: int


@dataclass(slots=True)
class SessionRow:
    """A session: who owns it, where its counters stand.

    ``stamp`` is drawn anew by the store at every write, so that a store that was put back to an older state and
    written since is never taken for the one that was known.
    """

    session_id: str
    scope_id: bytes
    subject: str
    dialect: str
    tag: str
    version: int
    next_number: int
    suspended: str | None
    batches: int
    restores: int
    tokens_saved: int
    created_at_us: int
    stamp: bytes = b""


@dataclass(slots=True)
class ResultRow:
    """A tool result: identity, facts, and, once archived, where its original is.

    Names that a provider or a model chose are bytes (UTF-8 with ``surrogatepass``): no database refuses them.
    ``closed`` is the sealed DEK and note. ``origin`` and ``part`` are set on restored copies. ``own`` names what of
    ours a result is (``receipt``, ``rejection``, ``error``, ``copy``), ``None`` for the application's tools.
    ``seen`` is 0 while a record is only reserved: labelled by the host or answered by us, not yet met in a view.
    """

    scope_id: bytes
    number: int
    version: int
    seen: int
    call_id: bytes
    tool_name: bytes
    result_tool_name: bytes | None
    own: str | None
    kind: str | None
    sensitivity: str
    media_type: str
    size_chars: int
    size_bytes: int
    tokens: int
    labelled: int
    observed_at_us: int
    observed_by: str
    content_tag: bytes
    labelled_tag: bytes | None
    origin: int | None
    part: bytes | None
    state: str
    note_tag: bytes | None = None
    rendering: str | None = None
    live_ask: str | None = None
    note_tokens: int = 0
    batch_id: bytes | None = None
    original_id: bytes | None = None
    dek_id: bytes | None = None
    envelope_sha256: bytes | None = None
    sealed_size: int | None = None
    closed: bytes | None = field(default=None, repr=False)
    archived_at_us: int | None = None
    retention_until_us: int | None = None


@dataclass(slots=True)
class StoredOriginal:
    """The envelope of one original."""

    original_id: bytes
    envelope: bytes = field(repr=False)


@dataclass(slots=True)
class ObjectRow:
    """The objects of one envelope that lies outside the database.

    Written before the first of them, as an intent (``state`` is ``intended``); the batch makes it ``stored``. An
    intent whose time is over is ``abandoned``, for good: only then are its objects deleted, and where they went it is
    ``emptied``.
    ``key`` names them: the first is ``key + ".00000"``. All but the last have ``part_bytes`` bytes.
    """

    original_id: bytes
    key: str
    size_bytes: int
    part_bytes: int
    state: str
    expires_at_us: int
    created_at_us: int


@dataclass(slots=True)
class BatchRow:
    """An accepted batch and its receipt, for idempotent answers."""

    scope_id: bytes
    batch_id: bytes
    request_tag: bytes
    idempotency_key: str | None
    receipt: str
    created_at_us: int


@dataclass(slots=True)
class HeadRow:
    """The head of an org's audit log: the point where its writers queue."""

    size: int
    frontier: bytes
    last_leaf_hash: bytes
    policy_digest: str | None


# --- the store --------------------------------------------------------------------------------------------------


class Reader(Protocol):
    """A consistent look at one org. Every row's seal is checked before the row is handed out.

    Raises (all methods): ``SealBrokenError``, ``StoreUnavailableError``, ``StoreBusyError``.
    """

    def session(self, session_id: str) -> SessionRow | None:
        """The session of this id."""
        ...

    def scope(self, scope_id: bytes) -> ScopeRow | None:
        """A wrapped scope key."""
        ...

    def results(self, scope_id: bytes, after_version: int) -> list[ResultRow]:
        """Results of a session that changed after a session version, by number."""
        ...

    def find(self, session_id: str, number: int) -> tuple[SessionRow, ScopeRow, ResultRow] | None:
        """A result with its session and key, in exactly one statement whether or not it is there."""
        ...

    def envelope(self, original_id: bytes) -> bytes | None:
        """The stored envelope."""
        ...

    def object(self, original_id: bytes) -> ObjectRow | None:
        """Where the envelope lies that is not in the database."""
        ...

    def lapsed_objects(self, now_us: int, count: int) -> list[ObjectRow]:
        """Up to ``count`` rows not ``stored`` and named by no result, whose time is over, the oldest first."""
        ...

    def batch(self, scope_id: bytes, request_tag: bytes, idempotency_key: str | None) -> BatchRow | None:
        """The accepted batch with this idempotency key if one is given, else with this request tag."""
        ...

    def head(self) -> HeadRow:
        """The head of the audit log."""
        ...

    def leaves(self, start: int, count: int) -> list[tuple[int, bytes]]:
        """Up to ``count`` leaves from sequence number ``start``, as ``(seq, leaf)``."""
        ...

    def sessions(self, after: str, count: int) -> list[SessionRow]:
        """Up to ``count`` sessions with ids above ``after``, by id."""
        ...


class Writer(Reader, Protocol):
    """One transaction under the org's write lock: all of it or none of it."""

    def insert_session(self, session: SessionRow, scope: ScopeRow) -> None:
        """A new session with its key."""
        ...

    def update_session(self, session: SessionRow) -> None:
        """New counters; exactly one row must change."""
        ...

    def insert_results(self, rows: Sequence[ResultRow]) -> None:
        """New results."""
        ...

    def update_results(self, rows: Sequence[ResultRow]) -> None:
        """Results with new facts or a new state; exactly these rows must change."""
        ...

    def insert_originals(self, originals: Sequence[StoredOriginal]) -> None:
        """Envelopes, read back and compared before this returns.

        Raises:
            SealBrokenError: what was read back is not what was written.
        """
        ...

    def insert_objects(self, rows: Sequence[ObjectRow]) -> None:
        """New intents."""
        ...

    def update_objects(self, rows: Sequence[ObjectRow]) -> None:
        """Intents with a new state or time; exactly these rows must change."""
        ...

    def delete_objects(self, rows: Sequence[ObjectRow]) -> None:
        """No such rows any more; exactly these must go."""
        ...

    def insert_batch(self, row: BatchRow) -> None:
        """The batch, for idempotent answers."""
        ...

    def append(self, leaves: Iterable[Callable[[int], bytes]], policy_digest: str | None = None) -> None:
        """Audit leaves, each built from the sequence number it gets; the head moves with them.

        Raises:
            AuditBrokenError: head and last leaf disagree.
        """
        ...


class OrgStore(Protocol):
    """The store as one org sees it: the org is part of every statement."""

    def peeking(self, wait_ms: int) -> AbstractContextManager[Reader]:
        """A read of one single statement, without a transaction around it."""
        ...

    def reading(self, wait_ms: int) -> AbstractContextManager[Reader]:
        """A read that waits at most ``wait_ms`` milliseconds for a lock."""
        ...

    def writing(self, wait_ms: int, *, audited: bool) -> AbstractContextManager[Writer]:
        """A write transaction: committed when the block ends, rolled back when it raises.

        While one transaction of an org has locked the audit head, no other has; what it read of a session with
        :meth:`Reader.session` or :meth:`Reader.find`, no other changes.

        Args:
            wait_ms: bound on waiting for the write lock, in milliseconds.
            audited: the transaction will append leaves, so the audit head is locked first.

        Raises:
            StoreConflictError: another transaction was in the way and this one was rolled back, also at its end.
            StoreUnavailableError: the store is away. Raised at the end, it leaves open whether the transaction took
                place; who needs to know looks again under the lock of the audit head.
        """
        ...


class Store(Protocol):
    """Durable state. After any failure at any point, all of a transaction or none of it is there."""

    def org(self, org: str) -> OrgRow | None:
        """An org's keys, its seal not yet checked (the row key is inside): :meth:`scoped` does."""
        ...

    def create_org(self, row: OrgRow, row_key: bytes, leaves: Sequence[Callable[[int], bytes]]) -> OrgRow:
        """The org's row, created exclusively with its log's first leaves: the loser of a race gets the winner's."""
        ...

    def scoped(self, row: OrgRow, row_key: bytes) -> OrgStore:
        """The store as this org sees it.

        Raises:
            SealBrokenError: the org's own row does not carry a valid seal.
        """
        ...

    def close(self) -> None:
        """Release connections; idempotent."""
        ...
