"""Backups: a store copied while others write to it, verified before it is called a backup, and put back into nothing.

A backup is a folder: ``evidence.db``, a store of its own that this library opens; ``evidence.db.objects``, the large
originals that it names; ``manifest.json``, with the digest of every file and the signed head of every org's log. Keys
are never in it. Until the copy was opened with the keys and every original in it came back, a file says that the
folder is no backup; that file goes last.

Putting back is done beside the target: the database is copied and verified with the objects where they lie in the
backup, and what is to be done again is read; then the objects go to their place, what was done since is done again,
all is verified once more, and only then the database is moved to its place. Where anything fails, the objects that
were put go again. Cut off at any moment, the target has no database or all.
"""

import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from evidence_archive.clock import SystemClock
from evidence_archive.envelopes import Envelopes
from evidence_archive.errors import (
    AuditBrokenError,
    EvidenceArchiveError,
    FormatError,
    NotAvailableError,
    PolicyError,
    SealBrokenError,
    ShreddedError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnsupportedVersionError,
)
from evidence_archive.model import PIECE_BYTES, Principal, format_time
from evidence_archive.policy import Policy
from evidence_archive.ports import (
    OBJECT_BYTES_MAX,
    Clock,
    CopiedStore,
    KeyProvider,
    ObjectStore,
    ResultRow,
    SessionRow,
    Store,
    Surveyable,
)
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.checkpoint import open_checkpoint
from evidence_archive.proof.merkle import Frontier
from evidence_archive.register import Act, Replayed, acts_in_register, acts_in_store, merged, replay
from evidence_archive.rekeying import Rekeying
from evidence_archive.tokens import default_counter
from evidence_archive.vault import Surroundings, Vault, open_vault
from evidence_archive.verifying import VerifyReport, check_unopened, verify_vault

__all__ = ["MANIFEST", "NO_BACKUP", "BackedUpOrg", "Backup", "RestoredBackup", "make_backup", "restore_backup"]

MANIFEST = "manifest.json"
"""Name of the file that says what is in a backup."""

NO_BACKUP = "THIS-IS-NO-BACKUP.txt"
"""Name of the file that says that a folder is none; a whole backup does not have it."""

MANIFEST_BYTES_MAX = 256 * 1024 * 1024
"""Longest manifest that is read, in bytes."""

TRIES_MAX = 3
"""How often a copy is begun anew because originals that it names were shredded meanwhile."""

_FORMAT = "evidence-archive/backup/1"
_DATABASE, _OBJECTS = "evidence.db", "evidence.db.objects"
_OBJECT = re.compile(_OBJECTS.replace(".", r"\.") + r"/([0-9a-f]{2}/[0-9a-f]{30}\.[0-9]{5})", re.ASCII)
_SIDE_FILES = ("-wal", "-journal", "-shm")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us
_NOT_ONE = "This folder is no backup, or not a whole one: a backup has a manifest and says nothing else of itself."
_CHANGED = "A file of this backup is not what was backed up: it was changed, added or taken away."


@dataclass(frozen=True, slots=True)
class BackedUpOrg:
    """An org in a backup.

    Args:
        org: its name.
        originals: how many were opened and found whole; ``None`` where the org was shredded and only its log is left.
        size, root: of its audit log; the root in hex.
        checkpoint: that head, signed; ``None`` where the org was shredded, whose last one is in the database.
    """

    org: str
    originals: int | None
    size: int
    root: str
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was verified.

    Args:
        folder: where it is.
        made_at_us: when.
        orgs: what is in it.
        files: how many.
        size_bytes: of all of them.
    """

    folder: Path
    made_at_us: int
    orgs: tuple[BackedUpOrg, ...]
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    """A backup that was put back.

    Args:
        made_at_us: when the backup was made.
        orgs: what was put back, as it was in the backup.
        replayed: what was done again, by org; empty where nothing was named to be replayed.
    """

    made_at_us: int
    orgs: tuple[BackedUpOrg, ...]
    replayed: tuple[Replayed, ...]


# --- making -------------------------------------------------------------------------------------------------------


def make_backup(vault: Vault, principal: Principal, folder: Path) -> Backup:
    """The whole store of an org in a folder, verified there.

    Args:
        vault: of the org whose custodian asks; its log gets the entry.
        principal: who asks; permitted already.
        folder: is made with mode 0700; it must not exist, or be empty.

    Raises:
        FormatError: there is something in the folder.
        StoreError: the store makes no copies or cannot be read, or the folder cannot be written.
        IntegrityError: something in the copy is not what was written.
        KeyringError: the keys of one of the orgs are not at hand.
    """
    source = vault.around.store
    if not isinstance(source, CopiedStore):
        raise StoreError("This store makes no copies of itself: back it up where it is kept, by its own means.")
    with _files_translated():
        _make_folder(folder)
        _write(folder / NO_BACKUP, f"Not a backup: it was not verified. Begun {_now(vault.around.clock)}.\n".encode())
        database = folder / _DATABASE
        for left in reversed(range(TRIES_MAX)):
            source.copy_to(database)
            try:
                orgs = _verified_copy(vault, database)
                break
            except _GoneError as error:
                if not left:
                    raise StoreUnavailableError(
                        "An object of an archived original is not in the object store: no backup was made."
                    ) from error
                for path in (database, *(Path(f"{database}{one}") for one in _SIDE_FILES)):
                    path.unlink(missing_ok=True)
                shutil.rmtree(folder / _OBJECTS, ignore_errors=True)
        made_at_us = vault.around.clock.now_us()
        files = [_described(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
        files = [one for one in files if one["path"] != NO_BACKUP]
        mine = next(one for one in orgs if one.org == vault.org)
        details = {"orgs": len(orgs), "originals": mine.originals, "size": mine.size, "root": mine.root}
        _log(vault, audit.BACKUP_MADE, principal.subject, details)
        told = {
            "format": _FORMAT,
            "made_at": format_time(made_at_us),
            "made_at_us": made_at_us,
            "made_by": principal.subject,
            "orgs": [{name: getattr(one, name) for name in BackedUpOrg.__slots__} for one in orgs],
            "files": files,
        }
        _write(folder / MANIFEST, json.dumps(told, ensure_ascii=True, indent=1).encode("ascii") + b"\n")
        _sync(folder)
        (folder / NO_BACKUP).unlink()
        _sync(folder)
    vault.log.info("evidence_archive.backed_up", orgs=len(orgs), files=len(files))
    return Backup(folder, made_at_us, orgs, len(files), sum(one["size_bytes"] for one in files))


def _log(vault: Vault, event: str, subject: str, details: dict[str, Any]) -> None:
    entry = [vault.leaf(event, subject, details=details)]
    vault.transact(lambda writer: writer.append(entry))


class _GoneError(Exception):
    """The copy names an object that is not there any more."""


def _verified_copy(vault: Vault, database: Path) -> tuple[BackedUpOrg, ...]:
    """Every org of a copied database, once its objects were copied too and everything in it came back."""
    from evidence_archive.objects import open_objects
    from evidence_archive.store import open_store, sync_path

    store = open_store(_url(database), create=False, wait_ms=vault.store_wait_ms)
    with ExitStack() as closing:
        closing.callback(store.close)
        objects: ObjectStore | None = None
        if store.has_used_objects():
            objects = open_objects(database.with_name(_OBJECTS), create=True, entropy=vault.around.entropy)
            closing.callback(objects.close)
        around = replace(vault.around, store=store, objects=objects)
        found = []
        _check_listed(store)
        for org in store.orgs():
            try:
                copy = open_vault(around, org, create=False)
            except ShreddedError:
                check_unopened(store, org)
                found.append(_shredded(org))
                continue
            except NotAvailableError:  # named, and not yet made when the copy was
                check_unopened(store, org)
                continue
            if objects is not None:
                _copy_objects(copy, vault, objects)
            found.append(_verified(copy))
        store.close()
        _settle(database)
    sync_path(database)
    sync_path(database.parent)
    if not found:
        raise AuditBrokenError("There is no org in the copy: nothing was verified.")
    return tuple(found)


def _check_listed(store: Store) -> None:
    if isinstance(store, Surveyable) and store.unlisted_orgs():
        raise SealBrokenError("An org with keys is not in the list of orgs: it would be in no backup.")


def _copy_objects(copy: Vault, vault: Vault, objects: ObjectStore) -> None:
    """The objects of every original that the copy of an org has archived."""
    for _, rows in _sessions(copy):
        for row in rows:
            with copy.store.peeking(copy.store_wait_ms) as reader:
                place = reader.object(row.original_id or b"") if _is_original(row) else None
            for key in [] if place is None else Envelopes.object_keys(place):
                data = vault.objects.get(key)
                if data is None:
                    raise _GoneError
                objects.put(key, data)


def _shredded(org: str) -> BackedUpOrg:
    return BackedUpOrg(org, None, 0, "", None)


def _verified(vault: Vault) -> BackedUpOrg:
    """What an org of a copy holds, once its log was rehashed and every original opened.

    Raises:
        IntegrityError: something is not what was written; the sentence names the first of it and counts the rest.
    """
    report = verify_vault(vault, level="full")
    with vault.store.reading(vault.store_wait_ms) as reader:
        head = reader.head()
    _refuse_unless_clean(report)
    checked = report.counts.get("opened", 0)
    root = Frontier.from_bytes(head.size, head.frontier).root()
    return BackedUpOrg(vault.org, checked, head.size, root.hex(), vault.signer.sign(head.size, root))


def _refuse_unless_clean(report: VerifyReport) -> None:
    if not report.is_clean:
        first = report.findings[0].sentence if report.findings else "Its log is empty."
        raise SealBrokenError(
            f"Of the copy of an org {report.findings_count} things are not what was written: {first}"
        )


def _sessions(vault: Vault) -> Iterator[tuple[SessionRow, list[ResultRow]]]:
    for session in vault.sessions():
        with vault.store.peeking(vault.store_wait_ms) as reader:
            rows = reader.results(session.scope_id, -1)
        yield session, rows


def _is_original(row: ResultRow) -> bool:
    return row.state == "archived" and row.original_id is not None


# --- putting back -------------------------------------------------------------------------------------------------


def restore_backup(
    folder: Path,
    url: str,
    *,
    keys: KeyProvider,
    policy: Policy | None,
    subject: str,
    roles: Iterable[str],
    objects: str | os.PathLike[str] | ObjectStore | None = None,
    replays: Iterable[str] = (),
    clock: Clock | None = None,
) -> RestoredBackup:
    """A backup put back into an empty place, verified there, with what was done since done again.

    Args:
        folder: the backup; it is only read.
        url: of a database: an SQLite file that does not exist, or a PostgreSQL database without anything in it.
        keys: of the orgs in it.
        policy: the rules, for who may do this; ``None`` for the built-in default, which then has to be the one that
            every org in the backup was last used under.
        subject, roles: who answers for it; one of the roles has to be among the policy's ``[custody] roles``.
        objects: where large originals are to lie; ``None`` is the folder beside an SQLite file.
        replays: register files, and URLs of newer databases that can still be read: the holds, releases, longer
            retentions and shreds in them that the backup does not know are done again, in the order of the log.
        clock: for tests.

    Raises:
        FormatError: the folder is no backup, or objects have nowhere to lie.
        UnsupportedVersionError: a newer version wrote it.
        PolicyError: no policy was named, and an org was last used under another one than the default.
        NotAvailableError: the roles are not those of a custodian.
        IntegrityError: a file of the backup was changed, something in it is not what was written, or a line that is
            to be replayed does not verify; nothing was put back.
        KeyringError: the keys of one of the orgs are not at hand.
        StoreError: the target is not empty, or cannot be written.
        StoreBusyError: another process is putting a backup back there.
        HeldError, RetentionError: a part of what is to be replayed is missing; nothing was put back.
    """
    from evidence_archive.store import open_store, path_of

    held, guessed = frozenset(roles), policy is None
    policy = policy or Policy.default()
    if policy.custodians.isdisjoint(held):
        raise NotAvailableError
    with _files_translated(), ExitStack() as closing:
        manifest = _read_manifest(folder)
        target = path_of(url)
        if target is None:
            server = open_store(url, create=False, wait_ms=policy.limits.store_wait_ms_max)
            closing.callback(server.close)
            server.check_vacant()
            staging = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="evidence-archive-")))
        else:
            _check_target(target)
            staging = closing.enter_context(_staging_of(target))
        staged = staging / _DATABASE
        _copy_file(folder / _DATABASE, staged, manifest["files"][_DATABASE])
        where = _place_of_objects(target, objects, manifest)
        around = Surroundings(
            open_store(_url(staged), create=False, wait_ms=policy.limits.store_wait_ms_max),
            keys,
            policy,
            default_counter(),
            clock or SystemClock(),
            objects=_BackedUpObjects(folder, manifest["files"]) if manifest["has_objects"] else None,
        )
        closing.callback(around.store.close)
        told = {one.org: one for one in manifest["orgs"]}
        vaults = _vaults(around, told)
        if guessed:
            _check_default(vaults)
        with ExitStack() as sources:
            named = [_source(one, around, sources) for one in replays]
            # All of it is read, and every proof checked, before anything is done.
            acts = {vault.org: merged(vault, [_acts_of(vault, one) for one in named]) for vault in vaults}

        def is_filled() -> bool:
            return _is_filled(server) if target is None else target.exists() and target.samefile(staged)

        with _objects_put(folder, manifest["files"], where, is_filled) as kept:
            around = replace(around, objects=kept)
            replayed = _revived(around, told, acts, subject, held)
            around.store.close()
            if target is None:
                server.fill_from(staged)
                _verify_target(replace(around, store=server), manifest["orgs"])
            else:
                _move(staged, target)
    return RestoredBackup(manifest["made_at_us"], manifest["orgs"], replayed if named else ())


def _revived(
    around: Surroundings,
    told: Mapping[str, BackedUpOrg],
    acts: Mapping[str, Sequence[Act]],
    subject: str,
    roles: frozenset[str],
) -> tuple[Replayed, ...]:
    """Every org told that it was put back, with what was done since done again, and verified as it then is."""
    found = []
    for org, todo in acts.items():
        vault, one = open_vault(around, org, create=False), told[org]
        details = {"size": one.size, "root": one.root, "acts": len(todo)}
        _log(vault, audit.BACKUP_RESTORED, subject, details)
        principal = Principal(org, subject, roles)
        # What was lost may lie elsewhere under any version up to the current one: a shred counts it from here on.
        census = (rekeying := Rekeying(vault, principal)).census()
        if any(version < census.current for version in census.counts):
            rekeying.rotate(new_version=False)
        found.append(replay(vault, principal, todo))
        if not vault.closed:
            _verified(vault)
            vault.transact(vault.sign_head)
    return tuple(found)


def _check_default(vaults: Iterable[Vault]) -> None:
    """Return only if no org was last used under another policy than the one that counts where nobody names one."""
    for vault in vaults:
        with vault.store.reading(vault.store_wait_ms) as reader:
            loaded = reader.head().policy_digest
        if loaded not in (None, vault.policy.digest):
            raise PolicyError(
                f"An org in this backup was last used under another policy (digest {str(loaded)[:12]}) than the "
                "built-in default: name the policy."
            )


def _vaults(around: Surroundings, told: Mapping[str, BackedUpOrg]) -> list[Vault]:
    """Every org that can be opened, verified to be what the manifest says."""
    vaults, known = [], set()
    _check_listed(around.store)
    for org in around.store.orgs():
        try:
            vault = open_vault(around, org, create=False)
        except ShreddedError:
            check_unopened(around.store, org)
            known |= {org} & told.keys() if told.get(org) == _shredded(org) else set()
            continue
        except NotAvailableError:
            check_unopened(around.store, org)
            continue
        if org in told:
            _check_head(vault, told[org])
            known.add(org)
        vaults.append(vault)
    if known != told.keys() or {vault.org for vault in vaults} - known:
        raise AuditBrokenError("The orgs in this backup are not those that its manifest names.")
    return vaults


def _check_head(vault: Vault, told: BackedUpOrg) -> None:
    """Return only if an org is whole and what the manifest says, which the org's own key signed."""
    found = _verified(vault)
    signed = open_checkpoint(told.checkpoint or "", vault.signer.verifier)
    if found != told or (signed.size, signed.root.hex()) != (told.size, told.root):
        raise AuditBrokenError("An org in this backup is not what its manifest says.")


def _verify_target(around: Surroundings, orgs: Sequence[BackedUpOrg]) -> None:
    for one in orgs:
        try:
            _verified(open_vault(around, one.org, create=False))
        except ShreddedError:  # in the backup, or by what was done again
            continue


def _source(where: str, around: Surroundings, closing: ExitStack) -> Path | Store:
    """A register's path, or a newer database."""
    if "://" not in where:
        return Path(where)
    from evidence_archive.store import open_store

    store = open_store(where, create=False, wait_ms=around.policy.limits.store_wait_ms_max)
    closing.callback(store.close)
    return store


def _acts_of(vault: Vault, source: Path | Store) -> list[Act]:
    if not isinstance(source, Path):
        return acts_in_store(vault, source)
    if not os.path.lexists(source):
        raise StoreUnavailableError(f"There is no file {str(source)!r} to be replayed: name the register.")
    with _opened(source) as file, os.fdopen(os.dup(file), "rb") as lines:
        return acts_in_register(vault, lines)


# --- targets ------------------------------------------------------------------------------------------------------


def _is_filled(server: CopiedStore) -> bool:
    """Whether there may be something in a PostgreSQL database that was empty."""
    try:
        server.check_vacant()
    except EvidenceArchiveError:
        return True
    return False


def _check_target(target: Path) -> None:
    if any(os.path.lexists(f"{target}{side}") for side in ("", *_SIDE_FILES)):
        raise StoreError("There is a database at the target already: a backup is put back into an empty place only.")


@contextmanager
def _staging_of(target: Path) -> Iterator[Path]:
    """A private folder beside the target, for one process at a time; what a killed one left in it goes."""
    staging = target.with_name(f"{target.name}.restoring")
    if not target.parent.is_dir():
        raise StoreUnavailableError(f"There is no folder {str(target.parent)!r}: make it, or name another target.")
    staging.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreBusyError("Another process is putting a backup back there: wait for it.") from error
        _check_target(target)  # a process that was faster has just moved its own there
        for path in staging.iterdir():
            path.unlink()
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def _move(staged: Path, target: Path) -> None:
    """The database to its place, which must still be empty; its name is durable when this returns."""
    _settle(staged)
    _sync(staged)
    try:
        os.link(staged, target)
    except FileExistsError as error:
        raise StoreError("A database appeared at the target meanwhile: nothing was put back.") from error
    _sync(target.parent)


def _place_of_objects(
    target: Path | None, objects: str | os.PathLike[str] | ObjectStore | None, manifest: dict[str, Any]
) -> str | os.PathLike[str] | ObjectStore | None:
    """Where the objects go; ``None`` where there are none and never were."""
    if objects is None and target is not None:
        objects = target.with_name(f"{target.name}.objects")
        if not manifest["has_objects"]:
            if objects.is_dir() and any(objects.iterdir()):
                raise StoreError("There are objects at the target already: name an empty place.")
            return None
    if manifest["has_objects"] and objects is None:
        raise FormatError("This backup holds large originals: say where they are to lie, with objects=.")
    return objects


@contextmanager
def _objects_put(
    folder: Path,
    files: dict[str, Any],
    where: str | os.PathLike[str] | ObjectStore | None,
    is_filled: Callable[[], bool],
) -> Iterator[ObjectStore | None]:
    """The objects of a backup in an object store that holds no others; what was put goes again if what follows fails.

    Args:
        folder, files: of the backup.
        where: they go; ``None`` for none.
        is_filled: whether there is a database by now that names them.
    """
    if where is None:
        yield None
        return
    from evidence_archive.objects import folder_of, open_objects

    named = _named_objects(files)
    place = folder_of(where)
    before = set(os.listdir(place)) if place is not None and place.is_dir() else None
    if place is not None:
        # What a restore that was cut off put there is fine: the same bytes under the same names.
        found = {path.relative_to(place).as_posix() for path in place.glob("[0-9a-f][0-9a-f]/*")}
        if {one for one in found if not one.endswith(".part")} - named.keys():
            raise StoreError("There are other objects at the target already: name an empty place.")
    for _ in _pieces(folder / (mark := f"{_OBJECTS}/{_mark()}"), files[mark]):
        pass
    put: list[str] = []
    with ExitStack() as closing:
        try:
            objects = open_objects(where, create=True)
            closing.callback(objects.close)
            for key, path in named.items():
                data = _whole(folder, path, files)
                if objects.get(key) is None:
                    put.append(key)
                objects.put(key, data)
            yield objects
        except BaseException:
            if not is_filled():
                for key in put:
                    with suppress(EvidenceArchiveError):
                        objects.delete(key)
                if place is not None:
                    _empty_again(place, before)
            raise


def _empty_again(place: Path, before: set[str] | None) -> None:
    """An object folder as it was: what of it was not there, and holds nothing any more, goes."""
    with suppress(OSError):
        for name in set(os.listdir(place)) - (before or set()):
            path = place / name
            if name != _mark() and path.is_dir():
                path.rmdir()
        if not set(os.listdir(place)) - (before or set()) - {_mark()}:
            if _mark() not in (before or set()):
                (place / _mark()).unlink(missing_ok=True)
            if before is None:
                place.rmdir()


def _named_objects(files: Iterable[str]) -> dict[str, str]:
    """The path in the backup of every object in it, by its key."""
    return {match[1]: path for path in files if (match := _OBJECT.fullmatch(path))}


def _whole(folder: Path, path: str, files: dict[str, Any]) -> bytes:
    if files[path][0] > OBJECT_BYTES_MAX:
        raise FormatError(_NOT_ONE)
    return b"".join(_pieces(folder / path, files[path]))


class _BackedUpObjects:
    """The objects of a backup where they lie: only read, each compared with the manifest."""

    def __init__(self, folder: Path, files: dict[str, Any]) -> None:
        self._folder = folder
        self._files = files
        self._named = _named_objects(files)

    @property
    def name(self) -> str:
        """``backup``."""
        return "backup"

    def get(self, key: str) -> bytes | None:
        """The object, or ``None``."""
        path = self._named.get(key)
        if path is None:
            return None
        with _files_translated():
            return _whole(self._folder, path, self._files)

    def put(self, key: str, data: bytes) -> None:
        """Refused."""
        raise StoreError("A backup is only read.")

    def delete(self, key: str) -> None:
        """Refused."""
        raise StoreError("A backup is only read.")

    def tidy(self) -> int:
        """None: nothing is unfinished here."""
        return 0

    def close(self) -> None:
        """Nothing is held."""


# --- files --------------------------------------------------------------------------------------------------------


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a whole backup; ``files`` by path, and nothing in the folder besides.

    Raises:
        FormatError: it is none.
        UnsupportedVersionError: a newer version wrote it.
        IntegrityError: files were added or taken away.
    """
    if not folder.is_dir():
        raise FormatError(f"There is no folder {str(folder)!r}: name the folder of a backup.")
    if os.path.lexists(folder / NO_BACKUP) or not os.path.lexists(folder / MANIFEST):
        raise FormatError(_NOT_ONE)
    with _opened(folder / MANIFEST) as file, os.fdopen(os.dup(file), "rb") as source:
        data = source.read(MANIFEST_BYTES_MAX + 1)
    try:
        if len(data) > MANIFEST_BYTES_MAX:
            raise ValueError("length")
        told = json.loads(data)
        if told["format"] != _FORMAT:
            raise UnsupportedVersionError("A newer version wrote this backup: upgrade this library.")
        files = {one["path"]: (int(one["size_bytes"]), bytes.fromhex(one["sha256"])) for one in told["files"]}
        orgs = tuple(BackedUpOrg(**one) for one in told["orgs"])
        made_at_us = int(told["made_at_us"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(_NOT_ONE) from error
    mark = f"{_OBJECTS}/{_mark()}"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if there - {MANIFEST} != files.keys() or _DATABASE not in files:
        raise SealBrokenError(_CHANGED)
    if not all(path in (_DATABASE, mark) or _OBJECT.fullmatch(path) for path in files):
        raise FormatError(_NOT_ONE)
    return {"files": files, "orgs": orgs, "made_at_us": made_at_us, "has_objects": mark in files}


def _mark() -> str:
    from evidence_archive.objects.directory import MARK

    return MARK


def _described(folder: Path, path: Path) -> dict[str, Any]:
    digest, size_bytes = sha256(), 0
    with _opened(path) as file:
        while piece := os.read(file, PIECE_BYTES):
            digest.update(piece)
            size_bytes += len(piece)
    return {"path": path.relative_to(folder).as_posix(), "size_bytes": size_bytes, "sha256": digest.hexdigest()}


def _pieces(path: Path, told: tuple[int, bytes]) -> Iterator[bytes]:
    """A file of a backup in pieces, the last one handed out only if the file is what the manifest says."""
    size_bytes, sha = told
    digest, left = sha256(), size_bytes
    with _opened(path) as file:
        while piece := os.read(file, PIECE_BYTES):
            digest.update(piece)
            left -= len(piece)
            if left < 0 or (left == 0 and digest.digest() != sha):
                break
            yield piece
        else:
            if left == 0 and digest.digest() == sha:
                return
    raise SealBrokenError(_CHANGED)


def _copy_file(path: Path, new: Path, told: tuple[int, bytes]) -> None:
    target = os.open(new, _NEW_FILE, 0o600)
    with os.fdopen(target, "wb") as file:
        for piece in _pieces(path, told):
            file.write(piece)


def _make_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        _sync(one.parent)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or any(folder.iterdir()):
        raise FormatError(f"There is something at {str(folder)!r} already: name a folder that is new or empty.")
    folder.chmod(0o700)


def _write(path: Path, data: bytes) -> None:
    """A new file of mode 0600, durable."""
    with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, _OLD_FILE)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FormatError(_NOT_ONE)
        yield file
    finally:
        os.close(file)


def _sync(path: Path) -> None:
    from evidence_archive.store import sync_path

    sync_path(path)


def _settle(database: Path) -> None:
    """Return only if a database that was closed is all in its file; what SQLite keeps empty beside it goes."""
    for side in map(Path, (f"{database}{one}" for one in _SIDE_FILES)):
        if side.exists():
            if side.stat().st_size:
                raise StoreUnavailableError("A database that was copied is still in use: try again.")
            side.unlink()


def _url(path: Path) -> str:
    return f"sqlite:///{path.absolute()}"


def _now(clock: Clock) -> str:
    return format_time(clock.now_us())


@contextmanager
def _files_translated() -> Iterator[None]:
    """Errors of the operating system become ours."""
    try:
        yield
    except OSError as error:
        at = f" at {os.fsdecode(error.filename)!r}" if isinstance(error.filename, str | bytes) else ""
        raise StoreUnavailableError(
            f"The files of a backup cannot be used ({error.strerror or type(error).__name__}{at}): check paths, "
            "permissions and space."
        ) from error
