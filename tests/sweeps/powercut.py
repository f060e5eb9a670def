"""What a disk may hold after a power cut: recorded changes, and the states a file system may be left in by them.

``strace`` records what a process does to the files below a folder, and where its receipts come out. A power cut falls
between any two of these events. The model is the weakest that POSIX allows and that SQLite counts on
(https://sqlite.org/atomiccommit.html, sections 2 and 9; https://sqlite.org/psow.html; fsync(2)):

* Contents and size of a file are durable once ``fsync`` or ``fdatasync`` of it has returned; names (created, linked,
  renamed, removed) once ``fsync`` of their directory has. A sync of one file says nothing of any other, nor of its
  own name.
* Of all that is not durable, any subset may have reached the disk, whatever order it was done in: each write, each
  change of size, each name. A rename is there or is not. What has no durable name is gone.
* A write is torn between its 512-byte sectors: any of them may be new, the others old. A sector is new or old, and
  bytes next to a write stay as they are (SQLite's powersafe overwrite).
* A file may have grown without its contents: what was not written then holds garbage, and so do holes.
* The disk does not lie: what was synced stays. The shared-memory index of WAL mode (``-shm``) is made anew by whoever
  opens the database first after a crash, and is left out.

``mmap`` and the calls that :data:`_REFUSED` lists write past the recording; of these the store may use none.
"""

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

__all__ = ["TRACED", "Choice", "Cut", "Event", "choices", "cuts", "recorded", "state"]

SECTOR_BYTES = 512
DIRECTORY = -1
"""Stands for the inode of a directory, whose contents are its names."""

_MADE = ("openat", "open", "creat", "mkdir", "mkdirat")
_CHANGED = ("write", "pwrite64", "ftruncate", "lseek", "fsync", "fdatasync", "writev")
_NAMED = ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "rmdir")
_REFUSED = ("pwritev", "pwritev2", "fallocate", "truncate", "sendfile", "copy_file_range", "sync_file_range", "dup2")
TRACED = [
    *("-f", "-y", "-xx", "-s", str(1 << 24)),
    *("-e", "trace=" + ",".join(f"?{call}" for call in (*_MADE, *_CHANGED, *_NAMED, *_REFUSED))),
]
"""Options of strace that :func:`recorded` reads the output of."""

_LINE = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+= (\d+)(?:<.*)?$")
_ARGUMENT = re.compile(r'"([^"]*)"|(AT_FDCWD|\d+)<([^>]*)>(?:\(deleted\))?|([^,\s()\[\]{}"<>]+)')
_WAL_INDEX = "-shm"
_CONTENTS, _NAMES = ("write", "resize"), ("enter", "leave", "move")
_GARBAGE = b"\xa5"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was done.

    Args:
        kind: ``write``, ``resize`` (of an inode), ``enter``, ``leave``, ``move`` (of a name), ``sync`` (of an inode),
            ``sync names`` (of a directory), ``said``.
        inode: of a file; numbered as they were made.
        at: place of a write, or a file's new size, in bytes.
        data: what was written or said.
        name, to: relative to the folder.
    """

    kind: str
    inode: int = 0
    at: int = 0
    data: bytes = field(default=b"", repr=False)
    name: str = ""
    to: str = ""

    @property
    def names(self) -> str:
        """The directory whose names this changes."""
        return str(Path(self.to or self.name).parent)


def recorded(trace: Iterable[str], folder: Path) -> list[Event]:
    """The events below a folder, of all files that are made in it.

    Args:
        trace: lines of strace's output under the options ``TRACED``.
        folder: absolute, without symbolic links; what lies in it already is read only.
    """
    return list(_Recording(folder).events(trace))


class _Recording:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inodes = count(1)
        self._names: dict[str, int] = {}
        self._opened: dict[int, tuple[int, str]] = {}
        self._places: dict[int, int] = {}

    def events(self, trace: Iterable[str]) -> Iterator[Event]:
        for line in trace:
            assert "<unfinished" not in line, "the recorded process has one thread"
            match = _LINE.match(line)
            if match:
                arguments = [_argument(found) for found in _ARGUMENT.findall(match[2])]
                yield from self._event(match[1], arguments, int(match[3]))

    def _event(self, call: str, arguments: list[bytes | int | str | tuple[int, str]], result: int) -> Iterator[Event]:
        if call in _MADE:
            yield from self._made(call, arguments, result)
        elif call in _NAMED:
            named = self._paths(arguments)
            paths = [path for path in named if path is not None]
            assert len(paths) in (0, len(named)), "nothing is moved into the folder or out of it"
            if paths:
                yield from self._named(call, *paths)
        elif call == "writev":
            yield Event("said", data=b"".join(one for one in arguments if isinstance(one, bytes)))
        else:
            descriptor = arguments[0][0] if isinstance(arguments[0], tuple) else -1
            inode, name = self._opened.get(descriptor, (0, ""))
            if name:
                assert call not in _REFUSED, f"{call} is not part of the model"
                yield from self._changed(call, descriptor, inode, name, arguments, result)

    def _made(self, call: str, arguments: list[bytes | int | str | tuple[int, str]], result: int) -> Iterator[Event]:
        (name,) = self._paths(arguments)[:1]
        if call.startswith("mkdir"):
            if name is not None:
                self._names[name] = DIRECTORY
                yield Event("enter", DIRECTORY, name=name)
            return
        self._opened.pop(result, None)
        if name is None or name.endswith(_WAL_INDEX):
            return
        flags = "|".join(one for one in arguments if isinstance(one, str))
        if name == "." or self._names.get(name) == DIRECTORY:
            self._opened[result] = DIRECTORY, name
            return
        if name not in self._names:
            if "O_CREAT" not in flags:
                assert "O_RDONLY" in flags, f"{name} was there before the recording, and is not to be changed"
                return
            self._names[name] = next(self._inodes)
            yield Event("enter", self._names[name], name=name)
        elif "O_TRUNC" in flags:
            yield Event("resize", self._names[name], 0)
        self._opened[result] = self._names[name], name
        self._places[result] = 0

    def _changed(
        self, call: str, descriptor: int, inode: int, name: str, arguments: Sequence[object], result: int
    ) -> Iterator[Event]:
        data = next((one for one in arguments if isinstance(one, bytes)), b"")[:result]
        if call == "pwrite64":
            yield Event("write", inode, int(str(arguments[-1])), data)
        elif call == "write":
            yield Event("write", inode, self._places[descriptor], data)
            self._places[descriptor] += result
        elif call == "lseek":
            self._places[descriptor] = result
        elif call == "ftruncate":
            yield Event("resize", inode, int(str(arguments[-1])))
        elif inode == DIRECTORY:
            yield Event("sync names", name=name)
        else:
            yield Event("sync", inode)

    def _named(self, call: str, name: str, to: str = "") -> Iterator[Event]:
        if name.endswith(_WAL_INDEX):
            return
        if call.startswith("rename"):
            self._names[to] = self._names.pop(name)
            yield Event("move", self._names[to], name=name, to=to)
        elif call.startswith("link"):
            self._names[to] = self._names[name]
            yield Event("enter", self._names[to], name=to)
        else:
            yield Event("leave", self._names.pop(name), name=name)

    def _paths(self, arguments: Sequence[object]) -> list[str | None]:
        """The paths that are named, relative to the folder; ``None`` for one that lies elsewhere."""
        paths: list[str | None] = []
        base = Path("/")
        for one in arguments:
            if isinstance(one, tuple):
                base = Path(one[1])
            elif isinstance(one, bytes):
                path = base / one.decode()
                inside = path.is_relative_to(self._folder)
                paths.append(str(path.relative_to(self._folder)) if inside else None)
        return paths


def _argument(found: tuple[str, str, str, str]) -> bytes | int | str | tuple[int, str]:
    text, descriptor, path, other = found
    if descriptor:
        return (int(descriptor) if descriptor.isdigit() else -1), _bytes(path).decode()
    if other:
        return int(other) if other.isdigit() else other
    return _bytes(text)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


# --- states -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """The moment after some events: what is durable, what may be, and what was said."""

    contents: Mapping[int, bytes] = field(repr=False)
    names: Mapping[str, int]
    pending: tuple[Event, ...] = field(repr=False)
    said: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the pending events reached the disk.

    Args:
        kept: their indices.
        torn: the index of a kept write of which only some sectors did, and which.
        grown: files have the size they would have with all pending events.
    """

    kept: frozenset[int]
    torn: tuple[int, frozenset[int]] | None = None
    grown: bool = False


def cuts(events: Iterable[Event]) -> Iterator[Cut]:
    """Every moment the power may go, the one before the first event and the one after the last included."""
    contents: dict[int, bytes] = {}
    names: dict[str, int] = {}
    pending: list[Event] = []
    said: list[bytes] = []
    yield Cut({}, {}, (), ())
    for event in events:
        if event.kind == "said":
            said.append(event.data)
        elif event.kind == "sync":
            done = [one for one in pending if one.kind in _CONTENTS and one.inode == event.inode]
            contents[event.inode] = _written(contents.get(event.inode, b""), done)
            pending = [one for one in pending if one.kind not in _CONTENTS or one.inode != event.inode]
        elif event.kind == "sync names":
            done = [one for one in pending if one.kind in _NAMES and one.names == event.name]
            names = _renamed(names, done)
            pending = [one for one in pending if one.kind not in _NAMES or one.names != event.name]
        else:
            pending.append(event)
        yield Cut(dict(contents), dict(names), tuple(pending), tuple(said))


def choices(cut: Cut, seed: str, random_count: int) -> Iterator[Choice]:
    """What may have reached the disk at a cut.

    None of what is pending, all, each single one lost, each single one kept, the last write cut at each sector; then
    random subsets, with and without a write torn into random sectors.

    Args:
        cut: the moment.
        seed: of the random ones.
        random_count: how many of those.
    """
    every = frozenset(range(len(cut.pending)))
    yield Choice(frozenset())
    if not every:
        return
    yield Choice(frozenset(), grown=True)
    yield Choice(every)
    for one in sorted(every):
        yield Choice(every - {one})
        yield Choice(frozenset({one}))
    writes = [at for at in sorted(every) if cut.pending[at].kind == "write"]
    if writes:
        for sectors in range(1, _sectors(cut.pending[writes[-1]])):
            yield Choice(every, (writes[-1], frozenset(range(sectors))))
    draw = random.Random(seed)
    for _ in range(random_count):
        share = draw.random()
        kept = frozenset(at for at in every if draw.random() < share)
        torn = None
        written = sorted(kept.intersection(writes))
        if written and draw.random() < 0.5:
            one = draw.choice(written)
            torn = one, frozenset(at for at in range(_sectors(cut.pending[one])) if draw.random() < 0.5)
        yield Choice(kept, torn, draw.random() < 0.5)


def state(cut: Cut, choice: Choice) -> dict[str, bytes | None]:
    """The files on the disk after a cut: their contents by name, ``None`` for a directory."""
    kept = [event for at, event in enumerate(cut.pending) if at in choice.kept]
    names = _renamed(cut.names, [event for event in kept if event.kind in _NAMES])
    files: dict[str, bytes | None] = {}
    for name, inode in sorted(names.items()):
        parents = [str(parent) for parent in Path(name).parents if str(parent) != "."]
        if all(names.get(parent) == DIRECTORY for parent in parents):
            files[name] = None if inode == DIRECTORY else _content(cut, choice, inode)
    return files


def _content(cut: Cut, choice: Choice, inode: int) -> bytes:
    changes = [
        (at, event) for at, event in enumerate(cut.pending) if event.inode == inode and event.kind in _CONTENTS
    ]
    kept: list[Event] = []
    for at, event in changes:
        if choice.torn is not None and choice.torn[0] == at:
            kept += _pieces(event, choice.torn[1])
        elif at in choice.kept:
            kept.append(event)
    old = cut.contents.get(inode, b"")
    content = _written(old, kept, _GARBAGE if choice.grown else b"\0")
    if choice.grown:
        size = len(_written(old, [event for _, event in changes]))
        content += _GARBAGE * (size - len(content))
    return content


def _written(content: bytes, changes: Sequence[Event], hole: bytes = b"\0") -> bytes:
    if not changes:
        return content
    new = bytearray(content)
    for change in changes:
        new += hole * (change.at - len(new))
        if change.kind == "resize":
            del new[change.at :]
        else:
            new[change.at : change.at + len(change.data)] = change.data
    return bytes(new)


def _renamed(names: Mapping[str, int], changes: Sequence[Event]) -> dict[str, int]:
    new = dict(names)
    for change in changes:
        if change.kind != "enter":
            new.pop(change.name, None)
        if change.kind != "leave":
            new[change.to or change.name] = change.inode
    return new


def _sectors(write: Event) -> int:
    first, end = write.at // SECTOR_BYTES, write.at + len(write.data)
    return -(-end // SECTOR_BYTES) - first


def _pieces(write: Event, sectors: Collection[int]) -> Iterator[Event]:
    """The parts of a write that lie in these of its sectors, counted from its first."""
    first, end = write.at // SECTOR_BYTES, write.at + len(write.data)
    for sector in sorted(sectors):
        low = max(write.at, (first + sector) * SECTOR_BYTES)
        high = min(end, (first + sector + 1) * SECTOR_BYTES)
        yield Event("write", write.inode, low, write.data[low - write.at : high - write.at])
