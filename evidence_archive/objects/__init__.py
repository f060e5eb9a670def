"""Where large originals lie outside the database: a folder, or a bucket of an S3-compatible store."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from evidence_archive.errors import StoreError
from evidence_archive.objects.naming import is_key
from evidence_archive.ports import Entropy, ObjectStore

__all__ = ["folder_of", "holds_objects", "open_objects"]

_FORMS = "write a path, file:///folder or s3://bucket/prefix?region=...&endpoint=..."


def open_objects(
    where: str | os.PathLike[str] | ObjectStore, *, create: bool, entropy: Entropy = os.urandom
) -> ObjectStore:
    """The object store that is meant.

    Args:
        where: a path or ``file:///folder`` for :class:`~evidence_archive.objects.directory.DirectoryObjects`;
            ``s3://bucket/prefix?region=...&endpoint=...`` for :class:`~evidence_archive.objects.s3.S3Objects`; or a
            store, which is returned as it is.
        create: make the folder where there is none. Buckets are never made.
        entropy: source of random bytes.

    Raises:
        StoreError: it is none of these, or no objects can be kept there safely.
        StoreUnavailableError: the folder or the bucket cannot be reached or used.
        MisuseError: ``s3://`` in a process that was forked from one that had used it.
    """
    if not isinstance(where, str | os.PathLike):
        verbs = ("put", "get", "delete", "close")
        if isinstance(where, type) or not all(callable(getattr(where, verb, None)) for verb in verbs):
            raise StoreError(f"Objects are kept in a folder, in a bucket or in a store of your own: {_FORMS}.")
        return where
    scheme, separator, _ = where.partition("://") if isinstance(where, str) else ("", "", "")
    if separator and scheme == "s3":
        from evidence_archive.objects.s3 import open_s3

        return open_s3(str(where), entropy=entropy)
    if separator and scheme != "file":
        raise StoreError(f"Objects are kept in a folder or in a bucket: {_FORMS}.")
    from evidence_archive.objects.directory import DirectoryObjects

    return DirectoryObjects(_file_path(str(where)) if separator else where, create=create, entropy=entropy)


def folder_of(where: str | os.PathLike[str] | ObjectStore) -> Path | None:
    """The folder that is meant, whether or not it is there; ``None`` for a bucket and a store of your own.

    Args:
        where: as for :func:`open_objects`.

    Raises:
        StoreError: a URL of a folder that cannot be read.
    """
    if not isinstance(where, str | os.PathLike):
        return None
    scheme, separator, _ = where.partition("://") if isinstance(where, str) else ("", "", "")
    if separator:
        return Path(_file_path(str(where))) if scheme == "file" else None
    return Path(os.fsdecode(where))


def holds_objects(folder: Path) -> bool:
    """Whether there is an object in a folder; what cannot be looked into holds none.

    Args:
        folder: need not exist.
    """
    try:
        return any(is_key(f"{path.parent.name}/{path.name}") for path in folder.glob("[0-9a-f][0-9a-f]/*"))
    except OSError:
        return False


def _file_path(url: str) -> str:
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
    except ValueError:
        parts, path = urlsplit(""), ""
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.startswith("/"):
        raise StoreError("The URL of an object folder cannot be read: write file:///folder, with three slashes.")
    return path
