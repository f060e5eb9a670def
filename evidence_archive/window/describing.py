"""Notes for results that the host archives: they describe what an original is and keep what later turns may ask for.

Equal results give equal notes. A note says that the call was executed, how large its result is, how it begins and
ends, how many lines speak of errors and warnings, which keys or columns it has, what an object says of the outcome,
and the identifiers in it. It draws no conclusion.
"""

import csv
import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

__all__ = ["IDENTIFIERS_MAX", "described", "identifiers"]

LINE_CHARS_MAX = 100
NAMES_MAX = 12
IDENTIFIERS_MAX = 12
"""Longest line shown; most keys, columns and identifiers named."""

SCANNED_CHARS_MAX = 4 * 1024 * 1024
"""How much of a text is looked through for identifiers; counts of lines are always of the whole."""

_OUTCOMES = (
    "status",
    "state",
    "ok",
    "success",
    "result",
    "error",
    "code",
    "exit_code",
    "returncode",
    "message",
    "id",
)
"""Keys under which objects say what came of a call."""

_ERROR = re.compile(r"\b(?:error|exception|traceback|fatal|panic|fail(?:ed|ure|ures)?)\b", re.IGNORECASE)
_WARNING = re.compile(r"\bwarn(?:ing|ings)?\b", re.IGNORECASE)
# What people and programs name things by: UUIDs, long hex, ticket numbers, paths with a file, times. Nothing of it
# begins in the middle of what it could run through, so that the time it takes grows with the text alone.
_IDENTIFIER = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?\b"
    r"|\b[A-Z][A-Z0-9]{1,9}-\d{1,8}\b"
    r"|(?<![\w./-])(?:\.{0,2}/|[\w-]+/)(?:[\w.-]+/)*[\w-]+\.\w{1,8}(?::\d+)?\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b"
    r"|\b[A-Za-z][A-Za-z_]*[_-]?(?:id|ID|Id)[=: ]+[\w-]{2,40}\b"
)


def described(text: str, *, tool: str, arguments: object, chars_max: int) -> str:
    """The note.

    Args:
        text: the original's text.
        tool: that gave it.
        arguments: of its call, as the provider sent them.
        chars_max: bound on the note, in characters, at least 100; what is less needed is left out first.
    """
    lines = text.splitlines()
    # A result is there, so the call was made: nobody needs to make it again to find that out.
    call = f"{tool}({_short(_in_one_line(arguments), LINE_CHARS_MAX)})"
    said = [f"Executed {call}: {len(lines)} lines, {len(text)} characters."]
    shape = _shape(text, lines)
    if shape:
        said.append(shape)
    errors = sum(_ERROR.search(line) is not None for line in lines)
    warnings = sum(_WARNING.search(line) is not None for line in lines)
    if errors or warnings:
        said.append(f"Lines that speak of errors: {errors}, of warnings: {warnings}.")
    named = identifiers(text)
    if named:
        said.append(f"Names in it: {', '.join(named)}.")
    filled = [line.strip() for line in lines if line.strip()]
    if filled and not shape:
        said.append(f"Begins: {_short(filled[0], LINE_CHARS_MAX)}")
        if len(filled) > 1:
            said.append(f"Ends: {_short(filled[-1], LINE_CHARS_MAX)}")
    while len(said) > 1 and len("\n".join(said)) > chars_max:
        said.pop()
    return _short("\n".join(said), chars_max)


def identifiers(text: str) -> list[str]:
    """Up to :data:`IDENTIFIERS_MAX` names in a text, those of lines that speak of errors first, each once."""
    scanned = text[:SCANNED_CHARS_MAX]
    troubled = "\n".join(line for line in scanned.splitlines() if _ERROR.search(line))
    found: dict[str, None] = {}
    for part in (troubled, scanned):
        for match in _IDENTIFIER.finditer(part):
            found.setdefault(_short(match[0], LINE_CHARS_MAX))
            if len(found) >= IDENTIFIERS_MAX:
                return list(found)
    return list(found)


def _shape(text: str, lines: list[str]) -> str:
    """What kind of data it is, where that is plain to see."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _json_shape(json.loads(text))
        except (ValueError, RecursionError):
            return ""
    return _table_shape(lines)


def _json_shape(value: dict[str, Any] | list[Any]) -> str:
    if isinstance(value, dict):
        told = [
            f"{key} {_short(_in_one_line(json.dumps(value[key], ensure_ascii=False)), 40)}"
            for key in _OUTCOMES
            if key in value and isinstance(value[key], str | int | float | bool | None)
        ]
        says = f" It says: {', '.join(told)}." if told else ""
        return f"JSON object with {_names('key', value)}.{says}"
    keys: dict[str, None] = {}
    for one in value:
        if isinstance(one, dict):
            keys.update(dict.fromkeys(one))
    of = f", objects with {_names('key', keys)}" if keys else ""
    return f"JSON list of {len(value)}{of}."


def _table_shape(lines: list[str]) -> str:
    """Rows under a line of names, separated all alike."""
    filled = [line for line in lines if line.strip()]
    if len(filled) < 3:
        return ""
    for delimiter in ("\t", ",", ";", "|"):
        try:
            rows = [next(csv.reader([row.strip().strip("|")], delimiter=delimiter), []) for row in islice(filled, 50)]
        except csv.Error:  # a cell longer than that module reads
            return ""
        width = len(rows[0])
        names = [name.strip() for name in rows[0]]
        if width > 1 and all(len(row) == width for row in rows) and all(names) and len(set(names)) == width:
            ruled = delimiter == "|" and set("".join(rows[1])) <= set("-: ")
            return f"Table of {len(filled) - 1 - ruled} rows with {_names('column', names)}."
    return ""


def _names(what: str, names: Iterable[object]) -> str:
    all_names = [str(name) for name in names]
    if not all_names:
        return f"no {what}s"
    shown = ", ".join(_short(name, 40) for name in all_names[:NAMES_MAX])
    more = f" and {len(all_names) - NAMES_MAX} more" if len(all_names) > NAMES_MAX else ""
    return f"{what}s {shown}{more}"


def _in_one_line(arguments: object) -> str:
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False, default=str)
        except Exception:  # an application may put anything there, and what it raises may hold evidence
            arguments = "..."
    return " ".join(str(arguments).split())


def _short(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
