"""Finds secrets in bytes, however they are written there: plain, encoded, compressed, or only their digests."""

import base64
import gzip
import hashlib
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping

import zstandard

__all__ = ["CONTAINERS", "DIGESTS", "FORMS", "Scanner", "canary"]

_MIDDLE = "~?>"
"""Three characters that are written differently by almost every encoding, base64url for base64 among them."""

UNPACKED_BYTES_MAX = 4 * 1024 * 1024
_DEPTH_MAX = 2
_PACKED = re.compile(rb"\x28\xb5\x2f\xfd|\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]")


def canary() -> str:
    """A text that occurs nowhere by accident."""
    letters = "abcdefghijkmnpqrstuvwxyz"
    one, two = ("".join(secrets.choice(letters) for _ in range(14)) for _ in range(2))
    return f"{one}{_MIDDLE}{two}"


# --- how a secret may be written --------------------------------------------------------------------------------


def _base64(shift: int, encode: Callable[[bytes], bytes]) -> Callable[[str], bytes]:
    """Base64 of a text that begins ``shift`` bytes into a group; what depends on its neighbours is cut off."""

    def written(text: str) -> bytes:
        data = text.encode()
        whole = encode(b"x" * shift + data)
        return whole[4 : 4 * ((shift + len(data)) // 3)]

    return written


def _each(pattern: str) -> Callable[[str], bytes]:
    return lambda text: "".join(pattern.format(ord(char)) for char in text).encode()


FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "upper": lambda text: text.upper().encode(),
    "reversed": lambda text: text[::-1].encode(),
    "hex": lambda text: text.encode().hex().encode(),
    "HEX": lambda text: text.encode().hex().upper().encode(),
    "hex apart": lambda text: text.encode().hex(" ").encode(),
    "UTF-16 LE": lambda text: text.encode("utf-16-le"),
    "UTF-16 BE": lambda text: text.encode("utf-16-be"),
    "UTF-32 LE": lambda text: text.encode("utf-32-le"),
    **{f"base64 at {shift}": _base64(shift, base64.standard_b64encode) for shift in range(3)},
    **{f"base64url at {shift}": _base64(shift, base64.urlsafe_b64encode) for shift in range(3)},
    "percent": _each("%{:02x}"),
    "PERCENT": _each("%{:02X}"),
    "\\u": _each("\\u{:04x}"),
    "\\x": _each("\\x{:02x}"),
    "entities": _each("&#{};"),
}
"""The whole text, by name."""

_HALVED = ("plain", "upper", "reversed", "hex", "HEX", "UTF-16 LE", "UTF-16 BE")
"""Also looked for by half, for a text of which a part was escaped, cut or filled into a page of its own."""

_HASHES = ("sha256", "sha1", "md5")

DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    f"{name}, {written}": lambda data, name=name, write=write: write(hashlib.new(name, data).digest())  # type: ignore[misc]
    for name in _HASHES
    for written, write in {
        "raw": bytes,
        "hex": lambda digest: digest.hex().encode(),
        "HEX": lambda digest: digest.hex().upper().encode(),
        "base64": lambda digest: base64.b64encode(digest).rstrip(b"=")[:-1],
        "base64url": lambda digest: base64.urlsafe_b64encode(digest).rstrip(b"=")[:-1],
    }.items()
}
"""Digests of a whole text, by name."""

CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "bare": bytes,
    "zlib": zlib.compress,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "zstd in zlib": lambda data: zlib.compress(zstandard.ZstdCompressor().compress(data)),
}
"""What it may be packed into."""


# --- the search -------------------------------------------------------------------------------------------------


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Everything in it that is compressed, opened; the beginning of a stream is enough."""
    for match in _PACKED.finditer(data):
        packed = memoryview(data)[match.start() : match.start() + UNPACKED_BYTES_MAX]
        try:
            if match[0][0] == 0x28:
                opened = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
            else:
                opened = zlib.decompressobj(wbits=47).decompress(packed, UNPACKED_BYTES_MAX)
        except (zlib.error, zstandard.ZstdError, MemoryError):
            continue
        if opened:
            yield opened


class Scanner:
    """Looks for secrets and for texts made of them.

    Args:
        canaries: by name; each from :func:`canary`.
        wholes: by name, exact bytes of which not even a digest may be found; canaries are among them anyhow.
    """

    def __init__(self, canaries: Mapping[str, str], wholes: Mapping[str, bytes] | None = None) -> None:
        self._patterns: dict[bytes, str] = {}
        for name, secret in canaries.items():
            for form, write in FORMS.items():
                self._patterns[write(secret)] = f"{name}, {form}"
            for half in secret.split(_MIDDLE):
                for form in _HALVED:
                    self._patterns[FORMS[form](half)] = f"{name}, a half, {form}"
        for name, data in {**{name: secret.encode() for name, secret in canaries.items()}, **(wholes or {})}.items():
            for form, digest in DIGESTS.items():
                self._patterns[digest(data)] = f"{name}, {form}"
        assert min(map(len, self._patterns)) >= 14, "too short to be found by no accident"

    def found(self, data: bytes, depth: int = 0) -> set[str]:
        """What is in it, as ``name, form``."""
        seen = {told for pattern, told in self._patterns.items() if pattern in data}
        if depth < _DEPTH_MAX:
            for opened in _unpacked(data):
                seen |= {f"{told}, packed" for told in self.found(opened, depth + 1)}
        return seen
