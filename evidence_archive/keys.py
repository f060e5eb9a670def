"""Key providers that need no service: a key file, and an environment variable with the same content.

Both hold versioned roots of 32 random bytes. The key-encryption key (KEK) of an org is derived from a root, so one
file serves every org; it never leaves this module. Whoever loses the file loses every original.
"""

import base64
import contextlib
import json
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from evidence_archive.errors import KeyNotFoundError, KeyringError, MisuseError, WrongKeyError
from evidence_archive.model import ce
from evidence_archive.ports import Entropy, KeyProvider
from evidence_archive.sealing import keyring

__all__ = ["EnvironmentKeys", "FileKeys", "new_keys", "open_provider", "unwrap_checked"]

FILE_BYTES_MAX = 64 * 1024
"""Longest key file, in bytes."""

FINGERPRINT_BYTES = 16

_FORMAT = "evidence-archive/keys/1"
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_DISTINCT_BYTES_MIN = 16
_KEK = b"evidence-archive/v1/kek\x00"
_FINGERPRINT = b"evidence-archive/v1/kek-fingerprint\x00"


class _RootKeys(ABC):
    """What both providers share: versioned roots, read once, and read again when a version is missing."""

    __slots__ = ("_current", "_roots")

    def __init__(self) -> None:
        self._current = 0
        self._roots: dict[int, bytes] = {}
        self.reload()

    @abstractmethod
    def _read(self) -> tuple[int, dict[int, bytes]]:
        """The current version and all roots."""

    @abstractmethod
    def _source(self) -> str:
        """Where they are, for errors."""

    def reload(self) -> None:
        """Reads the keys again, for instance after a rotation.

        Raises:
            KeyringError: they cannot be read or used; the keys at hand stay.
        """
        self._current, self._roots = self._read()

    def current_version(self, org: str) -> int:
        """The version that new keys are wrapped under, from 1; the same for every org."""
        return self._current

    def fingerprint(self, org: str, version: int) -> bytes:
        """16 public bytes that name the org's KEK of this version (HKDF-SHA256, RFC 5869).

        Raises:
            KeyNotFoundError: the version is not among the keys, even when they are read again.
        """
        return keyring.derive(self._root(version), _FINGERPRINT + ce(org, version), FINGERPRINT_BYTES)

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        """The key as one Cobblestone-256 message under the org's KEK (C2SP chunked-encryption).

        Raises:
            KeyNotFoundError: the version is not among the keys.
            FormatError: the key is longer than 1 MiB.
        """
        return keyring.wrap(self._kek(org, version), key, context)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        """The key that was wrapped for this org, version and context.

        Raises:
            KeyNotFoundError: the version is not among the keys.
            SealBrokenError: the bytes or the context are not those of the wrap; compare fingerprints first, as
                :func:`unwrap_checked` does, and a wrong key is told apart.
        """
        return keyring.unwrap(self._kek(org, version), wrapped, context)

    def _kek(self, org: str, version: int) -> bytes:
        return keyring.derive(self._root(version), _KEK + ce(org, version))

    def _root(self, version: int) -> bytes:
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
            symbolic links.

    Raises:
        KeyNotFoundError: there is no such file.
        KeyringError: it is not a key file, or others can read or change it; the error says what to do.
    """

    __slots__ = ("_allow_group_read", "_path")

    def __init__(self, path: str | os.PathLike[str], *, allow_group_read: bool = False) -> None:
        self._path = os.fspath(path)
        self._allow_group_read = allow_group_read
        super().__init__()

    def _source(self) -> str:
        return f"key file {self._path!r}"

    def _read(self) -> tuple[int, dict[int, bytes]]:
        return _parse(_read_private(self._path, self._allow_group_read), self._source())


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

    def _source(self) -> str:
        return f"environment variable {self._variable!r}"

    def _read(self) -> tuple[int, dict[int, bytes]]:
        value = os.environ.get(self._variable)
        if value is None:
            raise KeyNotFoundError(
                f"There is no {self._source()}: give it the content of a file from `evidence-archive keys new PATH`."
            )
        return _parse(value.encode("utf-8", "surrogatepass"), self._source())


def open_provider(keys: str | os.PathLike[str] | KeyProvider) -> KeyProvider:
    """The key provider that is meant.

    Args:
        keys: ``"env:NAME"`` for :class:`EnvironmentKeys`, any other string or path for :class:`FileKeys`, or a
            provider, which is returned as it is.

    Raises:
        KeyringError: it is none of these, or the keys cannot be used.
    """
    if isinstance(keys, str) and keys.startswith("env:"):
        return EnvironmentKeys(keys.removeprefix("env:"))
    if isinstance(keys, str | os.PathLike):
        return FileKeys(keys)
    verbs = ("current_version", "fingerprint", "wrap", "unwrap")
    if isinstance(keys, type) or not all(callable(getattr(keys, verb, None)) for verb in verbs):
        raise KeyringError("Keys are a path, 'env:NAME' or a key provider.")
    return keys


def unwrap_checked(
    provider: KeyProvider, org: str, *, version: int, fingerprint: bytes, wrapped: bytes, context: bytes
) -> bytes:
    """The key that was wrapped, with a wrong key told apart from damaged bytes.

    Args:
        provider: where the KEK is.
        org, version: which KEK.
        fingerprint: of the KEK the stored key was wrapped under, as stored beside it.
        wrapped: the stored message.
        context: from :func:`~evidence_archive.sealing.keyring.wrap_context`.

    Raises:
        WrongKeyError: the provider's key is not the one it was wrapped under.
        KeyNotFoundError: the provider does not have the version.
        SealBrokenError: the key is right, the bytes or their place are not.
    """
    if provider.fingerprint(org, version) != fingerprint:
        raise WrongKeyError(
            f"Key version {version} at the provider is not the one this store was sealed with: use the right keys."
        )
    return provider.unwrap(org, version, wrapped, context)


def new_keys(path: str | os.PathLike[str], *, entropy: Entropy = os.urandom) -> None:
    """A new key file with one root, readable by its owner only, durable when this returns.

    Args:
        path: where; nothing may be there, not even a dangling link.
        entropy: source of random bytes.

    Raises:
        KeyringError: something is there already, or the file cannot be made.
    """
    name = os.fspath(path)
    root = base64.urlsafe_b64encode(entropy(keyring.KEY_BYTES)).decode("ascii").rstrip("=")
    text = json.dumps({"format": _FORMAT, "current": 1, "keys": {"1": root}}) + "\n"
    _parse(text.encode("ascii"), "the new key file")
    try:
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise KeyringError(f"{name!r} exists already and is not overwritten: choose another path.") from error
    except (OSError, ValueError) as error:
        raise KeyringError(f"Key file {name!r} cannot be made: check the folder and its permissions.") from error
    try:
        with open(target, "wb", closefd=True) as file:
            os.fchmod(target, 0o600)
            file.write(text.encode("ascii"))
            file.flush()
            os.fsync(target)
        folder = os.open(Path(name).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise KeyringError(f"Key file {name!r} could not be written durably and was removed.") from error


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
            f"Key file {path!r} cannot be opened: name the file itself, not a link, and check its owner."
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


class _DuplicateNameError(ValueError):
    """A JSON object names something twice."""


def _parse(data: bytes, source: str) -> tuple[int, dict[int, bytes]]:
    """Current version and roots; the error never carries what was read, nor does its ``__context__``."""
    document = _load(data)
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


def _load(data: bytes) -> Any:
    if len(data) > FILE_BYTES_MAX:
        return None
    try:
        return json.loads(data.decode("ascii"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _DuplicateNameError
    return mapping


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
