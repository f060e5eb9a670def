"""A batch is understood in one way or refused with the place; every target gets exactly its status."""

import itertools
import json
from typing import Any

import pytest
from hostile import HIDDEN, hostile_ids, hostile_text
from hypothesis import example, given
from hypothesis import strategies as st

from evidence_archive.batch import Candidate, Item, RestoreRequest, decide, pairs, parse_batch, parse_restore
from evidence_archive.errors import BatchRejectedError, FormatError
from evidence_archive.model import Target

MIB = 1024 * 1024


def judged(items: list[Item], candidates: dict[str, Candidate], last_id: str | None = "r9") -> tuple[Target, ...]:
    return decide(items, candidates, note_chars_max=50, original_bytes_max=MIB, last_id=last_id)


def status(words: str = "words", **facts: Any) -> str:
    return judged([Item("r7", words)], {"r7": Candidate(**{"tokens": 100, "note_tokens": 10} | facts)})[0].status


# --- parsing a batch ----------------------------------------------------------------------------------------------

R3 = {"id": "r3", "note": "n"}


@pytest.mark.parametrize("arguments", [{"batch": [R3]}, {"batch": R3}, R3], ids=["a list", "one object", "bare"])
def test_a_batch_of_one_is_read_as_text_and_as_an_object(arguments: dict[str, Any]) -> None:
    assert parse_batch(arguments, items_max=1) == (Item("r3", "n"),)
    assert parse_batch(json.dumps(arguments), items_max=1) == (Item("r3", "n"),)


@given(st.lists(st.tuples(st.integers(1, 10**18 - 1), hostile_text()), min_size=1, max_size=5))
def test_what_was_named_is_what_is_understood(named: list[tuple[int, str]]) -> None:
    batch = [{"id": f"r{number}", "note": words} for number, words in named]
    expected = tuple(Item(item["id"], item["note"]) for item in batch)
    assert parse_batch({"batch": batch}, items_max=5) == expected
    assert parse_batch(json.dumps({"batch": batch}, ensure_ascii=False), items_max=5) == expected
    assert pairs([(f"r{number}", words) for number, words in named], items_max=5) == expected


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        *[
            (bad, "one JSON object")
            for bad in ("", "{", "null", "[]", "7", '"r7"', "[" * 100_000, '{"batch":' * 100_000)
        ],
        *[
            (bad, "one JSON object")
            for bad in (None, 7, [R3], b"{}", ("r3", "n"), '{"batch": [1,]}', "{'batch': []}")
        ],
        ('{"batch": [], "batch": []}', "same key twice"),
        ('{"batch": [{"id": "r1", "id": "r2", "note": "n"}]}', "same key twice"),
        ('{"batch": NaN}', "NaN or Infinity"),
        ('{"batch": ' + "7" * 900_000 + "}", "more than 20 digits"),
        ('{"batch": "' + "x" * MIB + '"}', "longer than 1048576"),
        ({}, 'exactly the key "batch"'),
        ({"batch": [R3], "x": 1}, 'exactly the key "batch"'),
        ({"batch": [R3], "id": "r3"}, 'exactly the key "batch"'),
        ({1: 2}, 'exactly the key "batch"'),
        ({"id": "r3"}, "arguments must be"),
        ({"id": "r3", "note": "n", "x": 1}, "arguments must be"),
        ({"id": 3, "note": "n"}, r"arguments\.id must"),
        ({"batch": json.dumps([R3])}, "batch must be a list"),
        ({"batch": None}, "batch must be a list"),
        ({"batch": {"id": "r3"}}, "^batch must be an object"),
        ({"batch": [R3, "r4"]}, r"^batch\[1\] must"),
        ({"batch": [R3, {"id": "r4"}]}, r"^batch\[1\] must"),
        ({"batch": [R3 | {"x": 1}]}, r"^batch\[0\] must"),
        ({"batch": [R3, {"id": "r4", "note": None}]}, r"^batch\[1\]\.note must"),
        ({"batch": [{"id": "r4", "note": ["n"]}]}, r"^batch\[0\]\.note must"),
        *[
            ({"batch": [{"id": bad, "note": "n"}]}, r"^batch\[0\]\.id must be a string such as")
            for bad in (
                7,
                7.0,
                True,
                None,
                ["r7"],
                "7",
                "R7",
                "r0",
                "r07",
                "r",
                " r7",
                "r7\n",
                "r\u0667",
                "r" + "9" * 19,
            )
        ],
    ],
)
def test_arguments_that_cannot_be_used_are_refused_by_their_place(arguments: object, place: str) -> None:
    with pytest.raises(FormatError, match=place) as raised:
        parse_batch(arguments, items_max=10)
    assert raised.value.__cause__ is None
    assert len(str(raised.value)) < 200


@given(hostile_text() | hostile_text().map(lambda text: json.dumps({"batch": [{"id": text, "note": text}]})))
@example('{"batch": [{"id": "secret", "note": "secret"}]')
def test_any_text_is_understood_or_refused_and_an_error_repeats_none_of_it(text: str) -> None:
    with pytest.raises((FormatError, BatchRejectedError)) as raised:
        parse_batch(text, items_max=10)
    assert "secret" not in str(raised.value)
    assert raised.value.__context__ is None or not hasattr(raised.value.__context__, "doc")


def test_the_same_check_catches_an_error_that_carries_the_arguments() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads('{"note": "secret"')
    assert "secret" in raised.value.doc


@pytest.mark.parametrize(("count", "reason"), [(0, "empty"), (3, "too_many"), (100, "too_many")])
def test_an_empty_batch_and_one_too_long_are_rejected_as_a_whole(count: int, reason: str) -> None:
    with pytest.raises(BatchRejectedError) as by_model:
        parse_batch({"batch": [R3] * count}, items_max=2)
    with pytest.raises(BatchRejectedError) as by_program:
        pairs([("r3", "n")] * count, items_max=2)
    assert by_model.value.reason == by_program.value.reason == reason
    assert by_model.value.targets == ()


def test_an_endless_iterable_of_pairs_is_too_many() -> None:
    with pytest.raises(BatchRejectedError, match="at most 5"):
        pairs(itertools.repeat(("r1", "n")), items_max=5)


@pytest.mark.parametrize(
    "pair", ["r1", ("r1",), ("r1", "n", "x"), ("1", "n"), (1, "n"), ("r1", None), None, {"r1", "n"}]
)
def test_a_pair_that_is_none_is_refused_by_its_place(pair: Any) -> None:
    with pytest.raises(FormatError, match=r"^batch\[1\]"):
        pairs([("r2", "n"), pair], items_max=5)


def test_a_list_of_two_is_a_pair() -> None:
    assert pairs([["r1", "n"]], items_max=5) == (Item("r1", "n"),)  # type: ignore[list-item]


def test_no_repr_shows_a_note_a_pattern_or_a_reason() -> None:
    shown = repr(Item("r1", "secret")) + repr(RestoreRequest("r1", None, "secret", None, "/secret", "secret"))
    assert "secret" not in shown


# --- parsing a restore --------------------------------------------------------------------------------------------

RESTORE = {"id": "r7", "lines": None, "pattern": "x", "context_lines": 3, "pointer": None, "reason": "why"}


def test_a_restore_is_read_as_text_and_as_an_object_and_keys_may_be_absent() -> None:
    assert parse_restore(RESTORE) == parse_restore(json.dumps(RESTORE))
    assert parse_restore(RESTORE) == RestoreRequest("r7", None, "x", 3, None, "why")
    assert parse_restore({"id": "r7"}) == RestoreRequest("r7")
    assert parse_restore(RESTORE | {"reason": "x" * 2_000}).reason == "x" * 2_000
    assert parse_restore({"id": "r7", "pointer": ""}).pointer == ""


@pytest.mark.parametrize(
    ("change", "place"),
    [
        *[
            ({"id": bad}, "^id must be a string such as")
            for bad in (7, None, "", "7", "r7 ", ["r7"], "r" + "9" * 2_000)
        ],
        *[({key: 7}, f"^{key} must be a string or null") for key in ("lines", "pattern", "pointer", "reason")],
        *[({"context_lines": bad}, "^context_lines must") for bad in (True, 2.0, "2", [2])],
        ({"reason": "x" * 2_001}, "^reason must have at most 2000"),
        ({"other": None}, "may have lines, pattern"),
    ],
)
def test_a_malformed_restore_is_refused_by_the_name_of_its_argument(change: dict[str, Any], place: str) -> None:
    for arguments in (RESTORE | change, json.dumps(RESTORE | change)):
        with pytest.raises(FormatError, match=place):
            parse_restore(arguments)


@pytest.mark.parametrize("arguments", ["", "[]", None, "r7", '{"id": "r7", "id": "r8"}', "{}", {}, {"lines": "1"}])
def test_a_restore_without_one_object_and_one_id_is_refused(arguments: object) -> None:
    with pytest.raises(FormatError):
        parse_restore(arguments)


# --- the decision -------------------------------------------------------------------------------------------------

HURDLES: list[tuple[str, dict[str, Any]]] = [
    ("already_archived", {"archived": True}),
    ("not_eligible", {"orphan": True}),
    ("unread", {"read": False}),
    ("protected", {"protected": ("rule-1", "signed record")}),
    ("blank_note", {"words": " \n\u200b\ufeff"}),
    ("note_too_long", {"words": "x" * 51}),
    ("not_smaller", {"note_tokens": 100}),
]


def test_a_target_that_nothing_stands_against_is_ok() -> None:
    assert status() == "ok"
    assert status(words="x" * 50, note_tokens=99, size_bytes=MIB, own="copy") == "ok"


@pytest.mark.parametrize(("expected", "facts"), HURDLES, ids=[name for name, _ in HURDLES])
def test_each_hurdle_alone_gives_its_status(expected: str, facts: dict[str, Any]) -> None:
    assert status(**facts) == expected


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(HURDLES, 2)), ids=lambda hurdle: hurdle[0])
def test_the_earlier_of_two_statuses_counts(first: tuple[str, Any], second: tuple[str, Any]) -> None:
    assert status(**second[1] | first[1]) == first[0]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"orphan": True}, "answers no tool call"),
        ({"own": "receipt"}, "an answer of the archive itself (receipt)"),
        ({"own": "rejection"}, "an answer of the archive itself (rejection)"),
        ({"own": "error"}, "an answer of the archive itself (error)"),
        ({"in_view": False}, "no longer in the conversation"),
        ({"exact": False}, "come back equal"),
        ({"text_allowed": False}, "may not hold a text"),
        ({"size_bytes": MIB + 1}, "larger than 1 MiB, the limit of one original (original_bytes_max"),
    ],
)
def test_what_can_never_be_archived_says_why(facts: dict[str, Any], said: str) -> None:
    (target,) = judged([Item("r7", "words")], {"r7": Candidate(**{"tokens": 100} | facts)})
    assert target.status == "not_eligible"
    assert said in target.reason


def test_all_targets_are_examined_in_order_with_their_tokens_and_reasons() -> None:
    items = [Item(f"r{n}", "words") for n in (1, 2, 3, 99, 2)] + [Item("r4", ""), Item("r98", "a"), Item("r98", "b")]
    known = {
        "r1": Candidate(tokens=10, note_tokens=1),
        "r2": Candidate(tokens=20),
        "r3": Candidate(tokens=30, protected=("basis", "it rests on it")),
        "r4": Candidate(tokens=40, archived=True),
    }
    targets = judged(items, known)
    assert [(target.result_id, target.status, target.tokens) for target in targets] == [
        ("r1", "ok", 10),
        ("r2", "duplicate", 20),
        ("r3", "protected", 30),
        ("r99", "unknown", 0),
        ("r2", "duplicate", 20),
        ("r4", "already_archived", 40),
        ("r98", "unknown", 0),
        ("r98", "unknown", 0),
    ]
    assert targets[0].reason == ""
    assert targets[1].reason == "The batch names this result 2 times; name it once."
    assert targets[2].reason == "Rule basis keeps it in view: it rests on it; leave it out of the batch."
    assert "the last one is r9" in targets[3].reason
    assert "restore r4" in targets[5].reason
    assert "none was issued yet" in judged(items, {}, None)[0].reason


def test_a_duplicate_outranks_what_stands_against_the_result() -> None:
    items = [Item("r7", "words"), Item("r7", "other words")]
    assert {target.status for target in judged(items, {"r7": Candidate(archived=True)})} == {"duplicate"}


@given(
    st.text(st.sampled_from([c for c in (*HIDDEN, *" \n\t\u3000\u2800\u00a0\u0301\ufe0f\u180e") if c != "\uffff"]))
)
def test_a_note_of_hidden_characters_only_is_blank(words: str) -> None:
    assert status(words=words) == "blank_note"


def test_the_same_check_catches_a_plain_strip() -> None:
    assert "\u200b\u2060".strip() != "", "a plain strip would take this for words"
    assert status(words="\u200bx\u2060") == "ok"
    assert status(words="\U0001f600") == "ok"
    assert status(words="...") == "ok"


def test_the_reasons_about_a_note_name_both_sizes() -> None:
    (long,) = judged([Item("r7", "x" * 51)], {"r7": Candidate(tokens=100)})
    assert "51 characters, the limit is 50" in long.reason
    (large,) = judged([Item("r7", "x")], {"r7": Candidate(tokens=100, note_tokens=120)})
    assert "120 tokens, the original 100" in large.reason


@given(st.lists(st.tuples(hostile_ids(), hostile_text()), max_size=5))
def test_no_note_finds_its_way_into_a_reason_and_every_item_gets_a_target(named: list[tuple[str, str]]) -> None:
    items = [Item(result_id, f"secret{words}") for result_id, words in named]
    known = {item.id: Candidate(tokens=5, note_tokens=9) for item in items[::2]}
    targets = judged(items, known)
    assert [target.result_id for target in targets] == [item.id for item in items]
    assert not any("secret" in target.reason for target in targets)
    assert all(target.reason for target in targets)
