"""Entries that are made without anybody's asking: the host's rules look at results once a view has registered them.

A result is looked at once: what came of it is an entry, so that another process does not look again. A view never
fails because of a rule; what a rule raises is logged.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from evidence_archive.archiving import Kept
from evidence_archive.errors import (
    BatchRejectedError,
    CheckFailedError,
    EvidenceArchiveError,
    KeyringError,
    MisuseError,
    StoreError,
)
from evidence_archive.ledger import entries
from evidence_archive.ledger.entries import Claim, Fact, Source
from evidence_archive.ledger.keeping import ARTIFACT_BYTES_MAX, Ledger, claim_entry, fact_entry, is_plain
from evidence_archive.ledger.rules import Finding, Rule
from evidence_archive.ledger.sources import content_of
from evidence_archive.matching import NOTE, Place
from evidence_archive.model import ToolCall, format_result_id, parse_result_id, text_of
from evidence_archive.records import Records
from evidence_archive.references import parse_reference

__all__ = ["Observing"]


class Observing:
    """The rules of one session. Callers hold the records' lock.

    Args:
        records, ledger: of the session.
        rules: of the host, in the order they are asked.
    """

    def __init__(self, records: Records, ledger: Ledger, rules: Sequence[Rule]) -> None:
        self._records = records
        self._ledger = ledger
        self._rules = tuple(rules)
        self._done: set[int] = set()

    def look(self) -> None:
        """Let the rules look at every result of the newest view that they have not looked at."""
        if not self._rules or self._records.suspension() is not None:
            return  # nothing could be kept: a view after the suspension looks
        places = [place for place in self._records.timeline.places if self._is_new(place)]
        if not places:
            return
        try:
            looked_at = self._ledger.books().looked_at
        except EvidenceArchiveError as error:
            self._trouble(error)
            return
        for place in places:
            number = place.number or 0
            try:
                if format_result_id(number) not in looked_at:
                    self._look_at(number, place)
            except (StoreError, KeyringError) as error:
                self._trouble(error)
                return  # the next view tries again
            except BatchRejectedError as error:  # what could not be kept has been counted already
                self._log(number)
                if error.reason in ("store_unavailable", "unknown", "suspended"):
                    return
            except EvidenceArchiveError as error:
                self._trouble(error)
            self._done.add(number)

    def _is_new(self, place: Place) -> bool:
        """Whether it answers a call of the application's tools, holds what the tool said, and was not looked at."""
        if place.number is None or place.number in self._done or place.call is None or place.form == NOTE:
            return False
        row = self._records.rows[place.number]
        return row.own is None and row.state in ("live", "archived")

    def _look_at(self, number: int, place: Place) -> None:
        found: list[Finding] = []
        wrong: list[str] = []
        for rule in self._rules:
            call = place.call or ToolCall("", "")
            try:
                finding = rule(call, self._records.original(place))
                if finding is not None:
                    found.append(_checked(finding))
            except CheckFailedError as error:
                wrong.append(str(error)[: entries.TEXT_CHARS_MAX])
            except Exception as error:  # whatever a rule of the host raises, the view goes on
                self._records.vault.usable()  # unless it has closed the archive
                wrong.append(f"A rule failed with {type(error).__name__}.")
        if found and len(self._records.facts(self._records.rows[number], place, None).tools) > 1:
            found.clear()
            wrong.append("The result is known under several tools: no product can be kept under all their rules.")
        if wrong:
            self._log(number)
        if found or wrong:
            self._post(number, found, wrong)

    def _post(self, number: int, found: Sequence[Finding], wrong: Sequence[str]) -> None:
        """Originals first, then all entries of this result at once, unless another process was faster."""
        result_id = format_result_id(number)
        kept = [(one, self._kept(number, one)) for one in found]

        def made(books: entries.Books) -> list[dict[str, Any]]:
            if result_id in books.looked_at:
                return []
            posted: list[dict[str, Any]] = []
            late: list[str] = []
            claims = len(books.claims)
            before: dict[tuple[str, str], list[Fact]] = {}
            for one in books.current():
                before.setdefault((one.outcome.check, one.sources[0].reference), []).append(one)
            for finding, source in kept:
                newer = [one for one in books.facts.values() if self._is_newer(one, source.reference, number)]
                later = next((one for one in newer if one.outcome.check == finding.outcome.check), None)
                if later is not None:
                    late.append(f"{source.reference} is on the books as {later.observed_in} left it, which is newer.")
                    continue
                # What a rule found of the same product before is corrected by what it finds now.
                held = before.get((finding.outcome.check, source.reference))
                earlier = held.pop(0) if held else None
                claims += 1
                claim = Claim(f"c{claims}", finding.text, (source,), "host")
                artifact = {
                    "kind": "artifact",
                    "name": finding.name,
                    "result_id": source.result_id,
                    "sha256": source.original_sha256,
                    "size_bytes": len(finding.data),
                }
                posted += [
                    *([] if newer else [artifact]),  # the newest of a name counts
                    claim_entry(claim),
                    fact_entry(
                        books,
                        claim,
                        finding.outcome,
                        key=finding.key,
                        supersedes=None if earlier is None else earlier.id,
                        observed_in=result_id,
                    ),
                ]
            return [*posted, {"kind": "looked_at", "result_id": result_id, "not_verified": [*wrong, *late]}]

        self._ledger._post(made)

    def _is_newer(self, fact: Fact, reference: str, number: int) -> bool:
        """Whether a rule found it on the same product in a newer result, and nobody took it back."""
        other = _number(fact.observed_in)
        if fact.sources[0].reference != reference or other <= number:
            return False
        if fact.superseded_by is not None and fact.superseded_by == fact.supersedes:  # taken back
            return False
        # A result that was labelled before its first view has a lower number than those in front of it.
        here, there = (self._records.timeline.by_number.get(one) for one in (number, other))
        return here is None or there is None or (here.index, here.slot) < (there.index, there.slot)

    def _kept(self, number: int, finding: Finding) -> Source:
        """The product as an original, under the rules of the result."""
        row = self._records.rows[number]
        sensitivity = frozenset(filter(None, row.sensitivity.split("\n")))
        what = Kept("artifact", content_of(finding.data), finding.name, sensitivity, text_of(row.tool_name), row.kind)
        digest = sha256(finding.data).hexdigest()
        return Source(f"artifact:{finding.name}", self._ledger._sources.keep(what), digest, digest)

    def _log(self, number: int) -> None:
        """Why it was not verified is in the ledger, sealed."""
        self._records.log.warning("evidence_archive.not_verified", result=format_result_id(number))

    def _trouble(self, error: EvidenceArchiveError) -> None:
        if isinstance(error, MisuseError):
            raise error
        self._records.trouble(error)


def _number(result_id: str | None) -> int:
    return 0 if result_id is None else parse_result_id(result_id)


def _checked(finding: object) -> Finding:
    """What a rule returned, as something that can be posted.

    Raises:
        CheckFailedError: it is no finding.
    """
    if (
        not isinstance(finding, Finding)
        or not isinstance(finding.text, str)
        or not 1 <= len(finding.text.strip()) <= len(finding.text) <= entries.TEXT_CHARS_MAX
        or not is_plain(finding.outcome)
        or not isinstance(finding.name, str)
        or not isinstance(finding.data, bytes)
        or not isinstance(finding.key, bool)
        or len(finding.data) > ARTIFACT_BYTES_MAX
    ):
        raise CheckFailedError("A rule returns a Finding with a text, an Outcome and bytes, or None.")
    parse_reference(f"artifact:{finding.name}")
    return finding
