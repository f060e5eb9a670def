"""The vocabulary: what moves through the library, and its canonical bytes.

Pure: no I/O, no clock, no randomness. Everything that holds evidence keeps it out of its ``repr``.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from evidence_archive.errors import FormatError

__all__ = [
    "MEDIA_TYPES",
    "NESTING_MAX",
    "PIECE_BYTES",
    "Content",
    "Encoded",
    "Exact",
    "Facts",
    "Limits",
    "LongText",
    "Principal",
    "Provenance",
    "Receipt",
    "Restored",
    "ResultInfo",
    "SessionStats",
    "Target",
    "ToolCall",
    "WindowPolicy",
    "bytes_of",
    "canonical_id",
    "ce",
    "ce_read",
    "checked_name",
    "decode_exact",
    "encode_exact",
    "format_result_id",
    "format_time",
    "parse_result_id",
    "same_value",
    "text_of",
]

Content = str | list[Any]
"""What a tool message holds: text, or a list of parts (dicts)."""

FIELD_BYTES_MAX = 1024
"""Strings longer than this stand in canonical encodings as ``sha256:`` and 64 hex digits."""

NAME_CHARS_MAX = 256
"""Longest org, subject, role or session id, in characters."""

MEDIA_TYPES = {"text": "text/plain", "parts": "application/json"}
"""What a content is, by its encoding."""

NESTING_MAX = 64
"""Most lists and dicts inside one another that a content may have to be eligible, the outermost list included."""

LONG_TEXT_CHARS_MIN = 1024 * 1024
"""Texts from this length on are never encoded as a whole."""

PIECE_BYTES = 1024 * 1024
"""Most bytes of an original that move at once."""

_ABSENT = b"\xff\xff\xff\xff"
_LENGTHS = tuple(size.to_bytes(4, "big") for size in range(FIELD_BYTES_MAX + 1))
_EPOCH = datetime(1970, 1, 1)  # naive: every time here is UTC, and the ``Z`` is written by hand
_SECONDS_MIN = (datetime.min - _EPOCH) // timedelta(seconds=1)
_SECONDS_MAX = (datetime.max - _EPOCH) // timedelta(seconds=1)
_LEAVES = (str, int, float, bool, type(None))
_RESULT_ID = re.compile(r"r([1-9][0-9]{0,17})", re.ASCII)


# --- identifiers ------------------------------------------------------------------------------------------------


def format_result_id(number: int) -> str:
    """The result ID of a number: ``r7`` for 7."""
    return f"r{number}"


def parse_result_id(text: object) -> int:
    """The number in a result ID: 7 for ``"r7"``.

    Args:
        text: must be a ``str`` that matches ``r[1-9][0-9]*`` exactly, of at most 19 characters.

    Raises:
        FormatError: it is anything else (a number, ``"R7"``, ``"r07"``, surrounding blanks).
    """
    match = _RESULT_ID.fullmatch(text) if type(text) is str else None
    if match is None:
        raise FormatError("A result ID is a string such as 'r7': the letter r and a number from 1.")
    return int(match[1])


def text_of(data: bytes) -> str:
    """A name as it was kept, as text: the inverse of :func:`bytes_of`."""
    return data.decode("utf-8", "surrogatepass")


def bytes_of(text: str) -> bytes:
    """A name as bytes that any database keeps; no ``str`` is refused."""
    return text.encode("utf-8", "surrogatepass")


def checked_name(value: object, what: str) -> str:
    """The value itself, once it is fit to be an opaque identifier (org, subject, role, session id).

    Args:
        value: a ``str`` of 1 to 256 characters, encodable as UTF-8, without control characters. Nothing else about
            it is interpreted: ``"a/../b"`` is just a name.
        what: how the error calls it.

    Raises:
        FormatError: it is not such a string.
    """
    if type(value) is not str or not 1 <= len(value) <= NAME_CHARS_MAX:
        raise FormatError(f"The {what} must be a string of 1 to {NAME_CHARS_MAX} characters.")
    if any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000 for char in value):
        raise FormatError(f"The {what} must not contain control characters or lone surrogates.")
    return value


def canonical_id(text: str) -> bytes:
    """The bounded bytes of a provider's id: UTF-8 (``surrogatepass``), or ``sha256:`` hex above 1 KiB."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    if len(data) > FIELD_BYTES_MAX:
        return b"sha256:" + hashlib.sha256(data).hexdigest().encode()
    return data


def format_time(time_us: int) -> str:
    """A time as ``2026-11-30T01:02:03Z``; fractions of a second are cut.

    Args:
        time_us: microseconds since 1970-01-01 UTC, any integer. A time before year 1 or after year 9999 is told as
            the nearest second that has a name: ``0001-01-01T00:00:00Z`` or ``9999-12-31T23:59:59Z``.
    """
    return _format_seconds(min(max(time_us // 1_000_000, _SECONDS_MIN), _SECONDS_MAX))


@lru_cache(maxsize=256)
def _format_seconds(seconds: int) -> str:
    # Counted from the epoch: how the platform formats years below 1000, or takes negative times, differs.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat() + "Z"


# --- canonical encoding -----------------------------------------------------------------------------------------


def ce(*fields: str | bytes | int | None) -> bytes:
    """The canonical encoding of a list of fields, which no other list shares.

    For every field ``u32be(length) | bytes``; absent is ``FFFFFFFF``; integers are decimal ASCII; strings are UTF-8
    with ``surrogatepass``, above 1 KiB as ``sha256:`` and hex; bytes stand as they are. Source: docs/format.md.

    Args:
        fields: each at most 2**32 - 2 bytes long once encoded. ``bool`` counts as an integer.
    """
    out: list[bytes] = []
    for value in fields:
        kind = type(value)
        if kind is bytes:
            data: bytes = value  # type: ignore[assignment]  # the exact type was just checked
        elif value is None:
            out.append(_ABSENT)
            continue
        elif isinstance(value, str):
            data = canonical_id(value)
        elif isinstance(value, int):
            data = b"%d" % value
        else:
            data = bytes(value)
        size = len(data)
        out.append(_LENGTHS[size] if size <= FIELD_BYTES_MAX else size.to_bytes(4, "big"))
        out.append(data)
    return b"".join(out)


def ce_read(data: bytes) -> list[bytes | None]:
    """The fields of a canonical encoding, as bytes; the inverse of :func:`ce` up to types.

    Raises:
        FormatError: a length runs past the end.
    """
    fields: list[bytes | None] = []
    at = 0
    while at < len(data):
        head = data[at : at + 4]
        at += 4
        if head == _ABSENT:
            fields.append(None)
            continue
        size = int.from_bytes(head, "big")
        if len(head) < 4 or at + size > len(data):
            raise FormatError("A canonical encoding is cut short.")
        fields.append(data[at : at + size])
        at += size
    return fields


@dataclass(frozen=True, slots=True)
class Encoded:
    """The exact bytes of a content and how to read them back (``text`` or ``parts``)."""

    data: bytes = field(repr=False)
    encoding: str

    @property
    def size_bytes(self) -> int:
        """How many they are."""
        return len(self.data)

    @property
    def digest(self) -> bytes:
        """Their SHA-256."""
        return hashlib.sha256(self.data).digest()

    def pieces(self) -> Iterator[bytes]:
        """The bytes in order, at most ``PIECE_BYTES`` at a time."""
        for at in range(0, len(self.data), PIECE_BYTES):
            yield self.data[at : at + PIECE_BYTES]


class LongText:
    """A text whose exact bytes are made piece by piece, each time they are asked for; else as :class:`Encoded`.

    Args:
        text: more than ``LONG_TEXT_CHARS_MIN`` characters, or any other text.
    """

    __slots__ = ("_text", "digest", "size_bytes")
    encoding = "text"

    def __init__(self, text: str) -> None:
        self._text = text
        digest, size_bytes = hashlib.sha256(), 0
        for piece in self.pieces():
            digest.update(piece)
            size_bytes += len(piece)
        self.digest = digest.digest()
        self.size_bytes = size_bytes

    @property
    def data(self) -> bytes:
        """All the bytes, in memory."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The bytes in order, at most ``PIECE_BYTES`` at a time: every code point has its bytes to itself."""
        chars = PIECE_BYTES // 4
        for at in range(0, len(self._text), chars):
            yield self._text[at : at + chars].encode("utf-8", "surrogatepass")


Exact = Encoded | LongText
"""The exact bytes of a content, in memory or made as they are asked for."""


def encode_exact(content: object) -> Exact | None:
    """The exact bytes of a content, or ``None`` when it would not come back equal in type and value.

    A ``str`` becomes UTF-8 with ``surrogatepass``; a list of parts becomes compact ASCII JSON with its key order.
    Not eligible, hence ``None``: other types and subclasses, NaN and infinities, tuples, keys that are not strings,
    surrogates that JSON would join, more than :data:`NESTING_MAX` lists and dicts inside one another.

    Args:
        content: what a tool message holds.
    """
    if type(content) is str:
        if len(content) >= LONG_TEXT_CHARS_MIN:
            return LongText(content)
        return Encoded(content.encode("utf-8", "surrogatepass"), "text")
    if type(content) is not list or not _is_plain(content):
        return None
    try:
        data = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")
        if not same_value(json.loads(data), content):
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    return Encoded(data, "parts")


def _is_plain(content: list[Any]) -> bool:
    """Whether it is of JSON's types throughout and nested within bounds; level by level, each object once in one."""
    level: dict[int, Any] = {id(content): content}
    for _ in range(NESTING_MAX):
        inner: dict[int, Any] = {}
        for value in level.values():
            for item in value.values() if type(value) is dict else value:
                if type(item) is dict or type(item) is list:
                    inner[id(item)] = item
                elif type(item) not in _LEAVES:
                    return False
        if not inner:
            return True
        level = inner
    return False


def decode_exact(data: bytes, encoding: str) -> Content:
    """The content that :func:`encode_exact` took apart, equal in type and value.

    Args:
        data: the exact bytes.
        encoding: ``text`` or ``parts``.

    Raises:
        FormatError: the encoding is unknown, or the bytes are not in it.
    """
    try:
        if encoding == "text":
            return data.decode("utf-8", "surrogatepass")
        if encoding == "parts":
            content = json.loads(data)
            if type(content) is list:
                return content
    except (ValueError, RecursionError) as error:
        raise FormatError("An original is not in the encoding its envelope names.") from error
    raise FormatError("An original is in an encoding this version does not know.")


def same_value(left: object, right: object) -> bool:
    """Whether two contents are equal in type and value, which ``==`` is not (``True == 1 == 1.0``, ``0.0 == -0.0``).

    Args:
        left, right: what messages hold: text, numbers, lists, dicts with string keys.
    """
    pairs = [(left, right)]
    compared: set[tuple[int, int]] = set()
    while pairs:  # no recursion: nothing is too deep, and what holds itself is looked at once
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if type(one) in (dict, list):
            if (id(one), id(other)) in compared:
                continue
            compared.add((id(one), id(other)))
        if type(one) is dict and type(other) is dict:
            if not all(type(key) is str for key in other) or list(one) != list(other):
                return False
            pairs.extend(zip(one.values(), other.values(), strict=True))
        elif type(one) is list and type(other) is list:
            if len(one) != len(other):
                return False
            pairs.extend(zip(one, other, strict=True))
        elif not (repr(one) == repr(other) if type(one) is float else one == other):
            return False
    return True


# --- who, what --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks; the host vouches for it.

    Args:
        org: tenant; nothing of one org is ever visible in another.
        subject: the person or agent; the first one to open a session owns it.
        roles: names that ``[[restore]]`` rules of the policy refer to.

    Raises:
        FormatError: a name is empty, longer than 256 characters, or holds control characters.
    """

    org: str
    subject: str
    roles: frozenset[str] = frozenset()

    def __init__(self, org: str, subject: str, roles: Iterable[str] = ()) -> None:
        if isinstance(roles, str):
            raise FormatError("Roles must be a set of strings, not one string.")
        object.__setattr__(self, "org", checked_name(org, "org"))
        object.__setattr__(self, "subject", checked_name(subject, "subject"))
        object.__setattr__(self, "roles", frozenset(checked_name(role, "role") for role in roles))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool by the model.

    Args:
        id: the provider's id; metadata only: it may be empty, reused or very long.
        name: the tool's name as called.
        arguments: the arguments as the provider sent them, usually JSON text.
    """

    id: str
    name: str
    arguments: object = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy may decide on: facts from trusted places; words of the result can only make it stricter.

    Args:
        tools: the tool's name as called, and the name on the result where it differs. At least one.
        sensitivity: labels the host attached.
        kind: kind the host attached.
        size_chars: size of the content in characters.
        age_turns: turns of the model after the result; assistant messages in a row are one.
        text: the result's text, for ``content`` patterns, which can only make a decision stricter; ``None`` when it
            is not at hand.
    """

    tools: tuple[str, ...]
    sensitivity: frozenset[str] = frozenset()
    kind: str | None = None
    size_chars: int = 0
    age_turns: int = 0
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds a policy may set; nothing in the library is unbounded. The unit stands last in each name."""

    label_chars_min: int = 800
    note_chars_max: int = 2_000
    batch_items_max: int = 100
    original_bytes_max: int = 64 * 1024 * 1024
    restore_tokens_max: int = 20_000
    restores_per_turn_max: int = 8
    pattern_matches_max: int = 200
    view_wait_ms_max: int = 1_000
    store_wait_ms_max: int = 5_000
    store_failures_max: int = 3
    suspension_seconds: int = 60
    quota_originals_max: int = 2**50
    quota_bytes_max: int = 2**50


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """How much of a conversation a model is shown at once, and when what is shown may change.

    Args:
        window_tokens_max: of everything that is sent but the specs of tools.
        carried_share, changes_share: of that, for what is carried over from turns that left, and for what is said at
            the very end about changes; the rest is for instructions and turns.
        high, low: shares of ``window_tokens_max``: a list that reaches ``high`` is changed, down to ``low``.
        keep_turns: the newest turns whose results are not archived by the host.
        cooldown_turns: turns between two changes, unless the budget forces one.
        archive_tokens_min: smaller results stay as they are.
        horizon_requests: a change has to pay within so many requests, unless the budget forces it.
        reminder_tokens: the model is reminded of archiving when so many tokens are shown ...
        reminder_chars: ... and so many new characters of results came since the last time.
        price_input, price_cached_input, price_output: of a million tokens that are read anew, read from the
            provider's cache, written; in any one currency.
        judge_every: one summary of so many is given to the judge, where the session has one.
        trace: ``sealed`` keeps what was sent at each request, ``off`` does not.
    """

    window_tokens_max: int = 100_000
    carried_share: float = 0.2
    changes_share: float = 0.02
    high: float = 0.8
    low: float = 0.2
    keep_turns: int = 4
    cooldown_turns: int = 3
    archive_tokens_min: int = 500
    horizon_requests: int = 10
    reminder_tokens: int = 40_000
    reminder_chars: int = 20_000
    price_input: float = 3.0
    price_cached_input: float = 0.3
    price_output: float = 15.0
    judge_every: int = 4
    trace: str = "off"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where an original comes from.

    Args:
        org, session_id, result_id: its place.
        tool_name: as called; empty when the host archived a result without a call.
        tool_call_id: the provider's, bounded (``sha256:`` hex above 1 KiB).
        kind, sensitivity: what the host attached.
        media_type: ``text/plain`` or ``application/json`` (a list of parts).
        observed_at_us: microseconds since 1970-01-01 UTC.
        observed_by: ``host`` when the host said when, ``first_view`` when it is the time of the first view.
    """

    org: str
    session_id: str
    result_id: str
    tool_name: str
    tool_call_id: str
    kind: str | None
    sensitivity: tuple[str, ...]
    media_type: str
    observed_at_us: int
    observed_by: str


@dataclass(frozen=True, slots=True)
class Restored:
    """An exact original, or an exact part of one.

    Args:
        content: equal in type and value to what the tool said (a ``str`` when it is a part).
        provenance: where it comes from.
        sha256: hex digest of the exact bytes of the *whole* original, checked before release; as secret as they are.
        size_bytes: of the whole original.
        part: which part this is, in words, or ``None`` for the whole.
    """

    content: Any = field(repr=False)
    provenance: Provenance
    sha256: str = field(repr=False)
    size_bytes: int
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a batch did, or would have done, with one result.

    Args:
        result_id: as named in the batch.
        status: ``ok``, ``unknown``, ``duplicate``, ``protected``, ``already_archived``, ``unread``, ``blank_note``,
            ``note_too_long``, ``not_smaller`` or ``not_eligible``.
        reason: one sentence: which rule, what to do instead.
        tokens: size of the original, 0 where unknown.
    """

    result_id: str
    status: str
    reason: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """A committed batch.

    Args:
        batch_id: 32 hex digits, also in the audit log.
        targets: every result of the batch, in its order, all with status ``ok``.
        tokens_before, tokens_after: of the originals, and of the notes that stand for them.
        tokens_estimated: whether the counter only estimates.
        replayed: the same batch was accepted before, and this is its receipt.
    """

    batch_id: str
    targets: tuple[Target, ...]
    tokens_before: int
    tokens_after: int
    tokens_estimated: bool
    replayed: bool = False

    @property
    def result_ids(self) -> tuple[str, ...]:
        """The archived results, in the batch's order."""
        return tuple(target.result_id for target in self.targets)

    @property
    def tokens_saved(self) -> int:
        """What each later request is shorter by; the call and its receipt are not yet subtracted."""
        return self.tokens_before - self.tokens_after


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """One result of a session, as ``session.results()`` lists it.

    Args:
        id: result ID.
        tool: name as called.
        tokens: size of the original.
        state: ``live`` or ``archived``.
        protected_by: id of the policy rule that keeps it in view, ``restore`` where the session itself could not have
            it back, or ``None``.
        restored_from: result ID of the original this is a copy of, or ``None``.
        observed_at: UTC, ``2026-11-30T01:02:03Z``.
    """

    id: str
    tool: str
    tokens: int
    state: str
    protected_by: str | None
    restored_from: str | None
    observed_at: str


@dataclass(frozen=True, slots=True)
class SummaryQuality:
    """What is known of the summaries of turns that left a window, over the session's life.

    Args:
        summaries: how many there are.
        by_host: how many of them are the deterministic one.
        refused: how often an answer of the summariser was refused.
        loss_rate: of the numbers, identifiers and open points that the model itself said in these turns, the share
            that no summary says; ``None`` where it said none.
        judged: how many a judge has seen.
        score: the mean of what it said, from 0 to 1; ``None`` without a judge.
    """

    summaries: int = 0
    by_host: int = 0
    refused: int = 0
    loss_rate: float | None = None
    judged: int = 0
    score: float | None = None


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a dashboard needs of a session.

    Args:
        requests: views made by this object.
        window_tokens: tokens of the newest view, 0 before the first.
        tokens_estimated: whether these are estimates.
        results, archived: registered results, and how many of them are archived.
        batches: accepted batches, over the session's life.
        restores: granted restores, over the session's life.
        tokens_saved: by all accepted batches, in each request that holds what they archived.
        suspended: why archiving is suspended, or ``None``.
        outage: whether the newest view had to do without the store.
        summaries: how good the summaries are; ``None`` without a window.
    """

    requests: int
    window_tokens: int
    tokens_estimated: bool
    results: int
    archived: int
    batches: int
    restores: int
    tokens_saved: int
    suspended: str | None
    outage: bool
    summaries: SummaryQuality | None = None
