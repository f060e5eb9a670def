"""JSON that holds keys: read whole, or not at all."""

import json
from typing import Any

__all__ = ["read_json"]


class _DuplicateNameError(ValueError):
    """A JSON object names something twice."""


def read_json(data: bytes, bytes_max: int) -> Any:
    """What an ASCII text of JSON holds (RFC 8259); ``None`` for anything else.

    No error comes out of here, because that of the reader carries the whole text.

    Args:
        data: the text; names that occur twice in an object are refused.
        bytes_max: longest text, in bytes.
    """
    if len(data) > bytes_max:
        return None
    try:
        return json.loads(data.decode("ascii"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _DuplicateNameError
    return mapping
