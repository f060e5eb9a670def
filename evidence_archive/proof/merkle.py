"""The Merkle tree over an audit log, and proofs about it: RFC 9162 section 2.1 (as RFC 6962 section 2.1), SHA-256.

A proof is made in one pass over the leaf hashes, in memory that does not grow with the log: the subtrees it names
are disjoint, so each is rooted while its leaves go by.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from evidence_archive.errors import AuditBrokenError

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "SIZE_MAX",
    "Frontier",
    "consistency_proof",
    "inclusion_proof",
    "leaf_hash",
    "node_hash",
    "root_of",
    "verify_consistency",
    "verify_inclusion",
]

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


# --- proofs -----------------------------------------------------------------------------------------------------


def inclusion_proof(hashes: Iterable[bytes], index: int, size: int) -> list[bytes]:
    """What proves that a leaf is in a log of this size (RFC 9162 section 2.1.3.1).

    Args:
        hashes: the leaf hashes from the first on, at least ``size`` of them; no more are read.
        index: of the leaf, below ``size``.
        size: leaves in the log the proof is for.

    Returns:
        Hashes from the leaf's sibling up to a child of the root, at most 63.

    Raises:
        AuditBrokenError: there is no such leaf in a log of this size, or there are fewer leaves.
    """
    if not 0 <= index < size <= SIZE_MAX:
        raise AuditBrokenError("There is no such entry in a log of this size.")
    siblings = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            siblings.append((middle, high))
            high = middle
        else:
            siblings.append((low, middle))
            low = middle
    return _roots_of(hashes, siblings[::-1])


def consistency_proof(hashes: Iterable[bytes], old_size: int, size: int) -> list[bytes]:
    """What proves that a log of this size begins with the older one (RFC 9162 section 2.1.4.1).

    Args:
        hashes: the leaf hashes from the first on, at least ``size`` of them; no more are read.
        old_size: leaves in the older log, 1 up to ``size``.
        size: leaves in the newer log.

    Returns:
        At most 64 hashes; none where both are of one size.

    Raises:
        AuditBrokenError: the sizes are none of two such logs, or there are fewer leaves.
    """
    if not 0 < old_size <= size <= SIZE_MAX:
        raise AuditBrokenError("There is no proof between logs of these sizes.")
    subtrees = []
    low, high, is_known = 0, size, True
    while old_size != high:
        middle = low + _split(high - low)
        if old_size <= middle:
            subtrees.append((middle, high))
            high = middle
        else:
            subtrees.append((low, middle))
            low, is_known = middle, False
    if not is_known:
        subtrees.append((low, high))
    return _roots_of(hashes, subtrees[::-1])


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Returns only if the proof shows the leaf at this place of the log with this root (RFC 9162 section 2.1.3.2).

    Args:
        leaf: the hash of the leaf, computed from its bytes by who verifies.
        index: place of the leaf.
        size, root: of a log that is trusted for another reason, such as a signed checkpoint.
        path: from :func:`inclusion_proof`, of exactly the length that size and place ask for.

    Raises:
        AuditBrokenError: it does not.
    """
    if not 0 <= index < size <= SIZE_MAX or not _are_hashes((leaf, root, *path)):
        raise AuditBrokenError(_UNPROVEN)
    place, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            raise AuditBrokenError(_UNPROVEN)
        if place & 1 or place == last:
            found = node_hash(sibling, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    if last != 0 or found != root:
        raise AuditBrokenError(_UNPROVEN)


def verify_consistency(old_size: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]) -> None:
    """Returns only if the proof shows that the newer log begins with the older one (RFC 9162 section 2.1.4.2).

    Args:
        old_size, old_root: of the older log; every log begins with an empty one.
        size, root: of the newer log.
        path: from :func:`consistency_proof`; empty where the older log is empty.

    Raises:
        AuditBrokenError: it does not.
    """
    if not 0 <= old_size <= size <= SIZE_MAX or not _are_hashes((old_root, root, *path)):
        raise AuditBrokenError(_INCONSISTENT)
    if old_size in (0, size):
        if path or old_root != (root if old_size else EMPTY_ROOT) or (size == 0 and root != EMPTY_ROOT):
            raise AuditBrokenError(_INCONSISTENT)
        return
    if not path:
        raise AuditBrokenError(_INCONSISTENT)
    hashes = [old_root, *path] if old_size & (old_size - 1) == 0 else list(path)
    place, last = old_size - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            raise AuditBrokenError(_INCONSISTENT)
        if place & 1 or place == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    if last != 0 or old != old_root or new != root:
        raise AuditBrokenError(_INCONSISTENT)


_UNPROVEN = "This proof does not show the entry in the log of this checkpoint."
_INCONSISTENT = "This proof does not show that the log only grew between the two checkpoints."


def _split(size: int) -> int:
    """The largest power of two below a size of at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _roots_of(hashes: Iterable[bytes], ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The root over each range of leaves, in the order of the ranges; the ranges are disjoint."""
    roots: dict[tuple[int, int], bytes] = {}
    source, at = iter(hashes), 0
    for low, high in sorted(ranges):
        frontier = Frontier()
        for leaf in source:
            at += 1
            if at > low:
                frontier.append(leaf)
            if at == high:
                break
        if at < high:
            raise AuditBrokenError("The log has fewer entries than its size says.")
        roots[low, high] = frontier.root()
    return [roots[one] for one in ranges]


def _are_hashes(values: Iterable[bytes]) -> bool:
    return all(type(value) is bytes and len(value) == HASH_BYTES for value in values)
