"""The library's log lines have no place in a command's output: what a command has to say it says itself."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["DEBUG_VARIABLE", "quiet_logs"]

DEBUG_VARIABLE = "EVIDENCE_ARCHIVE_DEBUG"
"""With any value in it, log lines go to stderr and unexpected errors keep their traceback."""


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Drop log lines inside the block, or send them to stderr for debugging; archives must be opened inside."""
    import structlog

    before = structlog.get_config()
    lowest = logging.DEBUG if os.environ.get(DEBUG_VARIABLE) else logging.CRITICAL
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
