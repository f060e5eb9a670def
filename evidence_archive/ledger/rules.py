"""Rules of the host that make entries by themselves: a tool's result is looked at once, when a view first has it.

A rule gets the model's call and the exact content of its result, and returns what it found, or ``None`` where it has
nothing to say. What it found is posted as a fact with its product as the artifact. A rule that raises
:class:`~evidence_archive.errors.CheckFailedError` says that something was to be verified and was not: that is noted,
and is no fact. A rule does not use the archive. Anything callable will do; :func:`written_file` is built in.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from evidence_archive.errors import CheckFailedError, FormatError
from evidence_archive.ledger.checks import is_path
from evidence_archive.ledger.entries import Outcome
from evidence_archive.model import Content, ToolCall
from evidence_archive.notes import clean_name
from evidence_archive.references import parse_reference

__all__ = ["FILE_BYTES_MAX", "Finding", "Rule", "arguments_of", "artifact_name", "written_file"]

FILE_BYTES_MAX = 64 * 1024 * 1024
"""Largest file that is read back, in bytes."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not make us wait

_UNFIT_IN_NAME = re.compile(r"[\s#%\\\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule has verified.

    Args:
        text: what holds, in 1 to 1,000 characters.
        outcome: what was compared.
        name: of the artifact that is kept, such as ``workspace/avg.json``; from :func:`artifact_name` for a path.
        data: its exact bytes.
        key: whether every reconciliation reads it again.
    """

    text: str = field(repr=False)
    outcome: Outcome
    name: str
    data: bytes = field(repr=False)
    key: bool = False


Rule = Callable[[ToolCall, Content], Finding | None]
"""A rule; it may look at the world, and leaves the archive alone."""


def arguments_of(call: ToolCall) -> Mapping[str, Any]:
    """The arguments of a call as an object; empty where they are none.

    Args:
        call: as the provider sent it.
    """
    given = call.arguments
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    return given if isinstance(given, Mapping) else {}


def artifact_name(path: str) -> str:
    """A path below a folder as an artifact's name: what may not stand in one is percent-encoded (RFC 3986, 2.1).

    Args:
        path: such as ``reports/week 12.md``, with ``/`` between its steps.

    Raises:
        FormatError: it is none, or too long.
    """
    if not isinstance(path, str):
        raise FormatError("The path of an artifact is a text.")
    name = _UNFIT_IN_NAME.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), path)
    parse_reference(f"artifact:{name}")
    return name


def written_file(
    *,
    tool: str,
    root: str | os.PathLike[str],
    path: str = "path",
    content: str | None = "content",
    named_below: str = "",
) -> Rule:
    """After a tool that writes files: the file is read back, compared with what was to be written, and kept.

    Args:
        tool: its name, as called.
        root: the folder that the tool writes in; nothing outside it is read, and no symbolic link below it followed.
        path: the argument that names the file, below ``root`` or absolute in it.
        content: the argument that holds the text to be written; ``None`` where none does, so that whatever is there
            is kept and nothing compared.
        named_below: stands before the file's path in the artifact's name, as in ``reports/avg.json``, so that files
            of several folders have names of their own; nothing by default.

    Returns:
        A rule. It does not verify a file that is missing, no regular file, larger than 64 MiB, or another than was to
        be written.

    Raises:
        FormatError: a name is no text, or the folder no path.
    """
    if not all(isinstance(one, str) for one in (tool, path, "" if content is None else content, named_below)):
        raise FormatError("The tool, its arguments that hold path and content, and named_below are texts.")
    if not tool.strip():
        raise FormatError("Name the tool that writes the files.")
    if not is_path(root):
        raise FormatError("Name the folder the tool writes in: a path, as text or as a Path.")
    folder = Path(os.path.abspath(root))

    def rule(call: ToolCall, result: Content) -> Finding | None:
        if call.name != tool:
            return None
        arguments = arguments_of(call)
        named, wanted = arguments.get(path), None if content is None else arguments.get(content)
        if not isinstance(named, str) or (content is not None and not isinstance(wanted, str)):
            raise CheckFailedError("written_file: the call does not say which file holds which text.")
        steps = _steps(folder, named)
        try:
            name = artifact_name("/".join([*filter(None, [named_below.strip("/")]), *steps]))
        except (FormatError, UnicodeEncodeError):
            raise CheckFailedError("written_file: the file's name cannot be an artifact's.") from None
        data = _read_below(folder, steps)
        if isinstance(wanted, str) and data != wanted.encode("utf-8", "surrogatepass"):
            raise CheckFailedError("written_file: the file is not what was to be written.")
        compared = "read back" if content is None else "read back and equal to what was to be written"
        outcome = Outcome(
            f"written_file {clean_name(tool)}", f"{compared}: {len(data)} bytes, sha256 {sha256(data).hexdigest()}"
        )
        return Finding(f"{tool} wrote {name}, {len(data)} bytes", outcome, name, data)

    return rule


def _steps(folder: Path, named: str) -> list[str]:
    """The steps from a folder down to a file.

    Raises:
        CheckFailedError: the name leads out of the folder, or to the folder itself.
    """
    below = PurePosixPath(named)
    for base in (folder, Path(os.path.realpath(folder))):  # a tool may name the folder either way
        if below.is_absolute() and below.is_relative_to(base):
            below = below.relative_to(base)
    if below.is_absolute() or not below.parts or ".." in below.parts or "\0" in named:
        raise CheckFailedError("written_file: the file is outside the folder.")
    return list(below.parts)


def _read_below(folder: Path, steps: list[str]) -> bytes:
    """The bytes of a regular file, opened step by step, so that no link can lead elsewhere meanwhile.

    Raises:
        CheckFailedError: it is not there, no regular file, behind a link, or too large.
    """
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for step in steps[:-1]:
            opened.append(os.open(step, _FOLDER, dir_fd=opened[-1]))
        opened.append(os.open(steps[-1], _FILE, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            raise CheckFailedError("written_file: it is no regular file.")
        with open(opened.pop(), "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a lone surrogate in the name is the second
        raise CheckFailedError("written_file: the file cannot be read back.") from error
    finally:
        for one in opened:
            os.close(one)
    if len(data) > FILE_BYTES_MAX:
        raise CheckFailedError(f"written_file: the file has more than {FILE_BYTES_MAX} bytes.")
    return data
