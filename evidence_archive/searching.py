"""Search in what a session has archived: originals are opened in memory, some at a time, and only lines come out.

The same permission decides as for a restore; what may not be restored is not looked at. What is found is released
once the search is in the log, with the query sealed beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from evidence_archive.errors import FormatError, ObjectNotFoundError
from evidence_archive.excerpt import WHOLE
from evidence_archive.model import format_result_id, parse_result_id, text_of
from evidence_archive.ports import ResultRow, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.records import Records
from evidence_archive.restoring import Also, Found, Restoring

__all__ = ["Hit", "SearchResult", "Searching"]

QUERY_CHARS_MAX = 500
ORIGINALS_MAX = 500
BYTES_MAX = 32 * 1024 * 1024
"""Bounds on one search: characters of the query; originals that are opened, the newest first, and their bytes."""

HITS_MAX = 20
HITS_OF_ONE_MAX = 5
EXCERPT_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that was found.

    Args:
        result_id: of the original.
        line: its number, from 1.
        excerpt: at most 200 characters around what was found.
        tool: that gave the original; ``span`` for turns that left the window.
    """

    result_id: str
    line: int
    excerpt: str = field(repr=False)
    tool: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    Args:
        hits: lines with the whole query first, then lines with all of its words; of each, the newest originals first.
        searched: how many originals were looked through.
        left_out: how many were not, because of the bounds on one search.
        before: where the next search for the same goes on, to look through these; ``None`` where none is left.
        is_cut: whether more lines were found than are told.
        absent: how many could not be, because an object of theirs is not in the object store.
    """

    hits: tuple[Hit, ...]
    searched: int
    left_out: int
    before: str | None = None
    is_cut: bool = False
    absent: int = 0


class Searching:
    """Searches in one session. Callers hold the records' lock.

    Args:
        records: of the session.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def search(
        self, query: object, before: object = None, *, also: Callable[[SearchResult], Also] | None = None
    ) -> SearchResult:
        """Lines that hold the query, or all of its words, whatever their case.

        Args:
            query: 1 to 500 characters in one line.
            before: look only at what has a lower number than this result ID; ``None`` for all.
            also: what is written with the audit entry of what was found.

        Raises:
            FormatError: the query or the ID is malformed.
            SealBrokenError: an original does not open; the failure is logged and the session suspended.
            KeyringError, StoreError: keys or store are not at hand; nothing was released.
        """
        if not isinstance(query, str) or not query.strip() or len(query) > QUERY_CHARS_MAX or "\n" in query:
            raise FormatError(f"A query is one line of 1 to {QUERY_CHARS_MAX} characters.")
        below = None if before is None else parse_result_id(before)
        whole, words = query.strip().casefold(), query.casefold().split()
        exact: list[Hit] = []
        loose: list[Hit] = []
        searched = left_out = absent = used_bytes = 0
        lowest, is_cut = 0, False
        restoring = Restoring(self._records.vault)
        for row in self._candidates(below):
            if row.size_bytes > BYTES_MAX:  # for any search
                left_out += 1
                continue
            is_full = searched + absent >= ORIGINALS_MAX or len(exact) >= HITS_MAX
            if lowest or is_full or used_bytes + row.size_bytes > BYTES_MAX:
                left_out += 1
                lowest = lowest or row.number + 1  # further searches begin with this one
                continue
            found = self._found(row)
            if found is None:
                continue
            try:
                content = restoring.opened(self._records.principal, found, WHOLE, self._records.dialect).content
            except ObjectNotFoundError:  # the others can be searched all the same
                absent += 1
                continue
            searched += 1
            used_bytes += row.size_bytes
            text = self._records.dialect.plain_text(content)
            for hit, is_exact in _hits(row, text or "", whole, words):
                if hit is None:
                    is_cut = True
                else:
                    (exact if is_exact else loose).append(hit)
        hits = [*exact, *loose]
        result = SearchResult(
            tuple(hits[:HITS_MAX]),
            searched,
            left_out,
            format_result_id(lowest) if lowest else None,
            is_cut or len(hits) > HITS_MAX,
            absent,
        )
        self._logged(query, result, None if also is None else also(result))
        return result

    def _candidates(self, below: int | None) -> list[ResultRow]:
        """What is archived under a lower number, holds bytes of its own and may be restored, the newest first."""
        rows = self._records.rows.values()
        own = [row for row in rows if row.state == "archived" and row.origin is None]
        older = [row for row in own if below is None or row.number < below]
        may = [row for row in older if self._may(self._records.row, row)]
        return sorted(may, key=lambda row: row.number, reverse=True)

    def _may(self, session: SessionRow, row: ResultRow) -> bool:
        return self._records.vault.may_restore(self._records.principal, session.subject, row)

    def _found(self, row: ResultRow) -> Found | None:
        vault = self._records.vault
        with vault.store.reading(vault.store_wait_ms) as reader:
            there = reader.find(self._records.id, row.number)
        if there is None or there[2].state != "archived":
            return None
        session, scope, now = there
        return None if not self._may(session, now) else Found(session, scope, now, now)

    def _logged(self, query: str, result: SearchResult, also: Also | None) -> None:
        records = self._records
        found = list(dict.fromkeys(hit.result_id for hit in result.hits))
        details = {
            "results": found,
            "searched": result.searched,
            "left_out": result.left_out,
            "absent": result.absent,
        }
        leaf = records.leaf(audit.EVIDENCE_SEARCHED, details=details, reason=query)

        def logged(writer: Writer) -> None:
            if also is not None:
                row = records.session_under_lock(writer)
                also(writer, row)
                writer.update_session(row)
            writer.append([leaf])

        records.vault.transact(logged)
        records.log.info("evidence_archive.searched", hits=len(result.hits), searched=result.searched)


def _hits(row: ResultRow, text: str, whole: str, words: Sequence[str]) -> Iterator[tuple[Hit | None, bool]]:
    """The first lines of each kind, and whether each holds the whole query; ``None`` for one more of a kind."""
    counts = {True: 0, False: 0}
    for number, line in enumerate(text.split("\n"), 1):  # as lines are numbered in a restore
        folded = line.casefold()
        is_exact = whole in folded
        if is_exact or all(word in folded for word in words):
            counts[is_exact] += 1
            if counts[is_exact] > HITS_OF_ONE_MAX:
                yield None, is_exact
                if is_exact:
                    return
                continue  # lines with words only must not keep one with the whole query from being found
            at = _place(line, folded, folded.find(whole if is_exact else words[0]))
            excerpt = _excerpt(line.rstrip("\r"), at)
            yield Hit(format_result_id(row.number), number, excerpt, text_of(row.tool_name)), is_exact


def _place(line: str, folded: str, at: int) -> int:
    """The place in a line that a place in its folded form stands for: some letters fold to several."""
    if len(folded) == len(line):
        return at
    first, last = 0, len(line)
    while first < last:
        middle = (first + last) // 2
        first, last = (middle + 1, last) if len(line[: middle + 1].casefold()) <= at else (first, middle)
    return first


def _excerpt(line: str, at: int) -> str:
    """The part of a line around a place."""
    if len(line) <= EXCERPT_CHARS_MAX:
        return line
    start = max(0, min(at - EXCERPT_CHARS_MAX // 4, len(line) - (EXCERPT_CHARS_MAX - 2)))
    cut = line[start : start + EXCERPT_CHARS_MAX - 2]
    return f"{'…' * (start > 0)}{cut}{'…' * (start + len(cut) < len(line))}"
