"""Where an envelope lies: in its row, or, when the original is large, in objects outside the database.

Write order of what lies outside: a durable intent that names the objects -> the objects, each written once -> all of
them read back and opened -> the batch's transaction, which makes the intent a place. Nothing that fails on the way
deletes anything, because a request that was given up may still arrive: objects of an intent whose time is over are
removed by the collector alone, after a transaction that no batch can commit behind.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256

from evidence_archive.errors import (
    IntegrityError,
    ObjectNotFoundError,
    SealBrokenError,
    StoreBusyError,
    StoreError,
    UnsupportedVersionError,
)
from evidence_archive.logged import entries_to_head
from evidence_archive.model import PIECE_BYTES, Exact
from evidence_archive.ports import OBJECT_BYTES_MAX, ObjectRow, Reader, ResultRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.merkle import Frontier
from evidence_archive.sealing.envelope import Opened, Slot, envelope_bytes, open_original, open_pieces, seal_pieces
from evidence_archive.vault import SHREDDED, Vault

__all__ = ["INTENT_SECONDS", "Collected", "Envelopes", "Outside"]

INTENT_SECONDS = 6 * 3_600
"""How long a batch may take from its first object to its commit; afterwards its objects are collected."""

COLLECT_ROWS_MAX = 100
"""Intents looked at by one run of the collector."""

COLLECT_FAILURES_MAX = 3
"""Intents whose objects cannot be deleted, after which a run of the collector stops."""

_INTENDED, _STORED, _ABANDONED, _EMPTIED = "intended", "stored", "abandoned", "emptied"


@dataclass(slots=True)
class Outside:
    """A sealed original on its way to objects, and then in them.

    Args:
        slot, encoded, acl: what was sealed, to know whether it still is what a batch wants.
        dek: its key.
        row: the intent.
        sealed_size: of its envelope.
        envelope_sha256: of the stored bytes, once they are stored.
    """

    slot: Slot
    encoded: Exact
    acl: bytes
    dek: bytes = field(repr=False)
    dek_id: bytes
    row: ObjectRow
    sealed_size: int
    pieces: Iterator[bytes] = field(repr=False)
    envelope_sha256: bytes = b""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run of the collector did.

    Args:
        abandoned: intents whose time was over; their objects were deleted, and are once more after a while.
        forgotten: such intents whose time was over once more; nothing is left of them.
        tidied: what else was removed, such as half-written files of processes that were killed.
    """

    abandoned: int
    forgotten: int
    tidied: int = 0


class Envelopes:
    """The envelopes of one org.

    Args:
        vault: the org's keys, store and log.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def is_outside(self, size_bytes: int) -> bool:
        """Whether an original of this size is to lie outside the database."""
        around = self._vault.around
        return around.objects is not None and size_bytes > around.inline_size_max

    # --- writing --------------------------------------------------------------------------------------------------

    def sealing(self, slot: Slot, encoded: Exact, acl: bytes, trust: str) -> Outside:
        """An original made ready for objects, with new keys and names; nothing is written yet."""
        entropy = self._vault.around.entropy
        random = entropy(80)
        dek, original_id, dek_id, name = random[:32], random[32:48], random[48:64], random[64:].hex()
        sealed_size, pieces = seal_pieces(
            slot=slot, encoded=encoded, dek=dek, original_id=original_id, dek_id=dek_id, acl=acl, trust=trust
        )
        now_us = self._vault.around.clock.now_us()
        row = ObjectRow(
            original_id=original_id,
            key=f"{name[:2]}/{name[2:]}",
            size_bytes=envelope_bytes(sealed_size),
            part_bytes=OBJECT_BYTES_MAX,
            state=_INTENDED,
            expires_at_us=now_us + INTENT_SECONDS * 1_000_000,
            created_at_us=now_us,
        )
        return Outside(slot, encoded, acl, dek, dek_id, row, sealed_size, pieces)

    def put(self, outsides: Iterable[Outside], *, wait_ms: int) -> None:
        """The envelopes in their objects, durable, read back and opened; a batch's transaction may name them.

        Args:
            outsides: from :meth:`sealing`.
            wait_ms: bound on waiting for a lock of the database, in milliseconds.

        Raises:
            SealBrokenError: what was read back is not what was written.
            StoreError: database or objects cannot be written.
        """
        outsides = list(outsides)
        if not outsides:
            return
        rows = [outside.row for outside in outsides]
        self._vault.transact(lambda writer: writer.insert_objects(rows), audited=False, wait_ms=wait_ms)
        for outside in outsides:
            self._put(outside)

    def _put(self, outside: Outside) -> None:
        objects, row, digest = self._vault.objects, outside.row, sha256()
        part = size = 0
        for part, data in enumerate(_parts(outside.pieces, row.part_bytes)):
            digest.update(data)
            size += len(data)
            objects.put(_part_key(row, part), data)
        if size != row.size_bytes:
            raise SealBrokenError("An original has another size than was planned; nothing was archived.")
        outside.envelope_sha256 = digest.digest()
        opened = self._opened(
            self._parts_of(row),
            lambda piece: None,
            envelope_sha256=outside.envelope_sha256,
            slot=outside.slot,
            dek=outside.dek,
            original_id=row.original_id,
            dek_id=outside.dek_id,
            sealed_size=outside.sealed_size,
        )
        if opened.sha256 != outside.encoded.digest:
            raise SealBrokenError("An original did not open again after sealing; nothing was archived.")

    @staticmethod
    def keep(writer: Writer, outsides: Iterable[Outside]) -> None:
        """Make intents places, in the transaction of their batch.

        Raises:
            StoreBusyError: one is not there any more; nothing may be committed.
        """
        rows = [outside.row for outside in outsides]
        if any(writer.object(row.original_id) != row for row in rows):
            raise StoreBusyError("Storing the objects took longer than an intent lasts: try again.")
        if rows:
            writer.update_objects([replace(row, state=_STORED) for row in rows])

    @staticmethod
    def object_keys(row: ObjectRow) -> list[str]:
        """The objects of an envelope, in order."""
        return [_part_key(row, part) for part in range(-(-row.size_bytes // row.part_bytes))]

    @staticmethod
    def give_up(writer: Writer, original_ids: Iterable[bytes], now_us: int) -> None:
        """Hand the objects of originals that were destroyed to the collector, in the transaction that does it."""
        places = [writer.object(one) for one in original_ids]
        writer.update_objects(
            [replace(row, state=_ABANDONED, expires_at_us=now_us) for row in places if row is not None]
        )

    # --- reading --------------------------------------------------------------------------------------------------

    def open(self, origin: ResultRow, slot: Slot, dek: bytes, take: Callable[[bytes], object]) -> Opened:
        """Hand out an original's exact bytes in order; they may be used once this returned.

        Args:
            origin: the archived result.
            slot: its place.
            dek: its key.
            take: is handed the bytes, at most ``PIECE_BYTES`` at a time; all of them at once where they lie in a row.

        Returns:
            Digest, encoding and facts; ``data`` is empty.

        Raises:
            SealBrokenError: these bytes are not what was sealed for this place, or are gone.
            UnsupportedVersionError: a newer version sealed them.
            ObjectNotFoundError: one of its objects is not in this object store.
            StoreUnavailableError: objects cannot be had.
        """
        if (
            origin.original_id is None
            or origin.dek_id is None
            or origin.sealed_size is None
            or origin.envelope_sha256 is None
        ):
            raise SealBrokenError("An archived result names no original: its row was changed.")
        with self._vault.store.peeking(self._vault.store_wait_ms) as reader:
            envelope = reader.envelope(origin.original_id)
        if envelope is not None:
            if sha256(envelope).digest() != origin.envelope_sha256:
                # Before the envelope is looked into: changed bytes must not pass for a newer version's.
                raise SealBrokenError("A sealed original is not what was stored: its bytes were changed.")
            opened = open_original(
                envelope,
                slot=slot,
                dek=dek,
                original_id=origin.original_id,
                dek_id=origin.dek_id,
                sealed_size=origin.sealed_size,
            )
            take(opened.data)
            return replace(opened, data=b"")
        with self._vault.store.peeking(self._vault.store_wait_ms) as reader:
            row = reader.object(origin.original_id)
        if row is None or row.state != _STORED or row.size_bytes != envelope_bytes(origin.sealed_size):
            raise SealBrokenError("A sealed original is gone: it was removed outside this library.")
        return self._opened(
            self._parts_of(row),
            take,
            envelope_sha256=origin.envelope_sha256,
            slot=slot,
            dek=dek,
            original_id=origin.original_id,
            dek_id=origin.dek_id,
            sealed_size=origin.sealed_size,
        )

    def stored(self, origin: ResultRow) -> Iterator[bytes]:
        """The sealed bytes of an original as they lie here, in order and unopened, at most 64 MiB at a time.

        Raises:
            SealBrokenError: they are gone.
            ObjectNotFoundError: one of its objects is not in this object store.
            StoreUnavailableError: objects cannot be had.
        """
        original_id = origin.original_id or b""
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            envelope, row = reader.envelope(original_id), reader.object(original_id)
        if envelope is not None:
            yield envelope
        elif row is not None and row.state == _STORED:
            yield from self._parts_of(row)
        else:
            raise SealBrokenError("A sealed original is gone: it was removed outside this library.")

    @staticmethod
    def _opened(
        parts: Iterator[bytes],
        take: Callable[[bytes], object],
        *,
        envelope_sha256: bytes,
        slot: Slot,
        dek: bytes,
        original_id: bytes,
        dek_id: bytes,
        sealed_size: int,
    ) -> Opened:
        digest = sha256()

        def hashed() -> Iterator[bytes]:
            for part in parts:
                digest.update(part)
                for at in range(0, len(part), PIECE_BYTES):
                    yield part[at : at + PIECE_BYTES]

        source = hashed()
        try:
            opened = open_pieces(
                source,
                take,
                slot=slot,
                dek=dek,
                original_id=original_id,
                dek_id=dek_id,
                sealed_size=sealed_size,
            )
        except UnsupportedVersionError:
            for _ in source:  # changed bytes must not pass for a newer version's
                pass
            if digest.digest() != envelope_sha256:
                raise SealBrokenError("A sealed original is not what was stored: its bytes were changed.") from None
            raise
        if digest.digest() != envelope_sha256:
            raise SealBrokenError("A sealed original is not what was stored: its bytes were changed.")
        return opened

    def _parts_of(self, row: ObjectRow) -> Iterator[bytes]:
        """The objects of an envelope, each as long as it has to be."""
        objects = self._vault.objects
        for part, at in enumerate(range(0, row.size_bytes, row.part_bytes)):
            data = objects.get(_part_key(row, part))
            if data is None:
                raise ObjectNotFoundError(
                    "An object of an archived original is not in this object store: check what objects= names, "
                    "or put the object back."
                )
            if len(data) != min(row.part_bytes, row.size_bytes - at):
                raise SealBrokenError("An object of a sealed original has another size: it was changed.")
            yield data

    # --- collecting -----------------------------------------------------------------------------------------------

    def collect(self, *, tidying: bool = False, wait_ms: int | None = None) -> Collected:
        """Delete the objects of intents whose time is over; never anything an archived result names.

        An intent is abandoned in a transaction under the lock that batches commit under, so none can keep it any
        more; its objects go after that, and only where they went it counts as emptied. What a request that was given
        up still writes later goes when the intent's time is over once more, and only then is the intent forgotten.

        Args:
            tidying: look for what unfinished puts left in the object store, too; that may list all of it.
            wait_ms: bound on waiting for a lock, in milliseconds; as long as a write may wait by default.

        Raises:
            StoreError: database or objects cannot be written; what could be deleted was, a later run goes on.
        """
        now_us = self._vault.around.clock.now_us()
        until_us = now_us + INTENT_SECONDS * 1_000_000

        unlogged, failure = self._unlogged(now_us)

        def abandon(writer: Writer) -> list[ObjectRow]:
            rows = [row for row in writer.lapsed_objects(now_us, COLLECT_ROWS_MAX) if row in unlogged]
            lapsed = [row for row in rows if self._is_free(writer, row)]
            fenced = [replace(row, state=_ABANDONED) if row.state == _INTENDED else row for row in lapsed]
            writer.update_objects([new for row, new in zip(lapsed, fenced, strict=True) if new is not row])
            return fenced

        lapsed = self._vault.transact(abandon, wait_ms=wait_ms)
        gone: list[ObjectRow] = []
        failed: list[ObjectRow] = []
        for row in lapsed:
            try:
                for key in self.object_keys(row):
                    self._vault.objects.delete(key)
                gone.append(row)
            except StoreError as error:
                failed.append(row)
                failure = failure or error
                if len(failed) == COLLECT_FAILURES_MAX:
                    break

        def settle(writer: Writer) -> tuple[int, int]:
            here, put_off = (
                [row for row in rows if writer.object(row.original_id) == row] for rows in (gone, failed)
            )
            again = [row for row in here if row.state == _EMPTIED]
            first = [replace(row, state=_EMPTIED, expires_at_us=until_us) for row in here if row.state == _ABANDONED]
            writer.delete_objects(again)
            writer.update_objects(first)
            # Behind all others, so that what cannot be deleted is in nobody's way.
            writer.update_objects([replace(row, expires_at_us=until_us) for row in put_off])
            return len(first), len(again)

        abandoned, forgotten = self._vault.transact(settle, wait_ms=wait_ms) if gone or failed else (0, 0)
        if lapsed:
            self._vault.log.info("evidence_archive.collected", abandoned=abandoned, forgotten=forgotten)
        if failure is not None:
            raise failure
        objects = self._vault.around.objects
        tidied = objects.tidy() if tidying and objects is not None else 0
        return Collected(abandoned, forgotten, tidied)

    def _is_free(self, reader: Reader, row: ObjectRow) -> bool:
        """Whether no result needs these objects; one that was changed outside this library counts as needing."""
        try:
            named = reader.named(row.original_id)
        except SealBrokenError:
            self._not_collected(SealBrokenError())
            return False
        return named is None or named.state == SHREDDED

    def _unlogged(self, now_us: int) -> tuple[list[ObjectRow], StoreError | None]:
        """Rows whose time is over and whose objects are no envelope that the log has as archived and not as shredded.

        Rows alone do not tell: an older one, one of a copy of the store, or one that was made up may stand there.
        """
        vault = self._vault
        digests: dict[str, ObjectRow] = {}
        with vault.store.reading(vault.store_wait_ms) as reader:
            lapsed = [row for row in reader.lapsed_objects(now_us, COLLECT_ROWS_MAX) if self._is_free(reader, row)]
            named = {row.original_id: reader.named(row.original_id) for row in lapsed}
        found, failures = [], list[StoreError]()
        for row in lapsed:
            result = named[row.original_id]
            try:
                digest = self._digest(row) if result is None else result.envelope_sha256
            except StoreError as error:
                failures.append(error)
                if len(failures) == COLLECT_FAILURES_MAX:
                    break
                continue
            found.append(row)
            if digest is not None:
                digests[digest.hex()] = row
        if digests:
            try:
                kept = self._logged(digests)
            except IntegrityError as error:
                self._not_collected(error)
                kept = set(digests)
            found = [row for row in found if row not in [digests[one] for one in kept]]
        return found, failures[0] if failures else None

    def _digest(self, row: ObjectRow) -> bytes | None:
        """SHA-256 of an envelope as it lies in objects; ``None`` where one of them is not there."""
        digest, objects = sha256(), self._vault.objects
        for key in self.object_keys(row):
            data = objects.get(key)
            if data is None:
                return None
            digest.update(data)
        return digest.digest()

    def _logged(self, digests: Collection[str]) -> set[str]:
        """Those of some envelopes, by their digests in hex, that the log has as archived and not as shredded.

        Raises:
            AuditBrokenError: the log is not what its head says.
        """
        archived: dict[str | None, tuple[str | None, str]] = {}
        shredded: set[tuple[str | None, str | None]] = set()
        wanted = [one.encode("ascii") for one in digests]
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            for data in entries_to_head(reader, Frontier()):
                if b"shred." not in data and not any(one in data for one in wanted):
                    continue
                entry = audit.decode_leaf(data)
                if entry.event == audit.SHRED_REQUESTED:
                    shredded.add((entry.session_id, entry.details.get("result")))
                elif entry.event == audit.BATCH_ACCEPTED:
                    for result_id, one in zip(entry.details["results"], entry.details["envelopes"], strict=True):
                        archived[one] = entry.session_id, result_id
        return {
            one
            for one, (session_id, result_id) in archived.items()
            if one is not None
            and one in digests
            and shredded.isdisjoint({(session_id, None), (session_id, result_id)})
        }

    def _not_collected(self, error: Exception) -> None:
        self._vault.log.warning("evidence_archive.not_collected", error=type(error).__name__)

    def tidy(self, *, wait_ms: int) -> None:
        """Run the collector after a commit; what goes wrong is logged, and changes nothing about the commit."""
        try:
            self.collect(wait_ms=wait_ms)
        except Exception as error:
            self._not_collected(error)


def _part_key(row: ObjectRow, part: int) -> str:
    return f"{row.key}.{part:05d}"


def _parts(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The bytes in parts of one size; the last may be shorter."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
