"""The ledger of a session: artifacts and claims go in, the host's checks make facts, periods settle what agrees.

Sources are resolved to exact bytes under the rules of a restore, and their digests stand with the fact. A result that
is still in view is kept as an original first, so that a fact never points at what only the conversation holds.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from evidence_archive.archiving import Archiving, Kept
from evidence_archive.books import Books, Posting
from evidence_archive.errors import (
    CheckFailedError,
    FormatError,
    IntegrityError,
    NotAvailableError,
    ShreddedError,
)
from evidence_archive.excerpt import WHOLE, Selector, excerpt
from evidence_archive.ledger import entries
from evidence_archive.ledger.checks import Check
from evidence_archive.ledger.entries import Artifact, Claim, Fact, Outcome, Period, Source, added_up
from evidence_archive.matching import NOTE
from evidence_archive.model import Content, encode_exact, format_result_id
from evidence_archive.records import Records
from evidence_archive.references import Reference, parse_reference
from evidence_archive.restoring import Restoring

__all__ = ["ARTIFACT_BYTES_MAX", "Disagreement", "Ledger", "Report"]

ARTIFACT_BYTES_MAX = 64 * 1024 * 1024

_BOOK = "ledger"

_NOT_THERE = "is not there any more."
_BROKEN = "does not open: stored bytes were changed."


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A fact that does not agree with its sources.

    Args:
        fact_id: which one.
        is_key: whether it keeps the books from being closed.
        why: what is wrong, in a sentence.
    """

    fact_id: str
    is_key: bool
    why: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Report:
    """What a reconciliation found.

    Args:
        strong: facts whose cited parts were read again and compared.
        weak: facts whose pointers and digests were looked up in the sealed records alone.
        disagreements: what does not agree.
    """

    strong: int
    weak: int
    disagreements: tuple[Disagreement, ...]

    @property
    def agrees(self) -> bool:
        """Whether every current fact agrees with its sources; of no facts at all, too."""
        return not self.disagreements


class Ledger:
    """The books of facts of one session; made by ``session.ledger``. Thread-safe.

    Args:
        records, archiving, books: of the session.
    """

    def __init__(self, records: Records, archiving: Archiving, books: Books) -> None:
        self._records = records
        self._archiving = archiving
        self._books = books
        self._known: tuple[int, Posting | None, entries.Books] = (0, None, entries.NOTHING)
        """How many entries were added up, the last of them, and what they came to."""

    @contextmanager
    def _at_hand(self) -> Iterator[None]:
        """Meanwhile nobody else uses the session, and what others committed is known."""
        records = self._records
        records.vault.usable()
        with records.lock:
            records.vault.usable()
            records.refresh(records.vault.store_wait_ms)
            yield

    def books(self) -> entries.Books:
        """All that stands in the ledger.

        Raises:
            SealBrokenError: entries were removed or changed.
            StoreError: the store cannot be read.
        """
        with self._at_hand():
            return self._all()

    def _all(self) -> entries.Books:
        return self._added_up(self._books.read(_BOOK))

    # --- vouchers --------------------------------------------------------------------------------------------------

    def store(self, name: str, data: bytes | str) -> Artifact:
        """Keep a product as a sealed original, and put it on the books.

        Args:
            name: a path of up to 200 characters without blanks, such as ``workspace/avg.json``.
            data: its exact bytes, at most 64 MiB; text is its UTF-8.

        Raises:
            FormatError: name or data cannot be used.
            BatchRejectedError: it was not archived.
            StoreError, KeyringError: store or keys are not at hand.
        """
        parse_reference(f"artifact:{name}")  # raises where it is none
        exact = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if not isinstance(exact, bytes) or len(exact) > ARTIFACT_BYTES_MAX:
            raise FormatError(f"An artifact is text or bytes, at most {ARTIFACT_BYTES_MAX} of them.")
        with self._at_hand():
            receipt = self._archiving.keep(Kept("artifact", _content_of(exact), name))
            result_id, digest = receipt.targets[0].result_id, sha256(exact).hexdigest()
            entry = {
                "kind": "artifact",
                "name": name,
                "result_id": result_id,
                "sha256": digest,
                "size_bytes": len(exact),
            }
            self._books.post(_BOOK, lambda known: ([entry], None))
            return Artifact(name, result_id, digest, len(exact))

    # --- entries ---------------------------------------------------------------------------------------------------

    def claim(self, text: str, sources: Iterable[str], by: str = "host") -> Claim:
        """Put down what somebody says, once all of its sources resolve.

        Args:
            text: 1 to 1,000 characters.
            sources: 1 to 20 references, such as ``r12#L40-L44``.
            by: ``host`` or ``model``.

        Raises:
            FormatError: text or sources cannot be used, or name a part that is not there.
            NotAvailableError: a source is unknown, not at hand, or may not be restored.
            BatchRejectedError, StoreError, KeyringError, IntegrityError: nothing was put down.
        """
        if not isinstance(text, str) or not text.strip() or len(text) > entries.TEXT_CHARS_MAX:
            raise FormatError(f"A claim is text of 1 to {entries.TEXT_CHARS_MAX} characters.")
        asked = list(dict.fromkeys(sources))
        if not 1 <= len(asked) <= entries.SOURCES_MAX:
            raise FormatError(f"A claim has 1 to {entries.SOURCES_MAX} sources.")
        with self._at_hand():
            resolved = [self._resolved(parse_reference(one))[0] for one in asked]
            entry = {"kind": "claim", "text": text, "sources": _plain(resolved), "by": by}
            claims = self._post(lambda books: entry).claims
            return claims[f"c{len(claims)}"]

    def verify(self, claim: Claim, check: Check, *, key: bool = False, supersedes: str | None = None) -> Fact:
        """Post a fact, where the host's check passes on the sources as they are now.

        Args:
            claim: from :meth:`claim`.
            check: gets the exact bytes of every cited part, in order.
            key: whether every reconciliation reads them again.
            supersedes: a current fact that this one corrects; it stays, marked.

        Raises:
            CheckFailedError: the check did not pass, or the sources are not what was claimed on; nothing was posted.
            FormatError: the fact to supersede is none that holds, or the claim is none of this ledger.
            NotAvailableError, StoreError, KeyringError, IntegrityError: nothing was posted.
        """
        with self._at_hand():
            parts = []
            for source in claim.sources:
                now, part = self._read(source)
                if now != source:
                    raise CheckFailedError("A source is not what it was when the claim was made; claim it again.")
                parts.append(part)
            outcome = check(parts)
            if not isinstance(outcome, Outcome):
                raise CheckFailedError("A check says what it compared, as an Outcome, or raises CheckFailedError.")

            def entry(books: entries.Books) -> dict[str, Any]:
                if books.claims.get(claim.id) != claim:
                    raise FormatError("This claim is not one of this ledger.")
                if supersedes is not None and (
                    supersedes not in books.facts or not books.facts[supersedes].is_current
                ):
                    raise FormatError(f"There is no fact {supersedes} that holds, to be superseded.")
                return {
                    "kind": "fact",
                    "text": claim.text,
                    "sources": _plain(claim.sources),
                    "check": outcome.check,
                    "details": outcome.details,
                    "claim_id": claim.id,
                    "is_key": key,
                    "supersedes": supersedes,
                }

            facts = self._post(entry).facts
            return facts[f"f{len(facts)}"]

    def take_back(self, fact_id: str) -> Fact:
        """Take a correction back: the fact that it superseded holds again, and is returned. Both stay.

        Raises:
            FormatError: it is no current fact that superseded another one.
            StoreError, IntegrityError: nothing was changed.
        """

        with self._at_hand():

            def entry(books: entries.Books) -> dict[str, Any]:
                fact = books.facts.get(fact_id)
                if fact is None or not fact.is_current or fact.supersedes is None:
                    raise FormatError("Only a fact that holds and superseded another one can be taken back.")
                return {"kind": "taken_back", "fact_id": fact_id}

            books = self._post(entry)
            return books.facts[books.facts[fact_id].superseded_by or ""]

    # --- reconciliation --------------------------------------------------------------------------------------------

    def reconcile(self, *, strong: bool = False) -> Report:
        """Every current fact with its sources: key facts are read again and compared, others looked up.

        Args:
            strong: read all of them again.

        Raises:
            StoreError, KeyringError: store or keys are not at hand.
            SealBrokenError: the ledger's own entries were changed.
        """
        with self._at_hand():
            found: list[Disagreement] = []
            counts = {True: 0, False: 0}
            current = self._all().current()
            weak = [fact for fact in current if not (strong or fact.is_key)]
            unfit = self._unfit({source.result_id for fact in weak for source in fact.sources})
            for fact in current:
                is_strong = strong or fact.is_key
                counts[is_strong] += 1
                why = self._disagrees(fact) if is_strong else _first_unfit(fact, unfit)
                if why is not None:
                    found.append(Disagreement(fact.id, fact.is_key, why))
            report = Report(counts[True], counts[False], tuple(found))
            entry = {
                "kind": "reconciled",
                "strong": report.strong,
                "weak": report.weak,
                "disagreeing": [one.fact_id for one in found],
            }
            self._books.post(_BOOK, lambda known: ([entry], None))
            return report

    def _disagrees(self, fact: Fact) -> str | None:
        """Why the cited parts, read again, are not what was cited."""
        for source in fact.sources:
            try:
                if self._read(source)[0] != source:
                    return f"{source.reference} no longer says what was cited."
            except (NotAvailableError, ShreddedError, FormatError):
                return f"{source.reference} {_NOT_THERE}"
            except IntegrityError:
                return f"{source.reference} {_BROKEN}"
        return None

    def close(self, *, window_from: int = 0, window_to: int = 0) -> Period:
        """Settle what holds, at a milestone; the period continues the last one.

        Args:
            window_from, window_to: the messages it covers, from 1.

        Raises:
            CheckFailedError: a key fact does not agree with its sources; nothing was closed.
            StoreError, KeyringError, SealBrokenError: nothing was closed.
        """
        with self._at_hand():
            report = self.reconcile()
            wrong = [one.fact_id for one in report.disagreements if one.is_key]
            if wrong:
                raise CheckFailedError(
                    f"The books do not close: {len(wrong)} key facts do not agree, {wrong[0]} first. Supersede them."
                )
            disagreeing = {one.fact_id for one in report.disagreements}

            def entry(books: entries.Books) -> dict[str, Any]:
                return {
                    "kind": "period",
                    "facts": [fact.id for fact in books.current() if fact.id not in disagreeing],
                    "window_from": window_from,
                    "window_to": window_to,
                    "opening_balance_ref": f"p{len(books.periods)}" if books.periods else None,
                }

            periods = self._post(entry).periods
            return periods[f"p{len(periods)}"]

    def opening(self, period_id: str | None = None) -> list[str]:
        """The opening balance after a period: a line for each fact with its pointers, key facts first, newest first.

        Args:
            period_id: after which period; the last one by default.

        Raises:
            FormatError: there is no such period.
            StoreError, IntegrityError: the store cannot be read, or was changed.
        """
        with self._at_hand():
            books = self._all()
            if period_id is None and not books.periods:
                return []
            period = books.periods.get(period_id or f"p{len(books.periods)}")
            if period is None:
                raise FormatError("There is no such period.")
            facts = [books.facts[one] for one in period.facts]
            ordered = sorted(facts, key=lambda fact: (not fact.is_key, -int(fact.id[1:])))
            return [
                f"{fact.id}: {fact.text} [{', '.join(one.reference for one in fact.sources)}]" for fact in ordered
            ]

    def established(self, entries_max: int | None = None) -> tuple[int, list[Fact]]:
        """The number of entries, and the facts that hold and agreed with their sources, as a balance orders them.

        For callers that hold the records' lock: nothing is refreshed.

        Args:
            entries_max: look at so many of the first entries only; ``None`` for all.

        Raises:
            StoreError, IntegrityError: the store cannot be read, or was changed.
        """
        known = self._books.read(_BOOK)
        if entries_max is None or entries_max >= len(known):
            return len(known), self._added_up(known).established()
        first = known[:entries_max]
        return len(first), added_up((one.content, one.created_at_us) for one in first).established()

    # --- sources ---------------------------------------------------------------------------------------------------

    def _resolved(self, reference: Reference) -> tuple[Source, bytes]:
        """A source for a reference, and the exact bytes of the cited part; what is only in view is kept first."""
        number = reference.number
        if reference.artifact is not None:
            artifact = self._all().artifacts.get(reference.artifact)
            if artifact is None:
                raise NotAvailableError
            result_id = artifact.result_id
        elif number is not None and self._is_live(number):
            result_id = self._kept(number)
        else:
            result_id = format_result_id(number or 0)
        return self._read(Source(str(reference), result_id, "", ""))

    def _is_live(self, number: int) -> bool:
        row = self._records.rows.get(number)
        return row is not None and row.state == "live" and row.own in (None, "copy")

    def _kept(self, number: int) -> str:
        """The id of an original that holds just what a result in view says."""
        records = self._records
        place = records.timeline.by_number.get(number)
        if place is None or place.form == NOTE:
            raise NotAvailableError
        content, row = records.original(place), records.rows[number]
        if records.tag(content) != row.content_tag:
            raise NotAvailableError
        for one in records.rows.values():
            if one.own == "artifact" and one.state == "archived" and one.content_tag == row.content_tag:
                return format_result_id(one.number)
        sensitivity = frozenset(filter(None, row.sensitivity.split("\n")))
        receipt = self._archiving.keep(
            Kept("artifact", content, f"what {format_result_id(number)} says", sensitivity)
        )
        return str(receipt.targets[0].result_id)

    def _read(self, source: Source) -> tuple[Source, bytes]:
        """The source as it is now, and the exact bytes of the cited part."""
        records = self._records
        restoring = Restoring(records.vault)
        found = restoring.find(records.principal, records.id, source.result_id)
        content = restoring.opened(records.principal, found, WHOLE, records.dialect).content
        whole = _bytes_of(content)
        part = _part(whole, parse_reference(source.reference).selector)
        digests = sha256(part).hexdigest(), sha256(whole).hexdigest()
        return Source(source.reference, source.result_id, *digests), part

    def _unfit(self, result_ids: Iterable[str]) -> dict[str, str]:
        """What is wrong with originals by their sealed records alone; their bytes are not looked at."""
        records, found = self._records, {}
        with records.vault.store.reading(records.vault.store_wait_ms) as reader:
            for result_id in result_ids:
                try:
                    there = reader.find(records.id, int(result_id[1:]))
                    if there is None or there[2].state != "archived":
                        found[result_id] = _NOT_THERE
                except IntegrityError:
                    found[result_id] = _BROKEN
        return found

    # --- entries in the book ---------------------------------------------------------------------------------------

    def _post(self, make: Callable[[entries.Books], Mapping[str, Any]]) -> entries.Books:
        """All that stands in the ledger, with an entry that was made looking at all that stood there."""

        def decide(known: Sequence[Posting]) -> tuple[list[Mapping[str, Any]], list[Posting]]:
            return [make(self._added_up(known))], list(known)

        new, known = self._books.post(_BOOK, decide)
        return self._added_up([*known, *new])

    def _added_up(self, known: Sequence[Posting]) -> entries.Books:
        count, last, books = self._known
        if count > len(known) or (count and known[count - 1] != last):  # the store was put back
            count, books = 0, entries.NOTHING
        if count < len(known):
            books = added_up(((one.content, one.created_at_us) for one in known[count:]), books)
            self._known = len(known), known[-1], books
        return books


def _first_unfit(fact: Fact, unfit: Mapping[str, str]) -> str | None:
    return next((f"{one.reference} {unfit[one.result_id]}" for one in fact.sources if one.result_id in unfit), None)


def _plain(sources: Iterable[Source]) -> list[dict[str, str]]:
    return [
        {
            "reference": one.reference,
            "result_id": one.result_id,
            "sha256": one.sha256,
            "original_sha256": one.original_sha256,
        }
        for one in sources
    ]


def _content_of(data: bytes) -> Content:
    """Bytes as a content: text where they are UTF-8, else one part in base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return [{"type": "artifact", "encoding": "base64", "data": base64.b64encode(data).decode("ascii")}]


def _bytes_of(content: Any) -> bytes:
    """The exact bytes that a content stands for."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.keys() == {"type", "encoding", "data"} and part["type"] == "artifact":
            return base64.b64decode(part["data"], validate=True)
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
