"""A second decoder of what this library stores, written from docs/format.md and the C2SP page alone.

It imports nothing of the library: it uses AES-GCM, HKDF-Expand, HMAC, Ed25519 and struct, so that a mistake in the
library's own reader, or a change of format by accident, does not go unseen. Slow on purpose where slow is clearer.

What does not decode, or is not what something else that is stored says of it, is :class:`NotWhatWasSealed`.

Sources: https://c2sp.org/chunked-encryption (Cobblestone-256: AEAD_AES_256_GCM, SHA-512), RFC 5869, RFC 2104,
RFC 8032, RFC 9162 section 2.1, https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint,
https://c2sp.org/tlog-proof.
"""

import base64
import hashlib
import hmac
import io
import json
import re
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CHUNK = 16 * 1024
TAG = 16


class NotWhatWasSealed(Exception):
    """The bytes do not decode."""


def need(holds: object, words: str) -> None:
    """Return only if it holds."""
    if not holds:
        raise NotWhatWasSealed(words)


@contextmanager
def strictly(words: str):
    """Whatever goes wrong inside means that these bytes do not decode."""
    try:
        yield
    except NotWhatWasSealed:
        raise
    except Exception as error:
        raise NotWhatWasSealed(words) from error


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
    plaintext: list[bytes] = []
    number = 0
    while True:
        chunk = body[number * (CHUNK + TAG) : (number + 1) * (CHUNK + TAG)]
        if len(chunk) < TAG:
            raise NotWhatWasSealed("no short last chunk")
        nonce = (int.from_bytes(base_nonce, "big") ^ number).to_bytes(12, "big")
        try:
            plaintext.append(AESGCM(aead_key).decrypt(nonce, chunk, None))
        except Exception as error:
            raise NotWhatWasSealed("chunk") from error
        if len(chunk) < CHUNK + TAG:
            if len(body) != number * (CHUNK + TAG) + len(chunk):
                raise NotWhatWasSealed("trailing bytes")
            return b"".join(plaintext)
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
        need(len(data) >= 4, "a length is cut off")
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
        need(zstandard.frame_content_size(content) == int(size), "the frame's own size")
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


# --- keys ---------------------------------------------------------------------------------------------------------


def hkdf(key: bytes, label: bytes, size: int = 32) -> bytes:
    """HKDF-SHA256 without salt (RFC 5869), from HMAC alone; one block is enough."""
    secret = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(secret, label + b"\x01", "sha256")[:size]


def fields_of(*values: str | bytes | int | None) -> bytes:
    """CE of what the fields mean."""
    return pack([as_field(value) for value in values])


def read_key_file(data: bytes) -> tuple[int, dict[int, bytes]]:
    """The current version, and the root of every version."""
    with strictly("key file"):
        need(len(data) <= 64 * 1024, "a key file is too long")
        told = strict_json(data)
        need(told.keys() == {"format", "current", "keys"} and told["format"] == "evidence-archive/keys/1", "key file")
        roots = {}
        for name, text in told["keys"].items():
            root = base64.urlsafe_b64decode(text + "=")
            need(re.fullmatch(r"[1-9][0-9]{0,8}", name) and len(text) == 43 and len(root) == 32, "a key")
            need(base64.urlsafe_b64encode(root).decode().rstrip("=") == text, "base64url")
            need(len(set(root)) >= 16 and not all(0x20 <= one < 0x7F for one in root), "no random source made this")
            roots[int(name)] = root
        need(len(set(roots.values())) == len(roots) and told["current"] in roots, "versions")
        return told["current"], roots


def strict_json(data: bytes) -> Any:
    """ASCII JSON in which nothing is named twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), "a name is twice in an object")
        return dict(pairs)

    with strictly("JSON"):
        return json.loads(data.decode("ascii"), object_pairs_hook=unique)


Unwrap = Callable[[str, int, bytes, bytes, bytes], bytes]
"""From org, version, fingerprint, wrapped bytes and context to a key."""


def roots_unwrap(key_file: bytes) -> Unwrap:
    """Opens what was wrapped by the provider of a key file, or of a variable with the same content."""
    _, roots = read_key_file(key_file)

    def unwrap(org: str, version: int, fingerprint: bytes, wrapped: bytes, context: bytes) -> bytes:
        need(version in roots, "there is no such version")
        named = b"\x00" + fields_of(org, version)
        found = hkdf(roots[version], b"evidence-archive/v1/kek-fingerprint" + named, 16)
        need(found == fingerprint, "another key")
        return decrypt(hkdf(roots[version], b"evidence-archive/v1/kek" + named), context, wrapped)

    return unwrap


def service_unwrap(
    form: str, identity: Callable[[str, int], bytes], decrypt_there: Callable[[str, int, bytes, bytes], bytes]
) -> Unwrap:
    """Opens what a service wrapped: ``form`` is ``command/1``, ``kms/1`` or ``transit/1``.

    ``decrypt_there`` gets org, version, what the service made, and the place it is bound to.
    """

    def unwrap(org: str, version: int, fingerprint: bytes, wrapped: bytes, context: bytes) -> bytes:
        label = b"evidence-archive/v1/key-service-fingerprint\x00"
        named = hashlib.sha256(label + fields_of(form, org, version, identity(org, version))).digest()
        need(named[:16] == fingerprint, "another key")
        fields = unpack(wrapped)
        need(len(wrapped) <= 16 * 1024 and len(fields) == 3 and fields[2] is not None, "a wrapped key")
        need(fields[:2] == [form.encode(), b"%d" % version], "of another provider or version")
        place = hashlib.sha256(
            b"evidence-archive/v1/key-service-place\x00" + fields_of(org, version, context)
        ).digest()
        with strictly("the service"):
            plaintext = decrypt_there(org, version, fields[2] or b"", place)
        key, check = plaintext[:32], plaintext[32:]
        need(check == hmac.digest(key, b"evidence-archive/v1/key-service-check\x00" + place, "sha256"), "check value")
        return key

    return unwrap


def transit_name(org: str, key: str = "evidence-archive") -> str:
    """What the key of an org is called in Vault."""
    return f"{key}-{hashlib.sha256(org.encode()).hexdigest()[:32]}"


TRANSIT_MARK = b"evidence-archive/v1/transit-fingerprint\x00"
"""Before the key's name: what Vault makes an HMAC of."""


# --- the audit log ------------------------------------------------------------------------------------------------


def leaf_hash(leaf: bytes) -> bytes:
    """RFC 9162 section 2.1.1."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """RFC 9162 section 2.1.1."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def split(size: int) -> int:
    """The largest power of two below a size."""
    return 1 << ((size - 1).bit_length() - 1)


def root_of(hashes: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.1, as it is defined."""
    if len(hashes) < 2:
        return hashes[0] if hashes else hashlib.sha256(b"").digest()
    at = split(len(hashes))
    return node_hash(root_of(hashes[:at]), root_of(hashes[at:]))


def frontier_of(hashes: list[bytes]) -> bytes:
    """The roots of the complete subtrees, largest first."""
    out, at = b"", 0
    for bit in reversed(range(len(hashes).bit_length())):
        if len(hashes) >> bit & 1:
            out += root_of(hashes[at : at + (1 << bit)])
            at += 1 << bit
    return out


def frontier_root(size: int, frontier: bytes) -> bytes:
    """The root that a frontier stands for."""
    need(len(frontier) == 32 * size.bit_count(), "a frontier is of another size")
    parts = [frontier[at : at + 32] for at in range(0, len(frontier), 32)]
    root = parts.pop() if parts else hashlib.sha256(b"").digest()
    while parts:
        root = node_hash(parts.pop(), root)
    return root


def root_by_path(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root that an inclusion path leads to (RFC 9162 section 2.1.3), by the definition of the path."""
    need(0 <= index < size, "an index is behind the end")
    if size == 1:
        need(not path, "a path is too long")
        return leaf
    need(path, "a path is too short")
    at = split(size)
    if index < at:
        return node_hash(root_by_path(leaf, index, at, path[:-1]), path[-1])
    return node_hash(path[-1], root_by_path(leaf, index - at, size - at, path[:-1]))


def roots_by_path(
    old: int, size: int, path: list[bytes], old_root: bytes, *, whole: bool = True
) -> tuple[bytes, bytes]:
    """Both roots that a consistency path leads to (RFC 9162 section 2.1.4), by the definition of the path."""
    need(0 < old <= size, "sizes")
    if old == size:
        need(len(path) == (0 if whole else 1), "a path has another length")
        return (old_root, old_root) if whole else (path[0], path[0])
    need(path, "a path is too short")
    at = split(size)
    if old <= at:
        first, second = roots_by_path(old, at, path[:-1], old_root, whole=whole)
        return first, node_hash(second, path[-1])
    first, second = roots_by_path(old - at, size - at, path[:-1], old_root, whole=False)
    return node_hash(path[-1], first), node_hash(path[-1], second)


def read_leaf(data: bytes) -> dict[str, Any]:
    """An entry; encoding it again gives the same bytes."""
    with strictly("leaf"):
        fields = unpack(data)
        need(len(data) <= 1024 * 1024 and len(fields) == 11 and fields[0] == b"evidence-archive/leaf/1", "leaf")
        names = ("org", "seq", "time_us", "event", "subject", "session_id", "batch_id", "policy_digest")
        texts = [None if one is None else one.decode("utf-8", "surrogatepass") for one in fields[1:9]]
        entry: dict[str, Any] = dict(zip(names, texts, strict=True))
        need(
            all(entry[name] is not None for name in ("org", "seq", "time_us", "event", "subject")), "an absent field"
        )
        entry["seq"], entry["time_us"] = int(entry["seq"]), int(entry["time_us"])
        entry["details"], entry["sealed_reason"] = strict_json(fields[9] or b""), fields[10]
        plain = json.dumps(entry["details"], ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
        again = [b"evidence-archive/leaf/1", *(as_field(entry[name]) for name in names), plain, fields[10]]
        need(pack(again) == data and type(entry["details"]) is dict, "not canonical")
        return entry


# --- signed heads and proofs --------------------------------------------------------------------------------------


def unbase64(text: str) -> bytes:
    """Canonical base64 (RFC 4648 section 4)."""
    with strictly("base64"):
        data = base64.b64decode(text, validate=True)
        need(base64.b64encode(data).decode() == text, "base64")
        return data


def key_line(name: str, public: bytes) -> str:
    """The line that an auditor keeps (C2SP signed-note)."""
    ident = hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4]
    return f"{name}+{ident.hex()}+{base64.b64encode(bytes([1]) + public).decode()}"


def open_head(note: str, line: str) -> tuple[int, bytes]:
    """Size and root of a checkpoint that this key signed (C2SP signed-note, tlog-checkpoint)."""
    with strictly("checkpoint"):
        name, _, encoded = line.split("+", 2)
        public = unbase64(encoded)[1:]
        need(key_line(name, public) == line, "a key")
        text, _, signatures = note.rpartition("\n\n")
        prefix = f"\N{EM DASH} {name} "
        need(
            signatures.endswith("\n") and signatures.startswith(prefix) and signatures.count("\n") == 1, "signatures"
        )
        signature = unbase64(signatures[len(prefix) : -1])
        need(signature[:4].hex() == line.split("+")[1], "a key id")
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature[4:], (text + "\n").encode())
        except InvalidSignature as error:
            raise NotWhatWasSealed("signature") from error
        origin, size, root = text.split("\n")
        need(origin == name and str(int(size)) == size and len(unbase64(root)) == 32, "a head")
        return int(size), unbase64(root)


def open_proof(proof: str, line: str) -> tuple[dict[str, Any], bytes, str]:
    """The entry that a proof shows, its bytes, and the signed head (C2SP tlog-proof)."""
    head, _, note = proof.partition("\n\n")
    version, extra, index, *path = [*head.split("\n"), "", ""][: max(3, head.count("\n") + 1)]
    need(version == "c2sp.org/tlog-proof@v1", "a proof")
    need(extra.startswith("extra ") and re.fullmatch(r"index (0|[1-9][0-9]*)", index), "a proof")
    size, root = open_head(note, line)
    leaf, at = unbase64(extra[6:]), int(index[6:])
    need(root_by_path(leaf_hash(leaf), at, size, [unbase64(one) for one in path]) == root, "not in the log")
    entry = read_leaf(leaf)
    need(entry["seq"] == at, "an entry of another place")
    return entry, leaf, note


# --- the database -------------------------------------------------------------------------------------------------

LAYOUT = {
    "orgs": "org:s deployment:b aux_wrapped:b kek_version:i kek_fingerprint:b generation:i created_at_us:i seal",
    "scope_keys": "org:s scope_id:b wrapped:b kek_version:i kek_fingerprint:b generation:i created_at_us:i seal",
    "sessions": "org:s session_id:s scope_id:b subject:s dialect:s tag:s version:i next_number:i suspended:s? "
    "batches:i restores:i tokens_saved:i created_at_us:i stamp:b books:s seal",
    "results": "org:s scope_id:b number:i version:i seen:i call_id:b tool_name:b result_tool_name:b? own:s? kind:s? "
    "sensitivity:s media_type:s size_chars:i size_bytes:i tokens:i labelled:i observed_at_us:i observed_by:s "
    "content_tag:b labelled_tag:b? origin:i? part:b? state:s note_tag:b? rendering:s? live_ask:s? note_tokens:i "
    "batch_id:b? original_id:b? dek_id:b? envelope_sha256:b? sealed_size:i? closed:b? archived_at_us:i? "
    "retention_until_us:i? seal",
    "originals": "org:s original_id:b envelope:b",
    "objects": "org:s original_id:b key:s size_bytes:i part_bytes:i state:s expires_at_us:i created_at_us:i seal",
    "batches": "org:s scope_id:b batch_id:b request_tag:b idempotency_key:s? receipt:s created_at_us:i seal",
    "postings": "org:s scope_id:b book:s seq:i closed:b created_at_us:i seal",
    "audit_heads": "org:s size:i frontier:b last_leaf_hash:b policy_digest:s? custody_version:i seal",
    "audit_leaves": "org:s seq:i leaf:b",
    "holds": "org:s hold_id:b scope_id:b? number:i? reason:b placed_by:s placed_at_us:i released_by:s? "
    "released_at_us:i? seal",
    "shreds": "org:s shred_id:b scope_id:b? number:i? kek_version:i requested_by:s requested_at_us:i "
    "completed_at_us:i? seal",
    "checkpoints": "org:s size:i note:s frontier:b created_at_us:i seal",
    "custody": "org:s kek_floor:i originals:i original_bytes:i holds:i version:i seal",
    "org_names": "org:s name:s",
}
"""Of every table its columns in order: the letter that a seal has for their type, and whether they may be absent.

A table with a column ``seal`` is sealed, in all columns before it.
"""

ADDED: dict[str, dict[str, Any]] = {"audit_heads": {"custody_version": 0}, "sessions": {"books": ""}}
"""Columns that were added to sealed rows, the last ones before the seal, which leaves them out while they are so."""

NO_ORG = "\x01"
SCHEMAS = {
    "0003": {"postings": None, "sessions": {"books": ""}},
    "0004": {},
}
"""The schemas there are: what each lacks of the tables below, a table, or columns with what they would hold."""
TYPES = {"b": bytes, "s": str, "i": int}

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def columns_of(table: str) -> list[str]:
    """The names of a table's columns."""
    return [one.partition(":")[0] for one in LAYOUT[table].split()]


def read_database(path: Path) -> Tables:
    """All rows of an SQLite file that nobody writes to."""
    with strictly("database"), closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as file:
        ((schema,),) = file.execute("SELECT version_num FROM evidence_archive_version").fetchall()
        need(schema in SCHEMAS, "a schema")
        tables: Tables = {}
        for table in LAYOUT:
            lacking = SCHEMAS[schema].get(table, {})
            rows = [] if lacking is None else file.execute(f"SELECT * FROM {table}").fetchall()
            names = [name for name in columns_of(table) if not lacking or name not in lacking]
            named = [{**dict(zip(names, row, strict=True)), **(lacking or {})} for row in rows]
            tables[table] = [{name: row[name] for name in columns_of(table)} for row in named]
        return tables


def row_seal(row_key: bytes, table: str, row: Row) -> bytes:
    """The seal that a row should have."""
    letters, fields = "", b""
    names, added = columns_of(table)[:-1], ADDED.get(table, {})
    while names[-1] in added and row[names[-1]] == added[names[-1]]:
        names.pop()
    for name in names:
        value = row[name]
        letters += "n" if value is None else next(one for one, kind in TYPES.items() if type(value) is kind)
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        fields += pack([b"%d" % data if isinstance(data, int) else data])
    return hmac.digest(row_key, b"evidence-archive/v1/row-seal\x00" + fields_of(table, letters) + fields, "sha256")


def check_types(table: str, row: Row) -> None:
    """Return only if every column holds what it may."""
    for column in LAYOUT[table].split():
        name, _, letter = column.partition(":")
        kind = TYPES[letter[:1] or "b"]
        need(type(row[name]) is kind or (row[name] is None and letter.endswith("?")), f"the type of {table}.{name}")


def read_objects(folder: Path) -> Callable[[str], bytes]:
    """Gives the objects in a folder by name; the folder's own mark is looked at first."""
    with strictly("folder of objects"):
        mark = (folder / "evidence-archive-objects").read_bytes()
        need(re.fullmatch(rb"evidence-archive/objects/1 [0-9a-f]{32}\n", mark), "the mark")

    def read(name: str) -> bytes:
        need(re.fullmatch(r"[0-9a-f]{2}/[0-9a-f]{30}\.[0-9]{5}", name), "the name of an object")
        with strictly("an object is not there"):
            return (folder / name).read_bytes()

    return read


def content_tag(tag_key: bytes, data: bytes, encoding: bytes) -> bytes:
    """The tag of an original, from its exact bytes."""
    if encoding == b"parts":
        marks = ("cache_control", "prompt_cache_breakpoint")
        parts = [
            {key: value for key, value in part.items() if key not in marks} if isinstance(part, dict) else part
            for part in json.loads(data)
        ]
        data = json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode()
    label = b"evidence-archive/v1/content-tag\x00" + pack([encoding])
    return hmac.digest(tag_key, label + hashlib.sha256(data).digest(), "sha256")


def labelled(opened: dict[str, bytes], label: str) -> bytes:
    """The exact bytes of an original as a view shows it with its label."""
    if opened["encoding"] == b"text":
        return f"{label}\n".encode() + opened["data"]
    parts = [{"type": "text", "text": label}, *json.loads(opened["data"])]
    return json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode()


class Org:
    """Everything that is stored of one org, read and compared with everything else that says something of it.

    Args:
        tables: from :func:`read_database`.
        org: its name.
        unwrap: from :func:`roots_unwrap` or :func:`service_unwrap`.
        read_object: from :func:`read_objects`, where originals lie outside the database.
    """

    def __init__(
        self, tables: Tables, org: str, unwrap: Unwrap, read_object: Callable[[str], bytes] | None = None
    ) -> None:
        self.org, self.unwrap, self.read_object = org, unwrap, read_object
        self.tables = {table: [row for row in rows if row["org"] == org] for table, rows in tables.items()}
        for table, rows in self.tables.items():
            for row in rows:
                check_types(table, row)
        names = [row["name"] for row in tables["org_names"] if row["org"] == NO_ORG]
        need(org in names and len(self.tables["orgs"]) == 1, "there is no such org")
        for row in tables["objects"]:
            if row["org"] == NO_ORG:
                used = {**dict.fromkeys(row, 0), "org": NO_ORG, "original_id": b"", "key": "", "state": "used"}
                need(row == {**used, "seal": b""}, "the row that says that objects are used")
        self.row = self.tables["orgs"][0]
        self.deployment: bytes = self.row["deployment"]
        self.origin = f"evidence-archive/{self.deployment.hex()}"
        self.originals: dict[tuple[str, str], dict[str, bytes]] = {}
        self.notes: dict[tuple[str, str], str] = {}
        self.parts: dict[tuple[str, str], str] = {}
        self.books: dict[tuple[str, str], list[Any]] = {}
        self.shredded: set[tuple[str, str]] = set()
        self.hashes: list[bytes] = []
        self.entries = self._log()
        self.is_shredded = not self.row["aux_wrapped"]
        if not self.is_shredded:
            self._open_keys()
            self._seals()
            self.line = key_line(self.origin, self._public())
            self.reasons = self._reasons()
            self._heads(self.line)
            self._custody()
            self._acts()
            for session in self.tables["sessions"]:
                self._session(session)
            self._nothing_besides()

    def bound(self, label: str, *fields: str | bytes | int | None) -> bytes:
        """A context that begins with a label, the deployment and the org."""
        return b"evidence-archive/v1/" + label.encode() + b"\x00" + fields_of(self.deployment, self.org, *fields)

    def wrapped_under(self, level: str, row: Row, wrapped: bytes, scope_id: bytes | None) -> bytes:
        """A key that the provider wrapped."""
        place = (level, self.deployment, self.org, scope_id, None, row["generation"], row["kek_version"])
        context = b"evidence-archive/v1/wrap\x00" + fields_of(*place)
        return self.unwrap(self.org, row["kek_version"], row["kek_fingerprint"], wrapped, context)

    def opened_text(self, sealed: bytes, what: bytes, place: bytes) -> str:
        """The reason of a hold."""
        return decrypt(self.audit_key, self.bound("text", what, place), sealed).decode("utf-8", "surrogatepass")

    def head(self) -> tuple[int, bytes]:
        """Size and root of the log."""
        return len(self.hashes), root_of(self.hashes)

    def check_heads(self, line: str) -> None:
        """Of an org that was shredded too: its signed heads, with the line that an auditor kept."""
        self._heads(line)

    # --- its parts ----------------------------------------------------------------------------------------------

    def _log(self) -> list[dict[str, Any]]:
        leaves = sorted(self.tables["audit_leaves"], key=lambda row: row["seq"])
        entries = [read_leaf(row["leaf"]) for row in leaves]
        for seq, (row, entry) in enumerate(zip(leaves, entries, strict=True)):
            need((row["seq"], entry["seq"], entry["org"]) == (seq, seq, self.org), "an entry of another place")
        self.hashes = [leaf_hash(row["leaf"]) for row in leaves]
        (head,) = self.tables["audit_heads"] or [{}]
        need(head and entries, "there is no log")
        loaded = [entry["policy_digest"] for entry in entries if entry["event"] == "policy.loaded"]
        told = (head["size"], head["frontier"], head["last_leaf_hash"], head["policy_digest"])
        need(told == (len(entries), frontier_of(self.hashes), self.hashes[-1], (loaded or [None])[-1]), "the head")
        return entries

    def _open_keys(self) -> None:
        need(self.row["generation"] == 1, "a generation")
        aux = self.wrapped_under("aux", self.row, self.row["aux_wrapped"], None)
        self.row_key = hkdf(aux, b"evidence-archive/v1/row")
        self.audit_key = hkdf(aux, b"evidence-archive/v1/audit-metadata")
        self.seed = hkdf(aux, b"evidence-archive/v1/checkpoint")

    def _public(self) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()

    def _seals(self) -> None:
        for table, rows in self.tables.items():
            for row in rows:
                if "seal" in row:
                    need(row["seal"] == row_seal(self.row_key, table, row), f"the seal of a row of {table}")

    def _heads(self, line: str) -> None:
        for row in self.tables["checkpoints"]:
            size, root = open_head(row["note"], line)
            need(size == row["size"] <= len(self.hashes), "a head of another size")
            before = self.hashes[:size]
            need(root == root_of(before) and row["frontier"] == frontier_of(before), "a head of another log")

    def _reasons(self) -> dict[str, str]:
        """The reasons of restores by entry, and of holds."""
        found = {}
        for entry in self.entries:
            if entry["sealed_reason"] is not None:
                words = decrypt(self.audit_key, self.bound("reason", entry["seq"]), entry["sealed_reason"])
                found[f"entry {entry['seq']}"] = words.decode("utf-8", "surrogatepass")
        for row in self.tables["holds"]:
            found[row["hold_id"].hex()] = self.opened_text(row["reason"], b"hold", row["hold_id"])
            need((row["released_by"] is None) == (row["released_at_us"] is None), "half a release")
        return found

    def _acts(self) -> None:
        """Holds and shreds keep who did them first, also where they were done again."""
        for table, event, column, by, again in (
            ("holds", "hold.placed", "hold_id", "placed_by", "placed_by"),
            ("holds", "hold.released", "hold_id", "released_by", "requested_by"),
            ("shreds", "shred.requested", "shred_id", "requested_by", "requested_by"),
        ):
            name = event.partition(".")[0]
            told = {
                one["details"][name]: one["details"].get(again, one["subject"])
                for one in self.entries
                if one["event"] == event and name in one["details"]
            }
            for row in self.tables[table]:
                need(row[by] == told.get(row[column].hex()), f"the log knows another {by}")

    def _custody(self) -> None:
        kept = [
            row for row in self.tables["results"] if row["state"] == "archived" and row["original_id"] is not None
        ]
        (head,) = self.tables["audit_heads"]
        versions = [row["version"] for row in self.tables["custody"]]
        need((versions or [0]) == [head["custody_version"]], "the head knows another version of what is in keeping")
        for row in self.tables["custody"]:
            told = (row["originals"], row["original_bytes"], row["holds"])
            so = (len(kept), sum(one["size_bytes"] for one in kept), len(self.tables["holds"]))
            need(told == so, "what is in keeping")
            for one in (self.row, *self.tables["scope_keys"]):
                wrapped = one["aux_wrapped"] if "aux_wrapped" in one else one["wrapped"]
                need(not wrapped or one["kek_version"] >= row["kek_floor"], "a wrapped key is below the floor")

    def _session(self, session: Row) -> None:
        scope_id, name = session["scope_id"], session["session_id"]
        (scope,) = [row for row in self.tables["scope_keys"] if row["scope_id"] == scope_id] or [{}]
        need(scope, "a session has no key")
        if not scope["wrapped"]:
            need(session["suspended"] == "shredded", "a session without a key goes on")
        key, tag_key = self._scope_keys(scope) if scope["wrapped"] else (b"", b"")
        rows = [row for row in self.tables["results"] if row["scope_id"] == scope_id]
        numbers = sorted(row["number"] for row in rows)
        need(numbers == list(range(1, session["next_number"])), "a result is missing")
        for row in rows:
            need(row["version"] <= session["version"], "a result of a later version")
            self._result(session, row, key, tag_key)
        for batch in self.tables["batches"]:
            if batch["scope_id"] == scope_id:
                self._batch(name, batch, tag_key)
        self._postings(session, tag_key)

    def _postings(self, session: Row, tag_key: bytes) -> None:
        """What is in the session's books, which is what the log says, and opens."""
        scope_id, name = session["scope_id"], session["session_id"]
        told = {}
        for entry in self.entries:
            if entry["event"] == "book.posted" and entry["session_id"] == name:
                details = entry["details"]
                for at, digest in enumerate(details["digests"], details["first"]):
                    told[details["book"], at] = digest
        rows = [row for row in self.tables["postings"] if row["scope_id"] == scope_id]
        there = {(row["book"], row["seq"]): hashlib.sha256(row["closed"]).hexdigest() for row in rows}
        counts = strict_json(session["books"].encode("utf-8", "surrogatepass")) if session["books"] else {}
        written = json.dumps(counts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        need(written == session["books"] or not session["books"], "how books are counted")
        numbered = {(book, at) for book, count in counts.items() for at in range(1, count + 1)}
        need(there == told and told.keys() == numbered, "what is in a book")
        for row in rows if tag_key else []:
            key = hkdf(tag_key, b"evidence-archive/v1/posting")
            context = self.bound("posting", scope_id, row["book"], row["seq"])
            content = json.loads(decrypt(key, context, row["closed"]).decode("utf-8", "surrogatepass"))
            self.books.setdefault((name, row["book"]), []).append(content)

    def _scope_keys(self, scope: Row) -> tuple[bytes, bytes]:
        """The key of a session, and the key of its tags."""
        if scope["generation"] == 1:
            key = self.wrapped_under("scope", scope, scope["wrapped"], scope["scope_id"])
            return key, hkdf(key, b"evidence-archive/v1/tag")
        fields = unpack(scope["wrapped"])
        need(len(fields) == 2 and None not in fields, "a wrapped key and a closed one")
        key = self.wrapped_under("scope", scope, fields[0] or b"", scope["scope_id"])
        context = self.bound("scope-tag", scope["scope_id"], scope["generation"])
        return key, decrypt(key, context, fields[1] or b"")

    def _result(self, session: Row, row: Row, key: bytes, tag_key: bytes) -> None:
        result_id, scope_id = f"r{row['number']}", session["scope_id"]
        place = session["session_id"], result_id
        if row["state"] == "shredded":
            need((row["closed"], row["part"]) == (None, None), "something is left of what was shredded")
            need(
                all(one["original_id"] != row["original_id"] for one in self.tables["originals"]),
                "an envelope is left",
            )
            for one in self.tables["objects"]:
                of_this = one["original_id"] == row["original_id"]
                need(not of_this or one["state"] in ("abandoned", "emptied"), "objects are left")
            self.shredded.add(place)
            return
        if row["part"] is not None:
            need(row["origin"] is not None, "a part that is of nothing")
            self.parts[place] = decrypt(key, self.bound("part", scope_id, result_id), row["part"]).decode("ascii")
            need(re.fullmatch(r"lines:\d+-\d+|pattern:\d+:.*|pointer:.*", self.parts[place], re.S), "a selector")
        if row["state"] == "live":
            need(
                (row["closed"], row["original_id"], row["batch_id"]) == (None, None, None), "a live result is sealed"
            )
            return
        need(row["state"] == "archived" and row["closed"] is not None, "a state")
        bound = (scope_id, row["original_id"], row["dek_id"], result_id)
        context = b"evidence-archive/v1/wrap\x00" + fields_of("original", self.deployment, self.org, *bound)
        fields = unpack(decrypt(key, context, row["closed"]))
        need(len(fields) == 2 and None not in fields, "a key and a note")
        dek, note = fields[0] or b"", fields[1] or b""
        self.notes[place] = note.decode("utf-8", "surrogatepass")
        if row["origin"] is None:
            self.originals[place] = self._original(session, row, dek, tag_key)
        else:
            need((dek, row["original_id"], row["dek_id"]) == (b"", None, None), "a copy with a key of its own")

    def _original(self, session: Row, row: Row, dek: bytes, tag_key: bytes) -> dict[str, bytes]:
        envelope = self.envelope(row)
        need(hashlib.sha256(envelope).digest() == row["envelope_sha256"], "an envelope is another one")
        need(envelope[8:40] == row["original_id"] + row["dek_id"], "the ids of an envelope")
        names = [self.deployment, self.org, session["session_id"], f"r{row['number']}", row["call_id"]]
        tool = row["tool_name"].decode("utf-8", "surrogatepass")
        slot = [*names, tool, row["kind"], row["media_type"], row["observed_at_us"]]
        opened = open_envelope(envelope, slot, dek, row["sealed_size"])
        need(len(opened["data"]) == row["size_bytes"], "another size")
        need(content_tag(tag_key, opened["data"], opened["encoding"]) == row["content_tag"], "the content's tag")
        if row["labelled_tag"] is not None:
            shown = labelled(opened, f"[evidence r{row['number']} tag={session['tag']}]")
            need(content_tag(tag_key, shown, opened["encoding"]) == row["labelled_tag"], "the labelled content's tag")
        media_types = {b"text": "text/plain", b"parts": "application/json"}
        need(media_types.get(opened["encoding"]) == row["media_type"], "a media type")
        facts = unpack(opened["acl"])
        need(len(facts) == 3 and facts[0] == as_field(session["subject"]), "the facts of an original")
        need(opened["trust"] == b"tool-output", "the trust label of an original")
        (batch,) = [entry for entry in self.entries if entry["batch_id"] == row["batch_id"].hex()] or [None]
        told = (
            []
            if batch is None
            else list(zip(batch["details"]["results"], batch["details"]["envelopes"], strict=True))
        )
        need((f"r{row['number']}", row["envelope_sha256"].hex()) in told, "the log does not know an envelope")
        return opened

    def envelope(self, row: Row) -> bytes:
        """The envelope of a result, out of its row or of its objects."""
        original_id = row["original_id"]
        inside = [one["envelope"] for one in self.tables["originals"] if one["original_id"] == original_id]
        places = [one for one in self.tables["objects"] if one["original_id"] == original_id]
        need(len(inside) + len(places) == 1, "an original is not there, or twice")
        if inside:
            return bytes(inside[0])
        place = places[0]
        need(place["state"] == "stored" and self.read_object is not None, "an object that is not stored")
        size, part = place["size_bytes"], place["part_bytes"]
        names = [f"{place['key']}.{number:05d}" for number in range(-(-size // part))]
        parts = [self.read_object(name) for name in names] if self.read_object is not None else []
        expected = [min(part, size - at) for at in range(0, size, part)]
        need([len(one) for one in parts] == expected, "the size of an object")
        return b"".join(parts)

    def _batch(self, session_id: str, row: Row, tag_key: bytes) -> None:
        receipt = strict_json(row["receipt"].encode())
        need(receipt.keys() == {"targets", "before", "after", "estimated"}, "a receipt")
        entries = [entry for entry in self.entries if entry["batch_id"] == row["batch_id"].hex()]
        need(len(entries) == 1 and entries[0]["event"] == "batch.accepted", "the log does not know a batch")
        results = [one[0] for one in receipt["targets"]]
        need(
            (entries[0]["session_id"], entries[0]["details"]["results"]) == (session_id, results), "a batch of others"
        )
        known = [self.notes.get((session_id, result_id)) for result_id in results]
        if row["idempotency_key"] is not None and tag_key and None not in known:
            pairs = [one for pair in zip(results, known, strict=True) for one in pair]
            fields = pack([str(one).encode("utf-8", "surrogatepass") for one in [row["idempotency_key"], *pairs]])
            tag = hmac.digest(tag_key, b"evidence-archive/v1/request-tag\x00" + fields, "sha256")
            need(tag == row["request_tag"], "the tag of a request")

    def _nothing_besides(self) -> None:
        named = {row["original_id"] for row in self.tables["results"] if row["original_id"] is not None}
        stored = [row for row in self.tables["objects"] if row["state"] == "stored"]
        need(
            all(row["original_id"] in named for row in [*self.tables["originals"], *stored]), "an original of nothing"
        )
        scopes = {row["scope_id"] for row in self.tables["sessions"]}
        for table in ("results", "batches", "postings", "scope_keys"):
            need(
                all(row["scope_id"] in scopes for row in self.tables[table]), f"a row of {table} without its session"
            )
        for table, column, event in (
            ("sessions", "session_id", "session.opened"),
            ("batches", "batch_id", "batch.accepted"),
            ("holds", "hold_id", "hold.placed"),
            ("shreds", "shred_id", "shred.requested"),
        ):
            there = {one.hex() if isinstance(one := row[column], bytes) else one for row in self.tables[table]}
            told = {
                entry[column] if column in entry else entry["details"].get(event.partition(".")[0])
                for entry in self.entries
                if entry["event"] == event
            }
            need(there == told, f"the log and the table {table} know others")


def read_archive(tables: Tables, unwrap: Unwrap, read_object: Callable[[str], bytes] | None = None) -> dict[str, Org]:
    """All orgs of a database, with everything in them opened and compared."""
    need(all(row["org"] == NO_ORG for row in tables["org_names"]), "a name of an org is elsewhere")
    names = [row["name"] for row in tables["org_names"]]
    for table, rows in tables.items():
        if table != "org_names":
            known = {*names, NO_ORG} if table == "objects" else set(names)
            need(all(row["org"] in known for row in rows), f"a row of {table} of no org")
    return {name: Org(tables, name, unwrap, read_object) for name in names}


# --- files outside ------------------------------------------------------------------------------------------------


def read_anchor_file(data: bytes, line: str) -> list[tuple[int, bytes]]:
    """The heads of a log that an anchor file holds, all of them signed by its key."""
    heads = []
    for one in data.decode("ascii").splitlines(keepends=True):
        told = strict_json(one.encode())
        need(one.endswith("\n") and told.keys() == {"origin", "size", "note"}, "a line")
        if told["origin"] == line.partition("+")[0]:
            heads.append(open_head(told["note"], line))
            need(heads[-1][0] == told["size"], "the size of a head")
    return heads


def anchor_object(origin: str, number: int) -> str:
    """The name of the object that holds head ``number`` of a log."""
    name = hashlib.sha256(b"evidence-archive/v1/anchor\x00" + fields_of(origin, number)).hexdigest()
    return f"{name[:2]}/{name[2:32]}.00000"


def read_register(data: bytes, line: str) -> list[dict[str, Any]]:
    """The acts on one org that a register holds: ``entry``, ``reason`` (sealed) and ``of`` (an entry)."""
    acts = []
    for one in data.splitlines(keepends=True):
        if not one.endswith(b"\n"):
            break
        told = strict_json(one)
        need(told.keys() == {"origin", "proof", "of", "reason"}, "a line")
        if told["origin"] != line.partition("+")[0]:
            continue
        entry, _, _ = open_proof(told["proof"], line)
        reason = None if told["reason"] is None else unbase64(told["reason"])
        of = None if told["of"] is None else open_proof(told["of"], line)[0]
        events = ("hold.placed", "hold.released", "retention.extended", "shred.requested", "backup.restored")
        need(entry["event"] in events and (reason is not None) == (entry["event"] == "hold.placed"), "an act")
        first = {"replayed", "placed_by" if entry["event"] == "hold.placed" else "requested_by"}
        need(len(first & entry["details"].keys()) in (0, 2), "half of who did it first")
        about = entry["session_id"] is not None and entry["event"] != "hold.released"
        need((of is not None) == about, "what an act is about")
        if of is not None:
            result = entry["details"].get("result")
            begun = of["details"]["results"] if of["event"] == "batch.accepted" else [None]
            need(of["event"] in ("batch.accepted", "session.opened"), "what an act is about")
            need(of["session_id"] == entry["session_id"] and result in begun, "what an act is about")
        acts.append({"entry": entry, "reason": reason, "of": of})
    return acts


def read_bundle(data: bytes, line: str) -> dict[str, Any]:
    """What an evidence bundle holds: ``provenance``, ``entries`` and the ``originals`` by result ID."""
    with strictly("bundle"), zipfile.ZipFile(io.BytesIO(data)) as bundle:
        infos = bundle.infolist()
        files = {info.filename: bundle.read(info) for info in infos}
        need(len(files) == len(infos), "a file is twice in a bundle")
        bare = infos[0].header_offset == 0 and data[-22:-18] == b"PK\x05\x06" and data[-2:] == b"\0\0"
        need(bare, "something is before or behind the files")
        need(all((i.compress_type, i.date_time, i.external_attr >> 16) == PLAIN_MEMBER for i in infos), "a member")
        need(files["key.txt"].decode() == line + "\n", "a bundle of another log")
        note = files["checkpoint.txt"].decode()
        open_head(note, line)
        named = [re.fullmatch(r"proofs/(0|[1-9]\d*)\.tlog-proof", name) for name in files]
        seqs = [int(one[1]) for one in named if one]
        need(seqs == sorted(seqs) and seqs, "the order of proofs")
        entries = []
        for seq in seqs:
            entry, _, own = open_proof(files[f"proofs/{seq}.tlog-proof"].decode(), line)
            need(own == note and entry["seq"] == seq, "a proof of another head or entry")
            entries.append(entry)
        export, told = entries[-1], strict_json(files["provenance.json"])
        digests = {name: hashlib.sha256(files[name]).hexdigest() for name in ("README.txt", "provenance.json")}
        need(export["event"] == "evidence.exported" and export["details"]["files"] == digests, "an exported file")
        need(export["details"]["entries"] == seqs[:-1] and told["format"] == "evidence-archive/bundle/1", "a bundle")
        need((export["org"], export["session_id"]) == (told["org"], told["session"]), "of another session")
        need(export["details"]["results"] == [one["id"] for one in told["results"]], "other results")
        names = ["README.txt", "provenance.json", "key.txt", "checkpoint.txt", *(one[0] for one in named if one)]
        originals = {}
        for one in told["results"]:
            batches = [entry["details"] for entry in entries if entry["event"] == "batch.accepted"]
            pairs = [pair for d in batches for pair in zip(d["results"], d["envelopes"], strict=True)]
            need((one["id"], one["envelope_sha256"]) in pairs, "the log does not know an envelope")
            if one["original"]:
                folder = f"originals/{one['id']}"
                names += [f"{folder}/{part}" for part in ("opening.json", "envelope.bin", "content")]
                originals[one["id"]] = bundled_original(files, folder, told, one, bytes.fromhex(line[17:49]))
        need(list(files) == names, "a file is missing, was added or is in another place")
        return {"provenance": told, "entries": entries, "originals": originals}


PLAIN_MEMBER = (zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0), 0o100600)
"""Stored, of no time, a plain file of mode 0600."""


def bundled_original(files: dict[str, bytes], folder: str, told: Row, one: Row, deployment: bytes) -> bytes:
    """The exact bytes of an original of a bundle."""
    opening, envelope = strict_json(files[f"{folder}/opening.json"]), files[f"{folder}/envelope.bin"]
    need(opening.keys() == {"original_id", "dek_id", "sealed_size", "dek"}, "an opening")
    written = json.dumps(opening, ensure_ascii=True, sort_keys=True, indent=1).encode() + b"\n"
    need(written == files[f"{folder}/opening.json"], "an opening that was changed")
    need(hashlib.sha256(envelope).hexdigest() == one["envelope_sha256"], "another envelope")
    need(envelope[8:40].hex() == opening["original_id"] + opening["dek_id"], "the ids of an envelope")
    call_id = one["tool_call_id"].encode("utf-8", "surrogatepass")
    slot = [deployment, told["org"], told["session"], one["id"], call_id, one["tool"], one["kind"]]
    slot += [one["media_type"], one["observed_at_us"]]
    opened = open_envelope(envelope, slot, bytes.fromhex(opening["dek"]), opening["sealed_size"])
    need(
        opened["data"] == files[f"{folder}/content"] and len(opened["data"]) == one["size_bytes"], "another original"
    )
    return opened["data"]


def read_backup(folder: Path, unwrap: Unwrap) -> dict[str, Org]:
    """All orgs of a backup, once its files are those of its manifest, and the orgs what it says of them."""
    with strictly("backup"):
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        need("manifest.json" in names and "THIS-IS-NO-BACKUP.txt" not in names, "no backup")
        told = strict_json((folder / "manifest.json").read_bytes())
        need(told.keys() == {"format", "made_at", "made_at_us", "made_by", "orgs", "files"}, "a manifest")
        need(told["format"] == "evidence-archive/backup/1" and type(told["made_at_us"]) is int, "a manifest")
        need([one["path"] for one in told["files"]] == sorted(names - {"manifest.json"}), "a file")
        for one in told["files"]:
            data = (folder / one["path"]).read_bytes()
            expected = {"path": one["path"], "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            need(one == expected, "a file was changed")
        objects = folder / "evidence.db.objects"
        read_object = read_objects(objects) if objects.is_dir() else None
        orgs = read_archive(read_database(folder / "evidence.db"), unwrap, read_object)
        need([one["org"] for one in told["orgs"]] == sorted(orgs), "other orgs")
        for one in told["orgs"]:
            org = orgs[one["org"]]
            if org.is_shredded:
                shredded = {"org": one["org"], "originals": None, "size": 0, "root": "", "checkpoint": None}
                need(one == shredded, "an org that was shredded")
                continue
            size, root = org.head()
            counts = {"org": one["org"], "originals": len(org.originals), "size": size, "root": root.hex()}
            need(one == {**counts, "checkpoint": one["checkpoint"]}, "what an org holds")
            need(open_head(one["checkpoint"], org.line) == (size, root), "the head of an org")
        return orgs
