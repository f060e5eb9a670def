"""Which messages stay in the window: whole turns from the end, as many as the budget holds.

A list may be cut only where no call is open and no result stands next, so that what stays is a list that providers
take (every result after its call, every call but the last ones answered). The system messages at the beginning stay
as they are, the newest message of the user stays wherever it stands, and so does everything from the last place to
cut on: the calls that are still open, with what led to them. What is not in the window is left out as whole messages.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evidence_archive.dialects.base import Reading
from evidence_archive.errors import WindowTooSmallError

__all__ = ["Kept", "cuts", "kept"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays of a list.

    Args:
        system: how many messages at the beginning are the application's own instructions.
        pinned: index of the newest message of the user where it stands before ``start``, else ``None``.
        start: from which message on the list stays as it is.
        tokens: of all that stays.
    """

    system: int
    pinned: int | None
    start: int
    tokens: int

    def indexes(self, count: int) -> list[int]:
        """The places of a list of so many messages that stay, in order."""
        pinned = [] if self.pinned is None else [self.pinned]
        return [*range(self.system), *pinned, *range(self.start, count)]


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

    Raises:
        WindowTooSmallError: what has to stay does not fit; nothing is cut.
    """
    count = len(roles)
    system = next((at for at, role in enumerate(roles) if role != "system"), count)
    user = max((at for at, role in enumerate(roles) if role == "user"), default=None)
    places = [at for at in cuts(readings) if at >= system] or [system]
    behind = [0] * (count + 1)
    for at in range(count - 1, -1, -1):
        behind[at] = behind[at + 1] + tokens[at]
    instructions = sum(tokens[:system])

    def staying(place: int) -> Kept:
        pinned = user if user is not None and system <= user < place else None
        size = instructions + behind[place] + (0 if pinned is None else tokens[pinned])
        return Kept(system, pinned, place, size)

    begun = next((place for place in places if place >= start), places[-1])
    whole = staying(begun)
    if whole.tokens <= budget_tokens:
        return whole
    target = budget_tokens if target_tokens is None else min(target_tokens, budget_tokens)
    for place in places:
        if place > begun and (shorter := staying(place)).tokens <= target:
            return shorter
    last = staying(places[-1])
    if last.tokens <= budget_tokens:
        return last
    raise WindowTooSmallError(_too_small(last, instructions, tokens, behind, budget_tokens))


def _too_small(last: Kept, instructions: int, tokens: Sequence[int], behind: Sequence[int], budget: int) -> str:
    """Which part is too large, the largest first."""
    parts = [
        (instructions, "the system messages have"),
        (0 if last.pinned is None else tokens[last.pinned], "the newest message of the user has"),
        (behind[last.start], "the newest turn has"),
    ]
    size, part = max(parts)
    return (
        f"The window holds {budget} tokens, and what has to be in it has {last.tokens}: {part} {size}. Raise "
        "window_tokens_max, archive the largest result, or shorten that part."
    )
