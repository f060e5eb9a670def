"""The card of a session, in one of its books: every change is a posting, and the card is what they add up to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evidence_archive.books import Books, Posting
from evidence_archive.errors import FormatError
from evidence_archive.model import format_result_id
from evidence_archive.records import Records
from evidence_archive.references import Reference
from evidence_archive.window.card import Card, Difference, changed, parse_changes

__all__ = ["CARD_BOOK", "Carding"]

CARD_BOOK = "card"

NOTHING = Card()


class Carding:
    """The card of one session. Callers hold the records' lock.

    Args:
        records, books: of the session.
    """

    def __init__(self, records: Records, books: Books) -> None:
        self._records = records
        self._books = books
        self._card = Card()
        self._folded = 0
        """How many postings are in :attr:`_card`."""

    def card(self) -> Card:
        """The card as it stands.

        Raises:
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read.
        """
        return self._fold(self._books.read(CARD_BOOK))

    def card_seen(self) -> Card:
        """The card as the session's newest row counts its changes, for a view.

        Raises:
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read within ``view_wait_ms_max``.
        """
        return self._fold(self._books.seen(CARD_BOOK))

    def card_at(self, version: int) -> Card:
        """The card as it was when it had this version, for a view.

        Raises:
            SealBrokenError: postings were removed or changed.
            StoreError: the store cannot be read.
        """
        card = NOTHING
        for posting in self._books.seen(CARD_BOOK):
            if card.version >= version:
                break
            card = self._sum([posting], card)
        return card

    def change(self, changes: object, call_id: bytes | None = None) -> tuple[Card, list[Difference]]:
        """All of these changes, or none; the card after them, and what each did.

        Args:
            changes: as for :func:`~evidence_archive.window.card.parse_changes`.
            call_id: of the model's call; made again, it changes nothing more. ``None`` for the host.

        Raises:
            FormatError: one cannot be made, or refers to a result that was never issued; nothing was changed.
            ShreddedError, SealBrokenError, StoreError: nothing was changed.
        """
        parsed = parse_changes(_listed(changes))
        plain = [_plain(change) for change in parsed]
        call = None if call_id is None else call_id.hex()

        def decide(known: Sequence[Posting]) -> tuple[list[Mapping[str, Any]], tuple[Card, list[Difference]]]:
            for at, posting in enumerate(known):
                if call is not None and posting.content == {"changes": plain, "call": call}:
                    before, after = self._sum(known[:at]), self._fold(known)
                    return [], (after, changed(before, parsed)[1])
            for change in parsed:
                self._check(change.get("references", ()))
            after, differences = changed(self._fold(known), parsed)
            return [{"changes": plain, "call": call}], (after, differences)

        _, (card, differences) = self._books.post(CARD_BOOK, decide)
        self._records.log.info(
            "evidence_archive.card_changed",
            by="host" if call is None else "model",
            version=card.version,
            changes=[
                f"{one.item_id or 'goal'}: {one.before.state if one.before else 'new'} to "
                f"{one.after.state if one.after else 'written'}"
                for one in differences
            ],
        )
        return card, differences

    def _fold(self, known: Sequence[Posting]) -> Card:
        if len(known) < self._folded:
            self._card, self._folded = Card(), 0  # the store was put back
        self._card = self._sum(known[self._folded :], self._card)
        self._folded = len(known)
        return self._card

    @staticmethod
    def _sum(postings: Sequence[Posting], card: Card = NOTHING) -> Card:
        for posting in postings:
            card, _ = changed(card, parse_changes(posting.content["changes"]))
        return card

    def _check(self, references: Sequence[Reference]) -> None:
        for reference in references:
            if reference.number is not None and reference.number not in self._records.rows:
                raise FormatError(
                    f"Nothing was changed. There is no result {format_result_id(reference.number)} in this session."
                )


def _listed(changes: object) -> object:
    """The changes as a list, where they are several of anything.

    Raises:
        FormatError: it is one change alone, or the names of its fields, as which a list is made of one.
    """
    if isinstance(changes, str | bytes) or not isinstance(changes, Iterable):
        return changes
    listed = list(changes)
    if isinstance(changes, Mapping) or (listed and all(isinstance(one, str) for one in listed)):
        raise FormatError('Nothing was changed. Changes are a list, of a single one, too: [{"goal": "..."}].')
    return listed


def _plain(change: Mapping[str, Any]) -> dict[str, Any]:
    """A parsed change as JSON that is parsed to the same."""
    if "goal" in change:
        return {"goal": change["goal"]}
    head = (
        {"id": change["id"], "to": change["to"]}
        if "id" in change
        else {"add": change["kind"], "text": change["text"]}
    )
    return {**head, "reason": change["reason"], "references": [str(one) for one in change["references"]]}
