"""Objects as files in a folder that nobody but its owner can enter.

An object is written to a file of a random name, synced, then linked to its own name, which fails if that name is
taken; the folder is synced last. Cut off at any point, the name is absent or stands for the whole object
(POSIX.1-2017, ``link``, ``fsync``). Nothing follows a symbolic link, and every step after the first is relative to a
folder that is open already, so that no path can be swapped under us.

A *mark*, a small file with a random ID, tells this folder from another one in its place: an unmounted disk leaves an
empty folder behind, and no object must go there or be called missing because of it.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evidence_archive.errors import MisuseError, StoreError, StoreUnavailableError
from evidence_archive.objects.naming import check_data, split_key
from evidence_archive.ports import OBJECT_BYTES_MAX, Entropy

__all__ = ["LEFTOVER_AGE_S_MIN", "MARK", "DirectoryObjects"]

MARK = "evidence-archive-objects"
"""Name of the file that says: this is the folder, and which one."""

LEFTOVER_AGE_S_MIN = 24 * 60 * 60
"""Seconds after which :meth:`DirectoryObjects.tidy` takes an unfinished file for one of a writer that was killed."""

_MARK_TEXT = re.compile(rb"evidence-archive/objects/1 ([0-9a-f]{32})\n")
_LEFTOVER = re.compile(r"[0-9a-f]{32}\.part", re.ASCII)
_SUBFOLDER = re.compile(r"[0-9a-f]{2}", re.ASCII)
_NOT_OURS_BUT_HARMLESS = {"lost+found"}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not make us wait
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_FULL = "The disk of the object folder is full: free space and try again; nothing was half written."
_GONE = "The object folder or a part of it is gone: put it back, mount it, or name the right one with objects=."
_DENIED = "The object folder does not permit this: check its permissions, and that its file system has hard links."
_BUSY = "The process has too many open files: raise its limit and try again; nothing was half written."
_UNAVAILABLE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "The object folder is read-only: mount it writable and try again; nothing was half written.",
    errno.EIO: "The disk of the object folder reported an I/O error: check the disk; nothing was half written.",
    errno.ENOENT: _GONE,
    errno.ESTALE: _GONE,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOTSUP: _DENIED,
    errno.EMFILE: _BUSY,
    errno.ENFILE: _BUSY,
}
_IN_THE_WAY = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EMLINK}


class DirectoryObjects:
    """Objects in a folder of mode 0700, one file of mode 0600 each; no state, so it may be used after ``fork`` too.

    Args:
        path: the folder; not a link. The folder it is in must exist.
        create: make the folder, or take an empty one over, where there are no objects yet.
        entropy: source of random bytes.

    Raises:
        StoreUnavailableError: the folder is missing or cannot be used.
        StoreError: it is no folder of objects, or it is open to others or belongs to another user.
    """

    __slots__ = ("_closed", "_entropy", "_mark", "_path")

    def __init__(self, path: str | os.PathLike[str], *, create: bool, entropy: Entropy = os.urandom) -> None:
        self._path = _absolute(path)
        self._entropy = entropy
        self._closed = False
        with _translated():
            if create:
                _make_folder(self._path)
            with _opened_folder(self._path) as root:
                _check_private(root, self._path)
                self._mark = _read_mark(root) or self._new_mark(root, create)

    @property
    def name(self) -> str:
        """``directory``."""
        return "directory"

    def put(self, key: str, data: bytes) -> None:
        """The object, durable when this returns; nothing is ever overwritten.

        Args:
            key: of the form that :class:`~evidence_archive.ports.ObjectStore` gives.
            data: at most ``OBJECT_BYTES_MAX`` bytes.

        Raises:
            StoreError: an object with other content has this key, or something that is no object is in its place.
            StoreUnavailableError: disk, folder or permissions are not as they should be; the object is there whole or
                not at all.
            MisuseError: the store was closed.
        """
        check_data(data)
        subfolder, file = split_key(key)
        with self._root() as root:
            with contextlib.suppress(FileExistsError):
                os.mkdir(subfolder, 0o700, dir_fd=root)
            # In every case: whoever made it may not have come to this yet, and what we put into it would not last.
            _sync(root)
            with _opened_folder(subfolder, root) as folder:
                _check_private(folder, self._path / subfolder)
                _write_once(folder, file, data, self._entropy)

    def get(self, key: str) -> bytes | None:
        """The object, or ``None``.

        Args:
            key: as in :meth:`put`.

        Raises:
            StoreError: something that is no object is in its place.
            StoreUnavailableError: disk, folder or permissions are not as they should be.
            MisuseError: the store was closed.
        """
        with self._holding(key) as (folder, file):
            return None if folder is None else _read(folder, file)

    def delete(self, key: str) -> None:
        """No such object any more, durably, whether or not there was one.

        Args:
            key: as in :meth:`put`.

        Raises:
            StoreError: something that is no object is in its place.
            StoreUnavailableError: disk, folder or permissions are not as they should be.
            MisuseError: the store was closed.
        """
        with self._holding(key) as (folder, file):
            if folder is None:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file, dir_fd=folder)
            _sync(folder)

    def tidy(self, *, age_s: int = LEFTOVER_AGE_S_MIN) -> int:
        """How many unfinished files were removed that writers left which were killed.

        Only names that :meth:`put` makes up for unfinished files are looked at, never objects. It takes no lock: a
        writer that still lives and loses its file so gets a :class:`~evidence_archive.errors.StoreUnavailableError`
        from the link it cannot make, and nothing is half written.

        Args:
            age_s: seconds since the file was last written to, at least.

        Raises:
            StoreUnavailableError: disk, folder or permissions are not as they should be.
            StoreError: something that is no folder is in the place of one.
            MisuseError: the store was closed.
        """
        before = time.time() - age_s
        with self._root() as root:
            removed = _remove_leftovers(root, before)
            for subfolder in sorted(filter(_SUBFOLDER.fullmatch, os.listdir(root))):
                with _opened_folder(subfolder, root) as folder:
                    removed += _remove_leftovers(folder, before)
        return removed

    def close(self) -> None:
        """Nothing is held; afterwards every use is refused."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<DirectoryObjects {str(self._path)!r}>"

    # --- the folder -------------------------------------------------------------------------------------------------

    @contextmanager
    def _root(self) -> Iterator[int]:
        """The folder, opened anew and known again by its mark, so that it may go and come back at any time."""
        if self._closed:
            raise MisuseError("This object store was closed: open it again.")
        with _translated(), _opened_folder(self._path) as root:
            _check_private(root, self._path)
            if _read_mark(root) != self._mark:
                raise StoreUnavailableError(
                    "Another folder is in the place of the object folder: put the right one back or mount it."
                )
            yield root

    @contextmanager
    def _holding(self, key: str) -> Iterator[tuple[int | None, str]]:
        """The subfolder that holds the object if it is anywhere, and the object's name in it."""
        subfolder, file = split_key(key)
        with self._root() as root, contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(_opened_folder(subfolder, root))
            except FileNotFoundError:
                yield None, file
            else:
                _check_private(folder, self._path / subfolder)
                yield folder, file

    def _new_mark(self, root: int, create: bool) -> bytes:
        names = {name for name in os.listdir(root) if not _LEFTOVER.fullmatch(name)}
        found = _read_mark(root)
        if found is not None:  # another process was first; its mark is older than whatever else it put here
            return found
        if not names <= _NOT_OURS_BUT_HARMLESS:
            raise StoreError(
                f"The folder {str(self._path)!r} holds other things and no file {MARK!r}:"
                " name the object folder, or an empty one."
            )
        if not create:
            raise StoreUnavailableError(
                f"There are no objects at {str(self._path)!r}: check the path and that its disk is mounted; a "
                "new store takes an empty folder over when opened with Archive.open(url, keys=..., objects=...)."
            )
        mark = self._entropy(16).hex().encode("ascii")
        try:
            _write_once(root, MARK, b"evidence-archive/objects/1 %b\n" % mark, self._entropy)
        except StoreError:
            found = _read_mark(root)
            if found is None:
                raise
            return found
        return mark


# --- steps ----------------------------------------------------------------------------------------------------


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the operating system become ours."""
    try:
        yield
    except OSError as error:
        if error.errno in _IN_THE_WAY:
            raise StoreError(
                "Something else is in the place of an object or of its folder, such as a symbolic link: remove it."
            ) from error
        said = _UNAVAILABLE.get(error.errno or 0)
        raise StoreUnavailableError(
            said or "The object folder cannot be used: check its disk; nothing was half written."
        ) from error


def _absolute(path: str | os.PathLike[str]) -> Path:
    # Path drops a slash or a dot at the end, with which a link in the last place would be followed.
    try:
        folder = Path(os.fsdecode(path)).absolute()
        os.fsencode(folder)
    except (TypeError, ValueError, OSError) as error:
        raise StoreError("This is no path of a folder: write, for example, evidence.objects.") from error
    if "\0" in str(folder):
        raise StoreError("A path of a folder holds no NUL character: write, for example, evidence.objects.")
    return folder


@contextmanager
def _opened_folder(path: str | Path, inside: int | None = None) -> Iterator[int]:
    folder = os.open(path, _FOLDER, dir_fd=inside)
    try:
        yield folder
    finally:
        os.close(folder)


def _make_folder(path: Path) -> None:
    made = True
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        made = False
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        if made:
            raise
        return
    try:
        _sync(parent)
    finally:
        os.close(parent)


def _check_private(folder: int, path: Path) -> None:
    status = os.fstat(folder)
    if status.st_uid != os.geteuid():
        raise StoreError(f"The folder {str(path)!r} belongs to another user: name one that is yours.")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreError(f"The folder {str(path)!r} is open to others: run `chmod 700 {path}`.")


def _read_mark(root: int) -> bytes | None:
    text = _read(root, MARK)
    if text is None:
        return None
    match = _MARK_TEXT.fullmatch(text)
    if match is None:
        raise StoreError(f"The file {MARK!r} in the object folder was changed: put it back from a backup.")
    return match[1]


def _write_once(folder: int, name: str, data: bytes, entropy: Entropy) -> None:
    leftover = f"{entropy(16).hex()}.part"
    target = os.open(leftover, _NEW_FILE, 0o600, dir_fd=folder)
    try:
        try:
            os.fchmod(target, 0o600)
            _write(target, data)
            _sync(target)
        finally:
            os.close(target)
        try:
            os.link(leftover, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            taken = False
        except FileExistsError:
            taken = True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(leftover, dir_fd=folder)
    if taken and _read(folder, name, sync=True) != data:
        raise StoreError("There is another object of this key already; nothing was overwritten.")
    _sync(folder)


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.write(target, rest)
        if not written:
            raise StoreUnavailableError(_FULL)
        rest = rest[written:]


def _read(folder: int, name: str, *, sync: bool = False) -> bytes | None:
    """The file's content, ``None`` without such a file; ``sync`` where its writer may not have come to that yet."""
    try:
        source = os.open(name, _OLD_FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > OBJECT_BYTES_MAX:
            raise StoreError("What is in the place of an object is no object, or larger than one can be: remove it.")
        if sync:
            _sync(source)
        blocks = []
        rest = OBJECT_BYTES_MAX
        while block := os.read(source, rest):
            blocks.append(block)
            rest -= len(block)
        return b"".join(blocks)
    finally:
        os.close(source)


def _sync(target: int) -> None:
    """On the disk itself; on macOS ``fsync`` alone stops at the disk's cache (its manual page, ``F_FULLFSYNC``)."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(target, full)
            return
        except OSError as error:  # a file system that does not have it
            if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):
                raise
    os.fsync(target)


def _remove_leftovers(folder: int, before: float) -> int:
    removed = 0
    for name in filter(_LEFTOVER.fullmatch, os.listdir(folder)):
        with contextlib.suppress(FileNotFoundError):  # its writer was faster
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_mtime <= before:
                os.unlink(name, dir_fd=folder)
                removed += 1
    return removed
