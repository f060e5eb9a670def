"""What the core needs from outside, as protocols with their contract in words.

Anything that satisfies these can stand in for what ships: another database, a vault, another tokenizer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

__all__ = [
    "OBJECT_BYTES_MAX",
    "Anchor",
    "BatchRow",
    "CheckpointRow",
    "Clock",
    "CopiedStore",
    "CustodyRow",
    "Entropy",
    "HeadRow",
    "HoldRow",
    "KeyLifecycle",
    "KeyProvider",
    "ObjectRow",
    "ObjectStore",
    "OrgRow",
    "OrgStore",
    "PostingRow",
    "Reader",
    "ResultRow",
    "ScopeRow",
    "Seen",
    "SessionRow",
    "ShredRow",
    "Store",
    "StoredOriginal",
    "Survey",
    "Surveyable",
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


class Anchor(Protocol):
    """A place outside the store that keeps signed heads of logs. Every method may raise a ``StoreError``."""

    @property
    def name(self) -> str:
        """What it is, for reports, without credentials."""
        ...

    def publish(self, origin: str, size: int, note: str) -> None:
        """The signed head, kept when this returns; one that is kept already is fine."""
        ...

    def latest(self, origin: str) -> str | None:
        """The newest head of this origin that is quickly found; ``None`` for none, or where it cannot tell."""
        ...

    def heads(self, origin: str) -> Iterable[str]:
        """Every head of this origin that is kept here, in any order; none where it cannot tell."""
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
    books: str = ""


@dataclass(slots=True)
class ResultRow:
    """A tool result: identity, facts, and, once archived, where its original is.

    Names that a provider or a model chose are bytes (UTF-8 with ``surrogatepass``): no database refuses them.
    ``closed`` is the sealed DEK and note. ``origin`` and ``part`` are set on restored copies. ``own`` names what of
    ours a result is (``receipt``, ``rejection``, ``error``, ``copy``; ``span`` and ``artifact``, which stand in no
    message), ``None`` for the application's tools.
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
class PostingRow:
    """What a session put down in one of its books; never changed, never removed."""

    scope_id: bytes
    book: str
    seq: int
    closed: bytes = field(repr=False)
    created_at_us: int


@dataclass(slots=True)
class HoldRow:
    """A legal hold: on an original, a session (``number`` is ``None``) or the org (neither is set).

    ``reason`` is sealed. A hold is active until it has ``released_at_us``.
    """

    hold_id: bytes
    scope_id: bytes | None
    number: int | None
    reason: bytes = field(repr=False)
    placed_by: str
    placed_at_us: int
    released_by: str | None = None
    released_at_us: int | None = None


@dataclass(slots=True)
class ShredRow:
    """What was shredded: an original, or a session (``number`` is ``None``).

    ``kek_version`` is the highest under which its keys were ever wrapped: while that one or an older one exists, an
    old copy of the store can still be opened, and ``completed_at_us`` is ``None``.
    """

    shred_id: bytes
    scope_id: bytes | None
    number: int | None
    kek_version: int
    requested_by: str
    requested_at_us: int
    completed_at_us: int | None = None


@dataclass(slots=True)
class CheckpointRow:
    """A signed head of the org's log, as a signed note, with the tree's frontier at that size."""

    size: int
    note: str
    frontier: bytes
    created_at_us: int


@dataclass(slots=True)
class CustodyRow:
    """What an org has in keeping.

    ``kek_floor`` is the lowest key version that a wrapped key may have; ``originals`` and ``original_bytes`` (before
    sealing) count what can be restored; ``holds`` counts the rows of holds, released ones included. ``version`` is
    the store's.
    """

    kek_floor: int
    originals: int
    original_bytes: int
    holds: int
    version: int = 0


@dataclass(slots=True)
class HeadRow:
    """The head of an org's audit log: the point where its writers queue."""

    size: int
    frontier: bytes
    last_leaf_hash: bytes
    policy_digest: str | None
    custody_version: int = 0


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
        """Up to ``count`` rows not ``stored`` whose time is over and that no archived result names, the oldest first.

        Whether a result is archived is asked of the database alone: see :meth:`named`.
        """
        ...

    def batch(self, scope_id: bytes, request_tag: bytes, idempotency_key: str | None) -> BatchRow | None:
        """The accepted batch with this idempotency key if one is given, else with this request tag."""
        ...

    def postings(self, scope_id: bytes, book: str, after: int, count: int) -> list[PostingRow]:
        """Up to ``count`` postings of a book with sequence numbers above ``after``, in order."""
        ...

    def posted(self, scope_id: bytes, book: str) -> tuple[int, int]:
        """How many postings a book has, and the highest sequence number, 0 for none; no seal is checked."""
        ...

    def org_row(self) -> OrgRow:
        """The org's own row."""
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

    def named(self, original_id: bytes) -> ResultRow | None:
        """The result that names this original."""
        ...

    def scopes(self, after: bytes, count: int) -> list[ScopeRow]:
        """Up to ``count`` scope keys with ids above ``after``, by id."""
        ...

    def scopes_below(self, kek_version: int) -> int:
        """How many session keys are wrapped under an older version; no seal is checked."""
        ...

    def expired(self, now_us: int, count: int) -> list[ResultRow]:
        """Up to ``count`` archived results whose retention is over, the longest over first."""
        ...

    def holds(self) -> list[HoldRow]:
        """All holds, released ones included, by time."""
        ...

    def shreds(self) -> list[ShredRow]:
        """All shreds, by time."""
        ...

    def checkpoint(self) -> CheckpointRow | None:
        """The latest signed head."""
        ...

    def checkpoints(self, after: int, count: int) -> list[CheckpointRow]:
        """Up to ``count`` signed heads of logs with more than ``after`` entries, by size."""
        ...

    def custody(self) -> CustodyRow | None:
        """What the org has in keeping, as the head of the log knows it; ``None`` where that was never counted.

        Raises:
            SealBrokenError: the row was removed, or is an older one that was put back.
            AuditBrokenError: the head is gone.
        """
        ...

    def in_keeping(self) -> tuple[int, int]:
        """How many originals can be restored, and their bytes, counted anew; no seal is checked."""
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

    def insert_postings(self, rows: Sequence[PostingRow]) -> None:
        """New postings.

        Raises:
            StoreError: a sequence number is taken.
        """
        ...

    def insert_holds(self, rows: Sequence[HoldRow]) -> None:
        """New holds."""
        ...

    def update_holds(self, rows: Sequence[HoldRow]) -> None:
        """Holds that were released; exactly these rows must change."""
        ...

    def insert_shreds(self, rows: Sequence[ShredRow]) -> None:
        """New shreds."""
        ...

    def update_shreds(self, rows: Sequence[ShredRow]) -> None:
        """Shreds that are complete; exactly these rows must change."""
        ...

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        """A signed head; nothing where one of this size is there already."""
        ...

    def put_custody(self, row: CustodyRow) -> None:
        """What the org has in keeping, in the place of what was there; the head of the log gets its new version.

        Raises:
            StoreError: the transaction did not lock the log.
        """
        ...

    def update_scopes(self, rows: Sequence[ScopeRow]) -> None:
        """Scope keys that were wrapped anew; exactly these rows must change."""
        ...

    def update_org(self, row: OrgRow) -> None:
        """The org's auxiliary key, wrapped anew; exactly one row must change."""
        ...

    def destroy_originals(self, original_ids: Sequence[bytes]) -> None:
        """No such envelopes any more; what is not there (because it lies in objects) is no error."""
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

    def scrub(self) -> None:
        """What was destroyed leaves the files, as far as the database can do that now; never raises."""
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

    def orgs(self) -> list[str]:
        """The names of all orgs, sorted."""
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


# --- rows as they lie there -------------------------------------------------------------------------------------

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Seen(Generic[R]):
    """A row as it lies there, whatever became of it.

    Args:
        stored: its columns by name, with whatever is in them; a text that is none is in no type that is ever written.
        row: the row, ``None`` where a column is not of its type.
        sealed: whether its seal holds; ``None`` where nobody has the key to tell.
    """

    stored: Mapping[str, object] = field(repr=False)
    row: R | None = field(repr=False)
    sealed: bool | None


class Survey(Protocol):
    """A consistent look at one org that hands out damaged rows, too, so that one of them never hides the others.

    ``kind`` is the class of the rows: ``SessionRow``, ``ScopeRow``, ``ResultRow``, ``BatchRow``, ``ObjectRow``,
    ``HoldRow``, ``ShredRow``, ``CheckpointRow``, ``CustodyRow``, ``HeadRow`` or ``OrgRow``.

    Raises (all methods): ``StoreUnavailableError``, ``StoreBusyError``.
    """

    def one(self, kind: type[R], *key: object) -> Seen[R] | None:
        """The row with this key, which the org begins and is not part of."""
        ...

    def rows(self, kind: type[R], after: R | None, skip: int, count: int) -> list[Seen[R]]:
        """Up to ``count`` rows behind this row and ``skip`` more, by their key; not of results and batches."""
        ...

    def of_scope(self, kind: type[R], scope_id: bytes) -> list[Seen[R]]:
        """All results or batches of a session, by their key."""
        ...

    def postings(self, scope_id: bytes, after: tuple[str, int], count: int) -> "list[Seen[PostingRow]]":
        """Up to ``count`` postings of a session behind a book and sequence number, in that order."""
        ...

    def strays(self, kind: type[R], skip: int, count: int) -> list[Seen[R]]:
        """Scope keys, results, batches and postings without a session, and places of objects that no result names."""
        ...

    def stray_originals(self, skip: int, count: int) -> list[object]:
        """The ids of envelopes that no result names."""
        ...

    def envelope(self, original_id: bytes) -> object:
        """The stored envelope, ``None`` for none; not even its type is checked."""
        ...

    def leaves(self, after: int, count: int) -> list[tuple[object, object]]:
        """Up to ``count`` audit leaves behind a sequence number, as ``(seq, leaf)``."""
        ...

    def in_keeping(self) -> tuple[int, int]:
        """How many originals can be restored, and their bytes, as the results say."""
        ...


@runtime_checkable
class Surveyable(Protocol):
    """What a store may also be able to do: show rows whatever state they are in, without the keys too."""

    def surveying(self, org: str, row_key: bytes | None, wait_ms: int) -> AbstractContextManager[Survey]:
        """A look at one org in one transaction.

        Args:
            org: the only one whose rows it meets.
            row_key: checks the seals; ``None`` leaves them unchecked.
            wait_ms: bound on waiting for a lock, in milliseconds.
        """
        ...

    def unlisted_orgs(self) -> list[str]:
        """Orgs that have keys here and are not among :meth:`Store.orgs`, sorted.

        Only as far as the database shows all orgs at once: PostgreSQL does not.
        """
        ...


@runtime_checkable
class CopiedStore(Protocol):
    """What a store may also be able to do: be copied while others write to it, and be filled from such a copy.

    A copy is an SQLite file that this library opens, of every org; each org in it is as it was at one moment.
    """

    def copy_to(self, path: Path) -> None:
        """The whole store in a new file of mode 0600, durable when this returns.

        Raises:
            StoreError: the store cannot be read.
            OSError: the file is there, or cannot be written.
        """
        ...

    def fill_from(self, path: Path) -> None:
        """A store that is empty and no file, filled with a copy: all of it or nothing.

        Raises:
            StoreError: the store is not empty, is a file, or cannot be written.
        """
        ...

    def check_vacant(self) -> None:
        """Return only if the store holds nothing.

        Raises:
            StoreError: it does.
        """
        ...

    def has_used_objects(self) -> bool:
        """Whether any org was about to put an original outside the database, ever."""
        ...
