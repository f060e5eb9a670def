"""What the audit log says of sessions, batches, holds and shreds, taken in entry by entry while it is rehashed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evidence_archive.errors import AuditBrokenError, FormatError, IntegrityError, UnsupportedVersionError
from evidence_archive.model import parse_result_id
from evidence_archive.ports import HeadRow, Seen, Survey
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.merkle import EMPTY_ROOT, Frontier, leaf_hash
from evidence_archive.vault import LEAVES_PER_READ
from evidence_archive.verifying.findings import Findings, key_text

__all__ = ["Log", "Told", "ToldHold", "ToldShred", "logged_batch", "logged_postings"]

_OF_A_SESSION = frozenset(
    {
        audit.SESSION_OPENED,
        audit.BATCH_ACCEPTED,
        audit.BOOK_POSTED,
        audit.RESTORE_GRANTED,
        audit.RETENTION_EXTENDED,
        audit.LABEL_SET,
        audit.SESSION_SUSPENDED,
        audit.SESSION_RESUMED,
    }
)


@dataclass(slots=True)
class ToldLabel:
    """What the log says was put on a result: names add up, a kind is set once, unless the result was archived."""

    names: set[str] = field(default_factory=set)
    kind: str | None = None
    seq: int = -1


@dataclass(slots=True)
class Told:
    """What the log says of one session."""

    owner: str | None = None
    dialect: str | None = None
    batches: dict[str, int] = field(default_factory=dict)
    postings: list[int] = field(default_factory=list)
    restores: int = 0
    suspended: bool = False
    shredded: bool = False
    shredded_numbers: set[int] = field(default_factory=set)
    labels: dict[int, ToldLabel] = field(default_factory=dict)
    kept_until_us: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class ToldHold:
    """What the log says of a hold."""

    session_id: str | None
    number: int | None
    placed_by: str
    released_by: str | None = None


@dataclass(slots=True)
class ToldShred:
    """What the log says of a shred."""

    session_id: str
    number: int | None
    requested_by: str
    completed: bool = False


class Log:
    """The log as far as it was read, rehashed, and what it says."""

    def __init__(self, org: str, findings: Findings) -> None:
        self.size = 0
        self.entries = 0
        self.frontier = Frontier()
        self.whole = True
        self.last_hash: bytes | None = None
        self.roots: dict[int, bytes | None] = {}
        """The roots that are wanted, by size; filled in as the log goes by."""
        self.sessions: dict[str, Told] = {}
        self.holds: dict[str, ToldHold] = {}
        self.shreds: dict[str, ToldShred] = {}
        self.org_shredded = False
        self.org_shredded_at = -1
        """Place of the entry that says so."""
        self.policy_digest: str | None = None
        self.given_up: dict[tuple[int, bytes], int] = {}
        """Size and root of the heads at anchors that were given up when the log was anchored anew, and the entry."""
        self._org = org
        self._findings = findings
        self._head: HeadRow | None = None

    def wants_root(self, size: int) -> None:
        """A root to be remembered when the log has that size; asked before it is read."""
        self.roots[size] = EMPTY_ROOT if size == 0 else None

    def read_on(self, survey: Survey, pages_max: int | None = None) -> bool:
        """Take in what is there beyond what was read; whether that is all there is.

        Args:
            survey: entries and head are compared as this transaction sees them.
            pages_max: stop after so many reads.
        """
        seen = survey.one(HeadRow)
        if seen is not None and seen.row is not None and seen.row == self._head:
            return True
        while pages_max is None or pages_max > 0:
            rows = survey.leaves(self.size - 1 if self.size else -(2**63), LEAVES_PER_READ)
            before = self.size
            for seq, data in rows:
                self._take(seq, data)
            if len(rows) < LEAVES_PER_READ or self.size == before:
                self._compare(seen)
                return True
            if pages_max is not None:
                pages_max -= 1
        return False

    def _compare(self, seen: Seen[HeadRow] | None) -> None:
        """The head with the entries that are there at the same moment."""
        if seen is None:
            self._findings.add("head_missing", "audit_heads", self._org, "The log has no head: it was removed.")
            return
        self._findings.row("audit_heads", self._org, seen)
        head = self._head = seen.row
        if head is None:
            return
        if head.size != self.size:
            sentence = f"The head counts {head.size} entries, and there are entries up to {self.size - 1}."
            self._findings.add("head_differs", "audit_heads", self._org, sentence)
        elif self.whole and (
            head.frontier != self.frontier.to_bytes()
            or (self.last_hash is not None and head.last_leaf_hash != self.last_hash)
        ):
            sentence = "The entries do not hash to what the head holds: an entry or the head was changed."
            self._findings.add("head_differs", "audit_heads", self._org, sentence)
        if head.policy_digest != self.policy_digest:
            sentence = "The head names another policy than the last one that the log says was loaded."
            self._findings.add("head_differs", "audit_heads", f"{self._org} policy_digest", sentence)

    def _take(self, seq: object, data: object) -> None:
        """One entry: its place, its hash, and what it says."""
        if type(seq) is not int or seq < self.size:
            self._add("entry_broken", f"entry {key_text(seq)}", "An entry stands where no entry can be.")
            return
        if seq > self.size:
            missing = f"{self.size}" if seq == self.size + 1 else f"{self.size} to {seq - 1}"
            self._add("entry_missing", f"entry {missing}", "The log has a gap here: entries were removed.")
            self.whole = False
        self.size = seq + 1
        self.entries += 1
        if type(data) is not bytes:
            self.whole = False
            self._add("entry_broken", f"entry {seq}", "An entry is not even bytes: it was changed.")
            return
        self.last_hash = leaf_hash(data)
        if self.whole:
            self.frontier.append(self.last_hash)
            if self.size in self.roots:
                self.roots[self.size] = self.frontier.root()
        try:
            entry = audit.decode_leaf(data)
            if (entry.org, entry.seq) != (self._org, seq):
                raise AuditBrokenError("It belongs elsewhere.")
            self._index(entry)
        except UnsupportedVersionError:
            self._add("entry_newer", f"entry {seq}", "A newer version wrote this entry: verify with that version.")
        except (IntegrityError, FormatError, KeyError, TypeError, ValueError):
            sentence = "An entry is not one this library wrote for this place: it was changed or moved."
            self._add("entry_broken", f"entry {seq}", sentence)

    def _add(self, code: str, place: str, sentence: str) -> None:
        self._findings.add(code, "audit_leaves", place, sentence)

    def _index(self, entry: audit.Leaf) -> None:
        """What an entry says that rows are compared with.

        Raises:
            ValueError, TypeError, KeyError, FormatError: its details are not those of its event.
        """
        if entry.event == audit.POLICY_LOADED:
            self.policy_digest = entry.policy_digest
        elif entry.event in (audit.HOLD_PLACED, audit.HOLD_RELEASED):
            self._index_hold(entry)
        elif entry.event == audit.LOG_REANCHORED:
            for head in entry.details["heads"]:
                self.given_up[int(head["size"]), bytes.fromhex(head["root"])] = entry.seq
        elif entry.event in (audit.SHRED_REQUESTED, audit.SHRED_COMPLETED):
            self._index_shred(entry)
        elif entry.event in _OF_A_SESSION and entry.session_id is not None:
            self._index_session(entry, self.sessions.setdefault(entry.session_id, Told()))

    def _index_session(self, entry: audit.Leaf, told: Told) -> None:
        details = entry.details
        match entry.event:
            case audit.SESSION_OPENED:
                told.owner, told.dialect = entry.subject, str(details["dialect"])
            case audit.BATCH_ACCEPTED:
                logged_batch(entry)
                told.batches[str(entry.batch_id)] = entry.seq
            case audit.BOOK_POSTED:
                logged_postings(entry)
                told.postings.append(entry.seq)
            case audit.RESTORE_GRANTED:
                told.restores += 1
            case audit.RETENTION_EXTENDED:
                number, until_us = parse_result_id(details["result"]), int(details["until_us"])
                told.kept_until_us[number] = max(until_us, told.kept_until_us.get(number, 0))
            case audit.LABEL_SET:
                for number in map(parse_result_id, details["results"]):
                    label = told.labels.setdefault(number, ToldLabel())
                    label.names |= set(details["sensitivity"])
                    if details["kind"] is not None and label.kind is None:
                        label.kind, label.seq = details["kind"], entry.seq
            case _:
                told.suspended = entry.event == audit.SESSION_SUSPENDED

    def _index_hold(self, entry: audit.Leaf) -> None:
        name = bytes.fromhex(entry.details["hold"]).hex()
        if entry.event == audit.HOLD_PLACED:
            self.holds[name] = ToldHold(
                entry.session_id, _number_in(entry.details), str(entry.details.get("placed_by", entry.subject))
            )
        elif name in self.holds:
            self.holds[name].released_by = _done_by(entry)

    def _index_shred(self, entry: audit.Leaf) -> None:
        if entry.event == audit.SHRED_REQUESTED and entry.session_id is None:
            self.org_shredded, self.org_shredded_at = True, entry.seq
            return
        name = bytes.fromhex(entry.details["shred"]).hex()
        if entry.event == audit.SHRED_COMPLETED:
            if name in self.shreds:
                self.shreds[name].completed = True
            return
        number = _number_in(entry.details)
        told = self.sessions.setdefault(str(entry.session_id), Told())
        self.shreds[name] = ToldShred(str(entry.session_id), number, _done_by(entry))
        if number is None:
            told.shredded = True
        else:
            told.shredded_numbers.add(number)


def _done_by(entry: audit.Leaf) -> str:
    """Who did something first, where it was done again in a store that was put back."""
    return str(entry.details.get("requested_by", entry.subject))


def _number_in(details: Mapping[str, Any]) -> int | None:
    return None if details.get("result") is None else parse_result_id(details["result"])


def logged_batch(entry: audit.Leaf) -> dict[int, str | None]:
    """The results of an accepted batch with the digests of their envelopes, ``None`` for copies.

    Raises:
        ValueError, TypeError, KeyError, FormatError: the entry does not say so.
    """
    results, envelopes = entry.details["results"], entry.details["envelopes"]
    if entry.batch_id is None:
        raise ValueError("batch")
    return {parse_result_id(result_id): envelope for result_id, envelope in zip(results, envelopes, strict=True)}


def logged_postings(entry: audit.Leaf) -> dict[tuple[str, int], str]:
    """The digests of what an entry put down, by book and sequence number.

    Raises:
        ValueError, TypeError, KeyError: the entry does not say so.
    """
    first, book = int(entry.details["first"]), str(entry.details["book"])
    return {(book, first + at): str(digest) for at, digest in enumerate(entry.details["digests"])}
