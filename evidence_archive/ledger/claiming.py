"""What the model may do with the ledger: claim something, and look up what holds. It never makes a fact."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evidence_archive.errors import FormatError
from evidence_archive.ledger.entries import Claim, Fact
from evidence_archive.ledger.keeping import Ledger, references_of

__all__ = ["FACTS_MAX", "QUERY_CHARS_MAX", "Claiming", "FactsFound"]

FACTS_MAX = 20
"""Most facts of one answer."""

QUERY_CHARS_MAX = 500
"""Longest query, in characters."""


@dataclass(frozen=True, slots=True)
class FactsFound:
    """Facts that hold.

    Args:
        facts: key facts first, then the newest; at most ``FACTS_MAX``.
        found: how many match.
        held: how many hold at all.
    """

    facts: tuple[Fact, ...]
    found: int
    held: int


class Claiming:
    """Calls of the model to the ledger of one session. Callers hold the records' lock.

    Args:
        ledger: of the session.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def claim(self, text: Any, sources: Any, call_id: bytes) -> Claim:
        """A claim ``by`` the model.

        Args:
            text, sources: as the model gave them.
            call_id: of the model's call; made again, it puts nothing more down, and the same claim is returned.

        Raises:
            FormatError, NotAvailableError, BatchRejectedError: it cannot be claimed; nothing was put down.
            ShreddedError, StoreError, KeyringError, IntegrityError: nothing was put down.
        """
        references = references_of(text, sources)
        with self._ledger._at_hand():
            return self._ledger._claimed(text, references, "model", call=call_id.hex())

    def facts(self, query: object = None) -> FactsFound:
        """Facts that hold and agreed with their sources, with all words of a query in their texts or pointers.

        Args:
            query: at most 500 characters in one line; ``None`` or blank for all of them.

        Raises:
            FormatError: the query is malformed.
            StoreError, IntegrityError: the books cannot be read, or were changed.
        """
        if query is not None and (not isinstance(query, str) or len(query) > QUERY_CHARS_MAX or "\n" in query):
            raise FormatError(f"A query is one line of at most {QUERY_CHARS_MAX} characters, or null.")
        held = self._ledger.books().established()
        words = (query or "").casefold().split()
        found = [fact for fact in held if all(word in _words(fact) for word in words)]
        return FactsFound(tuple(found[:FACTS_MAX]), len(found), len(held))


def _words(fact: Fact) -> str:
    pointers: Sequence[str] = [one.pointer for one in fact.sources]
    return "\n".join((fact.id, fact.text, *pointers)).casefold()
