"""Envelopes: whatever the bytes are, both readers give the same answer, and it is an original or an error of ours."""

import struct
from typing import Any

import zstandard
from cryptography.cobblestone import Cobblestone256Encryptor

from evidence_archive.errors import SealBrokenError, UnsupportedVersionError
from evidence_archive.model import Encoded, ce
from evidence_archive.sealing import envelope
from evidence_archive.sealing.envelope import Slot, open_original, open_pieces, seal_original

SLOT = Slot(bytes(16), "north-clinic", "case", "r1", b"call", "logs.search", None, "text/plain", 0)
PLACE: dict[str, Any] = {"slot": SLOT, "dek": bytes(range(32)), "original_id": b"o" * 16, "dek_id": b"k" * 16}
BYTES_MAX = 1024 * 1024
"""Stands for the largest original of the format, so that a frame that is true but large ends soon."""


def _sealed(data: bytes) -> bytes:
    return seal_original(**PLACE, encoded=Encoded(data, "text"), acl=b"acl", trust="tool-output").envelope


def _meta(data: bytes, stored: bytes, compression: str) -> bytes:
    digest = Encoded(data, "text").digest
    return ce("1", digest, len(data), "text", compression, len(stored), b"acl", "tool-output")


def _plaintext(data: bytes, stored: bytes, compression: str) -> bytes:
    meta = _meta(data, stored, compression)
    return struct.pack(">I", len(meta)) + meta + stored


_TEXT = b"a line of a log\n" * 100
_PACKED = zstandard.ZstdCompressor(level=3).compress(_TEXT)
_UNSIZED = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(_TEXT)

SEEDS = (
    b"\x00",
    b"\x00" + _sealed(b"found"),
    b"\x00" + _sealed(_TEXT),
    b"\x01" + _plaintext(b"found", b"found", "none"),
    b"\x01" + _plaintext(b"", b"", "none"),
    b"\x01" + _plaintext(_TEXT, _PACKED, "zstd"),
    b"\x01" + _plaintext(_TEXT, _PACKED + _PACKED, "zstd"),
    b"\x01" + _plaintext(_TEXT, _UNSIZED, "zstd"),
    b"\x01" + _plaintext(b"found", b"found", "zstd"),
    b"\x01" + struct.pack(">I", 2**32 - 1),
    b"\x01" + struct.pack(">I", 2**15) + _plaintext(b"", b"", "none")[4:],
    b"\x01" + _plaintext(_TEXT, _PACKED, "zstd").replace(b"1600", b"9999"),
)


def one(data: bytes) -> None:
    """The first byte says whether the rest is an envelope, or the plaintext of an authentic one."""
    rest = data[1:]
    if data[:1] == b"\x01":
        size, header = len(rest), envelope._HEAD + PLACE["original_id"] + PLACE["dek_id"]
        cipher = Cobblestone256Encryptor(PLACE["dek"], envelope._context(header, SLOT, size))
        stored = header + cipher.update(rest) + cipher.finalize()
    else:
        stored, size = rest, max(len(rest) - envelope.envelope_bytes(0), 0)
    kept, envelope.ORIGINAL_BYTES_MAX = envelope.ORIGINAL_BYTES_MAX, BYTES_MAX
    try:
        whole, pieces = _whole(stored, size), _in_pieces(stored, size)
    finally:
        envelope.ORIGINAL_BYTES_MAX = kept
    assert whole == pieces, "the two readers disagree"
    if whole is not None and data[:1] != b"\x01":
        assert whole in [(data, "tool-output") for data in (b"found", _TEXT)], "an envelope opened that nobody sealed"


def _whole(stored: bytes, size: int) -> tuple[bytes, str] | None:
    try:
        opened = open_original(stored, **PLACE, sealed_size=size)
    except (SealBrokenError, UnsupportedVersionError):
        return None
    return opened.data, opened.trust


def _in_pieces(stored: bytes, size: int) -> tuple[bytes, str] | None:
    taken = bytearray()
    cut = [stored[at : at + 4_001] for at in range(0, len(stored), 4_001)]
    try:
        opened = open_pieces(cut, taken.extend, **PLACE, sealed_size=size)
    except (SealBrokenError, UnsupportedVersionError):
        assert len(taken) <= BYTES_MAX, "more was handed out than an original may have"
        return None
    return bytes(taken), opened.trust
