"""An object store that is opened when it is first needed: most archives never hold a large original."""

import threading
from collections.abc import Callable

from evidence_archive.ports import ObjectStore

__all__ = ["LateObjects"]


class LateObjects:
    """The object store that a function opens, on first use.

    Args:
        name: what it will be, for reports.
        opening: opens it; is told whether it may make what is not there yet.
        exists: whether it is there.
    """

    def __init__(self, name: str, opening: Callable[[bool], ObjectStore], exists: Callable[[], bool]) -> None:
        self.name = name
        self._opening = opening
        self._exists = exists
        self._objects: ObjectStore | None = None
        self._lock = threading.Lock()

    def _opened(self, create: bool) -> ObjectStore:
        with self._lock:
            if self._objects is None:
                self._objects = self._opening(create)
            return self._objects

    def put(self, key: str, data: bytes) -> None:
        """See :class:`evidence_archive.ports.ObjectStore`."""
        self._opened(True).put(key, data)

    def get(self, key: str) -> bytes | None:
        """See :class:`evidence_archive.ports.ObjectStore`."""
        return self._opened(False).get(key)

    def delete(self, key: str) -> None:
        """See :class:`evidence_archive.ports.ObjectStore`."""
        self._opened(False).delete(key)

    def tidy(self) -> int:
        """See :class:`evidence_archive.ports.ObjectStore`; where nothing was ever put, nothing is to be removed."""
        return self._opened(False).tidy() if self._objects is not None or self._exists() else 0

    def close(self) -> None:
        """See :class:`evidence_archive.ports.ObjectStore`."""
        with self._lock:
            if self._objects is not None:
                self._objects.close()
