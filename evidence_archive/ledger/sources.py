"""Where a fact stands: references made into exact bytes with their digests, under the rules of a restore.

A result that is still in view is kept as an original first, under all its rules, so that no fact points at what only
the conversation holds.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from evidence_archive.archiving import Archiving, Kept
from evidence_archive.errors import FormatError, IntegrityError, NotAvailableError, ObjectNotFoundError
from evidence_archive.excerpt import WHOLE, Selector, excerpt
from evidence_archive.ledger.entries import Artifact, Source
from evidence_archive.matching import NOTE
from evidence_archive.model import Content, Principal, encode_exact, format_result_id, text_of
from evidence_archive.ports import ResultRow
from evidence_archive.records import Records
from evidence_archive.references import Reference, parse_reference
from evidence_archive.restoring import Found, Restoring
from evidence_archive.vault import SHREDDED

__all__ = [
    "BROKEN",
    "GONE",
    "NOT_AT_HAND",
    "NOT_THERE",
    "UNREAD",
    "Lent",
    "Opened",
    "Sources",
    "bytes_of",
    "content_of",
]

_SEVERAL = "This result is known under several tools or kinds: it cannot be kept under all their rules."

NOT_THERE = "is not there any more."
GONE = "was shredded."
BROKEN = "does not open: stored bytes were changed."
NOT_AT_HAND = "is not at hand: an object of it is not in this object store."
UNREAD = "may not be read by you: somebody who may has to reconcile."
"""What may be wrong with a source, in words."""


@dataclass(frozen=True, slots=True)
class Lent:
    """An original of a session that a shared ledger is to keep.

    Args:
        content: what it says.
        words: what is said of it.
        rows: the result, and what it is a copy of: the rules of both hold.
    """

    content: Content = field(repr=False)
    words: str = field(repr=False)
    rows: tuple[ResultRow, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A source, followed to its original and read; its part is released to nobody before the log says so.

    Args:
        found: where the original is.
        source: with the digests of what is there now.
        part: the exact bytes of the cited part.
    """

    found: Found
    source: Source
    part: bytes = field(repr=False)


class Sources:
    """Originals of one session as sources of its ledger. Callers hold the records' lock.

    Args:
        records, archiving: of the session.
        is_shared: whoever holds the ledger reads its originals as their owner does.
    """

    def __init__(self, records: Records, archiving: Archiving, *, is_shared: bool = False) -> None:
        self._records = records
        self._archiving = archiving
        self._is_shared = is_shared

    def resolved(self, reference: Reference, artifacts: Mapping[str, Artifact], lent: Mapping[int, Lent]) -> Opened:
        """A source for a reference, read; what is only in view is kept first.

        Args:
            reference: as it was cited.
            artifacts: of the ledger, the newest of each name.
            lent: originals of another session, by the numbers that are meant.

        Raises:
            NotAvailableError: it is unknown, not at hand, or may not be restored.
            FormatError: the part is not there.
            BatchRejectedError, ShreddedError, StoreError, KeyringError, IntegrityError: it was not kept, or not read.
        """
        number = reference.number
        if reference.artifact is not None:
            artifact = artifacts.get(reference.artifact)
            if artifact is None:
                raise NotAvailableError
            result_id = artifact.result_id
        elif number is not None and number in lent:
            result_id = self._kept_as(lent[number].content, lent[number].words, lent[number].rows)
            reference = Reference(int(result_id[1:]), None, reference.selector)
        elif number is not None and self._is_live(number):
            result_id = self._kept_as(*self._in_view(number))
        else:
            result_id = format_result_id(number or 0)
        return self.opened(Source(str(reference), result_id, "", ""))

    def _is_live(self, number: int) -> bool:
        row = self._records.rows.get(number)
        return row is not None and row.state == "live" and row.own in (None, "copy")

    def _in_view(self, number: int) -> tuple[Content, str, tuple[ResultRow, ...]]:
        """Just what a result in view says, where its session could restore it."""
        records = self._records
        place, row = records.timeline.by_number.get(number), records.rows[number]
        if place is None or place.form == NOTE:
            raise NotAvailableError
        content, rows = records.original(place), (row, records.facts_row(row))
        if records.tag(content) != row.content_tag:
            raise NotAvailableError
        if not records.vault.may_restore(records.principal, records.row.subject, *rows):
            raise NotAvailableError
        if row.own is None and len(records.facts(row, place, None).tools) > 1:
            raise FormatError(_SEVERAL)  # also where the list tells of a tool that the record does not know
        return content, f"what {format_result_id(number)} says", rows

    def _kept_as(self, content: Content, words: str, rows: Sequence[ResultRow]) -> str:
        """The id of an original that holds just this, under the rules of these results.

        Raises:
            FormatError: they have more than one tool's name, so that no original of its own can be under all rules.
        """
        origin = rows[-1]  # a copy has the facts of what it was taken from
        tools = {text_of(name) for name in (origin.tool_name, origin.result_tool_name) if name is not None}
        kinds = {row.kind for row in rows if row.kind is not None}
        if len(tools) > 1 or len(kinds) > 1:
            raise FormatError(_SEVERAL)
        sensitivity = frozenset(name for row in rows for name in row.sensitivity.split("\n") if name)
        return self.keep(
            Kept("artifact", content, words, sensitivity, next(iter(tools), None), next(iter(kinds), None))
        )

    def keep(self, kept: Kept) -> str:
        """The id of an original that holds just this under just these rules; archived where none does.

        One that holds it already is read again first: nothing new is to stand on bytes that were changed.

        Raises:
            BatchRejectedError, KeyringError: it could not be archived.
            SealBrokenError: the original that holds it was changed; archiving in the session is suspended.
            StoreError: it could not be read again.
        """
        tag = self._records.tag(kept.content)
        for one in self._records.rows.values():
            if (
                one.own == "artifact"
                and one.state == "archived"
                and one.content_tag == tag
                and one.sensitivity == "\n".join(sorted(kept.sensitivity))
                and one.kind == kept.kind
                and text_of(one.tool_name) == (kept.own if kept.tool is None else kept.tool)
                and self._opens(one.number)
            ):
                return format_result_id(one.number)
        return str(self._archiving.keep(kept).targets[0].result_id)

    def _opens(self, number: int) -> bool:
        """Whether an original of this session is at hand and whole."""
        records = self._records
        # A view may wait for this, and a failure is tried to be logged twice.
        restoring = Restoring(records.vault, failure_wait_ms=max(records.wait_ms // 2, 1))
        try:
            with records.vault.store.reading(records.wait_ms) as reader:
                there = reader.find(records.id, number)
        except IntegrityError:
            restoring.failed(records.principal, records.id, number, "integrity")
            raise
        if there is None or there[2].state != "archived":
            return False
        try:
            restoring.looked_at(records.principal, Found(*there, there[2]))
        except ObjectNotFoundError:
            return False
        return True

    def lend(self, number: int, principal: Principal, to: str) -> Lent:
        """An original of this session for another one; what is not in view is restored, and the grant is in the log.

        Args:
            number: of its result.
            principal: who gets it.
            to: the session that is to keep it.

        Raises:
            NotAvailableError, ShreddedError: it may not be restored, or was shredded.
            StoreError, KeyringError, IntegrityError: nothing was released.
        """
        records, result_id = self._records, format_result_id(number)
        if self._is_live(number):
            content, _, rows = self._in_view(number)
        else:
            restoring = Restoring(records.vault)
            found = restoring.find(principal, records.id, result_id)
            chosen = restoring.selected(found, WHOLE)
            content = restoring.opened(principal, found, chosen, records.dialect).content
            restoring.granted(principal, found, part=None, reason=f"kept in {to}")
            rows = (found.row, found.origin)
        return Lent(content, f"what {result_id} of session {records.id} says", rows)

    def opened(self, source: Source) -> Opened:
        """The source as it is now.

        Raises:
            NotAvailableError, ShreddedError: the original may not be restored, or was shredded.
            FormatError: the part is not there any more.
            StoreError, KeyringError, IntegrityError: nothing was read.
        """
        records = self._records
        restoring = Restoring(records.vault)
        found = restoring.find(records.principal, records.id, source.result_id, as_owner=self._is_shared)
        chosen = restoring.selected(found, WHOLE)
        content = restoring.opened(records.principal, found, chosen, records.dialect).content
        whole = bytes_of(content)
        part = _part(whole, parse_reference(source.reference).selector)
        digests = sha256(part).hexdigest(), sha256(whole).hexdigest()
        return Opened(found, Source(source.reference, source.result_id, *digests), part)

    def unfit(self, result_ids: Iterable[str]) -> dict[str, str]:
        """What is wrong with originals by their sealed records alone, by id; their bytes are not looked at.

        Raises:
            StoreError: the store cannot be read.
        """
        records, found = self._records, {}
        with records.vault.store.reading(records.wait_ms) as reader:
            for result_id in result_ids:
                try:
                    there = reader.find(records.id, int(result_id[1:]))
                    if there is None or there[2].state != "archived":
                        is_gone = there is not None and there[2].state == SHREDDED
                        found[result_id] = GONE if is_gone else NOT_THERE
                except IntegrityError:
                    found[result_id] = BROKEN
        return found


def content_of(data: bytes) -> Content:
    """Bytes as a content: text where they are UTF-8, else one part in base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return [{"type": "artifact", "encoding": "base64", "data": base64.b64encode(data).decode("ascii")}]


def bytes_of(content: Any) -> bytes:
    """The exact bytes that a content of :func:`content_of`, or of a tool, stands for.

    Raises:
        FormatError: it would not come back equal.
    """
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.keys() == {"type", "encoding", "data"} and part["type"] == "artifact":
            # Tools make parts, too: what only looks like one of ours is as any other.
            with suppress(TypeError, ValueError):
                data = base64.b64decode(part["data"], validate=True)
                if content_of(data) == content:
                    return data
    encoded = encode_exact(content)
    if encoded is None:
        raise FormatError("This original cannot be cited.")
    return b"".join(encoded.pieces())


def _part(whole: bytes, selector: Selector) -> bytes:
    """The cited part of an original, as bytes.

    Raises:
        FormatError: it is not there, or the original is not text where text is asked for.
    """
    if selector.is_whole:
        return whole
    if selector.byte_range is not None:
        first, last = selector.byte_range
        if last >= len(whole):
            raise FormatError("The original has not so many bytes.")
        return whole[first : last + 1]
    try:
        text = whole.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FormatError("This original is not text: cite it as a whole, or by bytes.") from error
    return excerpt(text, selector, matches_max=1).text.encode("utf-8", "surrogatepass")
