"""The folder beside an SQLite database: made by the first large original, never in the place of one that is away."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Conversation, Desk
from doubles import Characters

from evidence_archive import Archive, BatchRejectedError, Principal
from evidence_archive.envelopes import INTENT_SECONDS
from evidence_archive.errors import StoreUnavailableError
from evidence_archive.objects import open_objects
from evidence_archive.objects.directory import MARK
from evidence_archive.objects.late import LateObjects
from evidence_archive.testing import FrozenClock

OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
SMALL = "a small result that stays in its row\n" * 40
LARGE = "a result of more than one mebibyte\r\n" * 40_000


@pytest.fixture
def desk(sqlite_desk: Desk) -> Desk:
    """Only a database that is a file has a folder beside it."""
    return sqlite_desk


@pytest.fixture
def archive(desk: Desk) -> Iterator[Archive]:
    """An archive that may use the folder beside its database."""
    with desk.open(counter=Characters()) as opened:
        yield opened


def beside(desk: Desk) -> Path:
    return desk.folder / "evidence.db.objects"


def archived(archive: Archive, name: str, content: str) -> None:
    """Set one result of a new session aside."""
    session, talk = archive.session(name, OWNER), Conversation()
    talk.tool(content)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "a log")])


def test_small_originals_restores_and_collections_make_no_folder(desk: Desk, archive: Archive) -> None:
    archived(archive, "small", SMALL)
    assert archive.restore("small", "r1", principal=OWNER).content == SMALL
    assert archive.collect(principal=OWNER).tidied == 0
    assert not beside(desk).exists()


def test_the_first_large_original_makes_the_folder_for_its_owner_alone(desk: Desk, archive: Archive) -> None:
    archived(archive, "large", LARGE)
    assert stat.S_IMODE(beside(desk).stat().st_mode) == 0o700
    assert (beside(desk) / MARK).is_file()
    assert archive.restore("large", "r1", principal=OWNER).content == LARGE


def test_a_program_that_makes_no_database_makes_the_folder_all_the_same(desk: Desk, archive: Archive) -> None:
    with desk.open(create=False, counter=Characters()) as other:
        archived(other, "large", LARGE)
        assert other.restore("large", "r1", principal=OWNER).content == LARGE


def test_another_process_restores_from_the_folder(desk: Desk, archive: Archive) -> None:
    archived(archive, "large", LARGE)
    look = (
        "import sys; from evidence_archive import Archive, Principal\n"
        "with Archive.open(sys.argv[1], keys=sys.argv[2], create=False) as archive:\n"
        "    who = Principal('north-clinic', 'triage-agent')\n"
        "    print(archive.restore('large', 'r1', principal=who).sha256)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", look, desk.url, str(desk.keys)], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == archive.restore("large", "r1", principal=OWNER).sha256


def opened_without_folder(desk: Desk, away: Path, empty: bool) -> Archive:
    """An archive whose folder is not there, or is the empty mount point of a disk that is away."""
    with desk.open(counter=Characters()) as first:
        archived(first, "large", LARGE)
    shutil.move(beside(desk), away)
    if empty:
        beside(desk).mkdir(mode=0o700)
    return desk.open(counter=Characters())


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "empty"])
def test_a_folder_that_is_away_is_the_operators_move_suspends_nothing_and_comes_back(
    desk: Desk, tmp_path: Path, empty: bool
) -> None:
    away = tmp_path / "away"
    with opened_without_folder(desk, away, empty) as archive:
        with pytest.raises(StoreUnavailableError, match="mount"):
            archive.restore("large", "r1", principal=OWNER)
        assert archive.session("large", OWNER).stats().suspended is None
        shutil.rmtree(beside(desk), ignore_errors=True)
        shutil.move(away, beside(desk))
        assert archive.restore("large", "r1", principal=OWNER).content == LARGE


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "empty"])
def test_a_folder_that_is_away_is_not_made_anew_for_the_next_large_original(
    desk: Desk, tmp_path: Path, empty: bool
) -> None:
    away = tmp_path / "away"
    with opened_without_folder(desk, away, empty) as archive:
        with pytest.raises(BatchRejectedError, match="mount"):
            archived(archive, "second", LARGE)
        assert beside(desk).exists() == empty
        shutil.rmtree(beside(desk), ignore_errors=True)
        shutil.move(away, beside(desk))
        archived(archive, "third", LARGE)
        assert [archive.restore(name, "r1", principal=OWNER).content for name in ("large", "third")] == [LARGE] * 2


def test_must_fail_control_a_folder_made_anew_would_lose_sight_of_an_acknowledged_original(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evidence_archive.store.sql.SqlStore.has_used_objects", lambda store: False)
    away = tmp_path / "away"
    with opened_without_folder(desk, away, empty=False) as archive:
        archived(archive, "second", LARGE)
    shutil.rmtree(beside(desk))
    shutil.move(away, beside(desk))
    with desk.open() as archive, pytest.raises(StoreUnavailableError):
        archive.restore("second", "r1", principal=OWNER)


def test_a_folder_that_is_named_is_not_made_anew_either(desk: Desk, tmp_path: Path) -> None:
    named = tmp_path / "named"
    with desk.open(counter=Characters(), objects=named) as archive:
        archived(archive, "large", LARGE)
    named.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError, match="mount"):
        desk.open(objects=named)
    assert not named.exists()


def test_what_a_batch_left_that_found_no_place_for_its_folder_is_collected_without_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise StoreUnavailableError("The object folder does not permit this: check its permissions.")

    clock = FrozenClock()
    with desk.open(counter=Characters(), clock=clock) as archive:
        with monkeypatch.context() as patched:
            patched.setattr("evidence_archive.objects.directory._make_folder", refuse)
            with pytest.raises(BatchRejectedError, match="Nothing was archived"):
                archived(archive, "large", LARGE)
        clock.advance(INTENT_SECONDS)
        assert archive.collect(principal=OWNER).abandoned == 1
        clock.advance(INTENT_SECONDS)
        assert archive.collect(principal=OWNER).forgotten == 1
    assert not beside(desk).exists()
    assert desk.execute("SELECT count(*) FROM objects") == [(0,)]


def test_a_folder_whose_maker_was_killed_before_its_mark_is_gone_on_with(desk: Desk, archive: Archive) -> None:
    beside(desk).mkdir(mode=0o700)
    archived(archive, "small", SMALL)
    assert archive.collect(principal=OWNER).tidied == 0
    archived(archive, "large", LARGE)
    assert archive.restore("large", "r1", principal=OWNER).content == LARGE


def test_unfinished_files_in_the_folder_are_tidied_by_a_process_that_put_nothing(
    desk: Desk, archive: Archive
) -> None:
    archived(archive, "large", LARGE)
    leftover = beside(desk) / f"{'0' * 32}.part"
    leftover.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    with desk.open() as other:
        assert other.collect(principal=OWNER).tidied == 1
    assert not leftover.exists()


def test_what_was_never_put_is_neither_opened_to_delete_nor_to_tidy_nor_to_close() -> None:
    def opening(may_make: bool) -> None:
        raise AssertionError

    late = LateObjects("folder", opening, exists=lambda: False, was_used=lambda: False)  # type: ignore[arg-type]
    late.delete("3f/0123456789abcdef0123456789abcd.00000")
    assert late.tidy() == 0
    late.close()
    assert late.name == "folder"


def test_it_is_opened_once_and_closed_with_the_archive(tmp_path: Path) -> None:
    made: list[bool] = []

    def opening(may_make: bool) -> object:
        made.append(may_make)
        return open_objects(tmp_path / "objects", create=may_make)

    late = LateObjects("folder", opening, exists=lambda: False, was_used=lambda: False)  # type: ignore[arg-type]
    key = "3f/0123456789abcdef0123456789abcd.00000"
    late.put(key, b"sealed")
    assert late.get(key) == b"sealed"
    late.delete(key)
    assert (late.get(key), late.tidy(), made) == (None, 0, [True])
    late.close()
