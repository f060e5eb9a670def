"""What a rewrite costs and saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError
from evidence_archive.window.costs import MILLION, Prices, Rewrite, cached_tokens, rewritten

tokens = st.integers(0, 10**6)


def bill(sent: list[list[tuple[object, int]]], prices: Prices) -> float:
    """What a provider charges for these requests in a row, each message as its bytes and tokens."""
    total, before = 0.0, []
    for request in sent:
        cached = cached_tokens(before, request)
        total += cached * prices.cached_input + (sum(size for _, size in request) - cached) * prices.input
        before = request
    return total / MILLION


@given(st.lists(st.integers(1, 5_000), min_size=3, max_size=20), st.data(), st.integers(1, 30))
def test_a_rewrite_is_worth_what_the_bill_says(sizes: list[int], data: st.DataObject, requests: int) -> None:
    prices = Prices()
    at = data.draw(st.integers(0, len(sizes) - 1))
    smaller = data.draw(st.integers(0, sizes[at]))
    whole: list[tuple[object, int]] = list(enumerate(sizes))
    short: list[tuple[object, int]] = [*whole[:at], ("note", smaller), *whole[at + 1 :]]
    stayed = bill([whole, *[whole] * (requests + 1)], prices) - bill([whole], prices)
    went = bill([whole, *[short] * (requests + 1)], prices) - bill([whole], prices)
    rewrite = Rewrite(sizes[at] - smaller, sum(sizes[at + 1 :]))
    note = smaller * (prices.input - prices.cached_input) / MILLION  # the note itself is read anew once
    assert stayed - went == pytest.approx(rewrite.saving(prices, requests + 1) - rewrite.cost(prices) - note)


def test_a_rewrite_pays_when_its_saving_is_the_larger() -> None:
    assert Rewrite(50_000, 10_000).pays(Prices(), 10)
    assert not Rewrite(1_000, 100_000).pays(Prices(), 10)
    assert not Rewrite(0, 0).pays(Prices(), 10)
    assert not Rewrite(10_000, 10_000).pays(Prices(1, 0, 1), 1_000), "where the cache is free nothing is saved"


@pytest.mark.parametrize(
    "prices", [(-1, 0, 0), (1, 2, 0), (float("nan"), 0, 0), (float("inf"), 0, 0), (True, 0, 0), ("1", 0, 0)]
)
def test_prices_that_are_none_are_refused(prices: tuple[float, float, float]) -> None:
    with pytest.raises(FormatError):
        Prices(*prices)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=9),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=9),
    st.integers(0, 30),
)
def test_what_is_cached_is_the_common_prefix_and_nothing_below_the_least(
    before: list[tuple[int, int]], now: list[tuple[int, int]], least: int
) -> None:
    common = 0
    while common < min(len(before), len(now)) and before[common][0] == now[common][0]:
        common += 1
    prefix = sum(size for _, size in now[:common])
    assert cached_tokens(before, now, least=least) == (prefix if prefix >= least else 0)


def test_a_change_is_priced_by_what_stands_behind_the_first_byte_that_differs_and_by_what_went() -> None:
    before = [("system", 10), ("long", 100), ("old", 20)]
    assert rewritten(before, [("system", 10), ("note", 5), ("old", 20), ("new", 7)]) == Rewrite(88, 32)
    assert rewritten(before, before) == Rewrite(0, 0)
    assert rewritten(before, [*before, ("new", 7)]).behind_tokens == 0, "it would have been read anew in any case"
    assert rewritten([], before).behind_tokens == 0
    assert rewritten(before, before[:1]) == Rewrite(120, 0)
