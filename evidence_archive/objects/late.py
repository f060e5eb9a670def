"""An object store that is opened when it is first needed: most archives never hold a large original."""

import threading
from collections.abc import Callable

from evidence_archive.ports import ObjectStore

__all__ = ["LateObjects"]


class LateObjects:
    """The object store that a function opens, on first use.

    Where it is missing although it was used, such as on a disk that is not mounted, it is not made anew: what is put
    into another one would be out of reach once the right one is back.

    Args:
        name: what it will be, for reports.
        opening: opens it; is told whether it may make what is not there yet.
        exists: whether it is there.
        was_used: whether anything was ever put.
        using: called before the first object is put; remembers what ``was_used`` asks for.
        objects: the store, where it is open already.
    """

    def __init__(
        self,
        name: str,
        opening: Callable[[bool], ObjectStore],
        *,
        exists: Callable[[], bool] = lambda: True,
        was_used: Callable[[], bool] = lambda: True,
        using: Callable[[], None] = lambda: None,
        objects: ObjectStore | None = None,
    ) -> None:
        self.name = name
        self._opening = opening
        self._exists = exists
        self._was_used = was_used
        self._using = using
        self._is_used = False
        self._objects = objects
        self._lock = threading.Lock()

    def _opened(self, *, putting: bool = False) -> ObjectStore:
        with self._lock:
            if self._objects is None:
                self._objects = self._opening(putting and not self._was_used())
            if putting and not self._is_used:
                self._using()
                self._is_used = True
            return self._objects

    def _is_vacant(self) -> bool:
        """Whether nothing was ever put, so that there is nothing to open."""
        return self._objects is None and not self._exists() and not self._was_used()

    def put(self, key: str, data: bytes) -> None:
        """See :class:`evidence_archive.ports.ObjectStore`."""
        self._opened(putting=True).put(key, data)

    def get(self, key: str) -> bytes | None:
        """See :class:`evidence_archive.ports.ObjectStore`; where nothing was ever put, there is none."""
        return None if self._is_vacant() else self._opened().get(key)

    def delete(self, key: str) -> None:
        """See :class:`evidence_archive.ports.ObjectStore`; nothing is made only to delete from it."""
        if not self._is_vacant():
            self._opened().delete(key)

    def tidy(self) -> int:
        """See :class:`evidence_archive.ports.ObjectStore`; where nothing was ever put, nothing is to be removed."""
        return 0 if self._is_vacant() else self._opened().tidy()

    def close(self) -> None:
        """See :class:`evidence_archive.ports.ObjectStore`."""
        with self._lock:
            if self._objects is not None:
                self._objects.close()
