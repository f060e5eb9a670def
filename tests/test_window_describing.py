"""Notes that the host writes: they describe, they keep names, and they fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.window.describing import IDENTIFIERS_MAX, described, identifiers

LOG = (
    "2026-11-30T10:00:00Z start of run 7\n"
    "WARNING: disk is nearly full\n"
    "ERROR OPS-4711 cannot open src/app/main.py:42\n"
    "retry 3 of 5 failed\n"
    "done\n"
)


def note(text: str, chars_max: int = 1_000, arguments: object = '{"q": "x"}') -> str:
    return described(text, tool="logs.search", arguments=arguments, chars_max=chars_max)


def test_a_log_is_described_by_its_size_its_errors_its_names_and_both_ends() -> None:
    told = note(LOG)
    assert told.startswith('Executed logs.search({"q": "x"}): 5 lines, ')
    assert "errors: 2, of warnings: 1." in told
    assert "OPS-4711, src/app/main.py:42, 2026-11-30T10:00:00Z" in told
    assert "Begins: 2026-11-30T10:00:00Z start of run 7" in told
    assert told.endswith("Ends: done")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (json.dumps({"at": 1, "name": "a"}), "JSON object with keys at, name."),
        (json.dumps({"id": 1, "ok": True, "error": None}), "keys id, ok, error. It says: ok true, error null, id 1."),
        (
            json.dumps({"status": "p" * 90, "result": [1], "state": "a\nb"}),
            f'It says: status "{"p" * 38}…, state "a\\nb".',
        ),
        (json.dumps([{"id": 1}, {"id": 2, "at": 3}]), "JSON list of 2, objects with keys id, at."),
        (json.dumps([1, 2, 3]), "JSON list of 3."),
        (json.dumps({}), "JSON object with no keys."),
        (json.dumps({f"k{at:02}": at for at in range(20)}), "k11 and 8 more."),
        ("name,age\na,1\nb,2\n", "Table of 2 rows with columns name, age."),
        ("name\tage\na\t1\nb\t2\n", "Table of 2 rows with columns name, age."),
        ("| name | age |\n|---|---|\n| a | 1 |\n", "Table of 1 rows with columns name, age."),
    ],
)
def test_data_is_described_by_its_keys_or_columns(text: str, shape: str) -> None:
    assert shape in note(text)


@pytest.mark.parametrize("text", ["one, two\nthree\nfour, five, six\n", "{broken", "[" * 100_000, "a,b\n1,2\n"])
def test_what_only_looks_like_data_is_described_as_text(text: str) -> None:
    assert "Table" not in note(text)
    assert "JSON" not in note(text)


@given(
    st.text(max_size=600),
    st.integers(100, 600),
    st.one_of(st.text(max_size=300), st.dictionaries(st.text(), st.text())),
)
def test_a_note_is_never_longer_than_asked_and_the_same_every_time(
    text: str, chars_max: int, arguments: object
) -> None:
    told = note(text, chars_max, arguments)
    assert 0 < len(told) <= chars_max
    assert told == note(text, chars_max, arguments)


@given(st.text(max_size=2_000))
def test_names_are_few_and_stand_in_the_text(text: str) -> None:
    found = identifiers(text)
    assert len(found) <= IDENTIFIERS_MAX
    assert len(set(found)) == len(found)
    assert all(name.rstrip("…") in text for name in found)


def test_names_on_lines_that_speak_of_errors_come_first() -> None:
    text = "".join(f"OPS-{at} is fine\n" for at in range(100)) + "error in OPS-777\n"
    assert identifiers(text)[0] == "OPS-777"


@pytest.mark.parametrize("text", ["see ../src/a.py and ./b.txt, --to=/etc/c.conf (d/e.rs:7)"])
def test_a_path_is_named_as_a_whole(text: str) -> None:
    assert identifiers(text) == ["../src/a.py", "./b.txt", "/etc/c.conf", "d/e.rs:7"]


@pytest.mark.parametrize("piece", ["./a-", "-/a", "-a", "a/", "../", "/.", "id ", "a1-"])
def test_a_megabyte_made_to_be_looked_through_again_and_again_is_described(piece: str) -> None:
    assert len(note(piece * (1_000_000 // len(piece)))) <= 1_000


@pytest.mark.parametrize("text", ["a,b\n" + "x" * 200_000 + "\nc,d\n", "{" * 100_000, "[" + "9" * 5_000 + "]"])
def test_what_no_reader_of_data_takes_is_described_as_text(text: str) -> None:
    assert "Begins: " in note(text)


@pytest.mark.parametrize("text", ["5", '"a word"', "null", "true"])
def test_a_json_value_without_shape_is_described_by_its_lines_alone(text: str) -> None:
    assert "JSON" not in note(text)
