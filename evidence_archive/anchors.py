"""Places outside the store that keep signed heads of audit logs: a file, an object store, a log line, a command.

An anchor is worth what it is hard to change: a file on another machine, a bucket with object lock, a log collector, a
transparency service. Each keeps what it was given; none is ever asked to forget.
"""

import fcntl
import itertools
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from evidence_archive.errors import AuditBrokenError, FormatError, StoreError, StoreUnavailableError
from evidence_archive.events import Events
from evidence_archive.model import ce
from evidence_archive.ports import Anchor, ObjectStore
from evidence_archive.proof.checkpoint import read_checkpoint

__all__ = ["CommandAnchor", "FileAnchor", "LogAnchor", "ObjectAnchor", "open_anchor"]

COMMAND_SECONDS_MAX = 10
"""How long a command may take that keeps a signed head."""


class FileAnchor:
    """A file that only grows: one JSON object a line, durable before :meth:`publish` returns.

    Args:
        path: made with mode 0600 where it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    @property
    def name(self) -> str:
        """``file``."""
        return "file"

    def publish(self, origin: str, size: int, note: str) -> None:
        """Appends the head and syncs the file, one writer at a time; not one that is there already.

        Raises:
            StoreUnavailableError: the file cannot be written.
        """
        line = json.dumps({"origin": origin, "size": size, "note": note}, ensure_ascii=True) + "\n"
        with self._opened(os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if note in self.heads(origin):
                return
            # A line that a crash cut off must not take this one with it.
            end = os.lseek(file, 0, os.SEEK_END)
            torn = end > 0 and os.pread(file, 1, end - 1) != b"\n"
            data = (b"\n" if torn else b"") + line.encode("ascii")
            if os.write(file, data) != len(data):
                raise StoreUnavailableError("An anchor file took only a part of a signed head: make room for it.")
            os.fsync(file)

    def latest(self, origin: str) -> str | None:
        """The head of the longest log of this origin; what stands beside it is not believed.

        Raises:
            StoreUnavailableError: the file cannot be read.
        """
        longest: tuple[int, str | None] = (0, None)
        for one in self._sized(origin):
            longest = one if one[0] >= longest[0] else longest
        return longest[1]

    def put_last(self, origin: str) -> str | None:
        """The head of this origin that was put last; a longer one may be of a history that was given up since.

        Raises:
            StoreUnavailableError: the file cannot be read.
        """
        last = None
        for _, note in self._sized(origin):
            last = note
        return last

    def _sized(self, origin: str) -> Iterator[tuple[int, str]]:
        for note in self.heads(origin):
            with suppress(AuditBrokenError):
                yield read_checkpoint(note).size, note

    def heads(self, origin: str) -> Iterator[str]:
        """Every head of this origin, in the order of the lines; lines that are none are skipped.

        Raises:
            StoreUnavailableError: the file cannot be read.
        """
        if not os.path.lexists(self._path):
            return
        with self._opened(os.O_RDONLY) as file, open(file, "rb", closefd=False) as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                    if entry["origin"] != origin:
                        continue
                    note = str(entry["note"])
                except (ValueError, TypeError, KeyError, RecursionError):
                    continue
                yield note

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            file = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise StoreUnavailableError(
                "An anchor file cannot be used: check its folder, its permissions and the room that is left."
            ) from error


class ObjectAnchor:
    """Objects that are written once, one for each signed head; for a bucket with object lock.

    Heads of a log are numbered; the newest is found by asking for numbers, not by listing.

    Args:
        objects: satisfies :class:`evidence_archive.ObjectStore`.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    @property
    def name(self) -> str:
        """What stores."""
        return self._objects.name

    def publish(self, origin: str, size: int, note: str) -> None:
        """Puts the head under the log's next number."""
        place = self._count(origin)
        if place and self._objects.get(_object_key(origin, place - 1)) == note.encode():
            return
        while not self._put(_object_key(origin, place), note.encode()):
            place += 1

    def _put(self, key: str, data: bytes) -> bool:
        """Whether the object was put; not so where another process was faster."""
        try:
            self._objects.put(key, data)
        except StoreError:
            if self._objects.get(key) is None:
                raise
            return False
        return True

    def latest(self, origin: str) -> str | None:
        """The head that was put last; which is of the longest log is seen by reading all :meth:`heads`."""
        count = self._count(origin)
        data = self._objects.get(_object_key(origin, count - 1)) if count else None
        return None if data is None else data.decode("utf-8", "replace")

    def heads(self, origin: str) -> Iterator[str]:
        """Every head that is here, in the order they were put; :meth:`latest` trusts whoever put the last one."""
        for place in itertools.count():
            data = self._objects.get(_object_key(origin, place))
            if data is None:
                return
            yield data.decode("utf-8", "replace")

    def _count(self, origin: str) -> int:
        """How many heads there are: the first number without one, found in steps that double, then halve."""
        high = 1
        while self._objects.get(_object_key(origin, high - 1)) is not None:
            high *= 2
        low = high // 2
        while low < high - 1 and low:
            middle = (low + high) // 2
            if self._objects.get(_object_key(origin, middle - 1)) is not None:
                low = middle
            else:
                high = middle
        return low


class LogAnchor:
    """An event, ``evidence_archive.anchor``, for whatever collects the application's log."""

    @property
    def name(self) -> str:
        """``log``."""
        return "log"

    def publish(self, origin: str, size: int, note: str) -> None:
        """Logs the head at level ``info``."""
        Events().info("evidence_archive.anchor", origin=origin, size=size, note=note)

    def latest(self, origin: str) -> str | None:
        """``None``: a log is not read from here."""
        del origin
        return None

    def heads(self, origin: str) -> Iterator[str]:
        """None: a log is not read from here."""
        del origin
        yield from ()


class CommandAnchor:
    """A command that is handed each signed head on its standard input.

    Args:
        command: program and arguments, separated as a shell would; no shell runs. Exit code 0 means it is kept.

    Raises:
        FormatError: it is empty, or its quotes do not match.
    """

    def __init__(self, command: str) -> None:
        try:
            self._argv = shlex.split(command)
        except ValueError as error:
            raise FormatError("The command of an anchor has quotes that do not match.") from error
        if not self._argv:
            raise FormatError("The command of an anchor is empty.")

    @property
    def name(self) -> str:
        """``command``."""
        return "command"

    def publish(self, origin: str, size: int, note: str) -> None:
        """Runs the command.

        Raises:
            StoreUnavailableError: it cannot be run, fails, or takes longer than ``COMMAND_SECONDS_MAX``.
        """
        del origin, size
        try:
            subprocess.run(  # noqa: S603 - the operator's own command, without a shell
                self._argv,
                input=note.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=COMMAND_SECONDS_MAX,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StoreUnavailableError("The command of an anchor did not keep a signed head.") from error

    def latest(self, origin: str) -> str | None:
        """``None``: the command is not asked."""
        del origin
        return None

    def heads(self, origin: str) -> Iterator[str]:
        """None: the command is not asked."""
        del origin
        yield from ()


def open_anchor(anchor: str | os.PathLike[str] | Anchor, *, create: bool = True) -> Anchor:
    """The anchor that is meant.

    Args:
        anchor: ``"log"``, ``"command:PROGRAM ARGUMENTS"``, ``"objects:FOLDER"``, ``"s3://bucket/prefix"``; any other
            string or path is a file; an anchor is returned as it is.
        create: make a folder of objects that does not exist.

    Raises:
        FormatError: it is none of these.
        StoreError: the object store cannot be used.
    """
    if isinstance(anchor, str):
        if anchor == "log":
            return LogAnchor()
        if anchor.startswith("command:"):
            return CommandAnchor(anchor.removeprefix("command:"))
        if anchor.startswith(("objects:", "s3://")):
            from evidence_archive.objects import open_objects

            return ObjectAnchor(open_objects(anchor.removeprefix("objects:"), create=create))
    if isinstance(anchor, str | os.PathLike):
        return FileAnchor(anchor)
    if not all(callable(getattr(anchor, verb, None)) for verb in ("publish", "latest", "heads")):
        raise FormatError("An anchor is a path, 'log', 'command:...', 'objects:...', 's3://...' or an Anchor.")
    return anchor


def _object_key(origin: str, place: int) -> str:
    name = sha256(b"evidence-archive/v1/anchor\x00" + ce(origin, place)).hexdigest()[:32]
    return f"{name[:2]}/{name[2:]}.00000"
