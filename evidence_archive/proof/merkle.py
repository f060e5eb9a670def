"""The Merkle tree over an audit log: RFC 6962 section 2.1, unchanged in RFC 9162 section 2.1.1, with SHA-256."""

from collections.abc import Sequence
from hashlib import sha256

from evidence_archive.errors import AuditBrokenError

__all__ = ["EMPTY_ROOT", "HASH_BYTES", "SIZE_MAX", "Frontier", "leaf_hash", "node_hash", "root_of"]

HASH_BYTES = 32
SIZE_MAX = 2**63 - 1
"""Most leaves a log may have: what a signed 64-bit column holds."""

EMPTY_ROOT = sha256(b"").digest()
"""The root of a log without leaves."""


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of a leaf's bytes: SHA-256 of ``00 | leaf`` (RFC 9162 section 2.1.1)."""
    return sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees: SHA-256 of ``01 | left | right`` (RFC 9162 section 2.1.1)."""
    return sha256(b"\x01" + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """The root over leaf hashes, straight from the definition (RFC 9162 section 2.1.1); needs all of them.

    Args:
        hashes: leaf hashes in order, from :func:`leaf_hash`.
    """
    if not hashes:
        return EMPTY_ROOT
    if len(hashes) == 1:
        return hashes[0]
    split = 1 << ((len(hashes) - 1).bit_length() - 1)
    return node_hash(root_of(hashes[:split]), root_of(hashes[split:]))


class Frontier:
    """The roots of a log's complete subtrees: all that appending and the root need, at most 63 hashes."""

    __slots__ = ("_roots", "_size")

    def __init__(self) -> None:
        self._roots: list[bytes] = []
        self._size = 0

    @property
    def size(self) -> int:
        """Leaves appended so far."""
        return self._size

    def append(self, leaf: bytes) -> None:
        """Adds a leaf hash at the end.

        Args:
            leaf: from :func:`leaf_hash`.

        Raises:
            AuditBrokenError: the log is full, or this is not a hash.
        """
        if len(leaf) != HASH_BYTES or self._size >= SIZE_MAX:
            raise AuditBrokenError("The audit log cannot grow: the entry has no hash, or the log is full.")
        size = self._size
        while size & 1:
            leaf = node_hash(self._roots.pop(), leaf)
            size >>= 1
        self._roots.append(leaf)
        self._size += 1

    def root(self) -> bytes:
        """The root over all leaves, 32 bytes."""
        if not self._roots:
            return EMPTY_ROOT
        root = self._roots[-1]
        for left in self._roots[-2::-1]:
            root = node_hash(left, root)
        return root

    def to_bytes(self) -> bytes:
        """The subtree roots, largest subtree first, 32 bytes each."""
        return b"".join(self._roots)

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> "Frontier":
        """The frontier that :meth:`to_bytes` wrote for a log of this size.

        Args:
            size: leaves in the log, 0 to 2**63 - 1.
            data: one root of 32 bytes for every bit that is set in ``size``.

        Raises:
            AuditBrokenError: size and data do not belong together.
        """
        if not 0 <= size <= SIZE_MAX or len(data) != HASH_BYTES * size.bit_count():
            raise AuditBrokenError("The head of the audit log is not one this library wrote.")
        frontier = cls()
        frontier._size = size
        frontier._roots = [bytes(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES)]
        return frontier
