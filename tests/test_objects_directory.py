"""Objects in a folder: whole or absent after any cut, and nobody else's folder, link or file is ever used."""

import contextlib
import errno
import fcntl
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evidence_archive.errors import EvidenceArchiveError, MisuseError, StoreError, StoreUnavailableError
from evidence_archive.objects import directory, open_objects
from evidence_archive.objects.directory import LEFTOVER_AGE_S_MIN, MARK, DirectoryObjects
from evidence_archive.ports import OBJECT_BYTES_MAX, ObjectStore
from evidence_archive.testing.object_contract import ObjectStoreContract

KEY = "3f/0123456789abcdef0123456789abcd.00000"
SUBFOLDER, FILE = KEY.split("/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "evidence.objects"


@pytest.fixture
def store(folder: Path) -> Iterator[DirectoryObjects]:
    made = DirectoryObjects(folder, create=True)
    yield made
    made.close()


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.part"))


# --- the contract, and stores that break it -----------------------------------------------------------------------


class TestContract(ObjectStoreContract):
    def make(self, folder: Path) -> ObjectStore:
        return DirectoryObjects(folder / "objects", create=True)


class Naive:
    """A store as one writes it in five minutes: correct at first sight, and it keeps to nothing under a race."""

    name = "naive"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.closed = False

    def path(self, key: str) -> Path:
        if self.closed:
            raise MisuseError("closed")
        return self.folder / key.replace("/", "-")

    def put(self, key: str, data: bytes) -> None:
        path = self.path(key)
        if path.exists() and path.read_bytes() != data:
            raise StoreError("taken")
        self.write(path, data)

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def get(self, key: str) -> bytes | None:
        path = self.path(key)
        return path.read_bytes() if path.exists() else None

    def delete(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)

    def close(self) -> None:
        self.closed = True


class Overwrites(Naive):
    def put(self, key: str, data: bytes) -> None:
        self.write(self.path(key), data)


class ChecksThenWrites(Naive):
    def write(self, path: Path, data: bytes) -> None:
        time.sleep(0.01)  # the gap that the others get through, made wide
        path.write_bytes(data)


class Truncates(Naive):
    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data[:4096])


class SwallowsErrors(Naive):
    def put(self, key: str, data: bytes) -> None:
        with contextlib.suppress(StoreError):
            super().put(key, data)


class EmptyForUnknown(Naive):
    def get(self, key: str) -> bytes | None:
        return super().get(key) or b""


class WritesText(Naive):
    def write(self, path: Path, data: bytes) -> None:
        path.write_text(data.decode("latin-1"), "latin-1", newline=None)

    def get(self, key: str) -> bytes | None:
        path = self.path(key)
        return path.read_text("latin-1").encode("latin-1") if path.exists() else None


class CutsKeys(Naive):
    def path(self, key: str) -> Path:
        return super().path(key[:-1])


class NeverDeletes(Naive):
    def delete(self, key: str) -> None:
        self.path(key)


class StaysOpen(Naive):
    def close(self) -> None: ...


class InMemory(Naive):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.held: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.path(key)
        if self.held.setdefault(key, data) != data:
            raise StoreError("taken")

    def get(self, key: str) -> bytes | None:
        self.path(key)
        return self.held.get(key)

    def delete(self, key: str) -> None:
        self.path(key)
        self.held.pop(key, None)


class GivesViews(Naive):
    def get(self, key: str) -> Any:
        found = super().get(key)
        return None if found is None else bytearray(found)


def broken_clauses(make: Callable[[Path], Any], folder: Path) -> set[str]:
    """Tests of the contract that this store fails."""

    class Suite(ObjectStoreContract):
        def make(self, folder: Path) -> ObjectStore:
            return make(folder)

    failed = set()
    for name in (name for name in dir(Suite) if name.startswith("test_")):
        own = folder / name
        own.mkdir()
        try:
            getattr(Suite(), name)(own)
        except (AssertionError, EvidenceArchiveError):
            failed.add(name)
    return failed


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (Overwrites, "test_an_object_is_never_overwritten"),
        (Overwrites, "test_exactly_one_of_many_writers_wins"),
        (ChecksThenWrites, "test_exactly_one_of_many_writers_wins"),
        (Truncates, "test_an_object_of_the_largest_size_comes_back"),
        (SwallowsErrors, "test_an_object_is_never_overwritten"),
        (SwallowsErrors, "test_exactly_one_of_many_writers_wins"),
        (EmptyForUnknown, "test_an_unknown_object_is_none"),
        (EmptyForUnknown, "test_a_deleted_object_is_gone_for_every_instance"),
        (WritesText, "test_every_byte_value_comes_back"),
        (CutsKeys, "test_keys_that_differ_in_one_character_are_different_objects"),
        (NeverDeletes, "test_a_deleted_object_is_gone_for_every_instance"),
        (StaysOpen, "test_closing_twice_is_fine_and_a_closed_store_refuses"),
        (InMemory, "test_objects_are_still_there_for_a_new_instance"),
        (GivesViews, "test_what_was_put_is_got_as_bytes"),
    ],
)
def test_a_store_that_breaks_the_contract_fails_it(make: Callable[[Path], Any], clause: str, tmp_path: Path):
    assert clause in broken_clauses(make, tmp_path)


def test_a_suite_without_a_store_says_what_is_missing(tmp_path: Path):
    with pytest.raises(MisuseError, match=r"define make\(folder\)"):
        ObjectStoreContract().make(tmp_path)


# --- the folder ---------------------------------------------------------------------------------------------------


def test_folder_and_files_are_closed_to_others_whatever_the_umask(folder: Path):
    before = os.umask(0)
    try:
        made = DirectoryObjects(folder, create=True)
        made.put(KEY, b"sealed")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {folder.name: 0o700, MARK: 0o600, SUBFOLDER: 0o700, FILE: 0o600}


def test_a_put_leaves_no_other_file(store: DirectoryObjects, folder: Path):
    store.put(KEY, b"sealed")
    store.put(KEY, b"sealed")
    with pytest.raises(StoreError):
        store.put(KEY, b"other")
    assert sorted(path.name for path in folder.rglob("*")) == sorted([MARK, SUBFOLDER, FILE])


def test_a_missing_folder_is_made_only_when_asked_for(folder: Path):
    with pytest.raises(StoreUnavailableError, match="gone"):
        DirectoryObjects(folder, create=False)
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    with pytest.raises(StoreUnavailableError, match="no objects"):
        DirectoryObjects(folder, create=False)
    assert list(folder.iterdir()) == []


def test_the_folder_above_has_to_exist(tmp_path: Path):
    with pytest.raises(StoreUnavailableError, match="gone"):
        DirectoryObjects(tmp_path / "missing" / "objects", create=True)


def test_a_folder_with_other_things_is_not_taken_over(folder: Path):
    folder.mkdir(mode=0o700)
    (folder / "letters").mkdir()
    with pytest.raises(StoreError, match="other things"):
        DirectoryObjects(folder, create=True)
    assert [path.name for path in folder.iterdir()] == ["letters"]


def test_what_a_killed_creator_and_a_file_system_leave_is_no_hindrance(folder: Path):
    folder.mkdir(mode=0o700)
    (folder / "lost+found").mkdir()
    (folder / f"{'0' * 32}.part").touch()
    DirectoryObjects(folder, create=True).put(KEY, b"sealed")
    assert DirectoryObjects(folder, create=False).get(KEY) == b"sealed"


def test_a_changed_mark_is_refused(store: DirectoryObjects, folder: Path):
    (folder / MARK).write_text("evidence-archive/objects/2 x\n")
    with pytest.raises(StoreError, match="was changed"):
        store.get(KEY)
    with pytest.raises(StoreError, match="was changed"):
        DirectoryObjects(folder, create=True)


@pytest.mark.parametrize("mode", [0o770, 0o705, 0o740, 0o701])
def test_a_folder_that_is_open_to_others_is_refused(store: DirectoryObjects, folder: Path, mode: int):
    folder.chmod(mode)
    for use in (lambda: DirectoryObjects(folder, create=True), lambda: store.get(KEY), lambda: store.put(KEY, b"")):
        with pytest.raises(StoreError, match="chmod 700"):
            use()
    folder.chmod(0o700)
    assert store.get(KEY) is None


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_subfolder_that_is_open_to_others_is_refused(store: DirectoryObjects, folder: Path, mode: int):
    store.put(KEY, b"sealed")
    (folder / SUBFOLDER).chmod(mode)
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed"), lambda: store.delete(KEY)):
        with pytest.raises(StoreError, match="chmod 700"):
            use()


def test_a_folder_of_another_user_is_refused(store: DirectoryObjects, folder: Path, monkeypatch: pytest.MonkeyPatch):
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    for use in (lambda: DirectoryObjects(folder, create=True), lambda: store.get(KEY)):
        with pytest.raises(StoreError, match="another user"):
            use()


# --- attacks ------------------------------------------------------------------------------------------------------


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, folder: Path):
    DirectoryObjects(tmp_path / "real", create=True).put(KEY, b"sealed")
    folder.symlink_to(tmp_path / "real", target_is_directory=True)
    for path in (folder, f"{folder}/", f"{folder}/.", f"file://{folder}", f"file://{folder}/"):
        for create in (True, False):
            with pytest.raises(StoreError, match="symbolic link"):
                open_objects(path, create=create)


def test_a_folder_replaced_by_a_link_is_refused_while_open(store: DirectoryObjects, folder: Path):
    store.put(KEY, b"sealed")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"), target_is_directory=True)
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed"), lambda: store.delete(KEY)):
        with pytest.raises(StoreError, match="symbolic link"):
            use()


@pytest.mark.parametrize("moment", ["mkdir", "link", "unlink"])
def test_a_path_swapped_in_the_middle_of_a_put_does_not_lead_it_astray(
    store: DirectoryObjects, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    trap, away = tmp_path / "trap", tmp_path / "away"
    (trap / SUBFOLDER).mkdir(parents=True, mode=0o700)
    real = getattr(os, moment)

    def swap(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(os, moment, real)
        folder.rename(away)
        folder.symlink_to(trap, target_is_directory=True)
        return real(*args, **options)

    monkeypatch.setattr(os, moment, swap)
    store.put(KEY, b"sealed")
    assert [path.name for path in trap.rglob("*")] == [SUBFOLDER]
    assert (away / SUBFOLDER / FILE).read_bytes() == b"sealed"


def test_a_link_in_place_of_a_subfolder_is_refused(store: DirectoryObjects, folder: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / FILE).write_bytes(b"not ours")
    (folder / SUBFOLDER).symlink_to(elsewhere, target_is_directory=True)
    uses = (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed"), lambda: store.delete(KEY), store.tidy)
    for use in uses:
        with pytest.raises(StoreError, match="symbolic link"):
            use()
    assert [(path.name, path.read_bytes()) for path in elsewhere.iterdir()] == [(FILE, b"not ours")]


@pytest.mark.parametrize("target", ["real", "missing"])
def test_a_link_in_place_of_an_object_is_refused(store: DirectoryObjects, folder: Path, tmp_path: Path, target: str):
    (tmp_path / "real").write_bytes(b"sealed")
    (folder / SUBFOLDER).mkdir(mode=0o700)
    (folder / SUBFOLDER / FILE).symlink_to(tmp_path / target)
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed")):
        with pytest.raises(StoreError, match="symbolic link"):
            use()
    assert not (tmp_path / "missing").exists()
    store.delete(KEY)  # takes the link away, not what it names
    assert (tmp_path / "real").read_bytes() == b"sealed"
    assert store.get(KEY) is None


def test_a_link_in_place_of_the_unfinished_file_is_not_written_through(folder: Path, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"not ours")
    guessed = b"\x07" * 16
    store = DirectoryObjects(folder, create=True, entropy=lambda count: guessed[:count])
    (folder / SUBFOLDER).mkdir(mode=0o700)
    (folder / SUBFOLDER / f"{guessed.hex()}.part").symlink_to(victim)
    with pytest.raises(StoreError, match="in the place"):
        store.put(KEY, b"sealed")
    assert victim.read_bytes() == b"not ours"
    assert store.get(KEY) is None


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_in_place_of_an_object_neither_hangs_nor_counts(
    store: DirectoryObjects, folder: Path, kind: str
):
    (folder / SUBFOLDER).mkdir(mode=0o700)
    path = folder / SUBFOLDER / FILE
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed")):
        with pytest.raises(StoreError):
            use()


def test_an_object_larger_than_one_can_be_is_not_read(store: DirectoryObjects, folder: Path):
    store.put(KEY, b"sealed")
    os.truncate(folder / SUBFOLDER / FILE, OBJECT_BYTES_MAX + 1)
    with pytest.raises(StoreError, match="larger"):
        store.get(KEY)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "3f",
        "../3f/x",
        "3f/../../x",
        f"/{KEY}",
        f"{KEY}\n",
        KEY.upper(),
        KEY + "0",
        KEY.replace("0", "\u0660"),
        None,
        7,
    ],
)
def test_what_is_no_key_is_refused_by_every_verb(store: DirectoryObjects, key: Any):
    for use in (lambda: store.put(key, b""), lambda: store.get(key), lambda: store.delete(key)):
        with pytest.raises(StoreError, match="not the key"):
            use()


@pytest.mark.parametrize("data", [bytes(OBJECT_BYTES_MAX + 1), "text", bytearray(b"x"), None])
def test_what_is_no_object_is_not_written(store: DirectoryObjects, folder: Path, data: Any):
    with pytest.raises(StoreError, match="at most"):
        store.put(KEY, data)
    assert [path.name for path in folder.rglob("*")] == [MARK]


# --- gone, and back -----------------------------------------------------------------------------------------------


def test_a_folder_that_is_gone_is_an_error_never_a_missing_object_and_it_recovers(
    store: DirectoryObjects, folder: Path
):
    store.put(KEY, b"sealed")
    away = folder.rename(folder.with_name("away"))
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed"), lambda: store.delete(KEY), store.tidy):
        with pytest.raises(StoreUnavailableError, match="gone"):
            use()
    away.rename(folder)
    assert store.get(KEY) == b"sealed"


@pytest.mark.parametrize("marked", [True, False])
def test_another_folder_in_its_place_is_an_error_and_a_copy_of_the_right_one_is_not(
    store: DirectoryObjects, folder: Path, marked: bool
):
    store.put(KEY, b"sealed")
    away = folder.rename(folder.with_name("away"))
    if marked:
        DirectoryObjects(folder, create=True)
    else:
        folder.mkdir(mode=0o700)  # what an unmounted disk leaves behind
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed"), lambda: store.delete(KEY)):
        with pytest.raises(StoreUnavailableError, match="Another folder"):
            use()
    assert not (folder / SUBFOLDER).exists()
    shutil.rmtree(folder)
    shutil.copytree(away, folder)
    assert store.get(KEY) == b"sealed"


def test_a_relative_path_stays_the_same_folder_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    store = DirectoryObjects("objects", create=True)
    store.put(KEY, b"sealed")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert store.get(KEY) == b"sealed"


FORKING = """
import os, sys
from evidence_archive.objects.directory import DirectoryObjects
store = DirectoryObjects(sys.argv[1], create=True)
store.put(sys.argv[2], b"from the parent")
child = os.fork()
if not child:
    code = 1
    try:
        store.put(sys.argv[3], b"from the child")
        code = 0 if store.get(sys.argv[2]) == b"from the parent" else 2
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
assert store.get(sys.argv[3]) == b"from the child"
"""


def test_a_store_that_was_opened_before_a_fork_works_after_it(folder: Path):
    subprocess.run([sys.executable, "-c", FORKING, str(folder), KEY, KEY.replace("3f", "4f")], check=True, timeout=60)


def test_many_processes_may_make_the_folder_at_the_same_moment(folder: Path):
    script = (
        "import sys\nfrom evidence_archive.objects.directory import DirectoryObjects\nprint('ready', flush=True)\n"
        "sys.stdin.readline()\nDirectoryObjects(sys.argv[1], create=True).put(sys.argv[2], sys.argv[2].encode())\n"
    )
    keys = [f"{number:02x}{KEY[2:]}" for number in range(6)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder), key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for key in keys
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=60)
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    store = DirectoryObjects(folder, create=False)
    assert [store.get(key) for key in keys] == [key.encode() for key in keys]


@pytest.mark.parametrize("moment", ["listdir", "link"])
def test_whoever_makes_the_folder_second_takes_the_first_ones_mark(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    real = getattr(os, moment)
    first: list[DirectoryObjects] = []

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(os, moment, real)
        first.append(DirectoryObjects(folder, create=True))
        first[0].put(KEY, b"sealed")
        return real(*args, **options)

    monkeypatch.setattr(os, moment, late)
    second = DirectoryObjects(folder, create=True)
    assert second.get(KEY) == first[0].get(KEY) == b"sealed"


# --- what the system refuses --------------------------------------------------------------------------------------

STEPS = ("open", "write", "fsync", "link", "mkdir", "fchmod", "fstat", "close")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EPERM, errno.EMFILE, errno.ESTALE)


class Failing:
    """One call of ``os`` that fails, the ``n``-th time it is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str, number: int, code: int) -> None:
        self.calls = 0
        real = getattr(os, step)

        def failing(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == number:
                if step == "close":
                    real(*args, **options)
                raise OSError(code, os.strerror(code))
            return real(*args, **options)

        monkeypatch.setattr(os, step, failing)


def outcomes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Any], codes: tuple[int, ...] = ERRORS
) -> Iterator[tuple[str, str]]:
    """Every step of a put, failing once with every error: what was wrong with the outcome."""
    data = b"sealed" * 1_000
    for code in codes:
        for step in STEPS:
            for number in range(1, 20):
                shutil.rmtree(folder, ignore_errors=True)
                store = make(folder)
                with monkeypatch.context() as patch:
                    fault = Failing(patch, step, number, code)
                    acknowledged = False
                    try:
                        store.put(KEY, data)
                        acknowledged = True
                    except StoreUnavailableError as error:
                        if not isinstance(error.__cause__, OSError):
                            yield step, "no cause"
                    except Exception as error:
                        yield step, f"untyped {error!r}"
                if fault.calls < number:
                    break
                found = store.get(KEY)
                if found not in (None, data) or (acknowledged and found is None):
                    yield step, "half"
                try:
                    store.put(KEY, data)  # it recovers without a restart
                except StoreError:
                    yield step, "no recovery"
                if list(folder.rglob("*.part")):
                    yield step, "leftover"


def test_any_step_that_fails_leaves_the_object_whole_or_absent_with_a_typed_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    assert list(outcomes(folder, monkeypatch, lambda path: DirectoryObjects(path, create=True))) == []


class WritesInPlace:
    """The naive put: straight to the object's name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "object"

    def put(self, key: str, data: bytes) -> None:
        try:
            target = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(target, data[:1_000])
            os.write(target, data[1_000:])
            os.fsync(target)
            os.close(target)
        except OSError as error:
            raise StoreUnavailableError("failed") from error

    def get(self, key: str) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None


def test_a_put_in_place_would_be_caught(folder: Path, monkeypatch: pytest.MonkeyPatch):
    found = set(outcomes(folder, monkeypatch, WritesInPlace, (errno.ENOSPC,)))
    assert ("write", "half") in found


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EIO, "I/O error"),
        (errno.EMFILE, "open files"),
        (errno.ENODEV, "check its disk"),
    ],
)
def test_an_error_says_what_to_do(store: DirectoryObjects, monkeypatch: pytest.MonkeyPatch, code: int, says: str):
    Failing(monkeypatch, "write", 1, code)
    with pytest.raises(StoreUnavailableError, match=says) as caught:
        store.put(KEY, b"made-up evidence")
    assert "made-up" not in str(caught.value)


def test_short_writes_are_continued_and_a_write_of_nothing_is_an_error(
    store: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda target, data: real(target, bytes(data)[:7]))
        store.put(KEY, b"sealed" * 100)
    assert store.get(KEY) == b"sealed" * 100
    other = KEY.replace("3f", "4f")
    monkeypatch.setattr(os, "write", lambda target, data: 0)
    with pytest.raises(StoreUnavailableError, match="free space"):
        store.put(other, b"sealed")
    assert store.get(other) is None


def test_the_disk_itself_is_asked_to_sync_where_fsync_does_not_do_that(
    store: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def full(target: int, request: int) -> int:
        asked.append(request)
        if len(asked) == 1:
            raise OSError(errno.ENOTSUP, "not on this file system")
        return 0

    monkeypatch.setattr(directory.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    store.put(KEY, b"sealed")
    assert len(asked) >= 3
    assert len(synced) == 1, "the first was refused there, and went the ordinary way"


def test_a_disk_that_cannot_sync_fully_is_an_error(store: DirectoryObjects, monkeypatch: pytest.MonkeyPatch):
    def full(target: int, request: int) -> int:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(directory.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    with pytest.raises(StoreUnavailableError, match="I/O error"):
        store.put(KEY, b"sealed")


def mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def mount_point(folder: Path) -> Iterator[Path]:
    """A folder to mount something on; unmounted at the end, however often that was done."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("sweep: mounting needs root")
    folder.mkdir(mode=0o700)
    yield folder
    while not subprocess.run(["umount", str(folder)], capture_output=True).returncode:
        pass  # until nothing is mounted there


def test_a_disk_that_is_really_full_or_read_only_is_a_typed_error_and_it_recovers(mount_point: Path):
    if not mounted("-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(mount_point)):
        pytest.skip("sweep: a tmpfs cannot be mounted here")
    store = DirectoryObjects(mount_point, create=True)
    store.put(KEY, b"sealed")
    other = KEY.replace("3f", "4f")
    with pytest.raises(StoreUnavailableError, match="free space"):
        store.put(other, bytes(2 * 1024 * 1024))
    assert (store.get(other), leftovers(mount_point)) == (None, [])
    assert mounted("-o", "remount,size=4m,ro", str(mount_point))
    with pytest.raises(StoreUnavailableError, match="read-only"):
        store.put(other, b"sealed")
    with pytest.raises(StoreUnavailableError, match="read-only"):
        store.delete(KEY)
    assert store.get(KEY) == b"sealed"
    assert mounted("-o", "remount,rw", str(mount_point))
    store.put(other, bytes(2 * 1024 * 1024))
    assert store.get(other) == bytes(2 * 1024 * 1024)


def test_an_unmounted_disk_is_an_error_never_a_missing_object_and_it_recovers(mount_point: Path, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    if not mounted("--bind", str(disk), str(mount_point)):
        pytest.skip("sweep: a folder cannot be mounted here")
    store = DirectoryObjects(mount_point, create=True)
    store.put(KEY, b"sealed")
    subprocess.run(["umount", str(mount_point)], check=True)
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b"sealed"), lambda: store.delete(KEY)):
        with pytest.raises(StoreUnavailableError, match="Another folder"):
            use()
    assert list(mount_point.iterdir()) == []
    assert mounted("--bind", str(disk), str(mount_point))
    assert store.get(KEY) == b"sealed"


# --- power cuts and kills -----------------------------------------------------------------------------------------


def trace_is_safe(calls: list[str]) -> str:
    """Empty for written, synced, linked, folder synced, in this order; else the order found."""
    order = re.sub(r"w+", "w", "".join(calls))
    return "" if re.fullmatch(r"[^wFL]*wFL[^wFL]*D[^wFL]*", order) else order


def traced_put(tmp_path: Path, prepare: str = "") -> list[str]:
    """``w`` write of the object, ``F`` sync of it, ``L`` link, ``D`` sync of its folder, ``R`` of the one above."""
    script = (
        "import sys\nfrom evidence_archive.objects.directory import DirectoryObjects\n"
        f"store = DirectoryObjects(sys.argv[1], create=True)\n{prepare}\n"
        "import os\nos.path.exists('put-begins')\n"
        f"store.put({KEY!r}, b'sealed' * 100_000)\nos.path.exists('put-ends')\n"
    )
    log = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-y", "-o", str(log), "-e", "trace=write,fsync,fdatasync,link,linkat,stat,newfstatat",
         sys.executable, "-c", script, str(tmp_path / "objects")],
        check=True,
        timeout=120,
    )  # fmt: skip
    lines = log.read_text("utf-8", "replace").partition("put-begins")[2].partition("put-ends")[0].splitlines()
    calls = []
    for line in lines:
        where = re.search(r"(\w+)\(\d+<([^>]*)>", line)
        if where is None:
            continue
        call, path = where[1], where[2]
        if call == "write" and path.endswith(".part"):
            calls.append("w")
        elif call in ("fsync", "fdatasync"):
            calls.append("F" if path.endswith((".part", FILE)) else "D" if path.endswith(f"/{SUBFOLDER}") else "R")
        elif call in ("link", "linkat"):
            calls.append("L")
    return calls


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="sweep: strace is not installed")


@needs_strace
def test_a_put_writes_syncs_links_and_syncs_the_folder_in_this_order(tmp_path: Path):
    calls = traced_put(tmp_path)
    assert trace_is_safe(calls) == ""
    assert "R" in calls, "the folder above is synced for the new subfolder"


@needs_strace
def test_a_repeated_put_syncs_what_another_writer_may_not_have_synced(tmp_path: Path):
    calls = traced_put(tmp_path, f"store.put({KEY!r}, b'sealed' * 100_000)")
    assert calls[calls.index("L") :] == ["L", "F", "D"]
    assert "R" in calls


def test_a_delete_is_durable_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DirectoryObjects(tmp_path / "objects", create=True)
    store.put(KEY, b"sealed")
    seen: list[bool] = []
    file, sync = tmp_path / "objects" / KEY, directory._sync
    monkeypatch.setattr(directory, "_sync", lambda target: (sync(target), seen.append(file.exists())))
    store.delete(KEY)
    assert seen[-1:] == [False]


@pytest.mark.parametrize("order", ["wLFD", "wFL", "FwLD", "wFDL", "wLD", "LwFD", "wFLwD"])
def test_an_order_that_a_power_cut_could_tear_would_be_caught(order: str):
    assert trace_is_safe(list(order)) == order


KILLED = """
import sys
from evidence_archive.objects.directory import DirectoryObjects
store = DirectoryObjects(sys.argv[1], create=True)
print("ready", flush=True)
for number in range(100_000):
    key = f"{number % 4:02x}/{number:030x}.00000"
    store.put(key, key.encode() * 5_000)
    print(key, flush=True)
"""
KILLED_IN_PLACE = """
import os, sys
os.makedirs(sys.argv[1])
print("ready", flush=True)
for number in range(100_000):
    key = f"{number % 4:02x}/{number:030x}.00000"
    os.makedirs(os.path.join(sys.argv[1], key[:2]), exist_ok=True)
    with open(os.path.join(sys.argv[1], key), "wb", buffering=0) as file:
        for _ in range(5_000):
            file.write(key.encode())
    print(key, flush=True)
"""


def killed(script: str, folder: Path, rounds: int) -> tuple[int, int, int]:
    """Objects acknowledged, of these lost, and objects torn, over so many killed writers."""
    dice = random.Random(7)
    acknowledged = lost = torn = 0
    for number in range(rounds):
        own = folder / str(number)
        child = subprocess.Popen([sys.executable, "-c", script, str(own)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        first = ""
        try:
            assert child.stdout.readline() == "ready\n"
            if number % 2:
                first = child.stdout.readline()  # however slow the disk, some are acknowledged
            time.sleep(dice.uniform(0, 0.03))
        finally:
            child.send_signal(signal.SIGKILL)
            told = (first + child.stdout.read()).split("\n")[:-1]  # the last line may be cut
            child.stdout.close()
            child.wait()
        acknowledged += len(told)
        for key in told:
            lost += not (own / key).exists()
        for path in own.glob("*/*.00000"):
            torn += path.read_bytes() != f"{path.parent.name}/{path.name}".encode() * 5_000
        shutil.rmtree(own)
    return acknowledged, lost, torn


@pytest.mark.parametrize("rounds", [50, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_a_writer_killed_at_any_moment_leaves_objects_whole_or_absent(tmp_path: Path, rounds: int):
    acknowledged, lost, torn = killed(KILLED, tmp_path, rounds)
    assert acknowledged > 0
    assert (lost, torn) == (0, 0)


def test_killed_writers_in_place_would_be_caught(tmp_path: Path):
    for _ in range(10):
        if killed(KILLED_IN_PLACE, tmp_path, 5)[2]:
            return
    pytest.fail("no torn object in 50 rounds: the look at what a kill leaves is blind")


# --- leftovers ----------------------------------------------------------------------------------------------------


def test_tidy_removes_what_killed_writers_left_and_nothing_else(store: DirectoryObjects, folder: Path):
    store.put(KEY, b"sealed")
    old = time.time() - LEFTOVER_AGE_S_MIN - 60
    gone = [folder / f"{'1' * 32}.part", folder / SUBFOLDER / f"{'2' * 32}.part"]
    stay = [
        folder / SUBFOLDER / f"{'3' * 32}.part.txt",
        folder / SUBFOLDER / f"{'3' * 31}.part",
        folder / f"{'A' * 32}.part",
        folder / SUBFOLDER / FILE,
        folder / MARK,
    ]
    for path in (*gone, *stay):
        path.touch()
        os.utime(path, (old, old))
    young = folder / SUBFOLDER / f"{'4' * 32}.part"
    young.touch()
    link = folder / SUBFOLDER / f"{'5' * 32}.part"
    link.symlink_to(folder / MARK)
    os.utime(link, (old, old), follow_symlinks=False)
    assert store.tidy() == 2
    assert [path for path in gone if path.exists()] == []
    assert [path for path in (*stay, young, link) if not path.exists()] == []
    assert store.get(KEY) == b"sealed"
    assert store.tidy(age_s=-60) == 1
    assert not young.exists()


def test_an_object_whose_writer_was_killed_after_the_link_outlives_tidying(store: DirectoryObjects, folder: Path):
    store.put(KEY, b"sealed")
    os.link(folder / SUBFOLDER / FILE, folder / SUBFOLDER / f"{'2' * 32}.part")
    assert store.tidy(age_s=-60) == 1
    assert store.get(KEY) == b"sealed"


def test_a_writer_that_loses_its_unfinished_file_gets_an_error_and_nothing_is_half_written(
    store: DirectoryObjects, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    real = os.link

    def late(*args: Any, **options: Any) -> None:
        assert store.tidy(age_s=-60) == 1
        real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", late)
        with pytest.raises(StoreUnavailableError):
            store.put(KEY, b"sealed")
    assert store.get(KEY) is None
    store.put(KEY, b"sealed")
    assert store.get(KEY) == b"sealed"


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_a_path_or_a_file_url_opens_the_folder(tmp_path: Path, form: str):
    folder = tmp_path / "with space"
    made = open_objects(form.format(str(folder).replace(" ", "%20") if "file" in form else folder), create=True)
    made.put(KEY, b"sealed")
    assert open_objects(folder, create=False).get(KEY) == b"sealed"
    assert (made.name, repr(made)) == ("directory", f"<DirectoryObjects {str(folder)!r}>")


def test_a_store_of_ones_own_is_taken_as_it_is(tmp_path: Path):
    own = Naive(tmp_path)
    assert open_objects(own, create=False) is own  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "where",
    [None, 7, object(), Naive, "http://x.test/y", "gs://bucket", "file://folder/x", "file:///x?y=1", "file:///x#y",
     "file:///%ff", "file://[x/y", "a\0b", "\ud800\udfff", "file:///a%00b"],
)  # fmt: skip
def test_what_names_no_objects_is_refused(where: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError):
        open_objects(where, create=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["gs://who:sekret@bucket", "file://who:sekret@host/x", "ftp://sekret@x"])
def test_a_refusal_does_not_repeat_credentials(where: str):
    with pytest.raises(StoreError) as caught:
        open_objects(where, create=True)
    assert "sekret" not in str(caught.value)
