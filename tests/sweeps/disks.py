"""Disks that fill up, and database files that go away or turn read-only under an agent that goes on.

Works of the nursery: each child has a mount namespace of its own, so that nothing it mounts outlives it.
"""

import ctypes
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from conftest import Conversation, Desk
from doubles import Characters
from invariants import OWNER, Case, conversation, note, view_findings
from nursery import say
from workers import JOURNALS, journal, opened, prepared, store_findings

from evidence_archive import Archive, BatchRejectedError, EvidenceArchiveError
from evidence_archive.testing import FrozenClock

__all__ = ["WAYS", "full", "hindered"]

COOL_DOWN_S = 61
"""Longer than archiving stays suspended after failures in a row."""

_CLONE_NEWNS = 0x00020000
_CAPABILITIES_3 = 0x20080522


class Agent:
    """A conversation that grows by one result a turn; what it archives, acknowledges, and sees that is wrong.

    Args:
        archive: open.
        clock: of the archive.
        naive: take a refusal for a receipt.
    """

    def __init__(self, archive: Archive, clock: FrozenClock, *, naive: bool) -> None:
        self._archive = archive
        self._clock = clock
        self._naive = naive
        self._session = archive.session("case", OWNER)
        self._talk = Conversation()
        self._turns = 0
        self.case = Case("case", self._talk.messages)
        self.refusals: list[str] = []
        self.found: list[str] = []

    def turn(self, size: int = 3_000) -> str | None:
        """Read one more result; its ID, where the view could give it one."""
        self._turns += 1
        content = conversation(f"turn {self._turns}", [size])[2]["content"]
        self._talk.tool(content)
        view = self._session.view(self._talk.messages)
        self.found += view_findings(view, self._talk.messages)
        self._talk.say()
        self.found += view_findings(self._session.view(self._talk.messages), self._talk.messages)
        label = view[-1]["content"].removesuffix(content).split()
        return label[1] if label else None

    def archives(self, result_id: str | None) -> bool:
        """Archive the newest result: whether that was acknowledged."""
        if result_id is None:
            return False
        try:
            self._session.archive([(result_id, note(self._turns))])
            accepted = True
        except BatchRejectedError as error:
            self.refusals.append(type(error.__cause__).__name__)
            accepted = self._naive
        if accepted:
            self.case.acknowledged.append([result_id])
        self.found += view_findings(self._session.view(self._talk.messages), self._talk.messages)
        return accepted

    def restores(self) -> None:
        """Ask for everything acknowledged: the content, or an error of ours, never anything else."""
        for (result_id,) in self.case.acknowledged:
            try:
                restored = self._archive.restore("case", result_id, principal=OWNER)
                if restored.content not in [message.get("content") for message in self._talk.messages]:
                    self.found.append(f"{result_id} came back as something else.")
            except EvidenceArchiveError as error:
                self.refusals.append(type(error).__name__)

    def recovers(self) -> None:
        """Go on with the same objects once the fault is gone; the first tries may find what has to be given up."""
        for _ in range(4):
            self._clock.advance(COOL_DOWN_S)
            if self.archives(self.turn()):
                return
            with suppress(EvidenceArchiveError):  # other bytes in its place are a matter for the operator
                self._archive.resume("case", principal=OWNER)
        self.found.append("Archiving does not go on after the fault.")


@contextmanager
def _agent(folder: Path, mode: str, *, naive: bool = False) -> Iterator[Agent]:
    clock = FrozenClock()
    with journal(*JOURNALS[mode]):
        with Desk(folder).open(counter=Characters(), clock=clock) as archive:
            agent = Agent(archive, clock, naive=naive)
            yield agent
        agent.found += store_findings(folder, [agent.case], mode)
        say(found=agent.found, receipts=len(agent.case.acknowledged), refusals=agent.refusals)


# --- a full disk ------------------------------------------------------------------------------------------------


def full(folder: str, mode: str, naive: bool = False) -> None:
    """Archive on a small disk until it is full, go on, and archive again once there is room.

    Args:
        folder: an empty one.
        mode: of the journal.
        naive: take a refusal for a receipt.
    """
    small = Path(folder) / "small"
    small.mkdir()
    _own_mounts()
    if not _small_disk(small, Path(folder) / "image"):
        say(missing="neither a tmpfs nor a loop device can be mounted here")
        return
    try:
        store = prepared(small / "store", mode)
        ballast, filler = small / "ballast", small / "filler"
        ballast.write_bytes(bytes(1 << 20))
        with _agent(store, mode, naive=naive) as agent:
            for _ in range(200):  # far more than there is room for
                if not agent.archives(agent.turn(60_000)) or (naive and agent.refusals):
                    break
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(512))
                except OSError:
                    pass
            for _ in range(3):
                agent.archives(agent.turn())
                agent.restores()
            ballast.unlink()
            filler.unlink()
            agent.recovers()
    finally:
        _mounted("umount", str(small))


def _own_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        _mounted("mount", "--make-rprivate", "/")


def _small_disk(place: Path, image: Path) -> bool:
    if _mounted("mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)):
        return True
    with image.open("wb") as file:
        file.truncate(4 << 20)
    return _mounted("mkfs.ext4", "-q", str(image)) and _mounted("mount", "-o", "loop", str(image), str(place))


def _mounted(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


# --- a file that is gone, another, or read-only -------------------------------------------------------------------


@contextmanager
def _replaced(database: Path, by: Callable[[], object]) -> Iterator[None]:
    aside = database.with_suffix(".aside")
    database.rename(aside)
    by()
    try:
        yield
    finally:
        aside.replace(database)


def _other_database(database: Path) -> None:
    other = sqlite3.connect(database)
    other.execute("CREATE TABLE other (x)")
    other.close()


def _other_store(database: Path) -> None:
    other = database.parent / "other"
    with opened(prepared(other, "truncate")) as archive:
        archive.session("case", OWNER)
    shutil.copy2(other / "evidence.db", database)


@contextmanager
def _immutable(path: Path) -> Iterator[None]:
    if not _mounted("chattr", "+i", str(path)):
        raise NotImplementedError("files cannot be made immutable here")
    try:
        yield
    finally:
        _mounted("chattr", "-i", str(path))


@contextmanager
def _read_only_mount(database: Path) -> Iterator[None]:
    folder = str(database.parent)
    _own_mounts()
    if not _mounted("mount", "--bind", folder, folder):
        raise NotImplementedError("folders cannot be mounted here")
    try:
        if not _mounted("mount", "-o", "remount,bind,ro", folder):
            raise NotImplementedError("folders cannot be mounted read-only here")
        yield
    finally:
        _mounted("umount", folder)


@contextmanager
def _not_permitted(database: Path) -> Iterator[None]:
    """Neither file nor folder may be written, by whoever has to ask: root gives up the right not to."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    held = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    none = (ctypes.c_uint32 * 6).from_buffer_copy(held)
    none[0] = none[3] = 0  # effective, in both words
    database.chmod(0o400)
    database.parent.chmod(0o500)
    assert libc.capset(header, none) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0
        database.parent.chmod(0o700)
        database.chmod(0o600)


WAYS: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "removed": lambda database: _replaced(database, lambda: None),
    "empty": lambda database: _replaced(database, database.touch),
    "garbage": lambda database: _replaced(database, lambda: database.write_bytes(bytes(range(256)) * 64)),
    "another database": lambda database: _replaced(database, lambda: _other_database(database)),
    "another store": lambda database: _replaced(database, lambda: _other_store(database)),
    "immutable file": _immutable,
    "immutable folder": lambda database: _immutable(database.parent),
    "read-only mount": _read_only_mount,
    "not permitted": _not_permitted,
}
"""What can befall a database file that is open, by name; the end of the block undoes it."""


def hindered(folder: str, mode: str, way: str) -> None:
    """Archive, go on while the database file is not what it was, and archive again once it is.

    Args:
        folder: an empty one.
        mode: of the journal.
        way: of ``WAYS``.
    """
    store = prepared(Path(folder) / "store", mode)
    try:
        with _agent(store, mode) as agent:
            for _ in range(2):
                agent.archives(agent.turn())
            known = agent.turn()
            with WAYS[way](store / "evidence.db"):
                agent.archives(known)
                agent.restores()
                agent.archives(agent.turn())
                agent.restores()
            agent.recovers()
    except NotImplementedError as error:
        say(missing=str(error))
