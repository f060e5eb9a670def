"""Checks of the host: deterministic, and each says what it compared. Only what passes one becomes a fact.

A check gets the cited parts, as bytes in the order of the sources, and returns an :class:`Outcome` or raises
:class:`CheckFailedError`. Anything callable will do; these are built in.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from evidence_archive.errors import CheckFailedError, FormatError
from evidence_archive.excerpt import value_at
from evidence_archive.ledger.entries import Outcome

__all__ = [
    "COMMAND_SECONDS_MAX",
    "Check",
    "command_succeeds",
    "file_equals",
    "is_path",
    "matches",
    "number_is",
    "pointer_equals",
    "quotes",
]

Check = Callable[[Sequence[bytes]], Outcome]

COMMAND_SECONDS_MAX = 300
FILE_BYTES_MAX = 64 * 1024 * 1024


def quotes(text: str) -> Check:
    """Passes where the text stands word for word in one of the cited parts.

    Args:
        text: what has to be there; any characters, also line breaks.

    Raises:
        FormatError: it is no text.
    """
    if not isinstance(text, str):
        raise FormatError("What is to be quoted is a text.")
    wanted = text.encode("utf-8", "surrogatepass")

    def check(parts: Sequence[bytes]) -> Outcome:
        for at, part in enumerate(parts, 1):
            if wanted and wanted in part:
                return Outcome("quotes", f"it stands word for word in source {at}")
        raise CheckFailedError("quotes: the text stands in none of the cited parts.")

    return check


def matches(pattern: str, group: str | None = None) -> Check:
    """Passes where a regular expression matches in one of the cited parts, and a group of it is what is expected.

    Args:
        pattern: of Python's ``re``; written by the host, so its running time is the host's affair.
        group: what the first group has to be; ``None`` where a match is enough.

    Raises:
        FormatError: the pattern is none, or has no group where one is asked for, or what that has to be is no text.
    """
    compiled = _compiled(pattern)
    if group is not None and not isinstance(group, str):
        raise FormatError("What a group of a pattern has to be is a text.")
    if group is not None and compiled.groups < 1:
        raise FormatError("A pattern whose group is compared needs a group.")

    def check(parts: Sequence[bytes]) -> Outcome:
        for at, part in enumerate(parts, 1):
            for found in compiled.finditer(part.decode("utf-8", "replace")):
                if group is None or found[1] == group:
                    return Outcome("matches", f"it matches in source {at}")
        raise CheckFailedError("matches: the pattern does not match, or its group is another.")

    return check


def number_is(value: float, *, tolerance: float = 0.0, pattern: str = r"-?\d+(?:\.\d+)?") -> Check:
    """Passes where a number in one of the cited parts is this one, within a tolerance.

    Args:
        value: the number.
        tolerance: how far off it may be, at least 0, absolute.
        pattern: of Python's ``re``, which finds numbers.

    Raises:
        FormatError: a value is no finite number, or the pattern is none.
    """
    for number in (value, tolerance):
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise FormatError("A number that is checked, and its tolerance, are finite numbers of up to 1.79e308.")
    if tolerance < 0:
        raise FormatError("A tolerance is at least 0.")
    compiled = _compiled(pattern)

    def check(parts: Sequence[bytes]) -> Outcome:
        for at, part in enumerate(parts, 1):
            for found in compiled.finditer(part.decode("utf-8", "replace")):
                try:
                    number = float(found[0])
                except ValueError:
                    continue
                if abs(number - value) <= tolerance:
                    return Outcome(f"number_is {value} +- {tolerance}", f"source {at} says {found[0]}")
        raise CheckFailedError(f"number_is: no number within {tolerance} of it stands in the cited parts.")

    return check


def pointer_equals(pointer: str, value: Any) -> Check:
    """Passes where the value at a JSON pointer (RFC 6901) in one of the cited parts is this one, type included.

    Args:
        pointer: such as ``/items/3/price``.
        value: a JSON value.

    Raises:
        FormatError: it is none, or the pointer is none.
    """
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise FormatError("A JSON pointer is a text such as /items/3/price; an empty one is the whole.")
    try:
        expected = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError("What is compared with the value at a JSON pointer is a JSON value.") from error

    def check(parts: Sequence[bytes]) -> Outcome:
        for at, part in enumerate(parts, 1):
            try:
                found = json.dumps(value_at(json.loads(part), pointer), sort_keys=True)
            except (ValueError, RecursionError, FormatError):
                continue
            if found == expected:
                return Outcome(f"pointer_equals {pointer}", f"source {at} has this value there")
        raise CheckFailedError("pointer_equals: no cited part has this value there.")

    return check


def file_equals(path: str | Path) -> Check:
    """Passes where a file holds just the bytes of one of the cited parts: what was said to be written is there.

    Args:
        path: of a file of at most 64 MiB, read when the check runs.

    Raises:
        FormatError: it is no path.
    """
    if not is_path(path):
        raise FormatError("Name the file that is compared: a path, as text or as a Path.")
    file = Path(path)

    def check(parts: Sequence[bytes]) -> Outcome:
        try:
            with file.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise CheckFailedError("file_equals: the file cannot be read.") from error
        if data in parts:
            return Outcome("file_equals", f"{len(data)} bytes, sha256 {sha256(data).hexdigest()}")
        raise CheckFailedError("file_equals: the file is none of the cited parts.")

    return check


def command_succeeds(*command: str | Path, cwd: str | Path | None = None) -> Check:
    """Passes where a program, given the cited parts on its standard input one after the other, exits with 0.

    Args:
        command: the program and its arguments; no shell.
        cwd: the folder it runs in.

    Raises:
        FormatError: no program is named, or what is named cannot be: each is a text or a path.
    """
    if not command:
        raise FormatError("Name the program that checks.")
    if not all(map(is_path, command)):
        raise FormatError('The program and its arguments are texts, one by one: command_succeeds("diff", "a", "b").')
    if cwd is not None and not is_path(cwd):
        raise FormatError("Name the folder a program runs in: a path, as text or as a Path.")

    def check(parts: Sequence[bytes]) -> Outcome:
        try:
            done = subprocess.run(  # noqa: S603 - the host names the program, and no shell is between
                command,
                input=b"".join(parts),
                cwd=cwd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckFailedError("command_succeeds: the program did not run to its end.") from error
        if done.returncode != 0:
            raise CheckFailedError(f"command_succeeds: the program exited with {done.returncode}.")
        return Outcome(f"command_succeeds {Path(command[0]).name}", "it exited with 0")

    return check


def _compiled(pattern: object) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)  # type: ignore[call-overload]
        if isinstance(compiled.pattern, str):
            return compiled  # type: ignore[no-any-return]
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise FormatError("The pattern of a check is not a regular expression.") from error
    raise FormatError("The pattern of a check is a text, as the parts are read as text for it.")


def is_path(value: object) -> bool:
    """Whether it is a text, or a path made of one, that the system takes as a name or as a word of a command."""
    if not isinstance(value, str | os.PathLike):
        return False
    try:
        return isinstance(os.fspath(value), str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False
