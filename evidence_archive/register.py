"""The register: holds, releases, longer retentions and shreds, each with its proof, outside the store.

A backup that is put back is as old as it is: what was shredded since is there again, and what was held since is not
held. The register is a file outside the store, to which every such act is appended when it took place: its entry of
the audit log with the proof that it is in it (C2SP ``tlog-proof``), one JSON object a line. It holds ids, no evidence
and no keys, and nobody without the org's signing key can add to it; who can write the file can leave lines out.

Replaying reads all lines and checks all proofs before anything is applied. What is applied takes the same way as when
it was first done, in the order of the log, and doing it twice changes nothing.
"""

import base64
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from evidence_archive.disposal import Disposal, Earlier
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    NotAvailableError,
    ShreddedError,
    StoreUnavailableError,
)
from evidence_archive.evidence import proven_entries
from evidence_archive.model import Principal, format_result_id, parse_result_id
from evidence_archive.ports import HoldRow, Reader, Store, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.checkpoint import PROOF_BYTES_MAX, open_proof
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.proving import Proving
from evidence_archive.vault import Vault, leaves_of

__all__ = [
    "REGISTERED",
    "Act",
    "Register",
    "Replayed",
    "acts_in_register",
    "acts_in_store",
    "merged",
    "register_lines",
    "replay",
]

REGISTERED = frozenset(
    {
        audit.HOLD_PLACED,
        audit.HOLD_RELEASED,
        audit.RETENTION_EXTENDED,
        audit.SHRED_REQUESTED,
        audit.BACKUP_RESTORED,
    }
)
"""Events that have a line."""

LINE_BYTES_MAX = 2 * PROOF_BYTES_MAX
"""Longest line that is read, in bytes."""

_NOTHING_DONE = "nothing was replayed"


@dataclass(frozen=True, slots=True)
class Act:
    """Something that was done to an org and must not be lost, as the log has it.

    Args:
        entry: of the log.
        data: its bytes.
        reason: of a hold, sealed; ``None`` where it is not known.
        of: place and bytes of the entry that began what it was done to, the batch or the opening of the session;
            ``None`` where that is told by where the act was found.
        is_later: what it was done to began after the state that it is to be done to again.
    """

    entry: audit.Leaf
    data: bytes = field(repr=False)
    reason: bytes | None = field(repr=False)
    of: tuple[int, bytes] | None = field(default=None, repr=False)
    is_later: bool = False


# --- writing ------------------------------------------------------------------------------------------------------


class Register:
    """A register file, to which is appended what was done since.

    Args:
        path: made with mode 0600 where it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._seen: dict[str, tuple[int, bytes | None, int, int]] = {}
        """By log: every entry before a place was looked at; the last of them, the file, and how long it was then."""

    def append(self, vault: Vault, proving: Proving) -> int:
        """How many lines were added, of what was done since the last one; durable when this returns.

        Args:
            vault, proving: the org's.

        Raises:
            StoreUnavailableError: the file cannot be used; what was done is in the log all the same.
            AuditBrokenError: the log is not what its head says.
            StoreError: the store cannot be read.
        """
        with self._opened(os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with os.fdopen(os.dup(file), "rb") as lines:
                lines.seek(0)
                end = sum(len(line) for line in lines if line.endswith(b"\n"))
                start = self._start(vault, lines, end)
            added, after = register_lines(vault, proving, start)
            if added:
                # What a crash cut off must not take the next line with it; nobody was told that it is kept.
                os.ftruncate(file, end)
                data = "".join(added).encode("ascii")
                if os.write(file, data) != len(data):
                    raise OSError("short write")
                os.fsync(file)
                if not end:
                    self._sync_name()
                end += len(data)
            with vault.store.reading(vault.store_wait_ms) as reader:
                last = _leaf_at(reader, after - 1)
            self._seen[_origin(vault)] = after, last, os.fstat(file).st_ino, end
        return len(added)

    def _start(self, vault: Vault, lines: BinaryIO, end: int) -> int:
        """The first entry that was not looked at yet: behind the last line that this log begins with.

        What is remembered counts only for the same log and the same file: a backup may have been put back meanwhile,
        or the file been moved away.
        """
        with vault.store.reading(vault.store_wait_ms) as reader:
            if (seen := self._seen.get(_origin(vault))) is not None:
                after, last, number, length = seen
                is_file = number == os.fstat(lines.fileno()).st_ino and length <= end
                if is_file and _leaf_at(reader, after - 1) == last:
                    return after
        lines.seek(0)
        acts = acts_in_register(vault, lines)
        with vault.store.reading(vault.store_wait_ms) as reader:
            for act in reversed(acts):
                if reader.leaves(act.entry.seq, 1) == [(act.entry.seq, act.data)]:
                    return act.entry.seq + 1
        return 0

    def _sync_name(self) -> None:
        """Make the name of a new file durable (POSIX.1-2017, ``fsync``)."""
        folder = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            file = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise StoreUnavailableError(
                "What was done took place and is in the log, but the register could not be written: check its room "
                "and its permissions, then run 'evidence-archive register append'."
            ) from error


def register_lines(vault: Vault, proving: Proving, start: int) -> tuple[list[str], int]:
    """The lines of what the log has from a place on, and the place behind the last entry that was looked at.

    Args:
        vault, proving: the org's.
        start: place in the log, from 0.

    Raises:
        AuditBrokenError: the log is not what its head says.
        StoreError: the store cannot be read or written.
    """
    with vault.store.reading(vault.store_wait_ms) as reader:
        size = reader.head().size
        found = [
            entry
            for seq, data in leaves_of(reader, size, start)
            if (entry := audit.decode_leaf(data)).event in REGISTERED
        ]
        if not found:
            return [], size
        reasons = {row.hold_id.hex(): row.reason for row in reader.holds()}
        wanted = {place for entry in found if (place := _done_to(entry)) is not None}
        began: dict[tuple[str, str | None], int] = {}
        for seq, data in leaves_of(reader, size):
            for place in wanted & _begun_by(audit.decode_leaf(data)):
                began.setdefault(place, seq)
    seqs = sorted({*(entry.seq for entry in found), *began.values()})
    proofs = dict(zip(seqs, (one.proof for one in proven_entries(vault, proving, seqs)[1]), strict=True))
    lines = []
    for entry in found:
        reason = reasons.get(str(entry.details.get("hold"))) if entry.event == audit.HOLD_PLACED else None
        place = _done_to(entry)
        told = {
            "origin": _origin(vault),
            "proof": proofs[entry.seq],
            "of": None if place is None else proofs[began[place]],
            "reason": None if reason is None else base64.b64encode(reason).decode("ascii"),
        }
        lines.append(json.dumps(told, ensure_ascii=True) + "\n")
    return lines, size


def _done_to(entry: audit.Leaf) -> tuple[str, str | None] | None:
    """The session, and the original of it, that an act was done to; ``None`` where it names its own or the org."""
    if entry.event in (audit.BACKUP_RESTORED, audit.HOLD_RELEASED) or entry.session_id is None:
        return None
    return entry.session_id, entry.details.get("result")


def _begun_by(entry: audit.Leaf) -> set[tuple[str, str | None]]:
    """The session that began with an entry, or the originals that were archived with it."""
    session_id = entry.session_id
    if session_id is not None and entry.event == audit.SESSION_OPENED:
        return {(session_id, None)}
    if session_id is not None and entry.event == audit.BATCH_ACCEPTED:
        pairs = zip(entry.details["results"], entry.details["envelopes"], strict=True)
        return {(session_id, result_id) for result_id, envelope in pairs if envelope is not None}
    return set()


def _origin(vault: Vault) -> str:
    return vault.signer.verifier.name


# --- reading ------------------------------------------------------------------------------------------------------


def acts_in_register(vault: Vault, lines: Iterable[bytes]) -> list[Act]:
    """What a register says was done to an org, by place; every proof was verified with the org's own key.

    Lines of other logs are passed by. A line that was cut off at the end is none: nobody was told that it is kept.
    Where the org was put back to an older state once, what it lost then is not in its log any more and left out; what
    was replayed then has lines of its own.

    Args:
        vault: the org's.
        lines: of the file, in order.

    Raises:
        AuditBrokenError: a line is not what this library wrote, or its proof shows nothing under the org's key.
    """
    acts: dict[int, Act] = {}
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            act = _act_of(vault, line)
        except (EvidenceArchiveError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise AuditBrokenError(
                f"Line {number} of a register was changed, or this log's key did not sign it: put the true one back."
            ) from error
        if act is None:
            continue
        if act.entry.event == audit.BACKUP_RESTORED:
            acts = {seq: one for seq, one in acts.items() if seq < act.entry.details["size"]}
        acts[act.entry.seq] = act
    return [acts[seq] for seq in sorted(acts)]


def _act_of(vault: Vault, line: bytes) -> Act | None:
    if len(line) > LINE_BYTES_MAX:
        raise ValueError("length")
    told = json.loads(line)
    if told["origin"] != _origin(vault):
        return None
    proof = open_proof(told["proof"], vault.signer.verifier)
    if proof.leaf.event not in REGISTERED or proof.leaf.org != vault.org:
        raise ValueError("event")
    place, of = _done_to(proof.leaf), None
    if place is not None:
        begun = open_proof(told["of"], vault.signer.verifier)
        if place not in _begun_by(begun.leaf):
            raise ValueError("of")
        of = begun.leaf.seq, begun.data
    reason = None if told["reason"] is None else base64.b64decode(told["reason"], validate=True)
    return _checked(vault, Act(proof.leaf, proof.data, reason, of))


def _checked(vault: Vault, act: Act) -> Act:
    if act.reason is not None:
        vault.opened_text(act.reason, b"hold", bytes.fromhex(act.entry.details["hold"]))
    return act


def acts_in_store(vault: Vault, store: Store) -> list[Act]:
    """What the log of another, newer store says was done to this org; the log there begins with the one here.

    Args:
        vault: of the org as it is here.
        store: the other one; damaged perhaps, but its log is whole.

    Returns:
        By place; none where the org is not in that store.

    Raises:
        AuditBrokenError: the log there is damaged, or is not a continuation of the one here.
        SealBrokenError: the org there is not this one.
        StoreError: it cannot be read.
    """
    other = vault.seen_in(store)
    if other is None:
        return []
    with vault.store.reading(vault.store_wait_ms) as reader:
        here = reader.head()
    acts, frontier, begins = [], Frontier(), here.size == 0
    with other.reading(vault.store_wait_ms) as reader:
        there = reader.head()
        for _, data in leaves_of(reader, there.size):
            frontier.append(leaf_hash(data))
            begins = begins or (frontier.size == here.size and frontier.to_bytes() == here.frontier)
            entry = audit.decode_leaf(data)
            if entry.event in REGISTERED:
                acts.append((entry, data))
        reasons = {row.hold_id.hex(): row.reason for row in reader.holds()}
    if frontier.to_bytes() != there.frontier:
        raise AuditBrokenError(f"The audit log of the newer database is not what its head says: {_NOTHING_DONE}.")
    if not begins:
        raise AuditBrokenError(f"The newer database has another history than the backup: {_NOTHING_DONE}.")
    return [
        _checked(vault, Act(entry, data, reasons.get(str(entry.details.get("hold"))) if _is_hold(entry) else None))
        for entry, data in acts
    ]


def _is_hold(entry: audit.Leaf) -> bool:
    return entry.event == audit.HOLD_PLACED


def merged(vault: Vault, sources: Iterable[Sequence[Act]]) -> list[Act]:
    """What was done to an org since the state it is in here, from several sources, by place.

    Raises:
        AuditBrokenError: two sources, or one of them and the log here, tell different histories.
    """
    acts: dict[int, Act] = {}
    with vault.store.reading(vault.store_wait_ms) as reader:
        size = reader.head().size
        for act in (one for acts_of in sources for one in acts_of):
            seq = act.entry.seq
            known = acts[seq].data if seq in acts else _leaf_at(reader, seq) if seq < size else act.data
            of_seq, of = act.of or (0, b"")
            same = act.of is None or of_seq >= size or _leaf_at(reader, of_seq) == of
            if known != act.data or not same:
                raise AuditBrokenError(f"What is to be replayed is of another history than this: {_NOTHING_DONE}.")
            if seq >= size and (seq not in acts or acts[seq].reason is None):
                # An ID that was given after this state may have been given anew, to something else.
                acts[seq] = replace(act, is_later=of_seq >= size)
    return [acts[seq] for seq in sorted(acts)]


def _leaf_at(reader: Reader, seq: int) -> bytes | None:
    return dict(reader.leaves(seq, 1)).get(seq)


# --- replaying ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did to an org.

    Args:
        org: which.
        holds, releases, retentions, shreds: how many were done again.
        already: how many were so already.
        not_here: how many are about what the backup does not hold, because it was archived or held after it.
    """

    org: str
    holds: int = 0
    releases: int = 0
    retentions: int = 0
    shreds: int = 0
    already: int = 0
    not_here: int = 0


_COUNTED = {
    audit.HOLD_PLACED: "holds",
    audit.HOLD_RELEASED: "releases",
    audit.RETENTION_EXTENDED: "retentions",
    audit.SHRED_REQUESTED: "shreds",
}


def replay(vault: Vault, principal: Principal, acts: Iterable[Act]) -> Replayed:
    """Do again what was done, in the order of the log, each with an entry of its own; idempotent.

    Args:
        vault: of the org as it was put back.
        principal: who answers for it.
        acts: from :func:`merged`.

    Raises:
        HeldError, RetentionError: something is to be shredded that has to be kept here: a part of the history is
            missing. What came before it is done.
        KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
    """
    counts = {"already": 0, "not_here": 0, **dict.fromkeys(_COUNTED.values(), 0)}
    replaying = _Replaying(vault, principal)
    done: dict[str, Callable[[Act], str]] = {
        audit.HOLD_PLACED: replaying.hold,
        audit.HOLD_RELEASED: replaying.release,
        audit.RETENTION_EXTENDED: replaying.retain,
        audit.SHRED_REQUESTED: replaying.shred,
    }
    for act in acts:
        event = act.entry.event
        if event in done and not vault.closed:
            try:
                if act.is_later:
                    raise NotAvailableError
                counts[done[event](act) or _COUNTED[event]] += 1
            except NotAvailableError:
                counts["not_here"] += 1
            except ShreddedError:
                counts["already"] += 1
    return Replayed(vault.org, **counts)


class _Replaying:
    """Each act once more; what it answers is ``already`` where there was nothing to do."""

    def __init__(self, vault: Vault, principal: Principal) -> None:
        self._vault = vault
        self._principal = principal

    def _again(self, entry: audit.Leaf) -> Disposal:
        """What does an act once more, in the name of who did it first."""
        first = str(entry.details.get("requested_by", entry.subject))
        return Disposal(self._vault, self._principal, Earlier(first, entry.time_us, entry.seq))

    def hold(self, act: Act) -> str:
        """The hold under its own ID, so that a release finds it."""
        vault, entry, hold_id = self._vault, act.entry, bytes.fromhex(act.entry.details["hold"])
        first = str(entry.details.get("placed_by", entry.subject))

        def placed(writer: Writer) -> str:
            if any(row.hold_id == hold_id for row in writer.holds()):
                return "already"
            scope_id = number = None
            if entry.session_id is not None:
                session = writer.session(entry.session_id)
                if session is None:
                    raise NotAvailableError
                scope_id = session.scope_id
            if "result" in entry.details:
                number = parse_result_id(entry.details["result"])
                found = writer.find(entry.session_id or "", number)
                if found is None or found[2].state == "live":
                    raise NotAvailableError
            reason = act.reason or vault.sealed_text("Not in what was replayed.", b"hold", hold_id)
            writer.insert_holds(
                [HoldRow(hold_id, scope_id, number, reason, placed_by=first, placed_at_us=entry.time_us)]
            )
            vault.counted(writer, holds=1)
            details: dict[str, Any] = {"hold": hold_id.hex(), "placed_by": first, "replayed": entry.seq}
            if number is not None:
                details["result"] = format_result_id(number)
            leaf = vault.leaf(
                audit.HOLD_PLACED, self._principal.subject, session_id=entry.session_id, details=details
            )
            writer.append([leaf])
            return ""

        return vault.transact(placed)

    def release(self, act: Act) -> str:
        """The hold, released."""
        try:
            self._again(act.entry).release(act.entry.details["hold"])
        except FormatError:
            return "already"
        return ""

    def retain(self, act: Act) -> str:
        """The longer retention, unless it is as long already."""
        session_id, until_us = act.entry.session_id or "", act.entry.details["until_us"]
        number = parse_result_id(act.entry.details["result"])
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            found = reader.find(session_id, number)
        if found is not None and (found[2].retention_until_us or -1) >= until_us:
            return "already"
        self._again(act.entry).retain(session_id, format_result_id(number), until_us)
        return ""

    def shred(self, act: Act) -> str:
        """The original, the session or the org, destroyed by the way of all that is destroyed."""
        session_id, result_id = act.entry.session_id, act.entry.details.get("result")
        disposal = self._again(act.entry)
        if session_id is None:
            disposal.shred_org()
        elif result_id is None:
            disposal.shred_session(session_id)
        else:
            disposal.shred_original(session_id, result_id)
        return ""
