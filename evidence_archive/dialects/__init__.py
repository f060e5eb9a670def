"""Lenses on providers' message lists: where tool results are, and how to put other contents in their place."""

from typing import Final

from evidence_archive.dialects.base import Dialect, Found, Reading
from evidence_archive.dialects.chat import ChatDialect
from evidence_archive.errors import FormatError

__all__ = ["Dialect", "Found", "Reading", "dialect"]

_DIALECTS: Final[tuple[Dialect, ...]] = (ChatDialect(),)


def dialect(name: str) -> Dialect:
    """The dialect of this name.

    Args:
        name: as in ``archive.session(..., dialect=name)``; exact, lower case.

    Raises:
        FormatError: there is no such dialect; the error lists those that exist.
    """
    for known in _DIALECTS:
        if known.name == name:
            return known
    raise FormatError(f"There is no such dialect; choose one of: {', '.join(known.name for known in _DIALECTS)}.")
