"""Exact parts of an original: lines, bytes, the matches of a literal pattern, the value at a JSON pointer.

Nothing is cut silently: a part says how much of how much it is. Work is linear in the length of the text.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.encoder import encode_basestring

from evidence_archive.errors import FormatError

__all__ = ["WHOLE", "Cut", "Excerpt", "Selector", "excerpt", "line_count", "parse_selector", "value_at"]

PATTERN_CHARS_MAX = 1_000
POINTER_CHARS_MAX = 1_000
CONTEXT_LINES_MAX = 50
CONTEXT_LINES_DEFAULT = 2

_LINES = re.compile(r"([1-9][0-9]{0,17})(?:-([1-9][0-9]{0,17}))?", re.ASCII)
_BYTES = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})", re.ASCII)
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
# A low half behind a high one to which it is not joined stays as it is: both escaped, a reader would join them.
_LONE = re.compile("(?<![\ud800-\udbff])[\udc00-\udfff]|[\ud800-\udbff]")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_ESCAPED = re.compile(r"(?:[ -\[\]-~]|\\(?:[\\tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*")


@dataclass(frozen=True, slots=True)
class Selector:
    """Which part of an original; at most one of ``lines``, ``pattern``, ``pointer`` and ``byte_range`` is set.

    Args:
        lines: first and last line, from 1, both included.
        pattern: literal text of 1 to 1,000 characters; it may span lines.
        context_lines: lines around a match, 0 to 50; 0 without a pattern.
        pointer: JSON pointer (RFC 6901); ``""`` is the whole document.
        byte_range: first and last byte, from 0, both included (as in RFC 9110, section 14.1.2).
    """

    lines: tuple[int, int] | None = None
    pattern: str | None = field(default=None, repr=False)
    context_lines: int = 0
    pointer: str | None = field(default=None, repr=False)
    byte_range: tuple[int, int] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the whole original is asked for."""
        return self.kind is None

    @property
    def kind(self) -> str | None:
        """``lines``, ``pattern``, ``pointer`` or ``bytes``; ``None`` for the whole original."""
        if self.lines is not None:
            return "lines"
        if self.pattern is not None:
            return "pattern"
        if self.byte_range is not None:
            return "bytes"
        return None if self.pointer is None else "pointer"

    def canonical(self) -> str | None:
        """One ASCII line that stands for the selector in storage, ``None`` for the whole original.

        ``lines:10-40``, ``pattern:2:text`` or ``pointer:/items/3``, the free text in Python's ``unicode_escape``,
        which keeps lone surrogates apart. Bytes have none: no copy is stored of them, because a model has no bytes.
        """
        if self.lines is not None:
            return f"lines:{self.lines[0]}-{self.lines[1]}"
        if self.pattern is not None:
            return f"pattern:{self.context_lines}:{_escaped(self.pattern)}"
        return None if self.pointer is None else f"pointer:{_escaped(self.pointer)}"

    @classmethod
    def from_canonical(cls, text: str) -> "Selector":
        """The selector that :meth:`canonical` wrote.

        Raises:
            FormatError: no selector has this canonical text.
        """
        kind, _, rest = text.partition(":")
        selector = None
        try:
            if kind == "lines":
                selector = parse_selector(lines=rest)
            elif kind == "pattern":
                context, _, pattern = rest.partition(":")
                selector = parse_selector(pattern=_unescaped(pattern), context_lines=int(context))
            elif kind == "pointer":
                selector = parse_selector(pointer=_unescaped(rest))
        except (ValueError, FormatError):
            selector = None
        if selector is None or selector.canonical() != text:
            raise FormatError("A stored selector is not in a form this library writes.")
        return selector


WHOLE = Selector()
"""The selector of the whole original."""


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _unescaped(text: str) -> str:
    if _ESCAPED.fullmatch(text) is None:
        raise FormatError("A stored selector holds an escape this library does not write.")
    return text.encode("ascii").decode("unicode_escape")


def parse_selector(
    lines: object = None,
    pattern: object = None,
    context_lines: object = None,
    pointer: object = None,
    byte_range: object = None,
) -> Selector:
    """The selector that the arguments of a restore describe; ``None`` is an argument that is not given.

    Args:
        lines: ``"10-40"`` or ``"10"``, from 1, both ends included.
        pattern: literal text, 1 to 1,000 characters.
        context_lines: 0 to 50, only with a pattern; 2 when not given.
        pointer: JSON pointer (RFC 6901) of up to 1,000 characters; ``""`` is the whole document.
        byte_range: ``"0-4095"``, from 0, both ends included.

    Raises:
        FormatError: an argument is malformed, or more than one selector is given.
    """
    if byte_range is not None:
        if not lines is pattern is context_lines is pointer is None:
            raise FormatError("Use byte_range alone; give None for the other selectors.")
        return Selector(byte_range=_byte_range(byte_range))
    if sum(value is not None for value in (lines, pattern, pointer)) > 1:
        raise FormatError("Use at most one of lines, pattern and pointer; give null for the others.")
    context = _context_lines(context_lines, pattern is not None)
    if lines is not None:
        return Selector(lines=_lines(lines))
    if pattern is not None:
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= PATTERN_CHARS_MAX:
            raise FormatError(
                f"pattern must be literal text of 1 to {PATTERN_CHARS_MAX} characters, or null for no pattern."
            )
        return Selector(pattern=pattern, context_lines=context)
    if pointer is not None:
        _steps(pointer)
        return Selector(pointer=str(pointer))
    return WHOLE


def _context_lines(value: object, has_pattern: bool) -> int:
    if value is None:
        return CONTEXT_LINES_DEFAULT if has_pattern else 0
    if type(value) is not int or not 0 <= value <= CONTEXT_LINES_MAX:
        raise FormatError(f"context_lines must be a whole number from 0 to {CONTEXT_LINES_MAX}, or null.")
    if not has_pattern:
        raise FormatError("context_lines goes with a pattern; give null for it otherwise.")
    return value


def _lines(value: object) -> tuple[int, int]:
    match = _LINES.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise FormatError('lines must be a string such as "10-40" or "10", counted from 1, or null.')
    first = int(match[1])
    last = int(match[2] or first)
    if last < first:
        raise FormatError('lines must name the first line before the last, such as "10-40".')
    return first, last


def _byte_range(value: object) -> tuple[int, int]:
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2]) < int(match[1]):
        raise FormatError('byte_range must be a string such as "0-4095", counted from 0, first before last, or None.')
    return int(match[1]), int(match[2])


def _steps(pointer: object) -> list[str]:
    """The reference tokens of a JSON pointer, unescaped (RFC 6901, sections 3 and 4)."""
    if not isinstance(pointer, str) or len(pointer) > POINTER_CHARS_MAX or _POINTER.fullmatch(pointer) is None:
        raise FormatError(
            f'pointer must be a JSON pointer of up to {POINTER_CHARS_MAX} characters such as "/items/3" '
            '("" is the whole document; "~0" stands for "~" and "~1" for "/" in a name), or null.'
        )
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of an original.

    Args:
        text: the part.
        what: how much of how much, in words; of the request it repeats line numbers and the pointer.
    """

    text: str = field(repr=False)
    what: str


def line_count(text: str) -> int:
    """Lines of a text: pieces that end with a line feed, and what is left after the last one."""
    return text.count("\n") + (not text.endswith("\n") and text != "")


def excerpt(text: str, selector: Selector, *, matches_max: int) -> Excerpt:
    """The part of a text that a selector names.

    Lines end with their line feed and are kept exactly (``"\\r\\n"`` stays), so that the parts of a partition join to
    the whole. Matches come as lines under their numbers, ``12:`` before a match and ``11-`` before context, groups
    apart by ``--``; matches on one line count once. A pointer's value comes as compact JSON with numbers exactly as
    they are written and repeated names kept.

    Args:
        text: the whole original.
        selector: from :func:`parse_selector`, for a part of a text.
        matches_max: most matches shown, at least 1; the rest are counted.

    Raises:
        FormatError: the lines or the pointer's value are not there, or the text is not JSON.
    """
    if selector.lines is not None:
        cut = Cut(selector)
        cut.take(text.encode("utf-8", "surrogatepass"))
        return cut.lines()
    if selector.pattern is not None:
        return _matches(text, selector.pattern, selector.context_lines, matches_max)
    if selector.pointer is not None:
        return _pointed(text, selector.pointer)
    return Excerpt(text, f"whole original, {len(text)} characters")


# --- lines ------------------------------------------------------------------------------------------------------


class Cut:
    """A part of exact bytes that come in pieces: lines of UTF-8, or bytes; nothing but the part is held in memory.

    Args:
        selector: of lines or bytes; any other selects nothing, and the bytes are only counted.
    """

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._kept = bytearray()
        self._ends = 0
        self._last = b""
        self.size_bytes = 0
        self.first = b""

    def take(self, piece: bytes) -> None:
        """The next bytes."""
        if not piece:
            return
        start = end = 0
        if self._selector.lines is not None:
            first, last = self._selector.lines
            # No byte of a longer UTF-8 sequence is a line feed.
            start, end = _after(piece, first - 1 - self._ends), _after(piece, last - self._ends)
        elif self._selector.byte_range is not None:
            first, last = self._selector.byte_range
            start, end = max(first - self.size_bytes, 0), max(last + 1 - self.size_bytes, 0)
        self._kept += piece[start:end]
        self._ends += piece.count(b"\n")
        self.first = self.first or piece.lstrip()[:1]
        self._last = piece[-1:]
        self.size_bytes += len(piece)

    @property
    def line_count(self) -> int:
        """Lines so far, as :func:`line_count` counts them."""
        return self._ends + (self._last not in (b"", b"\n"))

    def lines(self) -> Excerpt:
        """The lines that were selected, once all bytes were taken.

        Raises:
            FormatError: they are not there.
        """
        first, last = self._selector.lines or (1, 0)
        if last > self.line_count:
            raise FormatError(f"The original has {self.line_count} lines; ask for lines within 1-{self.line_count}.")
        named = f"line {first}" if first == last else f"lines {first}-{last}"
        return Excerpt(self._kept.decode("utf-8", "surrogatepass"), f"{named} of {self.line_count}")

    def bytes(self) -> tuple[bytes, str]:
        """The bytes that were selected, and which they are in words, once all were taken.

        Raises:
            FormatError: they are not there.
        """
        first, last = self._selector.byte_range or (0, -1)
        if last >= self.size_bytes:
            raise FormatError(f"The original has {self.size_bytes} bytes; ask for bytes below that, counted from 0.")
        return bytes(self._kept), f"bytes {first}-{last} of {self.size_bytes}"


def _after(piece: bytes, lines: int) -> int:
    """Where the bytes go on after so many line feeds; their end if they have fewer."""
    at = 0
    if lines > piece.count(b"\n"):
        return len(piece)
    for _ in range(lines):
        at = piece.index(b"\n", at) + 1
    return at


def _skip(text: str, at: int, lines: int) -> int:
    """Where the text goes on after so many lines; its end after the last one."""
    for _ in range(lines):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at


# --- patterns ---------------------------------------------------------------------------------------------------


def _hits(text: str, pattern: str) -> Iterator[tuple[int, int]]:
    """First and last line of every match, from 1; the search goes on after the line in which a match ends."""
    height = pattern.count("\n", 0, len(pattern) - 1)
    at, counted, line = 0, 0, 1
    while (at := text.find(pattern, at)) >= 0:
        line += text.count("\n", counted, at)
        yield line, line + height
        counted = at
        at = text.find("\n", at + len(pattern) - 1) + 1
        if at == 0:
            return


def _matches(text: str, pattern: str, context: int, matches_max: int) -> Excerpt:
    total_lines = line_count(text)
    total = 0
    marked: set[int] = set()
    groups: list[list[int]] = []
    for first, last in _hits(text, pattern):
        total += 1
        if total > matches_max:
            continue
        marked.update(range(first, last + 1))
        start, end = max(1, first - context), min(total_lines, last + context)
        if groups and start <= groups[-1][1] + 1:
            groups[-1][1] = end
        else:
            groups.append([start, end])
    shown = min(total, matches_max)
    noun = "line" if context == 1 else "lines"
    what = (
        f"{shown} of {total} matches of a pattern in {total_lines} lines, {context} {noun} of context around each"
        if total
        else f"0 matches of a pattern in {total_lines} lines"
    )
    out: list[str] = []
    at, line = 0, 1
    for start, end in groups:
        at = _skip(text, at, start - line)
        out += ["--"] if out else []
        for line in range(start, end + 1):
            next_at = _skip(text, at, 1)
            out.append(f"{line}{':' if line in marked else '-'}{text[at:next_at].removesuffix(chr(10))}")
            at = next_at
        line = end + 1
    return Excerpt("\n".join(out), what)


# --- pointers ---------------------------------------------------------------------------------------------------


class _Number(str):
    """A number as it is written: ``1.10`` stays ``1.10``, and a million digits stay digits."""

    __slots__ = ()


class _Members(list[tuple[str, object]]):
    """The members of an object in order, repeated names included."""


def _document(text: str) -> tuple[object, ...]:
    """The value of a JSON text alone in a tuple, or an empty tuple: the parser's error holds the text."""
    try:
        value = json.loads(
            text, parse_float=_Number, parse_int=_Number, parse_constant=_Number, object_pairs_hook=_Members
        )
    except (ValueError, RecursionError):
        return ()
    return (value,)


def value_at(document: object, pointer: str) -> object:
    """The value at a JSON pointer (RFC 6901) in a document that ``json.loads`` made.

    Args:
        document: as Python has it.
        pointer: of up to 1,000 characters; ``""`` is the whole document.

    Raises:
        FormatError: it is no pointer, or there is nothing at it.
    """
    value = document
    for step in _steps(pointer):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            raise FormatError("There is nothing at this JSON pointer.")
    return value


def _pointed(text: str, pointer: str) -> Excerpt:
    document = _document(text)
    if not document:
        raise FormatError("The original is not JSON, or nested too deep for a pointer; ask for lines or a pattern.")
    value = document[0]
    steps = _steps(pointer)
    for place, step in enumerate(steps, 1):
        value = _step(value, step, f"Step {place} of {len(steps)} of the pointer")
    return Excerpt(_json_text(value), f"pointer {pointer}" if pointer else "whole document as JSON")


def _step(value: object, step: str, place: str) -> object:
    if isinstance(value, _Members):
        found = [member for name, member in value if name == step]
        if len(found) > 1:
            raise FormatError(f"{place} names a member that the object has {len(found)} times; point to the object.")
        if not found:
            raise FormatError(f"{place} names a member that the object does not have.")
        return found[0]
    if isinstance(value, list):
        if _INDEX.fullmatch(step) is None or int(step) >= len(value):
            raise FormatError(f"{place} must be an index below {len(value)}, the length of the array it goes into.")
        return value[int(step)]
    raise FormatError(f"{place} goes into a value that is neither an object nor an array.")


def _json_string(text: str) -> str:
    """The JSON of a string, lone surrogates escaped so that the JSON can be sent as UTF-8."""
    return _LONE.sub(lambda match: f"\\u{ord(match[0]):04x}", encode_basestring(text))


def _json_text(value: object) -> str:
    """Compact JSON of a parsed value; no recursion, so that what could be parsed can be written."""
    out: list[str] = []
    stack: list[object] = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, _Number):
            out.append(value)
        elif isinstance(value, str):
            out.append(_json_string(value))
        elif isinstance(value, _Members):
            members = [piece for name, member in value for piece in (_Number(f",{_json_string(name)}:"), member)]
            if members:
                members[0] = _Number(str(members[0])[1:])
            stack += [_Number("}"), *reversed(members), _Number("{")]
        elif isinstance(value, list):
            elements = [piece for element in value for piece in (_Number(","), element)]
            stack += [_Number("]"), *reversed(elements[1:]), _Number("[")]
        else:
            out.append("null" if value is None else "true" if value else "false")
    return "".join(out)
