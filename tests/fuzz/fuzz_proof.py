"""Proofs of entries: what verifies is an entry of the log at its place, whatever index and path are claimed."""

from evidence_archive.errors import AuditBrokenError, UnsupportedVersionError
from evidence_archive.proof.checkpoint import Signer, format_proof, open_proof
from evidence_archive.proof.leaf import encode_leaf
from evidence_archive.proof.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)

SIGNER = Signer("evidence-archive/00", bytes(range(32)))
KEY = SIGNER.verifier
LEAVES = [
    encode_leaf(org="north-clinic", seq=at, time_us=at, event="key.created", subject="host") for at in range(13)
]
HASHES = [leaf_hash(leaf) for leaf in LEAVES]
ROOTS = [root_of(HASHES[:size]) for size in range(len(LEAVES) + 1)]
NOTE = SIGNER.sign(len(LEAVES), ROOTS[-1])

SEEDS = (
    b"",
    format_proof(LEAVES[5], 5, inclusion_proof(HASHES, 5, 13), NOTE).encode(),
    format_proof(LEAVES[12], 12, inclusion_proof(HASHES, 12, 13), NOTE).encode(),
    format_proof(LEAVES[0], 0, [], NOTE).encode(),
    format_proof(b"", 0, [b""], NOTE).encode(),
    b"\x01\x05\x0d" + b"".join(inclusion_proof(HASHES, 5, 13)),
    b"\x01\x0c\x0d" + b"".join(inclusion_proof(HASHES, 12, 13)),
    b"\x02\x05\x0d" + b"".join(consistency_proof(HASHES, 5, 13)),
    b"\x02\x08\x0d" + b"".join(consistency_proof(HASHES, 8, 13)),
    b"\x02\x00\x0d",
    b"\x02\x0d\x0d",
)


def one(data: bytes) -> None:
    """As a proof, and as index, size and path of a proof that is one in form."""
    try:
        proof = open_proof(data, KEY)
    except (AuditBrokenError, UnsupportedVersionError):
        pass
    else:
        assert proof.data == LEAVES[proof.leaf.seq], "an entry was shown that the log does not hold there"
    kind, first, second = (data + bytes(3))[:3]
    path = [data[at : at + 32] for at in range(3, len(data), 32)]
    if kind == 1:
        _included(first % 14, second % 14, path)
    elif kind == 2:
        _consistent(first % 14, second % 14, path)


def _included(index: int, size: int, path: list[bytes]) -> None:
    for claimed, hashed in enumerate(HASHES):
        try:
            verify_inclusion(hashed, index, size, path, ROOTS[size])
        except AuditBrokenError:
            continue
        assert claimed == index, "an entry was shown at another place"
        assert path == inclusion_proof(HASHES, index, size)


def _consistent(old: int, size: int, path: list[bytes]) -> None:
    for claimed in range(14):
        try:
            verify_consistency(old, ROOTS[claimed], size, ROOTS[size], path)
        except AuditBrokenError:
            continue
        assert claimed == old, "a log was shown to begin with another one"
        assert path == (consistency_proof(HASHES, old, size) if old else [])
