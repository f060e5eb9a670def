"""What an org's audit log says, read up to its head: the one witness of what is to stay and what is to go.

Rows are sealed, but a seal does not tell the newest row from an older one. Whatever destroys, or signs, reads the
entries themselves and hashes them on until they are the head.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from threading import RLock

from evidence_archive.errors import AuditBrokenError
from evidence_archive.model import format_result_id
from evidence_archive.ports import HoldRow, Reader, ResultRow
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.merkle import Frontier, leaf_hash
from evidence_archive.vault import FIRST_GENERATION, leaves_of

__all__ = ["NOT_ITS_HEAD", "LoggedActs", "entries_to_head"]

NOT_ITS_HEAD = "The entries of the audit log do not hash to what its head holds: it was changed."


def entries_to_head(reader: Reader, tree: Frontier) -> Iterator[bytes]:
    """The entries behind a tree, each once it is hashed into it; nothing of them may be believed before the end.

    Args:
        reader: of the log.
        tree: what the log is known to begin with; at the end it is the head.

    Raises:
        AuditBrokenError: one is missing, or they do not lead to the head.
    """
    head = reader.head()
    for _, data in leaves_of(reader, head.size, tree.size):
        tree.append(leaf_hash(data))
        yield data
    if tree.to_bytes() != head.frontier:
        raise AuditBrokenError(NOT_ITS_HEAD)


class LoggedActs:
    """What an org's log says of holds and shreds, read on as the log grows.

    A row's seal shows that it was written for the org, perhaps long ago, or in a copy of the store that went another
    way, such as one that was put back or tried out. Only the log, up to its head, tells which are rows of this store.

    For one thread at a time: who reads and asks holds ``turn`` from before its transaction until after it.
    """

    def __init__(self) -> None:
        self.turn = RLock()
        self._frontier = Frontier()
        self._is_released: dict[str, bool] = {}
        self._shredded: dict[str, set[str | None]] = {}
        self._kept_until_us: dict[tuple[str, str], int] = {}

    def read_on(self, reader: Reader) -> None:
        """Take in what the log has up to its head.

        Raises:
            AuditBrokenError: the log is not what its head says.
        """
        try:
            try:
                self._read(reader)
            except AuditBrokenError:  # changed, or a backup was put back meanwhile
                self._forget()
                self._read(reader)
        except BaseException as error:  # an entry that was counted and not taken in must not stay counted
            self._forget()
            if isinstance(error, (KeyError, TypeError)):
                raise AuditBrokenError(NOT_ITS_HEAD) from error
            raise

    def _forget(self) -> None:
        self._frontier, self._is_released, self._shredded, self._kept_until_us = Frontier(), {}, {}, {}

    def _read(self, reader: Reader) -> None:
        for data in entries_to_head(reader, self._frontier):
            if b"hold." in data or b"shred." in data or b"retention." in data:
                self._take(audit.decode_leaf(data))

    def _take(self, entry: audit.Leaf) -> None:
        if entry.event in (audit.HOLD_PLACED, audit.HOLD_RELEASED):
            self._is_released[entry.details["hold"]] = entry.event == audit.HOLD_RELEASED
        elif entry.event == audit.SHRED_REQUESTED and entry.session_id is not None:
            self._shredded.setdefault(entry.session_id, set()).add(entry.details.get("result"))
        elif entry.event == audit.RETENTION_EXTENDED and entry.session_id is not None:
            place = entry.session_id, entry.details["result"]
            self._kept_until_us[place] = max(entry.details["until_us"], self._kept_until_us.get(place, -1))

    def has_holds(self, holds: Iterable[HoldRow]) -> bool:
        """Whether these are all holds of the log, and it released each of them that was released."""
        rows = {hold.hold_id.hex(): hold.released_at_us is not None for hold in holds}
        return rows.keys() == self._is_released.keys() and all(
            self._is_released[name] or not is_released for name, is_released in rows.items()
        )

    def kept(self, session_id: str, row: ResultRow) -> ResultRow:
        """An original of a session, to be kept for as long as the log says: its row may be an older one."""
        until_us = self._kept_until_us.get((session_id, format_result_id(row.number)), -1)
        return row if until_us <= (row.retention_until_us or -1) else replace(row, retention_until_us=until_us)

    def keeps(self, now_us: int, session_id: str | None) -> bool:
        """Whether the log keeps an original of a session, or of any, beyond now, whatever its row has become."""
        return any(
            until_us > now_us and self._shredded.get(session, set()).isdisjoint({None, result_id})
            for (session, result_id), until_us in self._kept_until_us.items()
            if session_id in (None, session)
        )

    def generation(self, session_id: str) -> int | None:
        """Of the session's key: one more for every original of it that was shredded; ``None`` where all of it was."""
        shredded = self._shredded.get(session_id, set())
        return None if None in shredded else FIRST_GENERATION + len(shredded)
