"""What every object store checks of a request before it does anything."""

import re

from evidence_archive.errors import StoreError
from evidence_archive.ports import OBJECT_BYTES_MAX

__all__ = ["check_data", "is_key", "split_key"]

_KEY = re.compile(r"([0-9a-f]{2})/([0-9a-f]{30}\.[0-9]{5})", re.ASCII)


def split_key(key: str) -> tuple[str, str]:
    """The two parts of an object's key, ``"3f"`` and ``"<30 hexadecimal digits>.<5 digits>"``.

    Raises:
        StoreError: it is not such a key, so it names nothing that was stored here.
    """
    match = _KEY.fullmatch(key) if isinstance(key, str) else None
    if match is None:
        raise StoreError("This is not the key of an object: it has the form 3f/<30 hexadecimal digits>.<5 digits>.")
    return match[1], match[2]


def is_key(text: str) -> bool:
    """Whether this is the key of an object."""
    return _KEY.fullmatch(text) is not None


def check_data(data: bytes) -> None:
    """Nothing, when these bytes may become an object.

    Raises:
        StoreError: they are no bytes, or more than ``OBJECT_BYTES_MAX``.
    """
    if not isinstance(data, bytes) or len(data) > OBJECT_BYTES_MAX:
        raise StoreError(f"An object is bytes, at most {OBJECT_BYTES_MAX} of them; nothing was written.")
