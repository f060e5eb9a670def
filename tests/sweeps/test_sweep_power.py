"""The power goes at any moment of an archive's life, from the first use on: what was acknowledged is on the disk.

A child archives batch after batch, into the database and into the folder of objects beside it, while ``strace``
records what it does to the disk; the states a power cut may leave behind (the model is in ``powercut``) are rebuilt
and opened with the library, one by one.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invariants import Case
from nursery import Nursery
from powercut import TRACED, Choice, Cut, choices, cuts, recorded, state
from tracing import traced
from workers import JOURNALS, UNSYNCED, goes_on, some, store_findings

from evidence_archive.keys import new_keys

CHECKPOINT_PAGES = 30
"""Few enough that checkpoints fall between the recorded batches, as they do every 1,000 pages otherwise."""

GOES_ON_EVERY = 20
"""In every so many states the agent goes on: it archives what is left, all of it outside the database."""

pytestmark = pytest.mark.no_cover  # hundreds of times the same lines, which other tests count

OBJECTS = "evidence.db.objects/"

State = dict[str, bytes | None]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    if shutil.which("strace") is None:
        pytest.skip("sweep: strace is not installed")
    with Nursery() as made:
        yield made


class Disk:
    """An archive's life, recorded under some durability rules."""

    def __init__(
        self, nursery: Nursery, folder: Path, mode: str, synchronous: int, unsynced: str | None = None
    ) -> None:
        self._mode = mode
        self._folder = folder / "rebuilt"
        self._life = folder / "life"
        self._life.mkdir()
        self._messages = some()
        new_keys(self._life / "evidence.keys")
        child = nursery.start(
            "workers.some_batches",
            folder=str(self._life),
            rules=(mode, synchronous),
            checkpoint_pages=CHECKPOINT_PAGES,
            unsynced=unsynced,
        )
        with traced(child, folder / "trace", TRACED):
            code, said = child.ended()
        assert code == 0, said
        with (folder / "trace").open() as trace:
            self.cuts = list(cuts(recorded(trace, self._life)))
        end = self.cuts[-1]
        self.end = end, state(end, Choice(frozenset(range(len(end.pending)))))
        assert len(self.receipts(end)) == 6
        assert self.end[1] == {
            str(path.relative_to(self._life)): None if path.is_dir() else path.read_bytes()
            for path in self._life.rglob("*")
            if path.suffix != ".keys"
        }, "the recording is not what happened"
        assert len(objects_in(self.end[1])) == 4, "originals lie outside the database"

    @staticmethod
    def receipts(cut: Cut) -> list[list[str]]:
        """The batches that were acknowledged before a cut."""
        told = (json.loads(said) for said in cut.said)
        return [one["receipt"] for one in told if "receipt" in one]

    def states(self, random_count: int) -> Iterator[tuple[str, Cut, State]]:
        """Every state once that the model allows, in a fixed order that jumps between the cuts, with its name."""
        seen = set()
        drawn = [
            (at, cut, choice)
            for at, cut in enumerate(self.cuts)
            for choice in choices(cut, f"{self._mode} {at}", random_count)
        ]
        random.Random(self._mode).shuffle(drawn)
        for at, cut, choice in drawn:
            files = state(cut, choice)
            digest = hashlib.sha256(b"%d" % len(cut.said))
            for name, content in files.items():
                digest.update(b"%s %d " % (name.encode(), -1 if content is None else len(content)))
                digest.update(content or b"")
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield f"cut {at}, {choice}", cut, files

    def findings(self, cut: Cut, files: State, *, going_on: bool = False) -> list[str]:
        """What does not hold in a state; and once the agent has gone on from there."""
        self._folder.mkdir()
        try:
            shutil.copy2(self._life / "evidence.keys", self._folder)
            for name, content in files.items():
                if content is None:
                    (self._folder / name).mkdir(0o700)
                else:
                    (self._folder / name).touch(0o600)
                    (self._folder / name).write_bytes(content)
            case = Case("case", self._messages, self.receipts(cut))
            found = store_findings(self._folder, [case], self._mode)
            return found + (goes_on(self._folder, case, self._mode) if going_on else [])
        finally:
            shutil.rmtree(self._folder)


def objects_in(files: State) -> list[str]:
    """The objects of a state, apart from the mark of their folder."""
    return [name for name in files if name.startswith(OBJECTS) and name.count("/") == 2 and "part" not in name]


def sweep(disk: Disk, wanted: int, random_count: int, record: Callable[[str, object], None]) -> None:
    """Check so many states; nothing may be wrong in any."""
    checked, promised, outside, found = 0, 0, 0, []
    for name, cut, files in disk.states(random_count):
        going_on = checked % GOES_ON_EVERY == 0
        found += [f"{name}: {one}" for one in disk.findings(cut, files, going_on=going_on)]
        checked += 1
        promised += bool(disk.receipts(cut))
        outside += bool(objects_in(files))
        if checked == wanted:
            break
    record("cuts", len(disk.cuts))
    record("states", checked)
    record("states_with_receipts", promised)
    record("states_with_objects", outside)
    record("violations", len(found))
    assert not found, "\n".join(found[:50])
    assert checked == wanted, "the recording gives fewer states"
    assert min(promised, outside) > wanted / 4, "there is little to lose before the first receipt"


@pytest.mark.parametrize("mode", JOURNALS)
def test_no_power_cut_loses_a_receipt_or_tears_a_batch(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    sweep(Disk(nursery, tmp_path, *JOURNALS[mode]), 600, 4, record_property)


FIRST_CUTS = 8
"""Within them the database has its name, and its first log."""


def unmade(disk: Disk) -> list[str]:
    """What does not hold in any state that a power cut may leave behind while a store is made."""
    return [
        f"cut {at}, {choice}: {one}"
        for at, cut in enumerate(disk.cuts[:FIRST_CUTS])
        for choice in choices(cut, f"first {at}", 4)
        for one in disk.findings(cut, state(cut, choice))
    ]


@pytest.mark.parametrize("mode", JOURNALS)
def test_after_a_power_cut_in_its_first_moments_a_store_can_be_made(
    nursery: Nursery, tmp_path: Path, mode: str
) -> None:
    assert unmade(Disk(nursery, tmp_path, *JOURNALS[mode])) == []


def test_a_new_database_whose_name_is_not_synced_before_its_log_is_caught(nursery: Nursery, tmp_path: Path) -> None:
    found = unmade(Disk(nursery, tmp_path, *JOURNALS["wal"], "new database"))
    assert any("its log is still there" in one for one in found)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", JOURNALS)
def test_no_power_cut_of_many_loses_a_receipt_or_tears_a_batch(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    sweep(Disk(nursery, tmp_path, *JOURNALS[mode]), 20_000, 80, record_property)


@pytest.mark.parametrize(
    ("rules", "symptom"),
    [
        (("wal", 1), "was acknowledged, and is lost"),
        (("delete", 2), "was acknowledged, and is lost"),
        (("memory", 3), "cannot be used"),
    ],
    ids=["wal-normal", "delete-full", "no-journal"],
)
def test_weaker_durability_rules_lose_receipts_or_tear_batches_and_are_caught(
    nursery: Nursery,
    tmp_path: Path,
    rules: tuple[str, int],
    symptom: str,
    record_property: Callable[[str, object], None],
) -> None:
    disk = Disk(nursery, tmp_path, *rules)
    assert not disk.findings(*disk.end), "without a power cut all is well"
    checked, caught = 0, False
    for _, cut, files in disk.states(0):
        checked += 1
        caught = any(symptom in one for one in disk.findings(cut, files))
        if caught:
            break
    record_property("states", checked)
    assert caught


@pytest.mark.parametrize("unsynced", UNSYNCED)
def test_objects_stored_without_one_of_their_syncs_are_lost_with_their_receipts_and_caught(
    nursery: Nursery, tmp_path: Path, unsynced: str, record_property: Callable[[str, object], None]
) -> None:
    disk = Disk(nursery, tmp_path, *JOURNALS["truncate"], unsynced)
    assert not disk.findings(*disk.end), "without a power cut all is well"
    checked, caught = 0, False
    for _, cut, files in disk.states(0):
        checked += 1
        lost = {f"{result_id} of case does not come back" for ids in disk.receipts(cut) for result_id in ids}
        caught = any(one.partition(":")[0] in lost for one in disk.findings(cut, files))
        if caught:
            break
    record_property("states", checked)
    assert caught
