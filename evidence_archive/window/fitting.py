"""What stays in the window: whole turns from the end, as many as the budget holds, and those that may not leave.

A list may be cut only where no call is open and no result stands next, so that what stays is a list that providers
take (every result after its call, every call but the last ones answered). Between two such places lies a piece of the
list that stays or goes as a whole. The system messages at the beginning stay as they are; the newest message of the
user stays wherever it stands, and so does everything from the last place to cut on: the calls that are still open,
with what led to them. A piece with something that must stay in view stays, wherever it stands. What is not in the
window is left out as whole messages; nothing that stays is altered.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evidence_archive.dialects.base import Reading
from evidence_archive.errors import WindowTooSmallError

__all__ = ["Kept", "cuts", "kept"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays of a list.

    Args:
        system: how many messages at the beginning are the application's own instructions.
        pinned: indexes of messages that stay although they stand before ``start``, in order.
        start: from which message on the list stays as it is.
        tokens: of all that stays.
    """

    system: int
    pinned: tuple[int, ...]
    start: int
    tokens: int

    def indexes(self, count: int) -> list[int]:
        """The places of a list of so many messages that stay, in order."""
        return [*range(self.system), *self.pinned, *range(self.start, count)]


def cuts(readings: Sequence[Reading]) -> list[int]:
    """The places where a list may begin: no call before them is answered at or behind them.

    Args:
        readings: of all messages, in order. A call that the next message of the model finds unanswered never will be.
    """
    found, waiting = [], Counter[str]()
    for at, reading in enumerate(readings):
        if reading.from_model:
            waiting.clear()
        if not reading.results and not waiting.total():
            found.append(at)
        waiting.update(call.id for call in reading.calls)
        for result in reading.results:
            if waiting[result.call_id] > 0:
                waiting[result.call_id] -= 1
    return found


def kept(
    roles: Sequence[str],
    readings: Sequence[Reading],
    tokens: Sequence[int],
    *,
    budget_tokens: int,
    target_tokens: int | None = None,
    start: int = 0,
    staying: Collection[int] = (),
) -> Kept:
    """What stays in the window: no more than the budget, and no turn less than the budget asks for.

    Between commits the same messages stay, so that the prefix that was sent stays the same: ``start`` moves only
    where the list does not fit any more, and then so far that the rest fits the target.

    Args:
        roles: ``system``, ``user``, ``assistant`` or ``tool`` for each message; ``developer`` is ``system``.
        readings: of the messages.
        tokens: of each message.
        budget_tokens: for all that stays.
        target_tokens: where a list that does not fit is cut to; the budget by default, and at most that.
        start: where the list began when it was sent last.
        staying: indexes of messages that may not leave, such as those with evidence that has to stay in view.

    Raises:
        WindowTooSmallError: what has to stay does not fit; nothing is cut.
    """
    count = len(roles)
    system = next((at for at, role in enumerate(roles) if role != "system"), count)
    user = max((at for at, role in enumerate(roles) if role == "user"), default=None)
    places = [at for at in cuts(readings) if at >= system] or [system]
    pieces = _Pieces(
        places, count, tokens, {at for at in (*staying, *(() if user is None else (user,))) if at >= system}
    )
    instructions = sum(tokens[:system])
    sizes = [instructions + pieces.pinned_tokens(nth) + pieces.tokens_behind(nth) for nth in range(len(places))]

    def found(nth: int) -> Kept:
        return Kept(system, pieces.pinned(nth), places[nth], sizes[nth])

    begun = next((nth for nth, place in enumerate(places) if place >= start), len(places) - 1)
    if sizes[begun] <= budget_tokens:
        return found(begun)
    target = budget_tokens if target_tokens is None else min(target_tokens, budget_tokens)
    shorter = next((nth for nth in range(begun + 1, len(places)) if sizes[nth] <= target), len(places) - 1)
    if sizes[shorter] <= budget_tokens:
        return found(shorter)
    protected = [pieces.sizes[nth] for nth in pieces.holding(staying) if nth < len(places) - 1]
    parts = [
        (instructions, "the system messages have"),
        (0 if user is None or user >= places[-1] else tokens[user], "the newest message of the user has"),
        (pieces.tokens_behind(len(places) - 1), "the newest turn has"),
        (
            sum(protected),
            f"{len(protected)} turn{'s' * (len(protected) > 1)} with evidence that has to stay in view have",
        ),
    ]
    size, part = max(parts, key=lambda one: one[0])
    raise WindowTooSmallError(
        f"The window has {budget_tokens} tokens for instructions and turns, and what has to be there has "
        f"{sizes[-1]}: {part} {size}. Raise window_tokens_max, lower carried_share, protect less, or have the tool "
        "or the user say less."
    )


class _Pieces:
    """A list in pieces, from each place to cut to the next, and which of them hold something that has to stay."""

    def __init__(self, places: Sequence[int], count: int, tokens: Sequence[int], staying: Collection[int]) -> None:
        self._ends = [*places[1:], count]
        self._places = places
        self.sizes = [sum(tokens[first:end]) for first, end in zip(places, self._ends, strict=True)]
        self.pinned_pieces = self.holding(staying)
        self._behind = list(accumulate(reversed(self.sizes)))[::-1]
        pinned = set(self.pinned_pieces)
        self._pinned_before = [0, *accumulate(size if nth in pinned else 0 for nth, size in enumerate(self.sizes))]

    def holding(self, indexes: Collection[int]) -> list[int]:
        """The pieces that these messages are in; the ones before all pieces are in none."""
        return sorted({bisect_right(self._places, at) - 1 for at in indexes if at >= self._places[0]})

    def tokens_behind(self, nth: int) -> int:
        """Of this piece and all behind it."""
        return self._behind[nth]

    def pinned_tokens(self, nth: int) -> int:
        """Of the pieces before this one that stay."""
        return self._pinned_before[nth]

    def pinned(self, nth: int) -> tuple[int, ...]:
        """The messages before this piece that stay."""
        before = [one for one in self.pinned_pieces if one < nth]
        return tuple(at for one in before for at in range(self._places[one], self._ends[one]))
