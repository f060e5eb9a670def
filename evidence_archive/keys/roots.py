"""Key providers that need no service: a key file, and an environment variable with the same content.

Both hold versioned roots of 32 random bytes. The key-encryption key (KEK) of an org is derived from a root, so one
file serves every org; it never leaves this module. Whoever loses the file loses every original.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from evidence_archive.errors import KeyNotFoundError, KeyringError, MisuseError
from evidence_archive.keys.strict_json import read_json
from evidence_archive.model import ce
from evidence_archive.ports import Entropy
from evidence_archive.sealing import keyring

__all__ = [
    "FILE_BYTES_MAX",
    "LOCK_MS_MAX",
    "EnvironmentKeys",
    "FileKeys",
    "added_version",
    "new_keys",
    "removed_version",
]

FILE_BYTES_MAX = 64 * 1024
"""Longest key file, in bytes; about 1,200 versions."""

LOCK_MS_MAX = 5_000
"""How long a change of a key file waits for another one, in milliseconds."""

FINGERPRINT_BYTES = 16

_FORMAT = "evidence-archive/keys/1"
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_DISTINCT_BYTES_MIN = 16
_LOCK_PAUSE_MS = 10
_KEK = b"evidence-archive/v1/kek\x00"
_FINGERPRINT = b"evidence-archive/v1/kek-fingerprint\x00"


class _RootKeys(ABC):
    """What both providers share: versioned roots, read again when their source has changed or lacks a version."""

    __slots__ = ("_current", "_roots", "_seen")

    shared_by_orgs = True

    def __init__(self) -> None:
        self._current = 0
        self._roots: dict[int, bytes] = {}
        self._seen: object = None
        self.reload()

    @abstractmethod
    def _read(self) -> tuple[int, dict[int, bytes]]:
        """The current version and all roots."""

    @abstractmethod
    def _look(self) -> object:
        """What differs whenever the source does; ``None`` where there is no source to look at."""

    @abstractmethod
    def _source(self) -> str:
        """Where they are, for errors."""

    def reload(self) -> None:
        """Reads the keys again, whether or not they have changed.

        Raises:
            KeyringError: they cannot be read or used; the keys at hand stay.
        """
        seen = self._look()  # before reading: what changes meanwhile is read once more
        self._current, self._roots = self._read()
        self._seen = seen

    def current_version(self, org: str) -> int:
        """The version that new keys are wrapped under, from 1; the same for every org.

        Raises:
            KeyringError: the source has changed, and cannot be read or used.
        """
        self._follow()
        return self._current

    def fingerprint(self, org: str, version: int) -> bytes:
        """16 public bytes that name the org's KEK of this version (HKDF-SHA256, RFC 5869).

        Raises:
            KeyNotFoundError: the version is not among the keys, even when they are read again.
            KeyringError: the source has changed, and cannot be read or used.
        """
        return keyring.derive(self._root(version), _FINGERPRINT + ce(org, version), FINGERPRINT_BYTES)

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        """The key as one Cobblestone-256 message under the org's KEK (C2SP chunked-encryption).

        Raises:
            KeyNotFoundError: the version is not among the keys.
            KeyringError: the source has changed, and cannot be read or used.
            FormatError: the key is longer than 1 MiB.
        """
        return keyring.wrap(self._kek(org, version), key, context)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        """The key that was wrapped for this org, version and context.

        Raises:
            KeyNotFoundError: the version is not among the keys.
            KeyringError: the source has changed, and cannot be read or used.
            SealBrokenError: the bytes or the context are not those of the wrap; compare fingerprints first, as
                :func:`~evidence_archive.keys.unwrap_checked` does, and a wrong key is told apart.
        """
        return keyring.unwrap(self._kek(org, version), wrapped, context)

    def versions(self, org: str) -> tuple[int, ...]:
        """The versions that can unwrap now, ascending; the same for every org.

        Raises:
            KeyringError: the source has changed, and cannot be read or used.
        """
        self._follow()
        return tuple(sorted(self._roots))

    def _follow(self) -> None:
        """A version that somebody made or retired counts at once; a source that is gone leaves the keys at hand."""
        if (seen := self._look()) is not None and seen != self._seen:
            self.reload()

    def _kek(self, org: str, version: int) -> bytes:
        return keyring.derive(self._root(version), _KEK + ce(org, version))

    def _root(self, version: int) -> bytes:
        self._follow()
        if version not in self._roots:
            self.reload()
        try:
            return self._roots[version]
        except KeyError:
            pass
        raise KeyNotFoundError(
            f"Key version {version} is not in {self._source()}: put the keys back that this store was sealed with."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source()}: {len(self._roots)} versions, current {self._current}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise MisuseError("Key providers are not copied or pickled: open the keys again where they are needed.")


class FileKeys(_RootKeys):
    """Keys in a file that only its owner can read, made by ``evidence-archive keys new PATH``.

    A symbolic link is refused, a FIFO or device does not hang, and all checks are on the opened file.

    Args:
        path: the key file, at most 64 KiB.
        allow_group_read: also accept what a mounted secret looks like: readable by a group, owned by root, behind
            symbolic links. Such a file is not changed from here.

    Raises:
        KeyNotFoundError: there is no such file.
        KeyringError: it is not a key file, or others can read or change it; the error says what to do.
    """

    __slots__ = ("_allow_group_read", "_path")

    def __init__(self, path: str | os.PathLike[str], *, allow_group_read: bool = False) -> None:
        self._path = os.fspath(path)
        self._allow_group_read = allow_group_read
        super().__init__()

    def new_version(self, org: str) -> int:
        """A new version with a root of its own, for every org, in the file and current when this returns.

        Args:
            org: for whom it is asked; the file serves all.

        Raises:
            KeyringError: the file cannot be changed; it is what it was.
        """
        text = self._changed(added_version)
        return _parse(text.encode("ascii"), self._source())[0]

    def retire(self, org: str, version: int) -> None:
        """The version's root is taken out of the file, for every org; nothing where it is gone already.

        Copies of the file, and what the disk keeps of files that were replaced, are out of reach.

        Args:
            org: for whom it is asked; the file serves all.
            version: not the current one.

        Raises:
            KeyringError: it is the current version, or the file cannot be changed; it is what it was.
        """
        self._changed(lambda text: removed_version(text, version))

    def reopened(self) -> "FileKeys":
        """Another object over the same file, read anew.

        Raises:
            KeyNotFoundError: the file is gone.
            KeyringError: it cannot be read or used.
        """
        return FileKeys(self._path, allow_group_read=self._allow_group_read)

    def _source(self) -> str:
        return f"key file {self._path!r}"

    def _look(self) -> object:
        try:
            status = os.stat(self._path)
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size

    def _read(self) -> tuple[int, dict[int, bytes]]:
        return _parse(_read_private(self._path, self._allow_group_read), self._source())

    def _changed(self, change: Callable[[str], str]) -> str:
        """The file's new text, in place of the old one when this returns."""
        with _locked(self._path) as text:
            new = change(text)
            if new != text:
                _replace(self._path, new.encode("ascii"))
        self.reload()
        return new


class EnvironmentKeys(_RootKeys):
    """Keys in an environment variable, in the JSON of a key file.

    Args:
        variable: name of the variable; its value has at most 64 KiB.

    Raises:
        KeyNotFoundError: the variable is not set.
        KeyringError: its value is not the content of a key file.
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: str = "EVIDENCE_ARCHIVE_KEYS") -> None:
        self._variable = variable
        super().__init__()

    def new_version(self, org: str) -> NoReturn:
        """Nothing: who sets the variable has to change it; :func:`added_version` makes what to set it to.

        Raises:
            KeyringError: always; it says what to do.
        """
        raise KeyringError(
            f"A program cannot change the {self._source()} for others: put its value into a file, make the new"
            " version there, and set the variable to the file's new content wherever it is set."
        )

    def retire(self, org: str, version: int) -> NoReturn:
        """Nothing: who sets the variable has to change it; :func:`removed_version` makes what to set it to.

        Raises:
            KeyringError: always; it says what to do.
        """
        raise KeyringError(
            f"A program cannot change the {self._source()} for others: put its value into a file, retire the version"
            " there, and set the variable to the file's new content wherever it is set."
        )

    def reopened(self) -> "EnvironmentKeys":
        """Another object over the same variable, read anew.

        Raises:
            KeyNotFoundError: the variable is not set any more.
            KeyringError: its value cannot be used.
        """
        return EnvironmentKeys(self._variable)

    def _source(self) -> str:
        return f"environment variable {self._variable!r}"

    def _look(self) -> object:
        value = os.environ.get(self._variable)
        return None if value is None else hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()

    def _read(self) -> tuple[int, dict[int, bytes]]:
        value = os.environ.get(self._variable)
        if value is None:
            raise KeyNotFoundError(
                f"There is no {self._source()}: give it the content of a file from `evidence-archive keys new PATH`."
            )
        return _parse(value.encode("utf-8", "surrogatepass"), self._source())


# --- writing ----------------------------------------------------------------------------------------------------


def new_keys(path: str | os.PathLike[str], *, entropy: Entropy = os.urandom) -> None:
    """A new key file with one root, readable by its owner only, durable when this returns.

    Args:
        path: where; nothing may be there, not even a dangling link.
        entropy: source of random bytes.

    Raises:
        KeyringError: something is there already, or the file cannot be made.
    """
    name = os.fspath(path)
    data = _text(1, {1: _new_root(entropy)}).encode("ascii")
    _parse(data, "the new key file")
    try:
        _write_new(name, data)
        _sync_folder(name)
    except FileExistsError as error:
        raise KeyringError(f"{name!r} exists already and is not overwritten: choose another path.") from error
    except _NotMadeError as error:
        raise KeyringError(f"Key file {name!r} cannot be made: check the folder and its permissions.") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise KeyringError(f"Key file {name!r} could not be written durably and was removed.") from error


def added_version(text: str, *, entropy: Entropy = os.urandom) -> str:
    """The content of a key file with one root more, whose version is current.

    Args:
        text: the content it has.
        entropy: source of random bytes.

    Raises:
        KeyringError: the text is not the content of a key file, or there is no room for another version.
    """
    _, roots = _parse(text.encode("utf-8", "surrogatepass"), "the text of keys")
    version = max(roots) + 1
    new = _text(version, {**roots, version: _new_root(entropy)})
    if len(new) > FILE_BYTES_MAX:
        raise KeyringError(f"A key file has at most {FILE_BYTES_MAX} bytes: retire versions that nothing needs.")
    _parse(new.encode("ascii"), "new text of keys")
    return new


def removed_version(text: str, version: int) -> str:
    """The content of a key file without a version; the same text where it is not in it.

    Args:
        text: the content it has.
        version: not the current one.

    Raises:
        KeyringError: the text is not the content of a key file, or the version is the current one.
    """
    current, roots = _parse(text.encode("utf-8", "surrogatepass"), "the text of keys")
    if version == current:
        raise KeyringError(
            f"Key version {version} is the current one: make a new version before this one is retired."
        )
    if version not in roots:
        return text
    return _text(current, {other: root for other, root in roots.items() if other != version})


class _NotMadeError(OSError):
    """The file could not even be opened."""


def _new_root(entropy: Entropy) -> bytes:
    return entropy(keyring.KEY_BYTES)


def _text(current: int, roots: Mapping[int, bytes]) -> str:
    keys = {
        str(version): base64.urlsafe_b64encode(roots[version]).decode("ascii").rstrip("=")
        for version in sorted(roots)
    }
    return json.dumps({"format": _FORMAT, "current": current, "keys": keys}) + "\n"


def _write_new(name: str, data: bytes) -> None:
    """A file of mode 0600 that was not there before, synced; its folder is not."""
    try:
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise
    except (OSError, ValueError) as error:
        raise _NotMadeError from error
    with open(target, "wb", closefd=True) as file:
        os.fchmod(target, 0o600)
        file.write(data)
        file.flush()
        os.fsync(target)


def _sync_folder(name: str) -> None:
    folder = os.open(Path(name).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[str]:
    """The text of a private key file that no other writer changes meanwhile.

    The lock is on the file itself, and writers replace the file: whoever got the lock of one that was replaced while
    it waited looks for the new one.
    """
    until = time.monotonic() + LOCK_MS_MAX / 1_000
    while True:
        try:
            locked = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise KeyNotFoundError(f"There is no key file {path!r} to change: put it back.") from error
        except (OSError, ValueError) as error:
            raise KeyringError(
                f"Key file {path!r} cannot be changed from here: a secret that is mounted, or behind a link, is"
                " changed where it comes from."
            ) from error
        try:
            if _try_lock(locked, path):
                yield _locked_text(path)
                return
        finally:
            os.close(locked)  # with it goes the lock
        if time.monotonic() > until:
            raise KeyringError(f"Another program keeps changing key file {path!r}: try again.")
        time.sleep(_LOCK_PAUSE_MS / 1_000)


def _try_lock(source: int, path: str) -> bool:
    try:
        fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours, theirs = os.fstat(source), os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return False
    except OSError as error:
        raise KeyringError(f"Key file {path!r} cannot be locked: keep it on a local disk.") from error
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _locked_text(path: str) -> str:
    data = _read_private(path, allow_group_read=False)
    _parse(data, f"key file {path!r}")
    return data.decode("ascii")


def _replace(path: str, data: bytes) -> None:
    """The file with this content in place of the one before; after a cut at any point it is the one or the other.

    Only who holds the lock gets here, so that what lies under the name of the new file is what a writer left that was
    killed. It holds keys, so it goes.
    """
    new = f"{path}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        _write_new(new, data)
        os.rename(new, path)
        _sync_folder(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise KeyringError(
            f"Key file {path!r} could not be changed durably: check the folder and its space, then look which"
            " versions the file has."
        ) from error


# --- reading ----------------------------------------------------------------------------------------------------


def _read_private(path: str, allow_group_read: bool) -> bytes:
    # O_NONBLOCK: opening a FIFO must not wait for a writer; it changes nothing for regular files.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if not allow_group_read:
        flags |= os.O_NOFOLLOW
    try:
        source = os.open(path, flags)
    except FileNotFoundError as error:
        raise KeyNotFoundError(
            f"There is no key file {path!r}: make one with `evidence-archive keys new {path}`."
        ) from error
    except (OSError, ValueError) as error:
        raise KeyringError(
            f"Key file {path!r} cannot be opened: name the file itself, not a link, and check its owner and mode."
        ) from error
    try:
        _check_private(os.fstat(source), path, allow_group_read)
        data = b""
        while len(data) <= FILE_BYTES_MAX and (block := os.read(source, FILE_BYTES_MAX + 1 - len(data))):
            data += block
        return data
    except OSError as error:
        raise KeyringError(f"Key file {path!r} cannot be read.") from error
    finally:
        os.close(source)


def _check_private(status: os.stat_result, path: str, allow_group_read: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyringError(f"Key file {path!r} is not a regular file: name a file.")
    if status.st_uid != os.geteuid() and not (allow_group_read and status.st_uid == 0):
        raise KeyringError(f"Key file {path!r} belongs to another user: make a copy that is yours.")
    if stat.S_IMODE(status.st_mode) & (0o037 if allow_group_read else 0o077):
        raise KeyringError(f"Key file {path!r} is open to others: run `chmod 600 {path}`.")


def _parse(data: bytes, source: str) -> tuple[int, dict[int, bytes]]:
    """Current version and roots; the error never carries what was read, nor does its ``__context__``."""
    document = read_json(data, FILE_BYTES_MAX)
    problem = "is not a key file (passphrases are not accepted)"
    if isinstance(document, dict) and document.get("format") == _FORMAT:
        problem = "does not hold exactly 'format', 'current' and 'keys'"
        if document.keys() == {"format", "current", "keys"} and isinstance(document["keys"], dict):
            roots = {_version(name): _root_bytes(text) for name, text in document["keys"].items()}
            problem = "has a key that is not 32 random bytes in base64url, or a version that is not a number from 1"
            if None not in roots and None not in roots.values():
                found = {version: root for version, root in roots.items() if version and root}
                current = document["current"]
                problem = "names a current version that it does not hold, or holds one key twice"
                if type(current) is int and current in found and len(set(found.values())) == len(found):
                    return current, found
    raise KeyringError(f"The {source} {problem}: make keys with `evidence-archive keys new PATH`.")


def _version(name: str) -> int | None:
    return int(name) if _VERSION.fullmatch(name) else None


def _root_bytes(text: object) -> bytes | None:
    """The root in this text; ``None`` for what no random source makes: text in disguise, or few distinct bytes."""
    if type(text) is not str or not _KEY.fullmatch(text):
        return None
    root = base64.urlsafe_b64decode(text + "=")
    if base64.urlsafe_b64encode(root).decode("ascii").rstrip("=") != text:
        return None
    if all(0x20 <= byte < 0x7F for byte in root) or len(set(root)) < _DISTINCT_BYTES_MIN:
        return None
    return root
