"""Events for whoever watches: ids, counts and sizes, never evidence.

The library never configures logging. Where the application configured structlog, events go through it; elsewhere they
go to the standard library's logger ``evidence_archive``, which stays silent until the application listens.
"""

import logging
from typing import Any

import structlog

__all__ = ["Events"]

logging.getLogger("evidence_archive").addHandler(logging.NullHandler())
_STANDARD = (structlog.stdlib.render_to_log_kwargs,)


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
        # Asked at every event, because applications often configure structlog after importing libraries.
        if structlog.is_configured():
            logger = structlog.get_logger("evidence_archive")
        else:
            logger = structlog.wrap_logger(
                logging.getLogger("evidence_archive"),
                processors=_STANDARD,
                wrapper_class=structlog.stdlib.BoundLogger,
            )
        getattr(logger, level)(event, **self._ids, **fields)
