"""What a verification found, and how it is told."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evidence_archive.model import format_result_id
from evidence_archive.ports import Seen

__all__ = ["CODES", "FINDINGS_MAX", "Finding", "Findings", "VerifyReport", "key_text", "number_text", "place_of"]

FINDINGS_MAX = 10_000
"""Findings that are kept one by one; those beyond are counted."""

CODES: Mapping[str, str] = {
    "anchor_broken": "an anchor's newest head is none, is of another log, or is not signed by this log's key",
    "anchor_empty": "an anchor knows no head of this log, so it shows nothing",
    "batch_differs": "a batch's row is not what the log says of the batch",
    "batch_missing": "the log accepted a batch that has no row",
    "batch_unlogged": "a batch, or a result of one, that the log did not accept",
    "checkpoint_broken": "a stored head is none, is of another log or size, or is not signed by this log's key",
    "checkpoint_missing": "a head that an anchor knows is not in the store, or the last one of a shredded org",
    "custody_differs": "what the org has in keeping is counted wrong, or the row that counts it was put back",
    "custody_missing": "the row that counts what the org has in keeping is gone",
    "entry_broken": "an entry of the log is not one this library wrote for that place",
    "entry_missing": "entries of the log are missing",
    "entry_newer": "an entry of the log was written by a newer version",
    "head_differs": "entries and head of the log disagree",
    "head_missing": "the head of the log is gone",
    "hold_differs": "a hold is not what the log says of it",
    "hold_missing": "the log placed a hold that has no row",
    "hold_unlogged": "a hold that the log did not place",
    "key_differs": "a session's key is of another generation or an older version than it has to be",
    "key_missing": "a session's key or the org's is gone, or the provider has not the version it is wrapped under",
    "key_unopened": "a session's key does not open",
    "note_unopened": "the key and note of an archived result do not open",
    "nothing_checked": "the log has no entry, so there is nothing that anything was compared with",
    "object_changed": "an object is not what was stored",
    "object_missing": "an object is not in the object store",
    "object_unread": "an object could not be read",
    "org_differs": "the org's row names another log, or is an older copy",
    "org_missing": "the org's row is gone",
    "org_unopened": "the org's row does not open, so everything was checked without keys",
    "org_unlisted": "the org is not in the list of orgs",
    "original_changed": "an envelope is not the bytes that were stored",
    "original_missing": "an archived result has no envelope and nothing shredded it",
    "original_unopened": "an original does not open the way a restore opens it",
    "posting_differs": "what is in a session's book is not what the log says was put down",
    "posting_missing": "the log says that something was put down in a session's book, and it is gone",
    "posting_unlogged": "something is in a session's book that the log does not know",
    "posting_unopened": "what is in a session's book does not open",
    "reanchored": "an anchor's newest head is of a history that was given up when the log was anchored anew",
    "result_differs": "a result is not what the log or its own session says of it",
    "result_missing": "a result of a session is gone",
    "rewritten": "the log does not begin with a head that was signed before",
    "rolled_back": "the log is shorter than a head that was signed before",
    "row_malformed": "a column of a row is of another type than is ever written",
    "seal_broken": "a row's seal does not hold",
    "session_differs": "a session's row is not what the log or its own results say of it",
    "session_missing": "the log opened a session that has no row",
    "session_unlogged": "a session that the log did not open",
    "shred_differs": "a shred is not what the log says of it",
    "shred_missing": "the log shredded something, and the record of it has no row",
    "shred_undone": "something that was shredded is there again",
    "shred_unlogged": "a shred that the log does not know",
    "stray": "a row that nothing refers to",
}
"""What each finding's code means."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        code: what kind; one of ``CODES``.
        table: where, a table of the database, or ``anchor``.
        place: which row, entry or object there, by its key.
        sentence: what is wrong, for a person.
        session_id: of which session, where it is of one.
    """

    code: str
    table: str
    place: str
    sentence: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a run looked at and what it found.

    Args:
        org: whose store.
        level: how far it looked.
        size, root_hex: of the log as it was read; the root is empty where entries are missing.
        counts: how many entries, checkpoints, sessions, results, batches, originals and so on were looked at;
            ``envelopes`` are those whose bytes were hashed, ``opened`` those that were opened.
        findings: at most ``FINDINGS_MAX``.
        findings_count: of all.
        damaged: how many findings are of which session.
        unchecked: what could not be looked at, or was not to be, one sentence each.
    """

    org: str
    level: str
    size: int
    root_hex: str
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    findings_count: int
    damaged: Mapping[str, int]
    unchecked: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether there was something to look at and all of it was as it should be."""
        return self.findings_count == 0 and self.counts.get("entries", 0) > 0


class Findings:
    """Findings, each place once for each code."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str], Finding] = {}
        self.count = 0
        self.of_sessions: Counter[str] = Counter()

    def add(self, code: str, table: str, place: str, sentence: str, session_id: str | None = None) -> None:
        """One more, unless it is known."""
        at = (code, table, place)
        if at in self.kept:
            return
        self.count += 1
        if session_id is not None:
            self.of_sessions[session_id] += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept[at] = Finding(code, table, place, sentence, session_id)

    def row(self, table: str, place: str, seen: Seen[Any], session_id: str | None = None) -> None:
        """Whether a row is of its types and its seal holds."""
        if seen.row is None:
            sentence = "A column of this row is of another type than this library writes: it was changed."
            self.add("row_malformed", table, place, sentence, session_id)
        elif seen.sealed is False:
            self.add("seal_broken", table, place, "The seal of this row does not hold: it was changed.", session_id)


def place_of(seen: Seen[Any], name: str) -> str:
    """The key of a row, as it is written in a finding."""
    return key_text(seen.stored[name])


def number_text(number: object) -> str:
    """The result ID of a number; whatever else stands for one, as a key."""
    return format_result_id(number) if type(number) is int and number > 0 else key_text(number)


def key_text(value: object) -> str:
    """A key as it is written in a finding; what is of no type that keys have is only named."""
    if type(value) is bytes:
        return value.hex()
    if type(value) in (int, str):
        return str(value)
    return f"({type(value).__name__.strip('_')})"
