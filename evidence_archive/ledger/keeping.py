"""The ledger of a session: artifacts and claims go in, the host's checks make facts, periods settle what agrees.

Nothing is ever changed: entries are put down in a book, with the digests of what they cite (``sources.py``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol, TypeGuard

from evidence_archive.archiving import Archiving, Kept
from evidence_archive.books import Books, Posting
from evidence_archive.errors import (
    CheckFailedError,
    FormatError,
    IntegrityError,
    NotAvailableError,
    ObjectNotFoundError,
    ShreddedError,
)
from evidence_archive.ledger import entries
from evidence_archive.ledger.checks import Check
from evidence_archive.ledger.entries import Artifact, Claim, Fact, Outcome, Period, Source, added_up
from evidence_archive.ledger.sources import (
    BROKEN,
    GONE,
    NOT_AT_HAND,
    NOT_THERE,
    UNREAD,
    Lent,
    Opened,
    Sources,
    content_of,
)
from evidence_archive.records import Records
from evidence_archive.references import Reference, parse_reference
from evidence_archive.restoring import Found, Restoring

__all__ = [
    "ARTIFACT_BYTES_MAX",
    "OPENING_TOKENS",
    "Cited",
    "Disagreement",
    "Ledger",
    "Report",
    "Sourced",
    "claim_entry",
    "fact_entry",
    "is_plain",
    "references_of",
]

ARTIFACT_BYTES_MAX = 64 * 1024 * 1024

OPENING_TOKENS = 4_000
"""How much of an opening balance is given, unless the host says otherwise, in tokens."""

OUTCOME_CHARS_MAX = 10_000
"""Longest text of an outcome of a check, in characters."""

MESSAGES_MAX = 1_000_000_000
"""Highest number of a message that a period covers."""

_BOOK = "ledger"


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

    @property
    def is_unread(self) -> bool:
        """Whether nothing is wrong but that who asked may not read what it cites."""
        return self.why.endswith(UNREAD)


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


@dataclass(frozen=True, slots=True)
class Cited:
    """A source of a fact, followed to its original and read again.

    Args:
        source: as it stands with the fact, with the digests of then.
        now: the same source with the digests of what is there now.
        part: the exact bytes of the cited part, as they are now.
    """

    source: Source
    now: Source
    part: bytes

    @property
    def agrees(self) -> bool:
        """Whether both digests are those of then."""
        return self.source == self.now


class Sourced(Protocol):
    """A session, whose results a shared ledger takes as sources."""

    @property
    def ledger(self) -> Any:
        """The session's own ledger."""
        ...


class Ledger:
    """Books of facts; ``session.ledger``, or ``archive.ledger(...)`` where several share them. Thread-safe.

    Args:
        records, archiving, books: of the session.
        is_shared: whoever holds it reads its originals as their owner does.
    """

    def __init__(self, records: Records, archiving: Archiving, books: Books, *, is_shared: bool = False) -> None:
        self._records = records
        self._archiving = archiving
        self._books = books
        self._sources = Sources(records, archiving, is_shared=is_shared)
        self._is_shared = is_shared
        self._restoring = Restoring(records.vault)
        self._known: tuple[int, Posting | None, entries.Books] = (0, None, entries.NOTHING)
        """How many entries were added up, the last of them, and what they came to."""

    @contextmanager
    def _at_hand(self) -> Iterator[None]:
        """Meanwhile nobody else uses the session, and what others committed is known."""
        records = self._records
        records.vault.usable()
        with records.lock:
            records.vault.usable()
            records.refresh(records.wait_ms)
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
        if not isinstance(name, str):
            raise FormatError("The name of an artifact is a text.")
        parse_reference(f"artifact:{name}")  # raises where it is none
        exact = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if not isinstance(exact, bytes) or len(exact) > ARTIFACT_BYTES_MAX:
            raise FormatError(f"An artifact is text or bytes, at most {ARTIFACT_BYTES_MAX} of them.")
        with self._at_hand():
            receipt = self._archiving.keep(Kept("artifact", content_of(exact), name))
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

    def claim(self, text: str, sources: Iterable[str], by: str = "host", *, session: Sourced | None = None) -> Claim:
        """Put down what somebody says, once all of its sources resolve.

        Args:
            text: 1 to 1,000 characters.
            sources: 1 to 20 references, such as ``r12#L40-L44``.
            by: ``host`` or ``model``.
            session: in a shared ledger, whose results ``r12`` means; each is kept as an original of the ledger, and
                the source then names that one. Without it, and for artifacts, the ledger's own.

        Raises:
            FormatError: text or sources cannot be used, or name a part that is not there.
            NotAvailableError: a source is unknown, not at hand, or may not be restored.
            BatchRejectedError, StoreError, KeyringError, IntegrityError: nothing was put down.
        """
        if by not in ("host", "model"):
            raise FormatError("A claim is made by the host, or by the model.")
        references = references_of(text, sources)
        lent = self._lent(session, references)
        with self._at_hand():
            return self._claimed(text, references, by, lent=lent)

    def _claimed(
        self,
        text: str,
        references: Sequence[Reference],
        by: str,
        *,
        call: str | None = None,
        lent: Mapping[int, Lent] | None = None,
    ) -> Claim:
        """A claim, put down once for each call of the model."""

        def made(known: Sequence[Posting]) -> Claim | None:
            if call is None:
                return None
            asked, nth = [str(one) for one in references], 0
            for posting in known:
                entry = posting.content
                nth += entry["kind"] == "claim"
                if entry["kind"] == "claim" and entry.get("call") == call:
                    claim = self._added_up(known).claims[f"c{nth}"]
                    if (claim.text, [one.reference for one in claim.sources]) == (text, asked):
                        return claim
            return None

        before = None if call is None else made(self._books.read(_BOOK))
        if before is not None:
            return before  # whether its sources still resolve or not
        resolved = tuple(one.source for one in self._resolved(references, lent))
        entry = claim_entry(Claim("", text, resolved, by)) | ({} if call is None else {"call": call})

        def decide(known: Sequence[Posting]) -> tuple[list[Mapping[str, Any]], tuple[Claim | None, list[Posting]]]:
            again = made(known)
            return ([] if again is not None else [entry]), (again, list(known))

        new, (again, known) = self._books.post(_BOOK, decide)
        if again is not None:
            return again
        claims = self._added_up([*known, *new]).claims
        return claims[f"c{len(claims)}"]

    def verify(self, claim: Claim, check: Check, *, key: bool = False, supersedes: str | None = None) -> Fact:
        """Post a fact, where the host's check passes on the sources as they are now.

        Args:
            claim: from :meth:`claim`.
            check: gets the exact bytes of every cited part, in order; that it gets them is in the log before it runs.
            key: whether every reconciliation reads them again.
            supersedes: a current fact that this one corrects; it stays, marked.

        Raises:
            CheckFailedError: the check did not pass, or the sources are not what was claimed on; nothing was posted.
            FormatError: the fact to supersede is none that holds, or the claim is none of this ledger.
            NotAvailableError, StoreError, KeyringError, IntegrityError: nothing was posted.
        """
        if not isinstance(claim, Claim):
            raise FormatError("What is verified is a claim, as claim() returned it; books().claims has all of them.")
        _refuse_unfit(check, key, supersedes)
        with self._at_hand():
            if not isinstance(claim.id, str) or self._all().claims.get(claim.id) != claim:
                raise FormatError("This claim is not one of this ledger.")
            cited = [self._sources.opened(source) for source in claim.sources]
            if [one.source for one in cited] != list(claim.sources):
                raise CheckFailedError("A source is not what it was when the claim was made; claim it again.")
            outcome = self._passed(check, cited)

            def made(books: entries.Books) -> list[dict[str, Any]]:
                return [fact_entry(books, claim, outcome, key=key, supersedes=supersedes)]

            facts = self._post(made).facts
            return facts[f"f{len(facts)}"]

    def post(
        self,
        text: str,
        sources: Iterable[str],
        check: Check,
        *,
        key: bool = False,
        supersedes: str | None = None,
        session: Sourced | None = None,
    ) -> Fact:
        """Claim and verify at once: where the check does not pass, not even a claim is put down.

        Args:
            text, sources, session: as for :meth:`claim`.
            check, key, supersedes: as for :meth:`verify`.

        Raises:
            CheckFailedError, FormatError, NotAvailableError, BatchRejectedError: as there; nothing was posted.
            StoreError, KeyringError, IntegrityError: nothing was posted.
        """
        references = references_of(text, sources)
        _refuse_unfit(check, key, supersedes)
        lent = self._lent(session, references)
        with self._at_hand():
            resolved = self._resolved(references, lent)
            outcome, cited = self._passed(check, resolved), tuple(one.source for one in resolved)

            def made(books: entries.Books) -> list[dict[str, Any]]:
                claim = Claim(f"c{len(books.claims) + 1}", text, cited, "host")
                return [claim_entry(claim), fact_entry(books, claim, outcome, key=key, supersedes=supersedes)]

            facts = self._post(made).facts
            return facts[f"f{len(facts)}"]

    def take_back(self, fact_id: str) -> Fact:
        """Take a correction back: the fact that it superseded holds again, and is returned. Both stay.

        Raises:
            FormatError: it is no current fact that superseded another one.
            StoreError, IntegrityError: nothing was changed.
        """

        with self._at_hand():

            def made(books: entries.Books) -> list[dict[str, Any]]:
                fact = books.facts.get(fact_id) if isinstance(fact_id, str) else None
                if fact is None or not fact.is_current or fact.supersedes is None:
                    raise FormatError("Only a fact that holds and superseded another one can be taken back.")
                return [{"kind": "taken_back", "fact_id": fact_id}]

            books = self._post(made)
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
            report, _ = self._compared(strong=strong)
            self._post(lambda books: [_reconciled(report)])
            return report

    def _compared(self, *, strong: bool) -> tuple[Report, frozenset[str]]:
        """What a reconciliation finds, and the ids of the facts that agree."""
        found: list[Disagreement] = []
        counts = {True: 0, False: 0}
        books = self._all()
        current = books.current()
        # What was found not to agree is read again: looking it up would not find that it changed.
        read = {fact.id for fact in current if strong or fact.is_key or fact.id in books.disagreeing}
        weak = [fact for fact in current if fact.id not in read]
        unfit = self._sources.unfit({source.result_id for fact in weak for source in fact.sources})
        for fact in current:
            is_strong = fact.id in read
            counts[is_strong] += 1
            why = self._disagrees(fact) if is_strong else _first_unfit(fact, unfit)
            if why is not None:
                found.append(Disagreement(fact.id, fact.is_key, why))
        wrong = {one.fact_id for one in found}
        report = Report(counts[True], counts[False], tuple(found))
        return report, frozenset(fact.id for fact in current if fact.id not in wrong)

    def _disagrees(self, fact: Fact) -> str | None:
        """Why the cited parts, read again, are not what was cited."""
        wrong = ((source.pointer, self._wrong(source)) for source in fact.sources)
        return next((f"{pointer} {why}" for pointer, why in wrong if why is not None), None)

    def _wrong(self, source: Source) -> str | None:
        """What is wrong with a source, read again."""
        why: str | None
        try:
            why = None if self._sources.opened(source).source == source else "no longer says what was cited."
        except NotAvailableError:
            # It may be there, and not for who asks: then nothing is known of the fact, and nothing noted.
            why = UNREAD if source.result_id not in self._sources.unfit([source.result_id]) else NOT_THERE
        except ShreddedError:
            why = GONE
        except FormatError:
            why = NOT_THERE
        except ObjectNotFoundError:
            why = NOT_AT_HAND
        except IntegrityError:
            why = BROKEN
        return why

    def close(self, *, window_from: int | None = None, window_to: int | None = None) -> Period:
        """Settle what holds, at a milestone; the period continues the last one.

        Args:
            window_from, window_to: the messages it covers, from 1 to ``MESSAGES_MAX``. Without them: those of the
                newest view that no period covers yet, and 0 where there are none.

        Raises:
            CheckFailedError: a key fact does not agree with its sources; nothing was closed.
            FormatError: the messages are no range.
            StoreError, KeyringError, SealBrokenError: nothing was closed.
        """
        for number in (window_from, window_to):
            if number is not None and (type(number) is not int or not 0 <= number <= MESSAGES_MAX):
                raise FormatError(
                    f"The messages of a period are whole numbers from 1 to {MESSAGES_MAX:,}; 0 where it covers none."
                )
        with self._at_hand():
            report, agreeing = self._compared(strong=False)
            wrong = [one.fact_id for one in report.disagreements if one.is_key]
            unread = [one.fact_id for one in report.disagreements if one.is_key and one.is_unread]
            if unread:
                raise CheckFailedError(
                    f"The books do not close: you may not read what {unread[0]} cites. Somebody who may has to close."
                )
            if wrong:
                self._post(lambda books: [_reconciled(report)])
                do = "fact does" if len(wrong) == 1 else "facts do"
                raise CheckFailedError(
                    f"The books do not close: {len(wrong)} key {do} not agree, {wrong[0]} first. A reconciliation "
                    "says why: mend it, or supersede them."
                )
            seen = len(self._records.timeline.messages)

            def made(books: entries.Books) -> list[dict[str, Any]]:
                covered = max((one.window_to for one in books.periods.values()), default=0)
                first, last = _covering(window_from, window_to, covered, seen)
                period = {
                    "kind": "period",
                    "facts": [fact.id for fact in books.current() if fact.id in agreeing],  # none that came since
                    "window_from": first,
                    "window_to": last,
                    "opening_balance_ref": f"p{len(books.periods)}" if books.periods else None,
                }
                return [_reconciled(report), period]

            periods = self._post(made).periods
            return periods[f"p{len(periods)}"]

    def opening(self, period_id: str | Period | None = None, budget_tokens: int | None = OPENING_TOKENS) -> list[str]:
        """The opening balance after a period: a line for each fact with its pointers, key facts first, newest first.

        Facts that a reconciliation found not to agree since are left out.

        Args:
            period_id: after which period, by its id or itself; the last one by default.
            budget_tokens: bound on all lines together; what does not fit is counted in a last line. ``None``: all.

        Raises:
            FormatError: there is no such period.
            StoreError, IntegrityError: the store cannot be read, or was changed.
        """
        period_id = period_id.id if isinstance(period_id, Period) else period_id
        if budget_tokens is not None and (type(budget_tokens) is not int or budget_tokens < 0):
            raise FormatError("A budget is a whole number of tokens.")
        with self._at_hand():
            books = self._all()
            if period_id is None and not books.periods:
                return []
            named = f"p{len(books.periods)}" if period_id is None else period_id
            period = books.periods.get(named) if isinstance(named, str) else None
            if period is None:
                raise FormatError("There is no such period.")
            # What was found not to agree since is not handed on as if it did.
            settled = [books.facts[one] for one in period.facts if one not in books.disagreeing]
            lines = [fact.line for fact in entries.in_balance(settled)]
            return lines if budget_tokens is None else self._within(lines, budget_tokens)

    def _within(self, lines: Sequence[str], budget_tokens: int) -> list[str]:
        """The first of the lines that fit, with a line break each, and how many did not."""

        def tokens(line: str) -> int:
            return self._records.counter.count(line) + 1

        sizes = [tokens(line) for line in lines]
        if sum(sizes) <= budget_tokens:
            return list(lines)
        left, shown = budget_tokens - tokens(_and_more(len(lines))), 0
        while shown < len(lines) and sizes[shown] <= left:
            left -= sizes[shown]
            shown += 1
        return [*lines[:shown], *([_and_more(len(lines) - shown)] if left >= 0 else [])]

    def audit(self, fact_id: str) -> tuple[Cited, ...]:
        """A fact's sources, followed to their originals and read again; each is in the log before this returns.

        Args:
            fact_id: such as ``f3``; also of a fact that was superseded.

        Raises:
            FormatError: there is no such fact, or a cited part is not there any more.
            NotAvailableError, ShreddedError: an original may not be restored, or was shredded.
            SealBrokenError: stored bytes were changed.
            StoreError, KeyringError: store or keys are not at hand; nothing was released.
        """
        with self._at_hand():
            fact = self._all().facts.get(fact_id) if isinstance(fact_id, str) else None
            if fact is None:
                raise FormatError("There is no such fact.")
            now = [self._sources.opened(source) for source in fact.sources]
            self._restoring.all_granted(self._records.principal, _parts_of(now), reason=f"audit of {fact_id}")
            return tuple(Cited(source, one.source, one.part) for source, one in zip(fact.sources, now, strict=True))

    def _passed(self, check: Check, cited: Sequence[Opened]) -> Outcome:
        """What a check of the host found in the cited parts; it gets them once the log says so.

        Raises:
            CheckFailedError: it did not pass.
        """
        self._restoring.checked(self._records.principal, _parts_of(cited))
        outcome = check([one.part for one in cited])
        if not is_plain(outcome):
            raise CheckFailedError(
                "A check says what it compared, as an Outcome of two texts, or raises CheckFailedError."
            )
        return outcome

    def _established(self, entries_max: int | None = None) -> tuple[int, list[Fact]]:
        """The number of entries, and the facts that hold and agreed with their sources, as a balance orders them.

        As the session's newest row counts them, for a view that holds the records' lock: nothing is refreshed.

        Args:
            entries_max: look at so many of the first entries only; ``None`` for all.

        Raises:
            StoreError, IntegrityError: the store cannot be read, or was changed.
        """
        known = self._books.seen(_BOOK)
        if entries_max is None or entries_max >= len(known):
            return len(known), self._added_up(known).established()
        first = known[:entries_max]
        return len(first), added_up((one.content, one.created_at_us) for one in first).established()

    def _resolved(self, references: Sequence[Reference], lent: Mapping[int, Lent] | None = None) -> list[Opened]:
        names_artifact = any(one.artifact is not None for one in references)
        artifacts = self._all().artifacts if names_artifact else {}
        return [self._sources.resolved(one, artifacts, lent or {}) for one in references]

    def _lent(self, session: Sourced | None, references: Sequence[Reference]) -> dict[int, Lent]:
        """Originals of a session, for a shared ledger: got as its principal gets them, before our own lock is taken.

        Raises:
            FormatError: this ledger is a session's own.
            NotAvailableError: they may not be restored by who posts.
        """
        theirs = self if session is None else getattr(session, "ledger", None)
        if theirs is self:
            return {}
        if not self._is_shared or not isinstance(theirs, Ledger):
            raise FormatError("Results of another session are sources in a shared ledger only: archive.ledger(...).")
        mine, other = self._records.principal, theirs._records.principal
        if (mine.org, mine.subject) != (other.org, other.subject):
            raise NotAvailableError
        numbers = dict.fromkeys(one.number for one in references if one.number is not None)
        with theirs._at_hand():
            return {number: theirs._sources.lend(number, mine, self._records.id) for number in numbers}

    # --- entries in the book ---------------------------------------------------------------------------------------

    def _post(self, make: Callable[[entries.Books], Sequence[Mapping[str, Any]]]) -> entries.Books:
        """All that stands in the ledger, with entries that were made looking at all that stood there."""

        def decide(known: Sequence[Posting]) -> tuple[Sequence[Mapping[str, Any]], list[Posting]]:
            return make(self._added_up(known)), list(known)

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


def references_of(text: object, sources: Iterable[str]) -> list[Reference]:
    """The sources of a claim, each once.

    Args:
        text: of the claim; 1 to 1,000 characters.
        sources: 1 to 20 references.

    Raises:
        FormatError: text or sources cannot be used.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > entries.TEXT_CHARS_MAX:
        raise FormatError(f"A claim is text of 1 to {entries.TEXT_CHARS_MAX} characters.")
    asked = [] if isinstance(sources, str) or not isinstance(sources, Iterable) else list(sources)
    if not 1 <= len(asked) <= entries.SOURCES_MAX:
        raise FormatError(f"A claim has 1 to {entries.SOURCES_MAX} sources, as a list.")
    return list(dict.fromkeys(map(parse_reference, asked)))


def _parts_of(cited: Sequence[Opened]) -> list[tuple[Found, str | None]]:
    """What is released of each source: the original, and which part of it, as the log tells it."""
    return [(one.found, parse_reference(one.source.reference).selector.kind) for one in cited]


def _refuse_unfit(check: object, key: object, supersedes: object) -> None:
    """Refuse what no fact can be posted with.

    Raises:
        FormatError: one of them is of another type.
    """
    if not callable(check):
        raise FormatError("A check is a function of the cited parts, such as quotes(...).")
    if not isinstance(key, bool):
        raise FormatError("key is True or False.")
    if supersedes is not None and not isinstance(supersedes, str):
        raise FormatError("What a fact supersedes is named by its id, such as f3.")


def is_plain(outcome: object) -> TypeGuard[Outcome]:
    """Whether it is what a check returns: an outcome of two texts that can be put down."""
    if not isinstance(outcome, Outcome):
        return False
    return all(isinstance(one, str) and len(one) <= OUTCOME_CHARS_MAX for one in (outcome.check, outcome.details))


def claim_entry(claim: Claim) -> dict[str, Any]:
    """The entry of a claim."""
    return {"kind": "claim", "text": claim.text, "sources": _plain(claim.sources), "by": claim.by}


def fact_entry(
    books: entries.Books,
    claim: Claim,
    outcome: Outcome,
    *,
    key: bool,
    supersedes: str | None,
    observed_in: str | None = None,
) -> dict[str, Any]:
    """The entry of a fact.

    Args:
        books: all that stands in the ledger before it.
        claim: what was verified.
        outcome: of the check.
        key: whether every reconciliation reads its sources again.
        supersedes: the fact it corrects, or ``None``.
        observed_in: the result that a rule of the host was looking at, or ``None``.

    Raises:
        FormatError: there is no such fact to supersede.
    """
    if supersedes is not None and (supersedes not in books.facts or not books.facts[supersedes].is_current):
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
        **({} if observed_in is None else {"observed_in": observed_in}),
    }


def _covering(window_from: int | None, window_to: int | None, covered: int, seen: int) -> tuple[int, int]:
    """The messages of a period: as given, else what no period covers yet.

    Args:
        window_from, window_to: as given.
        covered: the last message that a period covers.
        seen: how many messages the newest view has.

    Raises:
        FormatError: they are no range.
    """
    last = window_to if window_to is not None else max(seen, window_from or 0) if seen > covered or window_from else 0
    first = window_from if window_from is not None else covered + 1 if last else 0
    if first > last or (last and not first):
        raise FormatError("A period covers the messages from one number to the same or a later one.")
    return first, last


def _reconciled(report: Report) -> dict[str, Any]:
    """The entry of a reconciliation."""
    return {
        "kind": "reconciled",
        "strong": report.strong,
        "weak": report.weak,
        "disagreeing": [one.fact_id for one in report.disagreements if not one.is_unread],
    }


def _and_more(count: int) -> str:
    return f"... and {count} fact{'s' * (count != 1)} more"


def _first_unfit(fact: Fact, unfit: Mapping[str, str]) -> str | None:
    return next((f"{one.pointer} {unfit[one.result_id]}" for one in fact.sources if one.result_id in unfit), None)


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
