"""A part of an original is exact, says how much of how much it is, and costs linear time."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hostile import hostile_text
from hypothesis import assume, example, given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError
from evidence_archive.excerpt import WHOLE, Excerpt, Selector, excerpt, line_count, parse_selector, value_at

BIG = 5_000_000


def cut(text: str, matches_max: int = 200, **arguments: Any) -> Excerpt:
    return excerpt(text, parse_selector(**arguments), matches_max=matches_max)


def selectors() -> st.SearchStrategy[Selector]:
    number = st.integers(1, 10**18 - 1)
    return st.one_of(
        st.tuples(number, number).map(lambda ends: Selector(lines=(min(ends), max(ends)))),
        st.builds(
            lambda pattern, context: Selector(pattern=pattern, context_lines=context),
            hostile_text().map(lambda text: text[:1_000] or "x"),
            st.integers(0, 50),
        ),
        st.lists(hostile_text().map(lambda text: text[:100]), max_size=4)
        .map(
            lambda names: Selector(
                pointer="".join("/" + n.replace("~", "~0").replace("/", "~1") for n in names)[:990]
            )
        )
        .filter(lambda selector: not (selector.pointer or "").endswith("~")),
    )


# --- selectors ----------------------------------------------------------------------------------------------------


def test_nothing_given_is_the_whole_original() -> None:
    assert parse_selector() == WHOLE
    assert WHOLE.is_whole
    assert WHOLE.canonical() is None
    assert cut("a\r\nb") == Excerpt("a\r\nb", "whole original, 4 characters")


def test_each_selector_is_read_in_its_documented_form() -> None:
    assert parse_selector(lines="10-40") == Selector(lines=(10, 40))
    assert parse_selector(lines="10") == Selector(lines=(10, 10))
    assert parse_selector(pattern="x") == Selector(pattern="x", context_lines=2)
    assert parse_selector(pattern="x", context_lines=0) == Selector(pattern="x", context_lines=0)
    assert parse_selector(pointer="") == Selector(pointer="")
    assert not parse_selector(pointer="").is_whole
    assert parse_selector(pointer="/a~1b/~0/3") == Selector(pointer="/a~1b/~0/3")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"lines": "1", "pattern": "x"}, "at most one"),
        ({"pattern": "x", "pointer": ""}, "at most one"),
        ({"lines": "1", "pattern": "x", "pointer": ""}, "at most one"),
        *[
            ({"lines": bad}, "^lines ")
            for bad in ("", "0", "0-3", "3-2", "-3", "1-", "1-2-3", " 1", "1\n", "01", "\u0661")
        ],
        *[({"lines": bad}, "^lines ") for bad in ("9" * 19, "9" * 5_000, 7, True, [1, 2], b"1")],
        *[({"pattern": bad}, "^pattern ") for bad in ("", "x" * 1_001, 7, b"x", ["x"])],
        *[({"pattern": "x", "context_lines": bad}, "^context_lines ") for bad in (-1, 51, True, 2.0, "2")],
        ({"context_lines": 2}, "^context_lines "),
        ({"lines": "1", "context_lines": 0}, "^context_lines "),
        *[({"pointer": bad}, "^pointer ") for bad in ("a", "#/a", "/~", "/~2", "/a~", "/" * 1_001, 7, b"", ["a"])],
    ],
)
def test_a_malformed_selector_is_refused_by_the_name_of_its_argument(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(FormatError, match=named) as raised:
        parse_selector(**arguments)
    assert len(str(raised.value)) < 250


@given(selectors())
@example(Selector(pattern="\ud83d\ude00\\\n\x00\u2028'", context_lines=50))
@example(Selector(pointer=""))
def test_the_canonical_text_of_a_selector_is_one_ascii_line_and_comes_back_equal(selector: Selector) -> None:
    text = selector.canonical()
    assert text is not None
    assert text.isascii()
    assert text.isprintable()
    assert Selector.from_canonical(text) == selector


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whole",
        "lines:",
        "lines:3",
        "lines:3-2",
        "lines:03-4",
        "pattern:x",
        "pattern:2:",
        "pattern:02:x",
        "pattern:51:x",
        "pattern:2:\u00e9",
        "pattern:2:\\q",
        "pattern:2:\\xE9",
        "pattern:2:\\x41",
        "pattern:2:\\Uffffffff",
        "pattern:" + "9" * 5_000 + ":x",
        "pointer:a",
        "LINES:1-2",
    ],
)
def test_a_stored_selector_that_was_never_written_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="stored selector"):
        Selector.from_canonical(text)


def test_no_repr_shows_a_pattern_a_pointer_or_a_part() -> None:
    shown = repr(Selector(pattern="secret")) + repr(Selector(pointer="/secret")) + repr(Excerpt("secret", "x"))
    assert "secret" not in shown


# --- lines --------------------------------------------------------------------------------------------------------


@given(hostile_text(), st.data())
@example("a\r\nb\u2028c\x0bd\n", None)
def test_line_ranges_that_partition_a_text_join_to_it_exactly(text: str, data: st.DataObject | None) -> None:
    total = line_count(text)
    assume(total > 0)
    middle = data.draw(st.integers(1, total)) if data else 1
    parts = [cut(text, lines=f"1-{middle}")]
    if middle < total:
        parts.append(cut(text, lines=f"{middle + 1}-{total}"))
    assert "".join(part.text for part in parts) == text
    assert all(part.what.endswith(f" of {total}") for part in parts)


def test_the_partition_check_catches_lines_split_at_every_kind_of_line_end() -> None:
    text = "a\r\nb\u2028c\x0bd"
    assert line_count(text) == 2
    assert len(text.splitlines()) == 4
    assert "\n".join(text.splitlines()) != text


def test_lines_keep_their_line_ends_and_say_of_how_many() -> None:
    text = "1\r\n2\n\n4"
    assert cut(text, lines="1") == Excerpt("1\r\n", "line 1 of 4")
    assert cut(text, lines="2-3") == Excerpt("2\n\n", "lines 2-3 of 4")
    assert cut(text, lines="4-4") == Excerpt("4", "line 4 of 4")
    assert cut(text, lines="1-4").text == text


@pytest.mark.parametrize(
    ("text", "lines", "total"), [("a\nb\n", "3", 2), ("a", "1-2", 1), ("", "1", 0), ("x", "9" * 18, 1)]
)
def test_lines_out_of_range_are_an_error_that_names_how_many_there_are(text: str, lines: str, total: int) -> None:
    with pytest.raises(FormatError, match=f"has {total} lines"):
        cut(text, lines=lines)


# --- patterns -----------------------------------------------------------------------------------------------------


def test_matches_come_with_numbers_and_context_in_groups() -> None:
    text = "a\nfoo\nb\nc\nd\nfoo foo\r\ne\nfoo\n"
    found = cut(text, pattern="foo", context_lines=1)
    assert found.text == "1-a\n2:foo\n3-b\n--\n5-d\n6:foo foo\r\n7-e\n8:foo"
    assert found.what == "3 of 3 matches of a pattern in 8 lines, 1 line of context around each"
    assert cut(text, pattern="foo", context_lines=0).text == "2:foo\n--\n6:foo foo\r\n--\n8:foo"
    assert cut(text, pattern="foo").text.count("--") == 0
    assert cut(text, pattern="foo").what.endswith("2 lines of context around each")


def test_a_pattern_is_literal_and_may_span_lines() -> None:
    assert cut("axb\na.b", pattern="a.b", context_lines=0).text == "2:a.b"
    found = cut("1\nend\nbegin\n4\nend\nbegin", pattern="end\nbegin", context_lines=0)
    assert found.text == "2:end\n3:begin\n--\n5:end\n6:begin"
    assert cut("a\nb\na", pattern="a\n", context_lines=0).text == "1:a"
    assert cut("a\n\nb\n", pattern="\n", context_lines=0).text == "1:a\n2:\n3:b"


def test_matches_beyond_the_bound_are_counted_not_dropped_in_silence() -> None:
    found = cut("x\n" * 12, pattern="x", context_lines=0, matches_max=5)
    assert found.what.startswith("5 of 12 matches")
    assert found.text.count("x") == 5


def test_no_match_is_said() -> None:
    assert cut("a\nb", pattern="z") == Excerpt("", "0 matches of a pattern in 2 lines")


def naive_matches(text: str, pattern: str, context: int) -> tuple[str, int]:
    """An oracle for patterns within a line: lines by splitting, groups by looking at neighbours."""
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    hits = {i for i, line in enumerate(lines) if pattern in line}
    wanted = [i for i in range(len(lines)) if any(abs(i - hit) <= context for hit in hits)]
    out: list[str] = []
    for at, i in enumerate(wanted):
        out += ["--"] if at and wanted[at - 1] != i - 1 else []
        out.append(f"{i + 1}{':' if i in hits else '-'}{lines[i]}")
    return "\n".join(out), len(hits)


@given(
    st.text("ab\n\r", max_size=60) | hostile_text(), st.sampled_from(["a", "ab", "aa", "\r", "r7"]), st.integers(0, 3)
)
def test_matches_agree_with_a_search_line_by_line(text: str, pattern: str, context: int) -> None:
    expected, count = naive_matches(text, pattern, context)
    found = cut(text, pattern=pattern, context_lines=context, matches_max=1_000)
    assert found.text == expected
    assert found.what.startswith(f"{count} of {count} matches" if count else "0 matches")


@given(st.text("ab\n", max_size=40), st.text("ab\n", min_size=1, max_size=4))
def test_a_pattern_over_lines_is_found_whenever_the_text_contains_it(text: str, pattern: str) -> None:
    found = cut(text, pattern=pattern, context_lines=0)
    assert (pattern in text) == (found.text != "") == (not found.what.startswith("0 "))


# --- pointers -----------------------------------------------------------------------------------------------------

DOCUMENT = r"""{"items": [1.10, {"id": 12345678901234567890123}, "a\u00e9\n\"", [], {}, null, true, false, NaN,
 -Infinity], "a/b": {"~": 1E+2, "": "empty"}, "m~n": -0, "twice": 1, "twice": 2}"""


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/items/0", "1.10"),
        ("/items/1", '{"id":12345678901234567890123}'),
        ("/items/1/id", "12345678901234567890123"),
        ("/items/2", '"a\u00e9\\n\\""'),
        ("/items/3", "[]"),
        ("/items/4", "{}"),
        ("/items/5", "null"),
        ("/items/6", "true"),
        ("/items/7", "false"),
        ("/items/8", "NaN"),
        ("/items/9", "-Infinity"),
        ("/a~1b", '{"~":1E+2,"":"empty"}'),
        ("/a~1b/~0", "1E+2"),
        ("/a~1b/", '"empty"'),
        ("/m~0n", "-0"),
    ],
)
def test_a_pointer_gives_the_json_of_its_value_with_numbers_as_written(pointer: str, expected: str) -> None:
    assert cut(DOCUMENT, pointer=pointer) == Excerpt(expected, f"pointer {pointer}")


def test_tilde_one_is_unescaped_before_tilde_zero() -> None:
    assert cut('{"~1": 5, "/": 6}', pointer="/~01").text == "5"


def test_the_same_check_catches_a_plain_parser() -> None:
    document = json.loads(DOCUMENT)
    assert json.dumps(document["items"][0]) != "1.10"
    assert json.dumps(document["a/b"]["~"]) != "1E+2"
    assert document["twice"] == 2, "a plain parser drops a member in silence"


def test_the_empty_pointer_gives_the_whole_document_with_repeated_names() -> None:
    found = cut(DOCUMENT, pointer="")
    assert found.what == "whole document as JSON"
    assert found.text.endswith('"m~n":-0,"twice":1,"twice":2}')
    assert cut(" 7 ", pointer="").text == "7"


@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        ("/secret", "Step 1 of 1 of the pointer names a member that the object does not have"),
        ("/items/10", "Step 2 of 2 .* index below 10"),
        ("/items/-", "Step 2 of 2 .* index below 10"),
        ("/items/01", "Step 2 of 2 .* index below 10"),
        ("/items/\u0661", "Step 2 of 2 .* index below 10"),
        ("/items/" + "9" * 900, "Step 2 of 2 .* index below 10"),
        ("/items/2/secret/x", "Step 3 of 4 .* neither"),
        ("/items/5/x", "Step 3 of 3 .* neither"),
        ("/items/0/x", "Step 3 of 3 .* neither"),
        ("/twice", "2 times"),
    ],
)
def test_a_pointer_to_nothing_names_the_step_that_failed_and_no_content(pointer: str, said: str) -> None:
    with pytest.raises(FormatError, match=said) as raised:
        cut(DOCUMENT, pointer=pointer)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "secret", "{", "[1,]", '{"a":1} x', "\ufeff{}", "[" * 200_000, '{"a":' * 200_000]
)
def test_what_is_not_json_or_too_deep_is_refused_without_keeping_the_text(text: str) -> None:
    with pytest.raises(FormatError, match="not JSON, or nested too deep") as raised:
        cut(text, pointer="/a")
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def json_values() -> st.SearchStrategy[Any]:
    leaves = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | hostile_text()
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_text(), inner, max_size=3),
        max_leaves=8,
    )


def exactly(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, object_pairs_hook=tuple)


@given(json_values(), st.booleans(), st.sampled_from([None, 1]))
def test_the_document_a_pointer_gives_is_equal_in_value_and_compact(
    value: Any, ascii_only: bool, indent: Any
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    found = cut(text, pointer="").text
    assert exactly(found) == exactly(text)
    if ascii_only:
        found.encode()
        assert cut(found, pointer="").text == found


@given(st.dictionaries(hostile_text(), hostile_text(), min_size=1, max_size=4), st.data())
def test_every_member_of_an_object_can_be_pointed_at(members: dict[str, str], data: st.DataObject) -> None:
    text = json.dumps(members, ensure_ascii=False)
    name = data.draw(st.sampled_from(sorted(members)))
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    assume(len(pointer) <= 1_000)
    assert json.loads(cut(text, pointer=pointer).text) == members[name]


def test_lone_surrogates_of_a_json_text_come_back_as_escapes_and_unjoined_pairs_stay_apart() -> None:
    assert cut(r'["\ud83d", "\ude00x", "\ud83d\ude00"]', pointer="").text == '["\\ud83d","\\ude00x","\U0001f600"]'
    apart = '"\ud83d\ude00"'
    assert json.loads(cut(apart, pointer="").text) == json.loads(apart) == "\ud83d\ude00"


def test_a_million_digits_come_back_digit_for_digit() -> None:
    digits = "7" * 1_000_000
    assert cut(f'{{"n": {digits}}}', pointer="/n").text == digits
    with pytest.raises(ValueError, match="digits"):
        json.loads(digits)


# --- size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "arguments", "expected"),
    [
        (lambda: "x" * BIG, {"lines": "1"}, "line 1 of 1"),
        (lambda: "\n" * BIG, {"lines": f"2-{BIG}"}, f"lines 2-{BIG} of {BIG}"),
        (lambda: "ab\n" * (BIG // 3), {"pattern": "b"}, f"200 of {BIG // 3} matches"),
        (lambda: "a" * BIG, {"pattern": "a" * 999 + "b"}, "0 matches"),
        (lambda: "a" * BIG, {"pattern": "b" + "a" * 999}, "0 matches"),
        (lambda: "[" + "1," * (BIG // 8) + "2]", {"pointer": f"/{BIG // 8}"}, "pointer"),
    ],
    ids=["one line", "line feeds", "a match a line", "near misses", "near misses at the front", "a long array"],
)
def test_five_million_characters_are_ordinary(
    make: Callable[[], str], arguments: dict[str, Any], expected: str
) -> None:
    assert cut(make(), **arguments).what.startswith(expected)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("", {"a": [10, {"b": 20}], "": 1}), ("/a/0", 10), ("/a/1/b", 20), ("/", 1)],
)
def test_a_value_is_found_in_what_json_made(pointer: str, value: object) -> None:
    assert value_at({"a": [10, {"b": 20}], "": 1}, pointer) == value


@pytest.mark.parametrize("pointer", ["/b", "/a/2", "/a/01", "/a/-", "/a/0/b", "a"])
def test_where_nothing_is_at_a_pointer_it_is_said(pointer: str) -> None:
    with pytest.raises(FormatError):
        value_at({"a": [10, {"b": 20}]}, pointer)
