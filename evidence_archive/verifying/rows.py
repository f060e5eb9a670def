"""One session's rows, compared with each other and with what the log says of it."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256

from evidence_archive.books import counts_of
from evidence_archive.errors import FormatError, IntegrityError, SealBrokenError
from evidence_archive.model import parse_result_id
from evidence_archive.ports import BatchRow, ObjectRow, PostingRow, ResultRow, ScopeRow, Seen, SessionRow, Survey
from evidence_archive.proof import leaf as audit
from evidence_archive.vault import SHREDDED
from evidence_archive.verifying.findings import Findings, key_text, number_text
from evidence_archive.verifying.told import Told, logged_batch, logged_postings

__all__ = ["POSTINGS_PER_READ", "SessionRows"]

POSTINGS_PER_READ = 200


class SessionRows:
    """One session's rows, with each other and with the log."""

    def __init__(
        self, findings: Findings, survey: Survey, session_id: str, told: Told, results: Sequence[Seen[ResultRow]]
    ) -> None:
        self._findings = findings
        self._survey = survey
        self._id = session_id
        self._told = told
        self._present: set[int] = set()
        self._posted: Counter[str] = Counter()
        self.rows: dict[int, ResultRow] = {}
        for seen in results:
            number = seen.stored["number"]
            findings.row("results", f"{session_id} {number_text(number)}", seen, session_id)
            if type(number) is int:
                self._present.add(number)
            if seen.row is not None:
                self.rows[seen.row.number] = seen.row

    def _add(self, code: str, table: str, number: int | None, sentence: str) -> None:
        place = self._id if number is None else f"{self._id} {number_text(number)}"
        self._findings.add(code, table, place, sentence, self._id)

    def shredded(self, org_shredded: bool) -> set[int]:
        """The originals of this session that the log says were shredded."""
        if self._told.shredded or org_shredded:
            return set(self.rows)
        return self._told.shredded_numbers

    def check_results(self) -> None:
        """Each result by itself, and with the batch and the labels that the log knows."""
        for number, row in self.rows.items():
            origin = None if row.origin is None else self.rows.get(row.origin)
            if row.origin is not None and (origin is None or origin.origin is not None):
                self._add("result_differs", "results", number, "What this copy was taken from is not there.")
            if row.state not in ("live", "archived", SHREDDED):
                self._add("result_differs", "results", number, "A result is in no state that there is.")
            in_batch = row.batch_id is not None
            if (row.state == "archived" and not in_batch) or (row.state == "live" and in_batch):
                self._add("result_differs", "results", number, "The state of a result and its batch disagree.")
            if row.batch_id is not None and row.batch_id.hex() not in self._told.batches:
                self._add("batch_unlogged", "results", number, "The log accepted no batch that archived this result.")
            if (row.state == "archived") != (row.closed is not None):
                self._add("result_differs", "results", number, "The state of a result and its sealed key disagree.")
            if not self._has_labels(row):
                self._add("result_differs", "results", number, "A label that the log set is not on this result.")
            if (self._told.kept_until_us.get(number) or 0) > (row.retention_until_us or 0):
                self._add("result_differs", "results", number, "The log kept this original for longer than its row.")

    def _has_labels(self, row: ResultRow) -> bool:
        label = self._told.labels.get(row.number)
        if label is None:
            return True
        archived = None if row.batch_id is None else self._told.batches.get(row.batch_id.hex())
        is_kind_due = label.kind is not None and (archived is None or label.seq < archived)
        return label.names <= set(row.sensitivity.split("\n")) and (not is_kind_due or row.kind == label.kind)

    def check_batches(self, batches: Sequence[Seen[BatchRow]]) -> None:
        """Each batch's row and results with the entry that accepted it."""
        met: set[str] = set()
        for seen in batches:
            name = key_text(seen.stored["batch_id"])
            met.add(name)
            self._findings.row("batches", name, seen, self._id)
            if name not in self._told.batches:
                sentence = "The log accepted no such batch: the row was put in."
                self._findings.add("batch_unlogged", "batches", name, sentence, self._id)
        named: dict[int, str] = {}
        rows = {key_text(seen.stored["batch_id"]): seen.row for seen in batches}
        for name, seq in self._told.batches.items():
            if name not in met:
                sentence = "The log accepted this batch, and it has no row: it was removed."
                self._findings.add("batch_missing", "batches", name, sentence, self._id)
            results = self._results_of(seq)
            if results is None:
                continue  # found where the log is
            named.update(dict.fromkeys(results, name))
            for number, envelope in results.items():
                self._check_archived(number, name, envelope)
            receipt = rows.get(name)
            if receipt is not None and _receipt_numbers(receipt) != list(results):
                sentence = "The receipt of this batch names other results than the log does."
                self._findings.add("batch_differs", "batches", name, sentence, self._id)
        for number, row in self.rows.items():
            batch = None if row.batch_id is None else row.batch_id.hex()
            if batch in self._told.batches and named.get(number) != batch:
                self._add("result_differs", "results", number, "This result is not among those of its batch.")

    def _results_of(self, seq: int) -> dict[int, str | None] | None:
        """What the log says that a batch archived; read again, because all batches at once would not fit."""
        for found, data in self._survey.leaves(seq - 1, 1):
            try:
                if found == seq and type(data) is bytes:
                    return logged_batch(audit.decode_leaf(data))
            except (IntegrityError, FormatError, KeyError, TypeError, ValueError):
                return None
        return None

    def _check_archived(self, number: int, batch: str, envelope: str | None) -> None:
        row = self.rows.get(number)
        if row is None:
            if number not in self._present:
                self._add("result_missing", "results", number, "This result of the session is gone.")
            return
        if row.state == "live":
            sentence = "The log archived this result and nothing shredded it, and its row says that it is live."
            self._add("result_differs", "results", number, sentence)
        digest = None if row.envelope_sha256 is None else row.envelope_sha256.hex()
        if (None if row.batch_id is None else row.batch_id.hex()) != batch or digest != envelope:
            sentence = "The log archived this result in another batch, or with another envelope, than its row says."
            self._add("result_differs", "results", number, sentence)

    def check_postings(self, scope_id: bytes) -> None:
        """What is in the session's books, with the entries that say what was put down."""
        expected = self._told_postings()
        for seen in self._postings(scope_id):
            place = f"{self._id} {key_text(seen.stored['book'])} {key_text(seen.stored['seq'])}"
            self._findings.row("postings", place, seen, self._id)
            if seen.row is None:
                continue
            self._posted[seen.row.book] += 1
            told = expected.pop((seen.row.book, seen.row.seq), None)
            if told is None:
                sentence = "The log says nothing of this posting: the row was put in."
                self._findings.add("posting_unlogged", "postings", place, sentence, self._id)
            elif told != sha256(seen.row.closed).hexdigest():
                sentence = "This posting is not what the log says was put down: it was changed."
                self._findings.add("posting_differs", "postings", place, sentence, self._id)
        for book, seq in sorted(expected):
            sentence = "The log says that this was put down, and it is not there: it was removed."
            self._findings.add("posting_missing", "postings", f"{self._id} {book} {seq}", sentence, self._id)

    def _postings(self, scope_id: bytes) -> Iterator[Seen[PostingRow]]:
        after = ("", -(2**62))
        while page := self._survey.postings(scope_id, after, POSTINGS_PER_READ):
            yield from page
            last = (page[-1].stored["book"], page[-1].stored["seq"])
            if not isinstance(last[0], str) or type(last[1]) is not int or len(page) < POSTINGS_PER_READ:
                return
            after = last[0], last[1]

    def _told_postings(self) -> dict[tuple[str, int], str]:
        expected: dict[tuple[str, int], str] = {}
        for seq in self._told.postings:
            for found, data in self._survey.leaves(seq - 1, 1):
                with suppress(IntegrityError, FormatError, KeyError, TypeError, ValueError):
                    if found == seq and type(data) is bytes:
                        expected.update(logged_postings(audit.decode_leaf(data)))
        return expected

    def check_session(self, row: SessionRow, batches: Sequence[Seen[BatchRow]], org_shredded: bool) -> None:
        """A session's own row: owner, counters, suspension."""
        told, present = self._told, self._present
        before = 0
        for number in sorted({row.next_number, *(one for one in present if one < row.next_number)}):
            if number > before + 1:
                gone = f"r{before + 1}" if number == before + 2 else f"r{before + 1} to r{number - 1}"
                sentence = "What the session gave these result IDs to is gone."
                self._findings.add("result_missing", "results", f"{self._id} {gone}", sentence, self._id)
            before = max(before, number)
        if len(present) != row.next_number - 1:
            sentence = f"The session gave {row.next_number - 1} result IDs, and {len(present)} results are there."
            self._add("session_differs", "sessions", None, sentence)
        saved = [_receipt_saved(seen.row) for seen in batches if seen.row is not None]
        versions = [one.version for one in self.rows.values()]
        is_shredded = told.shredded or org_shredded
        wrong = {
            "owner": told.owner is not None and row.subject != told.owner,
            "dialect": told.dialect is not None and row.dialect != told.dialect,
            "count of batches": row.batches != len(told.batches),
            "count of restores": row.restores != told.restores,
            "count of postings": not self._counts_books(row),
            "count of tokens saved": None not in saved and row.tokens_saved != sum(one or 0 for one in saved),
            "version": row.version < max(versions, default=0),
            "suspension": (told.suspended and row.suspended is None) or is_shredded != (row.suspended == SHREDDED),
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                sentence = f"The {what} of this session is not what the log and its results say: the row was changed."
                self._findings.add("session_differs", "sessions", f"{self._id} {what}", sentence, self._id)

    def _counts_books(self, row: SessionRow) -> bool:
        try:
            return counts_of(row) == self._posted
        except SealBrokenError:
            return False

    def check_scope(self, seen: Seen[ScopeRow] | None, org_shredded: bool, kek_floor: int) -> None:
        """A session's wrapped key: there, of the right generation, or gone because it was shredded."""
        if seen is None:
            self._add("key_missing", "scope_keys", None, "The key of this session is gone: its row was removed.")
            return
        self._findings.row("scope_keys", self._id, seen, self._id)
        row = seen.row
        if row is None:
            return
        is_shredded = self._told.shredded or org_shredded
        if is_shredded and row.wrapped:
            self._add("shred_undone", "scope_keys", None, "This session was shredded, and its key is there again.")
        if is_shredded:
            return
        if not row.wrapped:
            self._add("key_missing", "scope_keys", None, "The key of this session is gone, and nothing shredded it.")
        elif row.generation != 1 + len(self._told.shredded_numbers) or row.kek_version < kek_floor:
            sentence = "The key of this session is an older copy: from before a shred or a rotation."
            self._add("key_differs", "scope_keys", None, sentence)

    def check_shredded(self, shredded: set[int]) -> None:
        """What the log shredded is a tombstone and nothing else; nothing else is one."""
        for number, row in self.rows.items():
            root = row.origin or number
            if row.state == SHREDDED:
                if root not in shredded:
                    self._add("result_differs", "results", number, "A tombstone of what nothing ever shredded.")
                self._check_gone(number, row)
            elif root in shredded and (row.state == "archived" or row.origin is not None):
                self._add("shred_undone", "results", number, "This was shredded, and its row is as before.")

    def _check_gone(self, number: int, row: ResultRow) -> None:
        if row.original_id is None:
            return
        if self._survey.envelope(row.original_id) is not None:
            self._add("shred_undone", "originals", number, "This was shredded, and its envelope is there again.")
        place = self._survey.one(ObjectRow, row.original_id)
        if place is not None and place.row is not None and place.row.state == "stored":
            self._add("shred_undone", "objects", number, "This was shredded, and its objects count as stored.")


def _receipt_numbers(row: BatchRow) -> list[int] | None:
    try:
        return [parse_result_id(result_id) for result_id, _ in json.loads(row.receipt)["targets"]]
    except (ValueError, TypeError, KeyError, FormatError, RecursionError):
        return None


def _receipt_saved(row: BatchRow) -> int | None:
    try:
        receipt = json.loads(row.receipt)
        return int(receipt["before"]) - int(receipt["after"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
