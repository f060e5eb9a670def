"""References: one text for each place, whoever writes it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.errors import FormatError
from evidence_archive.excerpt import WHOLE, Selector
from evidence_archive.references import ARTIFACT_CHARS_MAX, Reference, parse_reference

numbers = st.integers(1, 10**17)
steps = st.text(st.characters(exclude_characters="~/", exclude_categories=["Cs"]), max_size=12)
selectors = st.one_of(
    st.just(WHOLE),
    st.tuples(numbers, numbers).map(lambda pair: Selector(lines=(min(pair), max(pair)))),
    st.tuples(numbers, numbers).map(lambda pair: Selector(byte_range=(min(pair) - 1, max(pair)))),
    st.lists(steps, min_size=1, max_size=4).map(
        lambda names: Selector(pointer="".join(f"/{name}" for name in names))
    ),
)
artifacts = st.lists(st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,9}", fullmatch=True), min_size=1, max_size=5).map(
    "/".join
)
references = st.one_of(
    st.builds(Reference, st.integers(1, 10**9), st.none(), selectors),
    st.builds(Reference, st.none(), artifacts, selectors),
)


@given(references)
def test_what_is_written_is_read_as_the_same_reference(reference: Reference) -> None:
    assert parse_reference(str(reference)) == reference


@given(st.one_of(st.text(max_size=30), st.from_regex(r"(r\d{1,3}|artifact:[a-z./]{1,9})#[LB/]?[-L0-9a-z]{0,9}")))
def test_whatever_is_read_has_no_other_text(text: str) -> None:
    with suppress(FormatError):
        assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("r12", Reference(12)),
        ("r12#L40-L44", Reference(12, None, Selector(lines=(40, 44)))),
        ("r12#L7", Reference(12, None, Selector(lines=(7, 7)))),
        ("r12#B0-4095", Reference(12, None, Selector(byte_range=(0, 4095)))),
        ("r12#/items/3", Reference(12, None, Selector(pointer="/items/3"))),
        ("artifact:report.md#L12", Reference(None, "report.md", Selector(lines=(12, 12)))),
        ("artifact:workspace/avg.json", Reference(None, "workspace/avg.json")),
    ],
)
def test_the_forms_of_a_reference(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "r0",
            "r01",
            "R1",
            "r1 ",
            " r1",
            "12",
            "r1#",
            "r1#L0",
            "r1#L2-L1",
            "r1#L1-L1",
            "r1#L1-2",
            "r1#l1",
            "r1#B2-1",
        ),
        *("r1#B0", "r1#items", "r1#~2", "r1#/~2", "r1#L1#L2", "artifact:", "artifact:/etc/passwd", "artifact:a//b"),
        *(
            "artifact:../a",
            "artifact:a/..",
            "artifact:a/./b",
            "artifact:a b",
            "artifact:a\n",
            "artifact:a\\b",
            "artifact:a\u200bb",
            "artifact:\u202ea",
            "artifact:\ud800",
            "other:a",
        ),
        f"artifact:{'a' * (ARTIFACT_CHARS_MAX + 1)}",
        None,
        12,
        ["r1"],
    ],
)
def test_what_is_no_reference_is_refused_in_one_sentence(text: object) -> None:
    with pytest.raises(FormatError):
        parse_reference(text)
