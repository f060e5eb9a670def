"""The envelope ``EVA1``: one original, encrypted, bound to its place.

The cipher is Cobblestone-256 of ``cryptography`` (C2SP chunked-encryption, https://c2sp.org/chunked-encryption:
AES-256-GCM, HKDF-SHA512, key commitment, bound context). The layout is in docs/format.md. The context is rebuilt by
the reader from the request and the row, never read from the envelope, so an envelope that was moved does not open.
"""

import hmac
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import NoReturn

import zstandard
from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag

from evidence_archive.errors import FormatError, SealBrokenError, UnsupportedVersionError
from evidence_archive.model import PIECE_BYTES, Encoded, Exact, ce, ce_read

__all__ = [
    "COMPRESS_BYTES_MIN",
    "ORIGINAL_BYTES_MAX",
    "SEALED_BYTES_MAX",
    "Opened",
    "Sealed",
    "Slot",
    "envelope_bytes",
    "open_original",
    "open_pieces",
    "seal_original",
    "seal_pieces",
]

COMPRESS_BYTES_MIN = 1024
"""Originals from this size on are compressed, if that makes them smaller."""

ORIGINAL_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""Largest original this format holds; the limit of a policy is below it."""

FACTS_BYTES_MAX = 64 * 1024
"""Longest facts (``acl``), in bytes."""

TRUST_BYTES_MAX = 1024
"""Longest trust label, in bytes of UTF-8."""

SEALED_BYTES_MAX = ORIGINAL_BYTES_MAX + 2 * FACTS_BYTES_MAX
"""Largest ``sealed_size``: the plaintext of a message, with its metadata."""

_MAGIC = b"EVA1"
_HEAD = _MAGIC + b"\x01\x00\x00\x00"
_HEADER_BYTES = 40
_ID_BYTES = 16
_CONTEXT = b"evidence-archive/v1/original\x00"
_VERSION = b"1"
_ENCODINGS = {b"text": "text", b"parts": "parts"}
_COMPRESSIONS = {b"none": False, b"zstd": True}
_CHUNK_BYTES = 16 * 1024
_TAG_BYTES = 16
_MESSAGE_HEAD_BYTES = 56
_LEVEL = 3
_FRAME_HEAD_BYTES = 18
_FRAME_PIECE_BYTES = 1024
_U32 = struct.Struct(">I")

_codecs = threading.local()


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an original, as its reader knows it from the request and the row.

    Args:
        deployment: 16 random bytes that name this archive.
        org, session_id: whose it is.
        result_id: such as ``r7``.
        tool_call_id: the provider's id as :func:`~evidence_archive.model.canonical_id` bounds it.
        tool_name: as called.
        kind: what the host attached, or ``None``.
        media_type: ``text/plain`` or ``application/json``.
        observed_at_us: microseconds since 1970-01-01 UTC.
    """

    deployment: bytes
    org: str
    session_id: str
    result_id: str
    tool_call_id: bytes
    tool_name: str
    kind: str | None
    media_type: str
    observed_at_us: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed original, opened again and compared.

    Args:
        envelope: the bytes to store.
        sha256: digest of the exact original; it is as secret as the original.
        sealed_size: length of the message's plaintext, in bytes; the reader must know it.
        envelope_sha256: digest of the stored bytes.
    """

    envelope: bytes = field(repr=False)
    sha256: bytes = field(repr=False)
    sealed_size: int
    envelope_sha256: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """An original whose envelope, size and digest agree.

    Args:
        data: the exact bytes.
        encoding: ``text`` or ``parts``, for :func:`~evidence_archive.model.decode_exact`.
        sha256: digest of ``data``.
        acl: the facts at creation, as they were given.
        trust: the trust label at creation.
    """

    data: bytes = field(repr=False)
    encoding: str
    sha256: bytes = field(repr=False)
    acl: bytes = field(repr=False)
    trust: str


def envelope_bytes(sealed_size: int) -> int:
    """The length of an envelope, in bytes, for a plaintext of ``sealed_size`` bytes.

    Every length has exactly one chunking (C2SP chunked-encryption): full chunks of 16 KiB and a shorter last one.
    """
    return _HEADER_BYTES + _MESSAGE_HEAD_BYTES + sealed_size + _TAG_BYTES * (sealed_size // _CHUNK_BYTES + 1)


def seal_original(
    *,
    slot: Slot,
    encoded: Encoded,
    dek: bytes,
    original_id: bytes,
    dek_id: bytes,
    acl: bytes,
    trust: str,
    compress: bool = True,
) -> Sealed:
    """The envelope of an original, opened again in memory and compared before it is handed out.

    Args:
        slot: where the original belongs.
        encoded: its exact bytes, at most ``ORIGINAL_BYTES_MAX``.
        dek: 32 random bytes, used for this original alone.
        original_id, dek_id: 16 random bytes each.
        acl: canonical bytes of the facts at creation, at most 64 KiB.
        trust: trust label, at most 1 KiB of UTF-8.
        compress: whether zstandard (level 3) may be used, from 1 KiB up and only where it is smaller.

    Raises:
        FormatError: a key, an id or a size is out of bounds, or the encoding is unknown.
        SealBrokenError: the envelope did not open to what went in; nothing may be stored.
    """
    trust_bytes = _checked(encoded, trust, acl, dek=dek, original_id=original_id, dek_id=dek_id)
    data = encoded.data
    stored, compression = data, b"none"
    if compress and len(data) >= COMPRESS_BYTES_MIN:
        packed = _codec()[0].compress(data)
        if len(packed) < len(data):
            stored, compression = packed, b"zstd"
    digest = encoded.digest
    meta = ce(_VERSION, digest, len(data), encoded.encoding, compression, len(stored), acl, trust_bytes)
    plaintext = b"".join((_U32.pack(len(meta)), meta, stored))
    sealed_size = len(plaintext)
    header = _HEAD + original_id + dek_id
    context = _context(header, slot, sealed_size)
    cipher = Cobblestone256Encryptor(dek, context)
    envelope = b"".join((header, cipher.update(plaintext), cipher.finalize()))

    if _decrypt(memoryview(envelope)[_HEADER_BYTES:], dek, context) != plaintext or (
        stored is not data and _unpack(stored, b"%d" % len(data)) != data
    ):
        raise SealBrokenError("An original did not open again after sealing; nothing was archived.")
    return Sealed(envelope, digest, sealed_size, sha256(envelope).digest())


def _checked(encoded: Exact, trust: str, acl: bytes, *, dek: bytes, original_id: bytes, dek_id: bytes) -> bytes:
    """The trust label's bytes, once everything that goes into an envelope is within bounds."""
    trust_bytes = trust.encode("utf-8", "surrogatepass")
    if len(dek) != 32 or len(original_id) != _ID_BYTES or len(dek_id) != _ID_BYTES:
        raise FormatError("An original is sealed with a key of 32 bytes and two ids of 16 bytes.")
    if encoded.size_bytes > ORIGINAL_BYTES_MAX or len(acl) > FACTS_BYTES_MAX or len(trust_bytes) > TRUST_BYTES_MAX:
        raise FormatError(
            f"An original may have {ORIGINAL_BYTES_MAX} bytes, its facts {FACTS_BYTES_MAX} and its trust label "
            f"{TRUST_BYTES_MAX}."
        )
    if encoded.encoding not in ("text", "parts"):
        raise FormatError("An original is encoded as 'text' or as 'parts'.")
    return trust_bytes


def seal_pieces(
    *,
    slot: Slot,
    encoded: Exact,
    dek: bytes,
    original_id: bytes,
    dek_id: bytes,
    acl: bytes,
    trust: str,
    compress: bool = True,
) -> tuple[int, Iterator[bytes]]:
    """``sealed_size`` of an original, and its envelope piece by piece, a few MiB in memory at a time.

    The envelope is one that :func:`seal_original` could have made. It is not opened again here: whoever stores the
    pieces opens what was stored, with :func:`open_pieces`, before anybody relies on it.

    Args:
        slot, dek, original_id, dek_id, acl, trust, compress: as in :func:`seal_original`.
        encoded: its exact bytes, gone over two or three times.

    Raises:
        FormatError: a key, an id or a size is out of bounds, or the encoding is unknown.
        SealBrokenError: from the iterator: the bytes were others when they were gone over again.
    """
    trust_bytes = _checked(encoded, trust, acl, dek=dek, original_id=original_id, dek_id=dek_id)
    size = encoded.size_bytes
    stored_size, compression = size, b"none"
    if compress and size >= COMPRESS_BYTES_MIN:
        packed_size = sum(map(len, _packed(encoded)))
        if packed_size < size:
            stored_size, compression = packed_size, b"zstd"
    meta = ce(_VERSION, encoded.digest, size, encoded.encoding, compression, stored_size, acl, trust_bytes)
    header = _HEAD + original_id + dek_id
    sealed_size = _U32.size + len(meta) + stored_size

    def pieces() -> Iterator[bytes]:
        cipher = Cobblestone256Encryptor(dek, _context(header, slot, sealed_size))
        yield header + cipher.update(_U32.pack(len(meta)) + meta)
        left = stored_size
        for piece in _packed(encoded) if compression == b"zstd" else encoded.pieces():
            left -= len(piece)
            yield cipher.update(piece)
        if left:
            raise SealBrokenError("An original changed while it was sealed; nothing was archived.")
        yield cipher.finalize()

    return sealed_size, pieces()


def _packed(encoded: Exact) -> Iterator[bytes]:
    """The compressed bytes; equal each time, because the input comes in equal pieces."""
    packer = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=encoded.size_bytes)
    try:
        for piece in encoded.pieces():
            yield packer.compress(piece)
        yield packer.flush()
    except zstandard.ZstdError as error:
        raise SealBrokenError("An original changed while it was sealed; nothing was archived.") from error


def open_pieces(
    envelope: Iterable[bytes],
    take: Callable[[bytes], object],
    *,
    slot: Slot,
    dek: bytes,
    original_id: bytes,
    dek_id: bytes,
    sealed_size: int,
) -> Opened:
    """What :func:`open_original` gives, for an envelope that comes in pieces; a few MiB are in memory at a time.

    Args:
        envelope: the stored bytes in order, in pieces of any size.
        take: is handed the exact bytes in order, at most ``PIECE_BYTES`` at a time. Nothing it was handed may leave
            it before this function returns.
        slot, dek, original_id, dek_id, sealed_size: as in :func:`open_original`.

    Returns:
        As :func:`open_original`, but with empty ``data``.

    Raises:
        SealBrokenError, UnsupportedVersionError: as :func:`open_original`.
    """
    source = _Pieces(iter(envelope))
    header = source.exactly(_HEADER_BYTES)
    if len(original_id) != _ID_BYTES or header != _HEAD + original_id + dek_id:
        _refuse(header)
    if not _U32.size <= sealed_size <= SEALED_BYTES_MAX:
        raise SealBrokenError(_BROKEN)
    plain = _Pieces(_decrypted(source, dek, _context(header, slot, sealed_size), envelope_bytes(sealed_size)))
    meta_size = _U32.unpack(plain.exactly(_U32.size))[0]
    if meta_size > sealed_size - _U32.size:
        raise SealBrokenError(_BROKEN)
    digest, size, encoding, compressed, stored_size, acl, trust = _read_meta(plain.exactly(meta_size))
    if stored_size != b"%d" % (sealed_size - _U32.size - meta_size):
        raise SealBrokenError(_BROKEN)
    hashing, length = sha256(), 0
    for piece in _unpacked(plain, size) if compressed else plain:
        length += len(piece)
        if length > ORIGINAL_BYTES_MAX:
            raise SealBrokenError(_BROKEN)
        hashing.update(piece)
        take(piece)
    if size != b"%d" % length or not hmac.compare_digest(hashing.digest(), digest):
        raise SealBrokenError(_BROKEN)
    return Opened(b"", encoding, digest, acl, trust)


class _Pieces:
    """Bytes that come in pieces of any size, given out in pieces that are asked for; an iterator of what is left."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none only at the end."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._held = memoryview(piece)
        given, self._held = self._held[:size], self._held[size:]
        return bytes(given)

    def exactly(self, size: int) -> bytes:
        """So many bytes, or what there is."""
        given = bytearray()
        while len(given) < size and (piece := self.read(size - len(given))):
            given += piece
        return bytes(given)

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(PIECE_BYTES):
            yield piece


def _decrypted(source: _Pieces, dek: bytes, context: bytes, size: int) -> Iterator[bytes]:
    """The message's plaintext; authentic only once it has ended."""
    left = size - _HEADER_BYTES
    try:
        cipher = Cobblestone256Decryptor(dek, context)
        for piece in source:
            left -= len(piece)
            if left < 0:
                break
            yield cipher.update(piece)
        if left:
            raise SealBrokenError(_BROKEN)
        yield cipher.finalize()
    except (InvalidTag, ValueError) as error:
        raise SealBrokenError(_BROKEN) from error


def _unpacked(packed: _Pieces, size: bytes) -> Iterator[bytes]:
    """Decompresses exactly one frame, which declares ``size`` bytes (in decimal)."""
    head = packed.exactly(_FRAME_HEAD_BYTES)
    try:
        if b"%d" % zstandard.frame_content_size(head) != size:
            raise SealBrokenError(_BROKEN)
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        while head:
            # A block of 128 KiB may lie in 4 bytes, and a call gives all of its input's blocks at once.
            piece = memoryview(unpacker.decompress(head))
            for at in range(0, len(piece), PIECE_BYTES):
                yield bytes(piece[at : at + PIECE_BYTES])
            head = packed.read(_FRAME_PIECE_BYTES)
            if unpacker.eof and (head or unpacker.unused_data):
                raise SealBrokenError(_BROKEN)
        if not unpacker.eof:
            raise SealBrokenError(_BROKEN)
    except zstandard.ZstdError as error:
        raise SealBrokenError(_BROKEN) from error


def open_original(
    envelope: object,
    *,
    slot: Slot,
    dek: bytes,
    original_id: bytes,
    dek_id: bytes,
    sealed_size: int,
) -> Opened:
    """The exact original; nothing of it is released before cipher, size and digest agree.

    The whole envelope is in memory, at most ``envelope_bytes(SEALED_BYTES_MAX)``.

    Args:
        envelope: the stored ``bytes`` or a ``memoryview`` of them; a database that hands back anything else holds no
            envelope.
        slot: the place the caller asked for, from the request and the row.
        dek: the original's key.
        original_id, dek_id: as the row names them, 16 bytes each.
        sealed_size: as the row names it, in bytes.

    Raises:
        SealBrokenError: these bytes are not what was sealed with this key, in this place.
        UnsupportedVersionError: it is an envelope, in a version, suite or with flags this library does not know.
    """
    if not isinstance(envelope, bytes | memoryview):
        raise SealBrokenError(_BROKEN)
    header = bytes(envelope[:_HEADER_BYTES])
    if len(original_id) != _ID_BYTES or header != _HEAD + original_id + dek_id:
        _refuse(header)
    if not _U32.size <= sealed_size <= SEALED_BYTES_MAX or len(envelope) != envelope_bytes(sealed_size):
        raise SealBrokenError(_BROKEN)
    plaintext = _decrypt(memoryview(envelope)[_HEADER_BYTES:], dek, _context(header, slot, sealed_size))
    meta_end = _U32.size + _U32.unpack_from(plaintext)[0]
    if meta_end > sealed_size:
        raise SealBrokenError(_BROKEN)
    digest, size, encoding, compressed, stored_size, acl, trust = _read_meta(plaintext[_U32.size : meta_end])
    data = plaintext[meta_end:]
    if stored_size != b"%d" % len(data):
        raise SealBrokenError(_BROKEN)
    if compressed:
        data = _unpack(data, size)
    if size != b"%d" % len(data) or not hmac.compare_digest(sha256(data).digest(), digest):
        raise SealBrokenError(_BROKEN)
    return Opened(data, encoding, digest, acl, trust)


_BROKEN = "A sealed original does not open: its bytes, its place or its key are not what was sealed."
_NEWER = "An original is sealed in a form this version does not know; upgrade this library."


def _refuse(header: bytes) -> NoReturn:
    """Says why a header is not the expected one: a newer format is told apart from other or damaged bytes."""
    if len(header) == _HEADER_BYTES and header.startswith(_MAGIC) and not header.startswith(_HEAD):
        raise UnsupportedVersionError(_NEWER)
    raise SealBrokenError(_BROKEN)


def _context(header: bytes, slot: Slot, sealed_size: int) -> bytes:
    return b"".join(
        (
            _CONTEXT,
            header,
            _owner(slot.deployment, slot.org, slot.session_id),
            ce(
                slot.result_id,
                slot.tool_call_id,
                slot.tool_name,
                slot.kind,
                slot.media_type,
                slot.observed_at_us,
                sealed_size,
            ),
        )
    )


@lru_cache(maxsize=256)
def _owner(deployment: bytes, org: str, session_id: str) -> bytes:
    """The fields that all originals of a session share; a canonical encoding is that of its parts, joined."""
    return ce(deployment, org, session_id)


def _decrypt(message: memoryview, dek: bytes, context: bytes) -> bytes:
    try:
        cipher = Cobblestone256Decryptor(dek, context)
        return cipher.update(message) + cipher.finalize()
    except (InvalidTag, ValueError) as error:
        raise SealBrokenError(_BROKEN) from error


def _read_meta(meta: bytes) -> tuple[bytes, bytes, str, bool, bytes, bytes, str]:
    """Digest, size, encoding, whether compressed, stored size, facts and trust label; sizes still in decimal."""
    try:
        fields = [value for value in ce_read(meta) if value is not None]
    except FormatError as error:
        raise SealBrokenError(_BROKEN) from error
    if fields and fields[0] != _VERSION:
        raise UnsupportedVersionError(_NEWER)
    if len(fields) != 8:
        raise SealBrokenError(_BROKEN)
    _, digest, size, encoding, compression, stored_size, acl, trust = fields
    if encoding not in _ENCODINGS or compression not in _COMPRESSIONS:
        raise UnsupportedVersionError(_NEWER)
    try:
        label = trust.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise SealBrokenError(_BROKEN) from error
    return digest, size, _ENCODINGS[encoding], _COMPRESSIONS[compression], stored_size, acl, label


def _unpack(packed: bytes, size: bytes) -> bytes:
    """Decompresses to exactly ``size`` bytes (in decimal).

    zstandard ignores ``max_output_size`` for a frame that declares its size, so the declared size is compared first.
    """
    try:
        declared = zstandard.frame_content_size(packed)
        if declared > ORIGINAL_BYTES_MAX or b"%d" % declared != size:
            raise SealBrokenError(_BROKEN)
        return _codec()[1].decompress(packed, max_output_size=declared, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise SealBrokenError(_BROKEN) from error


def _codec() -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
    """This thread's compressor and decompressor; neither may be shared between threads."""
    try:
        pair: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = _codecs.pair
    except AttributeError:
        pair = _codecs.pair = (zstandard.ZstdCompressor(level=_LEVEL), zstandard.ZstdDecompressor())
    return pair
