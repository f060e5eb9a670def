"""Signed heads of the log on a schedule, copies of them outside the store, and proofs for whoever asks.

A checkpoint says what the log held when it was signed. In the database it catches a log that was changed or cut; only
an anchor, a copy outside, catches a database that was put back as a whole.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from evidence_archive.anchors import FileAnchor
from evidence_archive.errors import AuditBrokenError, EvidenceArchiveError, NotAvailableError
from evidence_archive.logged import entries_to_head
from evidence_archive.model import format_result_id, parse_result_id
from evidence_archive.ports import Anchor, CheckpointRow, Reader, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.checkpoint import Checkpoint, format_proof, open_checkpoint
from evidence_archive.proof.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    verify_consistency,
)
from evidence_archive.vault import Vault, leaves_of

__all__ = ["CHECKPOINT_ENTRIES", "CHECKPOINT_SECONDS", "ProvenEntry", "Proving", "Schedule"]

CHECKPOINT_ENTRIES = 1_000
"""Entries after which the head is signed again."""

CHECKPOINT_SECONDS = 3_600
"""Seconds after which it is, where there is any new entry."""


@dataclass(frozen=True, slots=True)
class ProvenEntry:
    """One entry of the log with its proof.

    Args:
        entry: what it says.
        proof: a C2SP ``tlog-proof``; with the log's public key it is all that a verifier needs.
    """

    entry: audit.Leaf
    proof: str


class Schedule:
    """Signs the head of one org's log when enough was appended or enough time went by, and when the archive closes.

    Args:
        vault: the org's keys, store and log.
        anchors: get a copy of every signed head.
    """

    def __init__(self, vault: Vault, anchors: Sequence[Anchor]) -> None:
        self._vault = vault
        self._proving = Proving(vault, anchors)
        self._lock = threading.Lock()
        self._appended = 0
        self._since_ms = vault.around.clock.monotonic_ms()
        self._busy = False

    def appended(self) -> None:
        """Called after a transaction that may have appended entries; never raises."""
        with self._lock:
            if self._busy:
                return
            self._appended += 1
            waited_ms = self._vault.around.clock.monotonic_ms() - self._since_ms
            due = self._appended >= CHECKPOINT_ENTRIES or waited_ms >= CHECKPOINT_SECONDS * 1_000
            self._busy = due
        if due:
            try:
                self._sign(self._vault.store_wait_ms)
            except EvidenceArchiveError as error:  # a later entry tries again
                self._failed(error)

    def close(self) -> None:
        """Signs what is not signed yet, without waiting for long; raises nothing but an interrupt."""
        with self._lock:
            due = self._appended > 0 and not self._busy
            self._busy = due
        if due:
            try:
                self._sign(self._vault.policy.limits.view_wait_ms_max)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # whatever it is, it must not stand in the place of what the caller met
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._vault.log.warning("evidence_archive.not_signed", error=type(error).__name__)

    def _sign(self, wait_ms: int) -> None:
        try:
            self._proving.checkpoint(wait_ms)
        finally:
            with self._lock:
                self._busy = False
                self._appended = 0
                self._since_ms = self._vault.around.clock.monotonic_ms()


class Proving:
    """Checkpoints and proofs of one org's log.

    Args:
        vault: the org's keys, store and log.
        anchors: get a copy of every signed head.
    """

    def __init__(self, vault: Vault, anchors: Sequence[Anchor] = ()) -> None:
        self._vault = vault
        self._anchors = anchors

    def checkpoint(self, wait_ms: int | None = None) -> str:
        """The head of the log, signed, in the store and at every anchor when this returns.

        It is signed only where the log continues what was signed last, here and at every anchor. What is read for
        that are the entries since then. A head that was given up by :meth:`reanchor` counts no more.

        Args:
            wait_ms: bound on waiting for a lock, in milliseconds; as long as a write may wait by default.

        Raises:
            AuditBrokenError: the log is not what was signed before, in the store or at an anchor, nor what its head
                says.
            StoreError: the store cannot be written, or an anchor does not take it; the others have it.
        """
        vault, key = self._vault, self._vault.signer.verifier
        wait_ms = vault.store_wait_ms if wait_ms is None else wait_ms
        anchored = self._anchored()
        with vault.store.reading(wait_ms) as reader:
            own = self._own(reader)
            try:
                read = _continued(reader, own + anchored)
            except AuditBrokenError:
                given_up = _given_up(reader)
                if not any((one.size, one.root) in given_up for one in anchored):
                    raise
                rest = [one for one in self._all_anchored() if (one.size, one.root) not in given_up]
                read = _continued(reader, own + rest)

        def signed(writer: Writer) -> CheckpointRow:
            _continued(writer, [], read)  # what came meanwhile, under the lock
            return vault.sign_head(writer)

        row = vault.transact(signed, wait_ms=wait_ms)
        failure: EvidenceArchiveError | None = None
        for anchor in self._anchors:
            try:
                anchor.publish(key.name, row.size, row.note)
            except EvidenceArchiveError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        vault.log.info("evidence_archive.checkpoint", size=row.size)
        return row.note

    def reanchor(self, subject: str) -> str:
        """The signed head of a log that was put back on purpose, also where an anchor knows another history.

        The entry says which heads of which anchors are given up; the head that is signed then has that entry in it.

        Args:
            subject: who answers for it.

        Raises:
            AuditBrokenError: the log is not what its own head and the heads in the store say; nothing is given up.
            StoreError: the store cannot be written, or an anchor cannot be used.
        """
        vault, heads = self._vault, {(one.size, one.root) for one in self._all_anchored()}
        with vault.store.reading(vault.store_wait_ms) as reader:
            _continued(reader, self._own(reader))  # a log that was rewritten says nothing about what anchors know
            begins = _roots(reader, {size for size, _ in heads})
            lost = sorted(head for head in heads - _given_up(reader) if begins.get(head[0]) != head[1])
        if lost:
            details = {"heads": [{"size": size, "root": root.hex()} for size, root in lost]}
            entry = [vault.leaf(audit.LOG_REANCHORED, subject, details=details)]
            vault.transact(lambda writer: writer.append(entry))
        return self.checkpoint()

    def _own(self, reader: Reader) -> list[Checkpoint]:
        """The newest head in the store, if one was signed."""
        last = reader.checkpoint()
        return [] if last is None else [open_checkpoint(last.note, self._vault.signer.verifier)]

    def _anchored(self) -> list[Checkpoint]:
        """The newest head of every anchor that has one: the longest, and in a file the one that was put last, too.

        Where a history was given up, its heads may be longer than all that came after; put back, it would meet none.
        """
        key = self._vault.signer.verifier
        notes = [anchor.latest(key.name) for anchor in self._anchors]
        notes += [anchor.put_last(key.name) for anchor in self._anchors if isinstance(anchor, FileAnchor)]
        return [open_checkpoint(note, key) for note in dict.fromkeys(notes) if note is not None]

    def _all_anchored(self) -> list[Checkpoint]:
        """Every head at every anchor."""
        key = self._vault.signer.verifier
        return [open_checkpoint(note, key) for anchor in self._anchors for note in anchor.heads(key.name)]

    def key(self) -> str:
        """The public key that verifies this log's checkpoints and proofs, as one line."""
        return self._vault.signer.verifier.text()

    def prove(self, seq: int) -> ProvenEntry:
        """One entry, and the proof that it is in the log as it was signed; signed now, where it is newer.

        Raises:
            NotAvailableError: there is no such entry.
            AuditBrokenError: the log is not what its head says.
        """
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            if type(seq) is not int or not 0 <= seq < reader.head().size:
                raise NotAvailableError
            signed = reader.checkpoint()
        # With anchors it is signed and handed to them all the same: what is proven is held outside as well.
        is_signed = signed is not None and signed.size > seq and not self._anchors
        note = signed.note if signed is not None and is_signed else self.checkpoint()
        size = open_checkpoint(note, self._vault.signer.verifier).size
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            path = inclusion_proof((leaf_hash(data) for _, data in leaves_of(reader, size)), seq, size)
            data = dict(reader.leaves(seq, 1))[seq]
        return ProvenEntry(audit.decode_leaf(data), format_proof(data, seq, path, note))

    def entries_of(self, session_id: str, result_id: str | None) -> list[int]:
        """The sequence numbers of the entries that name a session, or one result of it."""
        number = None if result_id is None else format_result_id(parse_result_id(result_id))
        found = []
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            for seq, data in leaves_of(reader, reader.head().size):
                entry = audit.decode_leaf(data)
                if entry.session_id != session_id:
                    continue
                named = entry.details.get("results") or [entry.details.get("result")]
                if number is None or number in named:
                    found.append(seq)
        return found

    def consistent(self, note: str) -> Checkpoint:
        """The head in an older checkpoint, once the log was shown to begin with it.

        Args:
            note: kept by somebody else.

        Raises:
            AuditBrokenError: the log does not begin with what was signed, or this key did not sign it.
        """
        known = open_checkpoint(note, self._vault.signer.verifier)
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            size = reader.head().size
            if (known.size, known.root) in _given_up(reader):
                raise AuditBrokenError(
                    "This checkpoint is of a history that was given up when the log was put back and anchored anew: "
                    "its entry log.reanchored says when, and by whom."
                )
            if known.size > size:
                raise AuditBrokenError("A checkpoint is of a longer audit log: the store was put back.")
            hashes = [leaf_hash(data) for _, data in leaves_of(reader, size)]
        path = consistency_proof(hashes, known.size, size) if known.size else []
        verify_consistency(known.size, known.root, size, _root(hashes), path)
        return known


def _begun(reader: Reader, known: Sequence[Checkpoint]) -> Frontier:
    """The tree at the oldest of these heads, or an empty one where the store does not hold it."""
    for oldest in known[:1]:
        for row in reader.checkpoints(oldest.size - 1, 1):
            frontier = Frontier.from_bytes(row.size, row.frontier)
            if (row.size, frontier.root()) == (oldest.size, oldest.root):
                return frontier
    return Frontier()


def _continued(reader: Reader, known: Sequence[Checkpoint], begun: Frontier | None = None) -> Frontier:
    """The tree at the head, once the entries lead there through every one of these heads.

    Args:
        reader: of the log.
        known: heads that were signed before.
        begun: a tree that the log is known to begin with; that of the oldest of them by default.

    Raises:
        AuditBrokenError: they do not.
    """
    head = reader.head()
    begun = _begun(reader, sorted(known, key=lambda one: one.size)) if begun is None else begun
    if any(one.size > head.size for one in known) or begun.size > head.size:
        raise AuditBrokenError("A longer audit log was signed before: the store was put back to an older state.")
    marks = [one for one in known if one.size > begun.size]
    frontier = Frontier.from_bytes(begun.size, begun.to_bytes())
    for _ in entries_to_head(reader, frontier):
        for one in marks:
            if one.size == frontier.size and one.root != frontier.root():
                raise AuditBrokenError("The audit log is not the one that was signed before: entries were changed.")
    return frontier


def _given_up(reader: Reader) -> set[tuple[int, bytes]]:
    """Size and root of the heads that the log says were given up."""
    entries = (audit.decode_leaf(data) for _, data in leaves_of(reader, reader.head().size))
    return {
        (head["size"], bytes.fromhex(head["root"]))
        for entry in entries
        if entry.event == audit.LOG_REANCHORED
        for head in entry.details["heads"]
    }


def _roots(reader: Reader, sizes: Collection[int]) -> dict[int, bytes]:
    """The roots the log had at these sizes, those it never had left out."""
    frontier = Frontier()
    roots = {0: frontier.root()}
    for _, data in leaves_of(reader, min(reader.head().size, max(sizes, default=0))):
        frontier.append(leaf_hash(data))
        if frontier.size in sizes:
            roots[frontier.size] = frontier.root()
    return roots


def _root(hashes: Sequence[bytes]) -> bytes:
    frontier = Frontier()
    for one in hashes:
        frontier.append(one)
    return frontier.root()
