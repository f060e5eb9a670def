"""Events for whoever watches: ids, counts and sizes, never evidence.

The library never configures logging. Where the application configured structlog, events go through it; elsewhere they
go to the standard library's logger ``evidence_archive``, which stays silent until the application listens.
"""

import logging
import sys
from typing import Any

__all__ = ["Events"]

_STANDARD = logging.getLogger("evidence_archive")
_STANDARD.addHandler(logging.NullHandler())
_TAKEN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
"""Attributes of a log record, which the standard library refuses as fields."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Events:
    """A logger with ids bound to it.

    Args:
        ids: what every event carries, such as ``org``.
    """

    def __init__(self, **ids: str) -> None:
        self._ids = ids

    def bind(self, **ids: str) -> "Events":
        """The same logger with more ids."""
        return Events(**self._ids, **ids)

    def info(self, event: str, **fields: Any) -> None:
        """Something went as it should."""
        self._emit("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something was refused or had to be done without."""
        self._emit("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Somebody has to look into it."""
        self._emit("error", event, fields)

    def _emit(self, level: str, event: str, fields: dict[str, Any]) -> None:
        # Asked at every event, because applications often configure structlog after importing libraries; one that
        # never imported it has not configured it, and need not wait for it to load.
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger("evidence_archive"), level)(event, **self._ids, **fields)
        else:
            told = {**self._ids, **fields}
            _STANDARD.log(
                _LEVELS[level], event, extra={f"{name}_" if name in _TAKEN else name: told[name] for name in told}
            )
