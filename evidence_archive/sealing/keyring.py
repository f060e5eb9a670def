"""Keys: which key opens what, how keys are wrapped, and the keyed tags and row seals made with them.

``KEK`` (at the key provider) -> scope key (one per session) -> DEK (one per original); an org's auxiliary key yields
the row, index and audit keys. Every wrap is one Cobblestone-256 message (C2SP chunked-encryption) with a context of
its own; every derivation is HKDF-SHA256 (RFC 5869) with a label of its own; every tag is HMAC-SHA256 (RFC 2104).
Byte layouts are in docs/format.md.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from evidence_archive.errors import FormatError, SealBrokenError
from evidence_archive.model import ce, ce_read

__all__ = [
    "WRAPPED_BYTES_MAX",
    "OrgKeys",
    "SealedValue",
    "check_row_seal",
    "close_original",
    "content_tag",
    "derive",
    "open_closed",
    "org_keys",
    "request_tag",
    "row_seal",
    "tag_key",
    "unwrap",
    "wrap",
    "wrap_context",
]

WRAPPED_BYTES_MAX = 1024 * 1024
"""Longest plaintext of a wrap or of a closed key and note, in bytes."""

SealedValue = bytes | bytearray | memoryview | str | int | None
"""What a sealed column may hold."""

KEY_BYTES = 32

_WRAP = b"evidence-archive/v1/wrap\x00"
_ROW_SEAL = b"evidence-archive/v1/row-seal\x00"
_REQUEST_TAG = b"evidence-archive/v1/request-tag\x00"
_CONTENT_TAGS = {kind: b"evidence-archive/v1/content-tag\x00" + ce(kind) for kind in ("text", "parts")}
_ABSENT = ce(None)
_LENGTHS = tuple(size.to_bytes(4, "big") for size in range(1_025))
_BROKEN = "A wrapped key does not open: its bytes, its place or the key around it are not what was wrapped."
_ROW_BROKEN = "A stored row is not what was written: its seal does not verify."


# --- derivation -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrgKeys:
    """The keys an org's auxiliary key yields: for row seals, index tags, audit metadata, and signed heads."""

    row: bytes = field(repr=False)
    index: bytes = field(repr=False)
    audit: bytes = field(repr=False)
    signing: bytes = field(repr=False)


def derive(key: bytes, label: bytes, size_bytes: int = KEY_BYTES) -> bytes:
    """The key that belongs to a label: HKDF-SHA256 without salt, the label as ``info`` (RFC 5869).

    Args:
        key: 32 uniformly random bytes.
        label: differs for every purpose.
        size_bytes: length of the result, 1 to 64.

    Raises:
        FormatError: the key is not 32 bytes long.
    """
    _check_key(key)
    return HKDF(algorithm=SHA256(), length=size_bytes, salt=None, info=label).derive(key)


def org_keys(aux_key: bytes) -> OrgKeys:
    """The keys of an org, from its auxiliary key of 32 bytes.

    Raises:
        FormatError: the key is not 32 bytes long.
    """
    return OrgKeys(
        row=derive(aux_key, b"evidence-archive/v1/row"),
        index=derive(aux_key, b"evidence-archive/v1/index"),
        audit=derive(aux_key, b"evidence-archive/v1/audit-metadata"),
        signing=derive(aux_key, b"evidence-archive/v1/checkpoint"),
    )


def tag_key(scope_key: bytes) -> bytes:
    """The key of a session's content tags, from its scope key of 32 bytes; it goes when the scope key goes.

    Raises:
        FormatError: the key is not 32 bytes long.
    """
    return derive(scope_key, b"evidence-archive/v1/tag")


# --- wrapping ---------------------------------------------------------------------------------------------------


def wrap_context(
    level: Literal["aux", "scope"],
    *,
    deployment: bytes,
    org: str,
    scope_id: bytes | None,
    child: bytes | None,
    generation: int,
    kek_version: int,
) -> bytes:
    """What a wrapped auxiliary or scope key is bound to.

    Args:
        level: ``aux`` or ``scope``.
        deployment: 16 random bytes that name this archive.
        org: whose key it is.
        scope_id: the scope's id, ``None`` for an auxiliary key.
        child: the wrapped key's own id where it has one, else ``None``.
        generation: which key of this place, from 1.
        kek_version: version of the key around it, from 1.

    Raises:
        FormatError: the level is neither.
    """
    if level not in ("aux", "scope"):
        raise FormatError("A wrapped key is of level 'aux' or 'scope'.")
    return _WRAP + ce(level, deployment, org, scope_id, child, generation, kek_version)


def wrap(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """One Cobblestone-256 message that opens under this key and context only.

    Args:
        key: 32 uniformly random bytes.
        plaintext: usually a key; at most 1 MiB.
        context: from :func:`wrap_context`; it is not stored.

    Raises:
        FormatError: the key is not 32 bytes long, or the plaintext is too long.
    """
    _check_key(key)
    if len(plaintext) > WRAPPED_BYTES_MAX:
        raise FormatError(f"A wrapped secret may have at most {WRAPPED_BYTES_MAX} bytes.")
    cipher = Cobblestone256Encryptor(key, context)
    return cipher.update(plaintext) + cipher.finalize()


def unwrap(key: bytes, wrapped: bytes, context: bytes) -> bytes:
    """What :func:`wrap` closed.

    Args:
        key: the key it was wrapped under, 32 bytes.
        wrapped: the stored message.
        context: rebuilt by the caller from the request and the row.

    Raises:
        SealBrokenError: key, context or bytes are not those of the wrap.
        FormatError: the key is not 32 bytes long.
    """
    _check_key(key)
    if len(wrapped) > 2 * WRAPPED_BYTES_MAX:
        raise SealBrokenError(_BROKEN)
    try:
        cipher = Cobblestone256Decryptor(key, context)
        return cipher.update(wrapped) + cipher.finalize()
    except InvalidTag as error:
        raise SealBrokenError(_BROKEN) from error


def close_original(
    scope_key: bytes,
    *,
    deployment: bytes,
    org: str,
    scope_id: bytes,
    original_id: bytes | None,
    dek_id: bytes | None,
    result_id: str,
    dek: bytes,
    note: str,
) -> bytes:
    """The DEK and the note of an archived result in one message under the scope key.

    Args:
        scope_key: of the session, 32 bytes.
        deployment, org, scope_id, original_id, dek_id, result_id: the place; a restored copy that was archived again
            has neither original nor DEK, hence ``None`` and ``None``.
        dek: 32 bytes, or empty for such a copy.
        note: the note's words; with ``dek`` at most 1 MiB of UTF-8.

    Raises:
        FormatError: a key has the wrong length, or the note is too long.
    """
    if dek:
        _check_key(dek)
    context = _closed_context(
        deployment=deployment,
        org=org,
        scope_id=scope_id,
        original_id=original_id,
        dek_id=dek_id,
        result_id=result_id,
    )
    return wrap(scope_key, ce(dek, note.encode("utf-8", "surrogatepass")), context)


def open_closed(
    scope_key: bytes,
    closed: bytes,
    *,
    deployment: bytes,
    org: str,
    scope_id: bytes,
    original_id: bytes | None,
    dek_id: bytes | None,
    result_id: str,
) -> tuple[bytes, str]:
    """The DEK (empty for a copy) and the note that :func:`close_original` closed for this very place.

    Raises:
        SealBrokenError: the message belongs to another place or key, or was changed.
        FormatError: the scope key is not 32 bytes long.
    """
    context = _closed_context(
        deployment=deployment,
        org=org,
        scope_id=scope_id,
        original_id=original_id,
        dek_id=dek_id,
        result_id=result_id,
    )
    secret = unwrap(scope_key, closed, context)
    try:
        dek, note = ce_read(secret)
        if dek is None or note is None or len(dek) not in (0, KEY_BYTES):
            raise ValueError("fields")
        return dek, note.decode("utf-8", "surrogatepass")
    except (FormatError, ValueError) as error:
        raise SealBrokenError(_BROKEN) from error


def _closed_context(
    *, deployment: bytes, org: str, scope_id: bytes, original_id: bytes | None, dek_id: bytes | None, result_id: str
) -> bytes:
    return _closed_scope(deployment, org, scope_id) + ce(original_id, dek_id, result_id)


@lru_cache(maxsize=256)
def _closed_scope(deployment: bytes, org: str, scope_id: bytes) -> bytes:
    """What all originals of a session share; a canonical encoding is that of its parts, joined."""
    return _WRAP + ce("original", deployment, org, scope_id)


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise FormatError("A key has exactly 32 bytes.")


# --- tags and seals ---------------------------------------------------------------------------------------------


def content_tag(key: bytes, digest: bytes, kind: str) -> bytes:
    """The keyed tag, 32 bytes, by which a session knows a content again.

    Args:
        key: from :func:`tag_key`.
        digest: SHA-256 of the exact bytes.
        kind: ``text`` or ``parts``.

    Raises:
        FormatError: the kind is neither.
    """
    prefix = _CONTENT_TAGS.get(kind)
    if prefix is None:
        raise FormatError("A content is of kind 'text' or 'parts'.")
    return hmac.digest(key, prefix + digest, "sha256")


def request_tag(key: bytes, call_id: bytes, items: Iterable[tuple[str, str]]) -> bytes:
    """The keyed tag, 32 bytes, by which an equal batch is known again.

    Args:
        key: from :func:`tag_key`.
        call_id: the provider's, as :func:`~evidence_archive.model.canonical_id` bounds it.
        items: result ID and note of every target, in order.
    """
    fields: list[bytes] = [call_id]
    for result_id, note in items:
        fields += (result_id.encode("utf-8", "surrogatepass"), note.encode("utf-8", "surrogatepass"))
    return hmac.digest(key, _REQUEST_TAG + ce(*fields), "sha256")


def row_seal(key: bytes, table: bytes, fields: Iterable[SealedValue]) -> bytes:
    """The seal of a row, 32 bytes: HMAC-SHA256 over table, types and exact values.

    Types are part of the seal because a database may hand back ``'5'`` where ``5`` was written, and long strings are
    covered in full, not by the digest that stands for them in other encodings.

    Args:
        key: the org's row key.
        table: the table's name.
        fields: the covered columns, always in the same order.

    Raises:
        FormatError: a value is of another type.
    """
    kinds: list[str] = []
    out: list[bytes] = []
    value: Any
    for value in fields:
        if value is None:
            kinds.append("n")
            out.append(_ABSENT)
            continue
        kind = type(value)
        if kind is int:
            kinds.append("i")
            data = b"%d" % value
        elif kind is bytes:
            kinds.append("b")
            data = value
        elif kind is str:
            kinds.append("s")
            data = value.encode("utf-8", "surrogatepass")
        elif kind is memoryview or kind is bytearray:
            kinds.append("b")
            data = bytes(value)
        else:
            raise FormatError("A sealed column holds bytes, text, an integer or nothing.")
        size = len(data)
        out.append(_LENGTHS[size] if size < len(_LENGTHS) else size.to_bytes(4, "big"))
        out.append(data)
    return hmac.digest(key, b"".join((_ROW_SEAL, ce(table, "".join(kinds)), *out)), "sha256")


def check_row_seal(key: bytes, table: bytes, fields: Iterable[SealedValue], seal: object) -> None:
    """Returns only if the seal is that of this row; compared in constant time.

    Args:
        key, table, fields: as in :func:`row_seal`.
        seal: the stored seal, whatever the database handed back for it.

    Raises:
        SealBrokenError: it is not, or a value has a type that is never written.
    """
    try:
        expected = row_seal(key, table, fields)
    except FormatError as error:
        raise SealBrokenError(_ROW_BROKEN) from error
    if not isinstance(seal, bytes | memoryview) or not hmac.compare_digest(expected, bytes(seal)):
        raise SealBrokenError(_ROW_BROKEN)
