"""The trace of a session: what was sent at each request, told by what differs from the request before.

An entry of the book ``trace`` says which messages of the request before stand where, and holds the others exactly. It
is closed once more, inside its postings, under a key that comes from the session's key: the shred of an original
gives the session another key, and so takes along what the trace holds of it. The entry after that is whole again.
Memory holds the heads of entries and the newest request; the others are read when they are asked for.
"""

import json
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import zstandard

from evidence_archive.books import Books, Posting
from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    MessageShapeError,
    NotAvailableError,
    SealBrokenError,
    ShreddedError,
)
from evidence_archive.matching import Timeline
from evidence_archive.model import Facts, ce, format_result_id
from evidence_archive.ports import Reader, ResultRow, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.records import Records
from evidence_archive.sealing.keyring import derive, unwrap, wrap

__all__ = ["TRACE_BOOK", "TraceEntry", "Tracing", "difference", "rebuilt"]

TRACE_BOOK = "trace"

PART_BYTES_MAX = 180_000
"""Most bytes of a difference in one posting: sealed and as base64 they leave room for what stands beside them."""

COMPRESS_BYTES_MIN = 1_024
"""Differences from this size on are compressed."""

WHOLE_EVERY = 100
"""Of so many entries one at least is whole: reading a request opens no more of them, however long the task."""

NO_RECORD = 0
"""Stands in an entry, and in the log, for a result that has no number."""

_LEVEL = 3
_NOT_OURS = "An entry of the trace is not what this library puts down."
_SHREDDED = "What was sent at this request cannot be read any more: an original of the session was shredded since."

Runs = Sequence[int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """What is told of a request without reading it.

    Args:
        request: its number, from 1; numbers go on over all processes.
        sent_at_us: microseconds since 1970-01-01 UTC.
        messages, tokens: of what was sent, but for the specs of tools.
        added_messages, added_bytes: of that, what the request before did not hold, or all where that cannot be read;
            bytes of exact JSON.
        missing: so many requests right before it were sent and could not be written down.
        begins: it is the first of a session object; what another object sent after its last entry, and could not
            write down, nobody knows.
        readable: ``False`` once an original of the session was shredded after it.
    """

    request: int
    sent_at_us: int
    messages: int
    tokens: int
    added_messages: int
    added_bytes: int
    missing: int
    begins: bool
    readable: bool


class Tracing:
    """The trace of one session. Callers hold the records' lock.

    Args:
        records: of the session.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._books = Books(records, without=frozenset({"data"}))
        self._name = records.vault.around.entropy(8).hex()
        self._count = 0
        """How many requests this object has seen."""
        self._last: tuple[Any, list[str]] | None = None
        """Which entry was the newest one, and the lines of its request."""
        self._version = -1
        """Of the session's row, when that was looked up."""

    # --- writing ---------------------------------------------------------------------------------------------------

    def missed(self) -> None:
        """A request was sent while the store was away; the next entry tells."""
        self._count += 1

    def sent(self, view: Sequence[Any], rendered: Sequence[Any], *, tokens: int) -> None:
        """Put down what was sent. Where that fails it is logged, and the next entry tells that this one is missing.

        Args:
            view: what was sent.
            rendered: the whole list it was taken from, by which results in it are known.
            tokens: of the view.
        """
        self._count += 1
        records, generation = self._records, self._records.keys.generation
        try:
            # Whatever was shown before is written anew: an application may have changed a message in its place.
            lines = self._lines(view, rendered)
            if records.row.version != self._version:
                self._go_on()

            def decide(known: Sequence[Posting]) -> tuple[list[Mapping[str, Any]], None]:
                if records.keys.generation != generation:
                    raise ShreddedError("An original was shredded while a request was written down: it was left out.")
                return self._entry(known, lines, tokens), None

            new, _ = self._books.post(TRACE_BOOK, decide)
            self._last, self._version = (_mark(new[0]), lines), records.row.version
        except EvidenceArchiveError as error:
            records.trouble(error)

    def _lines(self, view: Sequence[Any], rendered: Sequence[Any]) -> list[str]:
        """Every message as one line: the numbers of the results in it, 0 for any without, a blank, its exact JSON."""
        numbers: dict[int, set[int]] = {}
        for at, places in self._records.timeline.by_index.items():
            held = numbers.setdefault(id(rendered[at]), set())
            held.update(NO_RECORD if place.number is None else place.number for place in places)
        plain = self._records.dialect.plain
        return [f"{','.join(map(str, sorted(numbers.get(id(one), ()))))} {plain(one)}" for one in view]

    def _entry(self, known: Sequence[Posting], lines: Sequence[str], tokens: int) -> list[Mapping[str, Any]]:
        """The postings of the next request."""
        last = _head_before(known, len(known))
        mine = next((one.content for one in reversed(known) if one.content.get("by") == self._name), None)
        missing = self._count - 1 - (0 if mine is None else mine["count"])
        request = (0 if last is None else known[last].content["request"]) + missing + 1
        before = None if last is None else self._before(known[last])
        whole = before is None or (last is not None and len(self._chain(known, last)) >= WHOLE_EVERY)
        base = [] if before is None or whole else before
        runs, new = difference(base, lines)
        added = difference(before or [], lines)[1] if whole else new
        body = "\n".join([json.dumps(runs, separators=(",", ":")), *new]).encode("ascii")
        packed = body
        if len(body) >= COMPRESS_BYTES_MIN:
            packed = zstandard.ZstdCompressor(level=_LEVEL).compress(body)
        parts = [packed[at : at + PART_BYTES_MAX] for at in range(0, len(packed), PART_BYTES_MAX)]
        data = [self._sealed(request, at, part) for at, part in enumerate(parts)]
        head = {
            "request": request,
            "by": self._name,
            "count": self._count,
            "missing": missing,
            "begins": mine is None,
            "whole": whole,
            "generation": self._records.keys.generation,
            "messages": len(lines),
            "tokens": tokens,
            "added_messages": len(added),
            "added_bytes": sum(len(line) - line.index(" ") - 1 for line in added),
            "size": len(body),
            "parts": len(data),
            "zstd": packed is not body,
        }
        contents: list[Mapping[str, Any]] = [{**head, "data": data[0]}, *({"data": one} for one in data[1:])]
        # Opened again before it is written, as originals are.
        if rebuilt(base, *self._difference(contents)) != list(lines):
            raise SealBrokenError("An entry of the trace did not open again: it was not written.")
        return contents

    def _go_on(self) -> None:
        """Look up the newest request, where it can be read: another process may have sent it."""
        known = self._books.read(TRACE_BOOK)
        last = _head_before(known, len(known))
        if last is None or known[last].content["generation"] != self._records.keys.generation:
            self._last = None
        elif self._last is None or self._last[0] != _mark(known[last]):
            self._last = _mark(known[last]), self._request(known, last)

    def _before(self, last: Posting) -> list[str] | None:
        """The lines of the newest request; ``None`` where another object sent it just now, or it cannot be read."""
        if self._last is None or _mark(last) != self._last[0]:
            return None
        return self._last[1] if last.content["generation"] == self._records.keys.generation else None

    # --- reading ---------------------------------------------------------------------------------------------------

    def entries(self) -> list[TraceEntry]:
        """What there is to tell of every request that was written down, in order.

        Raises:
            ShreddedError: the session was shredded.
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read.
        """
        vault = self._records.vault
        with vault.store.reading(vault.store_wait_ms) as reader:
            self._check_scope(reader, self._records.row)
        return [
            TraceEntry(
                posting.content["request"],
                posting.created_at_us,
                posting.content["messages"],
                posting.content["tokens"],
                posting.content["added_messages"],
                posting.content["added_bytes"],
                posting.content["missing"],
                posting.content["begins"],
                readable=posting.content["generation"] == self._records.keys.generation,
            )
            for posting in self._books.read(TRACE_BOOK)
            if "request" in posting.content
        ]

    def messages(self, request: object) -> list[dict[str, Any]]:
        """What was sent at a request; that it was read is in the log before this returns.

        Args:
            request: its number, from 1.

        Raises:
            FormatError: it was not written down.
            NotAvailableError: a result in it is one that its reader may not have back, or might not if it had a
                record.
            ShreddedError: the session, or an original of it, was shredded since.
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read, or the log cannot be written; nothing was released.
        """
        known = self._books.read(TRACE_BOOK)
        numbers = {posting.content["request"]: at for at, posting in enumerate(known) if "request" in posting.content}
        if type(request) is not int or request not in numbers:
            told = f"the last one in it is {max(numbers)}" if numbers else "it is empty"
            raise FormatError(f"This request is not in the trace of the session: {told}, and its list tells of gaps.")
        lines = self._request(known, numbers[request])
        generation = self._records.keys.generation
        messages = [json.loads(line.partition(" ")[2]) for line in lines]
        numbered = [_numbers(line) for line in lines]
        unrecorded = list(self._unrecorded(numbered, messages))
        results = set().union(*numbered) - {NO_RECORD}
        records = self._records

        def logged(writer: Writer) -> list[int]:
            row = records.session_under_lock(writer)
            if row.version != records.row.version:
                records.catch_up(writer, row)
            self._check_scope(writer, row)
            if records.keys.generation != generation:
                raise ShreddedError(_SHREDDED)
            denied = [number for number in sorted(results) if not self._may_read(row, number)]
            if not all(self._may_read_unrecorded(row, facts) for facts in unrecorded):
                denied.append(NO_RECORD)
            if denied:
                details = {"result": format_result_id(denied[0]), "why": "not_available"}
                writer.append([records.leaf(audit.RESTORE_DENIED, details=details)])
            else:
                writer.append([records.leaf(audit.TRACE_READ, details={"request": request})])
            return denied

        denied = records.vault.transact(logged)
        if denied:
            records.log.warning("evidence_archive.denied", result=format_result_id(denied[0]), why="not_available")
            raise NotAvailableError
        records.log.info("evidence_archive.trace_read", request=request, messages=len(lines))
        return messages

    def _unrecorded(self, numbered: Sequence[Set[int]], messages: Sequence[Any]) -> Iterator[Facts | None]:
        """Of each result in the messages that has no record, or may be the one without: all that is known of it.

        Such a result came while the store was away, or cannot be archived. ``None``: its tool cannot be told, because
        a message, perhaps its own, cannot be read any more as it was.
        """
        dialect, readable, is_whole = self._records.dialect, [], True
        for message, numbers in zip(messages, numbered, strict=True):
            try:
                dialect.read(message)
                readable.append(message)
            except MessageShapeError:  # what an SDK did not set, its JSON does not tell
                readable.append(dialect.said(""))
                is_whole = False
                if NO_RECORD in numbers:
                    yield None
        timeline = Timeline(dialect)
        timeline.advance(readable)
        for at, message in enumerate(readable):
            places = timeline.by_index.get(at, ())
            if not places and dialect.role(message) == "tool":
                name = message.get("name")
                yield Facts((name,)) if isinstance(name, str) else None
            for place in places if len(numbered[at] - {NO_RECORD}) < len(places) else ():
                content = place.content
                size_chars = dialect.size_chars(content) if isinstance(content, str | list) else 0
                known = Facts(place.tools or ("",), size_chars=size_chars)
                yield known if is_whole or place.call is not None else None

    def _may_read_unrecorded(self, session: SessionRow, facts: Facts | None) -> bool:
        """Whether a result could be restored that had these facts and no label."""
        return facts is not None and self._records.vault.may(self._records.principal, session.subject, facts)

    def _may_read(self, session: SessionRow, number: int) -> bool:
        """Whether a result could be restored, so that what shows it may be read."""
        row: ResultRow | None = self._records.rows.get(number)
        origin = None if row is None else self._records.rows.get(row.origin or number)
        if row is None or origin is None:
            return False
        return self._records.vault.may_restore(self._records.principal, session.subject, row, origin)

    def _check_scope(self, reader: Reader, session: SessionRow) -> None:
        scope = reader.scope(session.scope_id)
        if scope is None or not scope.wrapped:
            raise ShreddedError("This session was shredded: its trace cannot be read any more.")

    def _chain(self, known: Sequence[Posting], at: int) -> list[int]:
        """Where the entries begin that a request is told by, back to the whole one."""
        chain = [at]
        while not known[chain[-1]].content["whole"]:
            before = _head_before(known, chain[-1])
            if before is None:
                raise SealBrokenError(_NOT_OURS)
            chain.append(before)
        return chain

    def _request(self, known: Sequence[Posting], at: int) -> list[str]:
        """The lines of the request whose entry begins at an index of the book."""
        chain = self._chain(known, at)
        if any(known[one].content["generation"] != self._records.keys.generation for one in chain):
            raise ShreddedError(_SHREDDED)
        last = known[at].seq + known[at].content["parts"] - 1
        lines: list[str] = []
        parts: list[Mapping[str, Any]] = []
        for posting in self._books.among(TRACE_BOOK, known[chain[-1]].seq, last):
            parts.append(posting.content)
            if len(parts) == parts[0]["parts"]:
                lines = rebuilt(lines, *self._difference(parts))
                parts.clear()
        return lines

    def _difference(self, contents: Sequence[Mapping[str, Any]]) -> tuple[Runs, list[str]]:
        """What the postings of an entry hold."""
        head = contents[0]
        try:
            packed = b"".join(self._opened(head["request"], at, one["data"]) for at, one in enumerate(contents))
            if head["zstd"]:
                if zstandard.frame_content_size(packed) != head["size"]:
                    raise SealBrokenError(_NOT_OURS)
                packed = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
            runs, *new = packed.decode("ascii").split("\n")
            return json.loads(runs), new
        except (KeyError, ValueError, zstandard.ZstdError) as error:
            raise SealBrokenError(_NOT_OURS) from error

    # --- sealing ---------------------------------------------------------------------------------------------------

    @property
    def _key(self) -> bytes:
        return derive(self._records.keys.key, b"evidence-archive/v1/trace")

    def _context(self, request: int, part: int) -> bytes:
        vault, scope_id = self._records.vault, self._records.keys.scope_id
        return b"evidence-archive/v1/trace\x00" + ce(vault.deployment, vault.org, scope_id, request, part)

    def _sealed(self, request: int, part: int, data: bytes) -> str:
        return b64encode(wrap(self._key, data, self._context(request, part))).decode("ascii")

    def _opened(self, request: int, part: int, data: str) -> bytes:
        return unwrap(self._key, b64decode(data, validate=True), self._context(request, part))


def _numbers(line: str) -> set[int]:
    """The numbers of the results in the message of a line, ``NO_RECORD`` where one has none."""
    return {int(number) for number in line.partition(" ")[0].split(",") if number}


def _mark(head: Posting) -> Any:
    """By what an entry is known again; a store that was put back may have another one at its place."""
    return head.seq, head.content["by"], head.content["count"]


def _head_before(known: Sequence[Posting], end: int) -> int | None:
    """Where the newest entry before an index of the book begins."""
    return next((at for at in range(end - 1, -1, -1) if "request" in known[at].content), None)


def difference(before: Sequence[str], now: Sequence[str]) -> tuple[list[int | list[int]], list[str]]:
    """What lines are, told by other lines: runs, and the lines that are new.

    Args:
        before, now: lines; of several that are equal, the next one after the last that was used stands for one.

    Returns:
        Runs in order, ``[first, count]`` for lines of ``before``, a number for so many of the new lines; and those.
    """
    places: dict[str, list[int]] = {}
    for at, line in enumerate(before):
        places.setdefault(line, []).append(at)
    runs: list[int | list[int]] = []
    new: list[str] = []
    expected = 0
    for line in now:
        found = places.get(line)
        last = runs[-1] if runs else None
        if found is None:
            new.append(line)
            if isinstance(last, int):
                runs[-1] = last + 1
            else:
                runs.append(1)
            continue
        nth = bisect_left(found, expected)
        at = found[nth] if nth < len(found) else found[0]
        if isinstance(last, list) and at == sum(last):
            last[1] += 1
        else:
            runs.append([at, 1])
        expected = at + 1
    return runs, new


def rebuilt(before: Sequence[str], runs: Runs, new: Sequence[str]) -> list[str]:
    """The lines that :func:`difference` told.

    Raises:
        SealBrokenError: the runs are not about these lines.
    """
    lines: list[str] = []
    used = 0
    for run in runs:
        first, count = (used, run) if isinstance(run, int) else run
        taken = (new if isinstance(run, int) else before)[first : first + count]
        if len(taken) != count:
            raise SealBrokenError(_NOT_OURS)
        lines += taken
        used += count if isinstance(run, int) else 0
    if used != len(new):
        raise SealBrokenError(_NOT_OURS)
    return lines
