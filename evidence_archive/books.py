"""The books of a session: what it puts down and never changes, sealed, in order, with an entry in the log for each.

A posting is a JSON object. It is closed under a key that belongs to the session, so that it goes when the session is
shredded, and to its place: session, book and sequence number. The session's row counts the postings of each book, so
that one that was removed, or moved to another book, is noticed when the book is read.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    SealBrokenError,
    ShreddedError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from evidence_archive.model import ce
from evidence_archive.ports import PostingRow, Reader, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.records import Records
from evidence_archive.sealing.keyring import derive, unwrap, wrap
from evidence_archive.vault import Vault

__all__ = [
    "POSTINGS_MAX",
    "POSTING_BYTES_MAX",
    "Books",
    "Posting",
    "close_posting",
    "counts_of",
    "open_posting",
    "posting_key",
]

POSTING_BYTES_MAX = 1024 * 1024
"""Longest posting, as JSON in UTF-8, in bytes."""

POSTINGS_MAX = 1_000
"""Most postings of one transaction."""

_PER_READ = 500
_GONE = "Postings of this session were removed or put back outside this library."

_CANONICAL = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Posting:
    """Something that was put down.

    Args:
        seq: its place in its book, from 1.
        created_at_us: microseconds since 1970-01-01 UTC.
        content: what it says.
    """

    seq: int
    created_at_us: int
    content: Mapping[str, Any] = field(repr=False)


def counts_of(session: SessionRow) -> dict[str, int]:
    """How many postings each book of a session has, as its row says.

    Raises:
        SealBrokenError: it does not say that in the form this library writes.
    """
    try:
        counts: dict[str, int] = json.loads(session.books or "{}")
        if _CANONICAL.encode(counts) == (session.books or "{}") and all(type(one) is int for one in counts.values()):
            return counts
    except (ValueError, RecursionError, AttributeError):
        pass
    raise SealBrokenError("The books of this session are not counted in the form this library writes.")


def posting_key(tag_key: bytes) -> bytes:
    """The key of a session's postings: the same in all generations of its key, gone when the session is shredded."""
    return derive(tag_key, b"evidence-archive/v1/posting")


def _context(vault: Vault, scope_id: bytes, book: str, seq: int) -> bytes:
    return b"evidence-archive/v1/posting\x00" + ce(vault.deployment, vault.org, scope_id, book, seq)


def close_posting(
    vault: Vault, key: bytes, *, scope_id: bytes, book: str, seq: int, content: Mapping[str, Any]
) -> bytes:
    """A posting as it is stored.

    Args:
        vault: of the org.
        key: from :func:`posting_key`.
        scope_id, book, seq: its place.
        content: JSON values; at most ``POSTING_BYTES_MAX`` of JSON.

    Raises:
        FormatError: it is no JSON, or too long.
    """
    try:
        data = _CANONICAL.encode(content).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        raise FormatError("What is put down in a book consists of JSON values.") from None
    if len(data) > POSTING_BYTES_MAX:
        raise FormatError(f"What is put down in a book has at most {POSTING_BYTES_MAX} bytes as JSON.")
    return wrap(key, data, _context(vault, scope_id, book, seq))


def open_posting(vault: Vault, key: bytes, row: PostingRow) -> dict[str, Any]:
    """What a posting says.

    Raises:
        SealBrokenError: it is not what was put down at this place.
    """
    data = unwrap(key, row.closed, _context(vault, row.scope_id, row.book, row.seq))
    try:
        content: dict[str, Any] = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise SealBrokenError("A posting is not what this library puts down.") from error
    return content


class Books:
    """The books of one session. Callers hold the records' lock.

    Args:
        records: of the session.
        without: names in what was put down that are not kept in memory; for a book that holds much.
    """

    def __init__(self, records: Records, *, without: frozenset[str] = frozenset()) -> None:
        self._records = records
        self._without = without
        self._key = posting_key(records.keys.tag)
        self._known: dict[str, tuple[list[Posting], PostingRow | None]] = {}
        """What was read of each book, and the last row of it."""

    def seen(self, book: str) -> Sequence[Posting]:
        """All of a book as the session's newest row counts it, for a view: the store is asked for what is new alone.

        Raises:
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read.
        """
        known, _ = self._known.get(book, ([], None))
        if len(known) == counts_of(self._records.row).get(book, 0):
            return known
        return self.read(book)

    def read(self, book: str) -> Sequence[Posting]:
        """All of a book, in order; what was read before is not read again.

        Args:
            book: its name.

        Raises:
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read.
        """
        with self._records.vault.store.reading(self._records.wait_ms) as reader:
            session = reader.session(self._records.id)
            if session is None:
                raise SealBrokenError("This session's row is gone: it was removed outside this library.")
            return self._read_on(reader, session, book)

    def among(self, book: str, first: int, last: int) -> list[Posting]:
        """Some of a book, in order and as a whole; none of it is kept in memory.

        Args:
            book: its name.
            first, last: sequence numbers, both included.

        Raises:
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read.
        """
        vault = self._records.vault
        with vault.store.reading(self._records.wait_ms) as reader:
            rows = reader.postings(self._records.keys.scope_id, book, first - 1, last - first + 1)
        if [row.seq for row in rows] != list(range(first, last + 1)):
            raise SealBrokenError(_GONE)
        return [Posting(row.seq, row.created_at_us, open_posting(vault, self._key, row)) for row in rows]

    def post(
        self,
        book: str,
        decide: Callable[[Sequence[Posting]], tuple[Sequence[Mapping[str, Any]], T]],
    ) -> tuple[list[Posting], T]:
        """Put down what a function decides, looking at all that the book says under the lock that writers share.

        Where a commit was reported as failed, what became of it is looked up, as for a batch.

        Args:
            book: its name.
            decide: gets the book as it is, and returns what to put down and anything else; it may be asked several
                times, and what it raises leaves the book as it was. At most ``POSTINGS_MAX``; nothing writes nothing.

        Returns:
            The new postings, and the second thing that was decided.

        Raises:
            ShreddedError: the session was shredded.
            FormatError: what it decided is no JSON, or too long.
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be written; the message says where it is not known what became of it.
        """
        records = self._records
        ending: list[tuple[SessionRow | None, list[Posting], PostingRow | None, T]] = []
        """What a transaction that got as far as its end has put down."""

        def posted(writer: Writer) -> tuple[SessionRow | None, list[Posting], PostingRow | None, T]:
            ending.clear()
            row = records.session_under_lock(writer)
            if row.version != records.row.version:
                records.catch_up(writer, row)
            scope = writer.scope(row.scope_id)
            if scope is None or not scope.wrapped:
                raise ShreddedError("This session was shredded: nothing can be put down in its books any more.")
            known = self._read_on(writer, row, book)
            contents, answer = decide(known)
            if len(contents) > POSTINGS_MAX:
                raise FormatError(f"At most {POSTINGS_MAX} things are put down in a book at once.")
            if not contents:
                return None, [], None, answer
            now_us = records.clock.now_us()
            counts = counts_of(row)
            first = counts.get(book, 0) + 1
            rows = [self._row(row.scope_id, book, at, content, now_us) for at, content in enumerate(contents, first)]
            # Opened again before it is written: what is known here is what everybody will read.
            new = [self._opened(one) for one in rows]
            writer.insert_postings(rows)
            row.version += 1
            row.books = _CANONICAL.encode({**counts, book: rows[-1].seq})
            writer.update_session(row)
            details = {
                "book": book,
                "first": rows[0].seq,
                "digests": [sha256(one.closed).hexdigest() for one in rows],
            }
            writer.append([records.leaf(audit.BOOK_POSTED, details=details)])
            ending.append((row, new, rows[-1], answer))
            return ending[-1]

        try:
            changed, new, last, answer = records.transact(posted)
        except StoreBusyError:  # rolled back, even at its end
            raise
        except StoreError as error:
            if not ending:
                raise
            changed, new, last, answer = ending[-1]
            changed = self._settled(last, error)
        if changed is not None:
            records.row = changed
            self._known[book] = [*self._known[book][0], *new], last
        return new, answer

    def _settled(self, last: PostingRow | None, error: StoreError) -> SessionRow:
        """The session's row, where postings whose commit was reported as failed are there; they are durable then.

        They are looked up under the lock that the commit held: what is not there then, will not come later.

        Args:
            last: of the postings.
            error: what the commit raised, which is raised again where they are not there.

        Raises:
            StoreError: they are not there, or cannot be looked up.
        """
        records, seen = self._records, list[SessionRow | None]()

        def look(writer: Writer) -> None:
            seen.clear()
            row = records.session_under_lock(writer)
            if last is None or writer.postings(row.scope_id, last.book, last.seq - 1, 1) != [last]:
                seen.append(None)
                return
            records.catch_up(writer, row)
            # A commit that can be seen may still go with the power: only what is committed behind it makes sure.
            row.version += 1
            writer.update_session(row)
            seen.append(row)

        is_known = False
        with suppress(EvidenceArchiveError):
            records.transact(look, audited=False)
            is_known = True
        if seen == [None]:
            raise error
        if not is_known or seen[0] is None:
            told = f"{str(error)[0].lower()}{str(error)[1:]}"
            raise StoreUnavailableError(
                f"It is not known whether this was put down in its book; look there before you try again: {told}"
            ) from error
        return seen[0]

    def _read_on(self, reader: Reader, session: SessionRow, book: str) -> list[Posting]:
        """The book, with what was put down since it was read last."""
        count = counts_of(session).get(book, 0)
        if reader.posted(session.scope_id, book) != (count, count):
            raise SealBrokenError(_GONE)
        known, last = self._known.get(book, ([], None))
        known = list(known)
        # The last that is known must still be there as it is known; not so when the store was put back.
        if last is not None and reader.postings(session.scope_id, book, last.seq - 1, 1) != [last]:
            known, last = [], None
        while True:
            rows = reader.postings(session.scope_id, book, last.seq if last else 0, _PER_READ)
            known += map(self._opened, rows)
            last = rows[-1] if rows else last
            if len(rows) < _PER_READ:
                break
        self._known[book] = known, last
        return known

    def _row(self, scope_id: bytes, book: str, seq: int, content: Mapping[str, Any], now_us: int) -> PostingRow:
        closed = close_posting(self._records.vault, self._key, scope_id=scope_id, book=book, seq=seq, content=content)
        return PostingRow(scope_id, book, seq, closed, now_us)

    def _opened(self, row: PostingRow) -> Posting:
        content = open_posting(self._records.vault, self._key, row)
        kept = {name: value for name, value in content.items() if name not in self._without}
        return Posting(row.seq, row.created_at_us, kept if self._without else content)
