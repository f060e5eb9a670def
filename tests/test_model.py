"""The vocabulary: identifiers, canonical encoding, exact bytes."""

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from hostile import hostile_text
from hypothesis import example, given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError
from evidence_archive.model import (
    NESTING_MAX,
    Facts,
    Principal,
    Receipt,
    Restored,
    Target,
    ToolCall,
    canonical_id,
    ce,
    ce_read,
    checked_name,
    decode_exact,
    encode_exact,
    format_result_id,
    format_time,
    parse_result_id,
    same_value,
)

fields = st.lists(
    st.none() | st.integers(-(2**70), 2**70) | st.text(max_size=40) | st.binary(max_size=40) | st.booleans(),
    max_size=8,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# --- identifiers --------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**18 - 1))
def test_a_result_id_reads_back_as_its_number(number: int) -> None:
    assert parse_result_id(format_result_id(number)) == number


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        7.0,
        None,
        "",
        "r",
        "r0",
        "r07",
        "R7",
        " r7",
        "r7 ",
        "r7\n",
        "r-7",
        "r\u0667",
        "r1" + "0" * 18,
        ["r7"],
        b"r7",
    ],
)
def test_what_is_not_exactly_a_result_id_is_refused(wrong: Any) -> None:
    with pytest.raises(FormatError, match="such as 'r7'"):
        parse_result_id(wrong)


@pytest.mark.parametrize("name", ["a", "a/../b", "north clinic", "診療所", "😀" * 256, "..", "%2e"])
def test_a_name_is_opaque_and_never_interpreted(name: str) -> None:
    assert checked_name(name, "org") == name
    assert Principal(name, name, {name}) == Principal(org=name, subject=name, roles=frozenset({name}))


@pytest.mark.parametrize("name", ["", "a" * 257, "a\x00", "a\nb", "\x7f", "\x85", "\ud800", 7, None, b"a"])
def test_a_name_that_no_store_could_keep_is_refused_without_being_quoted(name: Any) -> None:
    with pytest.raises(FormatError, match="The org must") as caught:
        Principal(name, "s")
    assert repr(name) not in str(caught.value)


def test_one_string_of_roles_is_not_taken_for_a_set_of_letters() -> None:
    with pytest.raises(FormatError, match="set of strings"):
        Principal("o", "s", "agent")


def test_a_long_id_is_bounded_and_a_short_one_is_kept() -> None:
    assert canonical_id("x" * 1024) == b"x" * 1024
    assert canonical_id("x" * 1025) == b"sha256:" + hashlib.sha256(b"x" * 1025).hexdigest().encode()
    assert canonical_id("é" * 512) == ("é" * 512).encode()  # the bound is in bytes
    assert canonical_id("é" * 513).startswith(b"sha256:")
    assert canonical_id("\ud800") == b"\xed\xa0\x80"


def test_a_time_is_told_in_utc_and_cut_to_seconds() -> None:
    assert format_time(1_796_000_523_999_999) == "2026-11-30T01:02:03Z"


@pytest.mark.parametrize(
    ("time_us", "told"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00Z"),
        (-62_135_596_800_000_001, "0001-01-01T00:00:00Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000_000, "9999-12-31T23:59:59Z"),
        (-(10**30), "0001-01-01T00:00:00Z"),
        (10**4_000, "9999-12-31T23:59:59Z"),
    ],
)
def test_any_integer_is_told_as_a_time_the_nearest_that_has_a_name(time_us: int, told: str) -> None:
    assert format_time(time_us) == told


def test_the_platform_alone_would_refuse_a_time_that_is_told_here() -> None:
    with pytest.raises((ValueError, OverflowError, OSError)):
        datetime.fromtimestamp(10**30, UTC)  # the naive variant


# --- canonical encoding -------------------------------------------------------------------------------------------


def slow_ce(*values: Any) -> bytes:
    """The encoding once more, straight from its definition."""
    out = b""
    for value in values:
        if value is None:
            out += b"\xff\xff\xff\xff"
            continue
        data = value if isinstance(value, bytes) else canonical_id(value) if isinstance(value, str) else b"%d" % value
        out += struct.pack(">I", len(data)) + data
    return out


@given(fields)
@example(["x" * 5_000, b"y" * 5_000, None, 0, "", b""])
def test_the_encoding_is_what_its_definition_says_and_reads_back(values: list[Any]) -> None:
    data = ce(*values)
    assert data == slow_ce(*values)
    assert b"".join(ce(field) for field in ce_read(data)) == data


@given(fields, fields)
def test_an_encoding_of_parts_is_the_parts_joined(left: list[Any], right: list[Any]) -> None:
    assert ce(*left) + ce(*right) == ce(*left, *right)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_different_texts_never_share_an_encoding(left: list[str], right: list[str]) -> None:
    assert (ce(*left) == ce(*right)) == (left == right)


def test_joining_without_lengths_would_confuse_fields_which_this_encoding_does_not() -> None:
    assert "ab" + "c" == "a" + "bc"  # the naive variant
    assert ce("ab", "c") != ce("a", "bc")
    assert ce(None) != ce("")


def test_bytes_likes_encode_as_their_bytes() -> None:
    assert ce(bytearray(b"x"), memoryview(b"y")) == ce(b"x", b"y")  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [b"\x00", b"\x00\x00\x00\x05abc", b"\x00\x00\x00\x01a\x00\x00"])
def test_a_cut_encoding_is_refused(cut: bytes) -> None:
    with pytest.raises(FormatError, match="cut short"):
        ce_read(cut)


# --- exact bytes --------------------------------------------------------------------------------------------------


@given(st.text() | hostile_text())
@example("a\r\nb\x00\ud83d\ude00\udfff😀\u202e")
def test_any_text_comes_back_equal(text: str) -> None:
    encoded = encode_exact(text)
    assert encoded is not None
    assert encoded.encoding == "text"
    assert decode_exact(encoded.data, "text") == text


@given(st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=4))
def test_parts_come_back_equal_in_type_value_and_order_or_are_not_eligible(parts: list[Any]) -> None:
    encoded = encode_exact(parts)
    if encoded is not None:
        assert same_value(decode_exact(encoded.data, "parts"), parts)


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: 7,
        lambda: b"bytes",
        lambda: {"type": "text"},
        lambda: ("tuple",),
        lambda: [float("nan")],
        lambda: [float("inf")],
        lambda: [("tuple",)],
        lambda: [{1: "key"}],
        lambda: [{"a": {"b": (1,)}}],
        lambda: [b"bytes"],
        lambda: [{"set": {1}}],
        lambda: ["\ud83d\ude00"],
        lambda: type("Text", (str,), {})("subclass"),
        lambda: type("Parts", (list,), {})(),
        lambda: [type("Text", (str,), {})("subclass")],
        lambda: [10**5_000],
        lambda: nested(100_000),
    ],
)
def test_what_would_not_come_back_equal_is_not_eligible(make: Any) -> None:
    assert encode_exact(make()) is None


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_json_round_trip_alone_would_alter_what_this_check_refuses() -> None:
    for altered in (["\ud83d\ude00"], [("tuple",)], [{1: "key"}]):
        assert json.loads(json.dumps(altered)) != altered  # the naive variant loses it silently
        assert encode_exact(altered) is None


@contextmanager
def recursion_limit(limit: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("limit", [400, 1_000, 20_000])
def test_what_is_eligible_does_not_depend_on_the_recursion_limit(limit: int) -> None:
    with recursion_limit(limit):
        for depth in (NESTING_MAX + 1, 150, 330, 3_000):
            assert encode_exact(nested(depth - 1)) is None
            assert encode_exact([{"a": nested(depth - 3)}]) is None
        for content in (nested(NESTING_MAX - 1), [{"a": nested(NESTING_MAX - 3)}]):
            encoded = encode_exact(content)
            assert encoded is not None
            assert same_value(decode_exact(encoded.data, encoded.encoding), content)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="C code has a limit of its own from Python 3.12 on")
def test_a_json_round_trip_alone_depends_on_the_recursion_limit() -> None:
    def eligible() -> bool:
        try:
            return bool(json.loads(json.dumps(nested(700))))
        except RecursionError:
            return False

    with recursion_limit(500):
        refused = eligible()
    with recursion_limit(5_000):
        accepted = eligible()
    assert (refused, accepted) == (False, True)  # the naive variant


def test_values_of_any_depth_are_compared() -> None:
    assert same_value(nested(100_000), nested(100_000))
    assert not same_value(nested(100_000), nested(99_999))
    assert not same_value([nested(5_000), 1], [nested(5_000), True])


def test_what_holds_itself_or_one_thing_many_times_is_looked_at_once() -> None:
    circular: list[Any] = []
    circular += [circular, circular]
    wide: list[Any] = ["x"]
    for _ in range(NESTING_MAX + 10):
        wide = [wide, wide]
    assert encode_exact(circular) is None
    assert encode_exact(wide) is None
    assert same_value(deepcopy(circular), circular)
    assert same_value(deepcopy(wide), wide)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        ([1], [True]),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1], [1, 2]),
        ({"a": 1}, {}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([[1, 2]], [[2, 2]]),
        ("x", "y"),
    ],
)
def test_equal_values_of_other_type_or_order_are_not_the_same(left: Any, right: Any) -> None:
    assert not same_value(left, right)
    assert same_value(left, left)
    assert same_value(right, right)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [(b"\xff", "text"), (b"{}", "parts"), (b"[", "parts"), (b"x", "pickle"), (b"[" * 200_000, "parts")],
)
def test_bytes_that_are_not_in_their_encoding_are_refused(data: bytes, encoding: str) -> None:
    with pytest.raises(FormatError, match="An original is"):
        decode_exact(data, encoding)


# --- records ------------------------------------------------------------------------------------------------------


def test_nothing_that_holds_evidence_shows_it_in_its_repr() -> None:
    canary = "canary-4711"
    encoded = encode_exact(canary)
    shown = [
        encoded,
        ToolCall("c", "t", canary),
        Facts(("t",), text=canary),
        Restored(canary, None, hashlib.sha256(canary.encode()).hexdigest(), 1),  # type: ignore[arg-type]
    ]
    assert canary not in repr(shown)
    assert hashlib.sha256(canary.encode()).hexdigest() not in repr(shown), (
        "a digest tells who can guess what it is of"
    )


def test_a_receipt_says_what_each_later_request_is_shorter_by() -> None:
    receipt = Receipt("00" * 16, (Target("r1", "ok"), Target("r2", "ok")), 1_000, 100, False)
    assert receipt.result_ids == ("r1", "r2")
    assert receipt.tokens_saved == 900
