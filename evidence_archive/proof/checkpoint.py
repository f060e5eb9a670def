"""Signed heads of an audit log, and proofs that are verified with the public key alone.

A checkpoint is a C2SP ``tlog-checkpoint``: a C2SP ``signed-note`` with an Ed25519 signature (RFC 8032). A proof of
one entry is a C2SP ``tlog-proof`` that carries the entry's bytes as its extra data. All three specifications are at
https://c2sp.org; the tree is that of RFC 9162 section 2.1.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from evidence_archive.errors import AuditBrokenError, FormatError
from evidence_archive.proof.leaf import LEAF_BYTES_MAX, Leaf, decode_leaf
from evidence_archive.proof.merkle import HASH_BYTES, SIZE_MAX, leaf_hash, verify_inclusion

__all__ = [
    "CHECKPOINT_BYTES_MAX",
    "PROOF_BYTES_MAX",
    "SEED_BYTES",
    "Checkpoint",
    "Proof",
    "Signer",
    "VerifierKey",
    "format_proof",
    "open_checkpoint",
    "open_proof",
    "read_checkpoint",
]

CHECKPOINT_BYTES_MAX = 64 * 1024
"""Longest signed note that is read, in bytes: room for ours and for those who cosign it."""

PROOF_BYTES_MAX = CHECKPOINT_BYTES_MAX + 2 * LEAF_BYTES_MAX
"""Longest proof that is read, in bytes."""

SEED_BYTES = 32
"""Length of an Ed25519 private key (RFC 8032 section 5.1.5)."""

_ED25519 = b"\x01"
_KEY_ID_BYTES = 4
_SIGNATURE_BYTES = 64
_SIGNATURES_MAX = 64
_NAME_BYTES_MAX = 255
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f]+")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_DASH = "\N{EM DASH} "
_PROOF = "c2sp.org/tlog-proof@v1"
_EXTRA = "extra "
_INDEX = "index "
_UNSIGNED = "A checkpoint is not signed by this key, or was changed."
_NO_CHECKPOINT = "A checkpoint is not in the form of one."
_NO_PROOF = "A proof is not in the form of one."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The head of a log.

    Args:
        origin: which log; the name of the key that signs for it.
        size: entries.
        root: over them, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """What is signed (C2SP tlog-checkpoint), without extension lines."""
        return f"{self.origin}\n{self.size}\n{_b64(self.root)}\n"


@dataclass(frozen=True, slots=True)
class Proof:
    """One entry of a log, shown to be there.

    Args:
        leaf: the entry, decoded.
        data: its bytes.
        checkpoint: the head it was shown under.
    """

    leaf: Leaf
    data: bytes
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public key of a log: all that verifying needs.

    Args:
        name: of the key, and origin of the log: no spaces, no plus, at most 255 bytes.
        public: 32 bytes (RFC 8032).

    Raises:
        FormatError: name or key cannot be used.
    """

    name: str
    public: bytes

    def __post_init__(self) -> None:
        if not _is_name(self.name) or type(self.public) is not bytes or len(self.public) != SEED_BYTES:
            raise FormatError("A verifier key has a name without spaces and a public key of 32 bytes.")

    @property
    def key_id(self) -> bytes:
        """Four bytes that find the signature in a note; they are not a fingerprint to compare by."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:_KEY_ID_BYTES]

    def text(self) -> str:
        """``name+key id+key`` on one line, as tools for signed notes write it."""
        return f"{self.name}+{self.key_id.hex()}+{_b64(_ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """The key that :meth:`text` wrote.

        Raises:
            FormatError: it is none, or its key id is not that of its name and key.
        """
        parts = text.strip().split("+", 2) if isinstance(text, str) else []
        if len(parts) == 3:
            data = _unb64(parts[2])
            if data is not None and data[:1] == _ED25519 and _is_name(parts[0]) and len(data) == 1 + SEED_BYTES:
                key = cls(parts[0], data[1:])
                if key.text() == text.strip():
                    return key
        raise FormatError("This is not a verifier key of the form name+id+key.")


class Signer:
    """Signs the heads of one log.

    Args:
        name: as in :class:`VerifierKey`.
        seed: 32 uniformly random bytes.

    Raises:
        FormatError: name or seed cannot be used.
    """

    __slots__ = ("_key", "verifier")

    def __init__(self, name: str, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise FormatError("A signing key has exactly 32 bytes.")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier = VerifierKey(name, self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"Signer({self.verifier.name!r})"

    def sign(self, size: int, root: bytes) -> str:
        """The signed note of a head.

        Args:
            size: entries, 0 to 2**63 - 1; never smaller than what was signed before.
            root: over them, 32 bytes.

        Raises:
            FormatError: size or root are out of bounds.
        """
        if not 0 <= size <= SIZE_MAX or len(root) != HASH_BYTES:
            raise FormatError("A head has a size and a root of 32 bytes.")
        text = Checkpoint(self.verifier.name, size, root).text()
        signature = self._key.sign(text.encode())
        return f"{text}\n{_DASH}{self.verifier.name} {_b64(self.verifier.key_id + signature)}\n"


def open_checkpoint(note: str | bytes, key: VerifierKey) -> Checkpoint:
    """The head in a signed note, once this key's signature verified; other signatures are left alone.

    Args:
        note: at most 64 KiB.
        key: whose signature counts; its name has to be the note's origin.

    Raises:
        AuditBrokenError: the note is not signed by this key, or is no checkpoint.
    """
    text, signatures = _split_note(note)
    ours = [value for name, value in signatures if name == key.name and value[:_KEY_ID_BYTES] == key.key_id]
    if not ours:
        raise AuditBrokenError(_UNSIGNED)
    public = Ed25519PublicKey.from_public_bytes(key.public)
    try:
        for value in ours:
            public.verify(value[_KEY_ID_BYTES:], text.encode())
    except InvalidSignature as error:
        raise AuditBrokenError(_UNSIGNED) from error
    checkpoint = _head_of(text)
    if checkpoint.origin != key.name:
        raise AuditBrokenError("A checkpoint is of another log than the one this key signs for.")
    return checkpoint


def read_checkpoint(note: str | bytes) -> Checkpoint:
    """The head in a signed note, NOT verified: for who has no key, or to compare it with what is trusted otherwise.

    Args:
        note: at most 64 KiB.

    Raises:
        AuditBrokenError: it is no checkpoint.
    """
    return _head_of(_split_note(note)[0])


def format_proof(leaf: bytes, index: int, path: Sequence[bytes], note: str) -> str:
    """A proof that somebody else can verify, with :func:`open_proof` or another tool for ``tlog-proof``.

    Args:
        leaf: the entry's bytes, at most 1 MiB.
        index: its place.
        path: from :func:`~evidence_archive.proof.merkle.inclusion_proof`.
        note: the signed checkpoint it is proven under.
    """
    lines = [_PROOF, _EXTRA + _b64(leaf), f"{_INDEX}{index}", *map(_b64, path), "", note]
    return "\n".join(lines)


def open_proof(data: str | bytes, key: VerifierKey) -> Proof:
    """The entry that a proof shows, once everything about it verified: nothing but the public key is trusted.

    Args:
        data: what :func:`format_proof` wrote, at most 2 MiB and the checkpoint.
        key: of the log.

    Raises:
        AuditBrokenError: the proof shows nothing under this key, or is none.
        UnsupportedVersionError: a newer version wrote the entry.
    """
    if len(data) > PROOF_BYTES_MAX:
        raise AuditBrokenError(_NO_PROOF)
    head, blank, note = _text_of(data, _NO_PROOF).partition("\n\n")
    lines = head.split("\n")
    if not blank or len(lines) < 3 or lines[0] != _PROOF or not lines[1].startswith(_EXTRA):
        raise AuditBrokenError(_NO_PROOF)
    leaf, path = _unb64(lines[1].removeprefix(_EXTRA)), [_unb64(line) for line in lines[3:]]
    index = lines[2].removeprefix(_INDEX)
    if leaf is None or None in path or not lines[2].startswith(_INDEX) or not _NUMBER.fullmatch(index):
        raise AuditBrokenError(_NO_PROOF)
    checkpoint = open_checkpoint(note, key)
    hashes = [one for one in path if one is not None]
    verify_inclusion(leaf_hash(leaf), int(index), checkpoint.size, hashes, checkpoint.root)
    entry = decode_leaf(leaf)
    if entry.seq != int(index):
        raise AuditBrokenError("The entry of this proof names another place than the one it was shown at.")
    return Proof(entry, leaf, checkpoint)


def _split_note(note: str | bytes) -> tuple[str, list[tuple[str, bytes]]]:
    """The text of a signed note, and its signatures by name (C2SP signed-note)."""
    if len(note) > CHECKPOINT_BYTES_MAX:
        raise AuditBrokenError(_NO_CHECKPOINT)
    whole = _text_of(note, _NO_CHECKPOINT)
    text, blank, block = whole.rpartition("\n\n")
    lines = block.split("\n")
    if not blank or lines.pop() or not 0 < len(lines) <= _SIGNATURES_MAX:
        raise AuditBrokenError(_NO_CHECKPOINT)
    signatures = []
    for line in lines:
        name, space, encoded = line.removeprefix(_DASH).partition(" ")
        value = _unb64(encoded)
        if not line.startswith(_DASH) or not space or not _is_name(name) or value is None or len(value) <= 4:
            raise AuditBrokenError(_NO_CHECKPOINT)
        signatures.append((name, value))
    return text + "\n", signatures


def _head_of(text: str) -> Checkpoint:
    lines = text.split("\n")
    root = _unb64(lines[2]) if len(lines) > 3 else None
    # Extension lines cannot be audited, and this library writes none: signed or not, they are not ours.
    if len(lines) != 4 or root is None or len(root) != HASH_BYTES or not _NUMBER.fullmatch(lines[1]):
        raise AuditBrokenError(_NO_CHECKPOINT)
    size = int(lines[1])
    if size > SIZE_MAX:
        raise AuditBrokenError(_NO_CHECKPOINT)
    return Checkpoint(lines[0], size, root)


def _text_of(data: str | bytes, problem: str) -> str:
    """The text, where it is UTF-8 without control characters but newlines."""
    try:
        text = data if isinstance(data, str) else bytes(data).decode("utf-8")
        text.encode("utf-8")
    except UnicodeError as error:
        raise AuditBrokenError(problem) from error
    if any(character < " " and character != "\n" for character in text):
        raise AuditBrokenError(problem)
    return text


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and len(name.encode()) <= _NAME_BYTES_MAX


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unb64(text: str) -> bytes | None:
    """The bytes of canonical base64 (RFC 4648 section 4), or ``None``."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        return None
    return data if _b64(data) == text else None
