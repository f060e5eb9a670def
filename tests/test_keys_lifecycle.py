"""Versions in a key file come and go: whole at every moment, one writer at a time, and gone when they are retired."""

import base64
import fcntl
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evidence_archive.errors import KeyNotFoundError, KeyringError, SealBrokenError
from evidence_archive.keys import EnvironmentKeys, FileKeys, added_version, new_keys, removed_version, roots
from evidence_archive.keys.roots import FILE_BYTES_MAX
from evidence_archive.ports import KeyLifecycle

ORG = "north-clinic"
KEY = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "evidence.keys"
    new_keys(made)
    return made


def held(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


# --- what changes -------------------------------------------------------------------------------------------------


def test_a_new_version_keeps_the_older_ones_and_the_mode_of_the_file(path: Path):
    before = held(path)
    keys = FileKeys(path)
    assert keys.new_version(ORG) == 2
    after = held(path)
    assert (after["current"], after["keys"]["1"]) == (2, before["keys"]["1"])
    assert len(base64.urlsafe_b64decode(after["keys"]["2"] + "=")) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_a_retired_version_is_not_in_the_file_any_more(path: Path):
    keys = FileKeys(path)
    keys.new_version(ORG)
    root = held(path)["keys"]["1"]
    keys.retire(ORG, 1)
    assert root not in path.read_text()
    assert held(path)["current"] == 2
    inode = path.stat().st_ino
    keys.retire(ORG, 1)
    assert path.stat().st_ino == inode, "what is gone already is not written again"


def test_a_version_that_was_retired_elsewhere_is_gone_here_at_once(path: Path):
    keys, elsewhere = FileKeys(path), FileKeys(path)
    wrapped = keys.wrap(ORG, 1, KEY, b"")
    elsewhere.new_version(ORG)
    elsewhere.retire(ORG, 1)
    with pytest.raises(KeyNotFoundError):
        keys.unwrap(ORG, 1, wrapped, b"")
    assert keys.current_version(ORG) == 2


def test_all_keys_that_need_no_service_have_the_verbs(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MADE_UP_KEYS", path.read_text())
    for keys in (FileKeys(path), EnvironmentKeys("MADE_UP_KEYS")):
        assert isinstance(keys, KeyLifecycle)
        assert keys.shared_by_orgs


def test_a_variable_is_not_changed_and_the_error_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MADE_UP_KEYS", path.read_text())
    keys = EnvironmentKeys("MADE_UP_KEYS")
    for change in (lambda: keys.new_version(ORG), lambda: keys.retire(ORG, 1)):
        with pytest.raises(KeyringError, match="set the variable to the file's new content"):
            change()
    assert os.environ["MADE_UP_KEYS"] == path.read_text()
    monkeypatch.setenv("MADE_UP_KEYS", added_version(path.read_text()))
    assert keys.versions(ORG) == (1, 2)
    assert keys.current_version(ORG) == 2


# --- texts ----------------------------------------------------------------------------------------------------------


def test_texts_gain_and_lose_versions_as_files_do(path: Path):
    text = path.read_text()
    two = added_version(text)
    three = added_version(two)
    assert list(json.loads(three)["keys"]) == ["1", "2", "3"]
    assert json.loads(three)["current"] == 3
    without = removed_version(three, 2)
    assert list(json.loads(without)["keys"]) == ["1", "3"]
    assert removed_version(without, 2) == without
    with pytest.raises(KeyringError, match="current one"):
        removed_version(three, 3)


@pytest.mark.parametrize("text", ["", "correct horse battery staple", "{}", "\udcff"])
def test_a_text_that_holds_no_keys_gains_and_loses_none(text: str):
    for change in (added_version, lambda given: removed_version(given, 1)):
        with pytest.raises(KeyringError, match="not a key file"):
            change(text)


def test_a_source_that_is_not_random_makes_no_version(path: Path):
    with pytest.raises(KeyringError):
        added_version(path.read_text(), entropy=bytes)


def test_a_version_that_the_file_has_no_room_for_is_refused_and_the_file_stays(path: Path):
    text = path.read_text()
    while len(text) < FILE_BYTES_MAX - 53:
        document = json.loads(text)
        version = len(document["keys"]) + 1
        document["keys"][str(version)] = base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
        text = json.dumps({**document, "current": version}) + "\n"
    path.write_text(text)
    keys = FileKeys(path)
    with pytest.raises(KeyringError, match="retire versions"):
        keys.new_version(ORG)
    assert path.read_text() == text
    keys.retire(ORG, 1)
    keys.retire(ORG, 2)
    assert keys.new_version(ORG) == held(path)["current"]


# --- what is not changed --------------------------------------------------------------------------------------------


def test_a_mounted_secret_is_not_changed_from_here(path: Path, tmp_path: Path):
    link = tmp_path / "mounted"
    link.symlink_to(path)
    keys = FileKeys(link, allow_group_read=True)
    before = path.read_bytes()
    for change in (lambda: keys.new_version(ORG), lambda: keys.retire(ORG, 9)):
        with pytest.raises(KeyringError, match="where it comes from"):
            change()
    assert link.is_symlink()
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["mode", "content", "gone", "folder"])
def test_a_file_that_is_not_as_it_should_be_is_not_changed(path: Path, damage: str):
    keys = FileKeys(path)
    if damage == "mode":
        path.chmod(0o644)
    elif damage == "content":
        path.write_bytes(b"damaged")
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(KeyringError):
        keys.new_version(ORG)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert os.listdir(path.parent) == ([] if damage == "gone" else [path.name])


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    keys, before = FileKeys(path), path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyringError, match="could not be changed durably"):
        keys.new_version(ORG)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    assert keys.current_version(ORG) == 1


# --- one writer at a time -------------------------------------------------------------------------------------------


def test_a_writer_waits_within_bounds_for_another_one(path: Path, monkeypatch: pytest.MonkeyPatch):
    keys, before = FileKeys(path), path.read_bytes()
    monkeypatch.setattr(roots, "LOCK_MS_MAX", 50)
    with path.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(KeyringError, match="Another program"):
            keys.new_version(ORG)
    assert path.read_bytes() == before
    assert keys.new_version(ORG) == 2


def test_a_writer_that_waited_for_a_file_that_was_replaced_changes_the_new_one(path: Path):
    keys, other = FileKeys(path), FileKeys(path)
    outcome: list[int] = []
    with path.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: outcome.append(keys.new_version(ORG)))
        waiting.start()
        text = added_version(path.read_text())
        new = path.with_name("theirs")
        new.write_text(text)
        new.chmod(0o600)
        new.rename(path)
    waiting.join()
    assert outcome == [3]
    assert other.versions(ORG) == (1, 2, 3)


def in_processes(count: int, work: Callable[[], object]) -> list[int]:
    """How processes ended that did the same work at once."""
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_processes_that_make_versions_at_once_make_one_each(path: Path):
    assert in_processes(6, lambda: [FileKeys(path).new_version(ORG) for _ in range(3)]) == [0] * 6
    assert FileKeys(path).versions(ORG) == tuple(range(1, 20))
    assert os.listdir(path.parent) == [path.name]


# --- killed at every step -------------------------------------------------------------------------------------------

STEPS = ("open", "write", "fsync", "fchmod", "rename", "unlink", "close")


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Whether the work's process died before its step of this number, counted over what it asks of the system."""
    child = os.fork()
    if not child:
        left = step

        def dying(true: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal left
                if not left:
                    os.kill(os.getpid(), 9)
                left -= 1
                return true(*given, **named)

            return call

        try:
            for name in STEPS:
                setattr(os, name, dying(getattr(os, name)))
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


def survives(
    path: Path, change: Callable[[FileKeys], object], naive: Callable[[], object] | None = None
) -> list[str]:
    """What is wrong after a change was killed at each of its steps, one after the other."""
    wrong = []
    before = path.read_bytes()
    for step in range(100):
        path.write_bytes(before)
        keys = FileKeys(path)
        wrapped = keys.wrap(ORG, keys.current_version(ORG), KEY, b"")
        if not killed_at(step, naive or (lambda keys=keys: change(keys))):
            return wrong if step > 3 else ["it was never killed"]
        try:
            after = FileKeys(path)
            if after.unwrap(ORG, 2, wrapped, b"") != KEY:
                wrong.append(f"{step}: another key")
            change(after)  # goes on where it was left
            if [name for name in os.listdir(path.parent) if name != path.name]:
                wrong.append(f"{step}: something lies about")
        except (KeyringError, SealBrokenError) as error:
            wrong.append(f"{step}: {error}")
    return ["it never ended"]


@pytest.mark.parametrize("change", [lambda keys: keys.new_version(ORG), lambda keys: keys.retire(ORG, 1)])
def test_killed_at_any_step_the_old_file_or_the_new_one_is_there_and_nothing_beside_it(
    path: Path, change: Callable[[FileKeys], object]
):
    FileKeys(path).new_version(ORG)
    assert survives(path, change) == []


def test_must_fail_control_a_file_that_is_written_over_is_lost_at_some_step(path: Path):
    FileKeys(path).new_version(ORG)
    text = added_version(path.read_text()).encode()

    def written_over() -> None:
        target = os.open(path, os.O_WRONLY | os.O_TRUNC)
        for at in range(0, len(text), 40):
            os.write(target, text[at : at + 40])
        os.close(target)

    assert survives(path, lambda keys: keys.new_version(ORG), written_over) != []


def test_a_new_file_is_durable_before_it_takes_the_place_of_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch):
    steps: list[str] = []

    def told(name: str) -> None:
        true = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            what = stat.S_IFMT(os.fstat(given[0]).st_mode) if name == "fsync" else 0
            steps.append({stat.S_IFREG: "fsync file", stat.S_IFDIR: "fsync folder"}.get(what, name))
            return true(*given, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "rename"):
        told(name)
    FileKeys(path).new_version(ORG)
    assert steps == ["fsync file", "rename", "fsync folder"]
