"""What a call of ours asks for, and the decision on a batch.

Parsing is strict: a call is understood in exactly one way or refused with the place and the expected form. The whole
batch is examined before anything happens, and every target gets its status. Arguments hold evidence, so errors name
places, never words.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from evidence_archive.errors import BatchRejectedError, FormatError
from evidence_archive.model import Target, format_result_id, parse_result_id

__all__ = [
    "REASON_CHARS_MAX",
    "Candidate",
    "Item",
    "RestoreRequest",
    "decide",
    "pairs",
    "parse_batch",
    "parse_card_changes",
    "parse_claim",
    "parse_fact_query",
    "parse_restore",
    "parse_search",
]

ARGUMENTS_CHARS_MAX = 1024 * 1024
"""Longest JSON text of a call's arguments, in characters."""

REASON_CHARS_MAX = 2_000
"""Longest reason of a restore, in characters."""

_INTEGER_CHARS_MAX = 20
_RESTORE_KEYS = ("id", "lines", "pattern", "context_lines", "pointer", "reason")

# Letters and symbols without a glyph, which their category does not give away.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")


@dataclass(frozen=True, slots=True)
class Item:
    """One target of a batch as it was named.

    Args:
        id: result ID, well formed but perhaps never issued.
        note: the words that are to stand in its place.
    """

    id: str
    note: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The arguments of a restore, checked for type but not yet for meaning.

    Args:
        id: result ID, well formed.
        lines, pattern, context_lines, pointer: the selector's parts as given, ``None`` where not given.
        reason: up to 2,000 characters, for the audit entry.
    """

    id: str
    lines: str | None = None
    pattern: str | None = field(default=None, repr=False)
    context_lines: int | None = None
    pointer: str | None = field(default=None, repr=False)
    reason: str | None = field(default=None, repr=False)


# --- parsing ----------------------------------------------------------------------------------------------------


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        raise FormatError("The arguments name the same key twice in one object; name each once.")
    return value


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_CHARS_MAX:
        raise FormatError(f"The arguments hold a number of more than {_INTEGER_CHARS_MAX} digits.")
    return int(digits)


def _no_constant(_: str) -> object:
    raise FormatError("The arguments hold NaN or Infinity, which are not JSON.")


def _object(arguments: object) -> dict[Any, Any]:
    """The arguments as an object, parsed when they are JSON text."""
    value = arguments
    if isinstance(arguments, str):
        if len(arguments) > ARGUMENTS_CHARS_MAX:
            raise FormatError(f"The arguments are longer than {ARGUMENTS_CHARS_MAX} characters; send less at once.")
        try:
            value = json.loads(arguments, object_pairs_hook=_once, parse_int=_integer, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            value = None  # the parser's error holds the arguments, so it is dropped before anything is raised
    if not isinstance(value, dict):
        raise FormatError("The arguments must be one JSON object, complete and correctly quoted.")
    return value


def _checked_id(value: object, place: str) -> str:
    try:
        return format_result_id(parse_result_id(value))
    except FormatError:
        pass
    raise FormatError(f'{place} must be a string such as "r7": the letter r and a number from 1.')


def _item(value: object, place: str) -> Item:
    if not isinstance(value, dict) or value.keys() != {"id", "note"}:
        raise FormatError(f'{place} must be an object with exactly the keys "id" and "note".')
    result_id = _checked_id(value["id"], f"{place}.id")
    if type(value["note"]) is not str:
        raise FormatError(f"{place}.note must be a string.")
    return Item(result_id, value["note"])


def _counted(items: Sequence[object], items_max: int) -> None:
    if not items:
        raise BatchRejectedError("Nothing was archived: the batch names no result.", reason="empty")
    if len(items) > items_max:
        raise BatchRejectedError(
            f"Nothing was archived: a batch may name at most {items_max} results; send several.", reason="too_many"
        )


def parse_batch(arguments: object, *, items_max: int) -> tuple[Item, ...]:
    """The targets that a call of ``archive_evidence`` names, in order.

    Accepted are ``{"batch": [{"id": "r3", "note": "..."}, ...]}``, ``{"batch": {"id": ..., "note": ...}}`` and
    ``{"id": ..., "note": ...}``, the latter two as a batch of one.

    Args:
        arguments: JSON text of up to 1,048,576 characters, or the object it stands for.
        items_max: most targets of a batch.

    Raises:
        FormatError: the arguments are anything else; the error names the place and the expected form.
        BatchRejectedError: the batch is ``empty`` or names ``too_many`` results.
    """
    value = _object(arguments)
    if "batch" not in value and value.keys() & {"id", "note"}:
        return (_item(value, "arguments"),)
    if value.keys() != {"batch"}:
        raise FormatError('The arguments must have exactly the key "batch": a list of objects with "id" and "note".')
    batch = value["batch"]
    if isinstance(batch, dict):
        return (_item(batch, "batch"),)
    if not isinstance(batch, list):
        raise FormatError('batch must be a list of objects with "id" and "note".')
    _counted(batch, items_max)
    return tuple(_item(item, f"batch[{index}]") for index, item in enumerate(batch))


def pairs(items: Iterable[tuple[str, str]], *, items_max: int) -> tuple[Item, ...]:
    """The targets that a program names as (result ID, note) pairs, in order.

    Args:
        items: pairs of strings; no more than ``items_max + 1`` of them are drawn.
        items_max: most targets of a batch.

    Raises:
        FormatError: a pair is not two strings of which the first is a result ID.
        BatchRejectedError: the batch is ``empty`` or names ``too_many`` results.
    """
    if not isinstance(items, Iterable):
        raise FormatError("A batch is a list of pairs: a result ID and a note.")
    batch = list(islice(items, items_max + 1))
    _counted(batch, items_max)
    return tuple(_pair(pair, f"batch[{index}]") for index, pair in enumerate(batch))


def _pair(value: object, place: str) -> Item:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise FormatError(f"{place} must be a pair of a result ID and a note.")
    return _item({"id": value[0], "note": value[1]}, place)


def parse_restore(arguments: object) -> RestoreRequest:
    """What a call of ``restore_evidence`` asks for.

    Args:
        arguments: JSON text of up to 1,048,576 characters, or the object it stands for; ``id`` must be there, every
            other key may be null or absent.

    Raises:
        FormatError: the arguments are anything else; the error names the place and the expected form.
    """
    value = _object(arguments)
    if "id" not in value or not value.keys() <= set(_RESTORE_KEYS):
        raise FormatError(f'The arguments must have the key "id" and may have {", ".join(_RESTORE_KEYS[1:])}.')
    for key in ("lines", "pattern", "pointer", "reason"):
        if value.get(key) is not None and type(value[key]) is not str:
            raise FormatError(f"{key} must be a string or null.")
    if value.get("context_lines") is not None and type(value["context_lines"]) is not int:
        raise FormatError("context_lines must be a whole number or null.")
    if len(value.get("reason") or "") > REASON_CHARS_MAX:
        raise FormatError(f"reason must have at most {REASON_CHARS_MAX} characters.")
    others = {key: value.get(key) for key in _RESTORE_KEYS[1:]}
    return RestoreRequest(_checked_id(value["id"], "id"), **others)


def parse_search(arguments: object) -> tuple[object, object]:
    """The query of a call of ``search_evidence``, and the ID that it looks below or ``None``, not looked at yet.

    Args:
        arguments: JSON text of up to 1,048,576 characters, or the object it stands for; its keys are ``query`` and,
            where it is wanted, ``before``.

    Raises:
        FormatError: the arguments are anything else.
    """
    value = _object(arguments)
    if "query" not in value or not value.keys() <= {"query", "before"}:
        raise FormatError('The arguments must have the key "query", may have "before", and no other.')
    return value["query"], value.get("before")


def parse_card_changes(arguments: object) -> object:
    """The changes that a call of ``update_card`` asks for, not looked at yet.

    Args:
        arguments: JSON text of up to 1,048,576 characters, or the object it stands for; its only key is ``changes``.

    Raises:
        FormatError: the arguments are anything else.
    """
    value = _object(arguments)
    if value.keys() != {"changes"}:
        raise FormatError('The arguments must have the key "changes" and no other.')
    return value["changes"]


def parse_claim(arguments: object) -> tuple[object, object]:
    """Text and sources of a call of ``post_claim``, not looked at yet.

    Args:
        arguments: JSON text of up to 1,048,576 characters, or the object it stands for; ``text`` and ``sources``.

    Raises:
        FormatError: the arguments are anything else.
    """
    value = _object(arguments)
    if value.keys() != {"text", "sources"}:
        raise FormatError('The arguments must have the keys "text" and "sources" and no other.')
    return value["text"], value["sources"]


def parse_fact_query(arguments: object) -> object:
    """The query of a call of ``list_facts``, not looked at yet; ``None`` for all facts.

    Args:
        arguments: JSON text of up to 1,048,576 characters, or the object it stands for; ``query``, null or absent.

    Raises:
        FormatError: the arguments are anything else.
    """
    value = _object(arguments)
    if not value.keys() <= {"query"}:
        raise FormatError('The arguments may have the key "query" and no other.')
    return value.get("query")


# --- the decision -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the session knows of one target.

    Args:
        archived: a note stands for it already.
        in_view: its content is at hand.
        read: the model has answered or called since it was first viewed.
        orphan: it answers no call.
        own: ``receipt``, ``rejection`` or ``error`` for answers of ours, ``copy`` for a restored copy, which may be
            archived again; ``None`` for the application's tools.
        exact: its content comes back equal in type and value.
        text_allowed: a text may stand in its place.
        name_fits: its tool's name, as called and on the result, is short enough to be kept in full.
        protected: id and reason of the rule that keeps it in view, or ``None``.
        size_bytes: of its exact bytes.
        tokens: of its content.
        note_tokens: of the rendered note, header included; not looked at when an earlier status applies.
    """

    archived: bool = False
    in_view: bool = True
    read: bool = True
    orphan: bool = False
    own: str | None = None
    exact: bool = True
    text_allowed: bool = True
    name_fits: bool = True
    protected: tuple[str, str] | None = None
    size_bytes: int = 0
    tokens: int = 0
    note_tokens: int = 0


def decide(
    items: Sequence[Item],
    candidates: Mapping[str, Candidate],
    *,
    note_chars_max: int,
    original_bytes_max: int,
    last_id: str | None,
) -> tuple[Target, ...]:
    """The status of every target, in the batch's order; the batch may be committed when all are ``ok``.

    The first status that applies counts: ``unknown``, ``duplicate`` (every place that names the result),
    ``already_archived``, ``not_eligible``, ``unread``, ``protected``, ``blank_note``, ``note_too_long``,
    ``not_smaller``, ``ok``.

    Args:
        items: the parsed batch.
        candidates: by result ID, what is known of each that was issued in this session; absent is unknown.
        note_chars_max: longest note, in characters.
        original_bytes_max: largest original, in bytes.
        last_id: newest result ID of the session, or ``None``.
    """
    named = Counter(item.id for item in items)
    targets = []
    for item in items:
        candidate = candidates.get(item.id)
        if candidate is None:
            last = f"the last one is {last_id}" if last_id else "none was issued yet"
            targets.append(Target(item.id, "unknown", f"No result of this ID was issued in this session; {last}."))
            continue
        if named[item.id] > 1:
            status, reason = "duplicate", f"The batch names this result {named[item.id]} times; name it once."
        else:
            status, reason = (
                _result_status(item.id, candidate, original_bytes_max)
                or _note_status(item.note, candidate, note_chars_max)
                or ("ok", "")
            )
        targets.append(Target(item.id, status, reason, candidate.tokens))
    return tuple(targets)


def _result_status(result_id: str, candidate: Candidate, original_bytes_max: int) -> tuple[str, str] | None:
    """What stands against the result, whatever its note says."""
    if candidate.archived:
        return "already_archived", f"It is archived already; restore {result_id} to have the exact original."
    unfit = _unfit(candidate, original_bytes_max)
    if unfit is not None:
        return "not_eligible", unfit
    if not candidate.read:
        return (
            "unread",
            "You have not worked with it since it came into view: read it first, archive it in a later turn.",
        )
    if candidate.protected is not None:
        rule, why = candidate.protected
        return "protected", f"Rule {rule} keeps it in view: {why}; leave it out of the batch."
    return None


def _unfit(candidate: Candidate, original_bytes_max: int) -> str | None:
    """Why a result can never be archived, or ``None``."""
    limit = f"{original_bytes_max / (1024 * 1024):.6g} MiB"
    obstacles = (
        (candidate.orphan, "It answers no tool call in the conversation, so it has to stay as it is."),
        (
            candidate.own not in (None, "copy"),
            f"It is an answer of the archive itself ({candidate.own}), which stays in view.",
        ),
        (not candidate.in_view, "Its content is no longer in the conversation, so there is nothing to archive."),
        (not candidate.exact, "Its content would not come back equal in type and value, so it has to stay in view."),
        (not candidate.text_allowed, "A result of this kind may not hold a text, so no note can stand for it."),
        (not candidate.name_fits, "Its tool's name is too long to be kept in full, so it has to stay in view."),
        (
            candidate.size_bytes > original_bytes_max,
            f"It is larger than {limit}, the limit of one original (original_bytes_max, or less without objects=).",
        ),
    )
    return next((reason for applies, reason in obstacles if applies), None)


def _note_status(words: str, candidate: Candidate, note_chars_max: int) -> tuple[str, str] | None:
    """What stands against the note."""
    if not any(map(_visible, words)):
        return "blank_note", "The note has nothing to read in it: write the conclusion and what is needed later."
    if len(words) > note_chars_max:
        return "note_too_long", f"The note has {len(words)} characters, the limit is {note_chars_max}: shorten it."
    if candidate.note_tokens >= candidate.tokens:
        return "not_smaller", (
            f"The note with its header has {candidate.note_tokens} tokens, the original {candidate.tokens}: "
            "shorten the note or leave the result in view."
        )
    return None


def _visible(char: str) -> bool:
    """Whether a character shows by itself: no control, format, separator, lone surrogate or bare combining mark."""
    return char not in _BLANK and unicodedata.category(char)[0] not in "CZM"
