"""A second decoder of what this library stores, written from docs/format.md and the C2SP page alone.

It imports nothing of the library: it uses AES-GCM, HKDF-Expand and struct, so that a mistake in the library's own
reader, or a change of format by accident, does not go unseen. Slow on purpose where slow is clearer.

Sources: https://c2sp.org/chunked-encryption (Cobblestone-256: AEAD_AES_256_GCM, SHA-512), RFC 5869.
"""

import hashlib
import struct

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CHUNK = 16 * 1024
TAG = 16


class NotWhatWasSealed(Exception):
    """The bytes do not decode."""


def derive_message_keys(key: bytes, salt: bytes, context: bytes) -> tuple[bytes, bytes, bytes]:
    """AEAD key, base nonce and commitment of one message."""
    info = b"c2sp.org/chunked-encryption@v1+" + b"AEAD_AES_256_GCM" + b"\x00" + salt + context
    output = HKDFExpand(algorithm=SHA512(), length=32 + 12 + 32, info=info).derive(key)
    return output[:32], output[32:44], output[44:]


def decrypt(key: bytes, context: bytes, message: bytes) -> bytes:
    """The plaintext of a Cobblestone-256 message."""
    if len(key) != 32 or len(message) < 24 + 32 + TAG:
        raise NotWhatWasSealed("length")
    salt, commitment, body = message[:24], message[24:56], message[56:]
    aead_key, base_nonce, expected = derive_message_keys(key, salt, context)
    if commitment != expected:
        raise NotWhatWasSealed("commitment")
    plaintext = b""
    number = 0
    while True:
        chunk = body[number * (CHUNK + TAG) : (number + 1) * (CHUNK + TAG)]
        if len(chunk) < TAG:
            raise NotWhatWasSealed("no short last chunk")
        nonce = (int.from_bytes(base_nonce, "big") ^ number).to_bytes(12, "big")
        try:
            plaintext += AESGCM(aead_key).decrypt(nonce, chunk, None)
        except Exception as error:
            raise NotWhatWasSealed("chunk") from error
        if len(chunk) < CHUNK + TAG:
            if len(body) != number * (CHUNK + TAG) + len(chunk):
                raise NotWhatWasSealed("trailing bytes")
            return plaintext
        number += 1


def encrypt(key: bytes, context: bytes, plaintext: bytes, salt: bytes) -> bytes:
    """A Cobblestone-256 message with a given salt, for tests that forge what the library would never write."""
    aead_key, base_nonce, commitment = derive_message_keys(key, salt, context)
    message = salt + commitment
    for number in range(len(plaintext) // CHUNK + 1):
        nonce = (int.from_bytes(base_nonce, "big") ^ number).to_bytes(12, "big")
        message += AESGCM(aead_key).encrypt(nonce, plaintext[number * CHUNK : (number + 1) * CHUNK], None)
    return message


def pack(fields: list[bytes | None]) -> bytes:
    """CE: for every field its length and its bytes; absent is FFFFFFFF."""
    return b"".join(b"\xff" * 4 if f is None else struct.pack(">I", len(f)) + f for f in fields)


def unpack(data: bytes) -> list[bytes | None]:
    """The fields of a CE."""
    fields: list[bytes | None] = []
    while data:
        (size,) = struct.unpack_from(">I", data)
        if size == 0xFFFFFFFF:
            fields.append(None)
            data = data[4:]
        else:
            if len(data) < 4 + size:
                raise NotWhatWasSealed("field")
            fields.append(data[4 : 4 + size])
            data = data[4 + size :]
    return fields


def as_field(value: str | bytes | int | None) -> bytes | None:
    """One field of a CE, from what it means."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return str(value).encode()
    data = value.encode("utf-8", "surrogatepass")
    return data if len(data) <= 1024 else b"sha256:" + hashlib.sha256(data).hexdigest().encode()


def envelope_context(header: bytes, slot: list[str | bytes | int | None], sealed_size: int) -> bytes:
    """The context of an EVA1 envelope; ``slot`` holds the nine fields in the order of docs/format.md."""
    return b"evidence-archive/v1/original\x00" + header + pack([as_field(f) for f in [*slot, sealed_size]])


def open_envelope(
    envelope: bytes, slot: list[str | bytes | int | None], dek: bytes, sealed_size: int
) -> dict[str, bytes]:
    """What an EVA1 envelope holds."""
    magic, suite, flags, reserved, original_id, dek_id = struct.unpack_from(">4sBBH16s16s", envelope)
    if (magic, suite, flags, reserved) != (b"EVA1", 1, 0, 0):
        raise NotWhatWasSealed("header")
    plaintext = decrypt(dek, envelope_context(envelope[:40], slot, sealed_size), envelope[40:])
    if len(plaintext) != sealed_size:
        raise NotWhatWasSealed("size")
    (meta_size,) = struct.unpack_from(">I", plaintext)
    version, digest, size, encoding, compression, stored_size, acl, trust = unpack(plaintext[4 : 4 + meta_size])
    content = plaintext[4 + meta_size :]
    if version != b"1" or len(content) != int(stored_size):
        raise NotWhatWasSealed("metadata")
    if compression == b"zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(content)
        content = reader.read(int(size) + 1)
    elif compression != b"none":
        raise NotWhatWasSealed("compression")
    if len(content) != int(size) or hashlib.sha256(content).digest() != digest:
        raise NotWhatWasSealed("content")
    return {
        "data": content,
        "encoding": encoding,
        "sha256": digest,
        "acl": acl,
        "trust": trust,
        "original_id": original_id,
        "dek_id": dek_id,
        "compression": compression,
    }
