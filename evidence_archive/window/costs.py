"""What a change of the sent prefix costs, what it saves, and whether it pays.

Providers read a prefix that was sent before from their cache, at a fraction of the price. Whatever stands behind the
first changed byte is read anew once; what was taken out is read by no later request any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evidence_archive.errors import FormatError

__all__ = ["MILLION", "Prices", "Rewrite", "cached_tokens", "rewritten"]

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """What a provider charges for a million tokens, in any one currency.

    Args:
        input: tokens that are read anew.
        cached_input: tokens of a prefix that was sent before; at most ``input``.
        output: tokens that the model writes.

    Raises:
        FormatError: one is negative or no finite number, or the cache costs more than reading anew.
    """

    input: float = 3.0
    cached_input: float = 0.3
    output: float = 15.0

    def __post_init__(self) -> None:
        for price in (self.input, self.cached_input, self.output):
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
                raise FormatError("A price is a number of at least 0 for a million tokens.")
        if self.cached_input > self.input:
            raise FormatError("Reading from the cache costs at most what reading anew costs.")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A change of what was sent, before it is made.

    Args:
        removed_tokens: how much shorter the list gets.
        behind_tokens: how much of the list that was sent stands behind the first change and stays: it would have been
            read from the cache, and is read anew once.
    """

    removed_tokens: int
    behind_tokens: int

    def cost(self, prices: Prices) -> float:
        """What it costs, once."""
        return self.behind_tokens * (prices.input - prices.cached_input) / MILLION

    def saving(self, prices: Prices, requests: int) -> float:
        """What so many later requests cost less."""
        return self.removed_tokens * prices.cached_input * requests / MILLION

    @property
    def cold(self) -> "Rewrite":
        """The same change where the provider's cache is known to be gone: everything is read anew in any case."""
        return Rewrite(self.removed_tokens, 0)

    def pays(self, prices: Prices, horizon_requests: int) -> bool:
        """Whether it saves more than it costs within so many requests."""
        return self.saving(prices, horizon_requests) > self.cost(prices)


def cached_tokens(before: Sequence[tuple[object, int]], now: Sequence[tuple[object, int]], *, least: int = 0) -> int:
    """How many tokens of a request a provider reads from its cache: the common prefix with the last one.

    Args:
        before, now: the messages of two requests in a row, each as something that is equal where the bytes are, and
            its tokens.
        least: a prefix of fewer tokens is not kept (OpenAI: 1,024; Anthropic: 1,024 to 4,096 by model).
    """
    tokens = 0
    for old, new in zip(before, now, strict=False):
        if old[0] != new[0]:
            break
        tokens += new[1]
    return tokens if tokens >= least else 0


def rewritten(before: Sequence[tuple[object, int]], now: Sequence[tuple[object, int]]) -> Rewrite:
    """The change from one request to the next, with what it takes away and what has to be read anew for it.

    Args:
        before, now: as in :func:`cached_tokens`; where one goes on behind the other, nothing is read anew for it.
    """
    was, ahead = sum(size for _, size in before), cached_tokens(before, now)
    tokens = sum(size for _, size in now)
    return Rewrite(was - tokens, tokens - ahead if ahead < was else 0)
