"""Pointers to evidence: a whole original, or a part of it, in one short text that people and models can write.

``r12`` · ``r12#L40-L44`` (lines) · ``r12#B0-4095`` (bytes) · ``r12#/items/3`` (JSON pointer, RFC 6901) ·
``artifact:report.md#L12``. One reference has one form: what is parsed and written again is the same text.
"""

import re
from dataclasses import dataclass, field

from evidence_archive.errors import FormatError
from evidence_archive.excerpt import WHOLE, Selector, parse_selector
from evidence_archive.model import format_result_id, parse_result_id

__all__ = ["ARTIFACT_CHARS_MAX", "Reference", "parse_reference"]

ARTIFACT_CHARS_MAX = 200
"""Longest name of an artifact, in characters."""

_ARTIFACT = "artifact:"
_LINES = re.compile(r"L([1-9][0-9]{0,17})(?:-L([1-9][0-9]{0,17}))?", re.ASCII)
# A name is a path below some folder: no empty or relative steps, nothing that hides, no sign of our own grammar.
_NAME = re.compile(
    r"(?!\.{1,2}(?:/|$))[^\s#/\\\x00-\x1f\x7f-\x9f]+(?:/(?!\.{1,2}(?:/|$))[^\s#/\\\x00-\x1f\x7f-\x9f]+)*"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """Where something stands.

    Args:
        number: of the result; ``None`` where it is an artifact.
        artifact: name of the artifact; ``None`` where it is a result.
        selector: of the part; lines, bytes, a pointer, or the whole.
    """

    number: int | None
    artifact: str | None = field(default=None, repr=False)
    selector: Selector = field(default=WHOLE, repr=False)

    def __str__(self) -> str:
        """The one text of this reference."""
        head = f"{_ARTIFACT}{self.artifact}" if self.number is None else format_result_id(self.number)
        part = self.selector
        if part.lines is not None:
            first, last = part.lines
            return f"{head}#L{first}" if first == last else f"{head}#L{first}-L{last}"
        if part.byte_range is not None:
            return f"{head}#B{part.byte_range[0]}-{part.byte_range[1]}"
        return head if part.pointer is None else f"{head}#{part.pointer}"


def parse_reference(text: object) -> Reference:
    """The reference that a text writes.

    Args:
        text: such as ``r12``, ``r12#L40-L44``, ``r12#B0-4095``, ``r12#/items/3``, ``artifact:report.md#L12``.

    Raises:
        FormatError: it is none of these, or another way to write one.
    """
    if not isinstance(text, str):
        raise FormatError(_FORMS)
    head, has_part, part = text.partition("#")
    if head.startswith(_ARTIFACT):
        name = head.removeprefix(_ARTIFACT)
        if len(name) > ARTIFACT_CHARS_MAX or _NAME.fullmatch(name) is None or not name.isprintable():
            raise FormatError(
                f"An artifact has a name of up to {ARTIFACT_CHARS_MAX} characters that can be seen: artifact:a/b.md."
            )
        found = Reference(None, name, _selector(part) if has_part else WHOLE)
    else:
        try:
            found = Reference(parse_result_id(head), None, _selector(part) if has_part else WHOLE)
        except FormatError:
            raise FormatError(_FORMS) from None
    if str(found) != text:
        raise FormatError("A reference is written in one way: one line as L40, numbers without zeros before them.")
    return found


def _selector(part: str) -> Selector:
    lines = _LINES.fullmatch(part)
    if lines is not None:
        return parse_selector(lines=f"{lines[1]}-{lines[2] or lines[1]}")
    if part.startswith("B"):
        return parse_selector(byte_range=part[1:])
    if part.startswith("/"):
        return parse_selector(pointer=part)
    raise FormatError(_FORMS)


_FORMS = (
    "A reference is r12, r12#L40-L44, r12#B0-4095, r12#/items/3, or the same with artifact:NAME in the place of r12."
)
